#!/usr/bin/env bash
# Times calls on a mounted store, the same under `forebay run`, on a store by its API, on another by its views and windows, and on ext4, XFS and tmpfs in the same memory, in turn: mounted-store.sh [ROUNDS].
# As root. $FOREBAY: the program. $CALLS: the example `calls` of forebay-pmem, which makes the API's calls. Both are release builds. $PAGES=huge=always: the stores lie in pages of 2 MiB.
# Prints medians in microseconds per call, and ratios of them. The two threads of a row "beside fsync" are a writer, which is timed, and one that syncs all the time.
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
gcc -O3 -pthread -o "$scratch/mounted" bench/programs/mounted.c
mounts_tmpfs memory 3G "${PAGES:-}"
mounts_tmpfs tmpfs 512M
mounts_make ext4 "$MOUNTS/memory" 512M mkfs.ext4 -q
mounts_make xfs "$MOUNTS/memory" 512M mkfs.xfs -q
mkdir "$MOUNTS/store"
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch
"$forebay" pmem create --size 512MiB "$MOUNTS/memory/store" >/dev/null
"$forebay" mount --daemon "$MOUNTS/memory/store" "$MOUNTS/store" 2>/dev/null
# The API has a store of its own: one process has a store open.
"$forebay" pmem create --size 512MiB "$MOUNTS/memory/api" >/dev/null
"$forebay" pmem create --size 512MiB "$MOUNTS/memory/zero" >/dev/null
# One session for all rounds, with a daemon that keeps its memory.
export FOREBAY_MANAGE_STORES=true FOREBAY_SESSION=mounted-store-$$
"$forebay" daemon --until-idle 600 >/dev/null 2>&1 &
daemon=$!
trap 'kill "$daemon" 2>/dev/null || :; wait "$daemon" || :; "$forebay" umount --lazy "$MOUNTS/store" 2>/dev/null || :; mounts_end; rm -rf "$scratch"' EXIT
sides=(store run api zero ext4 xfs tmpfs)
# The first time warms every side's memory, and does not count.
for ((round = 0; round <= rounds; round++)); do
    for side in "${sides[@]}"; do
        case $side in
            api) "$calls" "$MOUNTS/memory/api" ;;
            zero) "$calls" "$MOUNTS/memory/zero" --zero-copy ;;
            run) "$forebay" run -- "$scratch/mounted" "$MOUNTS/store" ;;
            *) "$scratch/mounted" "$MOUNTS/$side" ;;
        esac | sed "s/^/$round $side /" >>"$scratch/all"
    done
done
kill "$daemon" && wait "$daemon" || :
"$forebay" umount "$MOUNTS/store"
uptime
PYTHONPATH=bench/programs python3 -B - "$scratch/all" <<'PROGRAM'
import sys
from tables import measured, table
sides = {"store": "mounted", "run": "under `forebay run`", "api": "API", "zero": "views, windows", "ext4": "ext4", "xfs": "XFS", "tmpfs": "tmpfs"}
ratios = [("ext4", "store"), ("ext4", "run"), ("tmpfs", "run"), ("ext4", "api"), ("tmpfs", "api"), ("ext4", "zero"), ("tmpfs", "zero")]
table("call", measured(sys.argv[1], 1e-3), sides, ratios)
PROGRAM
