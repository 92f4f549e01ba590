"""Closes a file on a device that has no space behind it, and says who hears of that, and when."""
import os
import sys

data = bytes(range(256)) * 40_000
name = sys.argv[1]
file = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
for at in range(0, len(data), 65_536):
    os.write(file, data[at : at + 65_536])
os.close(file)
print("closed")
file = os.open(name, os.O_RDWR)
print(os.pread(file, len(data), 0) == data)
try:
    os.fsync(file)
except OSError as error:
    print("heard", error.errno)
