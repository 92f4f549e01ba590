# The beginning of the first program of an emulated machine (tests/lib/vm.sh), which sources it.
export PATH=/bin HOME=/tmp TMPDIR=/tmp FOREBAY_CONFIG=/dev/null
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /tmp
mkdir -p /dev/shm && mount -t tmpfs none /dev/shm
for module in nfit nd_pmem device_dax dax_pmem crc32c_generic ext4 xfs fuse; do modprobe $module; done
words=$(cat /proc/cmdline)
boot=${words##*boot=} boot=${boot%% *}

# namespace NUMBER MODE: an NVDIMM as the kernel shows it, which it stays from boot to boot.
namespace() {
    ndctl create-namespace -e namespace$1.0 -f -m $2 >/dev/null 2>/tmp/said || ndctl create-namespace -r region$1 -m $2 >/dev/null || cat /tmp/said
}

# serve STORE: mounts it below /mnt.
serve() {
    place=/mnt$(dirname "$1")/$(basename "$1" | tr -d .)
    mkdir -p "$place"
    forebay mount --daemon "$1" "$place" || echo "$1 cannot be mounted"
}
