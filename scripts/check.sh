#!/usr/bin/env bash
# The checks alone: format, source rules, lints, documentation, dependencies.
. "$(dirname "$0")/lib.sh"
checks
finish
