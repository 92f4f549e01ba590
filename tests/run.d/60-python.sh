#!/usr/bin/env bash
# The Python package: a wheel is built and installed into a clean environment, and tested there by what users would call.
# $TEST_PYTHON: another Python than the system's.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=scripts/lib-python.sh
. scripts/lib-python.sh

away() {
    echo "$1"
    exit 77
}
python=${TEST_PYTHON:-/usr/bin/python3}
command -v "$python" >/dev/null || away "$python is missing (scripts/install-test-deps.sh installs it)"
[[ -x $python_tools/bin/maturin ]] || away "maturin is missing (scripts/install-test-deps.sh installs it)"
# Tests of pools start servers with it.
export TEST_FOREBAY=${FOREBAY_TEST_BIN:-$PWD/${CARGO_TARGET_DIR:-target}/debug}/forebay
[[ -n ${FOREBAY_TEST_BIN:-} ]] || cargo build --quiet -p forebay-cli -p forebay-preload || exit 1
# Whatever this user's environment says about Forebay is left out of it.
for name in $(compgen -e | grep '^FOREBAY_'); do unset "$name"; done
export FOREBAY_CONFIG=/dev/null

target=$PWD/${CARGO_TARGET_DIR:-target}
scratch=$(mktemp -d -p "$target") || exit 1
trap 'rm -rf "$scratch"' EXIT
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh

python_wheel "$scratch/wheels" >"$scratch/said" 2>&1 ||
    { tail -n 40 "$scratch/said" && echo 'the wheel does not build' && exit 1; }
wheels=("$scratch"/wheels/*)
expect 'one wheel, for Python 3.9 and later' eval '[[ ${#wheels[@]} == 1 && ${wheels[0]} == *-cp39-abi3-*.whl ]]'

# environment NAME OPTION...: a virtual environment with the wheel and nothing else of ours.
environment() {
    "$python" -m venv --without-pip "${@:2}" "$scratch/$1" &&
        "$python" -m pip --python "$scratch/$1/bin/python" --quiet --disable-pip-version-check install --no-index --no-deps "${wheels[0]}"
}
expect 'it is installed into a clean environment' environment clean
expect 'and works there, without numpy' env -C "$scratch" "FOREBAY_SESSION=python-$$" FOREBAY_MEMORY=32MiB clean/bin/python -c '
import sys, forebay
with forebay.open("file", "w+b") as file:
    assert file.write_at(b"bytes", 3) == 5 and file.read_at(9, 0) == b"\0\0\0bytes"
assert "numpy" not in sys.modules and forebay.__file__.startswith(sys.prefix)
'
expect 'an environment with the modules of the system' environment whole --system-site-packages
PYTHONPATH=$python_tools:$python_modules PYTHONDONTWRITEBYTECODE=1 timeout 600 "$scratch/whole/bin/python" -m pytest -q -p no:cacheprovider \
    --basetemp "$scratch/files" crates/forebay-python/tests >"$scratch/pytest" 2>&1
status=$?
cat "$scratch/pytest"
number() { grep -oE "[0-9]+ $1" <<<"$(tail -n 1 "$scratch/pytest")" | grep -oE '[0-9]+' || echo 0; }
passed=$((passed + $(number passed)))
failed=$((failed + $(number failed) + $(number 'error')))
skipped=$(number skipped)
((status == 0 || failed > 0)) || { printf 'FAIL  pytest has ended with %d\n' "$status" && failed=$((failed + 1)); }
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
