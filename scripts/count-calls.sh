#!/usr/bin/env bash
# The system calls of a file's life, without Forebay, with it, and managed from the first byte on.
#
#     scripts/count-calls.sh [--dir DIR] [--writes N] [--bytes N] [--steps STEPS] [--json]
#     scripts/count-calls.sh --steps scomcu --writes 32 --bytes 65536     # a table: synced, closed, mapped, removed
#
# A program makes files one after the other, writes each by --writes (25) calls of --bytes (4000), and does with it what --steps
# (corcu: close, open, read, close, unlink) says; bench/programs/life.c explains the letters. `strace -c` counts the calls of
# 20 files and of 120: the difference is that of 100 lives, without what a process costs. The keeper's own calls are not
# among them. Files lie in --dir (a new directory in TMPDIR), and are removed. The session is one of its own.
# $FOREBAY_TEST_BIN: a directory with forebay and its library, instead of a release build made here.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

usage() {
    printf 'count-calls: %s\n' "$1" >&2
    sed -n '4,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

dir=${TMPDIR:-/tmp} writes=25 bytes=4000 steps=corcu json=''
while (($# > 0)); do
    case $1 in
    --dir | --writes | --bytes | --steps)
        (($# > 1)) || usage "$1 needs a value"
        printf -v "${1#--}" %s "$2"
        shift
        ;;
    --json) json=1 ;;
    -h | --help)
        sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'
        exit
        ;;
    *) usage "there is no option $1" ;;
    esac
    shift
done
for number in "$writes" "$bytes"; do
    [[ $number =~ ^[1-9][0-9]{0,8}$ ]] || usage "$number is no number of anything"
done
[[ $steps =~ ^[scormpu]+$ ]] || usage "--steps has letters of scormpu, see bench/programs/life.c"
[[ -d $dir ]] || usage "--dir: there is no directory $dir"
for tool in strace cc; do
    command -v "$tool" >/dev/null || usage "$tool is missing: install it, or run scripts/install-test-deps.sh, which does"
done

# shellcheck source=scripts/lib-programs.sh
. scripts/lib-programs.sh
programs_begin count-calls
programs_directory "$dir"
cc -O2 -o "$root/life" bench/programs/life.c
programs_daemon

# counted SIDE FILES: what `strace -c` says, a line for each kind of call: calls, name.
counted() {
    local -a under=()
    case $1 in
    forebay) under=("$forebay" run --) ;;
    managed) under=(env FOREBAY_SMALL_FILE_BYTES=0 FOREBAY_LARGE_FILE_BYTES=0 "$forebay" run --) ;;
    esac
    (cd "$files" && "${under[@]}" strace -f -c -o "$root/counts" \
        "$root/life" "$2" "$writes" "$bytes" "$steps" >/dev/null)
    rm -rf "${files:?}"/*
    # The number of calls is the fourth column, errors may follow it, the name is the last.
    awk '$1 ~ /^[0-9.]+$/ && $NF != "total" { print $4, $NF }' "$root/counts"
}

# A line for each kind of call: the most of a side, the name, and each side's calls of a life. The sum of all comes last.
by_kind() {
    awk '{ kind = $4; kinds[kind] = 1; life[kind, $1] += ($2 == 120 ? $3 : -$3) / 100 }
        function line(kind, most) { print most, kind, life[kind, "kernel"] + 0, life[kind, "forebay"] + 0, life[kind, "managed"] + 0 }
        END {
            split("kernel forebay managed", sides, " ")
            for (kind in kinds) {
                most = 0
                for (i in sides) {
                    calls = life[kind, sides[i]]
                    life["all", sides[i]] += calls
                    if (calls > most) most = calls
                }
                # What a process does once now and then is no part of a life.
                if (most >= 0.05) line(kind, most)
            }
            line("all", 0)
        }' | sort -k1,1gr -k2,2
}

for side in kernel forebay managed; do
    for lives in 20 120; do
        counted "$side" "$lives" | sed "s/^/$side $lives /"
    done
done | by_kind >"$root/kinds"

if [[ -n $json ]]; then
    awk -v head="{\"writes\": $writes, \"bytes\": $bytes, \"steps\": \"$steps\", \"calls\": {" '
        { calls = sprintf("\"%s\": [%.2f, %.2f, %.2f]", $2, $3, $4, $5) }
        $2 == "all" { printf "%s}, %s}\n", head, calls; next }
        { head = head separator calls; separator = ", " }' "$root/kinds"
else
    printf '%-20s %10s %10s %10s\n' 'calls of a life' kernel forebay managed
    awk '{ printf "%-20s %10.2f %10.2f %10.2f\n", $2, $3, $4, $5 }' "$root/kinds"
fi
