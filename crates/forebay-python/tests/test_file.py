"""A file as `io` has files, and its positional calls."""

import errno
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest

import forebay


def test_what_is_written_at_an_offset_is_read_there(session, path):
    with session.open(path, "w+b") as file:
        assert file.write_at(b"ragged", 100) == 6
        assert file.read_at(6, 100) == b"ragged"
        assert file.read_at(1000, 98) == b"\0\0ragged"
        assert file.read_at(10, 106) == b""
        assert (file.tell(), file.size()) == (0, 106)
        room = bytearray(4)
        assert file.readinto_at(room, 102) == 4 and room == b"gged"
        assert file.readinto_at(memoryview(bytearray(100)), 100) == 6
        file.sync()
        file.sync(data_only=True)
    assert path.read_bytes() == bytes(100) + b"ragged"


def test_large_reads_take_memory_for_what_there_is(session, path):
    path.write_bytes(b"x" * 300_000)
    with session.open(path) as file:
        assert file.read_at(1 << 62, 1) == b"x" * 299_999
        assert file.read_at(1 << 62, 300_001) == b""


def test_sequential_calls_and_wrappers(session, path):
    lines = [f"line {number}: {'ä' * (number % 50)}\n" for number in range(5000)]
    with io.TextIOWrapper(io.BufferedWriter(session.open(path, "wb")), encoding="utf-8") as text:
        text.writelines(lines)
    assert path.read_text(encoding="utf-8") == "".join(lines)
    with io.TextIOWrapper(io.BufferedReader(session.open(path)), encoding="utf-8") as text:
        assert list(text) == lines
    with session.open(path) as file:
        whole = file.read()
        assert whole.decode() == "".join(lines)
        assert file.read() == b"" and file.tell() == len(whole)
        assert file.seek(-3, io.SEEK_END) == len(whole) - 3
        assert file.seek(1, io.SEEK_CUR) == len(whole) - 2 and file.read(1) == whole[-2:-1]
    with io.BufferedRandom(session.open(path, "r+b")) as both:
        both.seek(10)
        both.write(b"changed")
        both.seek(5)
        assert both.read(20) == (whole[:10] + b"changed" + whole[17:])[5:25]


def test_modes(session, path):
    with pytest.raises(FileNotFoundError) as caught:
        session.open(path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(path))
    with session.open(path, "xb") as file:
        assert file.writable() and not file.readable() and file.seekable()
        assert file.write(b"0123456789") == 10
        with pytest.raises(io.UnsupportedOperation):
            file.read(1)
    with pytest.raises(FileExistsError):
        session.open(path, "xb")
    with session.open(path, "ab") as file:
        assert file.tell() == 10
        assert file.write(b"abc") == 3 and file.tell() == 13
        assert file.append(memoryview(b"def")) == 13
    with session.open(path, "rb") as file:
        assert not file.writable() and file.mode == "rb" and file.name == str(path)
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"no")
        with pytest.raises(OSError) as caught:
            file.write_at(b"no", 0)
        assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(path))
    with session.open(path, "r+b") as file:
        assert file.truncate(5) == 5 and file.read() == b"01234"
        file.punch(1, 2)
        assert file.read_at(9, 0) == b"0\0\x0034"
    with session.open(path, "wb") as file:
        assert file.size() == 0
    for mode in ("", "rw", "rt", "r++", "bb"):
        with pytest.raises(ValueError):
            session.open(path, mode)


# A program that appends by buffers while it may make short files only: to a plain file, one that is managed, and one that the kernel serves.
APPENDS = """
import io, resource, sys
import forebay

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def append(file):
    limit(1_000_100)
    file.write(b"a" * 999_990)
    file.flush()
    file.write(b"b" * 200)
    try:
        file.flush()
    except OSError as error:
        said = error.errno
    limit(resource.RLIM_INFINITY)
    # There is room for what the buffer has kept.
    file.close()
    return said

name, folder = sys.argv[1:]
said = {"plain": append(open(f"{folder}/plain", "ab", buffering=500_000))}
with forebay.Session(name, memory="32MiB", dirty_bytes_max="16MiB", coherence="close", routes="kernel=kernel") as session:
    for way in "managed", "kernel":
        file = session.open(f"{folder}/{way}", "ab")
        assert (file.kernel_reason is None) == (way == "managed"), file.kernel_reason
        said[way] = append(io.BufferedWriter(file, 500_000))
print(said)
"""


def test_a_buffer_appends_once_what_there_is_room_for(name, tmp_path):
    ran = subprocess.run([sys.executable, "-c", APPENDS, name, str(tmp_path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{ {way: errno.EFBIG for way in ('plain', 'managed', 'kernel')} }\n"
    plain = (tmp_path / "plain").read_bytes()
    assert plain == b"a" * 999_990 + b"b" * 200
    for way in "managed", "kernel":
        assert (tmp_path / way).read_bytes() == plain, way


def test_permissions(session, path):
    session.open(path, "wb", permissions=0o600).close()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("wrong", [-1, 0o10000, 0o100644, 1 << 40])
def test_permissions_that_no_file_has_are_refused(session, path, tmp_path, wrong):
    with pytest.raises(ValueError, match="permissions"):
        session.open(path, "wb", permissions=wrong)
    assert not path.exists()
    with forebay.Store.create(tmp_path / "store", 64 << 20) as store:
        with pytest.raises(ValueError, match="permissions"):
            store.open("file", "wb", permissions=wrong)
        with pytest.raises(ValueError, match="permissions"):
            store.mkdir("directory", wrong)
        assert store.listdir() == []


def test_the_umask_counts(session, path):
    usual = os.umask(0o027)
    try:
        session.open(path, "wb").close()
    finally:
        os.umask(usual)
    assert path.stat().st_mode & 0o7777 == 0o640


def test_buffers_that_will_not_do(session, path):
    with session.open(path, "w+b") as file:
        file.write(b"0123456789")
        with pytest.raises((BufferError, TypeError)):
            file.readinto_at(b"bytes do not change", 0)
        with pytest.raises(TypeError):
            file.write_at("text", 0)
        with pytest.raises(BufferError):
            file.write_at(memoryview(bytearray(10))[::2], 0)
        with pytest.raises(OverflowError):
            file.read_at(1, -1)
        with pytest.raises(OSError):
            file.seek(-1)
        assert file.read_at(20, 0) == b"0123456789"
        # The memory is given back: it can be resized.
        room = bytearray(4)
        file.readinto_at(room, 0)
        room.extend(b"more")


def test_closed_files_say_so(session, path):
    file = session.open(path, "w+b")
    file.close()
    file.close()
    assert file.closed and "closed" in repr(file)
    for call in (file.tell, file.readall, file.size, file.sync, lambda: file.read_at(1, 0), lambda: file.write(b"x")):
        with pytest.raises(ValueError):
            call()


def test_a_file_keeps_its_session(name, path):
    session = forebay.Session(name, memory="32MiB")
    file = session.open(path, "w+b")
    session.close()
    with pytest.raises(ValueError):
        session.open(path)
    file.write(b"bytes")
    file.close()
    assert path.read_bytes() == b"bytes"


def test_a_file_that_is_dropped_is_closed(session, path):
    file = session.open(path, "wb")
    file.write(b"bytes")
    gone = weakref.ref(file)
    del file
    gc.collect()
    assert gone() is None and path.read_bytes() == b"bytes"


def test_options_are_the_configurations():
    with pytest.raises(ValueError, match="memory"):
        forebay.Session("wrong", memroy="1GiB")
    with pytest.raises(ValueError, match="4GiB"):
        forebay.Session("wrong", memory="lots")


def test_counters(session, path):
    with session.open(path, "wb") as file:
        before = session.stats()
        file.write_at(b"x" * 5000, 1)
        after = session.stats()
        if file.kernel_reason is None:
            assert after["scrap_bytes"] - before["scrap_bytes"] == 5000


def test_memory_ahead_of_need():
    session = forebay.Session(f"warm-{os.getpid()}", memory="256MiB")
    # The least that a session has free by itself is 16 MiB.
    assert session.stats()["memory_free_bytes"] < 100 << 20
    session.warm(128 << 20)
    assert session.stats()["memory_free_bytes"] >= 100 << 20
    # As much as the budget allows, and no error.
    session.warm((1 << 64) - 1)
    assert session.stats()["memory_held_bytes"] <= 256 << 20
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.warm(1)


def test_threads_share_a_file(session, path):
    def work(number):
        for turn in range(100):
            at = (turn * 8 + number) * 3000
            file.write_at(bytes([number]) * 3000, at)
            if file.read_at(3000, at) != bytes([number]) * 3000:
                wrong.append((number, turn))

    wrong = []
    with session.open(path, "w+b") as file:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert path.read_bytes() == b"".join(bytes([number]) * 3000 for number in range(8)) * 100


def test_what_a_program_leaves_open_is_written_when_it_ends(name, path):
    program = f"import forebay; file = forebay.open({str(path)!r}, 'wb'); file.write(b'left open')"
    environment = dict(os.environ, FOREBAY_SESSION=name, FOREBAY_MEMORY="32MiB")
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)
    assert path.read_bytes() == b"left open"


WRAPPED = {
    "a buffer": "file = io.BufferedWriter(opened); file.write(b'left open')",
    "a text": "file = io.TextIOWrapper(io.BufferedWriter(opened)); file.write('left open')",
    # The module's names are in a circle of garbage then, which the collector takes apart.
    "a name of a module with functions": "file = io.BufferedWriter(opened); file.write(b'left open')\ndef function(): pass",
    "what Python takes down last": "import builtins; builtins.file = io.BufferedWriter(opened); builtins.file.write(b'left open')",
    "a file of a session by name": "file = io.BufferedWriter(forebay.Session().open(path, 'wb')); file.write(b'left open')",
}


@pytest.mark.parametrize("program", WRAPPED.values(), ids=WRAPPED)
def test_what_a_wrapper_holds_is_written_when_the_program_ends(name, path, program):
    program = f"import io, forebay\npath = {str(path)!r}\nopened = forebay.open(path, 'wb')\n{program}\ndel opened"
    environment = dict(os.environ, FOREBAY_SESSION=name, FOREBAY_MEMORY="32MiB")
    run = subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120, capture_output=True, text=True)
    assert path.read_bytes() == b"left open" and run.stderr == ""


def test_what_a_wrapper_holds_is_written_when_the_collector_takes_it(session, path):
    class Circle:
        pass

    circle = Circle()
    circle.itself = circle
    circle.file = session.open(path, "wb")
    circle.wrapper = io.BufferedWriter(circle.file)
    circle.wrapper.write(b"held")
    del circle
    gc.collect()
    assert path.read_bytes() == b"held"


def test_a_file_that_nobody_has_any_more_is_closed(session, path):
    file = session.open(path, "wb")
    file.write(b"bytes")
    del file
    assert path.read_bytes() == b"bytes" and session.stats()["dirty_bytes"] == 0


@pytest.mark.parametrize("special", ["/proc/self/maps", "/proc/cpuinfo", "/proc/self/environ"])
def test_what_the_kernel_makes_up_is_read_though_it_has_no_length(session, special):
    with session.open(special) as file:
        assert file.kernel_reason is not None and file.size() == 0
        head = file.read_at(16, 0)
        assert head and file.read_at(1 << 20, 0)[:16] == head
        assert bytes(file.view(4, 8)) == head[4:12]
        assert bytes(file.view())[:16] == head and file.readall()[:16] == head


def test_a_device_gives_as_much_as_is_asked_for(session):
    with session.open("/dev/zero") as file:
        assert file.read_at(200_000, 5) == bytes(200_000)
        assert bytes(file.view(5, 200_000)) == bytes(200_000)
    with session.open("/dev/null") as file:
        assert file.read_at(200_000, 0) == b"" == file.readall() == bytes(file.view())


def test_a_block_device_has_its_length(session, tmp_path):
    content = os.urandom(1 << 20)
    (tmp_path / "image").write_bytes(content)
    made = subprocess.run(["losetup", "--find", "--show", "--read-only", tmp_path / "image"], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        with session.open(device) as file:
            assert file.size() == file.seek(0, io.SEEK_END) == len(content)
            assert file.read_at(1 << 62, 5) == content[5:]
            assert bytes(file.view(5)) == content[5:]
            file.seek(0)
            assert file.readall() == content
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def test_a_signal_ends_an_opening_that_waits(session, path):
    class Late(Exception):
        pass

    def late(*_):
        calls.append(True)
        # The first does not ask for an end: the opening goes on.
        if len(calls) > 1:
            raise Late

    os.mkfifo(path)
    calls = []
    usual = signal.signal(signal.SIGALRM, late)
    # A writer comes in the end, so that a test that fails does end.
    writer = threading.Timer(10, lambda: os.close(os.open(path, os.O_RDWR)))
    writer.start()
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        with pytest.raises(Late):
            session.open(path).close()
        assert writer.is_alive()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
        writer.cancel()
