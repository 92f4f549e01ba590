"""Views: the bytes of a range as they were, without a copy."""

import errno
import gc
import os
import signal

import pytest

import forebay

BLOCK = 256 * 1024
CONTENT = bytes(range(251)) * 3000


@pytest.fixture
def file(session, path):
    with session.open(path, "w+b") as file:
        assert file.write_at(CONTENT, 0) == len(CONTENT)
        assert file.kernel_reason is None
        yield file


def test_a_view_is_the_bytes_read_only(session, file):
    with file.view() as view:
        assert isinstance(view, forebay.View) and view.contiguous and not view.is_copy
        assert len(view) == len(CONTENT) and bytes(view) == CONTENT
        with memoryview(view) as memory:
            assert memory.readonly and memory.contiguous and memory.format == "B"
            with pytest.raises(TypeError):
                memory[0] = 1
        with pytest.raises(BufferError):
            file.readinto_at(view, 0)
        # What exports its bytes may be written: the view of a file into another place of it.
        assert file.write_at(view, len(CONTENT)) == len(CONTENT)
        assert session.stats()["viewed_bytes"] >= len(CONTENT)
    assert file.read_at(1 << 30, 0) == CONTENT * 2
    assert session.stats()["viewed_bytes"] == 0


def test_ranges(file):
    for offset, length in ((0, None), (5, 100), (BLOCK - 3, 7), (4096, BLOCK), (len(CONTENT) - 5, 100), (700_000, None)):
        end = len(CONTENT) if length is None else offset + length
        with file.view(offset, length) as view:
            assert bytes(view) == CONTENT[offset:end], (offset, length)
    for offset, length in ((0, 0), (len(CONTENT), None), (1 << 40, 10), ((1 << 64) - 1, (1 << 64) - 1)):
        with file.view(offset, length) as view:
            assert len(view) == 0 and bytes(view) == b"", (offset, length)
    for wrong in ((-1, 10), (0, -1), (1 << 64, 1)):
        with pytest.raises(OverflowError):
            file.view(*wrong)
    with pytest.raises(TypeError):
        file.view("0")


@pytest.mark.skipif(
    open("/proc/sys/vm/overcommit_memory").read().strip() == "1", reason="the kernel promises any amount of memory"
)
def test_more_than_there_is_memory_for(session, path):
    with session.open(path, "w+b") as file:
        file.truncate(1 << 43)
        with pytest.raises(MemoryError):
            file.view()
        with file.view(0, 10) as view:
            assert bytes(view) == bytes(10)


def test_it_stays_whatever_happens_to_the_file(name, path):
    session = forebay.Session(name, memory="32MiB")
    file = session.open(path, "w+b")
    file.write_at(CONTENT, 0)
    views = [file.view(), file.view(100, 5000), file.view(BLOCK, BLOCK)]
    expected = [CONTENT, CONTENT[100:5100], CONTENT[BLOCK : 2 * BLOCK]]
    steps = [
        lambda: file.write_at(b"x" * len(CONTENT), 0),
        file.sync,
        lambda: file.truncate(1000),
        lambda: file.write_at(b"y" * BLOCK, 0),
        lambda: os.unlink(path),
        file.close,
        session.close,
        gc.collect,
    ]
    for step in steps:
        step()
        assert [bytes(view) for view in views] == expected
    for view in views:
        view.release()


def test_release(session, file):
    view = file.view()
    memory = memoryview(view)
    part = memory[10:20]
    with pytest.raises(BufferError):
        view.release()
    memory.release()
    assert bytes(part) == CONTENT[10:20]
    with pytest.raises(BufferError):
        view.release()
    part.release()
    view.release()
    view.release()
    assert view.contiguous
    for use in (len, bytes, memoryview, lambda view: view.is_copy, lambda view: view.__enter__()):
        with pytest.raises((ValueError, BufferError), match="closed"):
            use(view)
    with pytest.raises(ValueError):
        memoryview(forebay.View())
    assert session.stats()["viewed_bytes"] == 0


def test_what_lies_over_a_view_keeps_it(session, file):
    memory = memoryview(file.view(0, BLOCK))[5:]
    gc.collect()
    file.write_at(b"z" * BLOCK, 0)
    assert memory == CONTENT[5:BLOCK]
    assert session.stats()["viewed_bytes"] > 0
    del memory
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0


def test_arrays_keep_it(session, file):
    np = pytest.importorskip("numpy")
    view = file.view(0, 4000)
    array = np.frombuffer(view, "<u4")
    assert not array.flags.writeable and array.tobytes() == CONTENT[:4000]
    with pytest.raises(ValueError):
        array[0] = 1
    with pytest.raises(BufferError):
        view.release()
    del view
    file.write_at(b"z" * 4000, 0)
    assert array[1:].tobytes() == CONTENT[4:4000]
    del array
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0


def test_beyond_the_limit_it_is_a_copy(session, path):
    # More than half of the session's memory.
    with open(path, "wb") as plain:
        for number in range(24):
            plain.write(bytes([number + 1]) * (1 << 20))
    with session.open(path) as file, file.view() as view:
        assert view.is_copy and len(view) == 24 << 20
        with memoryview(view) as memory:
            assert all(memory[number << 20] == number + 1 for number in range(24))
        assert session.stats()["viewed_bytes"] == 0


def test_files_that_do_not_read_have_none(session, path, file):
    with session.open(path, "ab") as writer, pytest.raises(OSError) as caught:
        writer.view()
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(path))
    closed = session.open(path)
    closed.close()
    with pytest.raises(ValueError):
        closed.view()


def test_a_forked_child_reads_its_parents_view(session, file):
    view = file.view()
    memory = memoryview(view)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            status = 2 if bytes(memory) != CONTENT or bytes(view) != CONTENT else 0
            # The parent has it: nothing of it goes.
            memory.release()
            view.release()
            try:
                file.view()
                status = status or 3
            except OSError as error:
                status = status or (0 if error.errno == errno.ENOTCONN else 4)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0) == (child, 0)
    file.write_at(b"z" * len(CONTENT), 0)
    assert memory == CONTENT and session.stats()["viewed_bytes"] >= len(CONTENT)
    memory.release()
    view.release()
    assert session.stats()["viewed_bytes"] == 0


def test_what_is_stored_into_a_view_stays_there(session, path, file):
    with file.view(writable=True) as view, file.view() as plain, file.view(writable=True) as beside:
        assert not view.is_copy and not view.readonly and plain.readonly
        with memoryview(view) as memory:
            assert not memory.readonly and memory == CONTENT
            memory[5:5000] = b"x" * 4995
            assert bytes(view) == CONTENT[:5] + b"x" * 4995 + CONTENT[5000:]
            with pytest.raises(BufferError):
                view.release()
        assert bytes(plain) == bytes(beside) == file.read_at(1 << 30, 0) == CONTENT
        file.write_at(b"y" * len(CONTENT), 0)
        assert bytes(view)[5000:] == CONTENT[5000:] and bytes(beside) == CONTENT
        # What reads may be read into it, from itself as well.
        assert file.readinto_at(view, 0) == len(CONTENT)
        assert bytes(view) == b"y" * len(CONTENT)
        view.release()
        with pytest.raises(ValueError, match="closed"):
            view.readonly
    file.sync()
    assert path.read_bytes() == b"y" * len(CONTENT) and session.stats()["viewed_bytes"] == 0
    with file.view(1 << 30, writable=True) as view:
        assert len(view) == 0 and bytes(view) == b"" and not view.readonly


def test_a_forked_child_stores_into_a_view_of_its_own(session, file):
    memory = memoryview(file.view(writable=True))
    memory[0:4] = b"both"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            right = memory == b"both" + CONTENT[4:]
            memory[4:9] = b"child"
            status = 0 if right and memory[:9] == b"bothchild" else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0) == (child, 0)
    assert memory == b"both" + CONTENT[4:]
