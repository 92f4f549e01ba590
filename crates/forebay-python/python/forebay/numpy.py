"""Arrays in numpy's own format (.npy), read straight into their memory."""

from __future__ import annotations

import io
import os
from typing import Any, Optional, Union

import numpy as np
from numpy.lib import format as npy

import forebay

__all__ = ["load", "save"]


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


def load(file: Union[str, "os.PathLike[str]", forebay.File], session: Optional[forebay.Session] = None) -> np.ndarray:
    """As `numpy.load` for one array; arrays of Python objects are refused."""
    if not isinstance(file, forebay.File):
        with forebay.open(file, "rb", session) as opened:
            return load(opened)
    head = io.BytesIO(file.read_at(64 << 10, 0))
    version = npy.read_magic(head)
    if version == (1, 0):
        shape, fortran, dtype = npy.read_array_header_1_0(head)
    elif version in ((2, 0), (3, 0)):
        shape, fortran, dtype = npy.read_array_header_2_0(head)
    else:
        raise ValueError(f"{file.name}: format {version} of .npy is not known")
    if dtype.hasobject:
        raise ValueError(f"{file.name}: arrays of Python objects cannot be loaded")
    array = np.empty(shape[::-1] if fortran else shape, dtype)
    if array.nbytes:
        _read_whole(file, array, head.tell())
    return array.T if fortran else array


def save(path: Union[str, "os.PathLike[str]"], array: Any, session: Optional[forebay.Session] = None) -> None:
    """As `numpy.save`: ".npy" is added to a name without it. Arrays of Python objects are refused."""
    path = os.fsdecode(path)
    if not path.endswith(".npy"):
        path += ".npy"
    array = np.asanyarray(array)
    if array.dtype.hasobject:
        raise ValueError("arrays of Python objects cannot be saved")
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    described = npy.header_data_from_array_1_0(array)
    head = io.BytesIO()
    try:
        npy.write_array_header_1_0(head, described)
    except ValueError:
        head = io.BytesIO()
        npy.write_array_header_2_0(head, described)
    data = np.ascontiguousarray(array.T if fortran else array)
    with forebay.open(path, "wb", session) as file:
        end = _write_whole(file, head.getvalue(), 0)
        if data.nbytes:
            _write_whole(file, data.reshape(-1).view(np.uint8), end)
