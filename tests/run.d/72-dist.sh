#!/usr/bin/env bash
# The files of dist: systemd finds nothing wrong with the unit, and what it runs is a command that there is.
# Skipped where there is no systemd-analyze.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1
command -v systemd-analyze >/dev/null || {
    echo 'systemd-analyze is missing (package systemd)'
    exit 77
}
target=$PWD/${CARGO_TARGET_DIR:-target}
bin=${FOREBAY_TEST_BIN:-}
if [[ -z $bin ]]; then
    cargo build --quiet -p forebay-cli || exit 1
    bin=$target/debug
fi
forebay=$(realpath "$bin")/forebay
unset FOREBAY_TEST_BIN
scratch=$(mktemp -d) || exit 1
trap 'rm -rf --one-file-system "$scratch"' EXIT
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh

# The program lies elsewhere than on a host that has it installed.
unit=$scratch/forebay-serve@work.service
sed "s|/usr/local/bin/forebay|$forebay|" dist/forebay-serve@.service >"$unit"
verified() {
    # It ends well whatever it says, and says nothing where nothing is wrong.
    systemd-analyze verify --recursive-errors=no --man=no "$1" 2>&1 | { ! grep -F "$(basename "$1")"; }
}
expect 'systemd finds nothing wrong with the unit' verified "$unit"
# shellcheck disable=SC2016
sed 's|^Restart=.*|Restart=perhaps|' "$unit" >"$scratch/forebay-wrong@work.service"
wrong() { ! verified "$scratch/forebay-wrong@work.service"; }
expect 'and would find what is' wrong
printf '%s\n' 'servers = ["127.0.0.1:7411"]' >"$scratch/pool.toml"
# As the unit has it, for a server that the pool does not have: so the command is understood, and ends.
command=$(sed -n 's|^ExecStart=||p' "$unit" | sed "s|/etc/forebay/pools/%i.toml|$scratch/pool.toml|; s|\${SERVER}|2|")
understood() {
    local code=0
    $command || code=$?
    ((code == 2))
}
expect 'its command is one that there is' understood
grep -q 'has the servers 1 to 1' "$scratch/said" || {
    failed=$((failed + 1))
    cat "$scratch/said"
}
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
