"""A file that a program has open by a session and by Python's own `open` at once."""

import multiprocessing
import os
import shutil

import pytest

import forebay

from conftest import OPTIONS

STRICT = OPTIONS | {"coherence": "strict", "flush_after": "never", "flush_interval": "never"}


@pytest.fixture
def strict(name):
    try:
        session = forebay.Session(name, **STRICT)
    except OSError as error:
        pytest.skip(str(error))
    with session:
        yield session


def both_ways(session, path):
    expected = bytearray(os.urandom(1_000_001))
    with session.open(path, "w+b") as file:
        file.write_at(expected, 0)
        with open(path, "r+b", buffering=0) as by_system:
            assert by_system.read() == expected
            by_system.seek(300_000)
            by_system.write(b"by the system")
            expected[300_000:300_013] = b"by the system"
            assert file.read_at(len(expected), 0) == expected
            file.write_at(b"by the library", 5)
            expected[5:19] = b"by the library"
            by_system.seek(0)
            assert by_system.read() == expected
    path.unlink()
    with session.open(path, "w+b") as file:
        file.write_at(expected, 0)
        assert shutil.copyfile(path, path.with_suffix(".copy")).read_bytes() == expected


def joins(name, path):
    with forebay.Session(name, keep=False, **STRICT) as session:
        both_ways(session, path)
    return True


def test_the_keepers_program_may_open_a_file_in_both_ways(strict, path):
    both_ways(strict, path)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_member_may_open_a_file_in_both_ways(strict, name, path, method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply_async(joins, [name, path]).get(120)


def test_an_array_over_a_mapping_of_the_systems_has_what_was_written(strict, path):
    numpy = pytest.importorskip("numpy")
    numbers = numpy.arange(100_000, dtype="<i8")
    with strict.open(path, "w+b") as file:
        file.write_at(numbers, 0)
        mapped = numpy.memmap(path, dtype="<i8", mode="r+")
        assert (mapped == numbers).all()
        mapped[5000] = -1
        assert file.read_at(8, 40_000) == b"\xff" * 8
