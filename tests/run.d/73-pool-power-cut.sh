#!/usr/bin/env bash
# A pool's home on XFS, cut off as a power cut does it: what was synced is there, also where it was written over afterwards. Then it is read-only.
# Root, loop devices and XFS; elsewhere it is skipped.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1

away() {
    echo "$1"
    exit 77
}
[[ $(id -u) == 0 ]] || away 'not root, so nothing can be mounted'
[[ -e /dev/loop-control ]] || away 'there are no loop devices'
for program in mkfs.xfs xfs_io; do
    command -v "$program" >/dev/null || away "$program is missing (scripts/install-test-deps.sh installs it)"
done
target=$PWD/${CARGO_TARGET_DIR:-target}
# $FOREBAY_TEST_BIN: a directory with the test program `forebay_pool`, instead of one made here.
program=${FOREBAY_TEST_BIN:-}/forebay_pool
tests=(env -C crates/forebay-pool "$program")
if [[ ! -x $program ]]; then
    cargo test --quiet -p forebay-pool --lib --no-run || exit 1
    tests=(cargo test --quiet -p forebay-pool --lib --)
fi
unset FOREBAY_TEST_BIN
scratch=$(mktemp -d -p "$target") || exit 1
clean() {
    umount "$scratch/disk" 2>/dev/null
    rm -rf --one-file-system "$scratch"
}
trap clean EXIT
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh

truncate -s 320M "$scratch/image" && mkfs.xfs -q "$scratch/image" && mkdir "$scratch/disk" || exit 1
export TEST_POOL_HOME=$scratch/disk/home
test=home::directory::tests::what_was_synced_is_there_after_a_power_cut
mount -o loop "$scratch/image" "$scratch/disk" || away 'XFS cannot be mounted here'
for life in 1 2 3; do
    expect "life $life" "${tests[@]}" --exact "$test"
    # Names reach the disk, and bytes that nobody has synced do not.
    expect "power cut $life" xfs_io -x -c 'shutdown -f' "$scratch/disk"
    umount "$scratch/disk" && mount -o loop "$scratch/image" "$scratch/disk" || exit 1
done
unset TEST_POOL_HOME
mount -o remount,ro "$scratch/disk" || exit 1
expect 'read-only' env TEST_POOL_READ_ONLY="$scratch/disk/home" "${tests[@]}" --exact home::directory::tests::nothing_is_durable_in_a_home_that_is_read_only
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
