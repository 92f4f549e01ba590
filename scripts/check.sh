#!/usr/bin/env bash
# The checks alone: format, source rules, lints, documentation, dependencies; and that the engine and stores compile for another processor, where the
# toolchain has its library.
. "$(dirname "$0")/lib.sh"
checks
other=aarch64-unknown-linux-gnu
# Without rustup, which names what is installed, the library's folder says so.
if [ -d "$(rustc --print sysroot)/lib/rustlib/$other/lib" ]; then
    check "it compiles for $other" cargo check --quiet --target "$other" --package forebay --package forebay-pmem
else
    skip "it compiles for $other" "the toolchain has no library for it: rustup target add $other"
fi
finish
