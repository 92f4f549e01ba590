#!/usr/bin/env bash
# Times calls on a mounted store, and on ext4, XFS and tmpfs in the same memory, in turn: mounted-store.sh [ROUNDS]. As root.
# $FOREBAY: the program (a release build). Prints medians in nanoseconds per call, and each file system's by the store's.
set -Eeuo pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-5}
forebay=$(realpath "${FOREBAY:-target/release/forebay}")
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh
scratch=$(mktemp -d)
TMPDIR=$scratch mounts_begin
trap '"$forebay" umount --lazy "$MOUNTS/store" 2>/dev/null || :; mounts_end; rm -rf "$scratch"' EXIT
gcc -O2 -o "$scratch/mounted" bench/programs/mounted.c
mounts_tmpfs memory 2G
mounts_tmpfs tmpfs 512M
mounts_make ext4 "$MOUNTS/memory" 512M mkfs.ext4 -q
mounts_make xfs "$MOUNTS/memory" 512M mkfs.xfs -q
mkdir "$MOUNTS/store"
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch
"$forebay" pmem create --size 512MiB "$MOUNTS/memory/store" >/dev/null
"$forebay" mount --daemon "$MOUNTS/memory/store" "$MOUNTS/store" 2>/dev/null
sides=(store ext4 xfs tmpfs)
# The first time warms every side's memory, and does not count.
for ((round = 0; round <= rounds; round++)); do
    for side in "${sides[@]}"; do
        "$scratch/mounted" "$MOUNTS/$side" | sed "s/^/$round $side /" >>"$scratch/all"
    done
done
"$forebay" umount "$MOUNTS/store"
uptime
python3 - "$scratch/all" <<'PROGRAM'
import statistics, sys
found = {}
for line in open(sys.argv[1]):
    number, side, name, ns = line.split()
    if number != "0":
        found.setdefault(name, {}).setdefault(side, []).append(float(ns))
print("| call | store, us | ext4, us | XFS, us | tmpfs, us | ext4 / store | XFS / store | tmpfs / store |\n|---|---|---|---|---|---|---|---|")
for name, sides in found.items():
    middle = {side: statistics.median(all) / 1000 for side, all in sides.items()}
    ours = middle.pop("store")
    times = " | ".join(f"{time:.1f}" for time in middle.values())
    ratios = " | ".join(f"{time / ours:.2f}" for time in middle.values())
    print(f"| {name} | {ours:.1f} | {times} | {ratios} |")
PROGRAM
