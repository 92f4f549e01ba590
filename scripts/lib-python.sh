# shellcheck shell=bash
# The modules of Python that tests use beside the system's. Source it.
#
#   $python_modules         the folder that they are installed in, for these versions
#   $python_tools           the folder of what builds and tests the Python package, for these versions
#   python_has MODULE...    whether the system's Python can import them
#   python_wheel FOLDER     builds the wheel for $python, the system's Python unless it is set, into a folder

python_modules=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay/python-1
python_tools=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay/python-tools-1

python_has() {
    local module
    for module in "$@"; do
        PYTHONPATH=$python_modules /usr/bin/python3 -c "import $module" >/dev/null 2>&1 || return 1
    done
}

python_wheel() {
    "$python_tools/bin/maturin" build --manifest-path crates/forebay-python/Cargo.toml --target-dir "$PWD/${CARGO_TARGET_DIR:-target}" \
        --auditwheel skip --interpreter "${python:-/usr/bin/python3}" --out "$1"
}
