#!/bin/sh
# The first program of the emulated machine of scripts/test-vm.sh. The kernel's command line says which boot it is (boot=N) and what the one before
# has left: api=STORE:SEED:COUNT and mounted=STORE:NUMBER for each store, programs=STORE:0 where programs have worked. What comes of it goes to the
# console, a line each.
. /begin
power='pmem-tests --exact tests::power::what_was_synced_is_there_after_the_end --nocapture'

# What lies on the NVDIMMs, from boot to boot.
begin() {
    for region in 0 1 4 5; do namespace $region fsdax; done
    for region in 2 3; do namespace $region devdax; done
    mkfs.ext4 -q -b 4096 /dev/pmem0 && mkfs.xfs -q -m reflink=0 /dev/pmem1 && mkfs.ext4 -q -b 4096 /dev/pmem4
}

# What was worked on by the API when the power was cut.
judge() {
    TEST_POWER=judge TEST_STORE=$1 TEST_SEED=$2 TEST_SYNCED=$3 $power >/tmp/judged 2>&1
    status=$?
    [ $status = 0 ] || cat /tmp/judged
    echo "JUDGED $1 $status"
}

# What was mounted: the calls on it took turns, so a file that was renamed says that all before it are there.
find_mounted() {
    store=$1 acknowledged=$2 name=$(basename "$1" | tr -d .) wrong=0
    place=/mnt$(dirname "$store")/$name
    forebay pmem check "$store" >/tmp/checked 2>&1 || wrong="check: $(cat /tmp/checked)"
    serve "$store"
    current=$(cat "$place/calls/current" 2>/dev/null)
    [ "${current:-0}" -ge "$acknowledged" ] || wrong="the last is ${current:-none}, $acknowledged was acknowledged"
    for number in $(seq 1 "${current:-0}"); do
        seq "$number" $((number + 3000)) | cmp -s - "$place/calls/$number" || wrong="$number is not whole"
    done
    # What came after it is there in part or not at all, as it was called.
    next=$place/calls/$((${current:-0} + 1))
    if [ -e "$next" ]; then
        seq $((${current:-0} + 1)) $((${current:-0} + 3001)) | head -c "$(stat -c %s "$next")" | cmp -s - "$next" || wrong="$next is neither"
    fi
    [ ! -e "$place/calls/$((${current:-0} + 2))" ] || wrong="$((${current:-0} + 2)) is there, and what came before is not"
    [ "$wrong" = 0 ] || ls -l "$place/calls"
    echo "FOUND $store $wrong ${current:-none}"
    rm -rf "$place/calls"
    leave "$store"
}

# took COMMAND...: does it, and says how long that took.
took() {
    begun=$(date +%s)
    "$@"
    echo "TOOK $(($(date +%s) - begun)) s: $*"
}

# leave STORE: unmounts it, at $place. Its process has the store until it has written everything.
leave() {
    forebay umount "$place"
    until forebay pmem check "$1" >/tmp/checked 2>&1 || ! grep -q 'open in another process' /tmp/checked; do sleep 0.1; done
}

# How a store says that it becomes durable. On a line of its own: a test that runs beside this may be in the middle of one.
durable() {
    forebay pmem info "$1" >/tmp/info 2>&1 || cat /tmp/info
    if grep -q 'durable by fdatasync' /tmp/info; then
        printf '\nDURABLE %s fdatasync\n' "$1"
    elif grep -q 'durable by the CPU (DAX)' /tmp/info; then
        printf '\nDURABLE %s %s\n' "$1" "$(grep -o 'clwb\|clflushopt\|clflush' /tmp/info | head -n 1)"
    fi
}

# Random operations on a mounted store, by seeds that are always the same. Shared mappings of a mount need a newer kernel.
explore() {
    printf '%s\n' 'flen = 400000' 'nomsyncafterwrite = true' '[weights]' 'mapread = 0' 'mapwrite = 0' 'close_open = 1' 'invalidate = 0' 'read = 10' 'write = 10' \
        'truncate = 2' 'fsync = 0.3' 'fdatasync = 0.3' 'posix_fallocate = 1' 'punch_hole = 1' 'copy_file_range = 1' >/tmp/fsx.toml
    serve "$1"
    for seed in 1 2 3; do
        fsx -q -S $seed -N 500 -P /tmp -f /tmp/fsx.toml "$place/fsx" >/tmp/explored 2>&1
        status=$?
        [ $status = 0 ] || tail -n 30 /tmp/explored
        echo "FSX $1 $seed $status"
        rm -f "$place/fsx"
    done
    leave "$1"
}

# What programs work with, and what they are to leave.
make_tree() {
    for number in $(seq 30); do
        mkdir -p /tmp/tree/$((number % 4))
        seq "$number" $((number * 60)) >/tmp/tree/$((number % 4))/"$number"
    done
    ln -s 1/5 /tmp/tree/link
    chmod 750 /tmp/tree/2
}

# Programs that others have written, on a mounted store: tar, git and sqlite, which syncs. What they leave stays there for the boots that come.
# Called by itself: behind a condition the shell would not heed `set -e`.
work_with_programs() {
    serve "$1"
    (
        set -e
        mkdir "$place/programs"
        cd "$place/programs"
        gnutar -C /tmp -cf tree.tar tree
        gnutar -xf tree.tar
        export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        git init -q repository
        cp -a tree repository
        git -C repository add .
        git -C repository commit -q -m first
        git -C repository rm -q -r tree/3
        git -C repository commit -q -m second
        git -C repository repack -q -a -d
        git clone -q repository clone
        git -C clone checkout -q HEAD~1
        sqlite3 database 'CREATE TABLE t (n INTEGER, s TEXT); CREATE INDEX i ON t (s);'
        for number in 0 1 2 3; do
            sqlite3 database "WITH RECURSIVE c(x) AS (SELECT $number UNION ALL SELECT x + 4 FROM c WHERE x < 996) INSERT INTO t SELECT x, 'name ' || x FROM c;"
        done
        sqlite3 database "UPDATE t SET n = -n WHERE n % 10 = 0; VACUUM;"
    ) >/tmp/programs 2>&1
    status=$?
    [ $status = 0 ] || tail -n 30 /tmp/programs
    echo "PROGRAMS $1 $status"
    leave "$1"
}

# What they have left, read by the programs themselves and by others.
judge_programs() {
    serve "$1"
    (
        set -e
        cd "$place/programs"
        diff -r /tmp/tree tree
        diff -r /tmp/tree clone/tree
        [ "$(readlink tree/link) $(stat -c %a tree/2)" = '1/5 750' ]
        [ ! -e repository/tree/3 ]
        gnutar -df tree.tar
        git -C repository fsck --full --strict
        git -C clone status --short >/tmp/status
        [ ! -s /tmp/status ]
        [ "$(sqlite3 database 'PRAGMA integrity_check; SELECT count(*), sum(n) FROM t; SELECT n FROM t WHERE s = '"'name 990'" | tr '\n' ' ')" = 'ok 1000|400500 -990 ' ]
    ) >/tmp/programs 2>&1
    status=$?
    [ $status = 0 ] || tail -n 30 /tmp/programs
    echo "LEFT BY PROGRAMS $1 $status"
    leave "$1"
}

# What crowds a mounted store: it is full, a directory has thousands of names, a thousand files are open. Then its process is killed, and what was synced is there.
crowd() {
    serve "$1"
    (
        set -e
        mkdir "$place/crowd"
        cd "$place/crowd"
        if dd if=/dev/zero of=filling bs=1M 2>/tmp/full; then exit 1; fi
        grep 'No space left' /tmp/full
        # What is there is written over, and room comes with what goes.
        seq 20000 | dd of=filling conv=notrunc 2>/dev/null
        seq 20000 | cmp -n "$(seq 20000 | wc -c)" - filling
        rm filling
        seq 20000 >after
        mkdir names
        number=0
        while [ $number -lt 2000 ]; do
            : >names/$number
            number=$((number + 1))
        done
        [ "$(ls names | wc -l)" = 2000 ]
        open-files 1000
        fsync .
    ) >/tmp/crowded 2>&1
    status=$?
    killed='no process is there to be killed'
    for process in /proc/[0-9]*; do
        case $(tr '\0' ' ' <"$process/cmdline" 2>/dev/null) in
        *" --background "*" $1 "*) kill -9 "${process#/proc/}" && killed=0 ;;
        esac
    done
    [ "$killed" = 0 ] || status=$killed
    leave "$1"
    serve "$1"
    if [ "$status" = 0 ]; then
        [ "$(ls "$place/crowd/names" | wc -l)" = 2000 ] && seq 20000 | cmp - "$place/crowd/after" || status="$? after its process was killed"
    else
        tail -n 30 /tmp/crowded
    fi
    rm -rf "$place/crowd"
    leave "$1"
    echo "CROWDED $1 $status"
}

# Calls on all mounted stores, in turn: a file, synced; then its number in a file that takes the place of another, synced too.
call() {
    for store in $mounted; do mkdir -p "/mnt$(dirname "$store")/$(basename "$store" | tr -d .)/calls"; done
    number=0
    while :; do
        number=$((number + 1))
        for store in $mounted; do
            place=/mnt$(dirname "$store")/$(basename "$store" | tr -d .)/calls
            seq $number $((number + 3000)) | dd of="$place/$number" bs=16k conv=fsync 2>/dev/null &&
                echo $number >"$place/new" && mv "$place/new" "$place/current" && fsync "$place" &&
                echo "ACKNOWLEDGED $store $number ." || echo "FAILED $store $number"
        done
    done
}

echo # What was on the console before it ends here.
[ "$boot" != 0 ] || begin
mount -t ext4 -o dax=always /dev/pmem0 /ext4 && mount -t xfs -o dax=always /dev/pmem1 /xfs && mount -t ext4 -o dax=never /dev/pmem4 /plain && echo 'PMEM READY'
make_tree
for word in $words; do
    value=${word#*=}
    case $word in
    api=*) judge $(echo "$value" | tr : ' ') ;;
    mounted=*) find_mounted $(echo "$value" | tr : ' ') ;;
    programs=*) judge_programs "${value%:*}" ;;
    esac
done
[ "$boot" = 0 ] || echo 'ALL JUDGED'
if [ "$boot" = 0 ]; then
    for place in ext4 xfs; do
        mkdir /$place/tmp && TMPDIR=/$place/tmp pmem-tests tests::files medium >/tmp/tests 2>&1
        status=$?
        grep '^test result' /tmp/tests
        [ $status = 0 ] || tail -n 30 /tmp/tests
        echo "TESTED $place $status"
    done
    # On ext4 pages get their places when they are written to first; MAP_SYNC makes those durable too.
    forebay pmem create --sparse --size 64MiB /ext4/mounted
    forebay pmem create --size 64MiB /xfs/mounted
    forebay pmem create --size 64MiB /plain/mounted
    forebay pmem create /dev/dax2.0
    for store in /ext4/mounted /xfs/mounted /dev/dax2.0; do
        took explore $store
        took crowd $store
        took work_with_programs $store
        judge_programs $store
    done
fi
mounted='/ext4/mounted /xfs/mounted /dev/dax2.0 /plain/mounted'
for store in $mounted; do durable $store; done
for store in /ext4/api /xfs/api /dev/dax3.0 /plain/api /dev/pmem5; do
    [ "$boot" = 0 ] && forebay pmem create --sparse --size 16MiB $store
    durable $store
    # A call on what is mounted takes several processes; a call here, one.
    TEST_POWER=work TEST_STORE=$store TEST_SEED=$((boot * 1000 + $(date +%s) % 1000)) nice -n 4 $power &
done
for store in $mounted; do serve $store; done
echo WORKING
call
