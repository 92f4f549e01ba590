"""Experiments with limited memory: checkpoints of a parallel program, and writing several times the memory.

Both sides get the same: the kernel's program runs in a memory cgroup that allows so much page cache (and what the program has of
its own), Forebay's in a session whose memory is so much. Memory is touched before for both.
"""

import hashlib
import json
import os
import shutil
import subprocess

from figures import Row

MIB = 1 << 20


class Cgroup:
    """A memory cgroup (version 1) below the one that this process is in."""

    def __init__(self, limit):
        with open("/proc/self/cgroup") as file:
            here = next((line.strip().split(":", 2)[2] for line in file if line.split(":")[1] == "memory"), None)
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file]
        at = [fields for fields in mounts if fields[-3] == "cgroup" and "memory" in fields[-1].split(",")]
        if here is None or not at:
            raise OSError("no memory cgroup (version 1) can be had here; rows with limited memory need one")
        root, mount = at[0][3], at[0][4]
        below = os.path.relpath(here, root) if here.startswith(root) else "."
        self.path = os.path.join(mount, below, f"forebay-bench-{os.getpid()}-{limit}")
        os.makedirs(self.path, exist_ok=True)
        self.write("memory.limit_in_bytes", limit)

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w") as file:
            file.write(str(value))

    def join(self):
        self.write("cgroup.procs", os.getpid())

    def remove(self):
        self.write("memory.force_empty", 0)
        os.rmdir(self.path)


class Session:
    """A daemon of its own with so much memory, all of it touched."""

    def __init__(self, place, mib):
        self.name = f"{os.environ['FOREBAY_SESSION']}-limited-{mib}"
        read, write = os.pipe()
        command = [place.forebay, "daemon", "--session", self.name, "--mem", f"{mib}MiB", "--warm", "--idle-after", "never",
                   "--ready-fd", str(write)]
        self.daemon = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL)
        os.close(write)
        with os.fdopen(read) as ready:
            if not ready.readline():
                raise OSError("the daemon with limited memory does not start")

    def end(self):
        self.daemon.terminate()
        self.daemon.wait()


class Limited:
    """What the experiments share: the limits are made when first needed, and files are looked at and removed after each run."""

    def __init__(self, mib, sides):
        self.mib, self.sides = mib, sides
        self.cgroup = self.session = None
        self.seen = {}

    def prepare(self, place, side):
        if self.cgroup is None:
            self.cgroup, self.session = Cgroup((self.mib + self.own_mib) * MIB), Session(place, self.mib)
        place.fresh(side)
        place.settle(2 * self.mib)

    def said(self, place, side, command):
        where = place.path(side, "")
        join = None
        if side == "forebay":
            command = [place.forebay, "run", "--require", "--linger", "0.2", "--session", self.session.name, "--", *command]
        else:
            join = self.cgroup.join
        ran = subprocess.run(command, cwd=where, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=join)
        if ran.returncode != 0:
            if side == "dontcache" and "not supported" in ran.stderr:
                return None
            raise OSError(f"{' '.join(command)}: exit {ran.returncode}\n{ran.stdout}{ran.stderr}")
        self.look(place, side)
        return json.loads(ran.stdout)

    def look(self, place, side):
        where = place.path(side, "")
        digests = []
        for name in sorted(os.listdir(where)):
            with open(os.path.join(where, name), "rb") as file:
                digests.append((name, hashlib.file_digest(file, "blake2b").hexdigest()))
        self.seen[side] = digests
        shutil.rmtree(where)
        os.mkdir(where)

    def check(self, place):
        different = [side for side in self.seen if self.seen[side] != self.seen["kernel"]]
        if different or not self.seen["kernel"]:
            raise OSError(f"files differ: {different}")

    def end(self):
        for made in (self.session and self.session.end, self.cgroup and self.cgroup.remove):
            if made:
                made()
        self.session = self.cgroup = None


class Checkpoint(Limited):
    """One of PF3DIO's patterns (see checkpoint.c), by four processes."""

    processes = 4

    def __init__(self, pattern, problem, elements, mib):
        super().__init__(mib, ["kernel", "forebay"])
        self.pattern, self.elements = pattern, elements
        self.own_mib = self.processes * elements * 8 // MIB + 64
        name = f"PF3DIO {pattern}, {problem}"
        # The paper's gains: 1.26 at least, 1.44 on average.
        self.rows = [Row(f"{name}: closed", "faster", "ms", 1.26), Row(f"{name}: durable", "faster", "ms")]

    def run(self, place, side):
        said = self.said(place, side, [os.path.join(place.tools, "checkpoint"), ".", self.pattern, str(self.elements), str(self.processes)])
        return {self.rows[0].name: said["closed"] * 1e3, self.rows[1].name: said["durable"] * 1e3}


class Stream(Limited):
    """Writing four times the memory, until it is durable, against the best of the kernel's ways."""

    own_mib = 64

    def __init__(self, kib, threads, mib):
        super().__init__(mib, ["kernel", "kernel, always", "dontcache", "direct", "forebay"])
        self.kib, self.threads = kib, threads
        name = f"4 times the memory, {kib} KiB, {threads} thread{'s' if threads > 1 else ''}"
        self.rows = [Row(f"{name}, against buffered", "faster", "ms", 1.3)]
        for base in self.sides[1:-1]:
            self.rows.append(Row(f"{name}, against {base}", "faster", "ms", 1.0, base=base))

    def run(self, place, side):
        way = side if side in ("dontcache", "direct") else "buffered"
        command = [os.path.join(place.tools, "stream"), ".", str(4 * self.mib * MIB), str(self.kib << 10), str(self.threads), way]
        with Always() if side == "kernel, always" else Nothing():
            said = self.said(place, side, command)
        if said is None:
            return None
        return {row.name: said["durable"] * 1e3 for row in self.rows if side in row.values}


class Nothing:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


class Always:
    """The kernel's writeback in the background begins at once."""

    NAME = "/proc/sys/vm/dirty_background_bytes"
    RATIO = "/proc/sys/vm/dirty_background_ratio"

    def __enter__(self):
        with open(self.RATIO) as file:
            self.ratio = file.read()
        with open(self.NAME) as file:
            self.bytes = file.read()
        self.set(self.NAME, str(MIB))

    def __exit__(self, *_):
        if self.bytes.strip() != "0":
            self.set(self.NAME, self.bytes)
        else:
            self.set(self.RATIO, self.ratio)

    @staticmethod
    def set(name, value):
        with open(name, "w") as file:
            file.write(value)


def groups(mib):
    """By name; `mib` is the memory that both sides may use."""
    found = {}
    for problem, elements in (("small", mib * 600), ("large", mib * 6000)):
        for pattern in ("dir", "smdir", "pdb", "scpdb", "multi", "smulti"):
            found[f"pf3d-{problem}-{pattern}"] = Checkpoint(pattern, problem, elements, mib)
    for kib in (64, 1024):
        for threads in (1, 2):
            found[f"stream-{kib}k-{threads}"] = Stream(kib, threads, mib)
    return found
