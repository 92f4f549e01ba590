#!/usr/bin/env bash
# Stores on persistent memory as a kernel has it: an emulated machine with two NVDIMMs boots Debian's kernel, mounts ext4 with DAX on one, makes
# the other a DAX device, and uses stores on both. In the middle of syncs its power is cut: the emulator is killed. It starts again, and
# everything that was acknowledged must be there, and the stores in order. Not a part of `make test`: it takes some minutes.
#
# The emulated CPU has no cache, and what is stored is in the memory's file at once: lost lines are the simulated memory's to test
# (crates/forebay-pmem/src/tests/crash.rs). Here it is the real kernel that is met: MAP_SYNC, DAX devices, sizes and errors.
#
# It installs an emulator and what it needs, by apt-get, if they are missing; Debian's kernel is fetched and unpacked below target/, and not
# installed. $FOREBAY_TEST_BIN: a directory with forebay, instead of a debug build made here.
set -Eeuo pipefail
cd "$(dirname "$0")/.." || exit 1
needed='
qemu-system-x86_64 qemu-system-x86 the emulated machine
busybox     busybox-static the programs in it
ndctl       ndctl        modes of its persistent memory
depmod      kmod         its modules
cpio        cpio         its first file system
mkfs.ext4   e2fsprogs    a file system with DAX
'
. scripts/install.sh 'the emulated machine'
target=$PWD/${CARGO_TARGET_DIR:-target}
vm=$target/vm
mkdir -p "$vm"
scratch=$vm
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh

# The kernel's folder, once it has been fetched.
kernel() {
    [[ -d $vm/kernel ]] && return
    local package
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -n 1)
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
    mkdir -p "$vm/root"/{bin,dev,proc,sys,tmp,mnt,dax,lib}
    release=$(basename "$vm"/kernel/lib/modules/*)
    modules=$vm/kernel/lib/modules/$release
    depmod -b "$vm/kernel" "$release"
    for module in nfit nd_pmem dax_pmem device_dax ext4 crc32c_generic fuse; do
        for module in $(sed -n "s|^\(kernel/.*/${module//_/[-_]}\.ko\): *|\1 |p" "$modules/modules.dep"); do
            install -D -m 644 "$modules/$module" "$vm/root/lib/modules/$release/$module"
        done
    done
    depmod -b "$vm/root" "$release" 2>/dev/null
    program "$(command -v busybox)"
    for applet in $(busybox --list); do [[ -e $vm/root/bin/$applet ]] || ln -s busybox "$vm/root/bin/$applet"; done
    program "$(command -v ndctl)"
    program "$(command -v mkfs.ext4)"
    program "$bin/forebay"
    program "$tests" pmem-tests
    strip "$vm/root/bin/forebay" "$vm/root/bin/pmem-tests" 2>/dev/null || :
    install -m 755 tests/lib/vm-init.sh "$vm/root/init"
    (cd "$vm/root" && find . | cpio --quiet -o -H newc | gzip -1) >"$vm/first"
}

# boot PHASE: runs the machine in the background, its words in $vm/PHASE.
boot() {
    qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -nographic -no-reboot -nodefaults -serial stdio \
        -machine pc,nvdimm=on -m 1G,slots=4,maxmem=4G \
        -object memory-backend-file,id=one,share=on,mem-path="$vm/one",size=514M -device nvdimm,id=n1,memdev=one,label-size=2M \
        -object memory-backend-file,id=two,share=on,mem-path="$vm/two",size=514M -device nvdimm,id=n2,memdev=two,label-size=2M \
        -kernel "$vm"/kernel/boot/vmlinuz-* -initrd "$vm/first" -append "console=ttyS0 quiet panic=-1 phase=$1" </dev/null >"$vm/$1" 2>&1 &
    machine=$!
}

# until_said PHASE WORDS SECONDS: whether the machine says this in time.
until_said() {
    local second
    for ((second = 0; second < $3; second++)); do
        grep -q "$2\b" "$vm/$1" && return
        kill -0 "$machine" 2>/dev/null || break
        sleep 1
    done
    grep -q "$2\b" "$vm/$1" || { tail -n 40 "$vm/$1" && return 1; }
}

off() {
    kill -9 "$machine" 2>/dev/null || :
    wait "$machine" 2>/dev/null || :
}
trap 'off; rm -rf "$vm/root" "$vm/first" "$vm/one" "$vm/two"' EXIT

bin=${FOREBAY_TEST_BIN:-}
if [[ -z $bin ]]; then
    cargo build --quiet -p forebay-cli
    bin=$target/debug
fi
unset FOREBAY_TEST_BIN
tests=$(cargo test --quiet -p forebay-pmem --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*\/forebay_pmem-[^"]*\)".*/\1/p' | head -n 1)
kernel
first_files
# Beside the labels, 512 MiB: a multiple of what the kernel aligns namespaces to.
truncate -s 514M "$vm/one" "$vm/two"

boot work
expect 'the machine has its persistent memory' until_said work 'PMEM READY' 240
expect 'ext4 with DAX takes MAP_SYNC, and the store says so' until_said work 'DAX FILE: clwb\|DAX FILE: clflush' 120
expect 'a DAX device is a store, and the store says so' until_said work 'DAX DEVICE: clwb\|DAX DEVICE: clflush' 60
expect 'the tests on files pass there' until_said work 'TESTS: 0' 240
expect 'calls are acknowledged by a mounted store' until_said work 'acknowledged 100' 240
off
acknowledged=$(sed -n 's/.*acknowledged \([0-9]*\).*/\1/p' "$vm/work" | tail -n 1)
boot "after-$acknowledged"
for store in file device; do
    expect "the store on the $store is in order after the cut" until_said "after-$acknowledged" "CHECKED $store: 0" 240
    expect "the store on the $store has all $acknowledged that were acknowledged" until_said "after-$acknowledged" "FOUND $store: $acknowledged" 120
done
off
rm -f "$vm"/after-*
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
