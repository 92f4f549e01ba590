#!/usr/bin/env bash
# Installs the programs that the demonstration and `make bench-programs` call, where they are missing. Quick and silent if
# none is.
set -u
needed='
fio         fio          small, ragged and large writes
python3     python3      a checkpoint written and read back
tar         tar          unpacking a source tree
gcc         gcc          links Rust programs
mkfs.xfs    xfsprogs     a fast device: XFS on a file in memory
mkfs.ext4   e2fsprogs    the same with ext4
git         git          adding a tree of sources
make        make         building a C project
diff        diffutils    comparing what both sides have left
losetup     mount        the same
'
. "$(dirname "$0")/install.sh" 'demo tools'
