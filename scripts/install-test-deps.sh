#!/usr/bin/env bash
# Installs the programs that the tests call, where they are missing. Quick and silent if none is.
set -u

# program, package, what it is for
needed='
mkfs.ext4   e2fsprogs    tests on a real ext4
mkfs.xfs    xfsprogs     tests on a real xfs
mkfs.btrfs  btrfs-progs  tests on a real btrfs
losetup     mount        file systems in files
setpriv     util-linux   the same tests as an unprivileged user
'

# System programs are often not on an ordinary user's PATH.
PATH=$PATH:/usr/sbin:/sbin

packages=()
while read -r program package purpose; do
    [ -n "$program" ] || continue
    command -v "$program" >/dev/null && continue
    printf 'test tools: %s is missing; package %s, for %s\n' "$program" "$package" "$purpose"
    packages+=("$package")
done <<<"$needed"
[ ${#packages[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    printf 'test tools: this system has no apt-get; install what provides the programs above\n' >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    printf 'test tools: only root can install; run: sudo apt-get install %s\n' "${packages[*]}" >&2
    exit 1
fi
printf 'test tools: installing %s\n' "${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
install_log=$(mktemp)
trap 'rm -f "$install_log"' EXIT
if ! { apt-get update && apt-get install --yes --no-install-recommends "${packages[@]}"; } \
    >"$install_log" 2>&1; then
    tail -n 20 "$install_log" >&2
    printf 'test tools: apt-get could not install %s\n' "${packages[*]}" >&2
    exit 1
fi
