#!/usr/bin/env bash
# The tests once more, with many more random cases and with those that are ignored every day
# because they take long; then the scripts of tests/soak.d.
export FOREBAY_TEST_LIMIT=${FOREBAY_TEST_LIMIT:-43200}
. "$(dirname "$0")/lib.sh"
export PROPTEST_CASES=${SOAK_CASES:-20000}
printf 'soak: %s cases for each property\n' "$PROPTEST_CASES"
plain --include-ignored
build_more
simulated --include-ignored
rest_with_sim --include-ignored
run_scripts tests/soak.d
finish
