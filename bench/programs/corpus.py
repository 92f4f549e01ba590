"""Programs of every day, each in whole: what users wait for when they put `forebay run` in front of it.

Two figures for each: the command in whole, until its bytes have been handed to the device, and the program alone, as
`forebay run --report` says. Inputs are made once and copied, or linked where nothing writes to them.
"""

import json
import os
import shutil
import subprocess
import time

import trees
from figures import Row

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.join(HERE, "..", "..", "tests", "programs")
SYSTEM_PYTHON = "/usr/bin/python3"


class Program:
    """A bash script in a directory of its own. `make` writes into the directory before the clock runs; `apart` are patterns of
    what may differ between the sides."""

    sides = ["kernel", "forebay"]

    def __init__(self, name, script, make=None, apart=(), needs=(), modules=()):
        self.name, self.script, self.make, self.apart = name, script, make, apart
        self.needs, self.modules = needs, modules
        self.rows = [Row(name, "share", "s", 1.1), Row(f"{name}, the program alone", "share", "s")]

    def missing(self):
        """What it needs and is not here, or None."""
        for tool in self.needs:
            if shutil.which(tool) is None:
                return tool
        for module in self.modules:
            if subprocess.run([SYSTEM_PYTHON, "-c", f"import {module}"], env=with_modules(), capture_output=True).returncode:
                return module
        return None

    def prepare(self, place, side):
        place.fresh(side)
        if self.make:
            self.make(place, place.path(side, ""))
        place.settle(2 * place.mib)

    def run(self, place, side):
        report = os.path.join(place.work, "report")
        command = place.under(side, ["bash", "-e", "-c", self.script], options=[f"--report={report}", "--json"])
        start = time.perf_counter()
        place.said(command, place.path(side, ""), with_modules())
        seconds = time.perf_counter() - start
        alone = seconds
        if side == "forebay":
            with open(report) as file:
                alone = json.load(file)["run_seconds"]
        return {self.rows[0].name: seconds, self.rows[1].name: alone}

    def check(self, place):
        for side in self.sides:
            for pattern in self.apart:
                subprocess.run(["bash", "-O", "nullglob", "-c", f"rm -rf {pattern}"], cwd=place.path(side, ""), check=True)
        place.same_tree(*(place.path(side, "") for side in self.sides))


def with_modules():
    """The environment in which the system's Python finds what scripts/install-test-deps.sh has installed."""
    cache = os.environ.get("PYTHON_MODULES", "")
    return {**os.environ, "PYTHONPATH": cache, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def given(name, how):
    """A maker that copies a file which `how` makes once: how(place, path)."""

    def make(place, where):
        path = os.path.join(place.work, name)
        if not os.path.exists(path):
            how(place, path)
        shutil.copy(path, os.path.join(where, name))

    return make


def text(place, path):
    script = ('srand(3); for (i = 0; i < lines; i++) printf "%.9f %d of many lines, each of which is as long\\n", rand(), i % 977')
    with open(path, "w") as file:
        subprocess.run(["awk", "-v", f"lines={place.mib * 4000}", f"BEGIN {{ {script} }}"], stdout=file, check=True)


def history(place, path):
    """A bare repository with a few thousand commits."""
    with subprocess.Popen([os.path.join(TESTS, "history.awk"), "-v", f"commits={place.mib * 8}"], stdout=subprocess.PIPE) as stream:
        place.said(["git", "init", "--quiet", "--bare", "--initial-branch=main", path])
        subprocess.run(["git", f"--git-dir={path}", "fast-import", "--quiet"], stdin=stream.stdout, check=True)


def repository(place, where):
    path = os.path.join(place.work, "origin.git")
    if not os.path.exists(path):
        history(place, path)
    shutil.copytree(path, os.path.join(where, "origin.git"))


def blob(place, where):
    shutil.copy(trees.blob(place.work, place.mib), os.path.join(where, "in"))


def small(place, where):
    shutil.copytree(trees.small_files(place), os.path.join(where, "small"))


def streams(place, where):
    """The program of the tests that uses streams of C++."""
    path = os.path.join(place.work, "streams")
    if not os.path.exists(path):
        place.said(["g++", "-O1", "-std=c++17", "-pthread", "-o", path, os.path.join(TESTS, "streams.cpp")])


def project(place, where):
    shutil.copytree(trees.project(place), os.path.join(where, "project"))


def programs(options):
    size = options.mib
    python = f"{SYSTEM_PYTHON} -B {HERE}/corpus_python.py"
    rows = f"with recursive c(x) as (select 1 union all select x + 1 from c where x < {size * 2000})"
    git = "git -c gc.auto=0 -c pack.threads=2 -c safe.directory='*'"
    rocks = ("--threads=1 --compression_type=none --value_size=400 --statistics=0 --stats_interval=1000000000 --db=db"
             f" --num={size * 400}")
    tar_in = "tar cf small.tar small && rm -r small"
    return {
        "cp": Program("cp of a large file and back", "cp in a; cp a b; rm a; cp b a", blob),
        "cat": Program("cat of two into one, wc", "cat in in >out; wc -c <out; head -c 1000000 out >>out", blob),
        "sort": Program("sort, in parts on the device", "mkdir parts; sort -T parts -S 16M --parallel=2 text -o out", given("text", text)),
        "grep": Program("grep, sed and awk over a large text", "grep -c 977 text >n; sed s/many/few/ text >out; awk '{ s += $1 } END { print s }' out >>n",
                        given("text", text)),
        "gzip": Program("gzip and gunzip", "gzip -1 -n -k text; gunzip -c text.gz >out", given("text", text)),
        "bash": Program("bash, a thousand small commands and appends",
                        "for i in $(seq 500); do echo line $i >>log; done; for i in $(seq 500); do wc -l log >/dev/null; echo $i >f$((i % 50)); done"),
        "cp-r": Program("cp -r and rm -r of small files", "cp -r small copy; rm -r small; cp -a copy again", small),
        "tar": Program("tar c, tar x of small files", f"{tar_in}; tar xf small.tar", small),
        "rsync": Program("rsync of small files, twice", "rsync -a small/ copy; rsync -a --checksum small/ copy", small, needs=["rsync"]),
        "git-clone": Program("git clone, log and checkout", f"{git} clone -q --no-local origin.git clone; cd clone; {git} log --stat >/dev/null;"
                             f" {git} checkout -q HEAD~50; {git} status --short", repository, apart=("clone/.git", "origin.git")),
        "git-gc": Program("git gc, fsck", f"{git} --git-dir=origin.git repack -q -a -d -f; {git} --git-dir=origin.git fsck --full 2>/dev/null",
                          repository, apart=("origin.git",)),
        "make": Program("a C project, make -j2, and again", "make -s -j2 -C project; touch project/parts.h; make -s -j2 -C project", project),
        "sqlite": Program("sqlite, many rows, index, vacuum",
                          f"sqlite3 a.db 'create table t (n, v); {rows} insert into t select x, \"text \" || x from c; create index i on t (v);"
                          " delete from t where n % 7 = 0; vacuum; select sum(n) from t;'; sqlite3 a.db .dump >dump; sqlite3 b.db <dump"),
        "sqlite-commits": Program("sqlite, five hundred commits",
                                  "{ echo 'create table t (n, v);'; for i in $(seq 500); do echo \"insert into t values ($i, hex(zeroblob(200)));\"; done; } | sqlite3 a.db"),
        "sqlite-wal": Program("sqlite, five hundred commits, WAL",
                              "{ echo 'pragma journal_mode = wal; create table t (n, v);'; for i in $(seq 500); do echo \"insert into t values ($i, hex(zeroblob(200)));\";"
                              " done; } | sqlite3 a.db >/dev/null"),
        "rocksdb": Program("RocksDB, fill, overwrite, read", f"db_bench {rocks} --benchmarks=fillseq,overwrite,readrandom,compact >/dev/null 2>&1",
                           apart=("db",), needs=["db_bench"]),
        "python": Program("Python, a text written and read by lines", f"{python} lines {size}"),
        "pools": Program("Python, pools of processes", f"python3 -B {os.path.realpath(TESTS)}/pools.py >/dev/null"),
        "numpy": Program("numpy, save, tofile, npz and back", f"{python} numpy {size}", modules=["numpy"], apart=("*.npz",)),
        "h5py": Program("HDF5, chunks written and changed", f"{python} h5py {size}", modules=["h5py"], apart=("*.h5",)),
        "torch": Program("torch.save and torch.load", f"{python} torch {size}", modules=["torch"]),
        "safetensors": Program("safetensors, save and load", f"{python} safetensors {size}", modules=["numpy", "safetensors"]),
        "parquet": Program("parquet, written and read", f"{python} parquet {size}", modules=["pyarrow"]),
        "cpp": Program("streams of C++", "$STREAMS >/dev/null", streams),
        "node": Program("Node, files in many ways", f"node {os.path.realpath(TESTS)}/files.js >/dev/null", needs=["node"]),
        "java": Program("Java, files in many ways", f"java -Xmx200m {os.path.realpath(TESTS)}/Files.java >/dev/null", needs=["java"]),
    }


def commands(options):
    """Commands that the caller names: each in a directory with a file `text` and a tree `small`."""

    def make(place, where):
        given("text", text)(place, where)
        small(place, where)

    return {f"command-{number}": Program(command, command, make) for number, command in enumerate(options.command or [], 1)}


def groups(options):
    os.environ["STREAMS"] = os.path.join(options.work or "", "streams")
    return {f"corpus-{key}": program for key, program in programs(options).items()}
