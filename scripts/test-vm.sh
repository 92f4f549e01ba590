#!/usr/bin/env bash
# Stores on persistent memory as a kernel has it: an emulated machine with NVDIMMs boots Debian's kernel, makes ext4 and XFS with DAX on two of
# them, DAX devices of two more, ext4 without DAX on one, and leaves one a block device. Stores lie on all of them; half are worked on by the
# crate's API, half are mounted. In the middle of that the power is cut: the emulator is killed. The next start finds what was
# acknowledged, nothing in part, the stores in order, and goes on with new ones. Not a part of `make test`: it takes some minutes.
#
# The emulated CPU has no cache, and what is stored to persistent memory is in its file at once: lost lines are the simulated memory's to test
# (crates/forebay-pmem/src/tests/crash.rs). Here it is the real kernel that is met: MAP_SYNC, DAX devices, sizes and errors, and, where there is
# no DAX, a page cache that is lost.
set -Eeuo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() {
    cat <<'END'
usage: scripts/test-vm.sh [--cuts N] [--keep]

Stores in an emulated machine with persistent memory, and power cuts. The last line is `N passed, N failed`.

  --cuts N   how often the power is cut (3), a boot of about a minute each; ten minutes are the most that it all may take, whatever N is
  --keep     leaves what the machine said in target/vm/boot-*, which is otherwise shown where something failed and removed

It installs an emulator and what it needs, by apt-get, if they are missing. Debian's kernel is fetched, unpacked below target/, and not installed.
FOREBAY_TEST_BIN: a directory with forebay, instead of a debug build made here.
END
}

cuts=3 keep=
while (($# > 0)); do
    case $1 in
    --help | -h) usage && exit ;;
    --cuts) cuts=${2:?how often} && shift ;;
    --keep) keep=1 ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done
[[ $cuts =~ ^[1-9][0-9]*$ ]] || { usage >&2 && exit 2; }

needed='
qemu-system-x86_64 qemu-system-x86 the emulated machine
busybox     busybox-static the programs in it
ndctl       ndctl        modes of its persistent memory
depmod      kmod         its modules
cpio        cpio         its first file system
mkfs.ext4   e2fsprogs    a file system with DAX
mkfs.xfs    xfsprogs     another one
'
. scripts/install.sh 'the emulated machine'
target=$PWD/${CARGO_TARGET_DIR:-target}
vm=$target/vm
mkdir -p "$vm"
scratch=$vm
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh

# NVDIMMs, in the order of the kernel's numbers: what lies on each is in tests/lib/vm-init.sh.
nvdimms=6
# Stores that the API works on, and those that are mounted; those on DAX first.
by_api=(/ext4/api /xfs/api /dev/dax3.0 /plain/api /dev/pmem5)
by_mount=(/ext4/mounted /xfs/mounted /dev/dax2.0 /plain/mounted)
# Each start has another CPU, and so each of the ways to write a line back.
cpus=(max max,-clwb max,-clwb,-clflushopt)
ways=(clwb clflushopt clflush)
# Seconds for everything after the build.
limit=600

# The kernel's folder, once it has been fetched.
kernel() {
    [[ -d $vm/kernel ]] && return
    local package
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    printf 'the emulated machine: fetching %s\n' "$package"
    rm -rf "$vm/kernel.part"
    (cd "$vm" && apt-get download "$package" >/dev/null 2>&1 && dpkg-deb -x "$package"_*.deb kernel.part && rm "$package"_*.deb && mv kernel.part kernel)
}

# A program with the libraries that it calls.
program() {
    local library
    install -D "$(realpath "$1")" "$vm/root/bin/${2:-$(basename "$1")}"
    for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
        [[ -e $vm/root$library ]] || install -D "$library" "$vm/root$library"
    done
}

# What the machine begins with.
first_files() {
    local release modules module applet
    rm -rf "$vm/root"
    mkdir -p "$vm/root"/{bin,dev,proc,sys,tmp,mnt,ext4,xfs,plain,lib}
    release=$(basename "$vm"/kernel/lib/modules/*)
    modules=$vm/kernel/lib/modules/$release
    depmod -b "$vm/kernel" "$release"
    for module in nfit nd_pmem dax_pmem device_dax ext4 xfs crc32c_generic fuse; do
        for module in $(sed -n "s|^\(kernel/.*/${module//_/[-_]}\.ko\): *|\1 |p" "$modules/modules.dep"); do
            install -D -m 644 "$modules/$module" "$vm/root/lib/modules/$release/$module"
        done
    done
    depmod -b "$vm/root" "$release" 2>/dev/null
    program "$(command -v busybox)"
    for applet in $(busybox --list); do [[ -e $vm/root/bin/$applet ]] || ln -s busybox "$vm/root/bin/$applet"; done
    program "$(command -v ndctl)"
    program "$(command -v mkfs.ext4)"
    program "$(command -v mkfs.xfs)"
    program "$(command -v sync)" fsync
    program "$(command -v nice)"
    program "$bin/forebay"
    program "$tests" pmem-tests
    strip "$vm/root/bin/forebay" "$vm/root/bin/pmem-tests" 2>/dev/null || :
    install -m 755 tests/lib/vm-init.sh "$vm/root/init"
    (cd "$vm/root" && find . | cpio --quiet -o -H newc | gzip -1) >"$vm/first"
    rm -rf "$vm/root"
}

machine=
off() {
    [[ -n $machine ]] || return 0
    kill -9 "$machine" 2>/dev/null || :
    wait "$machine" 2>/dev/null || :
    machine=
}
away() {
    off
    rm -rf "$vm/root" "$vm/first" "$vm"/nvdimm-*
    [[ -n $keep ]] || rm -f "$vm"/boot-* "$vm/said"
}
trap away EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# boot NUMBER WORDS...: starts the machine in the background; words are for its kernel's command line, and what it says is in $vm/boot-NUMBER.
# It ends with this script, however that ends.
boot() {
    local devices=() dimm
    for ((dimm = 0; dimm < nvdimms; dimm++)); do
        devices+=(-object "memory-backend-file,id=m$dimm,share=on,mem-path=$vm/nvdimm-$dimm,size=386M")
        devices+=(-device "nvdimm,id=n$dimm,memdev=m$dimm,label-size=2M")
    done
    nice -n 5 setpriv --pdeathsig KILL qemu-system-x86_64 -accel tcg -smp 1 -cpu "${cpus[$1 % ${#cpus[@]}]}" \
        -machine pc,nvdimm=on -m "1G,slots=$nvdimms,maxmem=8G" "${devices[@]}" -nographic -no-reboot -nodefaults -serial stdio \
        -kernel "$vm"/kernel/boot/vmlinuz-* -initrd "$vm/first" -append "console=ttyS0 quiet panic=-1 boot=$1 ${*:2}" </dev/null >"$vm/boot-$1" 2>&1 &
    machine=$!
}

# heard BOOT PATTERN: whether the machine has said such a line.
heard() {
    # Not by a pipe: what grep no longer reads would fail there.
    grep -qE "^($2)\$" <(tr -d '\r' <"$vm/boot-$1")
}

# until_heard BOOT PATTERN SECONDS: whether it says one in time, counted from $begun.
until_heard() {
    until heard "$1" "$2"; do
        if ((SECONDS >= begun + $3 || SECONDS >= limit)) || ! kill -0 "$machine" 2>/dev/null; then
            tr -d '\r' <"$vm/boot-$1" | grep -v '^SYNCED\|^MAKING\|^ACKNOWLEDGED' | tail -n 60 | cut -c 1-300
            return 1
        fi
        sleep 0.5
    done
}

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
kernel
first_files
limit=$((SECONDS + limit))
for ((dimm = 0; dimm < nvdimms; dimm++)); do
    # Beside the labels, 384 MiB: a multiple of what the kernel aligns namespaces to, and enough for XFS.
    rm -f "$vm/nvdimm-$dimm" && truncate -s 386M "$vm/nvdimm-$dimm"
done

# What a boot finds of the one before: for the API's stores `PATH:SEED:COUNT`, for mounted ones `PATH:NUMBER`.
left=
judge() {
    local entry path
    expect "boot $1: what the boot before has left is judged" until_heard "$1" 'ALL JUDGED' 240
    for entry in $left; do
        path=${entry#*=} && path=${path%%:*}
        case $entry in
        api=*) expect "boot $1: $path has what was synced, and is in order (${entry#*:})" heard "$1" "JUDGED $path 0" ;;
        *) expect "boot $1: mounted, $path has what was acknowledged, whole and in order (${entry#*:})" heard "$1" "FOUND $path 0 .*" ;;
        esac
    done
}

took=0
for ((number = 0; number < cuts; number++)); do
    # One more of these, and the last judgement, must find time.
    if ((SECONDS + 2 * took > limit)); then
        printf 'not more than %d of %d cuts: the machine is slow today\n' "$number" "$cuts"
        break
    fi
    begun=$SECONDS started=$SECONDS
    # shellcheck disable=SC2086 # words
    boot "$number" $left
    expect "boot $number: there is persistent memory" until_heard "$number" 'PMEM READY' 120
    if ((number > 0)); then judge "$number"; fi
    expect "boot $number: stores are there to be worked on" until_heard "$number" 'WORKING' 300
    if ((number == 0)); then
        for place in ext4 xfs; do
            expect "the tests on files pass on $place with DAX" heard 0 "TESTED $place 0"
        done
    fi
    for path in "${by_api[@]}" "${by_mount[@]}"; do
        case $path in
        /plain/* | /dev/pmem*) way=fdatasync ;;
        *) way=${ways[number % ${#ways[@]}]} ;;
        esac
        expect "boot $number: $path is durable by $way" heard "$number" "DURABLE $path $way"
    done
    begun=$SECONDS
    for path in "${by_api[@]}"; do
        expect "boot $number: calls on $path are synced" until_heard "$number" "SYNCED $path [0-9]+ [1-9][0-9]* \." 120
    done
    for path in "${by_mount[@]}"; do
        expect "boot $number: calls on $path, mounted, are acknowledged" until_heard "$number" "ACKNOWLEDGED $path [2-9] \." 120
    done
    # Anywhere in the next eight seconds.
    sleep "$((RANDOM % 8)).$(printf '%03d' $((RANDOM % 1000)))"
    expect "boot $number: the machine runs when its power is cut" kill -0 "$machine"
    off
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
    printf 'power cut %d: %s\n' "$((number + 1))" "${left# }"
    ((failed == 0)) || break
    took=$((SECONDS - started))
done
if ((failed == 0)); then
    begun=$SECONDS
    # shellcheck disable=SC2086 # words
    boot "$number" $left
    judge "$number"
fi
off
((failed == 0)) || keep=1
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
