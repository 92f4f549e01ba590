# shellcheck shell=bash
# fio and fsx for $SOAK_SECONDS each, with seeds from $SOAK_SEED, while the keeper is killed now and then in half of them.
# Sourced by a script that has sourced lib.sh.

SOAK_SEED=${SOAK_SEED:-$RANDOM}

full='[weights]
mapread = 0
mapwrite = 0
close_open = 1
read = 10
write = 10
truncate = 2
fsync = 0.1
fdatasync = 0.1
posix_fallocate = 1
punch_hole = 1'

# shoot SECONDS: kills whoever keeps the session, every few seconds; `forebay run` and the programs stay.
shoot() {
    local until=$((SECONDS + $1)) keeper shot=0
    while ((SECONDS < until)); do
        sleep $((2 + RANDOM % 4))
        keeper=$("$forebay" stat --session "$FOREBAY_SESSION" --json 2>/dev/null |
            python3 -c 'import json,sys; print(json.load(sys.stdin)["sessions"][0]["members"]["keeper"] or "")' 2>/dev/null)
        [[ -z $keeper ]] || { kill -9 "$keeper" 2>/dev/null && shot=$((shot + 1)); }
        # The next command of the session starts another.
        "$forebay" run --linger 5 -- true 2>/dev/null
    done
    printf '      %d keepers killed\n' "$shot"
    ((shot > 0))
}

# soak_fsx NAME FLEN [MAPWRITE]: the last is the weight of writes through maps. (What fsx has mapped to read stays mapped, and its file the kernel's.)
soak_fsx() {
    local name=$1 dir=$WHERE/$1 weights=${full/mapwrite = 0/mapwrite = ${3:-0}} code
    wanted "$name" && [[ -x $FSX ]] || return 0
    mkdir "$dir"
    printf 'flen = %s\nnomsyncafterwrite = true\n%s\n' "$2" "$weights" >"$dir/fsx.toml"
    (cd "$dir" && timeout --signal=INT "$SOAK_SECONDS" "$forebay" run --require --linger 5 -- \
        "$FSX" -q -S "$SOAK_SEED" -P "$dir" -f fsx.toml file >log 2>&1 </dev/null)
    code=$?
    # It goes on for ever unless it finds something.
    if [[ $code -eq 124 ]]; then passed "$name"; else failed "$name" "exit $code: $(tail -n 30 "$dir/log")"; fi
    rm -rf "$dir"
}

# soak_fio NAME OPTIONS...
soak_fio() {
    local name=$1 dir=$WHERE/$1 output
    shift
    wanted "$name" || return 0
    mkdir "$dir"
    if output=$("$forebay" run --require --linger 5 -- fio --name=job --directory="$dir" --verify=crc32c --verify_fatal=1 \
        --size=48M --verify_state_save=0 --randseed="$SOAK_SEED" --time_based --runtime="$SOAK_SECONDS" --ioengine=psync --output="$dir/log" \
        "$@" 2>&1 </dev/null); then
        passed "$name"
    else
        failed "$name" "exit $?: $output $(tail -n 5 "$dir/log")"
    fi
    rm -rf "$dir"
}

soak_fsx soak_fsx_small 262144
soak_fsx soak_fsx_large 20000000
soak_fsx soak_fsx_maps 3000000 1
soak_fio soak_fio_mixed --rw=randrw --bs=20k --blockalign=20k --verify_backlog=512
soak_fio soak_fio_processes --rw=randwrite --bs=36k --numjobs=2 --verify_backlog=256
if wanted soak_fio_keeper_killed; then
    shoot "$SOAK_SECONDS" &
    shooter=$!
    soak_fio soak_fio_keeper_killed --rw=randrw --bs=7k --blockalign=7k --verify_backlog=512
    wait "$shooter" || failed soak_fio_keepers "no keeper was killed"
fi
if wanted soak_fsx_keeper_killed; then
    shoot "$SOAK_SECONDS" &
    shooter=$!
    soak_fsx soak_fsx_keeper_killed 3000000
    wait "$shooter" || failed soak_fsx_keepers "no keeper was killed"
fi

# A list of operations that once met what `RealFile::read_direct` speaks of.
if wanted soak_fsx_set_aside && [[ -x $FSX ]]; then
    mkdir "$WHERE/set_aside"
    printf 'flen = 262144\nnomsyncafterwrite = true\n%s\n' "$full" >"$WHERE/set_aside/fsx.toml"
    holds soak_fsx_set_aside "$FSX" -q -S 7549 -N 115000 -P "$WHERE/set_aside" -f "$WHERE/set_aside/fsx.toml" file
fi
