"""Tensors in the format of `safetensors`: all that a file has lie over one view of it, and nothing is copied."""

from __future__ import annotations

import json
import math
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

import numpy as np

import forebay

from .numpy import _How, _memory, _refuse_masks, _write_whole

__all__ = ["load_file", "save_file"]

_Path = Union[str, "os.PathLike[str]"]


class _Kind(NamedTuple):
    """A kind of numbers, as numpy, torch and `ml_dtypes` have it; `None`: not at all."""

    numpy: Optional[str]
    torch: Optional[str]
    ml: Optional[str] = None
    nbytes: int = 1


# In the order in which `safetensors` itself writes tensors: from the last to the first.
_KINDS = {
    "BOOL": _Kind("?", "bool"),
    "U8": _Kind("u1", "uint8"),
    "I8": _Kind("i1", "int8"),
    "F8_E5M2": _Kind(None, "float8_e5m2", "float8_e5m2"),
    "F8_E4M3": _Kind(None, "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E8M0": _Kind(None, "float8_e8m0fnu", "float8_e8m0fnu"),
    "I16": _Kind("<i2", "int16", nbytes=2),
    "U16": _Kind("<u2", "uint16", nbytes=2),
    "F16": _Kind("<f2", "float16", nbytes=2),
    "BF16": _Kind(None, "bfloat16", "bfloat16", nbytes=2),
    "I32": _Kind("<i4", "int32", nbytes=4),
    "U32": _Kind("<u4", "uint32", nbytes=4),
    "F32": _Kind("<f4", "float32", nbytes=4),
    "C64": _Kind("<c8", "complex64", nbytes=8),
    "F64": _Kind("<f8", "float64", nbytes=8),
    "I64": _Kind("<i8", "int64", nbytes=8),
    "U64": _Kind("<u8", "uint64", nbytes=8),
}
_ORDER = {name: place for place, name in enumerate(_KINDS)}
# The name by which a header has the metadata: no tensor's.
_METADATA = "__metadata__"
# As the format says: no header is longer.
_HEADER_BYTES_MAX = 100_000_000
# What numpy and torch have at most. The product of as many as a header has room for takes hours.
_SIDES_MAX = 64


class _Tensor(NamedTuple):
    name: str
    kind: str
    shape: Tuple[int, ...]
    begin: int
    end: int


def load_file(
    path: _Path, session: Optional[forebay.Session] = None, *, framework: str = "numpy", copy: bool = False, writable: bool = False
) -> Dict[str, Any]:
    """All tensors of a file, by name: arrays of numpy, or tensors of torch with `framework="torch"`.

    Arrays are read-only, and what the file held when it was loaded, whatever happens to the file. All of them lie over one view: it keeps as much of
    the session's memory as the file has, until the last of them has gone. `writable` ones may be written, and those of torch always may, which knows
    no others: the system copies each page when it is first stored to, and the file stays as it is. With `copy` they have memory of their own.

    BF16 and the kinds F8 are those of `ml_dtypes` where it is installed, else raw bytes: arrays of the dtype "V2" or "V1", with which numpy does not
    calculate.
    """
    if framework not in ("numpy", "torch"):
        raise ValueError(f"framework must be 'numpy' or 'torch', not {framework!r}")
    with forebay.open(path, "rb", session) as file:
        tensors, start = _header(file)
        how = _How(copy, writable or framework == "torch")
        make = _of_torch() if framework == "torch" else _of_numpy(how.is_writable)
        length = max((tensor.end for tensor in tensors), default=0)
        memory = _memory(file, start, length, how)
        if length and framework == "torch":
            memory = np.frombuffer(memory, np.uint8)
        try:
            return {tensor.name: make(memory, tensor) for tensor in tensors}
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{file.name}: {error}") from error


def save_file(
    tensors: Mapping[str, Any],
    path: _Path,
    metadata: Optional[Mapping[str, str]] = None,
    session: Optional[forebay.Session] = None,
) -> None:
    """Saves arrays of numpy, or tensors of torch, by name, in the order of `safetensors` itself.

    Names, and what `metadata` has, are texts. What the format does not have is refused before anything is written.
    """
    if _METADATA in tensors:
        raise ValueError(f"no tensor may be called {_METADATA!r}: the format keeps its metadata there")
    metadata = None if metadata is None else dict(metadata)
    for each in (*tensors, *(metadata or {}), *(metadata or {}).values()):
        if not isinstance(each, str):
            raise TypeError(f"names of tensors and metadata must be texts, not of type {type(each).__name__}")
    arrays: Dict[str, Tuple[str, Tuple[int, ...], np.ndarray]] = {}
    for name, tensor in tensors.items():
        if type(tensor).__module__.partition(".")[0] == "torch":
            kind, shape = str(tensor.dtype).partition(".")[2], tuple(tensor.shape)
            kind = next((known for known, each in _KINDS.items() if each.torch == kind), kind)
        else:
            _refuse_masks(tensor)
            tensor = np.asarray(tensor)
            tensor = tensor.astype(tensor.dtype.newbyteorder("<"), copy=False)
            kind, shape = _kind_of(tensor.dtype), tensor.shape
        if kind not in _KINDS:
            raise ValueError(f"tensor {name!r} is of kind {tensor.dtype}, which the format does not have")
        arrays[name] = kind, shape, _bytes_of(tensor)
    header: Dict[str, object] = {} if metadata is None else {_METADATA: metadata}
    order = sorted(arrays, key=lambda name: (-_ORDER[arrays[name][0]], name))
    end = 0
    for name in order:
        kind, shape, data = arrays[name]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [end, end + data.nbytes]}
        end += data.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_BYTES_MAX:
        raise ValueError(f"a header of {len(text)} bytes, where the format has room for {_HEADER_BYTES_MAX}")
    with forebay.open(path, "wb", session) as file:
        at = _write_whole(file, len(text).to_bytes(8, "little") + text, 0)
        for name in order:
            if arrays[name][2].nbytes:
                at = _write_whole(file, arrays[name][2], at)


def _header(file: forebay.File) -> Tuple[List[_Tensor], int]:
    """What a file's header says of its tensors, in the order of their bytes, and where these begin. A `ValueError` for whatever is wrong with it."""

    def wrong(what: str) -> ValueError:
        return ValueError(f"{file.name}: the header is wrong: {what}")

    rest = file.size() - 8
    length = int.from_bytes(file.read_at(8, 0), "little")
    if not 2 <= length <= min(_HEADER_BYTES_MAX, rest):
        raise ValueError(f"{file.name}: this is no safetensors file: a header of {length} bytes in a file of {max(rest + 8, 0)}")
    try:
        header = json.loads(file.read_at(length, 8).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise wrong(str(error)) from None
    if not isinstance(header, dict):
        raise wrong("it is no object")
    header.pop(_METADATA, None)
    tensors = []
    for name, entry in header.items():
        if not (isinstance(entry, dict) and isinstance(entry.get("dtype"), str) and _counts(entry.get("shape"))):
            raise wrong(f"tensor {name!r} has no kind or no shape")
        offsets = entry.get("data_offsets")
        if not (_counts(offsets) and len(offsets) == 2):
            raise wrong(f"tensor {name!r} has no place")
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), offsets
        if kind not in _KINDS:
            raise ValueError(f"{file.name}: tensor {name!r} is of kind {kind}, which is not known here")
        if len(shape) > _SIDES_MAX:
            raise wrong(f"tensor {name!r} has {len(shape)} sides, where {_SIDES_MAX} are the most")
        if end - begin != math.prod(shape) * _KINDS[kind].nbytes:
            raise wrong(f"tensor {name!r} has {end - begin} bytes, which its shape does not make")
        tensors.append(_Tensor(name, kind, shape, begin, end))
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    at = 0
    for tensor in tensors:
        if tensor.begin != at:
            raise wrong(f"tensor {tensor.name!r} begins at {tensor.begin}, and what is before it ends at {at}")
        at = tensor.end
    if at != rest - length:
        raise wrong(f"tensors of {at} bytes in a file that has {rest - length} for them")
    return tensors, 8 + length


def _counts(value: object) -> bool:
    """Whether it is a list of numbers that count something."""
    return isinstance(value, list) and all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 1 << 62 for each in value)


def _of_numpy(is_writable: bool) -> Any:
    try:
        import ml_dtypes
    except ImportError:
        ml_dtypes = None

    def make(memory: Any, tensor: _Tensor) -> np.ndarray:
        kind = _KINDS[tensor.kind]
        dtype = np.dtype(kind.numpy or getattr(ml_dtypes, kind.ml or "", None) or f"V{kind.nbytes}")
        if tensor.begin == tensor.end:
            array = np.ndarray(tensor.shape, dtype)
        else:
            array = np.ndarray(tensor.shape, dtype, memory, tensor.begin)
            if not array.flags.aligned:
                array = array.copy()
        if not is_writable:
            array.flags.writeable = False
        return array

    return make


def _of_torch() -> Any:
    import torch

    def make(memory: Any, tensor: _Tensor) -> Any:
        dtype = getattr(torch, _KINDS[tensor.kind].torch or "", None)
        if dtype is None:
            raise ValueError(f"tensor {tensor.name!r} is of kind {tensor.kind}, which this torch does not have")
        if tensor.begin == tensor.end:
            return torch.empty(tensor.shape, dtype=dtype)
        memory = memory[tensor.begin : tensor.end]
        if tensor.begin % _KINDS[tensor.kind].nbytes:
            memory = memory.copy()
        return torch.frombuffer(memory, dtype=dtype).reshape(tensor.shape)

    return make


def _kind_of(dtype: np.dtype) -> str:
    """The format's name of a kind of numbers of numpy's, or what numpy calls it."""
    for name, kind in _KINDS.items():
        if dtype == kind.numpy if kind.numpy else dtype.name == kind.ml:
            return name
    return dtype.name


def _bytes_of(tensor: Any) -> np.ndarray:
    """A tensor's bytes in the order of its items; copied only where they lie in another."""
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
