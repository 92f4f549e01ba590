"""Runs programs with and without Forebay, in turn, and prints what came of it. Called by scripts/measure-programs.sh, which
makes what it needs; see there for the rows.

Each group of rows is one experiment: `prepare` makes ready what is not measured, `run` starts the program once and returns its
figures by the names of the rows, `check` compares what the sides have left. A round runs all sides of a group, every
second round the other way round. The first round warms up and does not count.
"""

import argparse
import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from fnmatch import fnmatch

import corpus
import figures
import limited
import lives
import reads
from figures import Row
import trees

MIB = 1 << 20


class Wrong(Exception):
    """What ends the measurement: a program that failed, files that differ."""


class Place:
    """Where things are, and how programs are started there."""

    def __init__(self, options):
        self.forebay, self.files, self.work, self.tools = options.forebay, options.files, options.work, options.tools
        self.mib, self.count, self.daemon = options.mib, options.files_count, options.daemon
        self.memory = options.memory
        self.sessions = 0

    def path(self, side, name="file"):
        return os.path.join(self.files, side, name)

    def fresh(self, side):
        """An empty directory for a side."""
        shutil.rmtree(self.path(side, ""), ignore_errors=True)
        os.mkdir(self.path(side, ""))

    def settle(self, mib):
        """Nothing is left to be written, and as much memory as the run will use has been touched: memory that was free belongs
        to the host, and who touches it first pays for both."""
        subprocess.run(["sync", "-f", self.files], check=True)
        with mmap.mmap(-1, max(mib, 1) * MIB) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE)
            piece = b"\1" * MIB
            for _ in range(max(mib, 1)):
                memory.write(piece)

    def evict(self, path):
        """Out of sessions' memory and the kernel's."""
        said = self.said([self.forebay, "evict", "--json", path])
        for file in json.loads(said)["files"]:
            held = sum(session["held_bytes"] + session["dirty_bytes"] for session in file["sessions"])
            if held or file["kernel_after_bytes"]:
                raise Wrong(f"{path} is still in memory: {said}")

    def said(self, command, where=None, env=None):
        ran = subprocess.run(command, cwd=where, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if ran.returncode != 0:
            raise Wrong(f"{' '.join(command)}: exit {ran.returncode}\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    def under(self, side, command, session=None, options=()):
        """A command as a side runs it. `--require`: it must not run plainly and pass for managed."""
        if not side.startswith("forebay"):
            return command
        to = ["--session", session] if session else []
        return [self.forebay, "run", "--require", "--linger", "0.2", "--mem", self.memory, *to, *options, "--", *command]

    def timed(self, command, where):
        start = time.perf_counter()
        said = self.said(command, where)
        return time.perf_counter() - start, said

    def keeper_cpu(self):
        """CPU seconds of the daemon's threads that live."""
        total = 0
        for task in os.listdir(f"/proc/{self.daemon}/task"):
            with open(f"/proc/{self.daemon}/task/{task}/schedstat") as file:
                total += int(file.read().split()[0])
        return total / 1e9

    def same_file(self, name, *sides):
        first = self.path(sides[0], name)
        for side in sides[1:]:
            if subprocess.run(["cmp", first, self.path(side, name)]).returncode != 0:
                raise Wrong(f"{name} differs between {sides[0]} and {side}")

    def same_tree(self, one, other):
        if subprocess.run(["diff", "-r", "--no-dereference", one, other]).returncode != 0:
            raise Wrong(f"{one} and {other} differ")


class Fio:
    """One fio process on the file `file`. What it says of its last job counts: the time of each call as fio's clat, and
    of the job as a whole."""

    sides = ["kernel", "forebay"]
    common = [
        "--filename=file", "--ioengine=psync", "--thread", "--disable_lat=1", "--disable_slat=1", "--disable_bw_measurement=1",
        "--clocksource=clock_gettime", "--randrepeat=1", "--randseed=7", "--fallocate=none", "--invalidate=0",
        "--output-format=json", "--output=../fio.json",
    ]
    whole = ["--rw=write", "--bs=4k"]

    def __init__(self, name, target, job, first=None, reads=False, base=False, evicted=False, note=""):
        self.name, self.job, self.first, self.base, self.evicted = name, job, first, base, evicted
        self.direction = "read" if reads else "write"
        self.rows = [
            Row(f"{name}, one call", "faster", "µs", target),
            Row(f"{name}, fio's run time / calls", "faster", "µs", target),
            Row(f"{name}, the whole command", "faster", "ms"),
        ]

    def prepare(self, place, side):
        place.fresh(side)
        if self.base:
            shutil.copy(trees.blob(place.work, place.mib), place.path(side))
        place.settle(2 * place.mib)
        if self.evicted:
            place.evict(place.path(side))

    def run(self, place, side):
        size = f"--size={place.mib}M"
        jobs = [["--name=first", size, *self.first], ["--name=then", "--stonewall"]] if self.first else [["--name=only"]]
        command = ["fio", *self.common, *sum(jobs, []), size, *self.job]
        seconds, _ = place.timed(place.under(side, command), place.path(side, ""))
        with open(os.path.join(place.files, "fio.json")) as file:
            job = json.load(file)["jobs"][-1]
        said = job[self.direction]
        each = said["clat_ns"]["mean"] / 1e3
        return dict(zip((row.name for row in self.rows), (each, said["runtime"] * 1e3 / said["total_ios"], seconds * 1e3)))

    def check(self, place):
        place.same_file("file", *self.sides)


class Synced:
    """Large writes, each followed by fsync: fio, and a bare loop that RWF_DONTCACHE can be asked of."""

    sides = ["kernel", "dontcache", "forebay"]

    def __init__(self, mib):
        self.name, self.piece = f"{mib} MiB write + fsync", mib
        bare = f"{self.name}, bare loop"
        self.rows = [
            Row(f"{self.name}, fio", "faster", "ms each", 1.15),
            Row(f"{bare}", "faster", "ms each", 1.15),
            Row(f"{bare}, against RWF_DONTCACHE", "faster", "ms each", 1.0, base="dontcache"),
            Row(f"{self.name}, fio: CPU of program and keeper", "share", "s/GB", 0.7),
            Row(f"{bare}: CPU of program and keeper", "share", "s/GB", 0.7),
        ]

    def prepare(self, place, side):
        place.fresh(side)
        place.settle(2 * place.mib)

    def run(self, place, side):
        found = {}
        count, gigabytes = place.mib // self.piece, place.mib * MIB / 1e9
        keeper = place.keeper_cpu()
        way = "uncached" if side == "dontcache" else "sync"
        bare = [os.path.join(place.tools, "pieces"), "file", str(place.mib * MIB), str(self.piece * MIB), way]
        try:
            said = json.loads(place.said(place.under(side, bare), place.path(side, "")))
        except Wrong as wrong:
            if side == "dontcache" and "not supported" in str(wrong):
                return None
            raise
        cpu = said["cpu_seconds"] + place.keeper_cpu() - keeper
        found[self.rows[1].name] = found[self.rows[2].name] = said["seconds"] * 1e3 / count
        found[self.rows[4].name] = cpu / gigabytes
        if side == "dontcache":
            return found
        os.rename(place.path(side), place.path(side, "bare"))
        place.settle(2 * place.mib)
        keeper = place.keeper_cpu()
        command = ["fio", *Fio.common, "--name=only", "--rw=write", f"--bs={self.piece}M", "--fsync=1", f"--size={place.mib}M"]
        place.said(place.under(side, command), place.path(side, ""))
        with open(os.path.join(place.files, "fio.json")) as file:
            job = json.load(file)["jobs"][0]
        seconds = job["write"]["runtime"] / 1e3
        cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3 + place.keeper_cpu() - keeper
        found[self.rows[0].name] = seconds * 1e3 / count
        found[self.rows[3].name] = cpu / gigabytes
        return found

    def check(self, place):
        place.same_file("file", "kernel", "forebay")
        place.same_file("bare", "kernel", "forebay")


class Fresh:
    """A process that writes 4 KiB pieces to a fresh file and exits. `forebay run` counts in whole: what it starts, and until
    the bytes have been handed to the device."""

    sides = ["kernel", "kernel + sync", "forebay", "forebay, cold"]
    name = "a process writes 4 KiB pieces and exits"

    def __init__(self, mib):
        self.mib = mib
        self.rows = [
            Row(f"{self.name}, daemon there", "faster", "ms", 1.5),
            Row(f"{self.name}, daemon there, against + sync", "faster", "ms", 1.5, base="kernel + sync"),
            Row(f"{self.name}, no daemon", "faster", "ms", 1.5, ours="forebay, cold"),
            Row(f"{self.name}, no daemon, against + sync", "faster", "ms", 1.5, base="kernel + sync", ours="forebay, cold"),
        ]

    def prepare(self, place, side):
        place.fresh(side)
        place.settle(3 * self.mib)

    def run(self, place, side):
        command = [os.path.join(place.tools, "pieces"), "file", str(self.mib * MIB), "4096", "leave"]
        session = None
        if side == "forebay, cold":
            place.sessions += 1
            session = f"{os.environ['FOREBAY_SESSION']}-{place.sessions}"
        where = place.path(side, "")
        start = time.perf_counter()
        place.said(place.under(side, command, session), where)
        if side == "kernel + sync":
            with open(place.path(side), "rb") as file:
                os.fsync(file.fileno())
        seconds = time.perf_counter() - start
        if session:
            self.until_gone(place, session)
        return {row.name: seconds * 1e3 for row in self.rows if side in row.values}

    @staticmethod
    def until_gone(place, session):
        """The daemon of a session of its own leaves by itself."""
        for _ in range(300):
            if subprocess.run([place.forebay, "stat", "--session", session], capture_output=True).returncode != 0:
                return
            time.sleep(0.1)
        raise Wrong(f"the session {session} does not end")

    def check(self, place):
        place.same_file("file", *self.sides)


class Whole:
    """A command that is timed in whole: `forebay run`, its start and its end are in it."""

    sides = ["kernel", "forebay"]

    def __init__(self, name, target=1.1):
        self.name = name
        self.rows = [Row(name, "share", "s", target)]

    def prepare(self, place, side):
        place.fresh(side)
        self.make(place, place.path(side, ""))
        place.settle(place.mib)

    def make(self, place, where):
        pass

    def run(self, place, side):
        seconds, _ = place.timed(place.under(side, self.command(place)), place.path(side, ""))
        return {self.name: seconds}


class Unpack(Whole):
    def command(self, place):
        return ["tar", "xf", trees.archive(place)]

    def check(self, place):
        for side in self.sides:
            place.same_tree(trees.small_files(place), place.path(side, "small"))


class Pack(Whole):
    def command(self, place):
        return ["tar", "cf", "file", "--sort=name", "-C", os.path.dirname(trees.small_files(place)), "small"]

    def check(self, place):
        place.same_file("file", *self.sides)


class Add(Whole):
    def make(self, place, where):
        shutil.copytree(trees.sources(place), os.path.join(where, "tree"))
        place.said(["git", "init", "--quiet", "tree"], where)

    def command(self, place):
        return ["git", "-C", "tree", "add", "--all"]

    def check(self, place):
        states = []
        for side in self.sides:
            tree = place.path(side, "tree")
            place.said(["git", "fsck", "--strict"], tree)
            states.append(place.said(["git", "ls-files", "--stage"], tree))
        if states[0] != states[1] or states[0].count("\n") != trees.source_count(place):
            raise Wrong("git has added other files under Forebay")


class Build(Whole):
    def make(self, place, where):
        shutil.copytree(trees.project(place), os.path.join(where, "project"))

    def command(self, place):
        return ["make", "--silent", "-j2", "-C", "project"]

    def check(self, place):
        place.same_tree(*(place.path(side, "project") for side in self.sides))
        for side in self.sides:
            if place.said([place.path(side, "project/program")]) != trees.project_says(place):
                raise Wrong(f"what was built says something else: {side}")


class Calls:
    """Calls on descriptors that are not managed; files outside of the directories that are."""

    sides = ["kernel", "forebay"]
    name = "calls"

    def __init__(self, calls):
        self.calls = calls
        names = ["pread of /dev/zero", "write to /dev/null", "a byte through a pipe", "lseek", "fstat", "pread of a file elsewhere"]
        self.rows = [Row(name, "more", "ns", 20) for name in names]
        self.rows.append(Row("open and close", "more", "ns"))

    def prepare(self, place, side):
        place.fresh(side)

    def run(self, place, side):
        elsewhere = os.path.join(place.work, "elsewhere")
        with open(elsewhere, "wb") as file:
            file.write(bytes(65536))
        command = [os.path.join(place.tools, "calls"), elsewhere, str(self.calls)]
        options = ["--dir", os.path.realpath(place.files)]
        return json.loads(place.said(place.under(side, command, options=options), place.path(side, "")))

    def check(self, place):
        pass


def groups(options):
    ragged = 80 if options.kind == "ext4" else 40
    # The last page is left out: else fio would make the file longer first, and have it in memory.
    ragged_jobs = ["--bs=4k", "--bs_unaligned", "--offset=100", "--overwrite=1", f"--size={options.mib * MIB - 4096}"]
    return {
        "write": Fio("4 KiB sequential write, fresh file", 5, Fio.whole),
        "overwrite": Fio("4 KiB random overwrite in memory", 3, ["--rw=randwrite", "--bs=4k", "--overwrite=1"], Fio.whole, base=True),
        "read": Fio("4 KiB sequential read in memory", 2.5, ["--rw=read", "--bs=4k"], Fio.whole, reads=True, base=True),
        "ragged": Fio("ragged 4 KiB overwrite, not in memory, in order", ragged, ["--rw=write", *ragged_jobs], base=True, evicted=True),
        "ragged-random": Fio(
            "ragged 4 KiB overwrite, not in memory, at random", ragged, ["--rw=randwrite", "--blockalign=4k", *ragged_jobs],
            base=True, evicted=True),
        "sync-1m": Synced(1),
        "sync-4m": Synced(4),
        "fresh": Fresh(min(options.mib, 100)),
        "tar-x": Unpack("tar x of small files"),
        "tar-c": Pack("tar c of small files"),
        "git": Add("git add of sources"),
        "build": Build("a C project, make -j2"),
        "calls": Calls(options.calls),
        **limited.groups(options.mib),
        **corpus.groups(options),
        **reads.groups(options.mib),
        **lives.groups(),
        **corpus.commands(options),
    }


def measure(place, group, runs):
    left_out = set()
    try:
        rounds(place, group, runs, left_out)
    finally:
        getattr(group, "end", lambda: None)()
    for side in group.sides:
        shutil.rmtree(place.path(side, ""), ignore_errors=True)
    return [row for row in group.rows if not left_out & {row.base, row.ours}]


def rounds(place, group, runs, left_out):
    for round_number in range(runs + 1):
        sides = group.sides if round_number % 2 == 0 else group.sides[::-1]
        for side in sides:
            group.prepare(place, side)
            found = group.run(place, side)
            if found is None:
                left_out.add(side)
            elif round_number > 0:
                for row in group.rows:
                    if row.name in found:
                        row.add(side, found[row.name])
        group.check(place)


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("forebay", "files", "work", "tools", "memory", "kind", "device", "json"):
        parser.add_argument(f"--{name}")
    for name in ("runs", "mib", "files-count", "daemon", "calls"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--command", action="append")
    parser.add_argument("only", nargs="*")
    return parser.parse_args()


def main():
    options = arguments()
    place = Place(options)
    wanted = groups(options)
    for pattern in options.only:
        if not any(fnmatch(key, pattern) for key in wanted):
            sys.exit(f"measure-programs: no group is named {pattern}; there are: {', '.join(wanted)}")
    conditions = {"device": options.device, "runs": options.runs, "mib": options.mib, "small_files": options.files_count,
                  "cpus": os.cpu_count(), "kernel": os.uname().release}
    print(f"{options.device}; {options.mib} MiB for each program, {options.files_count} small files; medians of {options.runs}, "
          f"{os.cpu_count()} CPUs, Linux {os.uname().release}\n", flush=True)
    rows, pictures = [], []
    try:
        for key, group in wanted.items():
            named = any(fnmatch(key, pattern) for pattern in options.only)
            if not named and (options.only or isinstance(group, (limited.Limited, corpus.Program, lives.Life))):
                continue
            if lacks := getattr(group, "missing", lambda: None)():
                print(f"{key}: {lacks} is missing (scripts/install-test-deps.sh installs it)", file=sys.stderr, flush=True)
                continue
            print(f"{key} ...", file=sys.stderr, flush=True)
            rows += measure(place, group, options.runs)
            if isinstance(group, limited.Curve):
                pictures.append(group.picture())
    except (Wrong, OSError) as wrong:
        sys.exit(f"measure-programs: {wrong}")
    print(figures.markdown(rows) if options.markdown else figures.table(rows))
    for picture in pictures:
        print(f"\n{picture}")
    if options.json:
        figures.write_json(options.json, conditions, rows)
    judged = [row for row in rows if row.target is not None]
    print(f"\nmeasure-programs: {sum(map(Row.met, judged))} of {len(judged)} targets met; the same bytes on all sides")


if __name__ == "__main__":
    main()
