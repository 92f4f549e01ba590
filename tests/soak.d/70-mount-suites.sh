#!/usr/bin/env bash
# Public suites of file system calls on a mounted store, case by case: pjdfstest and the stressors of stress-ng. Each case must end as it does on ext4 in
# memory, but for those that are listed here and in docs/mount.md. Then a long fsx. The store is in order in the end.
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
    cargo build --quiet --release -p forebay-cli || exit 1
    bin=${CARGO_TARGET_DIR:-target}/release
fi
forebay=$(realpath "$bin")/forebay
for name in $(compgen -e | grep '^FOREBAY_'); do unset "$name"; done
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh
mounts_begin
scratch=$(mktemp -d)
clean() {
    "$forebay" umount --lazy "$MOUNTS/mounted" 2>/dev/null
    rmdir "$MOUNTS/mounted" 2>/dev/null
    mounts_end
    rm -rf "$scratch"
}
trap clean EXIT
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch
mounts_tmpfs memory 2G
mounts_make ext4 "$MOUNTS/memory" 512M mkfs.ext4 -q
mkdir "$MOUNTS/mounted"
"$forebay" pmem create --sparse --size 512MiB "$MOUNTS/memory/store" >/dev/null || exit 1
"$forebay" mount --daemon --allow-other "$MOUNTS/memory/store" "$MOUNTS/mounted" || exit 1
chmod 1777 "$MOUNTS/mounted"

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
# How each case of pjdfstest ends here.
posix() {
    (cd "$1" && mkdir -m 777 posix && cd posix && timeout 900 "$tools/pjdfstest" -c "$scratch/settings.toml" -p . 2>&1 </dev/null) |
        sed -n 's/^\([a-z_0-9:]*\) *\(ok\|FAILED\|skipped\).*/\1 \2/p' | sort
    rm -rf "$1/posix"
}
stressors='access chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl file-ioctl filename flock fsize fstat getdent hdd io iomix lease
    link locka lockf lockofd mknod open rename seek symlink sync-file touch utime xattr aio aiol readahead revio sendfile splice tee mmapmany msync fifo'
# How each stressor ends here.
stress() {
    local name
    for name in $stressors; do
        mkdir "$1/stress"
        (cd "$1/stress" && timeout 60 stress-ng --temp-path . --seed 7 --hdd-bytes 16M --iomix-bytes 16M --fallocate-bytes 16M --copy-file-bytes 16M \
            --sync-file-bytes 4M --readahead-bytes 16M "--$name" 1 "--$name-ops" "${STRESS_OPS:-20}" --verify -t 40 >"$scratch/stressed" 2>&1)
        echo "$name $?"
        rm -rf "$1/stress"
    done
}
for suite in posix stress; do
    for side in ext4 mounted; do "$suite" "$MOUNTS/$side" >"$scratch/$suite.$side"; done
    printf '%s: %s cases\n' "$suite" "$(wc -l <"$scratch/$suite.mounted")"
done
differs() {
    diff "$scratch/$1.ext4" "$scratch/$1.mounted" | grep '^[<>]' | sort >"$scratch/$1.differs"
    diff "$scratch/$1.differs" <(printf '%s' "$2")
}
expect 'pjdfstest runs' test "$(wc -l <"$scratch/posix.ext4")" -gt 300
expect 'pjdfstest ends as on ext4, but for what is known' differs posix ''
expect 'stress-ng ends as on ext4, but for what is known' differs stress ''
expect 'fsx' timeout 900 "$tools/fsx" -N "${FSX_OPS:-100000}" "$MOUNTS/mounted/fsx"
expect 'the store is unmounted' "$forebay" umount "$MOUNTS/mounted"
in_order() {
    local try
    for try in {1..300}; do
        "$forebay" pmem check "$MOUNTS/memory/store" && return
        sleep 0.1
    done
    return 1
}
expect 'the store is in order' in_order
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
