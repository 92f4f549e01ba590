#!/usr/bin/env bash
# Measures a pool's mount against the kernel's NFS (server and client, 4.2, both on one host), by what servers do with files: mixes.c, and RocksDB. As few machines have an NFS server,
# and those that have one do not lend it, both are in an emulated machine with Debian's kernel, and so it may be done on any machine, however busy.
# $FOREBAY: the program, a release build. ROUNDS: how many (3). WAY=clock takes the emulated machine's time with two CPUs, instead of counting instructions.
#
# The emulator's clock goes on by a nanosecond for each instruction (`-icount shift=0`), of whichever process or of the kernel, on the one CPU that there is: as in
# stores-by-instructions.sh. So a call that makes other processes work takes the instructions of all of them, and what processors do at once counts twice. What a switch between processes costs in caches does
# not count. Prints medians, and what went beside: how long the machine had nothing to do, NFS requests, and segments by loopback.
set -Eeuo pipefail
cd "$(dirname "$0")/../.." || exit 1
forebay=$(realpath "${FOREBAY:-target/release/forebay}")
vm=$PWD/target/vm-nfs
mkdir -p "$vm"
# NVDIMMs, each with an ext4: what is exported and the pool's home; what is exported `async`.
nvdimms=2
# shellcheck source=tests/lib/vm.sh
. tests/lib/vm.sh
trap vm_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
vm_kernel
# As the kernel, NFS's programs are unpacked and not installed.
if [[ ! -d $vm/nfs ]]; then
    (cd "$vm" && rm -rf nfs.part && apt-get download nfs-kernel-server nfs-common libnfsidmap1 libwrap0 >/dev/null 2>&1 &&
        for package in ./*.deb; do dpkg-deb -x "$package" nfs.part && rm "$package"; done && mv nfs.part nfs)
fi
command -v db_bench >/dev/null || { echo 'db_bench is missing (Debian: rocksdb-tools)' >&2 && exit 1; }
vm_open
vm_modules nfsd nfsv4 rpcsec_gss_krb5
mkdir -p "$vm/root/etc" "$vm/root/var"
printf 'tcp 6 TCP\nudp 17 UDP\n' >"$vm/root/etc/protocols"
printf 'nfs 2049/tcp\n' >"$vm/root/etc/services"
libraries=$vm/nfs/usr/lib/x86_64-linux-gnu
for program in usr/sbin/exportfs usr/sbin/rpc.mountd usr/sbin/rpc.nfsd sbin/mount.nfs; do LD_LIBRARY_PATH=$libraries vm_program "$vm/nfs/$program"; done
install -D -t "$vm/root/lib/x86_64-linux-gnu" "$libraries"/lib*.so.?
vm_program "$forebay" forebay
vm_program "$(command -v db_bench)"
gcc -O2 -pthread -o "$vm/mixes" bench/programs/mixes.c
vm_program "$vm/mixes"
vm_close bench/programs/vm-nfs-init.sh
vm_memory
vm_cpu=max,-erms,-fsrm
case ${WAY:-instructions} in
instructions) vm_options=(-icount shift=0,sleep=off) threads=1 ;;
clock) vm_options=(-smp 2) threads=1,4 ;;
*) echo 'WAY is instructions or clock' >&2 && exit 2 ;;
esac
# An emulated processor has none of the weaknesses against which the kernel would flush at each call.
vm_boot 0 mitigations=off "rounds=${ROUNDS:-3}" "threads=$threads"
vm_until_heard 0 'ALL COUNTED|FAILED.*' "${LIMIT:-3600}" || :
vm_off
tr -d '\r' <"$vm/boot-0" | grep '^MACHINE\|^FAILED\|^127' || :
PYTHONPATH=bench/programs python3 -B - "$vm/boot-0" <<'PROGRAM'
import statistics, sys
from tables import counted, table
sides = {"nfs": "NFS", "pool": "pool, home", "believing": "pool, home, believing", "async": "NFS, async", "bare": "pool", "ext4": "ext4"}
found = {name: counts for name, counts in counted(sys.argv[1], 1e-3).items() if len(counts) == len(sides)}
table("thousands", found, sides, [("nfs", "pool"), ("async", "bare")], "{:,.0f}", spread=True)
beside = {}
for line in open(sys.argv[1], errors="replace"):
    words = line.split()
    if len(words) == 6 and words[0] == "BESIDE":
        beside.setdefault(words[2], {}).setdefault(words[1], []).append([int(word) for word in words[3:]])
print("idle, NFS requests, segments:")
for name, sums in beside.items():
    print(name, ", ".join(f"{side} {[statistics.median(all) for all in zip(*sums[side])]}" for side in sides if side in sums))
PROGRAM
