"""Experiments with reading: files that are not in memory, and a working set beside a scan."""

import json
import os
import subprocess

from figures import Row
import limited

MIB = 1 << 20
# From the first byte on, so that all of a file is read by one side.
WHOLE = ["env", "FOREBAY_SMALL_FILE_BYTES=0", "FOREBAY_LARGE_FILE_BYTES=0"]


def device_bytes(place, session=None):
    """What the session has read from devices for readers."""
    session = session or ["--session", os.environ["FOREBAY_SESSION"]]
    said = json.loads(subprocess.run([place.forebay, "stat", "--json", *session], capture_output=True, text=True, check=True).stdout)
    return next(found for found in values(said, "device_read_bytes"))


def values(tree, key):
    """What is called `key` anywhere."""
    if isinstance(tree, dict):
        if key in tree:
            yield tree[key]
        tree = list(tree.values())
    if isinstance(tree, list):
        for part in tree:
            yield from values(part, key)


class ColdRead:
    """Files that are in nobody's memory, from beginning to end: against the kernel's buffered reads, and its direct ones."""

    sides = ["kernel", "direct", "forebay"]

    def __init__(self, kib, threads, mib):
        self.kib, self.threads, self.bytes = kib, threads, max(mib, 8) * MIB // 8 * 8
        size = f"{kib // 1024} MiB" if kib >= 1024 else f"{kib} KiB"
        name = f"cold sequential read, {size}, {threads} thread{'s' if threads > 1 else ''}"
        self.rows = [
            Row(f"{name}, against buffered", "faster", "ms", 1.0),
            Row(f"{name}, against direct", "faster", "ms", 0.9 if kib >= 64 else None, base="direct"),
        ]
        self.made = False

    def program(self, place, *arguments):
        return [os.path.join(place.tools, "read"), *map(str, arguments)]

    def prepare(self, place, side):
        # The same files for all sides: they are not changed.
        where = place.path("given", "")
        if not self.made:
            place.fresh("given")
            # A file that no program of a session has written is the kernel's.
            place.said(WHOLE + place.under("forebay", self.program(place, "make", ".", self.bytes, self.threads)), where)
            self.made = True
        place.settle(self.bytes // MIB)
        for thread in range(self.threads):
            place.evict(os.path.join(where, f"read_{thread}"))

    def run(self, place, side):
        way = "direct" if side == "direct" else "buffered"
        command = self.program(place, "read", ".", self.bytes, self.threads, self.kib << 10, way)
        before = device_bytes(place)
        command = place.under(side, command)
        if side == "forebay":
            command = WHOLE + command
        seconds = json.loads(place.said(command, place.path("given", "")))["seconds"]
        if side == "forebay" and device_bytes(place) - before < self.bytes:
            raise OSError("the session has not read the files from the device")
        return {row.name: seconds * 1e3 for row in self.rows if side in row.values}

    def check(self, place):
        """The program looks at every page."""


class ScanHotReader(limited.Limited):
    """A working set of half the memory, read at random, beside a scan of eight times the memory."""

    own_mib = 16

    def __init__(self, kib, pause, mib):
        super().__init__(mib, ["kernel", "forebay"])
        self.kib, self.pause = kib, pause
        name = f"4 KiB at random{f', a pause of {pause} µs after each,' if pause else ''} beside a scan by {kib} KiB"
        self.rows = [
            Row(f"{name}: found in memory", "more of", "%", 0.999),
            Row(f"{name}: time for each", "faster", "µs"),
            Row(f"{name}: the scan", "faster", "ms"),
        ]
        self.made = False

    def prepare(self, place, side):
        where = place.path("given", "")
        if not self.made:
            self.cgroup, self.session = limited.Cgroup((self.mib + self.own_mib) * MIB), limited.Session(place, self.mib)
            place.fresh("given")
            place.said(self.under(place, self.program(place, "make")), where)
            self.made = True
        place.settle(2 * self.mib)
        for name in ("hot", "scan"):
            place.evict(os.path.join(where, name))

    def program(self, place, what, *more):
        return [os.path.join(place.tools, "scan"), what, ".", str(self.mib // 2 * MIB), str(self.mib * 8 * MIB), *more]

    def under(self, place, command):
        return [*WHOLE, place.forebay, "run", "--require", "--session", self.session.name, "--", *command]

    def run(self, place, side):
        command, join = self.program(place, "read", str(self.kib << 10), str(self.pause)), self.cgroup.join
        if side == "forebay":
            command, join = self.under(place, command), None
        ran = subprocess.run(command, cwd=place.path("given", ""), stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=join)
        if ran.returncode != 0:
            raise OSError(f"{' '.join(command)}: exit {ran.returncode}\n{ran.stdout}{ran.stderr}")
        said = json.loads(ran.stdout)
        session = ["--session", self.session.name]
        if side == "forebay" and device_bytes(place, session) < self.mib * 8 * MIB:
            raise OSError("the session has not read the files from the device")
        # On both sides a read that misses reads one page, by the reading thread itself.
        missed = said["device_bytes"] / 4096
        each = said["seconds"] / said["reads"]
        return dict(zip((row.name for row in self.rows), (100 - 100 * missed / said["reads"], each * 1e6, said["seconds"] * 1e3)))

    def check(self, place):
        """The program looks at every page."""


def groups(mib):
    """By name; `mib` is how much is read, or the memory that both sides may use."""
    found = {}
    for name, kib in (("4k", 4), ("64k", 64), ("1m", 1024), ("4m", 4096)):
        for threads in (1, 2):
            found[f"cold-read-{name}-{threads}"] = ColdRead(kib, threads, mib)
    found["scan-hot-reader"] = ScanHotReader(64, 0, mib)
    found["scan-warm-reader"] = ScanHotReader(64, 50, mib)
    return found
