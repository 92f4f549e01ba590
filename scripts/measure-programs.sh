#!/usr/bin/env bash
# Programs with and without Forebay: how long they take, against the targets.
#
#     scripts/measure-programs.sh [--kind xfs|ext4 | --dir DIR] [--runs N] [--json FILE] [--markdown]
#                                 [--command 'COMMAND' ...] [GROUP...]
#
# Everything is measured in one run, the sides in turn, with memory that was touched before for every side; files are compared
# after each round. Medians, half of the range as a share of the median, and the worst and best round. The files lie on a
# file system in memory, XFS unless --kind says otherwise, or in --dir. Everything is undone at the end.
#
# Groups, all unless some are named (patterns will do; --list lists them):
#   write, overwrite, read, ragged, ragged-random      fio, 4 KiB
#   sync-1m, sync-4m    large writes, each with its fsync: time, and CPU of program and keeper (kernel threads are left out on
#                       both sides); RWF_DONTCACHE is measured with a bare loop, as fio may not know it
#   fresh               a process that writes 100 MB and exits; `forebay run` in whole
#   tar-x, tar-c, git, build                           many small files; the command in whole
#   calls               calls on descriptors that are not managed
#   cold-read-*         files that nobody has in memory, from beginning to end, against buffered and direct reads
# Only if named; both sides may use --mib of memory (as root, where there are memory cgroups of version 1):
#   pf3d-small-*, pf3d-large-*    a parallel program's checkpoints in six patterns, below and above the memory
#   stream-*            writing four times the memory, against the best of the kernel's ways
#   writeback-curve-*   how fast new data is written before writeback begins and while it runs, over time
#   scan-hot-reader     4 KiB reads of half the memory at random, beside a scan of eight times the memory
#   scan-warm-reader    the same, with a pause after each read
# Only if named, with as much memory as there is:
#   corpus-*            programs of every day, each in whole
#   life-*              files that live briefly: written, closed, read or mapped, removed; by default settings, and managed from the
#                       first byte on; and a store that logs, and maps what it has written (life-store)
#
# Commands of yours, each a line for bash, are measured as those of the corpus are, with such groups as you name beside
# them: --command 'sort text >sorted' --command 'tar cf out.tar small'. Their directory has a file `text` and a tree `small`.
#
# Sizes, for trying it out: --mib N (256) for each program, --small N (10000) small files, --calls N (1000000).
# $FOREBAY_TEST_BIN: a directory with forebay and its library, instead of a release build made here.
set -Euo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() {
    printf 'measure-programs: %s\n' "$1" >&2
    sed -n '4,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

kind=xfs dir='' runs=5 mib=256 small=10000 calls=1000000 json='' only=() more=() commands=0
while (($# > 0)); do
    case $1 in
    --kind | --dir | --runs | --mib | --small | --calls | --json)
        (($# > 1)) || usage "$1 needs a value"
        printf -v "${1#--}" %s "$2"
        shift
        ;;
    --markdown) more+=(--markdown) ;;
    --command)
        (($# > 1)) || usage "$1 needs a value"
        more+=(--command "$2")
        commands=$((commands + 1))
        shift
        ;;
    --list)
        printf '%s\n' write overwrite read ragged ragged-random sync-1m sync-4m fresh tar-x tar-c git build calls \
            pf3d-{small,large}-{dir,smdir,pdb,scpdb,multi,smulti} stream-{64,1024}k-{1,2} writeback-curve-{64,1024}k \
            cold-read-{4k,64k,1m,4m}-{1,2} scan-{hot,warm}-reader life-{small,one,temporary,table,table-private,2m,begun,8m,8m-read,32m,short-log,log,store} \
            corpus-{cp,cat,sort,grep,gzip,bash,cp-r,tar,rsync,git-clone,git-gc,make,sqlite,sqlite-commits,sqlite-wal,rocksdb} \
            corpus-{python,pools,numpy,h5py,torch,safetensors,parquet,cpp,node,java}
        exit
        ;;
    -h | --help)
        sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
        exit
        ;;
    -*) usage "there is no option $1" ;;
    *) only+=("$1") ;;
    esac
    shift
done
[[ $kind == xfs || $kind == ext4 ]] || usage "--kind is xfs or ext4"
for number in "$runs" "$mib" "$small" "$calls"; do
    [[ $number =~ ^[1-9][0-9]{0,8}$ ]] || usage "$number is no number of anything"
done
((mib % 4 == 0)) || usage "--mib is a multiple of 4"
((commands == 0)) || only+=('command-*')
[[ -z $json ]] || json=$(realpath -m "$json")

PATH=$PATH:/usr/sbin:/sbin
tools=(fio python3 gcc git make tar cmp diff)
[[ -n $dir ]] || tools+=("mkfs.$kind" losetup)
for tool in "${tools[@]}"; do
    command -v "$tool" >/dev/null || {
        printf 'measure-programs: %s is missing; scripts/install-demo-deps.sh installs it\n' "$tool" >&2
        exit 1
    }
done
[[ -n $dir || $(id -u) -eq 0 ]] || {
    printf 'measure-programs: only root can mount a file system in memory; name a directory with --dir\n' >&2
    exit 1
}

# shellcheck source=scripts/lib-python.sh
. scripts/lib-python.sh
export PYTHON_MODULES=$python_modules
# shellcheck source=scripts/lib-programs.sh
. scripts/lib-programs.sh
programs_begin programs
# Room for both sides and what they are given, by size and by files.
room=$((mib * 6 + small / 4 + 1024))
if [[ -n $dir ]]; then
    programs_directory "$dir"
    kind=$(stat -f -c %T "$dir")
    [[ $kind == ext2/ext3 ]] && kind=ext4
elif ! programs_device "$kind" "$room"; then
    printf 'measure-programs: no file system in memory can be had here (loop devices?); name a directory with --dir\n' >&2
    exit 1
fi
mkdir -p "$files/given" "$root/tools"
for tool in pieces calls checkpoint stream read scan life store; do
    gcc -O2 -Wall -pthread -o "$root/tools/$tool" "bench/programs/$tool.c" || exit 1
done
# No settings of this user's for git.
export HOME=$root GIT_CONFIG_NOSYSTEM=1

# Writeback in the background begins at a quarter: rows in memory are to stay below.
memory=$((mib * 8 > 512 ? mib * 8 : 512))MiB
programs_daemon --mem "$memory" --warm --idle-after never || exit 1
python3 -B bench/programs/measure.py --forebay "$forebay" --files "$files" --work "$root" --tools "$root/tools" \
    --memory "$memory" --daemon "$daemon" --kind "$kind" --device "$device" --json "$json" \
    --runs "$runs" --mib "$mib" --files-count "$small" --calls "$calls" \
    ${more[@]+"${more[@]}"} ${only[@]+"${only[@]}"}
