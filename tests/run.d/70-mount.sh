#!/usr/bin/env bash
# Ordinary programs on a directory that `forebay mount` shows, on a store that it mounts, on that store under `forebay run`, and the same in a plain
# directory: they say and leave the same. Programs that check what they read themselves (fio, fsx), and programs under `forebay run` in the same session.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1

away() {
    echo "$1"
    exit 77
}
[[ -e /dev/fuse ]] || away 'there is no /dev/fuse'
[[ $(id -u) == 0 ]] || command -v fusermount3 >/dev/null || away 'fusermount3 is missing (scripts/install-test-deps.sh installs it)'
# $FOREBAY_TEST_BIN: a directory with forebay and its library, instead of a debug build made here.
# Whatever this user's environment says about Forebay is left out of it.
for name in $(compgen -e | grep '^FOREBAY_' | grep -v '^FOREBAY_TEST_'); do unset "$name"; done
target=$PWD/${CARGO_TARGET_DIR:-target}
bin=${FOREBAY_TEST_BIN:-}
if [[ -z $bin ]]; then
    cargo build --quiet -p forebay-cli -p forebay-preload || exit 1
    bin=$target/debug
fi
forebay=$(realpath "$bin")/forebay
unset FOREBAY_TEST_BIN
scratch=$(mktemp -d -p "$target") || exit 1
export FOREBAY_CONFIG=/dev/null FOREBAY_SESSION="mount-$$" XDG_STATE_HOME=$scratch/state HOME=$scratch GIT_CONFIG_NOSYSTEM=1
export FOREBAY_SMALL_FILE_BYTES=0 FOREBAY_LARGE_FILE_BYTES=0
mkdir "$scratch/below" "$scratch/mount" "$scratch/plain"
clean() {
    "$forebay" umount --lazy "$scratch/mount" 2>/dev/null
    rm -rf --one-file-system "$scratch"
}
trap clean EXIT
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh

skipped=0
skipping() {
    printf 'skipped: %s: %s\n' "$1" "$2"
    skipped=$((skipped + 1))
}
# same NAME PROGRAM SCRIPT: what a shell says and leaves on the mount, in the directory afterwards, and in a plain one, is the same.
same() {
    command -v "$2" >/dev/null || {
        skipping "$1" "$2 is missing"
        return
    }
    local place
    for place in mount plain; do
        mkdir "$scratch/$place/$1"
        local by=()
        [[ $place == mount ]] && by=("${under[@]}")
        (cd "$scratch/$place/$1" && timeout 120 "${by[@]}" bash -c "$3") >"$scratch/$1.$place" 2>&1
        echo "ends with $?" >>"$scratch/$1.$place"
    done
    expect "$1 says the same on a $kind" diff "$scratch/$1.plain" "$scratch/$1.mount"
    expect "$1 leaves the same on a mounted $kind" diff -r --no-dereference "$scratch/plain/$1" "$scratch/mount/$1"
    [[ $kind != directory ]] || expect "$1 leaves the same below it" diff -r --no-dereference "$scratch/plain/$1" "$scratch/below/$1"
}

"$forebay" mount --daemon --linger 1 --memory 96MiB "$scratch/below" "$scratch/mount" 2>"$scratch/refused" || {
    grep -q 'not permitted\|/dev/fuse' "$scratch/refused" && away "$(tail -n 1 "$scratch/refused")"
    cat "$scratch/refused" && exit 1
}
expect 'it is mounted' grep -q " $scratch/mount .* fuse.forebay " /proc/self/mountinfo
cp -r docs "$scratch/docs"
export S=$scratch GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b

export SOURCES=$PWD/tests/programs
# Its packages are kept beside what else is built here: they take longer than the program.
if command -v go >/dev/null; then
    expect 'a program of Go is built' env GOCACHE="$target/go" GOENV=off GOFLAGS= GO111MODULE=off GOTOOLCHAIN=local CGO_ENABLED=0 \
        nice go build -o "$scratch/go-program" "$SOURCES/mounted.go"
fi
# Containers of root's, and of a user's who is root in his own.
containers=()
for how in '' --user; do
    user=(${how:+-U -r})
    if unshare -m -p -f "${user[@]}" sh -c 'mount -t proc proc /proc' 2>/dev/null; then containers+=("within $how" "bound $how"); fi
done

# What is done on a mount of each kind.
programs() {
    same git git 'git init -q -b main . && cp -r "$S/docs" . && git add . && git commit -qm one && git rev-parse HEAD && sed -i s/the/The/ docs/*.md &&
    git commit -qam two && git fsck --strict 2>&1 | grep -v "^notice\|^Checking" ; git checkout -q HEAD~1 && git status --short && git rev-parse HEAD
    rm -rf .git/index .git/logs'
    # How many bytes a directory has is each file system's own.
    same tar tar 'tar cf a.tar -C "$S" docs && mkdir b && tar xf a.tar -C b && sleep 1 && tar df a.tar -C b &&
    ls -lR --time-style=full-iso b | grep -v "^total" | sed -E "s/^(d(\S+\s+){4})[0-9]+/\1-/" && tar tf a.tar'
    same sqlite sqlite3 'sqlite3 db "create table t(a integer primary key, b text); with recursive n(i) as (select 1 union all select i+1 from n where i < 3000)
    insert into t select i, hex(i*i) from n; pragma journal_mode=wal; update t set b = b || a where a % 3 = 0; pragma integrity_check; select sum(length(b)) from t"
    for i in 1 2 3; do sqlite3 -cmd ".timeout 20000" db "update t set b = b || $i where a < 100" & done; wait; sqlite3 db "select sum(length(b)) from t; vacuum; pragma integrity_check"
    rm db # Who came first differs.'
    same dd dd 'dd if=/dev/zero bs=4k count=300 2>/dev/null | tr "\0" x | dd of=a bs=7k 2>/dev/null; dd if=a of=b bs=1M 2>/dev/null; dd if=a of=b bs=64k seek=3 conv=notrunc,fsync 2>/dev/null
    dd if=b of=c bs=4k oflag=direct 2>/dev/null; cksum a b c; cp --sparse=always b d; truncate -s 1M d; cksum d; cat a >> b; cksum b'
    same c_build gcc 'for i in 1 2 3 4; do echo "int f$i(void) { return $i; }" > f$i.c; done
    echo "#include <stdio.h>
    int f1(void), f2(void), f3(void), f4(void); int main(void) { printf(\"%d\n\", f1() + f2() + f3() + f4()); }" > main.c
    for i in 1 2 3 4; do gcc -c f$i.c & done; gcc -c main.c; wait; gcc -o run main.o f?.o && ./run && ar rc l.a f?.o && gcc -static -o whole main.o l.a && ./whole; rm -f l.a'
    same python python3 'python3 - <<EOF
import os, shutil, tempfile, json, zipfile, pathlib
pathlib.Path("a/b/c").mkdir(parents=True)
for i in range(200):
    with open(f"a/b/c/{i}", "w") as f: f.write("line\n" * i)
with zipfile.ZipFile("z.zip", "w") as z:
    for i in range(200): z.writestr(zipfile.ZipInfo(str(i)), pathlib.Path(f"a/b/c/{i}").read_text())
print(len(zipfile.ZipFile("z.zip").namelist()), sum(f.stat().st_size for f in pathlib.Path("a").rglob("*")  if f.is_file()))
shutil.copytree("a", "d"); shutil.move("d/b/c/7", "seven"); shutil.rmtree("a")
with tempfile.TemporaryFile(dir=".") as f:
    f.write(b"x" * 100000); f.seek(50000); print(len(f.read()))
print(sorted(os.listdir("."))[:4], len(os.listdir("d/b/c")))
EOF'
    static
}

# Those that no preloaded library reaches: a program of Go, and static ones in containers.
static() {
    same go go '"$S/go-program"'
    local how
    # In a container there is no library either, which the loader complains of.
    [[ -z ${under[*]} ]] || return 0
    for how in "${containers[@]}"; do same "container-${how// /}" busybox 'bash "$SOURCES/contained.sh" '"$how"; done
    [[ -n ${containers[0]:-} ]] || skipping containers 'no namespaces can be made here'
}

# beneath COMMAND...: one with what programs on the mount are begun with.
beneath() {
    case $1 in
        timeout) timeout "$2" "${under[@]}" "${@:3}" ;;
        *) "$@" ;;
    esac
}
# check NAME PROGRAM COMMAND...: one that checks by itself.
check() {
    if command -v "$2" >/dev/null; then
        expect "$1 ($kind)" beneath "${@:3}"
    else
        skipping "$1" "$2 is missing"
    fi
}
fsx=$target/tools/bin/fsx
# A key-value store is filled by threads, and looked at once more.
rocks() {
    local db=$scratch/mount/rocks
    timeout 120 "${under[@]}" db_bench "--db=$db" --benchmarks=fillseq,fillrandom,readrandom,overwrite,compact,verifychecksum --num=6000 --value_size=400 --threads=2 \
        --compression_type=none --cache_size=1048576 --write_buffer_size=1048576 --statistics=0 --stats_interval=1000000000 "$@" &&
        timeout 120 "${under[@]}" db_bench "--db=$db" --use_existing_db=1 --benchmarks=verifychecksum,readseq --num=6000 && ldb "--db=$db" checkconsistency && rm -r "$db"
}
verified=(fio --name=v --verify_state_save=0 --directory="$scratch/mount" --size=12M --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0)
checking() {
    check 'fio finds what it has written, at random' fio timeout 120 "${verified[@]}" --rw=randwrite --bsrange=512-64k --bs_unaligned=1
    check 'fio finds what it has written, by several' fio timeout 120 "${verified[@]}" --rw=randwrite --bs=4k --numjobs=3 --fsync=64
    check 'fio finds what it has written, large and past caches' fio timeout 120 "${verified[@]}" --rw=write --bs=1M --direct=1
    check 'fsx' "$fsx" timeout 120 "$fsx" -q -S 1 -N 2000 -P "$scratch" "$scratch/mount/fsx"
    check 'RocksDB' db_bench rocks
    check 'RocksDB, direct' db_bench rocks --use_direct_io_for_flush_and_compaction=1 --use_direct_reads=1
    check 'RocksDB, mapped' db_bench rocks --mmap_read=1 --mmap_write=1
    local seed
    for seed in 2 3 4; do
        check "fsx with holes, copies and closes, seed $seed" "$fsx" timeout 120 "$fsx" -q -S "$seed" -N 2000 -P "$scratch" -f "$scratch/fsx.toml" "$scratch/mount/fsx$seed"
        check "fsx with large writes, seed $seed" "$fsx" timeout 120 "$fsx" -q -S "$seed" -N 300 -P "$scratch" -f "$scratch/fsx-large.toml" "$scratch/mount/fsx$seed-large"
    done
}
weights='nomsyncafterwrite = true
[weights]
close_open = 1
invalidate = 1
mapread = 5
mapwrite = 5
read = 10
write = 10
truncate = 2
fsync = 0.3
fdatasync = 0.3
posix_fallocate = 1
punch_hole = 1
sendfile = 1
posix_fadvise = 1
copy_file_range = 1'
printf 'flen = 3000000\n%s\n' "$weights" >"$scratch/fsx.toml"
printf 'flen = 20000000\n%s\n[opsize]\nmin = 1\nmax = 5000000\n' "$weights" >"$scratch/fsx-large.toml"

# What programs on the mount are begun with.
under=()
kind=directory
programs
checking

# A program of the session and one on the mount, in turn in one file.
both() {
    local i
    for i in 1 2 3 4 5 6 7 8; do
        echo "mount $i" >>"$scratch/mount/both" && "$forebay" run --require -- sh -c "echo run $i >> '$scratch/below/both'" || return 1
    done
    diff "$scratch/mount/both" <(for i in 1 2 3 4 5 6 7 8; do printf 'mount %d\nrun %d\n' $i $i; done)
}
expect 'a program under forebay run and one on the mount append to one file' both
expect 'it is unmounted' "$forebay" umount "$scratch/mount"
expect 'what was appended is there' diff "$scratch/below/both" <(for i in 1 2 3 4 5 6 7 8; do printf 'mount %d\nrun %d\n' $i $i; done)

# The same on a store, which is in order in the end.
rm -rf "$scratch/plain" && mkdir "$scratch/plain"
kind=store
"$forebay" pmem create --sparse --size 512MiB "$scratch/store" >/dev/null
expect 'a store is mounted' "$forebay" mount --daemon "$scratch/store" "$scratch/mount"
programs
checking
# And once more in a session.
rm -rf "$scratch/plain" "$scratch/mount"/* && mkdir "$scratch/plain"
kind='store in a session'
under=("$forebay" run --require --memory 96MiB --)
programs
checking
expect 'the store is synced' sync "$scratch/mount"
expect 'the store is unmounted' "$forebay" umount "$scratch/mount"
expect 'the store is in order' "$forebay" pmem check "$scratch/store"
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
