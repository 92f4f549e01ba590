#!/usr/bin/env bash
# Everything that must hold before a commit: the checks, the tests of all crates, and the scripts of
# tests/run.d, which test whole products on real file systems.
. "$(dirname "$0")/lib.sh"
# One after the other.
checks
suites
export FOREBAY_TEST_BIN=${FOREBAY_TEST_BIN:-$built}
run_scripts tests/run.d
finish
