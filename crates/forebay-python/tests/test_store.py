"""Stores in persistent memory: names, views and windows, who may use what after a fork, and errors."""

import errno
import faulthandler
import os
import signal
import subprocess
import sys

import pytest

import forebay

MIB = 1 << 20
CONTENT = bytes(range(251)) * (4 * MIB // 251 + 1)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(place):
    with forebay.Store.create(place, 64 * MIB) as store:
        yield store


def refused(number, call, *arguments, **options):
    with pytest.raises(OSError) as said:
        call(*arguments, **options)
    assert said.value.errno == number, said.value
    return said.value


def test_names_and_files(store, place):
    store.mkdir("a")
    with store.open("a/file", "xb") as file:
        assert file.write(CONTENT) == len(CONTENT)
        assert isinstance(file, forebay.StoreFile) and file.kernel_reason is None
    with store.open("/a/file", "ab") as file:
        assert file.write(b"end") == 3
    stat = store.stat("a/file")
    assert stat.st_size == len(CONTENT) + 3 and stat.st_mode == 0o100644 and stat.st_uid == os.geteuid()
    assert stat.st_mtime_ns // 10**9 == stat[8] and abs(stat.st_mtime - stat.st_mtime_ns / 1e9) < 1
    store.rename("a/file", "file")
    refused(errno.ENOENT, store.open, "a/file")
    store.remove("a")
    assert store.listdir() == ["file"]
    store.sync()
    store.close()
    with forebay.Store(place, read_only=True) as again:
        with again.open("file") as file:
            assert file.read() == CONTENT + b"end"
            file.sync()
        refused(errno.EROFS, again.mkdir, "b")
        missing = refused(errno.ENOENT, again.stat, "none")
        assert isinstance(missing, FileNotFoundError) and missing.filename == "none"


def test_what_a_store_refuses(store, place, tmp_path):
    assert refused(errno.EBUSY, forebay.Store, place).filename == str(place)
    refused(errno.EBUSY, forebay.Store.create, place, MIB, force=True)
    refused(errno.ENOENT, forebay.Store, tmp_path / "none")
    refused(errno.EINVAL, forebay.Store.create, tmp_path / "small", 1000)
    with pytest.raises(ValueError):
        forebay.Store(tmp_path / "none", flush_interval=-1)
    (tmp_path / "other").write_bytes(b"other")
    refused(errno.EINVAL, forebay.Store, tmp_path / "other")
    refused(errno.EEXIST, forebay.Store.create, tmp_path / "other", 64 * MIB)
    with store.open("file", "wb") as file:
        refused(errno.EBADF, file.view)
        with pytest.raises(OverflowError):
            file.write_at(b"x", -1)
    with store.open("file", "ab") as file:
        refused(errno.EINVAL, file.window, 0, 1)
    with store.open("file") as file:
        refused(errno.EBADF, file.window, 0, 1)
        refused(errno.EBADF, file.write_at, b"x", 0)
    store.close()
    for use in (store.listdir, store.sync, lambda: store.open("file")):
        with pytest.raises(ValueError, match="closed"):
            use()
    store.close()


def test_a_full_store(place):
    with forebay.Store.create(place, 4 * MIB) as store, store.open("file", "w+b") as file:
        written = file.write_at(bytes(8 * MIB), 0)
        assert 0 < written < 4 * MIB
        refused(errno.ENOSPC, file.write_at, b"x", 8 * MIB)
        refused(errno.ENOSPC, file.window, 8 * MIB, 1)
        file.truncate(0)
        with file.window(0, 8 * MIB) as window:
            assert 0 < len(window) < 4 * MIB


def test_a_view_shows_one_moment_and_keeps_its_bytes(store, place):
    with store.open("file", "w+b") as file:
        file.write_at(CONTENT, 0)
        view, part = file.view(), file.view(5000, 100)
        memory = memoryview(view)
        assert memory.readonly and memory.contiguous and len(view) == len(CONTENT) and not view.is_copy
        with pytest.raises(BufferError):
            view.release()
        for fill in range(3):
            file.write_at(bytes([fill]) * MIB, 100)
            store.sync()
        copied = file.view(0, 2 * MIB)
        assert copied.is_copy and bytes(copied)[:MIB] == CONTENT[:100] + b"\2" * (MIB - 100)
        changed = file.view(0, 200, writable=True)
        memoryview(changed)[0] = 9
        assert file.read_at(1, 0) == CONTENT[:1]
        file.truncate(0)
    store.remove("file")
    store.close()
    refused(errno.EBUSY, forebay.Store, place)
    assert memory == CONTENT and bytes(part) == CONTENT[5000:5100]
    del memory, view
    part.release()
    with pytest.raises(ValueError):
        memoryview(part)
    # Nothing holds it any more.
    forebay.Store(place).close()


def test_a_view_of_more_than_there_is_memory_for(store):
    with store.open("file", "w+b") as file:
        file.truncate(1 << 49)
        with pytest.raises(MemoryError):
            file.view()
        assert bytes(file.view(1 << 48, 10)) == bytes(10)


def test_a_window_becomes_a_part_of_the_file(store):
    with store.open("file", "w+b") as file:
        with file.window(100, 3 * MIB) as window:
            assert isinstance(window, forebay.StoreWindow) and len(window) == 3 * MIB
            memory = memoryview(window)
            assert not memory.readonly
            memory[:] = CONTENT[: 3 * MIB]
            assert file.size() == 0
            # What is stored after the commit would reach the file.
            with pytest.raises(BufferError):
                window.commit()
            memory.release()
            refused(errno.EINVAL, window.commit, 3 * MIB + 1)
            assert window.commit(2 * MIB) == 2 * MIB
            assert len(window) == 0 and bytes(window) == b""
            assert window.commit() == 0
        with pytest.raises(ValueError, match="closed"):
            window.commit()
        with pytest.raises(ValueError):
            memoryview(forebay.StoreWindow())
        assert file.read() == bytes(100) + CONTENT[: 2 * MIB]
        with file.window(0, MIB) as window:
            memoryview(window)[:] = bytes(MIB)
        assert file.read_at(10, 100) == CONTENT[:10]
        last = file.window(0, 5)
        memoryview(last)[:] = b"bytes"
        store.close()
    # The window keeps the store.
    assert last.commit() == 5
    last.release()
    with forebay.Store(store.path) as again, again.open("file") as file:
        assert file.read_at(5, 0) == b"bytes"


def test_arrays_lie_over_views_and_windows(store):
    np = pytest.importorskip("numpy")
    import forebay.numpy

    numbers = np.arange(MIB, dtype="<f8")
    with store.open("numbers", "w+b") as file:
        with file.window(0, numbers.nbytes) as window:
            np.frombuffer(window, "<f8")[:] = numbers
            assert window.commit() == numbers.nbytes
        view = file.view()
        array = np.frombuffer(view, "<f8")
        assert not view.is_copy and not array.flags.writeable
        file.write_at(bytes(100), 0)
    del view
    assert (array == numbers).all()
    with store.open("array.npy", "wb") as file:
        np.save(file, numbers)
    with store.open("array.npy") as file:
        loaded = forebay.numpy.load(file)
        private = forebay.numpy.load(file, writable=True)
    assert not loaded.flags.writeable and loaded.base is not None and (loaded == numbers).all()
    private += 1
    assert (loaded == numbers).all()


def test_a_child_has_nothing_of_it(store):
    file = store.open("file", "w+b")
    file.write_at(CONTENT[:20_000], 0)
    view = memoryview(file.view())
    window = file.window(0, 20_000)
    memory = memoryview(window)
    memory[:] = bytes(20_000)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            calls = (file.size, store.listdir, lambda: file.write_at(b"child", 0), lambda: file.view(), lambda: forebay.Store(store.path))
            errors = []
            for call in calls:
                with pytest.raises(OSError) as said:
                    call()
                errors.append(said.value.errno)
            assert errors == [errno.ENOTCONN] * 4 + [errno.EBUSY]
            assert view == CONTENT[:20_000] and len(memoryview(window)) == 0
            file.close()
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        memory[0] = 1
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    memory.release()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            window.commit()
        except OSError as said:
            code = 0 if said.errno == errno.ENOTCONN else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert file.read_at(10, 0) == CONTENT[:10]
    assert window.commit() == 20_000 and file.read_at(30_000, 0) == bytes(20_000)
    file.close()


@pytest.mark.parametrize("wrapper", ["", "io.BufferedWriter"])
def test_what_a_program_leaves_open_is_kept_when_it_ends(place, wrapper):
    program = f"""
import io, sys, forebay
store = forebay.Store.create(sys.argv[1], 1 << 24)
store.close()
store = forebay.Store(sys.argv[1], flush_interval=None)
file = {wrapper}(store.open("left", "wb"))
file.write(b"left open")
def function(): pass"""
    subprocess.run([sys.executable, "-c", program, place], check=True, timeout=120)
    with forebay.Store(place) as store, store.open("left") as file:
        assert file.read() == b"left open"
