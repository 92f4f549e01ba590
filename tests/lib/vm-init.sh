#!/bin/sh
# The first program of the emulated machine of scripts/test-vm.sh: what it does, the kernel's command line says (phase=...), and what comes of
# it goes to the console.
export PATH=/bin HOME=/tmp TMPDIR=/tmp FOREBAY_CONFIG=/dev/null
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /tmp
for module in nfit nd_pmem device_dax dax_pmem crc32c_generic ext4 fuse; do modprobe $module; done
phase=$(sed 's/.*phase=\([^ ]*\).*/\1/' /proc/cmdline)

# What a store says of itself.
said() {
    forebay pmem info "$2" >/tmp/info 2>&1 || cat /tmp/info
    if grep -q 'durable by fdatasync' /tmp/info; then
        echo "$1: fdatasync"
    else
        echo "$1: $(grep -o 'clwb\|clflushopt\|clflush' /tmp/info | head -n 1)"
    fi
}

serve() {
    mkdir -p "/mnt/$1"
    forebay mount --daemon "$2" "/mnt/$1" || echo "$1 cannot be mounted"
}

case $phase in
work)
    ndctl create-namespace -e namespace0.0 -f -m fsdax >/dev/null || ndctl create-namespace -r region0 -m fsdax
    ndctl create-namespace -e namespace1.0 -f -m devdax >/dev/null || ndctl create-namespace -r region1 -m devdax
    mkfs.ext4 -q -b 4096 /dev/pmem0 && mount -t ext4 -o dax=always /dev/pmem0 /dax && echo 'PMEM READY'
    forebay pmem create --size 64MiB /dax/store && said 'DAX FILE' /dax/store
    forebay pmem create /dev/dax1.0 && said 'DAX DEVICE' /dev/dax1.0
    mkdir /dax/tmp && TMPDIR=/dax/tmp pmem-tests tests::files >/tmp/tests 2>&1
    echo "TESTS: $?"
    tail -n 3 /tmp/tests
    serve file /dax/store
    serve device /dev/dax1.0
    number=0
    while :; do
        number=$((number + 1))
        for store in file device; do
            echo "line $number" | dd of="/mnt/$store/$number" conv=fsync 2>/dev/null || echo "FAILED $store $number"
        done
        echo "acknowledged $number"
    done
    ;;
after-*)
    mount -t ext4 -o dax=always /dev/pmem0 /dax
    for store in file=/dax/store device=/dev/dax1.0; do
        name=${store%%=*}
        forebay pmem check "${store#*=}" >/tmp/checked 2>&1
        status=$?
        [ $status = 0 ] || cat /tmp/checked
        echo "CHECKED $name: $status"
        serve "$name" "${store#*=}"
        found=0
        for number in $(seq 1 "${phase#after-}"); do
            [ "$(cat "/mnt/$name/$number" 2>/dev/null)" = "line $number" ] && found=$((found + 1))
        done
        echo "FOUND $name: $found"
    done
    ;;
esac
sleep 1000
