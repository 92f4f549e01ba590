# shellcheck shell=bash
# Installing what is missing. Source it with $needed set (a line for each: program, package, what it is for) and the name
# that messages begin with as its argument. A module of the system's Python is written python3:MODULE.

what=$1

# System programs are often not on an ordinary user's PATH.
PATH=$PATH:/usr/sbin:/sbin

packages=()
while read -r program package purpose; do
    [ -n "$program" ] || continue
    case $program in
    python3:*) /usr/bin/python3 -c "import ${program#*:}" 2>/dev/null && continue ;;
    *) command -v "$program" >/dev/null && continue ;;
    esac
    printf '%s: %s is missing; package %s, for %s\n' "$what" "$program" "$package" "$purpose"
    packages+=("$package")
done <<<"$needed"
[ ${#packages[@]} -gt 0 ] || return 0

if ! command -v apt-get >/dev/null; then
    printf '%s: this system has no apt-get; install what provides the programs above\n' "$what" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    printf '%s: only root can install; run: sudo apt-get install %s\n' "$what" "${packages[*]}" >&2
    exit 1
fi
printf '%s: installing %s\n' "$what" "${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
install_log=$(mktemp)
trap 'rm -f "$install_log"' EXIT
if ! { apt-get update && apt-get install --yes --no-install-recommends "${packages[@]}"; } \
    >"$install_log" 2>&1; then
    tail -n 20 "$install_log" >&2
    printf '%s: apt-get could not install %s\n' "$what" "${packages[*]}" >&2
    exit 1
fi
