#!/usr/bin/env bash
# Every fuzz target for FUZZ_SECONDS (60 by default), by cargo-fuzz. Stops at the first finding.
set -eu
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
if [ ! -e fuzz/Cargo.toml ]; then
    printf 'fuzz: the tree has no fuzz targets yet, so nothing was run\n' >&2
    exit 1
fi
if ! cargo fuzz --version >/dev/null 2>&1; then
    cat >&2 <<'MESSAGE'
fuzz: cargo-fuzz is not installed, so nothing was run.
To get it:  cargo install --locked cargo-fuzz
It needs a nightly toolchain as well: rustup toolchain install nightly
MESSAGE
    exit 1
fi
targets=$(cargo fuzz list)
for target in $targets; do
    printf 'fuzz: %s for %s s\n' "$target" "$seconds"
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds"
done
