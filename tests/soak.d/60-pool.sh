#!/usr/bin/env bash
# The programs of tests/run.d/74-pool-programs.sh on a pool of three servers with etcd and two copies, whose servers are killed and restarted one at a time,
# again and again; and two hosts of which each reads what the other one has synced. No program may notice but by waiting.
#
# Each round runs all programs in a folder of its own, in an order of chance. A server dies (`kill -9`) or is told to go, is away for up to twice the term, and
# comes back. The next one's turn is when all three are members again and every block is where it belongs: two copies outlive one death at a time.
#
# $POOL_MINUTES (30), $SOAK_SEED (printed), $POOL_TERM_MS (8000).
# $FOREBAY_TEST_BIN: a directory with forebay, instead of a release build made here.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1

away() {
    echo "$1"
    exit 77
}
[[ -e /dev/fuse ]] || away 'there is no /dev/fuse'
[[ $(id -u) == 0 ]] || command -v fusermount3 >/dev/null || away 'fusermount3 is missing (scripts/install-test-deps.sh installs it)'
command -v etcd >/dev/null || away 'etcd is missing (scripts/install-test-deps.sh installs it)'
bin=${FOREBAY_TEST_BIN:-${CARGO_TARGET_DIR:-target}/release}
[[ -n ${FOREBAY_TEST_BIN:-} ]] || cargo build --quiet --release -p forebay-cli || exit 1
forebay=$(realpath "$bin")/forebay
for name in $(compgen -e | grep '^FOREBAY_'); do unset "$name"; done
target=$PWD/${CARGO_TARGET_DIR:-target}
minutes=${POOL_MINUTES:-30} term=${POOL_TERM_MS:-8000} slow=10 SOAK_SEED=${SOAK_SEED:-$RANDOM}
printf 'SOAK_SEED=%s POOL_MINUTES=%s POOL_TERM_MS=%s\n' "$SOAK_SEED" "$minutes" "$term"
scratch=$(mktemp -d -p "$target") || exit 1
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch/state HOME=$scratch GIT_CONFIG_NOSYSTEM=1
ways=(local remote ratio:50 seed)
# An address of this process's own.
address=127.$((64 + $$ / 65536 % 64)).$(($$ / 256 % 256)).$(($$ % 256))

# Which process a server is stands in $scratch/server$NUMBER: the troubles are a process of their own.
clean() {
    local host
    touch "$scratch/end"
    [[ -z ${troubles:-} ]] || { kill "$troubles" && wait "$troubles"; } 2>/dev/null
    for host in "${!ways[@]}"; do "$forebay" umount --lazy "$scratch/host$host/mount" 2>/dev/null; done
    pkill -KILL -f -- "forebay serve .*$scratch/" 2>/dev/null
    # Mounts wait for servers that are gone.
    pkill -KILL -f -- "forebay mount .*$scratch/" 2>/dev/null
    [[ -z ${etcd:-} ]] || kill "$etcd" 2>/dev/null
    wait 2>/dev/null
    rm -rf --one-file-system "$scratch"
}
trap clean EXIT
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh
# shellcheck source=tests/programs/pool.sh
. tests/programs/pool.sh

etcd --listen-client-urls "http://$address:2379" --advertise-client-urls "http://$address:2379" --listen-peer-urls "http://$address:2380" \
    --initial-advertise-peer-urls "http://$address:2380" --initial-cluster "default=http://$address:2380" --data-dir "$scratch/etcd" >/dev/null 2>&1 &
etcd=$!
for host in "${!ways[@]}"; do
    mkdir -p "$scratch/host$host/mount"
    # Small blocks, and memory for less than the programs write.
    cat >"$scratch/host$host/pool.toml" <<END
servers = ["$address:7411", "$address:7412", "$address:7413"]
copies = 2
block_bytes = 16384
cache_blocks = 256
term_ms = $term
path = "${ways[host]}"
[etcd]
endpoints = ["http://$address:2379"]
prefix = "/pool"
END
done
begin() {
    "$forebay" serve "$scratch/host0/pool.toml" --server "$1" --metrics "$address:900$1" 2>>"$scratch/said$1" &
    echo $! >"$scratch/server$1"
    # No word of its end from the shell.
    disown $!
}
# What a server says of the pool: its epoch, whether it serves, and how many servers there are.
status() {
    local connection
    exec {connection}<>"/dev/tcp/$address/900$1" || return
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&"$connection"
    awk '$1 ~ /^forebay_pool_(epoch|active|servers)$/ { said = said " " $2 } END { print said }' <&"$connection"
    exec {connection}>&-
} 2>/dev/null
# Waits until all three are members and serve.
settled() {
    local try one
    for ((try = 0; try < 30 * term / 1000; try++)); do
        [[ ! -e $scratch/end ]] || return 0
        one=$(status 1)
        [[ $one == *' 1 3' && $one == "$(status 2)" && $one == "$(status 3)" ]] && return
        sleep 0.2
    done
    echo "the pool does not settle:$one,$(status 2),$(status 3)"
    return 1
}
for number in 1 2 3; do begin "$number"; done
expect 'the pool begins' settled
for host in "${!ways[@]}"; do
    if ! "$forebay" mount --daemon "pool:$scratch/host$host/pool.toml" "$scratch/host$host/mount" 2>"$scratch/refused"; then
        grep -q 'not permitted\|/dev/fuse' "$scratch/refused" && away "$(tail -n 1 "$scratch/refused")"
        cat "$scratch/refused" && exit 1
    fi
done

# One server after the other has trouble, until the end.
trouble() {
    RANDOM=$SOAK_SEED
    local number pid signal pause try
    while [[ ! -e $scratch/end ]]; do
        # Programs get somewhere in between.
        sleep $((RANDOM % 30))
        # Who is told to go hands on what it has first.
        number=$((1 + RANDOM % 3)) signal=KILL pause=$((RANDOM % (2 * term)))
        ((RANDOM % 3 > 0)) || signal=TERM
        pid=$(cat "$scratch/server$number")
        # Its number may be another process's by now.
        grep -qzF "$scratch/" "/proc/$pid/cmdline" || { echo "server $number has ended by itself" && return; }
        kill -$signal "$pid"
        for ((try = 0; try < 6 * term / 100; try++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        ! kill -0 "$pid" 2>/dev/null || { echo "server $number does not end by SIG$signal" && kill -KILL "$pid" && return; }
        printf '%(%T)T server %d: SIG%s, back in %d ms\n' -1 "$number" $signal $pause >>"$scratch/troubles"
        sleep $((pause / 1000)).$(printf '%03d' $((pause % 1000)))
        begin "$number"
        settled || return
    done
}

# Two hosts write blocks of two files, sync them, and read what the other one has synced.
cat >"$scratch/notes.py" <<'END'
import os, random, sys, time
seed, until, one, two = int(sys.argv[1]), time.time() + float(sys.argv[2]), *sys.argv[3:]
chance, size, count, rounds = random.Random(seed), 5000, 60, 0
known = [dict(), dict()]
while time.time() < until:
    for own, (mine, other) in enumerate(((one, two), (two, one))):
        file = os.open(f"{mine}/notes{own}", os.O_RDWR | os.O_CREAT, 0o600)
        for at in chance.sample(range(count), 5):
            known[own][at] = chance.randbytes(size)
            assert os.pwrite(file, known[own][at], at * size) == size
        os.fsync(file)
        os.close(file)
        file = os.open(f"{other}/notes{own}", os.O_RDONLY)
        for at, bytes in known[own].items():
            assert os.pread(file, size, at * size) == bytes, f"{time.ctime()}: block {at} of host {own} in round {rounds}"
        os.close(file)
    rounds += 1
print(rounds, "rounds")
assert rounds > 0
END

expect 'four hosts mount it' mountpoint -q "$scratch/host3/mount"
trouble >"$scratch/unsettled" 2>&1 &
troubles=$!
timeout $((60 * minutes + 30 * term / 1000)) python3 "$scratch/notes.py" "$SOAK_SEED" $((60 * minutes)) "$scratch/host0/mount" "$scratch/host3/mount" >"$scratch/noted" 2>&1 &
notes=$!

# work NAME: one of the programs, in the folder of this round.
work() {
    local host=$((RANDOM % 4)) next
    next=$(((host + 1) % 4))
    case $1 in
    fsx) each_by_fsx fsx fsx "$RANDOM" 400 ;;
    large) each_by_fsx large fsx-large "$RANDOM" 40 ;;
    turns) by_turns "$RANDOM" 400 ;;
    fio) by_fio "$host" "$next" --rw=randwrite --bsrange=512-64k --bs_unaligned=1 --norandommap=0 ;;
    fio-large) by_fio "$host" "$next" --rw=write --bs=1M ;;
    fio-synced) by_fio "$host" "$next" --rw=randwrite --bs=4k --size=1M --fsync=16 ;;
    fio-mapped) by_fio "$host" "$next" --rw=randwrite --bs=4k --size=1M --ioengine=mmap ;;
    sqlite) sqlite_in_turn delete ;;
    sqlite-wal) sqlite_in_turn wal ;;
    git) with_git ;;
    tar) with_tar ;;
    rocks) rocks "$host" "$next" 500 ;;
    esac
}
works=(tar)
! has fsx "$fsx" || works+=(fsx large turns)
! has fio fio || works+=(fio fio-large fio-synced fio-mapped)
! has sqlite sqlite3 || works+=(sqlite sqlite-wal)
! has git git || works+=(git)
! has RocksDB db_bench || works+=(rocks)
began=$SECONDS round=0 RANDOM=$SOAK_SEED
while ((SECONDS - began < 60 * minutes)) && [[ ! -s $scratch/unsettled ]]; do
    round=$((round + 1)) mounts=()
    for host in "${!ways[@]}"; do mounts+=("$scratch/host$host/mount/round$round"); done
    expect "round $round: its folder is made" mkdir "${mounts[0]}"
    for name in $(for name in "${works[@]}"; do echo "$RANDOM $name"; done | sort -n | cut -d ' ' -f 2); do
        ((SECONDS - began < 60 * minutes)) && [[ ! -s $scratch/unsettled ]] || break
        before=$failed
        expect "round $round: $name, at $(date +%T)" work "$name"
        ((failed == before)) || { date +%T && tail -n 5 "$scratch/troubles"; }
    done
    rm -f "$scratch"/link*
    expect "round $round: its folder is removed" rm -r "${mounts[RANDOM % 4]}"
done
touch "$scratch/end"
wait "$troubles"
expect 'the pool settled after each trouble' test ! -s "$scratch/unsettled"
cat "$scratch/unsettled"
troubles=
rm "$scratch/end"
expect 'all servers serve at the end' settled
expect 'no server panicked' test -z "$(grep -h panicked "$scratch"/said?)"
expect 'servers had troubles' test -s "$scratch/troubles"
wait "$notes" && passed=$((passed + 1)) || { failed=$((failed + 1)) && echo 'FAIL  a host reads what another one has synced'; }
cat "$scratch/noted"
for host in "${!ways[@]}"; do
    expect "${ways[host]}: it is unmounted" "$forebay" umount "$scratch/host$host/mount"
done
((failed == 0)) || tail -n 20 "$scratch"/said?
printf '%d rounds, %d troubles\n%d passed, %d failed, %d skipped\n' "$round" "$(wc -l <"$scratch/troubles")" "$passed" "$failed" "$skipped"
((failed == 0))
