"""Operations in random order, on a file by Forebay and on one by the kernel: every answer is the same."""

import errno
import io
import os
import random

import pytest

import forebay

WINDOW = 6 * 256 * 1024


class Plain:
    """The rival: the same calls by `os`."""

    def __init__(self, path, mode):
        flags = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_TRUNC, "r+": os.O_RDWR, "a+": os.O_RDWR | os.O_APPEND}[mode.replace("b", "")]
        self.appends = "a" in mode
        self.descriptor = os.open(path, flags)

    def read_at(self, size, offset):
        return os.pread(self.descriptor, size, offset)

    def readinto_at(self, buffer, offset):
        return os.preadv(self.descriptor, [buffer], offset)

    def write_at(self, data, offset):
        return os.pwrite(self.descriptor, data, offset)

    def append(self, data):
        end = self.size()
        assert os.pwrite(self.descriptor, data, end) == len(data)
        return end

    def truncate(self, size):
        os.ftruncate(self.descriptor, size)
        return size

    def size(self):
        return os.fstat(self.descriptor).st_size

    def sync(self, data_only=False):
        os.fsync(self.descriptor)

    def close(self):
        os.close(self.descriptor)


def answer(call, *arguments):
    try:
        return call(*arguments)
    except io.UnsupportedOperation:
        # What Python's own files say where the system says EINVAL.
        return errno.EINVAL
    except OSError as error:
        return error.errno


def place(dice, size):
    offset = dice.choice([size, dice.randrange(WINDOW), dice.randrange(WINDOW) & ~4095, dice.randrange(WINDOW) & ~262143])
    offset = max(0, offset + dice.choice([-1, 0, 0, 1]))
    length = dice.choice([dice.randrange(64), dice.randrange(5000), 4096, 262144, dice.randrange(400_000)])
    return offset, min(length, WINDOW)


def step(dice, both):
    offset, length = place(dice, both[1].size())
    kind = dice.choice(["read", "readinto", "write", "write", "append", "truncate", "size", "sync"])
    if kind == "read":
        answers = [answer(file.read_at, length, offset) for file in both]
    elif kind == "readinto":
        rooms = [bytearray(length), bytearray(length)]
        answers = [(answer(file.readinto_at, room, offset), room) for file, room in zip(both, rooms)]
    elif kind == "write":
        data = dice.randbytes(length)
        answers = [answer(file.write_at, data, offset) for file in both]
    elif kind == "append":
        data = dice.randbytes(length % 5000)
        answers = [answer(file.append, data) for file in both]
    elif kind == "truncate":
        answers = [answer(file.truncate, offset) for file in both]
    elif kind == "size":
        answers = [file.size() for file in both]
    else:
        answers = [file.sync(dice.random() < 0.5) for file in both]
    assert answers[0] == answers[1], (kind, offset, length)


@pytest.fixture
def store(tmp_path):
    with forebay.Store.create(tmp_path / "store", 64 << 20) as store:
        yield store


@pytest.mark.parametrize("whose", ["session", "store"])
@pytest.mark.parametrize("seed", [1, 2, 3, int(os.environ.get("TEST_FRESH_SEED") or random.randrange(1 << 30))])
def test_the_same_answers_as_the_kernel(request, tmp_path, seed, whose):
    opener = request.getfixturevalue(whose)
    dice = random.Random(seed)
    paths = [tmp_path / "forebay", tmp_path / "kernel"]
    if whose == "store":
        paths[0] = "forebay"
    opener.open(paths[0], "wb").close()
    paths[1].touch()
    both = [opener.open(paths[0], "r+b"), Plain(paths[1], "r+b")]
    for _ in range(400):
        if dice.random() < 0.05:
            mode = dice.choice(["r+b", "rb", "wb", "a+b", "r+b"])
            for file in both:
                file.close()
            both = [opener.open(paths[0], mode), Plain(paths[1], mode)]
        step(dice, both)
    for file in both:
        file.close()
    if whose == "store":
        with opener.open(paths[0]) as file:
            assert file.read() == paths[1].read_bytes()
    else:
        assert paths[0].read_bytes() == paths[1].read_bytes()
