# shellcheck shell=bash
# Results of test programs, added up. Source it, then call `run`; at the end $passed, $failed and $skipped are the sums.

passed=0
failed=0
skipped=0

# run NAME COMMAND...: a test program, or several; its results are added up, what it says it skipped apart.
run() {
    local name=$1 output ok bad left
    shift
    output=$("$@" 2>&1) || true
    read -r ok bad < <(
        grep -oE 'test result: [a-zA-Z]+\. [0-9]+ passed; [0-9]+ failed' <<<"$output" |
            awk '{ ok += $4; bad += $6 } END { print ok + 0, bad + 0 }'
    )
    # A program that died has no result.
    ((ok + bad > 0)) || bad=1
    ((bad == 0)) || printf '%s\n' "$output"
    left=$(grep -cE '^skipped: [^ ]+: .' <<<"$output") || true
    ok=$((ok > left ? ok - left : 0))
    printf '%s: %d passed, %d failed, %d skipped here\n' "$name" "$ok" "$bad" "$left"
    passed=$((passed + ok))
    failed=$((failed + bad))
    skipped=$((skipped + left))
}
