# shellcheck shell=bash
# Programs that nobody here has written, on several hosts of a pool: fsx, fio, sqlite, git, tar and RocksDB. Sourced in the repository's root by scripts that have
#
#   ways      an array: each host's way for its requests
#   mounts    an array: a folder of the pool on each of these hosts, the same one, empty
#   scratch   a folder of this process's own
#   slow      how many times as long as on a pool without troubles a program may take
#
# and tests/lib/expect.sh. Where a program is missing, $skipped counts it.

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
        timeout $((300 * slow)) "$fsx" -q -S "$3" -N "$4" -P "$scratch" -f "$scratch/$2.toml" "${mounts[host]}/$1/$host" >"$scratch/fsx$host" 2>&1 &
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
    (while [[ ! -e $scratch/end ]]; do
        for host in "${!ways[@]}"; do
            ln -sfn "${mounts[host]}/$file" "$link-next" && mv -T "$link-next" "$link" && sleep 0.01 || exit
        done
    done) &
    turns=$!
    timeout $((300 * slow)) "$fsx" -q -S "$1" -N "$2" -P "$scratch" -f "$scratch/fsx-turns.toml" "$link" >"$scratch/fsx-turns" 2>&1
    status=$?
    kill "$turns" && wait "$turns" 2>/dev/null
    ((status == 0)) || tail -n 40 "$scratch/fsx-turns"
    return "$status"
}
# Verified by who has written it, and by another host.
by_fio() {
    local options=(--name=v --filename="$1" --verify_state_save=0 --size=4M --verify=crc32c --verify_fatal=1 --randrepeat=1 --randseed=7 "${@:3}")
    timeout $((120 * slow)) fio --directory="${mounts[$1]}" "${options[@]}" --do_verify=1 && timeout $((120 * slow)) fio --directory="${mounts[$2]}" "${options[@]}" --verify_only
}
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
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
with_git() {
    local one=${mounts[0]} two=${mounts[2]}
    git init -q -b main "$one/repository" && cp -r docs "$one/repository" && git -C "$one/repository" add . && git -C "$one/repository" commit -qm one &&
        git -C "$two/repository" fsck --strict && git clone -q "$two/repository" "$two/clone" && git -C "$two/clone" commit -q --allow-empty -m two &&
        git -C "${mounts[1]}/repository" pull -q "${mounts[1]}/clone" main && git -C "${mounts[3]}/repository" gc -q && git -C "$one/repository" fsck --strict &&
        [[ $(git -C "$one/repository" log --format=%s | tr '\n' ' ') == 'two one ' && -z $(git -C "${mounts[3]}/repository" status --short) ]] && alike 0 repository
}
with_tar() {
    tar cf "${mounts[1]}/a.tar" docs && mkdir "${mounts[2]}/tar" && tar xf "${mounts[2]}/a.tar" -C "${mounts[2]}/tar" && tar df "${mounts[3]}/a.tar" -C "${mounts[3]}/tar" &&
        diff -r docs "${mounts[0]}/tar/docs"
}
rocks() {
    local db=rocks$1
    timeout $((100 * slow)) db_bench "--db=${mounts[$1]}/$db" --benchmarks=fillseq,fillrandom,overwrite,readrandom,compact,verifychecksum --num="$3" --value_size=400 --threads=2 \
        --compression_type=none --cache_size=1048576 --write_buffer_size=1048576 --statistics=0 --stats_interval=1000000000 &&
        timeout $((100 * slow)) db_bench "--db=${mounts[$2]}/$db" --use_existing_db=1 --benchmarks=verifychecksum,readseq --num="$3" && ldb "--db=${mounts[$2]}/$db" checkconsistency
}
