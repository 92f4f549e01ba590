"""Counts what calls on names, and writes that are synced, ask of a mount's process: requests.py DIRECTORY PROCESS. Prints a call's name and its requests, line by line.

The process answers each request by one `write`, and writes nothing else; what it only has to hear of it does not answer. The program is one that
writes as well: under `forebay run` the session has files of it, one in use and one closed.
"""

import os
import sys

FILES = 100
directory, process = sys.argv[1:]
os.chdir(directory)


def answers():
    with open(f"/proc/{process}/io") as counts:
        return next(int(line.split()[1]) for line in counts if line.startswith("syscw"))


def write(name):
    fd = os.open(name, os.O_CREAT | os.O_RDWR)
    for at in range(100):
        os.pwrite(fd, bytes(4096), at * 4096)
    return fd


def touch(name, flags, content=b""):
    fd = os.open(name, flags)
    if content:
        os.write(fd, content)
    os.close(fd)


in_use = write("in use")
os.close(write("closed"))
# The first opening of all says how the mount wants the others.
touch("in use", os.O_RDONLY)

NEW, CUT, AFTER = (os.O_WRONLY | flag for flag in (os.O_CREAT | os.O_EXCL, os.O_TRUNC, os.O_APPEND))
CALLS = {
    "create": lambda i: touch(f"a{i}", NEW),
    "open an empty one": lambda i: touch(f"a{i}", os.O_RDONLY),
    "append": lambda i: touch(f"a{i}", AFTER, b"bytes"),
    "open again": lambda i: touch(f"a{i}", os.O_RDONLY),
    "cut": lambda i: touch(f"a{i}", CUT, b"others"),
    "chmod": lambda i: os.chmod(f"a{i}", 0o600),
    "rename": lambda i: os.rename(f"a{i}", f"b{i}"),
    "link": lambda i: os.link(f"b{i}", f"c{i}"),
    "replace": lambda i: os.rename(f"c{i}", f"b{i}") or os.unlink(f"c{i}"),
    "replace another": lambda i: touch(f"d{i}", NEW) or os.rename(f"d{i}", f"b{i}"),
    "unlink": lambda i: os.unlink(f"b{i}"),
    # All in what is there already.
    "write and sync": lambda i: os.pwrite(in_use, bytes(4096), i * 4096) and os.fsync(in_use),
}
for call, do in CALLS.items():
    before = answers()
    for i in range(FILES):
        do(i)
    print(call.replace(" ", "_"), answers() - before)
os.close(in_use)
