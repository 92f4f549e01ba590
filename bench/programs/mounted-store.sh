#!/usr/bin/env bash
# Times calls on a mounted store, on a store by its API, and on ext4, XFS and tmpfs in the same memory, in turn: mounted-store.sh [ROUNDS].
# As root. $FOREBAY: the program. $CALLS: the example `calls` of forebay-pmem, which makes the API's calls. Both are release builds.
# Prints medians in microseconds per call, and ratios of them.
set -Eeuo pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-5}
forebay=$(realpath "${FOREBAY:-target/release/forebay}")
calls=$(realpath "${CALLS:-target/release/examples/calls}")
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
# The API has a store of its own: one process has a store open.
"$forebay" pmem create --size 512MiB "$MOUNTS/memory/api" >/dev/null
sides=(store api ext4 xfs tmpfs)
# The first time warms every side's memory, and does not count.
for ((round = 0; round <= rounds; round++)); do
    for side in "${sides[@]}"; do
        case $side in
            api) "$calls" "$MOUNTS/memory/api" ;;
            *) "$scratch/mounted" "$MOUNTS/$side" ;;
        esac | sed "s/^/$round $side /" >>"$scratch/all"
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
print("| call | mounted, us | API, us | ext4, us | XFS, us | tmpfs, us | ext4 / mounted | ext4 / API | tmpfs / API |\n|---|---|---|---|---|---|---|---|---|")
for name, sides in found.items():
    middle = {side: statistics.median(all) / 1000 for side, all in sides.items()}
    times = " | ".join(f"{time:.1f}" for time in middle.values())
    pairs = [("ext4", "store"), ("ext4", "api"), ("tmpfs", "api")]
    ratios = " | ".join(f"{middle[one] / middle[other]:.2f}" for one, other in pairs)
    print(f"| {name} | {times} | {ratios} |")
PROGRAM
