#!/usr/bin/env bash
# Checks on the checkers: scripts/lib.sh must count what ran, and nothing else.
set -u
cd "$(dirname "$0")/../.." || exit 1
unset TEST_SKIPS
export TEST_AGAIN=3
library=$PWD/scripts/lib.sh
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

passed=0
failed=0

# expect NAME CLOSING-LINE STATUS WORK: does WORK with the functions of lib.sh in a shell of its
# own, and compares its last line and its exit status.
expect() {
    local output status
    output=$(cd "$scratch" && bash -c ". '$library'; $4; finish" 2>&1)
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
# Cargo test's output: a test fails, and the second time or for ever after it passes.
cat >"$scratch/now-and-then.sh" <<END
case " \$*" in
    *--exact*) [ -z "\${ALWAYS:-}" ] && echo 'test a::b ... ok' && echo '${result/3 passed/1 passed}' && exit ;;
esac
echo 'test a::b ... FAILED'; echo '$broken'; exit 101
END
# Wrong bytes, and the second time all is well.
cat >"$scratch/wrong.sh" <<END
case " \$*" in *--exact*) echo 'test a::b ... ok'; echo '${result/3 passed/1 passed}'; exit ;; esac
echo 'test a::b ... FAILED'; echo 'failures:'; echo '---- a::b stdout ----'; echo "\$WHAT"; echo 'failures:'; echo '$broken'; exit 101
END
file died.sh "echo '$result'; exit 101"
file counts.sh "echo '9 passed, 9 failed in a sentence'; echo 'posix: 5 passed, 0 failed, 2 skipped'"
file counts-bad.sh "echo '5 passed, 2 failed'; exit 1"
file lies.sh "echo '5 passed, 0 failed'; exit 3"
file once.sh "[ -e $scratch/was-here ] || { touch $scratch/was-here; echo '4 passed, 1 failed'; exit 1; }; echo '5 passed, 0 failed'"
file twice.sh "[ -e $scratch/was-there ] || { touch $scratch/was-there; echo 'FAIL  copies: other files: < 1'; echo '4 passed, 1 failed'; exit 1; }; echo '5 passed, 0 failed'"
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
expect 'an unsteady test' 'forebay: 3 passed, 0 failed' 0 "suite a bash $scratch/now-and-then.sh --"
expect 'an unsteady test is named' \
    'UNSTEADY: tests: a: a::b: failed once, then passed alone' 0 \
    "suite a bash $scratch/now-and-then.sh --; finish | grep UNSTEADY; exit"
expect 'no test is unsteady unless it is asked for' 'forebay: 2 passed, 1 failed' 1 \
    "unset TEST_AGAIN; . '$library'; suite a bash $scratch/now-and-then.sh --"
expect 'a test that fails alone as well' 'forebay: 2 passed, 1 failed' 1 \
    "export ALWAYS=1; suite a bash $scratch/now-and-then.sh --"
for what in 'file 0 has wrong bytes at 7' '  left: [1, 2, 3]' 'assertion failed: fs::read(&path) == old'; do
    expect "not run again: $what" 'forebay: 2 passed, 1 failed' 1 \
        "export WHAT='$what'; suite a bash $scratch/wrong.sh --"
done
expect 'run again: a wait that was too short' 'forebay: 3 passed, 0 failed' 0 \
    "export WHAT='it is not managed'; suite a bash $scratch/wrong.sh --"
expect 'too many to be unsteady' 'forebay: 2 passed, 1 failed' 1 \
    "again_max=0; suite a bash $scratch/now-and-then.sh --"
expect 'a suite that died' 'forebay: 3 passed, 1 failed, 1 skipped' 1 "suite a bash $scratch/died.sh"
expect 'a suite without tests' 'forebay: 0 passed, 1 failed' 1 "suite a true"
expect 'a suite that hangs' 'forebay: 0 passed, 1 failed' 1 'limit=1; suite a sleep 60'
expect 'a script that hangs' 'forebay: 0 passed, 1 failed' 1 "limit=1; run_script $scratch/hangs.sh"
expect 'a script that counts' 'forebay: 5 passed, 0 failed, 2 skipped' 0 "run_script $scratch/counts.sh"
expect 'a script that fails' 'forebay: 5 passed, 2 failed' 1 "run_script $scratch/counts-bad.sh"
expect 'a script that lies' 'forebay: 5 passed, 1 failed' 1 "run_script $scratch/lies.sh"
expect 'an unsteady script' 'forebay: 5 passed, 0 failed' 0 \
    "rm -f $scratch/was-here; run_script $scratch/once.sh"
expect 'a script that found other bytes' 'forebay: 4 passed, 1 failed' 1 \
    "rm -f $scratch/was-there; run_script $scratch/twice.sh"
expect 'no script is unsteady unless it is asked for' 'forebay: 4 passed, 1 failed' 1 \
    "rm -f $scratch/was-here; unset TEST_AGAIN; . '$library'; run_script $scratch/once.sh"
# What runs beside is counted like the rest, whenever it ends.
expect 'a suite beside another' 'forebay: 6 passed, 0 failed, 2 skipped' 0 \
    "slow() { sleep 0.3; suite a bash $scratch/two.sh; }; beside slow; [ \$((passed + failed)) -eq 0 ] || fail early"
expect 'one that fails beside another' 'forebay: 8 passed, 1 failed, 1 skipped' 1 \
    "broken() { suite 'b c' bash $scratch/broken.sh; }; beside broken; suite a bash $scratch/died.sh >/dev/null; passed=3 failed=0 failures=(); skipped=0"
expect 'its failure is named' 'FAILED: tests: it'\''s "b": 1 failed' 1 \
    "broken() { suite 'it'\''s \"b\"' bash $scratch/broken.sh; }; beside broken; gather; finish | grep FAILED:; exit 1"
expect 'a skipped test of one beside another is named' 'not run: tests: a: one::test: no loop devices' 0 \
    "beside suite a bash $scratch/skipping.sh; gather; finish | grep one::test; exit"
expect 'what has died beside' 'forebay: 1 passed, 1 failed' 1 'beside exit 0; check a true'
expect 'what runs beside gives way' 'forebay: 1 passed, 0 failed' 0 'mine=$(nice); low() { check a [ "$(nice)" -gt "$mine" ]; }; beside low'
expect 'two beside, gathered once' 'forebay: 3 passed, 0 failed' 0 'beside check a true; gather; beside check b true; gather; check c true'
expect 'what would be beside comes first' 'forebay: 1 passed, 0 failed' 0 'check a true; apart=1; work() { passed=0; }; beside work; check b true'
if [ "$(id -u)" -eq 0 ]; then
    expect 'what is waited for gives way no longer' 'forebay: 1 passed, 0 failed' 0 \
        'mine=$(nice); low() { sleep 0.5; check a [ "$(nice)" = "$mine" ]; }; beside low; sleep 0.2; gather'
fi
# Whoever ends the run ends what runs beside it.
ends_all() {
    local marker="sleep 61.$$" process
    (cd "$scratch" && exec bash -c ". '$library'; beside check a $marker; sleep 0.3; kill \$\$; sleep 1") >/dev/null 2>&1
    sleep 0.2
    ! process=$(pgrep -fx "$marker") || { kill $process && return 1; }
}
if ends_all 2>/dev/null; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    printf 'what ran beside is left behind\n'
fi
expect 'a plain script' 'forebay: 1 passed, 0 failed' 0 "run_script $scratch/plain.sh"
expect 'a script that could not run' 'forebay: 1 passed, 0 failed, 1 skipped' 0 \
    "check a true; run_script $scratch/away.sh"
expect 'only skipped' 'forebay: 0 passed, 1 failed, 1 skipped' 1 "run_script $scratch/away.sh"
expect 'an empty script' 'forebay: 0 passed, 1 failed' 1 "run_script $scratch/empty.sh"

printf 'counting: %d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
