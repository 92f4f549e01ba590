#!/usr/bin/env bash
# A pool whose hosts are network namespaces, with certificates of an authority of its own: two hosts serve, three mount, and one has no certificate.
# Root, and a kernel that has namespaces and pairs of virtual links; elsewhere it is skipped.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1

away() {
    echo "$1"
    exit 77
}
[[ $(id -u) == 0 ]] || away 'network namespaces are for root'
[[ -e /dev/fuse ]] || away 'there is no /dev/fuse'
for program in ip openssl nsenter; do
    command -v "$program" >/dev/null || away "$program is missing (scripts/install-test-deps.sh installs it)"
done
for name in $(compgen -e | grep '^FOREBAY_' | grep -v '^FOREBAY_TEST_'); do unset "$name"; done
target=$PWD/${CARGO_TARGET_DIR:-target}
bin=${FOREBAY_TEST_BIN:-}
if [[ -z $bin ]]; then
    cargo build --quiet -p forebay-cli || exit 1
    bin=$target/debug
fi
forebay=$(realpath "$bin")/forebay
unset FOREBAY_TEST_BIN
scratch=$(mktemp -d -p "$target") || exit 1
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch/state HOME=$scratch
hosts=(1 2 3 4) net=forebay-$$
started=()
clean() {
    for host in "${hosts[@]}"; do "$forebay" umount --lazy "$scratch/$host/mount" 2>/dev/null; done
    ((${#started[@]} == 0)) || kill -KILL "${started[@]}" 2>/dev/null
    # Mounts wait for servers that are gone.
    pkill -KILL -f -- "forebay mount .*$scratch/" 2>/dev/null
    wait 2>/dev/null
    for host in "${hosts[@]}"; do ip netns delete "$net-$host" 2>/dev/null; done
    ip netns delete "$net-bridge" 2>/dev/null
    rm -rf --one-file-system "$scratch"
}
trap clean EXIT
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh

# Each host is a namespace with one link; the links meet in a bridge.
network() {
    ip netns add "$net-bridge" && ip -n "$net-bridge" link add bridge type bridge && ip -n "$net-bridge" link set bridge up || return 1
    for host in "${hosts[@]}"; do
        ip netns add "$net-$host" && ip -n "$net-$host" link add name eth0 type veth peer name "host$host" netns "$net-bridge" &&
            ip -n "$net-$host" address add "10.77.0.$host/24" dev eth0 && ip -n "$net-$host" link set eth0 up &&
            ip -n "$net-$host" link set lo up &&
            ip -n "$net-bridge" link set "host$host" master bridge up || return 1
    done
}
network >"$scratch/said" 2>&1 || away "no network of namespaces here: $(tail -n 1 "$scratch/said")"

# on HOST COMMAND...: with that host's network, and everything else as here.
on() { nsenter --net="/run/netns/$net-$1" "${@:2}"; }

new=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2)
openssl req -x509 "${new[@]}" -subj /CN=authority -keyout "$scratch/ca.key" -out "$scratch/ca.pem" 2>/dev/null || exit 1
for host in "${hosts[@]}"; do
    mkdir -p "$scratch/$host/mount"
    signed=(-CA "$scratch/ca.pem" -CAkey "$scratch/ca.key")
    # The third is its own authority.
    [[ $host != 3 ]] || signed=()
    openssl req -x509 "${new[@]}" -subj "/CN=host$host" -keyout "$scratch/$host/key" -out "$scratch/$host/certificate" "${signed[@]}" \
        -addext "subjectAltName=IP:10.77.0.$host" -addext basicConstraints=critical,CA:FALSE 2>/dev/null || exit 1
    cat >"$scratch/$host/pool.toml" <<END
servers = ["10.77.0.1:7411", "10.77.0.2:7411"]
copies = 2
term_ms = 10000
[tls]
certificate = "certificate"
key = "key"
authority = "../ca.pem"
END
done
for host in 1 2; do
    # No function: its process would be the one that is killed, and not the server.
    nsenter --net="/run/netns/$net-$host" "$forebay" serve "$scratch/$host/pool.toml" --server "$host" 2>/dev/null &
    started+=($!)
done
for host in 1 2 4; do
    expect "host $host mounts the pool" on "$host" "$forebay" mount --daemon "pool:$scratch/$host/pool.toml" "$scratch/$host/mount"
done
one=$scratch/1/mount two=$scratch/2/mount
tree() {
    mkdir "$one/tree" && cp -r docs "$one/tree/" && diff -r docs "$two/tree/docs" && mv "$two/tree/docs" "$two/tree/moved" && diff -r docs "$one/tree/moved" &&
        rm -r "$two/tree" && [[ -z $(ls "$one") ]]
}
expect 'what one host writes the other reads, renames and removes' tree
# shellcheck disable=SC2016
expect 'both hosts append to one file' bash -c 'for i in {1..50}; do echo one >>"$1/log"; done & for i in {1..50}; do echo two >>"$2/log"; done; wait
    [[ $(sort "$1/log" | uniq -c | tr -s " \n" " ") == " 50 one 50 two " ]]' sh "$one" "$two"
stranger() {
    ! on 3 timeout 30 "$forebay" mount --daemon "pool:$scratch/3/pool.toml" "$scratch/3/mount"
}
expect 'a host that the authority does not know is not let in' stranger
expect 'and the others go on' cmp "$one/log" "$two/log"
# Host 4 does not reach the second server for a while, and reaches the first one: whoever wants nothing of what host 4 has goes on.
four=$scratch/4/mount
dd if=/dev/urandom of="$scratch/bytes" bs=64K count=32 status=none
# All names are there before: a change of names has to be told to each host that knows them.
partly_cut() {
    : >"$four/from-4" && for i in {1..10}; do : >"$one/meanwhile-$i" || return 1; done
    ip -n "$net-4" route add blackhole 10.77.0.2/32 || return 1
    # shellcheck disable=SC2016
    timeout -k 5 60 bash -c 'cat "$1" >"$2" && sync "$2"' sh "$scratch/bytes" "$four/from-4" &
    local writer=$! status=0
    # Within less than a term: after it host 4 is given up, and that is why nobody waits for it.
    # shellcheck disable=SC2016
    timeout -k 5 8 bash -c 'for i in {1..10}; do cp "$1" "$2/meanwhile-$i" && cmp "$1" "$3/meanwhile-$i" || exit 1; done' sh "$scratch/bytes" "$one" "$two" || status=1
    sleep 1
    # With two copies each block is at both servers, so nothing of this host's is written.
    kill -0 "$writer" || status=1
    ip -n "$net-4" route del blackhole 10.77.0.2/32
    wait "$writer" && cmp "$scratch/bytes" "$one/from-4" && cmp "$scratch/bytes" "$four/meanwhile-10" || status=1
    return "$status"
}
expect 'a host that does not reach one server for a while holds up nobody, and goes on when it does' partly_cut
cut_off() {
    ip -n "$net-1" link set eth0 down && sleep 12 && ip -n "$net-1" link set eth0 up
}
printf 'kept' >"$one/kept" && sync "$one/kept"
expect 'the network is away for more than a term' cut_off
again() {
    for _ in {1..100}; do
        [[ $(cat "$two/kept" 2>/dev/null) == kept ]] && return
        "$forebay" umount --lazy "$two" 2>/dev/null
        on 2 "$forebay" mount --daemon "pool:$scratch/2/pool.toml" "$two" 2>/dev/null
        sleep 0.2
    done
    return 1
}
expect 'a host that was cut off is let in again, and what was synced is there' again
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
