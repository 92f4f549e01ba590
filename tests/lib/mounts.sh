# shellcheck shell=bash
# File systems for tests: loop files in memory, mounted under a directory of their own, and always
# taken down again. Source it, then call `mounts_begin`, which sets $MOUNTS and a trap.
#
#   mounts_begin            a fresh directory in $MOUNTS, taken down when the shell exits
#   mounts_tmpfs NAME SIZE [OPTIONS]
#                           a tmpfs on $MOUNTS/NAME
#   mounts_make NAME DIR SIZE MKFS...
#                           a file of SIZE in DIR, made a file system by MKFS, on $MOUNTS/NAME
#                           ($MOUNTS_LOSETUP: options for losetup)
#   mounts_trim NAME        gives back what the files that are gone from $MOUNTS/NAME took of the memory
#   mounts_overlay NAME DIR an overlay over an empty directory, changes going to DIR
#   mounts_end              takes everything down now
#
# Nothing here is quiet about a failure: a mount that cannot be undone is named.

MOUNTS=""
MOUNTS_STACK=()  # what to undo, newest last: "mount PATH" or "loop DEVICE"

mounts_begin() {
    MOUNTS=$(mktemp -d "${TMPDIR:-/tmp}/forebay-mounts.XXXXXX")
    chmod 755 "$MOUNTS"
    trap mounts_end EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

mounts_tmpfs() {
    local name=$1 size=$2
    mkdir "$MOUNTS/$name"
    mount -t tmpfs -o "size=$size,mode=1777${3:+,$3}" forebay-tests "$MOUNTS/$name"
    MOUNTS_STACK+=("mount $MOUNTS/$name")
}

mounts_make() {
    local name=$1 dir=$2 size=$3
    shift 3
    truncate -s "$size" "$dir/$name.img"
    "$@" "$dir/$name.img" >/dev/null
    local device
    # shellcheck disable=SC2086 # options, or nothing
    device=$(losetup --find --show ${MOUNTS_LOSETUP:-} "$dir/$name.img")
    MOUNTS_STACK+=("loop $device")
    mkdir "$MOUNTS/$name"
    mount "$device" "$MOUNTS/$name"
    MOUNTS_STACK+=("mount $MOUNTS/$name")
    chmod 1777 "$MOUNTS/$name"
}

# A file system that is used for long has written everywhere once, and its image holds all of that. Without this, images
# that are larger together than the memory under them fill it, and devices begin to fail.
mounts_trim() {
    fstrim "$MOUNTS/$1"
}

mounts_overlay() {
    local name=$1 dir=$2
    mkdir "$MOUNTS/$name" "$dir/lower" "$dir/upper" "$dir/work"
    chmod 1777 "$dir/upper"
    mount -t overlay -o "lowerdir=$dir/lower,upperdir=$dir/upper,workdir=$dir/work" \
        forebay-tests "$MOUNTS/$name"
    MOUNTS_STACK+=("mount $MOUNTS/$name")
}

mounts_undo() {
    case $1 in
    mount)
        # A test that died may have left its file system frozen; unmounting would hang.
        fsfreeze --unfreeze "$2" 2>/dev/null || true
        umount "$2" || umount --lazy "$2" || echo "still mounted: $2" >&2
        ;;
    loop) losetup --detach "$2" || echo "still attached: $2" >&2 ;;
    esac
}

mounts_end() {
    local at
    for ((at = ${#MOUNTS_STACK[@]} - 1; at >= 0; at--)); do
        # shellcheck disable=SC2086 # two words
        mounts_undo ${MOUNTS_STACK[at]}
    done
    MOUNTS_STACK=()
    if [[ -n $MOUNTS ]]; then
        find "$MOUNTS" -xdev -depth -type d -empty -delete
        MOUNTS=""
    fi
}
