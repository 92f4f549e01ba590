"""Fills a small disk: the write that finds it full says so, and what was acknowledged before is there."""
import os
import sys

fd, done = os.open(sys.argv[1] + "/f", os.O_RDWR | os.O_CREAT), 0
try:
    while done < 200 << 20:
        done += os.pwrite(fd, b"x" * 50000, done)
    sys.exit("a small disk holds 200 MiB")
except OSError as error:
    print(error.errno)
os.close(fd)
data = open(sys.argv[1] + "/f", "rb").read()
print(len(data) >= done, data[:done] == b"x" * done, done > 10 << 20)
os.unlink(sys.argv[1] + "/f")
fd = os.open(sys.argv[1] + "/g", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"y" * 100000, 0)
os.fsync(fd)
os.close(fd)
