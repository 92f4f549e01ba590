"""Programs that end with files open end without a word, and what they wrote is there."""

import os
import subprocess
import sys

import pytest

import forebay

FORKED = "\nimport os\nchild = os.fork()\nif child:\n    os.waitpid(child, 0)"
# What `path` has in the end is "left open".
PROGRAMS = {
    "a file": "file = forebay.open(path, 'wb'); file.write(b'left open')",
    "a file that its own name keeps": "file = forebay.open(path, 'wb'); file.write(b'left open'); file.itself = file",
    "a view and a window": "file = forebay.open(path, 'w+b'); file.write(b'left open'); view = memoryview(file.view()); window = memoryview(forebay.window(4096))",
    "threads that go on": """
import threading, time
file = forebay.open(path, "w+b"); file.write(b"left open")
def work():
    while True:
        file.read_at(9, 0), file.view().release(), file.seek(0), file.read(9)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)""",
    "what opens one at the end": """
import atexit
def late():
    global file
    file = io.BufferedWriter(forebay.open(path, "wb")); file.write(b"left open")
atexit.register(late)""",
    "a wrapper and a child": "file = io.BufferedWriter(forebay.open(path, 'wb')); file.write(b'left open')" + FORKED,
    "a text and a child": "file = io.TextIOWrapper(io.BufferedWriter(forebay.open(path, 'wb'))); file.write('left open')" + FORKED,
    "both ways and a child": "file = io.BufferedRandom(forebay.open(path, 'w+b')); file.write(b'left open'); file.seek(0); file.read(1)" + FORKED,
    "a child within a block": "with io.BufferedWriter(forebay.open(path, 'wb')) as file:\n    file.write(b'left open')" + FORKED.replace("\n", "\n    "),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_ends_without_a_word(name, path, program):
    program = f"import io, forebay\npath = {str(path)!r}\n{program}\n"
    environment = dict(os.environ, FOREBAY_SESSION=name, FOREBAY_MEMORY="32MiB")
    # Python tells of errors at the end only so.
    run = subprocess.run([sys.executable, "-X", "dev", "-c", program], env=environment, timeout=120, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert path.read_bytes() == b"left open"
    # Python never takes down what a thread has in hand at the end, so nobody leaves that session: the next one of its name ends it.
    forebay.Session(name, memory="32MiB").close()
