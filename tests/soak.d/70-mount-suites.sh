#!/usr/bin/env bash
# Public suites of file system calls on a mounted store, on a mounted directory of ext4, and under `forebay run` on the store, case by case: pjdfstest and the
# stressors of stress-ng. Each case must end as it does on ext4 itself, but for those that are listed here and in docs/mount.md. Then a long fsx. The store is
# in order in the end.
# $STRESS_OPS, $FSX_OPS: how much. $SUITES: posix and stress, or one of them.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1

away() {
    echo "$1"
    exit 77
}
[[ $(id -u) == 0 ]] || away 'root alone can mount file systems and become other users'
[[ -e /dev/fuse && -e /dev/loop-control ]] || away 'there is no /dev/fuse, or no loop device'
tools=$PWD/${CARGO_TARGET_DIR:-target}/tools/bin
[[ -x $tools/pjdfstest && -x $tools/fsx ]] || away 'pjdfstest or fsx is missing (scripts/install-test-deps.sh installs them)'
command -v stress-ng >/dev/null || away 'stress-ng is missing (scripts/install-test-deps.sh installs it)'
# $FOREBAY_TEST_BIN: a directory with forebay, instead of a release build made here.
bin=${FOREBAY_TEST_BIN:-}
if [[ -z $bin ]]; then
    cargo build --quiet --release -p forebay-cli -p forebay-preload || exit 1
    bin=${CARGO_TARGET_DIR:-target}/release
fi
forebay=$(realpath "$bin")/forebay
for name in $(compgen -e | grep '^FOREBAY_'); do unset "$name"; done
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh
mounts_begin
scratch=$(mktemp -d)
clean() {
    for kind in store directory; do
        "$forebay" umount --lazy "$MOUNTS/$kind" 2>/dev/null
        rmdir "$MOUNTS/$kind" 2>/dev/null
    done
    mounts_end
    rm -rf "$scratch"
}
trap clean EXIT
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh
export FOREBAY_CONFIG=/dev/null FOREBAY_SESSION="suites-$$" XDG_STATE_HOME=$scratch FOREBAY_SMALL_FILE_BYTES=0 FOREBAY_LARGE_FILE_BYTES=0
mounts_tmpfs memory 2G
for name in ext4 below; do mounts_make $name "$MOUNTS/memory" 512M mkfs.ext4 -q; done
mkdir "$MOUNTS/store" "$MOUNTS/directory"
"$forebay" pmem create --sparse --size 512MiB "$MOUNTS/memory/store" >/dev/null || exit 1
"$forebay" mount --daemon --allow-other "$MOUNTS/memory/store" "$MOUNTS/store" || exit 1
"$forebay" mount --daemon --allow-other --linger 1 --memory 64MiB "$MOUNTS/below" "$MOUNTS/directory" || exit 1
chmod 1777 "$MOUNTS/store"

cat >"$scratch/settings.toml" <<'END'
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.01
expected_failures = []
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
END
# What a suite's programs run under, on one side.
under=()
# How each case of pjdfstest ends here.
posix() {
    (cd "$1" && mkdir -m 777 posix && cd posix && timeout 900 "${under[@]}" "$tools/pjdfstest" -c "$scratch/settings.toml" -p . 2>&1 </dev/null) |
        sed -n 's/^\([a-z_0-9:]*\) *\(ok\|FAILED\|skipped\).*/\1 \2/p' | sort
    rm -rf "$1/posix"
}
stressors='access chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl file-ioctl filename flock fsize fstat getdent hdd io iomix lease
    link locka lockf lockofd mknod open rename seek symlink sync-file touch utime xattr aio aiol readahead revio sendfile splice tee mmapmany msync fifo'
# Sizes that fit here, for those that have one: an option that is out of range ends stress-ng before it has done anything.
declare -A sizes=([hdd]=16M [iomix]=16M [fallocate]=16M [copy-file]=128M [sync-file]=4M [readahead]=16M)
# How each stressor ends here.
stress() {
    local name size
    for name in $stressors; do
        mkdir "$1/stress"
        size=()
        [[ -z ${sizes[$name]:-} ]] || size=("--$name-bytes" "${sizes[$name]}")
        (cd "$1/stress" && timeout 60 "${under[@]}" stress-ng --temp-path . --seed 7 "${size[@]}" "--$name" 1 "--$name-ops" "${STRESS_OPS:-20}" --verify -t 40 >"$scratch/stressed" 2>&1)
        echo "$name $?"
        grep -q 'successful run' "$scratch/stressed" || sed "s/^/$name: /" "$scratch/stressed" >>"$scratch/unsuccessful"
        rm -rf "$1/stress"
    done
}
for suite in ${SUITES:-posix stress}; do
    for side in ext4 store directory run; do
        under=() where=$side
        if [[ $side == run ]]; then
            under=("$forebay" run --memory 64MiB --linger 5 --) where=store
        fi
        "$suite" "$MOUNTS/$where" >"$scratch/$suite.$side"
        printf '%s on %s: %s cases\n' "$suite" "$side" "$(wc -l <"$scratch/$suite.$side")"
    done
done
# differs SUITE KIND KNOWN: what ends otherwise than on ext4.
differs() {
    diff "$scratch/$1.ext4" "$scratch/$1.$2" | grep '^>' | sort >"$scratch/$1.differs"
    diff "$scratch/$1.differs" <(printf '%s' "$3")
}
expect 'pjdfstest runs' test "$(grep -c ok "$scratch/posix.ext4")" -gt 300
expect 'stress-ng runs' test "$(grep -c ' 0$' "$scratch/stress.ext4")" -gt 40
# The kernel tells no limit of links for any file system in user space, so this case does not know when to stop.
known='> link::link_count_max skipped
'
for kind in store directory run; do
    expect "pjdfstest ends as on ext4, but for what is known: $kind" differs posix "$kind" "$known"
    expect "stress-ng ends as on ext4, but for what is known: $kind" differs stress "$kind" ''
done
under=("$forebay" run --memory 64MiB --)
expect 'fsx on a store under forebay run' timeout 900 "${under[@]}" "$tools/fsx" -q -N "${FSX_OPS:-100000}" -P "$scratch" "$MOUNTS/store/fsx-run"
for kind in store directory; do
    expect "fsx on a $kind" timeout 900 "$tools/fsx" -q -N "${FSX_OPS:-100000}" -P "$scratch" "$MOUNTS/$kind/fsx"
    expect "the $kind is unmounted" "$forebay" umount "$MOUNTS/$kind"
done
in_order() {
    local try
    for try in {1..300}; do
        "$forebay" pmem check "$MOUNTS/memory/store" && return
        sleep 0.1
    done
    return 1
}
expect 'the store is in order' in_order
[[ ! -s $scratch/unsuccessful ]] || cat "$scratch/unsuccessful"
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
