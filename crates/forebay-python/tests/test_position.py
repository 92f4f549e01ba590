"""Threads that share a file's position: each byte is one thread's, as with a descriptor of the kernel's."""

import io
import os
import sys
import threading

import pytest

import forebay

RECORD = 16
RECORDS = 20_000
THREADS = 4


@pytest.fixture(autouse=True)
def switches():
    """Threads take turns as often as can be."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture(params=["session", "store"])
def file(request, session, path, tmp_path):
    if request.param == "session":
        with session.open(path, "w+b") as file:
            yield file
    else:
        with forebay.Store.create(tmp_path / "store", 64 << 20) as store, store.open("file", "w+b") as file:
            yield file


def record(number):
    return number.to_bytes(RECORD, "little")


CONTENT = b"".join(record(number) for number in range(RECORDS))


def by_threads(work):
    """Does it in some threads at once, and raises what one of them raises."""
    raised = []

    def each(number):
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=each, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def read_by_threads(file):
    seen = []

    def work(_):
        while True:
            data = file.read(RECORD)
            if not data:
                return
            seen.append(data)

    by_threads(work)
    return seen


def write_by_threads(file, count):
    def work(thread):
        for number in range(thread, count, THREADS):
            assert file.write(record(number)) == RECORD

    by_threads(work)


def records_of(data):
    return sorted(data[at : at + RECORD] for at in range(0, len(data), RECORD))


def test_each_record_is_read_once(file):
    file.write_at(CONTENT, 0)
    seen = read_by_threads(file)
    assert len(seen) == RECORDS and sorted(seen) == records_of(CONTENT)
    assert file.tell() == len(CONTENT)


def test_each_record_is_written_once(file):
    write_by_threads(file, RECORDS)
    assert file.size() == file.tell() == len(CONTENT)
    assert records_of(file.read_at(len(CONTENT), 0)) == records_of(CONTENT)


def test_moves_add_up(file):
    by_threads(lambda _: [file.seek(3, io.SEEK_CUR) for _ in range(5000)])
    assert file.tell() == 3 * 5000 * THREADS


def test_what_all_of_them_read_is_the_file(file):
    file.write_at(CONTENT * 20, 0)
    parts = []
    by_threads(lambda _: parts.append(file.readall()))
    assert sum(map(len, parts)) == len(CONTENT) * 20 and file.tell() == len(CONTENT) * 20


def test_those_who_append_are_behind_what_they_have_written(session, path):
    with session.open(path, "ab") as file:
        write_by_threads(file, 2000)
        assert file.tell() == file.size() == 2000 * RECORD
    assert records_of(path.read_bytes()) == records_of(CONTENT[: 2000 * RECORD])


def test_where_no_byte_can_be(file):
    file.seek(5)
    for wrong in ((-1,), (-6, io.SEEK_CUR), (-1, io.SEEK_END), ((1 << 63) - 1, io.SEEK_CUR)):
        with pytest.raises(OSError) as caught:
            file.seek(*wrong)
        assert caught.value.errno == 22 and caught.value.filename == os.fspath(file.name)
    with pytest.raises(OverflowError):
        file.seek(1 << 63)
    with pytest.raises(ValueError, match="whence"):
        file.seek(0, 3)
    assert file.tell() == 5 and file.read() == b""
