#!/usr/bin/env bash
# The engine's tests, and those of programs under the preload library, on a mounted store: files of it are in sessions like those of any other
# file system ("Sessions" in docs/mount.md).
#
# $FOREBAY_TEST_BIN: a directory with `forebay`, its library and the test program `programs`, instead of a debug build made here.
# Needs no loop devices, and no root where there is fusermount3.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1

away() {
    echo "$1"
    exit 77
}
[[ -e /dev/fuse ]] || away 'there is no /dev/fuse'
[[ $(id -u) == 0 ]] || command -v fusermount3 >/dev/null || away 'fusermount3 is missing (scripts/install-test-deps.sh installs it)'
for name in $(compgen -e | grep '^FOREBAY_' | grep -v '^FOREBAY_TEST_'); do unset "$name"; done
target=$PWD/${CARGO_TARGET_DIR:-target}
bin=${FOREBAY_TEST_BIN:-}
unset FOREBAY_TEST_BIN
if [[ ! -x $bin/programs ]]; then
    cargo build --quiet -p forebay-cli -p forebay-preload || exit 1
    program=$(cargo test -q -p forebay-preload --test programs --no-run --message-format=json 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
    bin=$(dirname "$program")/..
    programs=$program
fi
forebay=$(realpath "$bin/forebay")
programs=$(realpath "${programs:-$bin/programs}")
simulated=(cargo test -q --target-dir "$target/sim" -p forebay --features sim --test real --test processes --test kill
    --test recovery --test lifecycle --test device_files)

scratch=$(mktemp -d -p "$target") || exit 1
export FOREBAY_CONFIG=/dev/null XDG_STATE_HOME=$scratch/state
mkdir "$scratch/mount"
clean() {
    "$forebay" umount --lazy "$scratch/mount" 2>/dev/null
    rm -rf --one-file-system "$scratch"
}
trap clean EXIT
others=()
[[ $(id -u) == 0 ]] && others=(--allow-other -o "exec,suid,dev")
"$forebay" pmem create --sparse --size 2GiB "$scratch/store" >/dev/null || exit 1
# By /dev/fuse: what is asked is counted by the writes that answer it.
"$forebay" mount --daemon --ring never "${others[@]}" "$scratch/store" "$scratch/mount" 2>"$scratch/refused" || {
    grep -q 'not permitted\|/dev/fuse' "$scratch/refused" && away "$(tail -n 1 "$scratch/refused")"
    cat "$scratch/refused" && exit 1
}

# shellcheck source=tests/lib/results.sh
. tests/lib/results.sh
mkdir -m 1777 "$scratch/mount/tests"
export FOREBAY_TEST_DIRS=$scratch/mount/tests FOREBAY_TEST_ROUNDS=3
# What makes a disk or a cgroup of its own is the same wherever the files are.
elsewhere=(--skip planted_bugs --skip a_slow_device --skip a_file_made_longer
    --skip waited_for --skip memory_file_system --skip cgroup --skip pressure)
run 'the engine on a store' "${simulated[@]}" -- "${elsewhere[@]}"
run 'programs on a store' "$programs" appends:: closed:: model:: names:: outsiders:: sizes::

# By default settings a file comes into the session with its eighth write.
unset FOREBAY_TEST_DIRS FOREBAY_TEST_ROUNDS
begins() {
    local written
    FOREBAY_SESSION="store-$$-$1" "$forebay" run --memory 64MiB --linger 5 -- \
        dd if=/dev/zero of="$scratch/mount/tests/$1" bs=1000 count="$1" status=none || return 1
    written=$("$forebay" stat --session "store-$$-$1" | sed -n 's/^ *written *\(.*\) to memory,.*/\1/p')
    [[ $2 == kernel && $written == '0 B' || $2 == session && -n $written && $written != '0 B' ]]
}
for case in '7 kernel' '16 session'; do
    # shellcheck disable=SC2086 # two words
    if begins $case; then
        passed=$((passed + 1))
    else
        echo "failed: $case"
        failed=$((failed + 1))
    fi
done

# Under `forebay run` no call on a name, and no write that is synced, makes more requests than without, but for a first few that show what the program does.
# Before Linux 6.16 the sync and the look after the write are requests of their own.
is_new=$(printf '6.16\n%s\n' "$(uname -r)" | sort -VC && echo 1 || echo 0)
processes=(/proc/[0-9]*/cmdline)
server=$(grep -lzxF "$scratch/store" "${processes[@]}" 2>/dev/null | cut -d / -f 3)
count() { "$@" python3 tests/lib/requests.py "$scratch/mount/tests/names" "$server" && rm -r "$scratch/mount/tests/names/"; }
mkdir "$scratch/mount/tests/names" && count env >"$scratch/plain"
mkdir "$scratch/mount/tests/names" &&
    FOREBAY_SESSION="store-$$-names" count "$forebay" run --memory 64MiB --linger 5 -- >"$scratch/run"
if paste -d ' ' "$scratch/plain" "$scratch/run" |
    awk -v is_new="$is_new" '$1 != $3 || $4 > $2 + 10 && (is_new || $1 != "write_and_sync") { bad = 1 } END { exit bad || NR != 12 }'; then
    passed=$((passed + 1))
else
    printf 'failed: requests by calls, without `forebay run` and with it\n'
    paste -d ' ' "$scratch/plain" "$scratch/run"
    failed=$((failed + 1))
fi
rm -rf "$scratch/mount/tests"
"$forebay" umount "$scratch/mount" || failed=$((failed + 1))
if "$forebay" pmem check "$scratch/store" >"$scratch/checked" 2>&1; then
    passed=$((passed + 1))
else
    cat "$scratch/checked"
    failed=$((failed + 1))
fi
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
