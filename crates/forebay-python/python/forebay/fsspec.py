"""Files by Forebay for `fsspec`: `forebay://` and a local path. Names, directories and attributes are the local file system's."""

from __future__ import annotations

import io
from typing import Any, Optional

from fsspec.implementations.local import LocalFileSystem

import forebay

__all__ = ["ForebayFileSystem"]


class ForebayFileSystem(LocalFileSystem):
    """Local files, whose bytes go by a session: the default one, or `session`."""

    protocol = "forebay"

    def __init__(self, auto_mkdir: bool = False, session: Optional[forebay.Session] = None, **kwargs: Any) -> None:
        super().__init__(auto_mkdir=auto_mkdir, **kwargs)
        self.session = session

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        if isinstance(path, str) and path.startswith("forebay://"):
            path = path[len("forebay://") :]
        return LocalFileSystem._strip_protocol(path)

    def unstrip_protocol(self, name: str) -> str:
        return f"forebay://{self._strip_protocol(name)}"

    def _open(
        self, path: str, mode: str = "rb", block_size: Optional[int] = None, autocommit: bool = True, **kwargs: Any
    ) -> Any:
        if not autocommit:
            raise NotImplementedError("forebay:// has no transactions")
        path = self._strip_protocol(path)
        if self.auto_mkdir and "r" not in mode:
            self.makedirs(self._parent(path), exist_ok=True)
        raw = forebay.open(path, mode, self.session)
        size = block_size if block_size and block_size > 0 else 1 << 20
        if "+" in mode:
            return io.BufferedRandom(raw, size)
        return _Reader(raw, size) if "r" in mode else io.BufferedWriter(raw, size)


class _Reader(io.BufferedReader):
    """What `fsspec` reads from: it asks for the size where it reads from the end, and by blocks."""

    @property
    def size(self) -> int:
        return self.raw.size()
