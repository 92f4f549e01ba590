#!/usr/bin/env bash
# All kinds of programs at once in one small session, while its keeper and writers are killed
# again and again, and any process of the session is stopped for up to four seconds.
#
# Each of $MIXED_WORKERS (4) workers runs one program after the other, chosen by the seed, plainly and under Forebay: what they say,
# how they end and the files that an outsider finds must be the same. Two more workers write records and note which have been
# acknowledged, are killed in the middle, and are held to their notes.
#
# $MIXED_MINUTES (30), $SOAK_SEED (printed), $FOREBAY_MEMORY (40 MiB), $FOREBAY_TEST_KINDS (one after the other: xfs ext4).
# $FOREBAY_TEST_BIN: a directory with forebay and its library, instead of a release build made here.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1
export FOREBAY_MEMORY=${FOREBAY_MEMORY:-40MiB}
# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh
# shellcheck source=tests/programs/lib.sh
. tests/programs/lib.sh
# shellcheck source=scripts/lib-python.sh
. scripts/lib-python.sh

away() {
    echo "$1"
    exit 77
}
[[ $(id -u) -eq 0 && -e /dev/loop-control ]] || away "no root or no loop devices, so nothing can be mounted"
for tool in mkfs.xfs mkfs.ext4 losetup fio sqlite3 git gcc g++ make python3 rsync; do
    command -v "$tool" >/dev/null || away "$tool is missing (scripts/install-test-deps.sh installs it)"
done
bin=${FOREBAY_TEST_BIN:-${CARGO_TARGET_DIR:-target}/release}
[[ -n ${FOREBAY_TEST_BIN:-} ]] || cargo build --quiet --release -p forebay-cli -p forebay-preload || exit 1
kinds=${FOREBAY_TEST_KINDS:-xfs ext4} minutes=${MIXED_MINUTES:-30} workers=${MIXED_WORKERS:-4}
SOAK_SEED=${SOAK_SEED:-$RANDOM}
printf 'SOAK_SEED=%s MIXED_MINUTES=%s MIXED_WORKERS=%s\n' "$SOAK_SEED" "$minutes" "$workers"

mounts_begin
mounts_tmpfs store 6G
store=$MOUNTS/store
install -d -m 755 "$store/bin"
install -m 755 "$bin/forebay" "$bin/libforebay_preload.so" "$store/bin/"
fsx=$PWD/${CARGO_TARGET_DIR:-target}/tools/bin/fsx
if [[ -x $fsx ]]; then install -m 755 "$fsx" "$store/bin/"; fi
g++ -O1 -std=c++17 -pthread -o "$store/bin/streams" tests/programs/streams.cpp || exit 1
forebay=$store/bin/forebay
for name in $(compgen -e | grep '^FOREBAY_' | grep -v -E '^FOREBAY_(MEMORY|SMALL_FILE_BYTES|LARGE_FILE_BYTES|CLOSE_BEHIND_BYTES)$'); do unset "$name"; done
install -d "$store/arenas" "$store/home" "$store/home/state" "$store/notes"
export HOME=$store/home XDG_CONFIG_HOME=$store/home XDG_STATE_HOME=$store/home/state TOOLS=$store/bin TESTS=$PWD/tests/programs
export FOREBAY_ARENA_DIR=$store/arenas GIT_CONFIG_NOSYSTEM=1 GIT_COMMITTER_DATE='1750000000 +0000' EMAIL=name@example.org
# shellcheck source=tests/programs/mixed.sh
. tests/programs/mixed.sh

for kind in $kinds; do
    export FOREBAY_SESSION=mixed-$kind-$$
    mounts_make "$kind" "$store" 2G "mkfs.$kind" -q
    WHERE=$MOUNTS/$kind
    mixed "$kind" "$minutes"
done
programs_end
