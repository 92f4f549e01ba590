#!/usr/bin/env bash
# Runs container.sh in the directory where it is started, in namespaces of its own for mounts, processes and, if that is asked for, users:
# contained.sh within|bound [--user]. "within": the container's root lies in this directory, and so its programs do. "bound": its root is elsewhere, and
# this directory is bound into it, as `docker run -v` does. $S: a folder outside.
set -eu
sources=$(dirname "$0")
kind=$1 namespaces=(-m -p -f)
[[ ${2:-} != --user ]] || namespaces+=(-U -r)
mkdir work
root=$PWD/tree
[[ $kind == within ]] || root=$(mktemp -d -p "$S")
mkdir -p "$root"/{bin,dev,proc,work}
touch "$root/dev/null"
cp "$(command -v busybox)" "$root/bin/busybox"
for name in $(busybox --list); do [[ $name == busybox ]] || ln -s busybox "$root/bin/$name"; done
# This one is not in it, and has libraries.
for file in "$(command -v flock)" $(ldd "$(command -v flock)" | grep -o '/[^ ]*'); do install -D "$file" "$root$file"; done
cp "$sources/container.sh" "$root/bin/"
export root kind work=$PWD/work
unshare "${namespaces[@]}" sh -c 'mount -t proc proc "$root/proc" && mount --bind /dev/null "$root/dev/null" && mount --bind "$work" "$root/work" &&
    exec chroot "$root" /bin/sh /bin/container.sh /work' &
until [[ -e work/told ]] || ! kill -0 $! 2>/dev/null; do sleep 0.1; done
if flock -n work/locked true; then echo 'not locked'; else echo 'locked'; fi
echo 'seen from outside' >work/seen
wait $!
[[ $kind == within ]] || rm -rf --one-file-system "$root"
