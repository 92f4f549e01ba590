"""What a call of 4 KiB costs, in nanoseconds: by Forebay and by `os`, in memory on both sides.

    python price.py DIR
"""

import os
import statistics
import sys
import time

import forebay

PAGE, PAGES, RUNS = 4096, 4096, 9


def price(what, call):
    offsets = [i * 1103 % PAGES * PAGE for i in range(PAGES * 5)]
    runs = []
    for _ in range(RUNS):
        begun = time.perf_counter_ns()
        for offset in offsets:
            call(offset)
        runs.append((time.perf_counter_ns() - begun) / len(offsets))
    print(f"{what:28} {statistics.median(runs):6.0f} ns ({min(runs):.0f} to {max(runs):.0f})")


where = sys.argv[1]
plain = os.open(f"{where}/plain", os.O_RDWR | os.O_CREAT, 0o600)
with forebay.Session("price", memory="256MiB") as session, session.open(f"{where}/managed", "w+b") as file:
    page, room = bytes(PAGE), bytearray(PAGE)
    for at in range(0, PAGE * PAGES, PAGE):
        file.write_at(page, at)
        os.pwrite(plain, page, at)
    price("File.read_at", lambda at: file.read_at(PAGE, at))
    price("os.pread", lambda at: os.pread(plain, PAGE, at))
    price("File.readinto_at", lambda at: file.readinto_at(room, at))
    price("os.preadv", lambda at: os.preadv(plain, [room], at))
    price("File.write_at", lambda at: file.write_at(page, at))
    price("os.pwrite", lambda at: os.pwrite(plain, page, at))
    price("a function that does nothing", lambda at: None)
