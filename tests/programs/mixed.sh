# shellcheck shell=bash disable=SC2016 # scripts for another shell
# Programs side by side, and who kills and stops them. Sourced by tests/soak.d/50-mixed.sh, which says what is what.

# Each is given $SEED, a number, and $WORK, how much to do (1 to 4). All that they leave is compared.
declare -A mixed_programs=(
    [model]='python3 -B "$TESTS/ragged.py" "$SEED" $((WORK * 150))'
    [streams]='"$TOOLS/streams"'
    [pools]='python3 -B "$TESTS/pools.py"'
    [sort]='awk -v seed="$SEED" "BEGIN { x = seed; for (i = 0; i < $WORK * 150000; i++) { x = x * 16807 % 2147483647; printf \"%.9f %d\\n\", x / 2147483647, i % 977 } }" >in
        mkdir parts; sort -T parts -S 3M in -o out; sort -T parts -S 2M -k 2,2n -k 1,1 -o in in; gzip -n -k out; gunzip -c out.gz | cmp - out; echo $?'
    [trees]='cp -r "$TESTS/../../crates" a; tar cf a.tar --sort=name --mtime=@0 a; mkdir b; tar xf a.tar -C b; diff -r a b/a; echo $?
        rsync -a --checksum a/ c; rm -r a/forebay/src; rsync -a --checksum --delete a/ c; cp -r c d; find d -name "*.rs" | sort | head -n $((SEED % 300)) | xargs -r rm; rm a.tar'
    [git]='"$TESTS/history.awk" -v commits=$((WORK * 40 + SEED % 60)) </dev/null >stream
        git -c init.defaultBranch=main init -q --bare o.git; git --git-dir=o.git fast-import --quiet <stream
        git -c gc.auto=0 clone -q --no-local o.git c; git --git-dir=o.git repack -q -a -d -f --threads=1; git --git-dir=o.git fsck --full --strict; echo fsck $?
        cd c; git log --format=%H | cksum; git checkout -q HEAD~5; git status --short; git grep -c "line 3" | cksum; cd ..; rm -rf o.git c/.git'
    [sqlite]='{ [ $((SEED % 2)) = 0 ] || echo "pragma journal_mode = wal;"; echo "pragma cache_size = 30; create table t (n, v); create index i on t (v);"
        for i in $(seq $((WORK * 30))); do echo "begin; insert into t select $SEED + value, hex(zeroblob(value % 300)) from generate_series(1, 200);
        delete from t where n % 13 = $i % 13; commit;"; done; echo "vacuum; pragma integrity_check; select count(*), sum(n), sum(length(v)) from t;"; } | sqlite3 a.db
        sqlite3 a.db .dump >dump; sqlite3 a.db ".backup b.db" "pragma wal_checkpoint(truncate);" >/dev/null; sqlite3 b.db "pragma integrity_check; select count(*) from t"; rm -f *.db*'
    [make]='mkdir o; for i in $(seq 12); do echo "int f$i(int x) { static char room[30000] = {1}; return x * $SEED % 99 + $i + room[0]; }" >f$i.c; done
        { echo "#include <stdio.h>"; for i in $(seq 12); do echo "int f$i(int);"; done; echo "int main(void) { int s = 0;"
        for i in $(seq 12); do echo "s += f$i($i);"; done; echo "printf(\"%d\\n\", s); return 0; }"; } >main.c
        printf "p: \$(patsubst %%.c,o/%%.o,\$(sort \$(wildcard *.c))) ; \$(CC) -o \$@ \$^\no/%%.o: %%.c ; \$(CC) -c -o \$@ \$<\n" >Makefile
        make -s -j3; ./p; sleep 0.02; echo "int more;" >>f3.c; make -s -j3; ./p; make -q p; echo $?'
    [tables]='PYTHONPATH=$MODULES /usr/bin/python3 -B "$TESTS/tables.py"'
    [tensors]='PYTHONPATH=$MODULES OMP_NUM_THREADS=1 /usr/bin/python3 -B "$TESTS/tensors.py" safetensors'
    [appends]='for w in 1 2 3 4; do (for i in $(seq $((WORK * 400))); do echo "worker $w line $i of $SEED"; done >>log) & done; wait
        for w in 1 2 3; do (for i in $(seq $((WORK * 30))); do echo "again $w $i" >>log; done) & done; wait; sort log -o log; wc -l <log'
    [pipes]='seq $((WORK * 60000)) | tee a | awk "{ print \$1 * 7 % 10007 }" | sort -n | tee b | uniq -c >c; cat a b c >d; split -b 100001 d p.; cat p.* | cmp - d; echo $?
        dd if=d of=e bs=4093 2>/dev/null; dd if=d of=e bs=511 count=$((SEED % 90 + 1)) seek=77 conv=notrunc 2>/dev/null; truncate -s $((SEED % 300000)) e; cat a >>e; tac d | head -c 300000 >f; rm p.*'
    [fsx]='printf "flen = 3000000\nnomsyncafterwrite = true\n[weights]\nmapread = 0\nmapwrite = 0\nclose_open = 1\nread = 10\nwrite = 10\ntruncate = 2\nfsync = 0.2\nposix_fallocate = 1\npunch_hole = 1\n" >fsx.toml
        [ ! -x "$TOOLS/fsx" ] || "$TOOLS/fsx" -q -S "$SEED" -N $((WORK * 700)) -f fsx.toml file >/dev/null 2>&1; echo $?'
    [fio]='fio --name=j --verify=crc32c --verify_fatal=1 --size=$((WORK * 6))M --randseed="$SEED" --rw=randrw --bsrange=512-60k --bs_unaligned --ioengine=psync \
        --verify_state_save=0 --output=../fio >/dev/null 2>&1; echo $?; rm -f j.*'
)
export MODULES=${python_modules:-}
if ! python_has pyarrow numpy; then unset 'mixed_programs[tables]'; fi
if ! python_has safetensors numpy; then unset 'mixed_programs[tensors]'; fi
mapfile -t mixed_names < <(printf '%s\n' "${!mixed_programs[@]}" | sort)

mixed_gone='^forebay: .* not written yet: the file is not where it was'
# Where all of the session were dead at once, the next command says what it has recovered.
mixed_recovered='^forebay: recovered .* written$'

# mixed_worker NUMBER UNTIL: one line in notes/done for each program that was the same, and one in notes/wrong for each other.
mixed_worker() {
    local number=$1 until=$2 round=0 name side dir code
    RANDOM=$((SOAK_SEED + number * 101))
    while ((SECONDS < until)); do
        round=$((round + 1))
        name=${mixed_names[RANDOM % ${#mixed_names[@]}]}
        export SEED=$((RANDOM + 1)) WORK=$((RANDOM % 4 + 1))
        dir=$WHERE/worker-$number
        for side in plain managed; do
            mkdir -p "$dir/$side/work"
            printf '%s\n' "${mixed_programs[$name]}" >"$dir/$side/script"
        done
        (cd "$dir/plain/work" && timeout --kill-after=5 300 bash ../script >../out 2>../err </dev/null)
        echo "exit $?" >>"$dir/plain/out"
        (cd "$dir/managed/work" && timeout --kill-after=5 300 "$forebay" run --require --linger 5 -- bash ../script >../out 2>../err </dev/null)
        code=$?
        # Bytes of a file that is removed after the keeper's death are owed for ever, and each command says so (docs/semantics.md).
        if ((code == 1)) && grep -q "$mixed_gone" "$dir/managed/err" && ! grep -v "$mixed_gone" "$dir/managed/err" | grep -q .; then
            code=0
            echo 'said that a removed file owes bytes' >>"$store/notes/done"
        fi
        echo "exit $code" >>"$dir/managed/out"
        for side in plain managed; do tree_of "$dir/$side/work" >"$dir/$side/tree"; done
        if cmp -s "$dir/plain/out" "$dir/managed/out" && cmp -s "$dir/plain/tree" "$dir/managed/tree"; then
            echo "$name" >>"$store/notes/done"
            rm -rf "$dir"
        else
            {
                echo "worker $number, round $round: $name, SEED=$SEED WORK=$WORK"
                diff "$dir/plain/out" "$dir/managed/out"
                diff "$dir/plain/tree" "$dir/managed/tree"
                tail -n 5 "$dir/managed/err"
            } | head -n 30 >>"$store/notes/wrong"
            mv "$dir" "$WHERE/wrong-$number-$round"
        fi
    done
}

# mixed_victim NUMBER UNTIL: a writer whose acknowledgements are the kernel's is killed in the middle; what it had acknowledged is
# there for the session's next program at once, and for an outsider when that has ended.
mixed_victim() {
    local number=$1 until=$2 dir=$WHERE/victim-$1 victim told noted who said
    RANDOM=$((SOAK_SEED + number * 977))
    while ((SECONDS < until)); do
        rm -rf "$dir"
        mkdir "$dir"
        "$forebay" run --require --linger 5 --routes '**/told=kernel' -- python3 "$TESTS/writer.py" "$dir/data" "$dir/told" 3000 >/dev/null 2>&1 </dev/null &
        victim=$!
        told=$((RANDOM % 900 + 20))
        for _ in $(seq 1000); do
            noted=$(cat "$dir/told" 2>/dev/null)
            ((${noted:-0} >= told)) && break
            sleep 0.02
        done
        who=$(pgrep -f "writer.py $dir/data" | while read -r pid; do
            [[ $(cat "/proc/$pid/comm" 2>/dev/null) == forebay ]] || echo "$pid"
        done)
        # Sometimes the command as well.
        ((RANDOM % 3)) || who="$who $victim"
        # shellcheck disable=SC2086 # one or two
        kill -9 $who 2>/dev/null || kill -9 "$victim"
        wait "$victim" 2>/dev/null
        said=$(timeout --kill-after=5 300 "$forebay" run --require --linger 5 -- python3 "$TESTS/acknowledged.py" "$dir/data" "$dir/told" 2>"$store/notes/said-$number")
        if [[ $said =~ ^[0-9]+$ ]] && ! grep -q -v -e "$mixed_gone" -e "$mixed_recovered" "$store/notes/said-$number" &&
            python3 "$TESTS/acknowledged.py" "$dir/data" "$dir/told" >>"$store/notes/said-$number" 2>&1; then
            echo "writer killed" >>"$store/notes/done"
        else
            { echo "victim $number, killed $who after $told; the session said '$said':" && cat "$store/notes/said-$number"; } >>"$store/notes/wrong"
            mv "$dir" "$dir-wrong-$SECONDS"
        fi
    done
}

# mixed_shooter UNTIL: at the keeper, every few seconds.
mixed_shooter() {
    local until=$1 keeper
    while ((SECONDS < until)); do
        sleep $((2 + RANDOM % 5))
        keeper=$("$forebay" stat --session "$FOREBAY_SESSION" --json 2>/dev/null |
            python3 -c 'import json,sys; print(json.load(sys.stdin)["sessions"][0]["members"]["keeper"] or "")' 2>/dev/null)
        # A command that drains what a keeper has left keeps the session meanwhile; that one is spared.
        [[ -z $keeper ]] || ! grep -q -a daemon "/proc/$keeper/cmdline" 2>/dev/null || { kill -9 "$keeper" 2>/dev/null && echo "keeper killed" >>"$store/notes/done"; }
        timeout --kill-after=5 300 "$forebay" run --linger 5 -- true 2>/dev/null
    done
}

# mixed_stopper UNTIL: stops one or two processes of the session for a moment, the keeper among them, as Ctrl-Z or a debugger would.
mixed_stopper() {
    local until=$1 pids pid
    trap 'kill -CONT $pids 2>/dev/null' EXIT
    while ((SECONDS < until)); do
        sleep 0.$((RANDOM % 9 + 1))
        pids=$("$forebay" stat --session "$FOREBAY_SESSION" --json 2>/dev/null |
            python3 -c 'import json,sys; print(*json.load(sys.stdin)["sessions"][0]["members"]["processes"])' 2>/dev/null |
            tr ' ' '\n' | shuf -n $((RANDOM % 2 + 1)))
        for pid in $pids; do kill -STOP "$pid" 2>/dev/null && echo "process stopped" >>"$store/notes/done"; done
        sleep "$((RANDOM % 8 ? 0 : RANDOM % 4)).$((RANDOM % 9 + 1))"
        for pid in $pids; do kill -CONT "$pid" 2>/dev/null; done
    done
}

# mixed NAME MINUTES
mixed() {
    local until=$((SECONDS + $2 * 60)) number jobs=() line dirty
    : >"$store/notes/done"
    : >"$store/notes/wrong"
    # Ending them is sending them nothing: each looks at the clock.
    for ((number = 1; number <= workers; number++)); do
        mixed_worker "$number" "$until" &
        jobs+=($!)
    done
    for number in 91 92; do
        mixed_victim "$number" "$until" &
        jobs+=($!)
    done
    mixed_shooter "$until" &
    jobs+=($!)
    mixed_stopper "$until" &
    jobs+=($!)
    wait "${jobs[@]}"
    # Not those of files that are gone: they were removed around a keeper's death (docs/semantics.md).
    dirty=$("$forebay" stat --session "$FOREBAY_SESSION" --json 2>/dev/null | python3 -c 'import json, os, sys
print(sum(file["owed_bytes"] for file in json.load(sys.stdin)["sessions"][0]["owing"] if os.path.exists(file["path"])))' 2>/dev/null)
    while read -r line; do
        passed "$1 $line"
    done < <(sort "$store/notes/done" | uniq -c | awk '{ times = $1; $1 = ""; print substr($0, 2) ", " times " times" }')
    if [[ -s $store/notes/wrong ]]; then
        failed "$1 mixed" "$(grep -c '^worker\|^victim' "$store/notes/wrong") differences"
        cat "$store/notes/wrong"
    fi
    grep -q 'keeper killed' "$store/notes/done" || failed "$1 keepers" "none was killed"
    grep -q 'process stopped' "$store/notes/done" || failed "$1 stops" "nobody was stopped"
    grep -q 'writer killed' "$store/notes/done" || failed "$1 writers" "none was killed"
    [[ ${dirty:-0} == 0 ]] || failed "$1 the end" "$dirty bytes are owed when all has ended"
}
