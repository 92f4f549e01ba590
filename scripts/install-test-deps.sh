#!/usr/bin/env bash
# Installs the programs that the tests call, where they are missing. Quick and silent if none is.
#
# Without the first list nothing is tested. What cannot be had of the rest is named, and the tests that need it say that
# they were skipped. Modules of Python come from their registry, in the versions below, and go to a folder of the user's caches;
# tools of Rust are built by install-test-tools.sh, beside the tests that need none.
set -u
cd "$(dirname "$0")/.." || exit 1
needed='
mkfs.ext4   e2fsprogs    tests on a real ext4
mkfs.xfs    xfsprogs     tests on a real xfs
mkfs.btrfs  btrfs-progs  tests on a real btrfs
losetup     mount        file systems in files
setpriv     util-linux   the same tests as an unprivileged user
strace      strace       programs under Forebay: system calls that fail
fio         fio          programs under Forebay: writes that are verified
sqlite3     sqlite3      programs under Forebay: a database with locks
git         git          programs under Forebay: repositories
gcc         gcc          programs under Forebay: a project that is built and run
c++         g++          programs under Forebay: streams of C++
make        make         programs under Forebay: a project that is built in parallel
python3     python3      programs under Forebay: scripts
tar         tar          programs under Forebay: archives
xz          xz-utils     programs under Forebay: compression
rsync       rsync        programs under Forebay: copies of trees
db_bench    rocksdb-tools programs under Forebay: a key-value store
python3:h5py python3-h5py programs under Forebay: arrays in files
psql        postgresql   programs under Forebay: a database server of many processes
openssl     openssl      certificates for members of pools
'
. scripts/install.sh 'test tools'

# Each by itself: one that cannot be had takes no other with it.
wanted='
clang       clang        examples in C with another compiler
fusermount3 fuse3        mounts of users without rights
ip          iproute2     pools whose hosts are network namespaces
etcd        etcd-server  pools that outlive their ruling server (the package may start a service of its own, which the tests do not use)
etcdctl     etcd-client  the same
fi_info     libfabric-bin pools whose bytes libfabric moves
sqldiff     sqlite3-tools programs under Forebay: what comes with sqlite
stress-ng   stress-ng    programs under Forebay: calls of every kind
busybox     busybox-static programs on mounts: static ones, and the programs of a container
go          golang-go    programs on mounts: those of Go
python3:torch python3-torch programs under Forebay: tensors in files (150 MB to fetch)
python3:pip python3-pip  modules of Python
'
while read -r line; do
    [ -n "$line" ] || continue
    (
        needed=$line
        . scripts/install.sh 'test tools'
    ) || printf 'test tools: the tests that need %s will be listed as skipped\n' "${line%% *}" >&2
done <<<"$wanted"

# These work with the numpy of Debian 12 and its like.
. scripts/lib-python.sh
if ! python_has pyarrow safetensors; then
    printf 'test tools: installing pyarrow and safetensors into %s: tables and tensors in files\n' "$python_modules"
    rm -rf "$python_modules"
    /usr/bin/python3 -m pip install --quiet --root-user-action=ignore --no-cache-dir --no-deps --only-binary :all: \
        --target "$python_modules" pyarrow==17.0.0 safetensors==0.4.5 >&2 && python_has pyarrow safetensors ||
        printf 'test tools: they could not be installed; the tests that need them will be listed as skipped\n' >&2
fi

if ! { [ -x "$python_tools/bin/maturin" ] && PYTHONPATH=$python_tools /usr/bin/python3 -c 'import pytest, fsspec' 2>/dev/null; }; then
    printf 'test tools: installing maturin, pytest and fsspec into %s: the Python package\n' "$python_tools"
    rm -rf "$python_tools"
    /usr/bin/python3 -m pip install --quiet --root-user-action=ignore --no-cache-dir --no-deps --only-binary :all: \
        --target "$python_tools" maturin==1.16.0 pytest==9.2.0 pluggy==1.7.0 iniconfig==2.3.1 packaging==26.3 pygments==2.21.0 \
        fsspec==2026.9.0 >&2 && [ -x "$python_tools/bin/maturin" ] ||
        printf 'test tools: they could not be installed; the tests that need them will be listed as skipped\n' >&2
fi
exit 0
