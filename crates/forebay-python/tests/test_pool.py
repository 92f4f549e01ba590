"""Files of pools: a pool of two servers, which `forebay serve` serves, and two processes that use it."""

import errno
import io
import os
import socket
import subprocess
import sys
import threading

import pytest

import forebay


def _forebay():
    program = os.environ.get("TEST_FOREBAY")
    if not program:
        pytest.skip("TEST_FOREBAY does not say where the program is")
    return program


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Servers:
    """Those of the pool called work."""

    def __init__(self, folder):
        self._program = _forebay()
        servers = ", ".join(f'"127.0.0.1:{port}"' for port in _free_ports(2))
        self._config = folder / "work.toml"
        self._config.write_text(f"servers = [{servers}]\nblock_bytes = 4096\n")
        self.start()

    def start(self):
        command = [self._program, "serve", self._config, "--server"]
        self._serving = [subprocess.Popen([*command, number], stderr=subprocess.DEVNULL) for number in "12"]

    def kill(self):
        for each in self._serving:
            each.kill()
            each.wait()


@pytest.fixture
def servers(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_POOLS", str(tmp_path))
    servers = Servers(tmp_path)
    yield servers
    servers.kill()


@pytest.fixture
def pool(servers):
    with forebay.Pool("work") as joined:
        yield joined
    # What was joined by a URL is of these servers.
    while forebay._pools:
        forebay._pools.popitem()[1].close()


def test_a_file_by_its_url_is_every_process_s(pool):
    pool.mkdir("dir")
    data = bytes(range(256)) * 100
    with forebay.open("pool://work/dir/file", "wb") as file:
        assert file.write(data) == len(data)
    program = """
import forebay
with forebay.open("pool://work/dir/file", "r+b") as file:
    data = file.read()
    file.write_at(b"child", 3)
    file.append(b"end")
print(len(data), sum(data))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(len(data)), str(sum(data))]
    with pool.open("dir/file") as file:
        assert file.read(8) == data[:3] + b"child"
        assert file.size() == len(data) + 3
        with pytest.raises(OSError):
            file.view()
    assert pool.listdir("dir") == ["file"]
    pool.rename("dir/file", "other")
    pool.remove("dir")
    assert pool.listdir() == ["other"]
    with pytest.raises(FileNotFoundError) as missing:
        forebay.open("pool://work/none")
    assert missing.value.filename == "none"
    with pytest.raises(FileExistsError):
        pool.open("other", "xb")
    with pytest.raises(ValueError, match="no pool is called nowhere"):
        forebay.Pool("nowhere")


def test_the_mode_holds_for_every_call(pool, session, path):
    # What a session's file answers a pool's file answers.
    for open_file, name in ((session.open, path), (pool.open, "modes")):
        with open_file(name, "wb") as file:
            assert file.write_at(b"0123456789", 0) == 10
            for reading in (lambda: file.read_at(3, 0), lambda: file.readinto_at(bytearray(3), 0)):
                with pytest.raises(OSError) as refused:
                    reading()
                assert refused.value.errno == errno.EBADF
        with open_file(name, "rb") as file:
            for writing in (lambda: file.write_at(b"x", 3), lambda: file.append(b"x")):
                with pytest.raises(OSError) as refused:
                    writing()
                assert refused.value.errno == errno.EBADF
            with pytest.raises(OSError) as refused:
                file._native.truncate(3)
            assert refused.value.errno == errno.EINVAL
            file.sync()
            assert file.read_at(100, 0) == b"0123456789"
        with open_file(name, "ab") as file:
            assert file.write_at(b"end", 0) == 3
            assert file.append(b"!") == 13
            with pytest.raises(OSError):
                file.read_at(3, 0)
        with open_file(name, "r+b") as file:
            assert file.write_at(b"ab", 0) == 2
            assert file.read_at(100, 0) == b"ab23456789end!"


def test_what_a_sync_overtakes_is_synced_by_the_close(pool):
    data = bytes(20_000_000)
    program = """
import os, sys, threading, forebay
size = int(sys.argv[1])
pool = forebay.Pool("work")
for round in range(ROUNDS):
    file = pool.open(f"overtaken-{round}", "wb")
    writer = threading.Thread(target=file.write_at, args=(b"x" * size, 0))
    writer.start()
    for _ in range(1 + round % 3):
        file.sync()
    writer.join()
    file.close()
os._exit(0)  # What was not synced is lost.
"""
    rounds = 12
    program = program.replace("ROUNDS", str(rounds))
    subprocess.run([sys.executable, "-c", program, str(len(data))], check=True)
    for round in range(rounds):
        with pool.open(f"overtaken-{round}") as file:
            assert file.size() == len(data), round
            assert file.read_at(10, len(data) - 10) == b"x" * 10, round


def test_what_an_opening_cuts_off_is_synced_by_the_close(pool):
    with pool.open("cut", "wb") as file:
        file.write(b"old")
    program = """
import os, forebay
forebay.Pool("work").open("cut", "wb").close()
os._exit(0)  # What was not synced is lost.
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    with pool.open("cut") as file:
        assert file.read() == b""


@pytest.mark.parametrize("wrapper", ["", "io.BufferedWriter"])
def test_what_a_program_leaves_open_is_synced_when_it_ends(pool, wrapper):
    program = f"import io, forebay\nfile = {wrapper}(forebay.open('pool://work/left', 'wb'))\nfile.write(b'left open')\ndef function(): pass"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    with pool.open("left") as file:
        assert file.read() == b"left open"


def test_a_child_that_was_forked_has_no_pool(pool):
    child = os.fork()
    if child == 0:
        try:
            pool.listdir()
        except OSError as refused:
            os._exit(0 if "fork" in str(refused) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.listdir() == []


def test_a_pool_that_gave_this_process_up_is_joined_again(pool, servers):
    lost = pool.open("lost", "wb")
    with forebay.open("pool://work/by-url", "wb"):
        pass
    for data in (b"second life", b"third life"):
        servers.kill()
        servers.start()
        # By a membership of its own for each, and by what can only be asked.
        with forebay.open("pool://work/file", "wb") as file:
            assert file.write(data) == len(data)
        with pytest.raises(FileNotFoundError):
            # What learns that it was given up fails by that, and the next call joins.
            for _ in range(2):
                try:
                    pool.remove("lost")
                except OSError as error:
                    if error.errno != errno.ENOTCONN:
                        raise
        with pool.open("file") as file:
            assert file.read() == data
        assert pool.listdir() == ["file"]
    with pytest.raises(OSError) as gone:
        lost.write_at(b"lost", 0)
    assert gone.value.errno == errno.ENOTCONN
    with pytest.raises(OSError):
        lost.close()


# A program that has something to write when the pool's servers have been ended.
WRITES = """
import sys
import forebay
file = forebay.open("pool://work/file", "wb")
file.write(b"bytes" * 1000)
print("written", flush=True)
sys.stdin.readline()
"""


def test_a_program_whose_servers_are_gone_ends(servers):
    with subprocess.Popen(
        [sys.executable, "-c", WRITES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout.readline() == "written\n"
            servers.kill()
            said = child.communicate("\n", timeout=60)[1]
        finally:
            child.kill()
    assert "not written" in said, said


def test_arrays_of_any_size_are_loaded(pool, tmp_path):
    """A pool's file has no views: from the size on from which arrays lie over them, they are copied."""
    np = pytest.importorskip("numpy")
    import forebay.numpy
    import forebay.safetensors

    for nbytes in (100, (256 << 10) - 1, 256 << 10, 3 << 20):
        numbers = np.arange(nbytes, dtype="u1")
        forebay.numpy.save("pool://work/numbers.npy", numbers)
        forebay.safetensors.save_file({"numbers": numbers}, "pool://work/numbers")
        for how in ({}, {"writable": True}, {"copy": True}):
            loaded = forebay.numpy.load("pool://work/numbers.npy", **how)
            assert (loaded == numbers).all() and loaded.flags.writeable == bool(how)
            loaded = forebay.safetensors.load_file("pool://work/numbers", **how)["numbers"]
            assert (loaded == numbers).all() and loaded.flags.writeable == bool(how)
        for mode in "rc":
            loaded = forebay.numpy.memmap("pool://work/numbers", mode=mode, offset=8)
            assert loaded[-nbytes:].tobytes() == numbers.tobytes() and loaded.flags.writeable == (mode == "c")
        with pool.open("numbers.npy") as file:
            room = bytearray(file.size())
            assert file.readinto(room) == len(room) and bytes(room[-nbytes:]) == numbers.tobytes()
    torch = pytest.importorskip("torch")
    import forebay.torch

    weights = {"weights": torch.arange(300_000)}
    forebay.torch.save(weights, "pool://work/weights")
    assert torch.equal(forebay.torch.load("pool://work/weights")["weights"], weights["weights"])
    loaded = forebay.safetensors.load_file("pool://work/numbers", framework="torch")["numbers"]
    assert loaded.numpy().tobytes() == numbers.tobytes()


def test_threads_share_a_position(pool):
    records = [number.to_bytes(4, "little") for number in range(4000)]
    with pool.open("records", "w+b") as file:
        file.write_at(b"".join(records), 0)
        seen = []

        def work():
            while True:
                data = file.read(4)
                if not data:
                    return
                seen.append(data)

        threads = [threading.Thread(target=work) for _ in range(4)]
        usual = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(usual)
        assert sorted(seen) == sorted(records)
        assert file.seek(-4, io.SEEK_END) == file.size() - 4 and file.write(b"last") == 4 and file.tell() == file.size()


def test_what_a_pool_does_not_have_is_refused(pool, session):
    with pytest.raises(ValueError, match="session"):
        forebay.open("pool://work/file", "wb", session)
    for wrong in (-1, 0o10000, 0o100644):
        for call in (pool.open, pool.mkdir):
            with pytest.raises(ValueError, match="permissions"):
                call("name", permissions=wrong) if call == pool.mkdir else call("name", "wb", permissions=wrong)
    assert pool.listdir() == []
