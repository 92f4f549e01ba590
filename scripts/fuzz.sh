#!/usr/bin/env bash
# Runs each fuzz target for a number of seconds: scripts/fuzz.sh [seconds] [target...]
#
# Needs a C++ compiler. Installs cargo-fuzz if it is missing, at the version below. The pinned stable
# toolchain does: RUSTC_BOOTSTRAP lets cargo-fuzz pass the sanitizer flags. Inputs found are
# kept in fuzz/corpus, and those that fail in fuzz/artifacts; neither is checked in. The same checks
# run without a fuzzer, over seeded inputs, in `cargo test --all-features`.
set -euo pipefail

cargo_fuzz_version=0.13.2
seconds=${1:-${FUZZ_SECONDS:-60}}
shift || true

if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: scripts/fuzz.sh [seconds] [target...]" >&2
    exit 2
fi

cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1

if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz: cargo-fuzz is missing; installing $cargo_fuzz_version"
    env -u RUSTC_BOOTSTRAP cargo install --locked cargo-fuzz --version "=$cargo_fuzz_version"
fi

targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
    mapfile -t targets < <(cargo fuzz list)
fi

for target in "${targets[@]}"; do
    echo "fuzz: building $target"
    cargo fuzz build "$target"
    echo "fuzz: running $target for $seconds s"
    cargo fuzz run "$target" -- -max_total_time="$seconds" -print_final_stats=1
done
echo "fuzz: nothing failed in ${#targets[@]} target(s), $seconds s each"
