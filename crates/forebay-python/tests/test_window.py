"""Windows: memory that is filled and given to files."""

import os

import pytest

import forebay

BLOCK = 256 << 10
MIB = 1 << 20
CONTENT = bytes(range(251)) * (4 * MIB // 251 + 1)


@pytest.fixture
def session(name):
    with forebay.Session(name, memory="64MiB") as session:
        yield session


@pytest.fixture
def file(session, path):
    with session.open(path, "w+b") as file:
        yield file


def test_a_window_is_memory_to_write_into(session, file):
    with session.window(2 * MIB) as window:
        assert isinstance(window, forebay.Window) and len(window) == 2 * MIB
        assert bytes(window) == bytes(2 * MIB)
        with memoryview(window) as memory:
            assert not memory.readonly and memory.contiguous and memory.format == "B"
            memory[:] = CONTENT[: 2 * MIB]
        assert window.commit(file, 0) == 2 * MIB
        assert window.attached_bytes == 2 * MIB
        assert file.read_at(2 * MIB, 0) == CONTENT[: 2 * MIB]
        # What is stored afterwards is the window's alone.
        memory = memoryview(window)
        memory[5] = 0xFF
        assert file.read_at(10, 0) == CONTENT[:10]
        assert window.commit(file, 4 * MIB, BLOCK, 2 * BLOCK) == BLOCK
        assert window.attached_bytes == 2 * MIB
        window.refill()
        assert memory[5] == 0xFF and memory[6:] == CONTENT[6 : 2 * MIB]
        # A block by itself is copied: it would have a mapping of its own.
        assert window.commit(file, 8 * MIB, stop=BLOCK) == BLOCK
        assert window.attached_bytes == 2 * MIB
        assert window.commit(file, 8 * MIB) == 2 * MIB
        assert window.attached_bytes == 4 * MIB
        window.detach()
        assert memory[:] == bytes(2 * MIB)
        memory.release()
        assert file.readinto_at(window, 4 * MIB) == 2 * MIB
    assert file.read_at(BLOCK, 4 * MIB) == CONTENT[BLOCK : 2 * BLOCK]


def test_a_window_slides(session, file):
    window = session.window(4 * MIB)
    memory = memoryview(window)
    with pytest.raises(BufferError):
        window.slide(100)
    memory.release()
    window.slide(100)
    memory = memoryview(window)
    memory[:] = CONTENT[: 4 * MIB]
    assert window.commit(file, 100) == 4 * MIB
    assert window.attached_bytes == 2 * MIB
    memory.release()
    window.release()
    assert file.read_at(4 * MIB, 100) == CONTENT[: 4 * MIB]


def test_release(session, file):
    window = session.window(BLOCK)
    memory = memoryview(window)
    with pytest.raises(BufferError):
        window.release()
    memory.release()
    window.release()
    window.release()
    for use in (len, bytes, memoryview, lambda window: window.commit(file, 0), lambda window: window.refill(), lambda window: window.detach()):
        with pytest.raises((ValueError, BufferError), match="closed"):
            use(window)
    with pytest.raises(ValueError):
        memoryview(forebay.Window())
    assert session.stats()["viewed_bytes"] == 0


def test_wrong_calls(session, file, path):
    with session.window(BLOCK) as window:
        for arguments in ((0, 0, BLOCK + 1), (0, 5, 4)):
            with pytest.raises(OSError):
                window.commit(file, *arguments)
        for arguments in ((-1,), (0, -1), (1 << 64,)):
            with pytest.raises(OverflowError):
                window.commit(file, *arguments)
        assert window.commit(file, 0, 7, 7) == 0
        with session.open(path, "rb") as reader, pytest.raises(OSError):
            window.commit(reader, 0)
        file.close()
        with pytest.raises(ValueError):
            window.commit(file, 0)
    for nbytes in (0, (1 << 63) - 1):
        with pytest.raises(OSError):
            session.window(nbytes)
    with pytest.raises(OverflowError):
        session.window(-1)


def test_arrays_lie_over_it(session, file):
    np = pytest.importorskip("numpy")
    window = session.window(MIB)
    array = np.frombuffer(window, "<u4")
    assert array.flags.writeable
    array[:] = np.arange(len(array))
    expected = array.tobytes()
    window.commit(file, 0)
    array += 1
    assert file.read_at(MIB, 0) == expected
    with pytest.raises(BufferError):
        window.release()
    del array
    window.release()


def test_a_child_has_nothing_of_it(session, file):
    window = session.window(BLOCK)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            window.commit(file, 0)
        except OSError:
            code = 0 if len(memoryview(window)) == 0 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert window.commit(file, 0) == BLOCK


def test_the_default_session(path, name, monkeypatch):
    monkeypatch.setenv("FOREBAY_SESSION", name)
    monkeypatch.setenv("FOREBAY_MEMORY", "32MiB")
    with forebay.window(2 * MIB) as window, forebay.open(path, "w+b") as file:
        memory = memoryview(window)
        memory[:4] = b"four"
        window.commit(file, 0)
        assert file.read_at(4, 0) == b"four" and window.attached_bytes == 2 * MIB
        memory.release()
    forebay.default_session().close()
