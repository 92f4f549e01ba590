#!/usr/bin/env bash
# Checks on the checkers: scripts/lib.sh must count what ran, and nothing else.
set -u
cd "$(dirname "$0")/../.." || exit 1
unset TEST_SKIPS
library=$PWD/scripts/lib.sh
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

passed=0
failed=0

# expect NAME CLOSING-LINE STATUS WORK: does WORK with the functions of lib.sh in a shell of its
# own, and compares its last line and its exit status.
expect() {
    local output status
    output=$(cd "$scratch" && bash -c ". '$library'; kill_it() { kill -9 \$BASHPID; }; $4; finish" 2>&1)
    status=$?
    if [ "$(tail -n 1 <<<"$output")" = "$2" ] && [ "$status" -eq "$3" ]; then
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
    printf '%s: expected "%s" and exit %s, got exit %s and:\n%s\n' "$1" "$2" "$3" "$status" "$output"
}

# file NAME TEXT: a script for `run_script` to run.
file() {
    printf '%s\n' "$2" >"$scratch/$1"
}

result='test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'
broken='test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out'
file skipping.sh "echo 'skipped: one::test: no loop devices'; echo '  skipped: in a sentence'; echo '$result'"
file all-skipped.sh "for n in 1 2 3; do echo \"skipped: test-\$n: not root\"; done; echo '$result'"
file two.sh "echo '$result'; echo '$result'"
file broken.sh "echo '$result'; echo '$broken'; exit 101"
file died.sh "echo '$result'; exit 101"
file counts.sh "echo '9 passed, 9 failed in a sentence'; echo 'posix: 5 passed, 0 failed, 2 skipped'"
file counts-bad.sh "echo '5 passed, 2 failed'; exit 1"
file lies.sh "echo '5 passed, 0 failed'; exit 3"
file plain.sh 'echo fine'
file away.sh 'echo "no loop devices here"; exit 77'
file hangs.sh 'sleep 60'
file empty.sh "echo '0 passed, 0 failed'"

expect 'nothing at all' 'forebay: 0 passed, 1 failed' 1 ':'
expect 'a check that passes' 'forebay: 1 passed, 0 failed' 0 'check a true'
expect 'a check that fails' 'forebay: 1 passed, 1 failed' 1 'check a true; check b false'
expect 'two results' 'forebay: 6 passed, 0 failed, 2 skipped' 0 "suite a bash $scratch/two.sh"
expect 'a skipped test' 'forebay: 2 passed, 0 failed, 2 skipped' 0 "suite a bash $scratch/skipping.sh"
expect 'only skipped tests' 'forebay: 0 passed, 1 failed, 4 skipped' 1 \
    "suite a bash $scratch/all-skipped.sh"
expect 'a skipped test is named' 'not run: tests: a: one::test: no loop devices' 0 \
    "suite a bash $scratch/skipping.sh; finish | grep one::test; exit"
expect 'a skipped test that must run' 'forebay: 2 passed, 1 failed, 2 skipped' 1 \
    "export TEST_SKIPS='another::test'; suite a bash $scratch/skipping.sh"
expect 'a skipped test that may be left out' 'forebay: 2 passed, 0 failed, 2 skipped' 0 \
    "export TEST_SKIPS='another::test
one::test: no loop'; suite a bash $scratch/skipping.sh"
expect 'a failed test' 'forebay: 5 passed, 1 failed, 1 skipped' 1 "suite a bash $scratch/broken.sh"
expect 'a suite that died' 'forebay: 3 passed, 1 failed, 1 skipped' 1 "suite a bash $scratch/died.sh"
expect 'a suite without tests' 'forebay: 0 passed, 1 failed' 1 "suite a true"
expect 'a suite that hangs' 'forebay: 0 passed, 1 failed' 1 'limit=1; suite a sleep 60'
expect 'a script that hangs' 'forebay: 0 passed, 1 failed' 1 "limit=1; run_script $scratch/hangs.sh"
expect 'a script that counts' 'forebay: 5 passed, 0 failed, 2 skipped' 0 "run_script $scratch/counts.sh"
expect 'a script that fails' 'forebay: 5 passed, 2 failed' 1 "run_script $scratch/counts-bad.sh"
expect 'a script that lies' 'forebay: 5 passed, 1 failed' 1 "run_script $scratch/lies.sh"
expect 'a plain script' 'forebay: 1 passed, 0 failed' 0 "run_script $scratch/plain.sh"
expect 'a script that could not run' 'forebay: 1 passed, 0 failed, 1 skipped' 0 \
    "check a true; run_script $scratch/away.sh"
expect 'only skipped' 'forebay: 0 passed, 1 failed, 1 skipped' 1 "run_script $scratch/away.sh"
expect 'work aside' 'forebay: 7 passed, 1 failed, 2 skipped' 1 \
    "aside suite a bash $scratch/two.sh; aside check b false; check c true; await_asides"
expect 'a failure aside is named' 'FAILED: b c' 0 "aside check 'b c' false; await_asides; finish | grep '^FAILED'; exit 0"
expect 'a skip aside is named' 'not run: a b: c d' 0 "aside skip 'a b' 'c d'; check e true; await_asides; finish | grep '^not run'; exit 0"
expect 'work aside that dies' 'forebay: 1 passed, 1 failed' 1 "check a true; aside kill_it; await_asides"
expect 'work aside twice' 'forebay: 2 passed, 0 failed' 0 "aside check a true; await_asides; aside check b true; await_asides"
printf '#!/bin/sh\necho "%s"\n' "$result" >"$scratch/deaths-0a1b"
chmod +x "$scratch/deaths-0a1b"
expect 'a test program' 'forebay: 3 passed, 0 failed, 1 skipped' 0 \
    "TEST_LEFT_OUT='death eaths deaths-0' suite a $PWD/scripts/test-program.sh $scratch/deaths-0a1b"
expect 'a test program that is left out' 'forebay: 0 passed, 1 failed' 1 \
    "TEST_LEFT_OUT='model deaths' suite a $PWD/scripts/test-program.sh $scratch/deaths-0a1b"
expect 'an empty script' 'forebay: 0 passed, 1 failed' 1 "run_script $scratch/empty.sh"

printf 'counting: %d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
