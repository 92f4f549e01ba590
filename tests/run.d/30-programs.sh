#!/usr/bin/env bash
# Ordinary programs under `forebay run`, on XFS and ext4: what they say, how they end and the files that an outsider finds
# afterwards are the same as without; and what happens when something dies, fills up or is missing.
#
# $SOAK_SECONDS and $SOAK_SEED, set by tests/soak.d/30-programs.sh: fio and fsx for so long, on every file system.
# $CORPUS_SCALE: how large the largest programs' files are, 1 every day; $FOREBAY_TEST_STORE, $FOREBAY_TEST_DEVICE: the memory
# for the file systems together, and for each.
# $FOREBAY_TEST_BIN: a directory with forebay and its library, instead of a debug build made here. $ONLY: a pattern of tests.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1
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

[[ $(id -u) -eq 0 ]] || away "not root, so nothing can be mounted"
for tool in mkfs.xfs mkfs.ext4 mkfs.btrfs losetup setpriv unshare fio sqlite3 git gcc python3; do
    command -v "$tool" >/dev/null || away "$tool is missing (scripts/install-test-deps.sh installs it)"
done
[[ -e /dev/loop-control ]] || away "no loop devices"

bin=${FOREBAY_TEST_BIN:-}
if [[ -z $bin ]]; then
    cargo build --quiet -p forebay-cli -p forebay-preload || away "forebay does not build"
    bin=${CARGO_TARGET_DIR:-target}/debug
fi

mounts_begin
mounts_tmpfs store "${FOREBAY_TEST_STORE:-3G}"
store=$MOUNTS/store
install -d -m 755 "$store/bin"
install -m 755 "$bin/forebay" "$bin/libforebay_preload.so" "$store/bin/"
for tool in fsx pjdfstest; do
    built=$PWD/${CARGO_TARGET_DIR:-target}/tools/bin/$tool
    [[ ! -x $built ]] || install -m 755 "$built" "$store/bin/"
done
FSX=$store/bin/fsx PJDFSTEST=$store/bin/pjdfstest
forebay=$store/bin/forebay

kinds=${FOREBAY_TEST_KINDS:-xfs ext4}
# Whatever this user's environment says about Forebay, and his own sessions, are left out of it.
for name in $(compgen -e | grep '^FOREBAY_' | grep -v -E '^FOREBAY_(MEMORY|SMALL_FILE_BYTES|LARGE_FILE_BYTES|CLOSE_BEHIND_BYTES)$'); do unset "$name"; done
# Of several users: whoever comes first must not keep it to himself.
install -d -m 1777 "$store/arenas" "$store/home" "$store/home/state" "$store/home/state/forebay"
export HOME=$store/home XDG_CONFIG_HOME=$store/home XDG_STATE_HOME=$store/home/state
export FOREBAY_ARENA_DIR=$store/arenas FOREBAY_SESSION=programs-$$

for kind in $kinds; do
    case $kind in
    xfs) mounts_make xfs "$store" "${FOREBAY_TEST_DEVICE:-1G}" mkfs.xfs -q ;;
    *) mounts_make "$kind" "$store" "${FOREBAY_TEST_DEVICE:-1G}" "mkfs.$kind" -q ;;
    esac
    mkdir -m 1777 "$MOUNTS/$kind/files"
done
first=${kinds%% *}

FSX_OPS=${FSX_OPS:-1500}
for kind in $kinds; do
    export WHERE=$MOUNTS/$kind/files
    printf '== on %s\n' "$kind"
    # shellcheck source=tests/programs/same.sh
    . tests/programs/same.sh
    if [[ -n ${SOAK_SECONDS:-} ]]; then
        # shellcheck source=tests/programs/soak.sh
        . tests/programs/soak.sh
    fi
    [[ $kind == "$first" ]] || continue
    # shellcheck source=tests/programs/verify.sh
    . tests/programs/verify.sh
    # shellcheck source=tests/programs/troubles.sh
    . tests/programs/troubles.sh
    # shellcheck source=tests/programs/bigger.sh
    . tests/programs/bigger.sh
    # shellcheck source=tests/programs/corpus.sh
    . tests/programs/corpus.sh
    # shellcheck source=tests/programs/suites.sh
    . tests/programs/suites.sh
    # shellcheck source=tests/programs/databases.sh
    . tests/programs/databases.sh
done
"$store/bin/forebay" stat --session "$FOREBAY_SESSION" 2>&1 || true

# The daemons leave by themselves; what they hold must be free before it is taken down.
for _ in $(seq 150); do
    pgrep -f "$store/bin/forebay daemon" >/dev/null || break
    sleep 0.1
done
programs_end
