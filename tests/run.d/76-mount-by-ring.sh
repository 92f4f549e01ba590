#!/usr/bin/env bash
# The tests of mounts with requests by io_uring (`forebay mount --ring always`): the kernel's switch is put on for them, and back in the end.
#
# $FOREBAY_TEST_BIN: a directory with the test programs `mount` and `forebay_fuse`, instead of debug builds made here.
# Root, and Linux 6.14 or later; elsewhere it is skipped.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1

away() {
    echo "$1"
    exit 77
}
switch=/sys/module/fuse/parameters/enable_uring
none='this kernel sends no requests by io_uring, or it is switched off'
[[ -e /dev/fuse ]] || away 'there is no /dev/fuse'
[[ -e $switch ]] || away "$none"
[[ $(id -u) == 0 ]] || away "$none, and only root can switch it on"
for name in $(compgen -e | grep '^FOREBAY_' | grep -v '^FOREBAY_TEST_'); do unset "$name"; done
bin=${FOREBAY_TEST_BIN:-}
unset FOREBAY_TEST_BIN
before=$(<"$switch")
trap 'echo "$before" >"$switch"' EXIT
echo Y 2>/dev/null >"$switch" || away "$none: it cannot be written"

# shellcheck source=tests/lib/results.sh
. tests/lib/results.sh
units=(cargo test -q -p forebay-fuse --lib)
mounts=(cargo test -q -p forebay-cli --test mount)
if [[ -x $bin/mount && -x $bin/forebay_fuse ]]; then
    units=("$bin/forebay_fuse") mounts=("$bin/mount")
else
    cargo build --quiet -p forebay-cli -p forebay-preload || exit 1
fi
run 'rings of this kernel' "${units[@]}" transport::ring
FOREBAY_TEST_RING=always run 'mounts by io_uring' "${mounts[@]}"
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
