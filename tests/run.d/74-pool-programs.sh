#!/usr/bin/env bash
# Programs that nobody here has written on a pool of two servers and four hosts, of which each has another way for its requests: fsx, fio, sqlite, git, tar and
# RocksDB. What one host writes is compared from the others.
# One file is also written and read by each of them in turn.
# $FSX_OPS and $FSX_SEEDS: how much of fsx.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1

away() {
    echo "$1"
    exit 77
}
[[ -e /dev/fuse ]] || away 'there is no /dev/fuse'
[[ $(id -u) == 0 ]] || command -v fusermount3 >/dev/null || away 'fusermount3 is missing (scripts/install-test-deps.sh installs it)'
for name in $(compgen -e | grep '^FOREBAY_' | grep -v '^FOREBAY_TEST_'); do unset "$name"; done
target=$PWD/${CARGO_TARGET_DIR:-target}
bin=${FOREBAY_TEST_BIN:-}
if [[ -z $bin ]]; then
    cargo build --quiet -p forebay-cli || exit 1
    bin=$target/debug
fi
forebay=$(realpath "$bin")/forebay
unset FOREBAY_TEST_BIN
scratch=$(mktemp -d -p "$target") || exit 1
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch/state HOME=$scratch GIT_CONFIG_NOSYSTEM=1
ways=(local remote ratio:50 seed)
started=()
clean() {
    touch "$scratch/end"
    for host in "${!ways[@]}"; do "$forebay" umount --lazy "$scratch/host$host/mount" 2>/dev/null; done
    ((${#started[@]} == 0)) || kill -KILL "${started[@]}" 2>/dev/null
    # Mounts wait for servers that are gone.
    pkill -KILL -f -- "forebay mount .*$scratch/" 2>/dev/null
    wait 2>/dev/null
    rm -rf --one-file-system "$scratch"
}
trap clean EXIT
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh

# An address of this process's own.
address=127.$((64 + $$ / 65536 % 64)).$(($$ / 256 % 256)).$(($$ % 256))
mounts=()
for host in "${!ways[@]}"; do
    mounts+=("$scratch/host$host/mount")
    mkdir -p "$scratch/host$host/mount"
    # A term that a busy machine keeps, small blocks, and memory for less than the programs write.
    cat >"$scratch/host$host/pool.toml" <<END
servers = ["$address:7411", "$address:7412"]
copies = 2
block_bytes = 16384
cache_blocks = 256
term_ms = 20000
path = "${ways[host]}"
END
done
for server in 1 2; do
    "$forebay" serve "$scratch/host0/pool.toml" --server "$server" 2>"$scratch/server$server" &
    started+=($!)
done
for host in "${!ways[@]}"; do
    if ! "$forebay" mount --daemon "pool:$scratch/host$host/pool.toml" "${mounts[host]}" 2>"$scratch/refused"; then
        grep -q 'not permitted\|/dev/fuse' "$scratch/refused" && away "$(tail -n 1 "$scratch/refused")"
        cat "$scratch/refused" && exit 1
    fi
done

slow=1
# shellcheck source=tests/programs/pool.sh
. tests/programs/pool.sh
if has fsx "$fsx"; then
    for seed in ${FSX_SEEDS:-1 2}; do
        expect "fsx on four hosts at once, seed $seed" each_by_fsx "fsx$seed" fsx "$seed" "${FSX_OPS:-400}"
        expect "fsx with large writes on four hosts at once, seed $seed" each_by_fsx "large$seed" fsx-large "$seed" $((${FSX_OPS:-400} / 10))
        expect "fsx on one file, on each host in turn, seed $seed" by_turns "$seed" "${FSX_OPS:-400}"
    done
fi

if has fio fio; then
    for host in "${!ways[@]}"; do
        next=$(((host + 1) % ${#ways[@]}))
        expect "fio by ${ways[host]}, at random" by_fio "$host" "$next" --rw=randwrite --bsrange=512-64k --bs_unaligned=1 --norandommap=0
        expect "fio by ${ways[host]}, large" by_fio "$host" "$next" --rw=write --bs=1M
        expect "fio by ${ways[host]}, synced" by_fio "$host" "$next" --rw=randwrite --bs=4k --size=1M --fsync=16
        expect "fio by ${ways[host]}, mapped" by_fio "$host" "$next" --rw=randwrite --bs=4k --size=1M --ioengine=mmap
    done
fi

if has sqlite sqlite3; then
    for journal in delete wal; do
        expect "sqlite on each host in turn, journal $journal" sqlite_in_turn "$journal"
    done
fi

! has git git || expect 'git on four hosts, a clone, a pull and a collection' with_git
expect 'tar is made, unpacked and compared by three hosts' with_tar

if has RocksDB db_bench; then
    expect 'RocksDB by memory, read by another host' rocks 0 1 4000
    expect 'RocksDB by lot, read by another host' rocks 2 0 500
fi

for host in "${!ways[@]}"; do
    expect "${ways[host]}: it is unmounted" "$forebay" umount "${mounts[host]}"
done
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
