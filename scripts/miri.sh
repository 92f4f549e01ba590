#!/usr/bin/env bash
# The engine's unit tests under Miri, which checks that unsafe code keeps its promises.
#
# Miri is part of nightly toolchains only. It cannot call mmap with shared files or io_uring, so
# tests that need the operating system must be marked `#[cfg_attr(miri, ignore)]`.
set -u
cd "$(dirname "$0")/.." || exit 1
toolchain=${MIRI_TOOLCHAIN:-}
if ! cargo ${toolchain:+"+$toolchain"} miri --version >/dev/null 2>&1; then
    cat >&2 <<'MESSAGE'
miri: this toolchain has no Miri, so nothing was run.
To get it:  rustup toolchain install nightly --component miri --component rust-src
Then:       MIRI_TOOLCHAIN=nightly make miri
MESSAGE
    exit 1
fi
exec cargo ${toolchain:+"+$toolchain"} miri test --package forebay --lib --features sim
