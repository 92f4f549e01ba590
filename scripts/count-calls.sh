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

bin=${FOREBAY_TEST_BIN:-}
# It is no setting of Forebay's, which says so.
unset FOREBAY_TEST_BIN
if [[ -z $bin ]]; then
    cargo build --quiet --release -p forebay-cli -p forebay-preload
    bin=$PWD/target/release
fi
forebay=$bin/forebay
[[ -x $forebay ]] || usage "there is no $forebay"

scratch=$(mktemp -d "$dir/forebay-calls-XXXXXX")
daemon=''
finish() {
    [[ -z $daemon ]] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null || true
    rm -rf "$scratch"
}
trap finish EXIT
mkdir "$scratch/files"
cc -O2 -o "$scratch/life" bench/programs/life.c

export FOREBAY_SESSION=count-calls-$$
"$forebay" daemon >"$scratch/daemon.out" 2>&1 &
daemon=$!
for ((tries = 0; tries < 200; tries++)); do
    [[ ! -s $scratch/daemon.out ]] || break
    sleep 0.05
done
kill -0 "$daemon" 2>/dev/null || usage "no session: $(cat "$scratch/daemon.out")"

# counted SIDE FILES: what `strace -c` says, a line for each kind of call: calls, name.
counted() {
    local -a under=()
    case $1 in
    forebay) under=("$forebay" run --) ;;
    managed) under=(env FOREBAY_SMALL_FILE_BYTES=0 FOREBAY_LARGE_FILE_BYTES=0 "$forebay" run --) ;;
    esac
    (cd "$scratch/files" && "${under[@]}" strace -f -c -o "$scratch/counts" \
        "$scratch/life" "$2" "$writes" "$bytes" "$steps" >/dev/null)
    rm -rf "${scratch:?}/files"/*
    # The number of calls is the fourth column, errors may follow it, the name is the last.
    awk '$1 ~ /^[0-9.]+$/ && $NF != "total" { print $4, $NF }' "$scratch/counts"
}

for side in kernel forebay managed; do
    for files in 20 120; do
        counted "$side" "$files" | sed "s/^/$side $files /" >>"$scratch/all"
    done
done

awk -v json="$json" -v writes="$writes" -v bytes="$bytes" -v steps="$steps" '
    { sum[$1, $4] += ($2 == 120 ? $3 : -$3); names[$4] = 1 }
    END {
        count = split("kernel forebay managed", sides, " ")
        for (name in names) {
            most = 0
            for (i = 1; i <= count; i++) {
                life[i, name] = sum[sides[i], name] / 100
                total[i] += life[i, name]
                if (life[i, name] > most) most = life[i, name]
            }
            # What a process does once now and then is no part of a life.
            if (most >= 0.05) order[++kinds] = sprintf("%012.2f %s", 1e8 - most, name)
        }
        for (i = 2; i <= kinds; i++)
            for (j = i; j > 1 && order[j] < order[j - 1]; j--) { keep = order[j]; order[j] = order[j - 1]; order[j - 1] = keep }
        if (json) printf "{\"writes\": %d, \"bytes\": %d, \"steps\": \"%s\", \"calls\": {", writes, bytes, steps
        else printf "%-20s %10s %10s %10s\n", "calls of a life", "kernel", "forebay", "managed"
        for (i = 1; i <= kinds; i++) {
            split(order[i], part, " "); name = part[2]
            if (json)
                printf "%s\"%s\": [%.2f, %.2f, %.2f]", (i > 1 ? ", " : ""), name, life[1, name], life[2, name], life[3, name]
            else
                printf "%-20s %10.2f %10.2f %10.2f\n", name, life[1, name], life[2, name], life[3, name]
        }
        if (json) printf "}, \"all\": [%.2f, %.2f, %.2f]}\n", total[1], total[2], total[3]
        else printf "%-20s %10.2f %10.2f %10.2f\n", "all", total[1], total[2], total[3]
    }' "$scratch/all"
