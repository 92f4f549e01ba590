# shellcheck shell=bash disable=SC2016 # scripts for another shell
# What happens when something dies, stops, fills up or is missing. Sourced by a script that has sourced lib.sh.

helpers=$PWD/tests/programs

# The session of these tests is their own: it is shot at.
in_own_session() {
    FOREBAY_SESSION=$FOREBAY_SESSION-$1 "${@:2}"
}

keeper_of() {
    "$forebay" stat --session "$FOREBAY_SESSION-$1" --json 2>/dev/null |
        python3 -c 'import json,sys; print(json.load(sys.stdin)["sessions"][0]["members"]["keeper"] or "")' 2>/dev/null
}

# told NAME N: waits until so many parts have been acknowledged.
told() {
    local at
    for _ in $(seq 400); do
        at=$(cat "$WHERE/$1/told" 2>/dev/null)
        ((${at:-0} >= $2)) && return 0
        sleep 0.02
    done
    return 1
}

# start_writer NAME PARTS. The acknowledgements go to a file that is the kernel's: they shall not be lost with what they
# speak of.
start_writer() {
    mkdir -p "$WHERE/$1"
    in_own_session "$1" "$forebay" run --require --linger 1 --routes '**/told=kernel' -- \
        python3 "$helpers/writer.py" "$WHERE/$1/data" "$WHERE/$1/told" "$2" >/dev/null 2>"$WHERE/$1/err" &
    runner=$!
}

writer_of() {
    pgrep -f "writer.py $WHERE/$1/data" | while read -r pid; do
        [[ $(cat "/proc/$pid/comm") == forebay ]] || echo "$pid"
    done | tail -n 1
}

# acknowledged NAME: everything acknowledged is in the file, as an outsider sees it.
acknowledged() {
    local parts
    if parts=$(python3 "$helpers/acknowledged.py" "$WHERE/$1/data" "$WHERE/$1/told" 2>&1); then
        passed "$1" "$parts parts"
    else
        failed "$1" "$parts"
    fi
}

if wanted kill_program; then
    start_writer kill_program 2000
    told kill_program 100 && kill -9 "$(writer_of kill_program)"
    wait "$runner"
    code=$?
    [[ $code -eq 137 ]] || failed kill_program_code "$code, not 137"
    acknowledged kill_program
fi

if wanted kill_keeper; then
    start_writer kill_keeper 600
    told kill_keeper 100 && kill -9 "$(keeper_of kill_keeper)"
    told kill_keeper 600 || failed kill_keeper_goes_on "the writer does not go on without a keeper"
    kill -TERM "$(writer_of kill_keeper)"
    wait "$runner"
    acknowledged kill_keeper
fi

# A file that was closed, with its bytes left to the keeper, and has replaced another since: that is how programs write settings
# and checkpoints. The next keeper finds it under its new name.
if wanted kill_keeper_renamed; then
    mkdir "$WHERE/kill_keeper_renamed"
    in_own_session renamed "$forebay" run --require --linger 20 -- true
    output=$(cd "$WHERE/kill_keeper_renamed" && in_own_session renamed timeout 60 "$forebay" run --require --linger 1 -- \
        python3 "$helpers/replacing.py" "$(keeper_of renamed)" 2>&1)
    code=$?
    wrong=$(cd "$WHERE/kill_keeper_renamed" && python3 -c 'print(sum(open(f"file-{n}", "rb").read() != b"%08d" % n * 1024 for n in range(400)))')
    if [[ $code -eq 0 && $wrong == 0 ]]; then
        passed kill_keeper_renamed
    else
        failed kill_keeper_renamed "exit $code, $wrong files are wrong: $(tail -n 2 <<<"$output")"
    fi
fi

# Nobody is left. What is owed is in the arena: the next command of the session saves it.
if wanted kill_all; then
    start_writer kill_all 2000
    told kill_all 100
    kill -9 "$(keeper_of kill_all)" "$runner" "$(writer_of kill_all)"
    wait "$runner" 2>/dev/null
    in_own_session kill_all "$forebay" run --require --linger 1 -- true 2>"$WHERE/kill_all/said"
    acknowledged kill_all
fi

if wanted stopped_keeper; then
    start_writer stopped_keeper 500
    told stopped_keeper 50
    stopped=$(keeper_of stopped_keeper)
    kill -STOP "$stopped"
    if told stopped_keeper 500; then
        kill -9 "$(writer_of stopped_keeper)"
        # It drains without the keeper.
        if timeout 60 tail --pid="$runner" -f /dev/null; then
            acknowledged stopped_keeper
        else
            failed stopped_keeper "the command does not end"
        fi
    else
        failed stopped_keeper "the writer waits for a keeper that is stopped"
        kill -9 "$(writer_of stopped_keeper)"
    fi
    kill -CONT "$stopped"
    wait "$runner"
fi

if wanted no_library; then
    output=$(FOREBAY_PRELOAD=/nowhere.so "$forebay" run --require -- echo ran 2>&1)
    if [[ $? -eq 125 && $output == *nowhere.so* && $output != *ran* ]]; then
        passed no_library
    else
        failed no_library "$output"
    fi
fi

if wanted static_program; then
    printf 'int main(void) { return 4; }\n' | gcc -static -x c -o "$WHERE/fixed" - 2>/dev/null
    if [[ -x $WHERE/fixed ]]; then
        required=$("$forebay" run --require -- "$WHERE/fixed" 2>&1)
        codes=$?
        plain=$("$forebay" run --linger 1 -- "$WHERE/fixed" 2>&1)
        codes+=" $?"
        if [[ $codes == "125 4" && $required == *statically* && $plain == *statically* ]]; then
            passed static_program
        else
            failed static_program "exits $codes: $required; $plain"
        fi
    else
        skipped static_program "no static C library"
    fi
fi

if wanted disk_full; then
    mounts_make small-disk "$store" 48M mkfs.ext4 -q -b 4096
    output=$(timeout 60 "$forebay" run --require --linger 1 -- python3 "$helpers/full.py" "$MOUNTS/small-disk" 2>&1)
    code=$?
    size=$(stat -c %s "$MOUNTS/small-disk/g" 2>/dev/null)
    if [[ $code -eq 0 && $output == $'28\nTrue True True' && $size == 100000 ]]; then
        passed disk_full
    else
        failed disk_full "exit $code, $size: $output"
    fi
fi

# Somebody without rights: files of modes that cannot be opened again, files of others.
if wanted unprivileged; then
    install -d -m 777 "$WHERE/unprivileged" "$WHERE/unprivileged/state"
    install -m 644 /dev/null "$WHERE/unprivileged/roots"
    seq 100000 >"$WHERE/unprivileged/shared"
    chmod 666 "$WHERE/unprivileged/shared"
    script='umask 022; seq 100000 > mine; chmod 444 mine; cat mine | cksum; echo x > mine && echo written
        (umask 277; seq 100000 > only_read); cksum only_read; seq 50000 >> shared; cksum shared
        echo x > roots || echo refused; dd if=mine of=copy bs=7777 2> /dev/null; cmp mine copy
        stat -c "%a %s" mine copy only_read'
    for side in plain managed; do
        install -d -m 777 "$WHERE/unprivileged/$side"
        cp -p "$WHERE"/unprivileged/{roots,shared} "$WHERE/unprivileged/$side/"
        command=(bash -c "cd '$WHERE/unprivileged/$side'; $script")
        [[ $side == plain ]] || command=("$forebay" run --require --linger 1 -- "${command[@]}")
        FOREBAY_SESSION=nobody HOME=$WHERE/unprivileged XDG_STATE_HOME=$WHERE/unprivileged/state \
            setpriv --reuid=65534 --regid=65534 --clear-groups "${command[@]}" \
            2>&1 </dev/null | sed 's/^.*line [0-9]*: //' >"$WHERE/unprivileged/$side.out"
        tree_of "$WHERE/unprivileged/$side" >>"$WHERE/unprivileged/$side.out"
    done
    if diff "$WHERE"/unprivileged/{plain,managed}.out >"$WHERE/unprivileged/diff"; then
        passed unprivileged
    else
        failed unprivileged "$(head -n 8 "$WHERE/unprivileged/diff")"
    fi
fi

# A file on a mount that is read-only, and read-only by mode, can be read and no more.
if wanted read_only; then
    mkdir "$WHERE/read_only" "$MOUNTS/read-only"
    seq 200000 >"$WHERE/read_only/file"
    chmod 444 "$WHERE/read_only/file"
    mount --bind "$WHERE/read_only" "$MOUNTS/read-only"
    MOUNTS_STACK+=("mount $MOUNTS/read-only")
    mount -o remount,bind,ro "$MOUNTS/read-only"
    output=$("$forebay" run --require --linger 1 -- \
        bash -c "cksum < $MOUNTS/read-only/file; echo x >> $MOUNTS/read-only/file" 2>/dev/null)
    if [[ $? -eq 1 && $output == "$(cksum <"$WHERE/read_only/file")" ]]; then
        passed read_only
    else
        failed read_only "$output"
    fi
fi

# A container's /dev/shm: 64 MiB, and nothing else to put an arena on. The daemon ends with the mount's last user.
if wanted small_shm; then
    mkdir "$WHERE/small_shm"
    program="import random
random.seed(1)
data = random.randbytes(150_000_000)
open('$WHERE/small_shm/f', 'wb').write(data)
assert open('$WHERE/small_shm/f', 'rb').read() == data"
    output=$(unshare --mount bash -c '
        mount -t tmpfs -o size=64M none /dev/shm || exit 9
        unset FOREBAY_ARENA_DIR FOREBAY_MEMORY
        FOREBAY_SESSION=small "$1" run --require --linger 0.5 -- python3 -c "$2"' - "$forebay" "$program" 2>&1)
    code=$?
    size=$(stat -c %s "$WHERE/small_shm/f" 2>/dev/null)
    if [[ $code -eq 0 && $size -eq 150000000 ]]; then
        passed small_shm
    else
        failed small_shm "exit $code, $size bytes: $(tail -n 5 <<<"$output")"
    fi
    rm -rf "$WHERE/small_shm"
fi

# A device that turns out to have no space: the close has not waited, so who syncs next hears of it, and the run's end. Nothing
# is lost, and all is well once there is space.
if wanted close_fails_later; then
    mounts_tmpfs late-store 100M
    mounts_make late "$MOUNTS/late-store" 320M mkfs.xfs -q
    dd if=/dev/zero of="$MOUNTS/late-store/filler" bs=1M 2>/dev/null
    # Managed from the first byte, and more than goes into the kernel's cache at a close.
    output=$(in_own_session late env FOREBAY_SMALL_FILE_BYTES=0 FOREBAY_CLOSE_BEHIND_BYTES=1MiB timeout 60 "$forebay" run --require --linger 1 -- \
        python3 "$helpers/late.py" "$MOUNTS/late/f" 2>"$WHERE/late-err")
    code=$?
    rm "$MOUNTS/late-store/filler"
    in_own_session late "$forebay" run --require --linger 1 -- true 2>>"$WHERE/late-err"
    wanted_sum=$(python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)) * 40_000)' | cksum)
    if [[ $code -eq 1 && $output == $'closed\nTrue\nheard 28' && $(cksum <"$MOUNTS/late/f") == "$wanted_sum" ]] &&
        grep -q 'not written yet' "$WHERE/late-err"; then
        passed close_fails_later
    else
        failed close_fails_later "exit $code: $output; $(head -n 3 "$WHERE/late-err")"
    fi
fi
