# shellcheck shell=bash disable=SC2016 # scripts for another shell
# Programs that bring much with them: a key-value store, arrays in files, copies of trees, and the machines of other languages.
# Sourced by a script that has sourced lib.sh.

bigger=$PWD/tests/programs

# needs NAME PROGRAM: whether it is there; else the test is skipped.
needs() {
    wanted "$1" || return 1
    command -v "$2" >/dev/null && return 0
    skipped "$1" "$2 is missing"
    return 1
}

rocks="--benchmarks=fillseq,fillrandom,readrandom,overwrite,compact,verifychecksum --num=40000 --value_size=400 --threads=2
    --compression_type=none --cache_size=4194304 --write_buffer_size=2097152 --statistics=0 --stats_interval=1000000000"
# rocksdb NAME OPTION...: filled under Forebay, by threads; checksums and order are looked at under Forebay and outside.
rocksdb() {
    local name=$1 options="$rocks ${*:2}" dir=$WHERE/$1
    needs "$name" db_bench || return 0
    mkdir "$dir"
    # shellcheck disable=SC2086 # words
    if ! timeout "$patience" "$forebay" run --require --linger 5 "--report=$dir/report" --json -- \
        db_bench "--db=$dir/db" $options >"$dir/out" 2>&1; then
        failed "$name" "$(tail -n 3 "$dir/out")"
    elif ! db_bench "--db=$dir/db" --use_existing_db=1 --benchmarks=verifychecksum,readseq --num=40000 >"$dir/out" 2>&1 ||
        ! ldb "--db=$dir/db" checkconsistency >>"$dir/out" 2>&1; then
        failed "$name" "outside: $(tail -n 3 "$dir/out")"
    elif (($(bytes_through "$dir/report") < 20000000)); then
        failed "$name" "only $(bytes_through "$dir/report") bytes through the engine"
    else
        passed "$name" "$(bytes_through "$dir/report") bytes through the engine"
    fi
    rm -rf "$dir"
}
rocksdb rocksdb
rocksdb rocksdb_direct --use_direct_io_for_flush_and_compaction=1 --use_direct_reads=1
rocksdb rocksdb_maps --mmap_read=1 --mmap_write=1

# The system's Python: it has the system's modules.
if wanted arrays && ! /usr/bin/python3 -c 'import h5py, numpy' 2>/dev/null; then
    skipped arrays "h5py and numpy are missing (scripts/install-test-deps.sh installs them)"
else
    same arrays "
        /usr/bin/python3 -B $bigger/arrays.py || exit
        # Times are in them.
        rm a.h5 a.npz"
fi
! needs rsync rsync || same rsync '
    mkdir source
    for i in $(seq 300); do head -c $((i * 397)) /usr/bin/git | tail -c +$i >source/$i; done
    rsync -a source/ copy
    echo more >>source/7; rm source/9; head -c 50000 /usr/bin/env >source/200
    rsync -a --checksum --inplace --delete source/ copy
    rsync -a --checksum --append-verify source/ copy
    diff -r source copy && echo the same'
! needs node node || same node "node $bigger/files.js"
! needs java java || same java "java -Xmx200m $bigger/Files.java 2>&1"
