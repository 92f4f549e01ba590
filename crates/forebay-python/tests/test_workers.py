"""Workers of `multiprocessing`, forked and spawned, as loaders of data have them."""

import errno
import multiprocessing
import os

import pytest

import forebay

from conftest import OPTIONS

RECORD = 5000
RECORDS = 64


def record(number):
    return bytes([number]) * RECORD


def load(arguments):
    """A worker's task: a record by a session of the worker's own."""
    name, path, number = arguments
    with forebay.Session(name, keep=False, **OPTIONS) as session, session.open(path, "r+b") as file:
        data = file.read_at(RECORD, number * RECORD)
        file.write_at(b"done", number * RECORD)
        return data == record(number)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_see_what_the_parent_has_written(session, name, path, method):
    with session.open(path, "w+b") as file:
        for number in range(RECORDS):
            file.write_at(record(number), number * RECORD)
        with multiprocessing.get_context(method).Pool(3) as pool:
            seen = pool.map_async(load, [(name, str(path), number) for number in range(RECORDS)]).get(120)
        assert seen == [True] * RECORDS
        for number in range(RECORDS):
            assert file.read_at(RECORD, number * RECORD) == b"done" + record(number)[4:]


def inherited(file, session, path, answers):
    found = []
    for call in (lambda: file.read_at(1, 0), lambda: file.write_at(b"wrong", 0), file.size, session.stats, lambda: session.open(path)):
        try:
            call()
            found.append("no error")
        except OSError as error:
            found.append((error.errno, "parent" in str(error)))
    # Closing what is the parent's does nothing, and says nothing.
    file.close()
    session.close()
    with forebay.open(path) as own:
        found.append(own.read_at(5, 0))
    answers.put(found)


def test_what_a_forked_child_inherits_is_refused(session, path, name, monkeypatch):
    monkeypatch.setenv("FOREBAY_SESSION", name)
    monkeypatch.setenv("FOREBAY_MEMORY", "32MiB")
    context = multiprocessing.get_context("fork")
    with session.open(path, "w+b") as file:
        file.write_at(b"bytes", 0)
        answers = context.Queue()
        child = context.Process(target=inherited, args=(file, session, str(path), answers))
        child.start()
        found = answers.get(timeout=120)
        child.join(120)
        assert child.exitcode == 0
        assert found == [(errno.ENOTCONN, True)] * 5 + [b"bytes"]
        # The parent has lost nothing by it.
        assert file.read_at(5, 0) == b"bytes" and session.stats()
    assert path.read_bytes() == b"bytes"


def test_the_default_session_is_the_processes_own(path, name, monkeypatch):
    monkeypatch.setenv("FOREBAY_SESSION", name)
    monkeypatch.setenv("FOREBAY_MEMORY", "32MiB")
    with forebay.open(path, "w+b") as file:
        file.write(b"parent")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with forebay.open(path, "r+b") as own:
                    status = 0 if own.read() == b"parent" and own.write(b" child") == 6 else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0) == (child, 0)
        assert file.read_at(20, 0) == b"parent child"
    forebay.default_session().close()
