"""Pools of processes that read and write files: forked, spawned and from a server; processes and threads by concurrent.futures;
a file that was opened before the fork; one queue of results."""

import concurrent.futures
import hashlib
import multiprocessing
import os
import sys

COUNT = 60


def content(number):
    return hashlib.sha256(str(number).encode()).digest() * (number * 97 % 3001 + 1)


def make(number):
    """Writes a file, a part of the shared one, and a line of the log; reads the neighbours' files, if they are there."""
    with open(f"part-{number}", "wb") as file:
        file.write(content(number))
    with open("shared", "r+b") as file:
        file.seek(number * 5000)
        file.write(bytes([number + 1]) * 5000)
    with open("log", "ab", buffering=0) as file:
        file.write(b"line %d\n" % number)
    return os.path.getsize(f"part-{number}")


def check(number):
    with open(f"part-{number}", "rb") as file:
        assert file.read() == content(number), number
    with open("shared", "rb") as file:
        file.seek(number * 5000)
        assert file.read(5000) == bytes([number + 1]) * 5000, number
    return number


def writer(file, number):
    """With the descriptor of the parent, whose offset all share."""
    os.write(file.fileno(), b"%04d" % number * 1000)


def main():
    for method in ("fork", "spawn", "forkserver"):
        with open("shared", "wb") as file:
            file.truncate(COUNT * 5000)
        context = multiprocessing.get_context(method)
        with context.Pool(3) as pool:
            print(method, sum(pool.imap_unordered(make, range(COUNT), chunksize=4)), sum(pool.map(check, range(COUNT))))
        with open("log", "rb") as file:
            lines = sorted(file.read().splitlines())
        assert lines == sorted(b"line %d" % number for number in range(COUNT)), lines
        os.rename("log", f"log-{method}-unsorted")
        with open(f"log-{method}", "wb") as file:
            file.write(b"\n".join(lines))
        os.unlink(f"log-{method}-unsorted")
    for kind in (concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor):
        with kind(4) as pool:
            print(kind.__name__, sum(pool.map(make, range(COUNT))), sum(pool.map(check, range(COUNT))))
        os.unlink("log")
    with open("inherited", "w+b", buffering=0) as file:
        children = [multiprocessing.get_context("fork").Process(target=writer, args=(file, number)) for number in range(8)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert file.tell() == 8 * 4000
        file.seek(0)
        parts = sorted(file.read(4000)[:4] for _ in range(8))
        print(parts)
    os.unlink("inherited")


if __name__ == "__main__":
    sys.exit(main())
