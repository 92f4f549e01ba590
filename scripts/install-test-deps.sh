#!/usr/bin/env bash
# Installs the programs that the tests call, where they are missing. Quick and silent if none is.
set -u
needed='
mkfs.ext4   e2fsprogs    tests on a real ext4
mkfs.xfs    xfsprogs     tests on a real xfs
mkfs.btrfs  btrfs-progs  tests on a real btrfs
losetup     mount        file systems in files
setpriv     util-linux   the same tests as an unprivileged user
fio         fio          programs under Forebay: writes that are verified
sqlite3     sqlite3      programs under Forebay: a database with locks
git         git          programs under Forebay: repositories
gcc         gcc          programs under Forebay: a project that is built and run
python3     python3      programs under Forebay: scripts
tar         tar          programs under Forebay: archives
xz          xz-utils     programs under Forebay: compression
rsync       rsync        programs under Forebay: copies of trees
db_bench    rocksdb-tools programs under Forebay: a key-value store
python3:h5py python3-h5py programs under Forebay: arrays in files
psql        postgresql   programs under Forebay: a database server of many processes
'
. "$(dirname "$0")/install.sh" 'test tools'

# fsx comes from the registry of Rust programs, in this version, into target/tools.
fsx_version=0.3.2
cd "$(dirname "$0")/.." || exit 1
tools=${CARGO_TARGET_DIR:-target}/tools
if [ "$("$tools/bin/fsx" --version 2>/dev/null)" != "fsx $fsx_version" ]; then
    printf 'test tools: installing fsx %s into %s: random file operations that check what they read\n' "$fsx_version" "$tools"
    nice cargo install --quiet --locked --root "$tools" fsx --version "=$fsx_version" ||
        printf 'test tools: fsx could not be installed; the tests that need it will be listed as skipped\n' >&2
fi
exit 0
