#!/usr/bin/env bash
# Appends to a file of a mounted store with less and less memory, as the slides' figure "Impact of DRAM Cache Size" does: budget.sh [ROUNDS].
# As root. $FOREBAY: the program, a release build. $BYTES: how much is appended (default 512 MiB).
# In turn: under `forebay run --memory` with all of it down to a tenth, and on ext4 in the same memory, whose cache has no bound here.
# Prints milliseconds, medians: until the file is closed, and until it is synced as well.
set -Eeuo pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-5}
forebay=$(realpath "${FOREBAY:-target/release/forebay}")
bytes=${BYTES:-$((512 << 20))}
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh
scratch=$(mktemp -d)
TMPDIR=$scratch mounts_begin
daemons=()
clean() {
    for daemon in "${daemons[@]}"; do kill "$daemon" 2>/dev/null && wait "$daemon" || :; done
    "$forebay" umount "$MOUNTS/store" || "$forebay" umount --lazy "$MOUNTS/store" || :
    mounts_end
    rm -rf "$scratch"
}
trap clean EXIT
cat >"$scratch/append.c" <<'PROGRAM'
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "common.h"
int main(int argc, char **argv)
{
    size_t size = atol(argv[2]), all = atol(argv[3]);
    char *memory = malloc(size);
    memset(memory, argc, size);
    double begun = now();
    int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
    for (size_t at = 0; at < all; at += size)
        if (write(fd, memory, size) != (ssize_t)size)
            fail("write");
    if (close(fd))
        fail("close");
    printf("closed %.1f\n", (now() - begun) * 1e3);
    fd = open(argv[1], O_WRONLY);
    if (fsync(fd) || close(fd))
        fail("fsync");
    printf("synced %.1f\n", (now() - begun) * 1e3);
    return 0;
}
PROGRAM
gcc -O2 -I bench/programs -o "$scratch/append" "$scratch/append.c"
mounts_tmpfs memory 6G
mounts_make ext4 "$MOUNTS/memory" $((2 * bytes)) mkfs.ext4 -q
mkdir "$MOUNTS/store"
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch
"$forebay" pmem create --size $((2 * bytes)) "$MOUNTS/memory/store" >/dev/null
"$forebay" mount --daemon "$MOUNTS/memory/store" "$MOUNTS/store" 2>/dev/null
budgets=()
for tenths in 10 5 2 1; do
    budget=$((bytes * tenths / 10 >> 20))
    budgets+=("$budget")
    FOREBAY_SESSION=budget-$$-$budget "$forebay" daemon --memory "${budget}MiB" --until-idle 600 >/dev/null 2>&1 &
    daemons+=($!)
done
sleep 1
for ((round = 0; round <= rounds; round++)); do
    for size in 4096 65536; do
        for side in ext4 store "${budgets[@]}"; do
            case $side in
                ext4 | store) "$scratch/append" "$MOUNTS/$side/appended" $size "$bytes" ;;
                *) FOREBAY_SESSION=budget-$$-$side "$forebay" run --memory "${side}MiB" -- "$scratch/append" "$MOUNTS/store/appended" $size "$bytes" ;;
            esac | sed "s/^/$round $size $side /" >>"$scratch/all"
            rm -f "$MOUNTS"/{ext4,store}/appended
        done
    done
done
uptime
python3 - "$scratch/all" <<'PROGRAM'
import statistics, sys
found = {}
for line in open(sys.argv[1]):
    number, size, side, name, ms = line.split()
    if number != "0":
        found.setdefault((size, side), {}).setdefault(name, []).append(float(ms))
print("| written by | where | closed | and synced |")
for (size, side), times in found.items():
    where = side if side in ("ext4", "store") else f"store, session of {side} MiB"
    print(f"| {int(size) >> 10} KiB | {where} | " + " | ".join(f"{statistics.median(times[name]):.0f}" for name in ("closed", "synced")) + " |")
PROGRAM
