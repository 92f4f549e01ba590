# shellcheck shell=bash
# Checks that are counted: sourced by scripts that have a folder $scratch, and print $passed and $failed in their last line.

passed=0 failed=0
# expect NAME COMMAND...
expect() {
    if "${@:2}" >"$scratch/said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL  %s\n' "$1"
        cat "$scratch/said"
    fi
}
