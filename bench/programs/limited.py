"""Experiments with limited memory: checkpoints of a parallel program, and writing several times the memory.

Both sides get the same: the kernel's program runs in a memory cgroup that allows so much page cache (and what the program has of
its own), Forebay's in a session whose memory is so much. Memory is touched before for both.
"""

import hashlib
import json
import mmap
import os
import shutil
import subprocess
import threading

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

    def said(self, place, side, command, limited=True):
        where = place.path(side, "")
        join = None
        if side == "forebay":
            command = [place.forebay, "run", "--require", "--linger", "0.2", "--session", self.session.name, "--", *command]
        elif limited:
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
        # Arrays of each process, and what programs and the kernel need beside.
        self.own_mib = self.processes * elements * 8 // MIB + 16
        name = f"PF3DIO {pattern}, {problem}"
        # The paper's gains: 1.26 at least, 1.44 on average.
        self.rows = [Row(f"{name}: closed", "faster", "ms", 1.26), Row(f"{name}: durable", "faster", "ms")]

    def run(self, place, side):
        said = self.said(place, side, [os.path.join(place.tools, "checkpoint"), ".", self.pattern, str(self.elements), str(self.processes)])
        return {self.rows[0].name: said["closed"] * 1e3, self.rows[1].name: said["durable"] * 1e3}


class Stream(Limited):
    """Writing four times the memory, until it is durable, against the best of the kernel's ways."""

    # The source, and what the program and the kernel need beside.
    own_mib = 8 + 16

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
        # In the background from the first byte on.
        with Thresholds(MIB) if side == "kernel, always" else Nothing():
            said = self.said(place, side, command)
        if said is None:
            return None
        return {row.name: said["durable"] * 1e3 for row in self.rows if side in row.values}


class Curve(Limited):
    """What the writing of new data loses to writeback: its speed over time, below the limit at which writers wait, from before
    writeback begins; and beside somebody else who keeps the device as busy, while nothing is written back."""

    SLICES = 400

    def __init__(self, kib, mib):
        # Writeback begins at a quarter of the session's memory, writers wait at a half, and so it is for the kernel.
        super().__init__(4 * mib, ["kernel", "forebay"])
        self.kib, self.background, self.hard = kib, mib * MIB, 2 * mib * MIB
        name = f"new data in pieces of {kib} KiB"
        self.rows = [Row(f"{name}, {when}", "faster", "ms/GB") for when in
                     ("before writeback", "while it runs", "while another keeps the device busy")]
        self.rows.append(Row(f"{name}, loss while writeback runs", "own", "%"))
        self.rows.append(Row(f"{name}, of that beyond what the device takes", "own", "%", 5))
        self.curves = {}

    def prepare(self, place, side):
        if self.session is None:
            self.session = Session(place, self.mib)
        place.fresh(side)
        place.settle(self.mib)

    def command(self, place, size):
        return [os.path.join(place.tools, "stream"), ".", str(size), str(self.kib << 10), "1", "buffered", str(self.SLICES)]

    def run(self, place, side):
        with Thresholds(self.background, self.hard):
            with Busy(os.path.join(place.files, "busy")):
                size = self.background * 3 // 4
                beside = self.said(place, side, self.command(place, size), limited=False)["returned"] / size
            place.settle(self.mib)
            said = self.said(place, side, self.command(place, self.hard - self.background // 4), limited=False)
        before, after = self.split(said)
        self.curves.setdefault(side, []).append(said["curve"])
        figures = [each * 1e12 for each in (before, after, beside)]
        return dict(zip((row.name for row in self.rows), [*figures, (1 - before / after) * 100, (1 - beside / after) * 100]))

    def split(self, said):
        """Seconds for each byte before writeback can have begun, and after."""
        curve, done = said["curve"], 0
        for index, written in enumerate(curve):
            done += written
            if done >= self.background:
                begun = (index + 1) / self.SLICES
                return begun / done, (said["returned"] - begun) / max(sum(curve) - done, 1)
        raise OSError("writeback never began")

    def picture(self):
        """The curve of the median round of each side, as text."""
        lines = [f"MiB written in each {1000 / self.SLICES:g} ms, {self.kib} KiB a piece; | where writeback begins"]
        for side in self.sides:
            curve = sorted(self.curves[side], key=len)[len(self.curves[side]) // 2]
            done, cells = 0, []
            for written in curve[:-1]:
                mark = "|" if done < self.background <= done + written else ""
                done += written
                cells.append(f"{written // MIB}{mark}")
            lines.append(f"{side:8} {' '.join(cells)}")
        return "\n".join(lines)


class Busy:
    """Somebody who writes to the device all the time, past all caches."""

    PIECE, PIECES = 4 * MIB, 32

    def __init__(self, path):
        self.path, self.stop, self.begun = path, False, threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.write)
        self.thread.start()
        self.begun.wait()

    def write(self):
        fd = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
        with mmap.mmap(-1, self.PIECE) as piece:
            piece.write(b"\1" * self.PIECE)
            at = 0
            while not self.stop:
                os.pwrite(fd, piece, at % self.PIECES * self.PIECE)
                at += 1
                if at >= self.PIECES:
                    self.begun.set()
        os.close(fd)

    def __exit__(self, *_):
        self.stop = True
        self.thread.join()
        os.unlink(self.path)


class Nothing:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


class Thresholds:
    """From how many dirty bytes on the kernel writes back, and makes writers wait, if that is said."""

    def __init__(self, background, hard=None):
        self.wanted = {"dirty_background": background, **({"dirty": hard} if hard else {})}
        self.before = {}

    def __enter__(self):
        # The upper one first, as it must be above the other, which may have been larger.
        for name in sorted(self.wanted):
            self.before[name] = [(f"{name}_{kind}", self.get(f"{name}_{kind}")) for kind in ("bytes", "ratio")]
            self.set(f"{name}_bytes", str(self.wanted[name]))

    def __exit__(self, *_):
        for words in self.before.values():
            # One of the two is 0 and does not count.
            for word, value in words:
                if value != "0":
                    self.set(word, value)

    @staticmethod
    def get(name):
        with open(f"/proc/sys/vm/{name}") as file:
            return file.read().strip()

    @staticmethod
    def set(name, value):
        with open(f"/proc/sys/vm/{name}", "w") as file:
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
        found[f"writeback-curve-{kib}k"] = Curve(kib, mib)
    return found
