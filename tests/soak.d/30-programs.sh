#!/usr/bin/env bash
# Programs that check what they read, for a minute each, on every file system; $SOAK_SECONDS to choose.
#
# The seeds are new each time and printed.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1
cargo build --quiet --release -p forebay-cli -p forebay-preload || exit 1
export FOREBAY_TEST_BIN=${FOREBAY_TEST_BIN:-${CARGO_TARGET_DIR:-target}/release}
export SOAK_SECONDS=${SOAK_SECONDS:-60} SOAK_SEED=${SOAK_SEED:-$RANDOM}
printf 'SOAK_SEED=%s SOAK_SECONDS=%s\n' "$SOAK_SEED" "$SOAK_SECONDS"
export FOREBAY_TEST_KINDS=${FOREBAY_TEST_KINDS:-xfs ext4 btrfs} PATIENCE=$((SOAK_SECONDS * 3 + 900))
# The largest files of the corpus: a gigabyte.
export CORPUS_SCALE=${CORPUS_SCALE:-36} STRESS_OPS=${STRESS_OPS:-1000} FOREBAY_TEST_STORE=${FOREBAY_TEST_STORE:-16G} FOREBAY_TEST_DEVICE=${FOREBAY_TEST_DEVICE:-6G}
exec bash tests/run.d/30-programs.sh
