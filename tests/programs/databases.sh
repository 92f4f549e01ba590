# shellcheck shell=bash
# A database server of many processes: PostgreSQL, run by an ordinary user, which is killed, whose keeper is killed, and whose files
# another PostgreSQL reads afterwards that knows nothing of Forebay. Sourced by a script that has sourced lib.sh.

# Where it is installed; not in PATH on Debian.
pg_bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
pg_port=5999

# pg_as COMMAND...: as an ordinary user, since it refuses to run as root; in a session of its own.
pg_as() {
    setpriv --reuid=nobody --regid=nogroup --clear-groups env "FOREBAY_SESSION=$FOREBAY_SESSION-pg" "$@"
}

# pg_start HOW...: the server, in the background, started by HOW (forebay run, or nothing). Its pid is in $pg_server.
pg_start() {
    pg_as "$@" "$pg_bin/postgres" -D "$pg_dir/data" -k "$pg_dir" -p "$pg_port" -c listen_addresses= \
        -c shared_buffers=16MB -c max_wal_size=64MB -c min_wal_size=32MB -c checkpoint_timeout=30s >>"$pg_dir.log" 2>&1 &
    pg_job=$!
    for _ in $(seq 300); do
        pg_as "$pg_bin/pg_isready" -q -h "$pg_dir" -p "$pg_port" && break
        kill -0 "$pg_job" 2>/dev/null || return 1
        sleep 0.1
    done
    pg_server=$(head -n 1 "$pg_dir/data/postmaster.pid")
}

pg_stop() {
    pg_as "$pg_bin/pg_ctl" -D "$pg_dir/data" stop -m fast -s -t 60
    wait "$pg_job"
}

pg_bench() {
    pg_as "$pg_bin/pgbench" -h "$pg_dir" -p "$pg_port" -U nobody "$@" postgres 2>&1
}

pg_sql() {
    pg_as "$pg_bin/psql" -h "$pg_dir" -p "$pg_port" -U nobody -X -A -t -F ' ' -c "$1" postgres 2>&1
}

# pg_balanced NAME LEAST: each transaction adds one amount in four tables; there are at least so many of them.
pg_balanced() {
    local sums least=$2
    sums=$(pg_sql 'select count(*), coalesce(sum(delta), 0), (select sum(abalance) from pgbench_accounts),
        (select sum(tbalance) from pgbench_tellers), (select sum(bbalance) from pgbench_branches) from pgbench_history')
    # shellcheck disable=SC2086 # words
    set -- "$1" $sums
    if [[ $# -ne 6 || $3 != "$4" || $4 != "$5" || $5 != "$6" ]]; then
        failed "$1" "sums differ: $sums"
        return 1
    elif (($2 < least)); then
        failed "$1" "$2 transactions of $least that were acknowledged"
        return 1
    fi
    pg_count=$2
}

pg_processed() {
    sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$1"
}

# A server that dies while four clients work, killed by the function KILLER; then what it acknowledged is there.
# pg_dies NAME KILLER
pg_dies() {
    local bench count
    pg_start "$forebay" run --require --linger 5 -- || {
        failed "$1" "it does not start: $(tail -n 3 "$pg_dir.log")"
        return
    }
    count=$(pg_sql 'select count(*) from pgbench_history')
    pg_bench -n -c 4 -T 20 >"$pg_dir.bench" &
    bench=$!
    sleep 2
    "$2"
    wait "$bench"
    wait "$pg_job"
    pg_start "$forebay" run --require --linger 5 -- || {
        failed "$1" "it does not start again: $(tail -n 3 "$pg_dir.log")"
        return
    }
    pg_balanced "$1" $((count + $(pg_processed "$pg_dir.bench"))) && passed "$1" "$((pg_count - count)) transactions"
    pg_stop
}

pg_kill_server() {
    local all
    # The server and all that it has started.
    all=$(pgrep -P "$pg_server")
    # shellcheck disable=SC2086 # words
    kill -9 "$pg_server" $all
}

pg_kill_keeper() {
    kill -9 "$(pg_as "$forebay" stat --session "$FOREBAY_SESSION-pg" --json |
        python3 -c 'import json,sys; print(json.load(sys.stdin)["sessions"][0]["members"]["keeper"])')"
    sleep 2
    pg_kill_server
}

if ! wanted postgresql; then
    :
elif [[ ! -x $pg_bin/postgres ]]; then
    skipped postgresql "PostgreSQL is missing (scripts/install-test-deps.sh installs it)"
else
    pg_dir=$WHERE/postgresql
    install -d -o nobody -g nogroup -m 700 "$pg_dir"
    if ! pg_as "$forebay" run --require --linger 5 -- "$pg_bin/initdb" -D "$pg_dir/data" -A trust -k >"$pg_dir.log" 2>&1; then
        failed postgresql "initdb: $(tail -n 3 "$pg_dir.log")"
    elif ! pg_start "$forebay" run --require --linger 5 "--report=$pg_dir.report" --json --; then
        failed postgresql "it does not start: $(tail -n 3 "$pg_dir.log")"
    else
        pg_bench -q -i -s 2 >"$pg_dir.bench" || failed postgresql "$(tail -n 3 "$pg_dir.bench")"
        pg_bench -n -c 4 -t 250 >"$pg_dir.bench"
        pg_balanced postgresql 1000
        balanced=$?
        pg_stop
        bytes=$(bytes_through "$pg_dir.report")
        if ((bytes < 10000000)); then
            failed postgresql "only $bytes bytes through the engine"
        elif ((balanced == 0)); then
            passed postgresql "$pg_count transactions, $bytes bytes through the engine"
        fi
        pg_dies postgresql_killed pg_kill_server
        pg_dies postgresql_and_keeper_killed pg_kill_keeper
        # Nothing of Forebay's here.
        if ! pg_as "$pg_bin/pg_checksums" -D "$pg_dir/data" -c >"$pg_dir.bench" 2>&1; then
            failed postgresql_outside "$(tail -n 3 "$pg_dir.bench")"
        elif ! pg_start; then
            failed postgresql_outside "it does not start: $(tail -n 3 "$pg_dir.log")"
        else
            pg_balanced postgresql_outside "$pg_count" && passed postgresql_outside "$pg_count transactions"
            pg_stop
        fi
    fi
fi
