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

skipped=0
# has NAME PROGRAM
has() {
    command -v "$2" >/dev/null && return
    printf 'skipped: %s: %s is missing\n' "$1" "$2"
    skipped=$((skipped + 1))
    return 1
}
# On each host a folder of that name, and all hosts see what is in it as the first argument, a host, does.
alike() {
    local host
    for host in "${!ways[@]}"; do
        diff -r --no-dereference "${mounts[$1]}/$2" "${mounts[host]}/$2" || return 1
    done
}

fsx=$target/tools/bin/fsx
weights='nomsyncafterwrite = true
[weights]
close_open = 1
invalidate = 1
mapread = 5
mapwrite = 5
read = 10
write = 10
truncate = 2
fsync = 0.3
fdatasync = 0.3
posix_fallocate = 1
sendfile = 1
posix_fadvise = 1
copy_file_range = 1'
printf 'flen = 300000\n%s\n' "$weights" >"$scratch/fsx.toml"
printf 'flen = 3000000\n%s\n[opsize]\nmin = 1\nmax = 1000000\n' "$weights" >"$scratch/fsx-large.toml"
# All hosts at once, each in a file of its own; then all see each one's file.
each_by_fsx() {
    local host failed=0 runs=()
    mkdir "${mounts[0]}/$1" || return 1
    for host in "${!ways[@]}"; do
        timeout 300 "$fsx" -q -S "$3" -N "$4" -P "$scratch" -f "$scratch/$2.toml" "${mounts[host]}/$1/$host" >"$scratch/fsx$host" 2>&1 &
        runs+=($!)
    done
    for host in "${!ways[@]}"; do
        wait "${runs[host]}" || {
            echo "${ways[host]}:" && tail -n 40 "$scratch/fsx$host"
            failed=1
        }
    done
    ((failed == 0)) && for host in "${!ways[@]}"; do alike "$host" "$1" || return 1; done
}
# One file of all hosts: it is opened by a link that goes from host to host, and opened anew all the time.
by_turns() {
    local file=turns$1 link=$scratch/link$1 turns status
    sed 's/^close_open = 1$/close_open = 20/' "$scratch/fsx.toml" >"$scratch/fsx-turns.toml" && ln -s "${mounts[0]}/$file" "$link" || return 1
    (while :; do
        for host in "${!ways[@]}"; do
            ln -sfn "${mounts[host]}/$file" "$link-next" && mv -T "$link-next" "$link" && sleep 0.01 || exit
        done
    done) &
    turns=$!
    timeout 300 "$fsx" -q -S "$1" -N "$2" -P "$scratch" -f "$scratch/fsx-turns.toml" "$link" >"$scratch/fsx-turns" 2>&1
    status=$?
    kill "$turns" && wait "$turns" 2>/dev/null
    ((status == 0)) || tail -n 40 "$scratch/fsx-turns"
    return "$status"
}
if has fsx "$fsx"; then
    for seed in ${FSX_SEEDS:-1 2}; do
        expect "fsx on four hosts at once, seed $seed" each_by_fsx "fsx$seed" fsx "$seed" "${FSX_OPS:-400}"
        expect "fsx with large writes on four hosts at once, seed $seed" each_by_fsx "large$seed" fsx-large "$seed" $((${FSX_OPS:-400} / 10))
        expect "fsx on one file, on each host in turn, seed $seed" by_turns "$seed" "${FSX_OPS:-400}"
    done
fi

# Verified by who has written it, and by another host.
by_fio() {
    local options=(--name=v --filename="$1" --verify_state_save=0 --size=4M --verify=crc32c --verify_fatal=1 --randrepeat=1 --randseed=7 "${@:3}")
    timeout 120 fio --directory="${mounts[$1]}" "${options[@]}" --do_verify=1 && timeout 120 fio --directory="${mounts[$2]}" "${options[@]}" --verify_only
}
if has fio fio; then
    for host in "${!ways[@]}"; do
        next=$(((host + 1) % ${#ways[@]}))
        expect "fio by ${ways[host]}, at random" by_fio "$host" "$next" --rw=randwrite --bsrange=512-64k --bs_unaligned=1 --norandommap=0
        expect "fio by ${ways[host]}, large" by_fio "$host" "$next" --rw=write --bs=1M
        expect "fio by ${ways[host]}, synced" by_fio "$host" "$next" --rw=randwrite --bs=4k --size=1M --fsync=16
        expect "fio by ${ways[host]}, mapped" by_fio "$host" "$next" --rw=randwrite --bs=4k --size=1M --ioengine=mmap
    done
fi

# Each host in turn writes to one database, closes it, and the next one reads it.
sqlite_in_turn() {
    local host next rows=0 said
    sqlite3 "${mounts[0]}/db" "pragma journal_mode=$1; create table t(a integer primary key, b text)" >/dev/null || return 1
    for host in "${!ways[@]}"; do
        next=$(((host + 1) % ${#ways[@]}))
        sqlite3 "${mounts[host]}/db" "with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000) insert into t(b) select hex(i * i) from n;
            update t set b = b || a where a % 3 = 0" || return 1
        rows=$((rows + 1000))
        said=$(sqlite3 "${mounts[next]}/db" 'pragma integrity_check; select count(*) from t') && [[ $said == ok$'\n'$rows ]] || {
            echo "${ways[next]} finds $said"
            return 1
        }
    done
    sqlite3 "${mounts[3]}/db" vacuum && [[ $(sqlite3 "${mounts[1]}/db" 'pragma integrity_check') == ok ]] && rm "${mounts[2]}/db"
}
if has sqlite sqlite3; then
    for journal in delete wal; do
        expect "sqlite on each host in turn, journal $journal" sqlite_in_turn "$journal"
    done
fi

export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
with_git() {
    local one=${mounts[0]} two=${mounts[2]}
    git init -q -b main "$one/repository" && cp -r docs "$one/repository" && git -C "$one/repository" add . && git -C "$one/repository" commit -qm one &&
        git -C "$two/repository" fsck --strict && git clone -q "$two/repository" "$two/clone" && git -C "$two/clone" commit -q --allow-empty -m two &&
        git -C "${mounts[1]}/repository" pull -q "${mounts[1]}/clone" main && git -C "${mounts[3]}/repository" gc -q && git -C "$one/repository" fsck --strict &&
        [[ $(git -C "$one/repository" log --format=%s | tr '\n' ' ') == 'two one ' && -z $(git -C "${mounts[3]}/repository" status --short) ]] && alike 0 repository
}
! has git git || expect 'git on four hosts, a clone, a pull and a collection' with_git
with_tar() {
    tar cf "${mounts[1]}/a.tar" docs && mkdir "${mounts[2]}/tar" && tar xf "${mounts[2]}/a.tar" -C "${mounts[2]}/tar" && tar df "${mounts[3]}/a.tar" -C "${mounts[3]}/tar" &&
        diff -r docs "${mounts[0]}/tar/docs"
}
expect 'tar is made, unpacked and compared by three hosts' with_tar

rocks() {
    local db=rocks$1
    timeout 100 db_bench "--db=${mounts[$1]}/$db" --benchmarks=fillseq,fillrandom,overwrite,readrandom,compact,verifychecksum --num="$3" --value_size=400 --threads=2 \
        --compression_type=none --cache_size=1048576 --write_buffer_size=1048576 --statistics=0 --stats_interval=1000000000 &&
        timeout 100 db_bench "--db=${mounts[$2]}/$db" --use_existing_db=1 --benchmarks=verifychecksum,readseq --num="$3" && ldb "--db=${mounts[$2]}/$db" checkconsistency
}
if has RocksDB db_bench; then
    expect 'RocksDB by memory, read by another host' rocks 0 1 4000
    expect 'RocksDB by lot, read by another host' rocks 2 0 500
fi

for host in "${!ways[@]}"; do
    expect "${ways[host]}: it is unmounted" "$forebay" umount "${mounts[host]}"
done
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
