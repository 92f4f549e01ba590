"""`replacing.py KEEPER`: files are written, closed and renamed, and KEEPER, whom their bytes have been left with, is killed at once."""

import os
import signal
import sys

for number in range(400):
    with open(f".new-{number}", "wb") as file:
        file.write(b"%08d" % number * 1024)
    os.rename(f".new-{number}", f"file-{number}")
os.kill(int(sys.argv[1]), signal.SIGKILL)
