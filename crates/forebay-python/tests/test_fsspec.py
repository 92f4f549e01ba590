"""`forebay://` for fsspec."""

import os
import subprocess
import sys

import pytest

fsspec = pytest.importorskip("fsspec")

import forebay.fsspec


@pytest.fixture
def files(name, monkeypatch):
    monkeypatch.setenv("FOREBAY_SESSION", name)
    monkeypatch.setenv("FOREBAY_MEMORY", "32MiB")
    yield fsspec.filesystem("forebay", skip_instance_cache=True)
    forebay.default_session().close()


def test_the_protocol_is_found(files, tmp_path):
    assert isinstance(files, forebay.fsspec.ForebayFileSystem)
    where = f"forebay://{tmp_path}/data"
    with fsspec.open(where, "wb") as file:
        assert isinstance(file.raw, forebay.File)
        file.write(b"some bytes")
    assert (tmp_path / "data").read_bytes() == b"some bytes"
    with fsspec.open(where, "r") as text:
        assert text.read() == "some bytes"


def test_files_and_directories(files, tmp_path):
    root = f"forebay://{tmp_path}"
    files.makedirs(f"{root}/below")
    files.pipe(f"{root}/below/one", b"1" * 300_000)
    files.cp(f"{root}/below/one", f"{root}/below/two")
    assert sorted(files.ls(f"{root}/below", detail=False)) == [f"{tmp_path}/below/one", f"{tmp_path}/below/two"]
    assert files.cat_file(f"{root}/below/two", 299_990, 300_010) == b"1" * 10
    assert files.info(f"{root}/below/one")["size"] == 300_000
    with files.open(f"{root}/below/one", "ab") as file:
        file.write(b"end")
    assert files.cat(f"{root}/below/one")[-4:] == b"1end"
    files.rm(f"{root}/below", recursive=True)
    assert not files.exists(f"{root}/below")


def test_what_a_program_leaves_open_is_written_when_it_ends(name, tmp_path):
    program = f"import fsspec; file = fsspec.filesystem('forebay').open({str(tmp_path / 'data')!r}, 'wb'); file.write(b'left open')"
    environment = dict(os.environ, FOREBAY_SESSION=name, FOREBAY_MEMORY="32MiB")
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)
    assert (tmp_path / "data").read_bytes() == b"left open"


def test_files_are_read_from_their_end_and_by_blocks(files, tmp_path):
    path = str(tmp_path / "data")
    files.pipe(path, b"one\ntwo\nthree\n")
    assert files.tail(path, 6) == b"three\n" and files.tail(path, 100) == b"one\ntwo\nthree\n"
    assert files.cat_file(path, start=-6) == b"three\n"
    assert files.cat_file(path, end=-6) == b"one\ntwo\n"
    assert files.cat_file(path, start=-6, end=-1) == b"three"
    assert files.read_block(path, 1, 4, b"\n") == b"two\n"
    assert files.read_block(path, 4, None) == b"two\nthree\n"
