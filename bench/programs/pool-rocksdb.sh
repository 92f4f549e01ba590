#!/usr/bin/env bash
# Times RocksDB on pools of two servers and one client on this host, without and with a home, beside a mounted directory and the ext4 below it, which is in memory, in turn:
# pool-rocksdb.sh [ROUNDS]. As root. $FOREBAY: the program, a release build. Prints medians of microseconds an operation, and the spread; RocksDB compares its checksums at the end of each.
set -Eeuo pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-5}
forebay=$(realpath "${FOREBAY:-target/release/forebay}")
command -v db_bench >/dev/null || { echo 'db_bench is missing (Debian: rocksdb-tools)' >&2 && exit 1; }
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh
scratch=$(mktemp -d)
TMPDIR=$scratch mounts_begin
started=()
away() {
    # Before their servers go.
    for side in directory pool home; do timeout 30 "$forebay" umount "$MOUNTS/$side" 2>/dev/null || "$forebay" umount --lazy "$MOUNTS/$side" 2>/dev/null || :; done
    ((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || :
    wait || :
    mounts_end
    rm -rf "$scratch"
}
trap away EXIT
mounts_tmpfs memory 3G
mounts_make ext4 "$MOUNTS/memory" 2G mkfs.ext4 -q
mkdir "$MOUNTS"/{directory,pool,home} "$MOUNTS"/ext4/{below,ext4}
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch
address=127.$((64 + $$ / 65536 % 64)).$(($$ / 256 % 256)).$(($$ % 256))
# pool NAME PORT LINE: two servers, and a mount.
pool() {
    local number
    printf 'servers = ["%s:%s", "%s:%s"]\n%s\n' "$address" "$2" "$address" $(($2 + 1)) "$3" >"$scratch/$1.toml"
    for number in 1 2; do
        "$forebay" serve "$scratch/$1.toml" --server $number 2>"$scratch/$1-$number" &
        started+=($!)
    done
    "$forebay" mount --daemon "pool:$scratch/$1.toml" "$MOUNTS/$1" 2>"$scratch/said" || { cat "$scratch/said" >&2 && exit 1; }
}
pool pool 7411 ''
pool home 7421 "home = \"$MOUNTS/ext4/home\""
"$forebay" mount --daemon "$MOUNTS/ext4/below" "$MOUNTS/directory" 2>/dev/null
rocks() {
    db_bench --value_size=400 --compression_type=none --cache_size=1048576 --write_buffer_size=4194304 --statistics=0 --stats_interval=1000000000 --threads=1 "$@" 2>&1 |
        sed -n 's/^\([a-z]*\) *: *\([0-9.]*\) micros.op.*/\1 \2/p'
}
sides=(ext4 directory pool home)
uptime
# The first time warms every side's memory, and does not count.
for ((round = 0; round <= rounds; round++)); do
    for side in "${sides[@]}"; do
        place=$MOUNTS/$side
        [[ $side != ext4 ]] || place+=/ext4
        {
            rocks --db="$place/rocks" --num=5000 --benchmarks=fillseq,overwrite,readrandom,verifychecksum
            rocks --db="$place/rocks" --num=50 --sync=1 --benchmarks=fillrandom,verifychecksum | sed 's/ /_synced /'
        } | sed "s/^/$round $side /" >>"$scratch/all"
        rm -rf "$place/rocks"
    done
done
uptime
PYTHONPATH=bench/programs python3 -B - "$scratch/all" "$rounds" "${sides[@]}" <<'PROGRAM'
import sys
from tables import measured, table
rounds, sides, found = int(sys.argv[2]), sys.argv[3:], measured(sys.argv[1])
for name, times in found.items():
    assert all(len(times[side]) == rounds for side in sides), f"{name} has failed somewhere"
table("microseconds", found, {side: side for side in sides}, [("directory", "pool"), ("directory", "home")], spread=True)
PROGRAM
