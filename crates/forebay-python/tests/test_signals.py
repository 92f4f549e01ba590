"""Handlers of signals that use the package, whatever the thread does that they interrupt."""

import os
import subprocess
import sys

import pytest

# The thread has the lock that guards the making of the default session, and the session is open.
OPENING = """
import forebay, signal, sys
path, turns = sys.argv[1], []

class Session(forebay.Session):
    def __init__(self):
        super().__init__()
        if not turns:
            turns.append(True)
            signal.raise_signal(signal.SIGUSR1)

def handler(*_):
    with forebay.open(path) as file:
        assert file.read() == b"bytes"

signal.signal(signal.SIGUSR1, handler)
forebay.Session = Session
with forebay.open(path) as file:
    assert file.read() == b"bytes"
"""

# By the position of the very file that the thread reads: each record goes to one of the two.
READING = """
import forebay, signal, sys
path, seen = sys.argv[1], []
numbers = [number.to_bytes(4, "little") for number in range(100_000)]
open(path, "wb").write(b"".join(numbers))
with forebay.open(path) as file:
    signal.signal(signal.SIGALRM, lambda *_: seen.append(file.read(4)))
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    while True:
        data = file.read(4)
        if not data:
            break
        seen.append(data)
    signal.setitimer(signal.ITIMER_REAL, 0)
assert sorted(filter(None, seen)) == sorted(numbers)
"""


@pytest.mark.parametrize("program", [OPENING, READING], ids=["opening", "reading"])
def test_a_handler_may_open_and_read(name, path, program):
    path.write_bytes(b"bytes")
    environment = dict(os.environ, FOREBAY_SESSION=name, FOREBAY_MEMORY="32MiB")
    subprocess.run([sys.executable, "-c", program, path], check=True, env=environment, timeout=60)
