#!/usr/bin/env bash
# Checks real files on XFS, ext4, btrfs (copying on write or not) and tmpfs.
#
# Makes the file systems in memory, so nothing is left behind but time spent. Two more lie on a file
# of a file system that the test freezes: so a direct write can be held up for as long as it takes to
# see that waiting for it waits.
set -Eeuo pipefail
trap 'echo "$0: failed: $BASH_COMMAND" >&2' ERR
cd "$(dirname "$0")/../.."
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh

skip() {
    echo "$1"
    exit 77
}

[[ $(id -u) -eq 0 ]] || skip "not root, so nothing can be mounted"
for tool in mkfs.xfs mkfs.ext4 mkfs.btrfs fsfreeze losetup chattr setpriv; do
    command -v "$tool" >/dev/null || skip "$tool is missing (make test-deps installs it)"
done
[[ -e /dev/loop-control ]] || skip "no loop devices"

mounts_begin
mounts_tmpfs store 3G
store=$MOUNTS/store
mounts_make xfs "$store" 320M mkfs.xfs -q
mounts_make ext4 "$store" 64M mkfs.ext4 -q -F -b 4096
mounts_make ext4-1k "$store" 64M mkfs.ext4 -q -F -b 1024
mounts_make sync "$store" 64M mkfs.ext4 -q -F -b 4096
mount -o remount,sync "$MOUNTS/sync"
mounts_make ext2 "$store" 64M mke2fs -q -F -t ext2 -b 4096
mounts_make btrfs "$store" 128M mkfs.btrfs -q
install -d -m 1777 "$MOUNTS/btrfs/no-copy"
chattr +C "$MOUNTS/btrfs/no-copy"

# The floor can be frozen: then writes to what stands on it do not end.
mounts_make floor "$store" 1G mkfs.ext4 -q -F
stalled=()
for kind in xfs ext4 btrfs; do
    mkdir -p "$MOUNTS/floor/images"
    blocks=()
    [[ $kind == ext4 ]] && blocks=(-b 4096)
    mounts_make "on-floor-$kind" "$MOUNTS/floor/images" 310M "mkfs.$kind" -q "${blocks[@]}"
    stalled+=("$MOUNTS/on-floor-$kind=$MOUNTS/floor")
done
chattr +C "$MOUNTS/on-floor-btrfs"

# A device of larger sectors, and a layer over another file system.
MOUNTS_LOSETUP=--sector-size=4096 mounts_make xfs-4k "$store" 320M mkfs.xfs -q -s size=4096
mounts_overlay overlay "$MOUNTS/xfs"

m=$MOUNTS
export FOREBAY_TEST_DIRS="$m/xfs:$m/xfs-4k:$m/ext4:$m/ext4-1k:$m/sync:$m/ext2:$m/btrfs:$m/btrfs/no-copy"
FOREBAY_TEST_DIRS+=":$m/overlay:$store"
FOREBAY_TEST_STALLS=$(IFS=:; echo "${stalled[*]}")
export FOREBAY_TEST_STALLS

test=(cargo test -q --target-dir "${CARGO_TARGET_DIR:-target}/sim" -p forebay --features sim --test device_files)
"${test[@]}" -- --nocapture --test-threads=1

# Once more as somebody without rights, who can neither freeze nor read the build's directory.
program=$("${test[@]}" --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*device_files[^"]*\)".*/\1/p')
install -m 755 "$program" "$store/device_files"
cd /
FOREBAY_TEST_STALLS="" setpriv --reuid=65534 --regid=65534 --clear-groups \
    "$store/device_files" --test-threads=1
