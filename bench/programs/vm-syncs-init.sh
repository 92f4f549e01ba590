#!/bin/sh
# The first program of the emulated machine of bench/programs/stores-by-instructions.sh.
. /begin
for region in 0 1 5; do namespace $region fsdax; done
for region in 2 3 4; do namespace $region devdax; done
mkfs.ext4 -q -b 4096 /dev/pmem0 && mkfs.xfs -q -m reflink=0 /dev/pmem1 && mkfs.ext4 -q -b 4096 /dev/pmem5
mount -t ext4 -o dax=always /dev/pmem0 /ext4 && mount -t xfs -o dax=always /dev/pmem1 /xfs && mount -t ext4 -o dax=always /dev/pmem5 /plain || echo 'FAILED no DAX'
echo
echo "MACHINE $(uname -r), $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
grep -o 'clwb' /proc/cpuinfo | head -n 1
for store in /dev/dax2.0 /dev/dax3.0 /dev/dax4.0; do forebay pmem create $store >/tmp/said 2>&1 || cat /tmp/said; done
forebay pmem create --size 300MiB /plain/store
forebay pmem info /dev/dax2.0 | grep durable
serve /dev/dax4.0

idle() { awk '/^cpu /{ print $5 + $6 }' /proc/stat; }
# count SIDE WORDS...: what the program says, and how long the machine had nothing to do, in hundredths of a second.
count() {
    side=$1 before=$(idle)
    shift
    "$@" >/tmp/counted 2>&1 || echo "FAILED $side $(cat /tmp/counted)"
    sed "s/^/COUNTED $side /" /tmp/counted
    echo "IDLE $side $(($(idle) - before))"
}
count clock known
count api syncs api /dev/dax2.0
count windows syncs windows /dev/dax3.0
count file syncs api /plain/store
count mounted syncs files /mnt/dev/dax40
count ext4 syncs files /ext4
count xfs syncs files /xfs
forebay umount /mnt/dev/dax40
echo 'ALL COUNTED'
while :; do sleep 1000; done
