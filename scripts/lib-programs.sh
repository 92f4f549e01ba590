# shellcheck shell=bash
# What scripts that run programs with and without Forebay share. Source it in the repository's root; everything that it
# makes is taken down when the shell ends, however it ends.
#
#   programs_begin NAME          builds (or takes what $FOREBAY_TEST_BIN has), and sets $forebay, $root (a scratch directory)
#                                and a session of its own
#   programs_device KIND MIB     sets $files, a directory on a file system KIND of MIB MiB in memory, all of which have been
#                                touched, and $device, which says so; fails where that cannot be had
#   programs_directory DIR       sets $files, a fresh directory in DIR, and $device
#   programs_daemon OPTION...    starts the session's daemon and waits until it is ready; its process is in $daemon
#
# $undo lists what is taken down at the end, newest last.

# shellcheck source=tests/lib/mounts.sh
. tests/lib/mounts.sh

undo=()
PATH=$PATH:/usr/sbin:/sbin

programs_begin() {
    local bin=${FOREBAY_TEST_BIN:-${CARGO_TARGET_DIR:-target}/release} name
    if [[ -z ${FOREBAY_TEST_BIN:-} ]]; then
        printf 'building (release)\n' >&2
        cargo build --quiet --release -p forebay-cli -p forebay-preload || exit 1
    fi
    forebay=$(readlink -f "$bin/forebay")
    mounts_begin
    root=$MOUNTS/work
    mkdir "$root" || exit 1
    trap programs_end EXIT
    # Neither the user's settings nor his sessions shall matter.
    for name in $(compgen -e | grep '^FOREBAY_'); do unset "$name"; done
    export FOREBAY_SESSION=$1-$$ XDG_STATE_HOME=$root/state XDG_CONFIG_HOME=$root/config LC_ALL=C
}

programs_end() {
    trap - EXIT
    local at
    for ((at = ${#undo[@]} - 1; at >= 0; at--)); do
        # shellcheck disable=SC2086 # words
        ${undo[at]} || printf 'left behind: %s\n' "${undo[at]}" >&2
    done
    undo=()
    [[ -z $MOUNTS ]] || rm -rf --one-file-system "$root"
    mounts_end
}

programs_device() {
    local kind=$1 mib=$2
    [[ $(id -u) -eq 0 && -e /dev/loop-control ]] || return 1
    mounts_tmpfs memory "$((mib + 64))M" &&
        mounts_make "$kind" "$MOUNTS/memory" "${mib}M" "mkfs.$kind" -q && mountpoint -q "$MOUNTS/$kind" || return 1
    # shellcheck disable=SC2034 # the callers'
    files=$MOUNTS/$kind device="$kind on a file in memory"
    # Space of the image that is touched for the first time costs the host more than the copy: were some left, which side gets it would decide
    # who is faster. The disk becomes full by it, so this fails.
    dd if=/dev/zero of="$MOUNTS/$kind/fill" bs=1M conv=fsync 2>/dev/null || true
    rm "$MOUNTS/$kind/fill"
}

programs_directory() {
    files=$(mktemp -d "$1/forebay-programs.XXXXXX") || exit 1
    undo+=("rm -rf --one-file-system $files")
    # shellcheck disable=SC2034 # the callers'
    device="the directory $1 ($(stat -f -c %T "$1"))"
}

programs_daemon() {
    local said
    mkfifo "$root/ready"
    "$forebay" daemon --until-idle 120 --ready-fd 3 "$@" 3>"$root/ready" 2>"$root/daemon" &
    daemon=$!
    undo+=(programs_end_daemon)
    # The fifo has a writer as soon as the daemon runs; without one this ends with the time.
    read -r -t 60 said <"$root/ready" || {
        cat "$root/daemon" >&2
        return 1
    }
    printf '%s\n' "${said#forebay: }" >&2
}

# The daemon flushes what is owed, and its file system cannot be unmounted before.
programs_end_daemon() {
    kill "$daemon" 2>/dev/null
    wait "$daemon"
    (($? == 0)) || cat "$root/daemon" >&2
}
