# shellcheck shell=bash
# An emulated machine with persistent memory: sourced by scripts in the repository's root. It needs $vm, a folder that stays between runs, and
# $nvdimms, how many there are. It installs an emulator and what it needs, by apt-get, if they are missing.

# shellcheck disable=SC2034 # install.sh reads it
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
# Which CPU it has, and what else the emulator is told.
vm_cpu=max vm_options=()

# The kernel's folder, once it has been fetched.
vm_kernel() {
    [[ -d $vm/kernel ]] && return
    local package
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    printf 'the emulated machine: fetching %s\n' "$package"
    rm -rf "$vm/kernel.part"
    (cd "$vm" && apt-get download "$package" >/dev/null 2>&1 && dpkg-deb -x "$package"_*.deb kernel.part && rm "$package"_*.deb && mv kernel.part kernel)
}

# A program with the libraries that it calls.
vm_program() {
    local library
    install -D "$(realpath "$1")" "$vm/root/bin/${2:-$(basename "$1")}"
    strip "$vm/root/bin/${2:-$(basename "$1")}" 2>/dev/null || :
    for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
        [[ -e $vm/root$library ]] || install -D "$library" "$vm/root$library"
    done
}

# vm_modules NAME...: modules of the kernel's, with those that they need.
vm_modules() {
    local release modules module
    release=$(basename "$vm"/kernel/lib/modules/*)
    modules=$vm/kernel/lib/modules/$release
    for module; do
        for module in $(sed -n "s|^\(kernel/.*/${module//_/[-_]}\.ko\): *|\1 |p" "$modules/modules.dep"); do
            install -D -m 644 "$modules/$module" "$vm/root/lib/modules/$release/$module"
        done
    done
    depmod -b "$vm/root" "$release" 2>/dev/null
}

# What the machine begins with, but for programs of the caller's and its first one, which `vm_close` packs.
vm_open() {
    local applet
    rm -rf "$vm/root"
    mkdir -p "$vm/root"/{bin,dev,proc,sys,tmp,mnt,ext4,xfs,plain,lib}
    depmod -b "$vm/kernel" "$(basename "$vm"/kernel/lib/modules/*)"
    vm_modules nfit nd_pmem dax_pmem device_dax ext4 xfs crc32c_generic fuse
    vm_program "$(command -v busybox)"
    for applet in $(busybox --list); do [[ -e $vm/root/bin/$applet ]] || ln -s busybox "$vm/root/bin/$applet"; done
    for applet in ndctl mkfs.ext4 mkfs.xfs nice; do vm_program "$(command -v $applet)"; done
    vm_program "$(command -v sync)" fsync
    install -m 755 tests/lib/vm-begin.sh "$vm/root/begin"
}

# vm_close INIT: the machine's first program.
vm_close() {
    install -m 755 "$1" "$vm/root/init"
    (cd "$vm/root" && find . | cpio --quiet -o -H newc | gzip -1) >"$vm/first"
    rm -rf "$vm/root"
}

# Memory that has never been written. Beside the labels, 384 MiB: a multiple of what the kernel aligns namespaces to, and enough for XFS.
vm_memory() {
    local dimm
    for ((dimm = 0; dimm < nvdimms; dimm++)); do
        rm -f "$vm/nvdimm-$dimm" && truncate -s 386M "$vm/nvdimm-$dimm"
    done
}

machine=
vm_off() {
    [[ -n $machine ]] || return 0
    kill -9 "$machine" 2>/dev/null || :
    wait "$machine" 2>/dev/null || :
    machine=
}

# What is not kept between runs.
vm_end() {
    vm_off
    rm -rf "$vm/root" "$vm/first" "$vm"/nvdimm-*
}

# vm_boot NUMBER WORDS...: starts the machine in the background; words are for its kernel's command line, and what it says is in $vm/boot-NUMBER.
# It ends with this script, however that ends.
vm_boot() {
    local devices=() dimm
    for ((dimm = 0; dimm < nvdimms; dimm++)); do
        devices+=(-object "memory-backend-file,id=m$dimm,share=on,mem-path=$vm/nvdimm-$dimm,size=386M")
        devices+=(-device "nvdimm,id=n$dimm,memdev=m$dimm,label-size=2M")
    done
    nice -n 5 setpriv --pdeathsig KILL qemu-system-x86_64 -accel tcg -smp 1 -cpu "$vm_cpu" "${vm_options[@]}" \
        -machine pc,nvdimm=on -m "1G,slots=$nvdimms,maxmem=8G" "${devices[@]}" -nographic -no-reboot -nodefaults -serial stdio \
        -kernel "$vm"/kernel/boot/vmlinuz-* -initrd "$vm/first" -append "console=ttyS0 quiet panic=-1 boot=$1 ${*:2}" </dev/null >"$vm/boot-$1" 2>&1 &
    machine=$!
}

# vm_heard BOOT PATTERN: whether the machine has said such a line.
vm_heard() {
    # Not by a pipe: what grep no longer reads would fail there.
    grep -qE "^($2)\$" <(tr -d '\r' <"$vm/boot-$1")
}

# vm_until_heard BOOT PATTERN SECOND: whether it says one before this one of $SECONDS.
vm_until_heard() {
    until vm_heard "$1" "$2"; do
        if ((SECONDS >= $3)) || ! kill -0 "$machine" 2>/dev/null; then
            tr -d '\r' <"$vm/boot-$1" | grep -v '^SYNCED\|^MAKING\|^ACKNOWLEDGED' | tail -n 60 | cut -c 1-300
            return 1
        fi
        sleep 0.5
    done
}
