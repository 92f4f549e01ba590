#!/usr/bin/env bash
# Times a pool's requests on this host beside libfabric's own messages, by its providers tcp and shm, in turn: pool-and-fabric.sh [ROUNDS].
# fi_pingpong says how long a message takes one way. A read is a short message there and its bytes back, a write its bytes there and a short message back: so
# both are compared with the sum of the two, which leaves out whatever a pool does between them. Both sides of fi_pingpong look for messages all the time: its
# figures say nothing unless two processors have nothing else to do. Prints microseconds: medians of the rounds, and the spread.
# $MESSAGES (5000): how many of a size a round has, and a sixteenth of these of 1 MiB. $PATHS: the example `paths`, a release build, instead of one that is made here.
# Installs libfabric-bin where fi_pingpong is missing, as root, and leaves it installed. (fabtests, with fi_rma_bw, has no package in Debian.)
set -Eeuo pipefail
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-5} messages=${MESSAGES:-5000}
needed='fi_pingpong libfabric-bin messages by libfabric'
. scripts/install.sh 'libfabric'
paths=${PATHS:-}
if [[ -z $paths ]]; then
    cargo build --quiet --release -p forebay-pool --example paths || exit 1
    paths=${CARGO_TARGET_DIR:-target}/release/examples/paths
fi
scratch=$(mktemp -d)
server=
away() {
    [[ -z $server ]] || kill "$server" 2>/dev/null || :
    rm -rf "$scratch"
}
trap away EXIT
port=$((20000 + $$ % 10000))
! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "another program listens at port $port: run this again" && exit 1; }
# one PROVIDER KIND SIZE TIMES: microseconds of a message, one way, in $took.
one() {
    local try
    took=
    for try in 1 2 3 4 5; do
        timeout 310 fi_pingpong -p "$1" -e "$2" -B "$port" -I "$4" -S "$3" >"$scratch/server" 2>&1 &
        server=$!
        # Until it listens. Who comes too early is refused, and the server still waits.
        sleep "0.$((try + 1))"
        timeout 300 fi_pingpong -p "$1" -e "$2" -P "$port" -I "$4" -S "$3" 127.0.0.1 >"$scratch/client" 2>&1 &&
            took=$(awk '$1 != "bytes" { took = $(NF - 1) } END { print took }' "$scratch/client")
        [[ -n $took ]] || kill "$server" 2>/dev/null || :
        wait "$server" || :
        server=
        [[ -z $took ]] || break
    done
    [[ -n $took ]] || { cat "$scratch/server" "$scratch/client" >&2 && return 1; }
}
uptime
# The first round warms, and does not count.
for ((round = 0; round <= rounds; round++)); do
    for provider in 'tcp msg' 'tcp rdm' 'shm rdm'; do
        for size in "64 $messages" "4096 $messages" "1048576 $((messages / 16))"; do
            # shellcheck disable=SC2086 # words
            one $provider $size
            printf '%s|%s|%s|%s\n' "$round" "libfabric, ${provider/ /, }" "${size% *}" "$took" >>"$scratch/messages"
        done
    done
    "$paths" alone | sed -n "s/^| \([14] .*\) | \([0-9.]*\) | \([0-9.]*\) |$/$round|\1|\2/p" >>"$scratch/requests"
done
uptime
[[ -s $scratch/requests ]] || { echo 'the example `paths` has said nothing that is known here' && exit 1; }
python3 -B - "$scratch" <<'PROGRAM'
import collections, statistics, sys
messages, rows = collections.defaultdict(dict), collections.defaultdict(list)
for line in open(sys.argv[1] + "/messages"):
    at, way, size, took = line.strip().split("|")
    messages[at, way][int(size)] = float(took)
for (at, way), took in messages.items():
    for name, size in (("4 KiB", 4096), ("1 MiB", 1 << 20)):
        if at != "0":
            rows[f"{name} and 64 bytes by {way}"].append(took[64] + took[size])
for line in open(sys.argv[1] + "/requests"):
    at, what, took = line.strip().split("|")
    if at != "0":
        rows[what].append(float(took))
print("| what | median, µs | least to most |\n|---|---|---|")
for what in sorted(rows, key=lambda what: what[:5] != "4 KiB"):
    took = rows[what]
    print(f"| {what} | {statistics.median(took):.1f} | {min(took):.1f} to {max(took):.1f} |")
PROGRAM
