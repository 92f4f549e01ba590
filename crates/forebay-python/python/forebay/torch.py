"""`torch.load` and `torch.save` by a session. What is loaded lies over one view of its file: the system copies a page when it is first stored to,
and nothing else is copied."""

from __future__ import annotations

import io
import os
import pickle
import sys
import types
import zipfile
from typing import Any, Callable, Dict, Optional, Union

import numpy as np
import torch

import forebay

__all__ = ["load", "save"]

_Path = Union[str, "os.PathLike[str]"]

# Less than this is copied: a view keeps whole blocks of the session's memory.
_VIEW_BYTES_MIN = 256 << 10
# More than torch writes of an object that it cannot pickle.
_HELD_BYTES_MAX = 1 << 20
_ZIP_MAGIC = b"PK\x03\x04"


def load(
    f: Union[_Path, forebay.File],
    map_location: Any = None,
    *,
    session: Optional[forebay.Session] = None,
    weights_only: bool = True,
    copy: bool = False,
    **pickle_load_args: Any,
) -> Any:
    """As `torch.load`, of a path, or of a `forebay.File` from its beginning.

    Tensors that stay in this machine's memory lie over a view of the file: they are what the file held when it was loaded, whatever happens to it; what
    is stored into them stays in them; and the last of them keeps as much of the session's memory as the file has. With `copy`, in files of an older
    format and for other devices, they have memory of their own.

    By default only what torch holds for safe is loaded (`weights_only`), whatever the version of torch does. Without it, whoever reads a file runs what
    it says.
    """
    if not isinstance(f, forebay.File):
        with forebay.open(f, "rb", session) as opened:
            return load(opened, map_location, weights_only=weights_only, copy=copy, **pickle_load_args)
    return _load_range(f, 0, f.size(), map_location, weights_only, copy, pickle_load_args)


def save(obj: object, f: Union[_Path, forebay.File], *, session: Optional[forebay.Session] = None, **how: Any) -> None:
    """As `torch.save`, to a path, or to a `forebay.File` from its position on. `how` is what `torch.save` takes beside these.

    A file that has the path already stays as it is where the object cannot be pickled. In torch's older format that holds for the first MiB.
    """
    if isinstance(f, forebay.File):
        return _save_to(_Sink(f), obj, **how)
    sink = _LateSink(f, session)
    try:
        _save_to(sink, obj, **how)
        sink.end()
    finally:
        sink.close()


def _save_to(sink: _Sink, obj: object, **how: Any) -> None:
    torch.save(obj, sink, **how)
    sink.check()


class _Sink:
    """What torch writes to. An error is kept and raised when torch has ended, whose own code goes on without asking."""

    def __init__(self, file: forebay.File) -> None:
        self._file = file
        self.error: Optional[Exception] = None

    def write(self, data: Any) -> int:
        memory = memoryview(data).cast("B")
        done = 0
        while done < len(memory) and self.error is None:
            try:
                done += self._file.write(memory[done:])
            except OSError as error:
                self.error = error
        return len(memory)

    def flush(self) -> None:
        """Closing does."""

    def check(self) -> None:
        """Raises the error that was kept."""
        if self.error is not None:
            raise self.error


class _LateSink(_Sink):
    """A sink that opens a file by its path, and so empties it, when there is more than a little to write. Before, torch may find that it cannot pickle."""

    def __init__(self, path: _Path, session: Optional[forebay.Session]) -> None:
        self._path = path
        self._session = session
        self._held = bytearray()
        self._opened: Optional[forebay.File] = None
        self.error = None

    def write(self, data: Any) -> int:
        memory = memoryview(data).cast("B")
        if self._opened is None and self.error is None:
            if len(self._held) + len(memory) <= _HELD_BYTES_MAX:
                self._held += memory
                return len(memory)
            self._open()
        return super().write(memory)

    def _open(self) -> None:
        try:
            self._file = self._opened = forebay.open(self._path, "wb", self._session)
        except Exception as error:
            self.error = error
        super().write(self._held)
        self._held = bytearray()

    def end(self) -> None:
        """Writes what is held, of an object that was saved."""
        if self._opened is None:
            self._open()
            self.check()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class _Range(io.RawIOBase):
    """A range of a file, or of memory, as a file of its own."""

    def __init__(self, read_into: Callable[[memoryview, int], int], size: int) -> None:
        super().__init__()
        self._read_into = read_into
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        memory = memoryview(buffer).cast("B")
        memory = memory[: max(self._size - self._position, 0)]
        count = self._read_into(memory, self._position)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if begin + offset < 0:
            raise OSError(22, os.strerror(22))
        self._position = begin + offset
        return self._position

    def tell(self) -> int:
        return self._position


def _load_range(
    file: forebay.File, start: int, length: int, map_location: Any, weights_only: bool, copy: bool, args: Dict[str, Any]
) -> Any:
    """What `torch.save` has written to a range of a file."""
    # As torch itself reads its environment.
    weights_only = weights_only or os.getenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0").lower() in ("1", "y", "yes", "true")
    if copy or length < _VIEW_BYTES_MIN or not file._has_views or file.read_at(4, start) != _ZIP_MAGIC:
        whole = _Range(lambda memory, at: file.readinto_at(memory, start + at), length)
        return _by_torch(whole, map_location, weights_only, args)
    memory = np.frombuffer(file.view(start, length, writable=True), np.uint8)

    def read_into(target: memoryview, at: int) -> int:
        part = memory[at : at + len(target)]
        target[: len(part)] = part
        return len(part)

    whole = _Range(read_into, len(memory))
    storages = _Storages.of(whole, memory, map_location)
    module = _pickle_module(storages, weights_only, args)
    if storages is None or module is None:
        return _by_torch(whole, map_location, weights_only, args)
    try:
        # Not by `torch.load`: it takes no module for what is held for safe, and of 1.13 no module at all.
        reader = torch._C.PyTorchFileReader(io.BufferedReader(whole))
        return torch.serialization._load(reader, map_location, module, **{"encoding": "utf-8", **args})
    except (RuntimeError, pickle.UnpicklingError):
        if not weights_only:
            raise
        # torch itself says better what it does not hold for safe.
        return _by_torch(whole, map_location, weights_only, args)
    finally:
        storages.forget()


def _by_torch(stream: _Range, map_location: Any, weights_only: bool, args: Dict[str, Any]) -> Any:
    stream.seek(0)
    return torch.load(io.BufferedReader(stream), map_location, weights_only=weights_only, **args)


def _pickle_module(storages: Optional[_Storages], weights_only: bool, args: Dict[str, Any]) -> Optional[types.ModuleType]:
    """What torch is to unpickle with, so that storages are made here; `None`: by its own means."""
    has_parts = hasattr(torch.serialization, "_load") and hasattr(torch._C, "PyTorchFileReader")
    if storages is None or not has_parts or "pickle_module" in args:
        return None
    base: Any = pickle.Unpickler
    if weights_only:
        try:
            from torch._weights_only_unpickler import Unpickler as base
        except ImportError:
            return None

    class Unpickler(base):
        def __setattr__(self, name: str, value: Any) -> None:
            # So torch names what is to be called for storages.
            if name == "persistent_load":
                value = storages.before(value)
            super().__setattr__(name, value)

    module = types.ModuleType("forebay.torch.unpickling")
    module.Unpickler, module.load = Unpickler, pickle.load  # type: ignore[attr-defined]
    return module


class _Storages:
    """Storages over an archive's memory, by their names in it."""

    def __init__(self, memory: np.ndarray, entries: Dict[str, zipfile.ZipInfo], prefix: str, device: Optional[str]) -> None:
        self._memory = memory
        self._entries = entries
        self._prefix = prefix
        self._device = device
        self._made: Dict[str, Any] = {}

    @classmethod
    def of(cls, stream: _Range, memory: np.ndarray, map_location: Any) -> Optional[_Storages]:
        """Those of an archive, for tensors that stay in this machine's memory; `None`: torch has to look at it alone."""
        if not (map_location is None or isinstance(map_location, (str, torch.device))):
            return None
        device = None if map_location is None else str(map_location)
        if device not in (None, "cpu"):
            return None
        try:
            with zipfile.ZipFile(stream) as archive:
                infos = archive.infolist()
                prefix = infos[0].filename.partition("/")[0] if infos else ""
                entries = {info.filename: info for info in infos}
                order = archive.read(f"{prefix}/byteorder").decode() if f"{prefix}/byteorder" in entries else sys.byteorder
        except (ValueError, RuntimeError, NotImplementedError, EOFError, OSError, zipfile.BadZipFile):
            return None
        finally:
            stream.seek(0)
        # A program of TorchScript is torch's own matter.
        if f"{prefix}/constants.pkl" in entries or order != sys.byteorder:
            return None
        return cls(memory, entries, prefix, device)

    def forget(self) -> None:
        """What has been made keeps the memory alone. The module's class knows us, and a class goes when the collector comes by, perhaps never."""
        self._memory = np.empty(0, np.uint8)
        self._made.clear()

    def before(self, theirs: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What is called for a storage: ours, or theirs where ours has none."""

        def persistent_load(saved: Any) -> Any:
            storage = self._storage(saved)
            return theirs(saved) if storage is None else storage

        return persistent_load

    def _storage(self, saved: Any) -> Any:
        if not (isinstance(saved, tuple) and len(saved) == 5 and saved[0] in ("storage", b"storage")):
            return None
        kind, key, location, count = saved[1:]
        if not (isinstance(key, str) and isinstance(count, int)) or (self._device is None and location not in ("cpu", b"cpu")):
            return None
        if key not in self._made:
            dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
            self._made[key] = self._lay_over(key, dtype, count)
        return self._made[key]

    def _lay_over(self, key: str, dtype: torch.dtype, count: int) -> Any:
        entry = self._entries.get(f"{self._prefix}/data/{key}")
        if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            return None
        head = self._memory[entry.header_offset : entry.header_offset + 30].tobytes()
        if len(head) < 30 or head[:4] != _ZIP_MAGIC:
            return None
        begin = entry.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        item = torch.empty(0, dtype=dtype).element_size()
        is_within = 0 < count * item <= entry.file_size and begin + count * item <= len(self._memory)
        if not is_within or (self._memory.ctypes.data + begin) % item:
            return None
        try:
            tensor = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=begin)
        except (RuntimeError, TypeError, ValueError):
            # Of a kind of numbers that torch makes by other means.
            return None
        # Since 2.0 `storage` warns that it will go.
        return tensor._typed_storage() if hasattr(tensor, "_typed_storage") else tensor.storage()
