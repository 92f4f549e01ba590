#!/usr/bin/env bash
# scripts/measure-programs.sh and count-calls.sh at tiny sizes: every row has its figures, files are compared, and nothing is left behind.
# $FOREBAY_TEST_BIN: a directory with forebay and its library, instead of a debug build made here.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1

away() {
    echo "$1"
    exit 77
}

[[ $(id -u) -eq 0 ]] || away "not root, so nothing can be mounted"
for tool in mkfs.xfs losetup fio git gcc make python3; do
    command -v "$tool" >/dev/null || away "$tool is missing (scripts/install-demo-deps.sh installs it)"
done
[[ -e /dev/loop-control ]] || away "no loop devices"
if [[ -z ${FOREBAY_TEST_BIN:-} ]]; then
    cargo build --quiet -p forebay-cli -p forebay-preload || away "forebay does not build"
    export FOREBAY_TEST_BIN=$PWD/${CARGO_TARGET_DIR:-target}/debug
fi
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"

# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh

# What it leaves: mounts, loop devices, arenas, scratch directories.
left_behind() {
    grep -F "$TMPDIR" /proc/self/mountinfo
    losetup --list --noheadings --output BACK-FILE | grep -F "$TMPDIR"
    find "$TMPDIR" -mindepth 1
}
clean() { [[ -z $(left_behind) ]] || { left_behind && false; }; }
named() {
    local said
    said=$("$@" 2>&1) && return 1
    [[ $said == *'fio is missing; scripts/install-demo-deps.sh installs it'* ]]
}
refused() { "$@" && return 1 || (($? == 2)); }

measure=scripts/measure-programs.sh
# Each group has at least one row with figures of both sides, and none is zero.
complete() {
    python3 - "$scratch/found.json" $($measure --list | grep -cv '^pf3d\|^stream\|^corpus\|^scan\|^life') <<'END'
import json, sys
found = json.load(open(sys.argv[1]))
rows = found["rows"]
assert found["schema"] == 1 and found["runs"] == 1 and len(rows) > 2 * int(sys.argv[2]), found
for row in rows:
    assert row["met"] in ((None,) if row["target"] is None else (True, False)), row
    assert set(row["sides"]) == {row["base"], row["ours"]}, row
    for side in row["sides"].values():
        assert len(side["figures"]) == 1 and side["median"] > 0, row
END
}
# Files that differ must be found, and a program that fails.
finds_differences() {
    PYTHONPATH=bench/programs python3 -B - "$scratch" <<'END'
import os, sys
from argparse import Namespace
import measure
from measure import Place, Wrong

where = sys.argv[1]
place = Place(Namespace(forebay="", files=where, work=where, tools=where, mib=4, files_count=1, daemon=0, memory=""))
for side, content in (("one", b"bytes"), ("two", b"bytes"), ("three", b"bytez")):
    os.mkdir(place.path(side, ""))
    with open(place.path(side), "wb") as file:
        file.write(content)
place.same_file("file", "one", "two")
place.same_tree(place.path("one", ""), place.path("two", ""))
for wrong in (
    lambda: place.same_file("file", "one", "two", "three"),
    lambda: place.same_tree(place.path("one", ""), place.path("three", "")),
    lambda: place.said(["false"]),
):
    try:
        wrong()
    except Wrong:
        continue
    sys.exit("something wrong was not found")
END
}
# Medians, spreads, and both kinds of verdict.
figures_right() {
    PYTHONPATH=bench/programs python3 -B - <<'END'
from figures import Row
for kind, target, result, met in (
    ("faster", 2, 3, True), ("faster", 4, 3, False), ("share", 0.5, 1 / 3, True), ("share", 0.3, 1 / 3, False),
    ("more", -3, -4, True), ("more", -5, -4, False), ("faster", None, 3, None),
):
    row = Row("row", kind, "s", target)
    for figure in (6, 5, 90):
        row.add("kernel", figure)
    for figure in (2, 3, 1):
        row.add("forebay", figure)
    assert abs(row.result() - result) < 1e-9 and row.met() is met, (kind, row.result(), row.met())
    assert row.spread("forebay") == 0.5
END
}
# The first round does not count, and a side that is not there stays empty.
tables_right() {
    printf '%s\n' '0 a one 900' '1 a one 10' '2 a one 30' '3 a one 20' '1 b one 5' '2 b one 5' '3 b one 80' '1 b two 7' >"$scratch/all" || return 1
    PYTHONPATH=bench/programs python3 -B - "$scratch/all" >"$scratch/table" <<'END' || return 1
import sys
from tables import measured, table
table("what", measured(sys.argv[1], 0.1), {"a": "A", "b": "B"}, [("a", "b")], spread=True)
END
    diff "$scratch/table" - <<'END'
| what | A | B | A / B |
| --- | --- | --- | --- |
| one | 2.0 | 0.5 | 4.00 |
  spread: a 1.0-3.0, b 0.5-8.0
| two |  | 0.7 |  |
  spread: b 0.7-0.7
END
}

expect 'medians and verdicts' figures_right
expect 'tables of medians' tables_right
expect 'differences are found' finds_differences
expect 'all groups at tiny sizes' \
    $measure --runs 1 --mib 8 --small 60 --calls 5000 --json "$scratch/found.json"
expect 'every row has its figures' complete
if [[ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]]; then
    expect 'groups with limited memory' $measure --runs 1 --mib 64 pf3d-small-multi stream-64k-2
    expect 'their cgroups are gone' eval '! ls /sys/fs/cgroup/memory | grep "^forebay-bench-"'
fi
expect 'files that live briefly, and commands that are given' \
    $measure --runs 1 --mib 8 --small 20 --command 'sort text >sorted' --command 'cp -r small copy' life-small life-table life-store
# A life's calls: the program's own are exact without Forebay, and a managed one makes none of its writes.
counts_calls() {
    local said
    said=$(scripts/count-calls.sh --dir "$TMPDIR" --writes 3 --json) || return 1
    python3 -c 'import json, sys
calls = json.loads(sys.argv[1])["calls"]
assert calls["write"][:2] == [3, 3] and calls["write"][2] < 1, calls
assert calls["unlink"] == [1, 1, 1] and calls["openat"][0] == 2, calls' "$said"
}
if command -v strace >/dev/null; then
    expect 'the calls of a life are counted' counts_calls
fi
expect 'an option that it does not have' refused scripts/count-calls.sh --no-such-option
expect 'nothing is left behind' clean
expect 'a directory that is given' $measure --dir "$TMPDIR" --runs 1 --mib 4 --small 20 --calls 5000 overwrite 'tar-?'
expect 'nothing is left behind in it' clean
expect 'a group that does not exist ends it, cleanly' \
    eval '! $measure --dir "$TMPDIR" --mib 4 no-such-group && clean'
expect 'an option that does not exist' refused $measure --no-such-option
mkdir "$scratch/bin"
ln -s "$(command -v bash)" "$(command -v dirname)" "$(command -v sed)" "$scratch/bin/"
expect 'a tool that is missing is named' named env "PATH=$scratch/bin" bash $measure
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
