"""A writer that says, after each write, how many parts have been acknowledged: part N is 30,000 bytes of N."""
import os
import sys
import time

fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
told = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
for part in range(1, int(sys.argv[3]) + 1):
    os.pwrite(fd, bytes([part % 251]) * 30000, (part - 1) * 30000)
    os.pwrite(told, str(part).encode() + b"\n", 0)
    time.sleep(0.001)
while True:
    time.sleep(1)
