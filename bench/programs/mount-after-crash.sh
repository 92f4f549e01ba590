#!/usr/bin/env bash
# Times `forebay mount` of a store of 64 GiB (sparse, in memory) with a million files that a crash has left, from the command until the first `ls` has
# answered: mount-after-crash.sh [ROUNDS]. As root. $FOREBAY: the program. $MILLION: the example `million` of forebay-pmem. Both are release builds.
# 2 GiB of memory are needed. Each round has a copy of its own. Prints milliseconds: until the command says that it is mounted, until `ls` has answered,
# and the processor time of the mount's process until then.
set -Eeuo pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-5}
forebay=$(realpath "${FOREBAY:-target/release/forebay}")
million=$(realpath "${MILLION:-target/release/examples/million}")
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh
scratch=$(mktemp -d)
TMPDIR=$scratch mounts_begin
trap 'mounts_end; rm -rf "$scratch"' EXIT
mounts_tmpfs memory 3G
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch
place=$MOUNTS/memory mount=$MOUNTS/store
mkdir "$mount"
"$forebay" pmem create --size 64GiB --sparse "$place/crashed" >/dev/null
"$million" "$place/crashed"
"$forebay" pmem info "$place/crashed" | grep -i 'log\|record'
# now: milliseconds of a clock that only goes on.
now() { awk '{ printf "%d", $1 * 1000 }' /proc/uptime; }
printf '%8s %8s %8s\n' mounted ls cpu
for ((round = 0; round < rounds; round++)); do
    cp --sparse=always "$place/crashed" "$place/store"
    begun=$(now)
    "$forebay" mount --daemon "$place/store" "$mount"
    mounted=$(now)
    [[ $(ls "$mount" | wc -l) == 1000 ]]
    answered=$(now)
    process=$(pgrep -n -f -- "mount .*$place/store")
    ticks=$(awk '{ print $14 + $15 }' "/proc/$process/stat")
    printf '%8d %8d %8d\n' $((mounted - begun)) $((answered - begun)) $((ticks * 1000 / $(getconf CLK_TCK)))
    "$forebay" umount "$mount"
    rm "$place/store"
done
uptime
