#!/bin/sh
# The first program of the emulated machine of bench/programs/pool-and-nfs.sh.
. /begin
for word in $words; do
    case $word in rounds=* | threads=*) eval "$word" ;; esac
done
fail() {
    echo "FAILED $*"
    while :; do sleep 1000; done
}
for module in nfsd nfsv4 rpcsec_gss_krb5; do modprobe $module || fail "$module"; done
for region in 0 1; do namespace $region fsdax; done
mkfs.ext4 -q -b 4096 /dev/pmem0 && mkfs.ext4 -q -b 4096 /dev/pmem1
mount -t ext4 -o dax=never /dev/pmem0 /ext4 && mount -t ext4 -o dax=never /dev/pmem1 /plain || fail 'no file systems'
echo
echo "MACHINE $(uname -r), $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource), $(nproc) CPUs"
sides='nfs pool async bare believing ext4'
mkdir -p /run /var/lib/nfs/rpc_pipefs /ext4/nfs /ext4/async /ext4/home /ext4/ext4 /plain/async
for side in $sides; do mkdir -p /mnt/$side; done
ln -s /proc/mounts /etc/mtab
ifconfig lo 127.0.0.1 up

# The kernel's server and client. What is exported `async` is another file system, which lies below the first.
mount -t rpc_pipefs none /var/lib/nfs/rpc_pipefs
mount -t nfsd none /proc/fs/nfsd
mount -o bind /plain/async /ext4/async
cat >/etc/exports <<END
/ext4 127.0.0.1(rw,sync,no_subtree_check,no_root_squash,fsid=0)
/ext4/async 127.0.0.1(rw,async,no_subtree_check,no_root_squash,fsid=1)
END
# Nobody has anything from before: the shortest time for that.
echo 10 >/proc/fs/nfsd/nfsv4gracetime
exportfs -ar && rpc.mountd -N 3 && rpc.nfsd -N 3 8 || fail 'nfsd'
for side in nfs async; do mount.nfs 127.0.0.1:/$side /mnt/$side -o vers=4.2 || fail "$side"; done
grep nfs4 /proc/mounts

# Pools of one server each: one with a home on the first file system, mounted twice, and one without.
pool() {
    printf 'servers = ["127.0.0.1:%s"]\n%s\n' $2 "$3" >/tmp/$1.toml
    forebay serve /tmp/$1.toml --server 1 >/tmp/$1.log 2>&1 &
}
pool home 7411 'home = "/ext4/home"'
pool bare 7421
forebay mount --daemon pool:/tmp/home.toml /mnt/pool || fail 'pool'
forebay mount --daemon --believe 3 pool:/tmp/home.toml /mnt/believing || fail 'believing'
forebay mount --daemon pool:/tmp/bare.toml /mnt/bare || fail 'bare'
mount -o bind /ext4/ext4 /mnt/ext4
for side in $sides; do mkdir /mnt/$side/$side; done

idle() { awk '/^cpu /{ print $5 + $6 }' /proc/stat; }
# What NFS clients have asked for so far, and what has gone by loopback.
requests() { awk -v mount="/mnt/$1" '/^device/ { is = $5 == mount } is && /^\t *[A-Z_]+: [0-9]/ { sum += $2 } END { print sum + 0 }' /proc/self/mountstats; }
segments() { awk '/^Tcp: [0-9]/ { print $12 }' /proc/net/snmp; }
# count SIDE NAME WORDS...: what the program says, NFS requests, segments, and how long the machine had nothing to do, in hundredths of a second.
count() {
    side=$1 name=$2 idle=$(idle) requests=$(requests $1) segments=$(segments)
    shift 2
    "$@" >/tmp/counted 2>&1 || fail "$side $* $(cat /tmp/counted)"
    grep -E '^[a-z]+\.[a-z0-9]+-[0-9]+ [0-9]+$' /tmp/counted | sed "s/^/COUNTED $side /"
    # RocksDB's microseconds.
    sed -n "s/^\([a-z]*\) *: *\([0-9.]*\) micros.op.*/COUNTED $side rocks.\1$synced \2/p" /tmp/counted | awk '{ $4 *= 1000; print }'
    echo "BESIDE $side $name $(($(idle) - idle)) $(($(requests $side) - requests)) $(($(segments) - segments))"
}
rocks="--value_size=400 --compression_type=none --cache_size=65536 --write_buffer_size=1048576 --statistics=0 --stats_interval=1000000000 --threads=1"
for round in $(seq $rounds); do
    for side in $sides; do
        cd /mnt/$side/$side
        for kind in files web mail; do
            for count in $(echo $threads | tr , ' '); do count $side $kind-$count mixes "$PWD" $kind 50 40 $count; done
        done
        count $side rocks db_bench --db=rocks --num=10000 --benchmarks=fillseq,overwrite,readrandom,verifychecksum $rocks
        synced=synced
        count $side rocks$synced db_bench --db=rocks --num=100 --sync=1 --benchmarks=fillrandom,verifychecksum $rocks
        synced=
        rm -rf rocks
    done
    echo "ROUND $round"
done
for side in pool believing bare; do cd / && forebay umount /mnt/$side || fail "the end of $side"; done
echo 'ALL COUNTED'
while :; do sleep 1000; done
