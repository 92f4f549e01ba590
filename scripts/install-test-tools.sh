#!/usr/bin/env bash
# Builds the tools of Rust that the tests call, where they are missing, in the versions below, into target/tools. What cannot be built
# is named, and the tests that need it say that they were skipped.
set -u
cd "$(dirname "$0")/.." || exit 1
# They check what they read; they need not be fast.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=256

# tool_of_rust NAME VERSION PURPOSE: into target/tools.
tool_of_rust() {
    local tools=${CARGO_TARGET_DIR:-target}/tools
    [ "$("$tools/bin/$1" --version 2>/dev/null)" != "$1 $2" ] || return 0
    printf 'test tools: installing %s %s into %s: %s\n' "$1" "$2" "$tools" "$3"
    nice cargo install --quiet --locked --root "$tools" "$1" --version "=$2" ||
        printf 'test tools: %s could not be installed; the tests that need it will be listed as skipped\n' "$1" >&2
}
tool_of_rust fsx 0.3.2 'random file operations that check what they read'
tool_of_rust pjdfstest 0.2.2 'what POSIX says of names, owners, modes and times'
exit 0
