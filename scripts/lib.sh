# Counting what ran. Sourced by the scripts beside it; runs nothing by itself.
#
# Kinds of work: `check` is a command that passes or fails as one, `suite` a run of cargo test
# whose results are summed up, `run_script` a file that counts for itself. What did not run is never
# counted as passed: it is listed with its reason, and a run in which nothing ran is a failure.
# A test that fails has failed: nothing is run a second time. `aside` does any of these beside the rest, in time that this leaves idle.
# tests/run.d/counting.sh holds this file to it.

set -u -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
# Output is read by this file as well as by people.
export CARGO_TERM_COLOR=never

passed=0
failed=0
skipped=0
failures=()
skips=()
scratch=$(mktemp -d) || exit 1
log="$scratch/log"

asides=()
leave() {
    local pid
    for pid in ${asides[@]+"${asides[@]}"}; do pkill -P "$pid"; done
    rm -rf "$scratch"
}
trap leave EXIT

# count PASSED FAILED SKIPPED
count() {
    passed=$((passed + $1))
    failed=$((failed + $2))
    skipped=$((skipped + $3))
}

# fail REASON: one failure more, of something that could not be counted otherwise.
fail() {
    count 0 1 0
    failures+=("$1")
}

# skip NAME REASON: something that did not run.
skip() {
    count 0 0 1
    skips+=("$1: $2")
    printf '\n== %s: SKIPPED, %s\n' "$1" "$2"
}

# check NAME COMMAND...
check() {
    local name=$1 start=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    if "$@"; then
        count 1 0 0
        printf '== %s: passed (%d s)\n' "$name" $((SECONDS - start))
    else
        fail "$name"
        printf '== %s: FAILED (%d s)\n' "$name" $((SECONDS - start))
    fi
}

# The longest that one suite or script may take, in seconds. What hangs is ended and fails, so that a
# run says which one it was instead of taking everything after it along.
limit=${FOREBAY_TEST_LIMIT:-1200}

# limited COMMAND...: ended with its children when the limit has passed; the exit status is then 124.
limited() {
    timeout --kill-after=20 "$limit" "$@"
}

# A test that can do nothing here says so with a line of its own, `skipped: NAME: REASON`, and passes.
skipped_line='^skipped: [^ ]+: .'

# suite NAME COMMAND...: a run of cargo test. Its lines `test result: ...` are summed up; a test that
# has said that it was skipped is not among the passed ones.
suite() {
    local name=$1 start=$SECONDS status ok bad ignored left line
    shift
    printf '\n== tests: %s\n' "$name"
    limited "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    read -r ok bad ignored < <(
        grep -oE 'test result: [a-zA-Z]+\. [0-9]+ passed; [0-9]+ failed; [0-9]+ ignored' "$log" |
            awk '{ ok += $4; bad += $6; ignored += $8 } END { print ok + 0, bad + 0, ignored + 0 }'
    )
    left=$(grep -cE "$skipped_line" "$log")
    ok=$((ok > left ? ok - left : 0))
    count "$ok" "$bad" $((ignored + left))
    if [ "$bad" -gt 0 ]; then
        failures+=("tests: $name: $bad failed")
    elif [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        fail "tests: $name: not finished within $limit s"
    elif [ "$status" -ne 0 ]; then
        fail "tests: $name: did not build, or a test program died (exit $status)"
    elif [ "$ok" -eq 0 ]; then
        fail "tests: $name: ran no test"
    fi
    if [ "$ignored" -gt 0 ]; then
        skips+=("tests: $name: $ignored ignored; make soak runs them")
    fi
    while IFS= read -r line; do
        skips+=("tests: $name: ${line#skipped: }")
    done < <(grep -E "$skipped_line" "$log")
    printf '== tests: %s: %d passed, %d failed, %d ignored, %d skipped (%d s)\n' \
        "$name" "$ok" "$bad" "$ignored" "$left" $((SECONDS - start))
}

# run_script FILE: runs it with bash. Exit 77 means that it could not run here, with the reason in
# its last line. A closing line `N passed, N failed` (one word and a colon may stand before it, and
# `, N skipped` follow) is added to the counts; without one the file counts as a single test.
run_script() {
    local file=$1 name start=$SECONDS status ok bad left closing
    name=$(basename "$file")
    printf '\n== %s\n' "$name"
    limited bash "$file" </dev/null 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    if [ "$status" -eq 77 ]; then
        skip "$name" "$(tail -n 1 "$log")"
        return
    fi
    closing=$(grep -E '^([[:alnum:]_-]+: )?[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$log" |
        tail -n 1)
    if [ -n "$closing" ]; then
        read -r ok bad left < <(grep -oE '[0-9]+ (passed|failed|skipped)' <<<"$closing" |
            awk '{ n[$2] = $1 } END { print n["passed"] + 0, n["failed"] + 0, n["skipped"] + 0 }')
    else
        ok=$((status == 0 ? 1 : 0)) bad=$((status == 0 ? 0 : 1)) left=0
    fi
    count "$ok" "$bad" "$left"
    [ "$left" -eq 0 ] || skips+=("$name: $left skipped, see its output")
    if [ "$bad" -gt 0 ]; then
        failures+=("$name: $bad failed")
    elif [ "$status" -ne 0 ]; then
        fail "$name: exit $status"
    elif [ "$ok" -eq 0 ]; then
        fail "$name: ran nothing and did not say so with exit 77"
    fi
    printf '== %s: %d passed, %d failed (%d s)\n' "$name" "$ok" "$bad" $((SECONDS - start))
}

# aside COMMAND...: begins work in the time that the rest leaves idle: what computes, and, beside the scripts alone, what builds. What tests
# wait for is less certain beside what writes much. What it says and counts comes with `await_asides`. It builds in folders of its own, or
# whoever needs cargo's lock on a folder waits for work that gets no time; the tests that it runs are built before.
aside() {
    local own="$scratch/aside.${#asides[@]}"
    mkdir "$own"
    (
        chrt --idle --pid 0 "$BASHPID" 2>/dev/null || renice -n 19 -p "$BASHPID" >/dev/null
        passed=0 failed=0 skipped=0 failures=() skips=() log="$own/log"
        "$@"
        printf '%s\n' ${failures[@]+"${failures[@]}"} >"$own/failures"
        printf '%s\n' ${skips[@]+"${skips[@]}"} >"$own/skips"
        echo "$passed $failed $skipped" >"$own/counts"
    ) >"$own/said" 2>&1 </dev/null &
    asides+=($!)
}

# await_asides: waits for what was begun aside, and takes its counts.
await_asides() {
    local at own ok bad left start=$SECONDS
    for at in ${asides[@]+"${!asides[@]}"}; do
        own="$scratch/aside.$at"
        wait "${asides[at]}"
        cat "$own/said"
        if read -r ok bad left 2>/dev/null <"$own/counts"; then
            count "$ok" "$bad" "$left"
            mapfile -t -O "${#failures[@]}" failures < <(sed '/^$/d' "$own/failures")
            mapfile -t -O "${#skips[@]}" skips < <(sed '/^$/d' "$own/skips")
        else
            fail 'what was begun aside ended before it had counted'
        fi
        rm -rf "$own"
    done
    asides=()
    printf '\n== aside: ended (%d s of waiting)\n' $((SECONDS - start))
}

# run_scripts FOLDER: every script of a folder, in order of name.
run_scripts() {
    local file
    for file in "$1"/*.sh; do
        [ -e "$file" ] || continue
        run_script "$file"
    done
}

# The checks.
checks() {
    quick_checks
    lints
}

quick_checks() {
    check format cargo fmt --all --check
    check 'source rules' cargo xtask tidy
}

# lints: those of the checks that build much. Documentation is built with `sim`, because plain modules link into it.
lints() {
    check 'lints' cargo clippy --quiet --workspace --all-targets -- -D warnings
    check 'lints with sim' \
        cargo clippy --quiet --workspace --all-targets --features forebay/sim -- -D warnings
    check 'lints of schedules' \
        cargo clippy --quiet --package forebay --lib --test schedule --features shuttle -- -D warnings
    check documentation env RUSTDOCFLAGS='-D warnings' \
        cargo doc --quiet --workspace --no-deps --features forebay/sim
    check 'what is installed builds by itself' cargo check --quiet --package forebay-cli --package forebay-preload
    if cargo deny --version >/dev/null 2>&1; then
        check dependencies cargo deny --log-level error check bans licenses sources
    else
        skip dependencies 'cargo-deny is not installed: make deny installs and runs it'
    fi
}

# lints_apart: the same in a folder of their own.
lints_apart() {
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/lints"
    lints
}

# The folder of what is built with `sim`. Apart: the library has one name in both builds, and the tests of the plain one would load this.
sim="${CARGO_TARGET_DIR:-target}/sim"

# build COMMAND...: what a suite or a script needs later. Where it does not build, that one fails and says why.
build() {
    local start=$SECONDS limit=$((limit > 3600 ? limit : 3600))
    printf '\n== built ahead: %s\n' "$*"
    limited "$@"
    printf '== built ahead, exit %d (%d s)\n' $? $((SECONDS - start))
}

# keep FILE PROGRAM...: copies of test programs, by their names, of the command and of the library, as the plain build has made them,
# for the scripts; FILE is what cargo has said. Built by themselves they would be others, since cargo unites the features of whatever
# it builds at once, and tests put a library without a keeper in the place of this one.
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")/built
keep() {
    local said=$1 name program
    shift
    rm -rf "$built"
    mkdir -p "$built"
    cp "${CARGO_TARGET_DIR:-target}"/debug/{forebay,deps/libforebay_preload.so} "$built"
    for name in "$@"; do
        program=$(sed -nE "s|^ +Executable .* \\((.*/$name-[0-9a-f]+)\\)\$|\\1|p" "$said" | head -n 1)
        [ -z "$program" ] || cp "$program" "$built/$name"
    done
}

# The engine's test programs with `sim` that compute and wait for nothing: their time is simulated, and so are their devices.
computing=(crash model simulate)

# of_both: the engine's test programs in which nothing depends on `sim`. The plain build has run them.
of_both() {
    local file
    for file in crates/forebay/tests/*.rs crates/forebay/tests/*/main.rs; do
        grep -qr 'feature = "sim"' "${file%/main.rs}" || basename "${file%/main.rs}" .rs
    done
}

# suite_without NAME PROGRAMS COMMAND...: a suite without the test programs of these names, which cargo has no word for.
suite_without() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)
    suite "$1" env "TEST_LEFT_OUT=$2" "CARGO_TARGET_${host}_RUNNER=$PWD/scripts/test-program.sh" "${@:3}"
}

with_sim=(cargo test --target-dir "$sim" --package forebay --no-fail-fast)

# plain ARGUMENTS...: the tests of all crates in the plain build. Arguments go to the test programs, here and below.
plain() {
    build cargo test --workspace --no-run 2>&1 | tee "$scratch/executables"
    keep "$scratch/executables" programs forebay_pool forebay_fuse mount
    suite 'plain build' cargo test --workspace --no-fail-fast -- "$@"
}

# build_more: what is run after the plain tests.
build_more() {
    build "${with_sim[@]}" --features shuttle --test schedule --no-run
    build "${with_sim[@]}" --features sim --no-run
    build scripts/install-test-tools.sh
}

# simulated ARGUMENTS...: deaths, whole sessions and schedules in simulated time. They compute, and touch no disk. Deaths come first: a case
# that takes a minute by the clock counts as one that hangs.
simulated() {
    suite 'simulated' "${with_sim[@]}" --features sim "${computing[@]/#/--test=}" -- "$@"
    suite 'schedules' "${with_sim[@]}" --features shuttle --test schedule -- "$@"
}

# rest_with_sim ARGUMENTS...: the engine's other tests with `sim`. No other crate uses that feature but the library, for programs on failing
# devices: the rest would only run a second time.
rest_with_sim() {
    suite_without 'with sim' "${computing[*]} $(of_both | xargs)" "${with_sim[@]}" --features sim -- "$@"
    suite 'programs on failing devices' cargo test --target-dir "$sim" \
        --package forebay-preload --features sim --test programs --no-fail-fast -- faults:: "$@"
}

# Where `TEST_SKIPS` is set, what did not run must match one of its lines, which are extended patterns. What is ignored
# because `make soak` runs it may always be left out.
refuse_skips() {
    local entry
    [ -n "${TEST_SKIPS+set}" ] || return 0
    for entry in ${skips[@]+"${skips[@]}"}; do
        case $entry in *' ignored; make soak runs them') continue ;; esac
        grep -qE -f <(sed '/^$/d' <<<"$TEST_SKIPS") <<<"$entry" || fail "not run, and nobody said that it may be left out: $entry"
    done
}

# Prints what failed and what did not run, and the one closing line. Never returns.
finish() {
    local entry closing
    printf '\n== summary (%d s)\n' "$SECONDS"
    [ $((passed + failed)) -gt 0 ] || fail 'nothing ran'
    refuse_skips
    for entry in ${skips[@]+"${skips[@]}"}; do printf 'not run: %s\n' "$entry"; done
    for entry in ${failures[@]+"${failures[@]}"}; do printf 'FAILED: %s\n' "$entry"; done
    closing="forebay: $passed passed, $failed failed"
    [ "$skipped" -eq 0 ] || closing="$closing, $skipped skipped"
    printf '%s\n' "$closing"
    [ "$failed" -eq 0 ]
    exit
}
