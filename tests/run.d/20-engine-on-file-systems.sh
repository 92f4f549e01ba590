#!/usr/bin/env bash
# The engine's tests on real files, in one process and in several, killed, recovered and over their lives, on XFS, ext4,
# btrfs (copying on write or not) and tmpfs; each once more as somebody without rights.
#
# $FOREBAY_TEST_BIN: a directory with the library and the test program `programs`, instead of ones made here.
# Makes the file systems in memory and takes everything down again, whatever happens.
set -Eeuo pipefail
trap 'echo "$0: failed: $BASH_COMMAND" >&2' ERR
cd "$(dirname "$0")/../.."
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh

away() {
    echo "$1"
    exit 77
}

[[ $(id -u) -eq 0 ]] || away "not root, so nothing can be mounted"
for tool in mkfs.xfs mkfs.ext4 mkfs.btrfs losetup chattr setpriv fstrim; do
    command -v "$tool" >/dev/null || away "$tool is missing (make test-deps installs it)"
done
[[ -e /dev/loop-control ]] || away "no loop devices"

mounts_begin
mounts_tmpfs store 7G
store=$MOUNTS/store
mounts_make xfs "$store" 2G mkfs.xfs -q
mounts_make ext4 "$store" 2G mkfs.ext4 -q -F
mounts_make btrfs "$store" 2G mkfs.btrfs -q
install -d -m 1777 "$MOUNTS/btrfs/no-copy"
chattr +C "$MOUNTS/btrfs/no-copy"

# shellcheck source=tests/lib/results.sh
. tests/lib/results.sh

build=(cargo test -q --target-dir "${CARGO_TARGET_DIR:-target}/sim" -p forebay --features sim --test real --test processes --test kill
    --test recovery --test lifecycle --no-run --message-format=json)
programs=$("${build[@]}" 2>/dev/null | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
install -d -m 755 "$store/bin"
for program in $programs; do
    install -m 755 "$program" "$store/bin/$(basename "${program%-*}")"
done
# Programs under the preload library, and those that are not.
bin=${FOREBAY_TEST_BIN:-}
if [[ ! -x $bin/programs ]]; then
    build=(cargo test -q -p forebay-preload --test programs --no-run --message-format=json)
    program=$("${build[@]}" 2>/dev/null | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
    bin=$store/built
    install -D "$program" "$bin/programs"
    install "$(dirname "$program")/libforebay_preload.so" "$bin/"
fi
install -m 755 "$bin/programs" "$bin/libforebay_preload.so" "$store/bin/"
unset FOREBAY_TEST_BIN
cd /

# twice NAME PROGRAM ARGUMENT...: as root, then as somebody without rights.
twice() {
    local name=$1
    shift
    run "$name" "$@"
    run "$name, as nobody" env TMPDIR="$store" \
        setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
}

# What makes a disk or a cgroup of its own is the same wherever the files are; it runs in the build's directory.
elsewhere=(--skip planted_bugs --skip a_slow_device --skip a_file_made_longer
    --skip waited_for --skip memory_file_system --skip cgroup --skip pressure)
export FOREBAY_TEST_ROUNDS=3
for kind in xfs ext4 btrfs btrfs/no-copy store; do
    export FOREBAY_TEST_DIRS=$MOUNTS/$kind
    for program in real processes kill; do
        twice "$program on $kind" "$store/bin/$program" "${elsewhere[@]}"
    done
    # Where the kernel serves the files, nothing is left to recover, and no memory is held for them.
    case $kind in xfs | ext4 | btrfs/no-copy)
        for program in recovery lifecycle; do
            twice "$program on $kind" "$store/bin/$program" "${elsewhere[@]}"
        done
        twice "outsiders on $kind" env HOME="$store" "$store/bin/programs" outsiders::
        ;;
    esac
    [[ $kind == store ]] || mounts_trim "$kind"
done

# A file that belongs to somebody else.
install -d -m 777 "$MOUNTS/xfs/foreign"
install -m 666 /dev/null "$MOUNTS/xfs/foreign/file-0"
FOREBAY_TEST_FOREIGN=$MOUNTS/xfs/foreign FOREBAY_TEST_DIRS=$MOUNTS/xfs run "a file of root's, as nobody" \
    setpriv --reuid=65534 --regid=65534 --clear-groups "$store/bin/processes" somebody_else
rmdir /dev/shm/forebay-65534 2>/dev/null || true

printf 'engine: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
