#!/usr/bin/env bash
# Times what FLAC's slides show of I/O size, alignment and rewritten buffers, on a store by its API (calls, views, windows) and on ext4 in the same memory, in turn: sizes.sh [ROUNDS [THREADS...]].
# As root. $FOREBAY: the program. $SIZES: the example `sizes` of forebay-pmem. Both are release builds.
# Prints medians in microseconds a MiB, of all threads together: a table for each number of threads, 1, 2 and 8 unless others are given.
set -Eeuo pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-5}
shift $(($# > 0 ? 1 : 0))
threads=("${@:-1 2 8}")
read -ra threads <<<"${threads[*]}"
forebay=$(realpath "${FOREBAY:-target/release/forebay}")
sizes=$(realpath "${SIZES:-target/release/examples/sizes}")
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh
scratch=$(mktemp -d)
TMPDIR=$scratch mounts_begin
trap 'mounts_end; rm -rf "$scratch"' EXIT
mounts_tmpfs memory 3G
mounts_make ext4 "$MOUNTS/memory" 1G mkfs.ext4 -q
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch
"$forebay" pmem create --size 1GiB "$MOUNTS/memory/store" >/dev/null
# The first time warms every side's memory, and does not count.
for ((round = 0; round <= rounds; round++)); do
    for count in "${threads[@]}"; do
        "$sizes" store "$MOUNTS/memory/store" "$count" | sed -E "s/^(write|read)/API_\1/; s/^/$round /" >>"$scratch/store.$count"
        "$sizes" directory "$MOUNTS/ext4" "$count" | sed -E "s/^/$round ext4_/" >>"$scratch/ext4.$count"
    done
done
uptime
for count in "${threads[@]}"; do
    printf '\n%s threads\n' "$count"
    # ROUND WAY_WHAT FIGURE becomes ROUND SIDE NAME FIGURE: a row for each size, a column for each way.
    sed -E 's/^([0-9]+) (API_write|API_read|ext4_write|ext4_read|window|view|bfault|detach)_(\S+) /\1 \2 \3 /' "$scratch/store.$count" "$scratch/ext4.$count" >"$scratch/all"
    PYTHONPATH=bench/programs python3 -B - "$scratch/all" <<'PROGRAM'
import sys
from tables import measured, table
names = ["window", "detach", "bfault", "API_write", "ext4_write", "view", "API_read", "ext4_read"]
ratios = [("ext4_write", "window"), ("ext4_write", "API_write"), ("ext4_read", "view"), ("ext4_read", "API_read")]
table("", measured(sys.argv[1], 1e-3), {name: name.replace("_", " ") for name in names}, ratios)
PROGRAM
done
