#!/usr/bin/env bash
# Stores on persistent memory as a kernel has it: an emulated machine with NVDIMMs boots Debian's kernel, makes ext4 and XFS with DAX on two of
# them, DAX devices of two more, ext4 without DAX on one, and leaves one a block device. Stores lie on all of them; half are worked on by the
# crate's API, half are mounted. tar, git and sqlite work on two of these before anything is cut. In the middle of that the power is cut: the emulator is
# killed. The next start finds what was acknowledged, nothing in part, the stores in order, and goes on with new ones. Not a part of `make test`: it
# takes some minutes.
#
# The emulated CPU has no cache, and what is stored to persistent memory is in its file at once: lost lines are the simulated memory's to test
# (crates/forebay-pmem/src/tests/crash.rs). Here it is the real kernel that is met: MAP_SYNC, DAX devices, sizes and errors, and, where there is
# no DAX, a page cache that is lost.
set -Eeuo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() {
    cat <<'END'
usage: scripts/test-vm.sh [--cuts N] [--seconds N] [--keep]

Stores in an emulated machine with persistent memory, and power cuts. The last line is `N passed, N failed`.

  --cuts N   how often the power is cut (3), a boot of about a minute each
  --seconds N  what it all may take, builds aside (600), but for the last boot, which has five minutes; a slow machine, on which so many cuts would
             take longer, has fewer of them, and at least one
  --keep     leaves what the machine said in target/vm/boot-*, which is otherwise shown where something failed and removed

It installs an emulator and what it needs, by apt-get, if they are missing. Debian's kernel is fetched, unpacked below target/, and not installed.
FOREBAY_TEST_BIN: a directory with forebay, instead of a debug build made here.
END
}

cuts=3 limit=600 keep=
while (($# > 0)); do
    case $1 in
    --help | -h) usage && exit ;;
    --cuts) cuts=${2:?how often} && shift ;;
    --seconds) limit=${2:?how long} && shift ;;
    --keep) keep=1 ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done
[[ $cuts =~ ^[1-9][0-9]*$ && $limit =~ ^[1-9][0-9]*$ ]] || { usage >&2 && exit 2; }

target=$PWD/${CARGO_TARGET_DIR:-target}
vm=$target/vm
mkdir -p "$vm"
scratch=$vm
# NVDIMMs, in the order of the kernel's numbers: what lies on each is in tests/lib/vm-init.sh.
nvdimms=6
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh
# shellcheck source=tests/lib/vm.sh
. tests/lib/vm.sh
# shellcheck disable=SC2034 # install.sh reads it
needed='
git     git     a program on mounted stores
gcc     gcc     one that opens files there
sqlite3 sqlite3 another one
'
. scripts/install.sh 'the emulated machine'

# Stores that the API works on, and those that are mounted; those on DAX first.
by_api=(/ext4/api /xfs/api /dev/dax3.0 /plain/api /dev/pmem5)
by_mount=(/ext4/mounted /xfs/mounted /dev/dax2.0 /plain/mounted)
# Of these, where fsx and other programs run before anything is cut.
by_programs=(/ext4/mounted /xfs/mounted /dev/dax2.0)
# Each start has another CPU, and so each of the ways to write a line back.
cpus=(max max,-clwb max,-clwb,-clflushopt)
ways=(clwb clflushopt clflush)

away() {
    vm_end
    [[ -n $keep ]] || rm -f "$vm"/boot-* "$vm/said"
}
trap away EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# last BOOT PATTERN: the last line of this kind, or an empty one.
last() {
    tr -d '\r' <"$vm/boot-$1" | grep -E "^($2)\$" | tail -n 1 | grep . || echo
}

bin=${FOREBAY_TEST_BIN:-}
if [[ -z $bin ]]; then
    cargo build --quiet -p forebay-cli
    bin=$target/debug
fi
unset FOREBAY_TEST_BIN
tests=$(cargo test --quiet -p forebay-pmem --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*\/forebay_pmem-[^"]*\)".*/\1/p' | head -n 1)
scripts/install-test-tools.sh
vm_kernel
vm_open
vm_program "$bin/forebay"
vm_program "$tests" pmem-tests
for program in git sqlite3; do vm_program "$(command -v $program)"; done
# By a name that is none of the shell's own.
vm_program "$(command -v tar)" gnutar
gcc -O2 -o "$vm/open-files" tests/lib/open-files.c
vm_program "$vm/open-files"
rm "$vm/open-files"
# A clone calls it by this name.
ln -sf git "$vm/root/bin/git-upload-pack"
if [[ -x $target/tools/bin/fsx ]]; then vm_program "$target/tools/bin/fsx"; fi
vm_close tests/lib/vm-init.sh
vm_memory
started=$SECONDS
limit=$((SECONDS + limit))

# What a boot finds of the one before: for the API's stores `PATH:SEED:COUNT`, for mounted ones `PATH:NUMBER`.
left=
judge() {
    local entry path
    expect "boot $1: what the boot before has left is judged" vm_until_heard "$1" 'ALL JUDGED' "$limit"
    for entry in $left; do
        path=${entry#*=} && path=${path%%:*}
        case $entry in
        programs=*) expect "boot $1: $path has what programs have left (${entry#*:})" vm_heard "$1" "LEFT BY PROGRAMS $path 0" ;;
        api=*) expect "boot $1: $path has what was synced, and is in order (${entry#*:})" vm_heard "$1" "JUDGED $path 0" ;;
        *) expect "boot $1: mounted, $path has what was acknowledged, whole and in order (${entry#*:})" vm_heard "$1" "FOUND $path 0 .*" ;;
        esac
    done
}

for ((number = 0; number < cuts; number++)); do
    # Another boot like those before, and the one that judges it: on a slow machine there is no time for them.
    if ((number > 0 && SECONDS + 2 * (SECONDS - started) / number > limit)); then
        printf 'the machine is slow: %d of %d power cuts\n' "$number" "$cuts"
        break
    fi
    vm_cpu=${cpus[number % ${#cpus[@]}]}
    # shellcheck disable=SC2086 # words
    vm_boot "$number" $left
    expect "boot $number: there is persistent memory" vm_until_heard "$number" 'PMEM READY' "$limit"
    if ((number > 0)); then judge "$number"; fi
    expect "boot $number: stores are there to be worked on" vm_until_heard "$number" 'WORKING' "$limit"
    if ((number == 0)); then
        tr -d '\r' <"$vm/boot-0" | grep '^TOOK' || :
        for place in ext4 xfs; do
            expect "the tests on files pass on $place with DAX" vm_heard 0 "TESTED $place 0"
        done
        for path in "${by_programs[@]}"; do
            for seed in 1 2 3; do
                if [[ ! -x $target/tools/bin/fsx ]]; then
                    printf 'skipped: fsx on %s: it is missing\n' "$path"
                else
                    expect "fsx finds what it has written on $path, mounted, seed $seed" vm_heard 0 "FSX $path $seed 0"
                fi
            done
            expect "$path, mounted, is full and crowded, and its process killed" vm_heard 0 "CROWDED $path 0"
            expect "tar, git and sqlite end well on $path, mounted" vm_heard 0 "PROGRAMS $path 0"
            expect "they find what they have left on $path" vm_heard 0 "LEFT BY PROGRAMS $path 0"
        done
    fi
    for path in "${by_api[@]}" "${by_mount[@]}"; do
        case $path in
        /plain/* | /dev/pmem*) way=fdatasync ;;
        *) way=${ways[number % ${#ways[@]}]} ;;
        esac
        expect "boot $number: $path is durable by $way" vm_heard "$number" "DURABLE $path $way"
    done
    for path in "${by_api[@]}"; do
        expect "boot $number: calls on $path are synced" vm_until_heard "$number" "SYNCED $path [0-9]+ [1-9][0-9]* \." "$limit"
    done
    for path in "${by_mount[@]}"; do
        expect "boot $number: calls on $path, mounted, are acknowledged" vm_until_heard "$number" "ACKNOWLEDGED $path [2-9] \." "$limit"
    done
    # Anywhere in the next eight seconds.
    sleep "$((RANDOM % 8)).$(printf '%03d' $((RANDOM % 1000)))"
    expect "boot $number: the machine runs when its power is cut" kill -0 "$machine"
    vm_off
    left=
    for path in "${by_api[@]}"; do
        read -r kind _ seed count _ < <(last "$number" "MAKING $path [0-9]+ \.|SYNCED $path [0-9]+ [0-9]+ \.")
        [[ ${kind:-} == SYNCED ]] || count=making
        left+=" api=$path:${seed:-0}:$count"
    done
    for path in "${by_mount[@]}"; do
        read -r _ _ count _ < <(last "$number" "ACKNOWLEDGED $path [0-9]+ \.")
        left+=" mounted=$path:${count:-0}"
    done
    # After what is mounted is judged, which says whether a store is in order as the cut has left it.
    for path in "${by_programs[@]}"; do left+=" programs=$path:0"; done
    printf 'power cut %d: %s\n' "$((number + 1))" "${left# }"
    ((failed == 0)) || break
done
if ((failed == 0)); then
    # What was cut is judged, however late it is.
    limit=$((SECONDS + 300 > limit ? SECONDS + 300 : limit))
    vm_cpu=${cpus[number % ${#cpus[@]}]}
    # shellcheck disable=SC2086 # words
    vm_boot "$number" $left
    judge "$number"
fi
vm_off
((failed == 0)) || keep=1
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
