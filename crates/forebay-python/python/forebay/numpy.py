"""Arrays in numpy's own format (.npy), over views of their files: the array's memory is the session's, and nothing is copied."""

from __future__ import annotations

import io
import math
import os
from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.lib import format as npy

import forebay

__all__ = ["load", "memmap", "save"]

_Path = Union[str, "os.PathLike[str]"]

# Less than this is copied: a view keeps whole blocks of the session's memory.
_VIEW_BYTES_MIN = 256 << 10
# No .npy file begins with less, and no header that numpy reads by default is longer.
_PREFIX_BYTES = {1: 10, 2: 12, 3: 12}
_HEADER_BYTES_MAX = 10_000


class _How(NamedTuple):
    """In what memory an array is to be."""

    copy: bool = False
    writable: bool = False

    @property
    def is_writable(self) -> bool:
        return self.copy or self.writable


def load(
    file: Union[_Path, forebay.File],
    session: Optional[forebay.Session] = None,
    *,
    copy: bool = False,
    writable: bool = False,
    max_header_size: int = _HEADER_BYTES_MAX,
) -> np.ndarray:
    """As `numpy.load` for one array. The array is read-only, and what the file held when it was loaded, whatever happens to the file.

    Its memory is the session's: it keeps that much of it, which nobody else can use, until it and all that lies over it has gone. A `writable` one
    may be written: the system copies each page when it is first stored to, and the file stays as it is. With `copy` it has memory of its own, and may
    be written. Arrays of Python objects are refused. A `forebay.File` is read from its beginning.
    """
    if not isinstance(file, forebay.File):
        with forebay.open(file, "rb", session) as opened:
            return load(opened, copy=copy, writable=writable, max_header_size=max_header_size)
    shape, fortran, dtype, offset = _header(file, max_header_size)
    return _array(file, offset, shape, dtype, "F" if fortran else "C", _How(copy, writable))


def memmap(
    filename: Union[_Path, forebay.File],
    dtype: Any = np.uint8,
    mode: str = "r",
    offset: int = 0,
    shape: Union[None, int, Sequence[int]] = None,
    order: str = "C",
    session: Optional[forebay.Session] = None,
) -> np.ndarray:
    """As `numpy.memmap`, for reading: mode "r" gives a read-only array over a view, and "c" one that may be written: what is stored stays in the array.

    Other than with `numpy.memmap`, what is written to the file afterwards does not show in the array.
    """
    if mode not in ("r", "c", "readonly", "copyonwrite"):
        raise ValueError(
            f"mode must be 'r' or 'c', not {mode!r}: arrays over a file's live bytes are the kernel's, by numpy.memmap of the same path once it is closed here; or write by File.write_at"
        )
    if not isinstance(filename, forebay.File):
        with forebay.open(filename, "rb", session) as opened:
            return memmap(opened, dtype, mode, offset, shape, order)
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise ValueError("arrays of Python objects cannot lie in a file")
    if offset < 0:
        raise ValueError(f"offset must not be negative: {offset}")
    if shape is None:
        rest = max(filename.size() - offset, 0)
        if dtype.itemsize == 0 or rest % dtype.itemsize:
            raise ValueError(f"{filename.name}: {rest} bytes from {offset} on are no whole number of items of {dtype.itemsize} bytes")
        shape = (rest // dtype.itemsize,)
    elif isinstance(shape, (int, np.integer)):
        shape = (int(shape),)
    return _array(filename, offset, tuple(int(side) for side in shape), dtype, order, _How(writable=mode.startswith("c")))


def save(path: _Path, array: Any, session: Optional[forebay.Session] = None) -> None:
    """As `numpy.save`: ".npy" is added to a name without it. Arrays of Python objects are refused."""
    path = os.fsdecode(path)
    if not path.endswith(".npy"):
        path += ".npy"
    array = np.asanyarray(array)
    _refuse_masks(array)
    if array.dtype.hasobject:
        raise ValueError("arrays of Python objects cannot be saved")
    head = _Head()
    try:
        npy.write_array(head, array, allow_pickle=False)
    except _Enough:
        pass
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    data = np.ascontiguousarray(array.T if fortran else array)
    with forebay.open(path, "wb", session) as file:
        end = _write_whole(file, head.bytes, 0)
        if data.nbytes:
            _write_whole(file, data.reshape(-1).view(np.uint8), end)


def _refuse_masks(array: Any) -> None:
    """As numpy does for its own files, which have no masks either."""
    if isinstance(array, np.ma.MaskedArray):
        raise ValueError("arrays with masks cannot be saved: save array.data and array.mask, or array.filled()")


class _Enough(Exception):
    pass


class _Head:
    """Takes what numpy writes first: the header, in the version of the format that it has chosen."""

    bytes = b""

    def write(self, data: bytes) -> None:
        self.bytes += data
        if self.bytes.endswith(b"\n"):
            raise _Enough


def _header(file: forebay.File, longest: int) -> Tuple[Tuple[int, ...], bool, np.dtype, int]:
    """Shape, Fortran order, kind and the offset of the first byte, as a file's header says them; a `ValueError` for whatever else it is."""
    magic = file.read_at(12, 0)
    if magic[:4] == b"PK\x03\x04":
        raise ValueError(f"{file.name}: this is an archive of arrays (.npz), not one array")
    if magic[:6] != npy.MAGIC_PREFIX or len(magic) < 10:
        raise ValueError(f"{file.name}: this is no array in numpy's format")
    major, minor = magic[6], magic[7]
    if major not in _PREFIX_BYTES or minor != 0:
        raise ValueError(f"{file.name}: format {major}.{minor} of .npy is not known")
    prefix = _PREFIX_BYTES[major]
    length = int.from_bytes(magic[8:prefix], "little")
    if length > longest:
        raise ValueError(f"{file.name}: a header of {length} bytes, more than max_header_size, which is {longest}")
    text = file.read_at(length, prefix)
    if len(text) < length or len(magic) < prefix:
        raise ValueError(f"{file.name}: the file ends within its header")
    try:
        if major == 3:
            # numpy reads this version by a function of its own only. In these letters it means the same as in the second.
            text = text.decode("utf-8").encode("ascii", "backslashreplace")
        if major == 1:
            shape, fortran, dtype = npy.read_array_header_1_0(io.BytesIO(magic[8:10] + text), longest)
        else:
            shape, fortran, dtype = npy.read_array_header_2_0(io.BytesIO(len(text).to_bytes(4, "little") + text), longest * 10)
    except Exception as error:  # numpy reads it as Python's own text, which can go wrong in many ways.
        raise ValueError(f"{file.name}: the header is wrong: {error}") from error
    if dtype.hasobject:
        raise ValueError(f"{file.name}: arrays of Python objects cannot be loaded: they are pickled, and whoever reads that runs what it says")
    return shape, fortran, dtype, prefix + length


def _array(file: forebay.File, offset: int, shape: Tuple[int, ...], dtype: np.dtype, order: str, how: _How) -> np.ndarray:
    """An array of a file's bytes: over a view, or of memory of its own."""
    if any(side < 0 for side in shape):
        raise ValueError(f"{file.name}: a side of the array's shape is negative: {shape}")
    nbytes = math.prod(shape) * dtype.itemsize
    missing = offset + nbytes - file.size()
    if missing > 0 and nbytes > 0:
        raise ValueError(f"{file.name}: the file ends {missing} bytes before the array does")
    memory = _memory(file, offset, nbytes, how)
    # Without bytes there may be no room for even one item, or an item may have none.
    array = np.ndarray(shape, dtype, memory if nbytes else None, order=order)
    if not how.is_writable:
        array.flags.writeable = False
    return array


def _memory(file: forebay.File, offset: int, nbytes: int, how: _How) -> Any:
    """So many bytes of a file: a view of them, or a copy where that is asked for, they are few, or the file has no views."""
    if nbytes == 0:
        return b""
    if how.copy or nbytes < _VIEW_BYTES_MIN or not file._has_views:
        memory = np.empty(nbytes, np.uint8)
        _read_whole(file, memory, offset)
        return memory
    view = file.view(offset, nbytes, writable=how.writable)
    if len(view) < nbytes:
        raise ValueError(f"{file.name}: the file ends {nbytes - len(view)} bytes before the array does")
    # Of an array that is laid over the view itself numpy does not tell it.
    return memoryview(view)


def _read_whole(file: forebay.File, array: np.ndarray, offset: int) -> None:
    """Fills an array that is one run of memory."""
    memory = memoryview(array.reshape(-1).view(np.uint8))
    done = 0
    while done < len(memory):
        count = file.readinto_at(memory[done:], offset + done)
        if count == 0:
            raise ValueError(f"{file.name}: the file ends {len(memory) - done} bytes before the array does")
        done += count


def _write_whole(file: forebay.File, data: Any, offset: int) -> int:
    memory = memoryview(data).cast("B")
    done = 0
    while done < len(memory):
        done += file.write_at(memory[done:], offset + done)
    return offset + done
