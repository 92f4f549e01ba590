# shellcheck shell=bash
# Programs that check what they read: fio and fsx under Forebay. Sourced by a script that has sourced lib.sh.
#
# $FSX_OPS: operations of each fsx run. $FSX: the program.

# fio_job NAME OPTIONS...: writes, reads back and verifies in the same run, then once more in a run of its own: what another
# program of the session finds; then plainly: what an outsider finds.
fio_job() {
    local name=$1 dir=$WHERE/$1 output
    shift
    wanted "$name" || return 0
    mkdir "$dir"
    local options=(--name=job --directory="$dir" --verify=crc32c --verify_fatal=1 --size=12M --randseed=7
        --ioengine=psync --end_fsync=0 --output="$dir/log" --verify_state_save=0 "$@")
    local reads=("${options[@]}" --verify_only)
    if ! output=$(timeout --kill-after=5 "$patience" "$forebay" run --require --linger 5 -- \
        fio "${options[@]}" 2>&1 </dev/null); then
        failed "$name" "$output $(tail -n 5 "$dir/log")"
    elif [[ " $* " != *" --time_based "* ]] &&
        ! output=$(timeout --kill-after=5 "$patience" fio "${reads[@]}" 2>&1 </dev/null); then
        failed "$name" "an outsider finds other bytes: $output $(tail -n 5 "$dir/log")"
    else
        passed "$name"
        rm -rf "$dir"
    fi
}

for size in 512 4k 64k 1m 4m; do
    fio_job "fio_write_$size" --rw=write --bs="$size"
    fio_job "fio_random_$size" --rw=randwrite --bs="$size" --blockalign=512
done
fio_job fio_ragged --rw=randwrite --bsrange=512-300k --bs_unaligned --blockalign=1
fio_job fio_mixed --rw=randrw --bsrange=512-100k --bs_unaligned --size=8M
fio_job fio_threads --rw=randwrite --bs=4k --numjobs=2 --thread --group_reporting
fio_job fio_processes --rw=randwrite --bs=20k --numjobs=2 --group_reporting
fio_job fio_fsync --rw=randwrite --bs=8k --fsync=16 --size=4M
fio_job fio_vectored --rw=randwrite --bs=32k --ioengine=pvsync
fio_job fio_direct --rw=randwrite --bs=8k --direct=1 --size=4M
fio_job fio_libaio --rw=randwrite --bs=8k --ioengine=libaio --iodepth=4 --size=4M
fio_job fio_uring --rw=randwrite --bs=8k --ioengine=io_uring --iodepth=4 --size=4M
fio_job fio_mmap --rw=randwrite --bs=4k --ioengine=mmap --size=4M
fio_job fio_background --rw=randwrite --bs=4k --verify_backlog=64 --size=6M

# fsx_run NAME SEED FLEN CONFIG
fsx_run() {
    local name=$1 seed=$2 config=$4
    wanted "$name" || return 0
    [[ -x $FSX ]] || {
        skipped "$name" "fsx is not installed: scripts/install-test-tools.sh says why"
        return
    }
    mkdir "$WHERE/$name.d"
    printf 'flen = %s\nnomsyncafterwrite = true\n%s\n' "$3" "$config" >"$WHERE/$name.d/fsx.toml"
    holds "$name" "$FSX" -q -S "$seed" -N "$FSX_OPS" -P "$WHERE/$name.d" -f "$WHERE/$name.d/fsx.toml" file
}

plain='[weights]
mapread = 0
mapwrite = 0
close_open = 1
read = 10
write = 10
truncate = 2
fsync = 0.3
fdatasync = 0.3'
full="$plain
posix_fallocate = 1
punch_hole = 1"
for seed in 1 2 3; do
    fsx_run "fsx_$seed" "$seed" 262144 "$plain"
    fsx_run "fsx_holes_$seed" "$seed" 3000000 "$full"
done
fsx_run fsx_large_writes 4 9000000 "[opsize]
min = 1
max = 3000000
$full"
fsx_run fsx_kernel_calls 5 500000 "$full
sendfile = 0.02
posix_fadvise = 1
copy_file_range = 0.02
invalidate = 0"

# fsx_maps NAME SEED FLEN MAPREAD: with maps, which are the kernel's. From its next opening on the file is the engine's again: without that
# less than a million bytes would go through it (149, 458 and 122 kB of 4.7, 5.0 and 3.4 MB in the first three). fsx 0.3 never unmaps what it reads
# by: from the first such read on the file stays with the kernel.
fsx_maps() {
    local weights
    weights=$(sed "s/^mapread = .*/mapread = $4/; s/^mapwrite = .*/mapwrite = 1/" <<<"$full")
    least=1000000 fsx_run "$1" "$2" "$3" "$weights"
}
for seed in 1 2 3; do
    fsx_maps "fsx_map_writes_$seed" "$seed" 262144 0
done
# These read so for the first time when more than a thousand operations are done.
for seed in 1 2 8; do
    fsx_maps "fsx_maps_$seed" "$seed" 3000000 0.01
done
