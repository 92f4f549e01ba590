"""Checkpoints of `torch.distributed` by a session, in the layout of torch's own file system reader and writer: each reads what the other has written.

torch 2 calls these interfaces `torch.distributed.checkpoint`, and 1.13 `torch.distributed._shard.checkpoint`, with fewer methods. Both are here.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import os
import pickle
import uuid
import warnings
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

import torch
from torch.futures import Future

import forebay

from .numpy import _How, _memory, _write_whole
from .torch import _load_range, _save_to, _Sink

try:
    _parts = importlib.import_module("torch.distributed.checkpoint")
except ModuleNotFoundError:
    _parts = importlib.import_module("torch.distributed._shard.checkpoint")


def _part(name: str) -> Any:
    return importlib.import_module(f"{_parts.__name__}.{name}")


_filesystem, _metadata, _planner, _storage = (_part(name) for name in ("filesystem", "metadata", "planner", "storage"))

__all__ = ["Reader", "Writer"]

_Path = Union[str, "os.PathLike[str]"]

# An archive within a file begins at a multiple of this, so that what torch has aligned in it is so in memory.
_ALIGNMENT = 64
_METADATA = ".metadata"


class _Directory:
    """Where a checkpoint is: in a local directory."""

    path: Path

    def _move_to(self, checkpoint_id: Optional[_Path]) -> None:
        if checkpoint_id:
            if "://" in os.fsdecode(checkpoint_id):
                raise ValueError(f"{checkpoint_id}: checkpoints are in local directories")
            self.path = Path(checkpoint_id)

    @property
    def checkpoint_id(self) -> _Path:
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Whether one could be there."""
        if not isinstance(checkpoint_id, (str, os.PathLike)) or "://" in os.fsdecode(checkpoint_id):
            return False
        return any(parent.exists() and os.access(parent, os.W_OK) for parent in Path(checkpoint_id).absolute().parents)


class Writer(_Directory, _storage.StorageWriter):
    """Writes a checkpoint to a directory: one file for each rank, and `.metadata`, which comes last.

    With `sync_files` each file is durable before the checkpoint is said to be there.

    A checkpoint that the directory has already is written over, with a warning; without `overwrite` that is a `RuntimeError`, and the checkpoint stays.
    One that is written over is gone before the first byte of the new one is written: a save that does not end leaves no checkpoint, never parts of two.
    """

    def __init__(
        self, path: _Path, session: Optional[forebay.Session] = None, *, sync_files: bool = True, overwrite: bool = True
    ) -> None:
        super().__init__()
        self.sync_files = sync_files
        self.overwrite = overwrite
        self._session = session
        self.reset(path)

    def reset(self, checkpoint_id: Optional[_Path] = None) -> None:
        """A new checkpoint begins, in another directory if one is given."""
        self._move_to(checkpoint_id)
        self._save_id = str(uuid.uuid4())

    def init(self, is_coordinator: bool) -> None:
        """As torch 1.13 calls it."""

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """As torch 2 calls it."""

    def prepare_local_plan(self, plan: Any) -> Any:
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / _METADATA).exists():
            if not self.overwrite:
                raise RuntimeError(f"{self.path} has a checkpoint already, and overwrite is False")
            warnings.warn(f"{self.path} has a checkpoint already, which is written over: overwrite is True", stacklevel=2)
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        self.path.mkdir(parents=True, exist_ok=True)
        # The coordinator comes here once all ranks have prepared, and before any of them writes.
        try:
            os.remove(self.path / _METADATA)
        except FileNotFoundError:
            pass
        else:
            self._sync_directory()
        return [dataclasses.replace(plan, storage_data=f"__{rank}_0.distcp") for rank, plan in enumerate(plans)]

    def write_data(self, plan: Any, planner: Any) -> Any:
        results = []
        if plan.items:
            with forebay.open(self.path / plan.storage_data, "wb", self._session) as file:
                sink = _Sink(file)
                results = [self._write(file, sink, item, plan.storage_data, planner.resolve_data(item)) for item in plan.items]
                if self.sync_files:
                    file.sync()
        done: Any = Future()
        done.set_result(results)
        return done

    def _write(self, file: forebay.File, sink: _Sink, item: Any, name: str, data: Any) -> Any:
        sink.write(bytes(-file.tell() % _ALIGNMENT))
        begin = file.tell()
        if item.type == _planner.WriteItemType.BYTE_IO:
            sink.write(data.getbuffer())
        else:
            _save_to(sink, _trimmed(data))
        sink.check()
        length = file.tell() - begin
        return _storage.WriteResult(index=item.index, size_in_bytes=length, storage_data=_filesystem._StorageInfo(name, begin, length))

    def finish(self, metadata: Any, results: List[List[Any]]) -> None:
        metadata.storage_data = {result.index: result.storage_data for of_rank in results for result in of_rank}
        if self.storage_meta() is not None:
            metadata.storage_meta = self.storage_meta()
        unfinished = self.path / f"{_METADATA}.tmp"
        with forebay.open(unfinished, "wb", self._session) as file:
            _write_whole(file, pickle.dumps(metadata), 0)
            if self.sync_files:
                file.sync()
        os.replace(unfinished, self.path / _METADATA)
        self._sync_directory()

    def _sync_directory(self) -> None:
        if not self.sync_files:
            return
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def storage_meta(self) -> Any:
        """What torch 2 keeps beside a checkpoint's own metadata."""
        kind = getattr(_metadata, "StorageMeta", None)
        return None if kind is None else kind(checkpoint_id=self.path, save_id=self._save_id)


class Reader(_Directory, _storage.StorageReader):
    """Reads a checkpoint from a directory: tensors are copied once, from a view of their file into those that are there to be loaded.

    A checkpoint's metadata is pickled, as torch writes it: whoever reads it runs what it says.
    """

    def __init__(self, path: _Path, session: Optional[forebay.Session] = None) -> None:
        super().__init__()
        self._session = session
        self.reset(path)

    def reset(self, checkpoint_id: Optional[_Path] = None) -> None:
        """Another checkpoint is to be read."""
        self._move_to(checkpoint_id)
        self._places: Dict[Any, Any] = {}
        self._load_id = str(uuid.uuid4())

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        with forebay.open(self.path / _METADATA, "rb", self._session) as file:
            metadata = pickle.loads(file.read())
        kind = getattr(_metadata, "StorageMeta", None)
        if kind is not None:
            if getattr(metadata, "storage_meta", None) is None:
                metadata.storage_meta = kind()
            metadata.storage_meta.load_id = self._load_id
        return metadata

    def init(self, metadata: Any, is_coordinator: bool) -> None:
        """As torch 1.13 calls it."""
        self.set_up_storage_reader(metadata, is_coordinator)

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """As torch 2 calls it."""
        if metadata.storage_data is None:
            raise ValueError(f"{self.path}: the checkpoint does not say where its bytes are")
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        by_file: Dict[str, List[Any]] = {}
        for item in plan.items:
            by_file.setdefault(self._places[item.storage_index].relative_path, []).append(item)
        for name, items in by_file.items():
            with forebay.open(self.path / name, "rb", self._session) as file:
                for item in sorted(items, key=lambda item: self._places[item.storage_index].offset):
                    self._read(file, item, planner)
        done: Any = Future()
        done.set_result(None)
        return done

    def _read(self, file: forebay.File, item: Any, planner: Any) -> None:
        place = self._places[item.storage_index]
        if getattr(place, "transform_descriptors", None):
            raise ValueError(f"{file.name}: {item.storage_index.fqn} is packed, which is not read here")
        if item.type == _planner.LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(_memory(file, place.offset, place.length, _How(copy=True))))
            return
        tensor = _load_range(file, place.offset, place.length, "cpu", True, False, {})
        for side, (first, count) in enumerate(zip(item.storage_offsets, item.lengths)):
            tensor = tensor.narrow(side, first, count)
        target = planner.resolve_tensor(item).detach()
        if target.size() != tensor.size():
            raise ValueError(f"{file.name}: {item.storage_index.fqn} is of size {tuple(tensor.size())}, not {tuple(target.size())}")
        target.copy_(tensor)
        planner.commit_tensor(item, target)


def _trimmed(tensor: torch.Tensor) -> torch.Tensor:
    """In this machine's memory, and without what it shares with others."""
    tensor = tensor.detach().cpu()
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return tensor if storage.nbytes() == tensor.numel() * tensor.element_size() else tensor.clone()
