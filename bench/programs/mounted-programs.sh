#!/usr/bin/env bash
# Times grep, tar and sort on a mounted store, there under `forebay run`, and on ext4, XFS and tmpfs in the same memory, in turn: mounted-programs.sh [ROUNDS].
# As root. $FOREBAY: the program, a release build. $NUMBERS: how many integers are sorted (8 million). Memory is warm, as after the first time.
# Prints medians in milliseconds, and how many times faster than ext4 the store is.
# A session lasts for all rounds; what `forebay run` itself takes is in the times of its side.
set -Eeuo pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-5}
numbers=${NUMBERS:-8000000}
forebay=$(realpath "${FOREBAY:-target/release/forebay}")
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh
scratch=$(mktemp -d)
TMPDIR=$scratch mounts_begin
trap '"$forebay" umount --lazy "$MOUNTS/store" 2>/dev/null || :; mounts_end; rm -rf "$scratch"' EXIT
mounts_tmpfs memory 5G
mounts_tmpfs tmpfs 1200M
mounts_make ext4 "$MOUNTS/memory" 1200M mkfs.ext4 -q
mounts_make xfs "$MOUNTS/memory" 1200M mkfs.xfs -q
mkdir "$MOUNTS/store"
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch LC_ALL=C
"$forebay" pmem create --size 1200MiB "$MOUNTS/memory/store" >/dev/null
"$forebay" mount --daemon "$MOUNTS/memory/store" "$MOUNTS/store" 2>/dev/null
export FOREBAY_MANAGE_STORES=true FOREBAY_SESSION=mounted-programs-$$
"$forebay" daemon --until-idle 600 >/dev/null 2>&1 &
daemon=$!
trap 'kill "$daemon" 2>/dev/null || :; wait "$daemon" || :; "$forebay" umount --lazy "$MOUNTS/store" 2>/dev/null || :; mounts_end; rm -rf "$scratch"' EXIT
places=(store ext4 xfs tmpfs)
sides=(store run ext4 xfs tmpfs)

# The project's own sources four times over, and numbers that are the same each time.
for copy in 1 2 3 4; do
    mkdir -p "$scratch/tree/$copy"
    git ls-files -z -- '*.rs' '*.md' '*.sh' '*.c' '*.py' | xargs -0 cp --parents -t "$scratch/tree/$copy"
done
python3 - "$numbers" >"$scratch/numbers" <<'PROGRAM'
import random, sys
dice = random.Random(7)
for _ in range(int(sys.argv[1]) // 1000):
    sys.stdout.write("".join(f"{dice.getrandbits(31)}\n" for _ in range(1000)))
PROGRAM
sum=$(sort -n "$scratch/numbers" | sha256sum)
for side in "${places[@]}"; do
    cp "$scratch/numbers" "$MOUNTS/$side/numbers"
    cp -r "$scratch/tree" "$MOUNTS/$side/tree"
done

# timed NAME COMMAND...: in the side's directory.
timed() {
    local name=$1 begun
    shift
    begun=$(date +%s%N)
    (cd "$MOUNTS/$place" && "${by[@]}" "$@")
    printf '%s %s %s %s\n' "$round" "$side" "$name" $(($(date +%s%N) - begun)) >>"$scratch/all"
}
found=(bash -c "grep -r -c 'pub(crate) fn' tree | wc -l >found")

# The first time warms every side's memory, and does not count.
for ((round = 0; round <= rounds; round++)); do
    for side in "${sides[@]}"; do
        place=$side by=()
        [[ $side != run ]] || { place=store by=("$forebay" run --); }
        timed grep "${found[@]}"
        timed tar-c tar -cf tree.tar tree
        timed tar-x tar -xf tree.tar --one-top-level=again
        timed rm-r rm -r again
        timed sort sort -n -S 16M --parallel=2 -T . -o sorted numbers
        [[ $(sha256sum <"$MOUNTS/$place/sorted") == "$sum" ]] || { echo "$side: not sorted" >&2; exit 1; }
        rm "$MOUNTS/$place"/{sorted,tree.tar,found}
    done
done
kill "$daemon" && wait "$daemon" || :
"$forebay" umount "$MOUNTS/store"
uptime
PYTHONPATH=bench/programs python3 -B - "$scratch/all" <<'PROGRAM'
import sys
from tables import measured, table
sides = {"store": "mounted store", "run": "under `forebay run`", "ext4": "ext4", "xfs": "XFS", "tmpfs": "tmpfs"}
table("program", measured(sys.argv[1], 1e-6), sides, [("ext4", "store"), ("ext4", "run")], "{:.0f}")
PROGRAM
