#!/usr/bin/env bash
# Everything that must hold before a commit: the checks, the tests of all crates, and the scripts of
# tests/run.d, which test whole products on real file systems.
. "$(dirname "$0")/lib.sh"
# One after the other; but what only computes has the time that the rest leaves.
quick_checks
plain
build_more
aside simulated
rest_with_sim
aside lints_apart
export FOREBAY_TEST_BIN=${FOREBAY_TEST_BIN:-$built}
run_scripts tests/run.d
await_asides
finish
