"""Tensors in the format of `safetensors`, as numpy arrays, each read straight into its memory."""

from __future__ import annotations

import json
import os
from typing import Dict, Mapping, Optional, Union

import numpy as np

import forebay

from .numpy import _read_whole, _write_whole

__all__ = ["load_file", "save_file"]

_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4", "F32": "<f4",
    "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8",
}
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}
# As the format says: no header is longer.
_HEADER_BYTES_MAX = 100_000_000


def load_file(path: Union[str, "os.PathLike[str]"], session: Optional[forebay.Session] = None) -> Dict[str, np.ndarray]:
    """All tensors of a file, by name. Kinds of numbers that numpy does not have (BF16, F8) are refused."""
    with forebay.open(path, "rb", session) as file:
        length = int.from_bytes(file.read_at(8, 0), "little")
        if not 2 <= length <= min(_HEADER_BYTES_MAX, file.size() - 8):
            raise ValueError(f"{file.name}: this is no safetensors file")
        try:
            header = json.loads(file.read_at(length, 8))
            entries = [(name, entry["dtype"], entry["shape"], entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file.name}: the header is wrong: {error}") from None
        tensors = {}
        for name, kind, shape, (begin, end) in entries:
            if kind not in _DTYPES:
                raise ValueError(f"{file.name}: tensor {name!r} is of kind {kind}, which numpy does not have")
            tensor = np.empty(shape, _DTYPES[kind])
            if begin < 0 or tensor.nbytes != end - begin:
                raise ValueError(f"{file.name}: tensor {name!r} has {end - begin} bytes where its shape wants {tensor.nbytes}")
            if tensor.nbytes:
                _read_whole(file, tensor, 8 + length + begin)
            tensors[name] = tensor
        return tensors


def save_file(
    tensors: Mapping[str, np.ndarray],
    path: Union[str, "os.PathLike[str]"],
    metadata: Optional[Mapping[str, str]] = None,
    session: Optional[forebay.Session] = None,
) -> None:
    """Saves tensors by name, the widest kinds of numbers first, as `safetensors` itself does."""
    arrays = {}
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor).reshape(np.shape(tensor))
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if array.dtype not in _NAMES:
            raise ValueError(f"tensor {name!r} is of kind {array.dtype}, which the format does not have")
        arrays[name] = array
    header: Dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    end = 0
    for name in order:
        array = arrays[name]
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with forebay.open(path, "wb", session) as file:
        at = _write_whole(file, len(text).to_bytes(8, "little") + text, 0)
        for name in order:
            if arrays[name].nbytes:
                at = _write_whole(file, arrays[name].reshape(-1).view(np.uint8), at)
