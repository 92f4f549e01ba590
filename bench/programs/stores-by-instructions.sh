#!/usr/bin/env bash
# Counts the instructions of a write that is made durable, in an emulated machine with persistent memory: a store by its API, by windows and mounted, ext4
# and XFS with DAX. As nothing but an emulator runs there, it may be done on any machine, however busy.
# $FOREBAY: the program. $SYNCS: the example `syncs` of forebay-pmem. Both are release builds.
#
# The emulator's clock goes on by a nanosecond for each instruction (`-icount shift=0`), of whichever process or of the kernel, on the one CPU that there is. So
# what a call takes by that clock is how many instructions are done until it returns. A string instruction counts for each of its
# steps; without `erms` the kernel takes those of 8 bytes. Prints medians of five rounds, and how long the machine had nothing to do, which would be no instructions.
set -Eeuo pipefail
cd "$(dirname "$0")/../.." || exit 1
forebay=$(realpath "${FOREBAY:-target/release/forebay}")
syncs=$(realpath "${SYNCS:-target/release/examples/syncs}")
vm=$PWD/target/vm-counts
mkdir -p "$vm"
# NVDIMMs: ext4, XFS, three DAX devices, another ext4, in which a store lies.
nvdimms=6
# shellcheck source=tests/lib/vm.sh
. tests/lib/vm.sh
trap vm_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
vm_kernel
vm_open
vm_program "$forebay" forebay
vm_program "$syncs" syncs
gcc -O2 -o "$vm/known" bench/programs/known-instructions.c
vm_program "$vm/known" known
vm_close bench/programs/vm-syncs-init.sh
vm_memory
vm_cpu=max,-erms,-fsrm vm_options=(-icount shift=0)
vm_boot 0
vm_until_heard 0 'ALL COUNTED' "${LIMIT:-1800}"
vm_off
tr -d '\r' <"$vm/boot-0" | grep '^MACHINE\|^FAILED\|^IDLE\|durable\|instruction' || :
PYTHONPATH=bench/programs python3 -B - "$vm/boot-0" <<'PROGRAM'
import sys
from tables import counted, table
sides = {"api": "API", "windows": "windows", "file": "API, in a file", "mounted": "mounted", "ext4": "ext4", "xfs": "XFS"}
found = {name: counts for name, counts in counted(sys.argv[1]).items() if name.endswith("_fsync")}
table("instructions", found, sides, [("ext4", "api"), ("ext4", "windows"), ("ext4", "mounted")], "{:,.0f}", spread=True)
PROGRAM
