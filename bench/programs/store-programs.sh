#!/usr/bin/env bash
# Times grep, tar and sort by views and windows of a store, by `read` and `write` on ext4 in the same memory, and on bytes that the process has, which is the computing alone, in turn: store-programs.sh [ROUNDS].
# As root. $FOREBAY: the program. $PROGRAMS: the example `programs` of forebay-pmem. Both are release builds. 3 GiB of memory are needed besides.
# The store lies in tmpfs twice: with pages of 4 KiB, and with `huge=always`, whose pages of 2 MiB are what DAX devices are mapped by.
# Prints medians in milliseconds, of each process's first time and of the times after it, and ratios.
set -Eeuo pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-5}
forebay=$(realpath "${FOREBAY:-target/release/forebay}")
programs=$(realpath "${PROGRAMS:-target/release/examples/programs}")
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh
scratch=$(mktemp -d)
TMPDIR=$scratch mounts_begin
trap 'mounts_end; rm -rf "$scratch"' EXIT
mounts_tmpfs memory 3G
mounts_tmpfs huge 800M huge=always
mounts_make ext4 "$MOUNTS/memory" 1G mkfs.ext4 -q
# The memory of all sides has large pages too, where there are any.
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch GLIBC_TUNABLES=glibc.malloc.hugetlb=1
"$forebay" pmem create --size 700MiB "$MOUNTS/memory/store" >/dev/null
"$forebay" pmem create --size 700MiB "$MOUNTS/huge/store" >/dev/null
# The first time warms every side's memory, and does not count.
for ((round = 0; round <= rounds; round++)); do
    for side in ext4 store huge memory; do
        case $side in
            ext4) "$programs" directory "$MOUNTS/ext4" ;;
            store) "$programs" store "$MOUNTS/memory/store" ;;
            huge) "$programs" store "$MOUNTS/huge/store" ;;
            memory) "$programs" memory ;;
        esac | sed "s/^/$round $side /" >>"$scratch/all"
    done
done
grep ShmemHugePages /proc/meminfo
uptime
PYTHONPATH=bench/programs python3 -B - "$scratch/all" <<'PROGRAM'
import sys
from tables import measured, table
sides = {"ext4": "ext4", "store": "store", "huge": "store, pages of 2 MiB", "memory": "computing alone"}
table("program", measured(sys.argv[1], 1e-6), sides, [("ext4", "store"), ("ext4", "huge"), ("ext4", "memory")])
PROGRAM
