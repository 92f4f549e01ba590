#!/usr/bin/env bash
# The same programs without and with Forebay, one after the other, on a fast device: how long, how many bytes went which way,
# and whether the files are the same.
#
# Installs what is missing, builds, makes XFS on a file in memory (a plain directory where that cannot be had, or the one
# named by $DEMO_DIR), and takes everything down again. $DEMO_ROUNDS (3), $DEMO_MIB (384): how often, and how much each
# program writes.
set -Euo pipefail
cd "$(dirname "$0")/.." || exit 1
rounds=${DEMO_ROUNDS:-3} mib=${DEMO_MIB:-384}
bash scripts/install-demo-deps.sh || exit 1
# shellcheck source=scripts/lib-programs.sh
. scripts/lib-programs.sh
programs_begin demo

if [[ -n ${DEMO_DIR:-} ]]; then
    programs_directory "$DEMO_DIR"
elif ! programs_device xfs "$((mib * 8 + 512))"; then
    programs_directory "$root"
    device="a plain directory, for want of root or loop devices: $root"
fi
mkdir "$files/plain" "$files/managed"

# The session's memory is touched before anything is measured, as the kernel's is by `warm` below.
programs_daemon --mem 2GiB --warm || exit 1

# A virtual machine may give memory that nobody has used for some seconds back to its host, in pieces of 2 MiB. Who takes such a piece pays some
# milliseconds for it, and others get the memory of a file that has just gone. So such a file comes and goes right before each run: more than the run
# writes, on the same file system, by large requests, since its cache then consists of pieces as large as a program's.
warm() {
    dd if=/dev/zero of="$files/warm" bs=1M count=$((mib * 3 / 2)) status=none
    rm "$files/warm"
}

fio=(fio --name=demo --filename=file --ioengine=psync --thread --gtod_reduce=1 --clocksource=clock_gettime
    --randrepeat=1 --randseed=7 --output-format=json --output=../fio.json --size="${mib}M" --fallocate=none)
checkpoint="
import random, sys
blob = random.Random(7).randbytes(1 << 20)
with open('file', 'wb') as f:
    for part in range($mib): f.write(blob)
with open('file', 'rb') as f:
    while data := f.read(1 << 20): assert data == blob"
sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
[[ -d $sources ]] || sources=$PWD

# Name, and the command; it writes the file `file` in the current directory.
names=(
    'fio, 4 KiB one after the other'
    'fio, about 4 KiB at any byte, file not in memory'
    'fio, 1 MiB and fsync'
    'dd, 64 KiB'
    'tar, an archive of sources'
    'python, a checkpoint and back'
)
run_0=("${fio[@]}" --rw=write --bs=4k)
run_1=("${fio[@]}" --rw=randwrite --bsrange=3500-4600 --bs_unaligned --io_size="$((mib / 8))M" --overwrite=1)
run_2=("${fio[@]}" --rw=write --bs=1m --end_fsync=1)
run_3=(dd if=/dev/zero of=file bs=64k count=$((mib * 16)) status=none)
run_4=(tar cf file -C "$sources" .)
run_5=(python3 -c "$checkpoint")

# prepare PROGRAM SIDE
prepare() {
    local dir=$files/$2
    if [[ $1 -eq 1 ]]; then
        # It overwrites a file, which nobody has in memory.
        [[ -e $root/base ]] || dd if=/dev/urandom of="$root/base" bs=1M count="$mib" status=none
        cp --reflink=never "$root/base" "$dir/file"
    else
        rm -f "$dir/file"
    fi
    sync -f "$files"
    "$forebay" evict "$dir/file" >/dev/null 2>&1
    rm -f "$files/fio.json"
    warm
}

# once PROGRAM SIDE: prints the program's own seconds, and those until the device has every byte for good.
once() {
    local -n command=run_$1
    local side=$2 before returned durable own
    prepare "$1" "$side"
    before=$EPOCHREALTIME
    if [[ $side == plain ]]; then
        (cd "$files/$side" && "${command[@]}" </dev/null) >"$root/said" 2>&1
    else
        (cd "$files/$side" && "$forebay" run --require --mem 2GiB --report="$root/report" --json -- \
            "${command[@]}" </dev/null) >"$root/said" 2>&1
    fi || {
        printf '%s, %s side: exit %d\n' "${names[$1]}" "$side" $?
        cat "$root/said"
        exit 1
    } >&2
    returned=$EPOCHREALTIME
    sync -d "$files/$side/file"
    durable=$EPOCHREALTIME
    if [[ -e $files/fio.json ]]; then
        own=$(python3 -c "import json; print(json.load(open('$files/fio.json'))['jobs'][0]['write']['runtime'] / 1000)")
    elif [[ $side == managed ]]; then
        own=$(python3 -c "import json; print(json.load(open('$root/report'))['run_seconds'])")
    else
        own=$(awk "BEGIN { print $returned - $before }")
    fi
    awk "BEGIN { print $own, $durable - $before }"
}

median() { printf '%s\n' "$@" | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
of_report() { python3 -c "import json; print(json.load(open('$root/report'))['session']['$1'])"; }
mib_of() { awk "BEGIN { printf \"%.0f\", $1 / 1048576 }"; }

printf 'device: %s; %d MiB for each program, medians of %d, without and with in turn\n' "$device" "$mib" "$rounds"
printf 'own time: the program itself (fio: what it says); durable: from its start until the device has every byte for good\n\n'
printf '%-49s %-24s %-24s\n' '' '        own time' '        durable'
printf '%-49s %7s %7s %7s  %7s %7s %7s  %s\n' '' without with ratio without with ratio 'MiB memory/device/kernel, held'
differ=0 faster=0 managed_programs=0
ratio() { awk "BEGIN { print $1 / $2 }"; }
for program in "${!names[@]}"; do
    own_plain=() own_managed=() plain=() managed=()
    for ((round = 0; round <= rounds; round++)); do
        a=$(once "$program" plain) || exit 1
        b=$(once "$program" managed) || exit 1
        # The first round warms up.
        ((round == 0)) || own_plain+=("${a% *}") plain+=("${a#* }") own_managed+=("${b% *}") managed+=("${b#* }")
    done
    own_a=$(median "${own_plain[@]}") own_b=$(median "${own_managed[@]}")
    a=$(median "${plain[@]}") b=$(median "${managed[@]}")
    # Where the engine had nothing of the file both sides are the kernel, and differ by chance.
    by_engine=$(($(of_report scrap_bytes) + $(of_report direct_bytes)))
    printf '%-49s %6.3fs %6.3fs %7.2f  %6.3fs %6.3fs %7.2f  %s/%s/%s, %s%s\n' "${names[program]}" \
        "$own_a" "$own_b" "$(ratio "$own_a" "$own_b")" "$a" "$b" "$(ratio "$a" "$b")" \
        "$(mib_of "$(of_report scrap_bytes)")" "$(mib_of "$(of_report direct_bytes)")" \
        "$(mib_of "$(of_report kernel_bytes)")" "$(mib_of "$(of_report memory_held_bytes)")" \
        "$( ((by_engine > 0)) || echo ', left to the kernel')"
    if ((by_engine > 0)); then
        managed_programs=$((managed_programs + 1))
        if awk "BEGIN { exit !($a > $b) }"; then faster=$((faster + 1)); fi
    fi
    if ! cmp "$files/plain/file" "$files/managed/file"; then
        differ=$((differ + 1))
    fi
done
printf '\n'
if ((differ > 0)); then
    printf 'demo: %d of %d files DIFFER\n' "$differ" "${#names[@]}"
    exit 1
fi
printf 'demo: %d programs, the same bytes with and without; %d left to the kernel, %d of the other %d sooner durable with Forebay\n' \
    "${#names[@]}" $((${#names[@]} - managed_programs)) "$faster" "$managed_programs"
