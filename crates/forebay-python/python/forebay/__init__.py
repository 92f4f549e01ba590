"""Forebay: buffered I/O for fast storage, in user space.

    import forebay

    with forebay.open("data", "r+b") as file:
        file.write_at(b"ragged and quick", 100)   # outlives the death of this process
        file.sync()                               # durable from here on

`forebay.File` is an `io.RawIOBase`: `io.BufferedReader`, `io.BufferedWriter` and `io.TextIOWrapper` go over it.
"""

from __future__ import annotations

import atexit
import io
import os
import threading
import weakref
from typing import Any, Dict, List, Optional, Tuple, Union

from ._forebay import (
    NativeFile,
    NativePool,
    NativePoolFile,
    NativeSession,
    NativeStore,
    NativeStoreFile,
    NativeStoreWindow,
    NativeView,
    NativeWindow,
    __version__,
    store_create,
    store_window_commit,
    store_window_facts,
    store_window_release,
    view_facts,
    view_release,
    window_commit,
    window_detach,
    window_facts,
    window_refill,
    window_release,
    window_slide,
)

__all__ = [
    "File",
    "Pool",
    "PoolFile",
    "Session",
    "Store",
    "StoreFile",
    "StoreWindow",
    "View",
    "Window",
    "open",
    "window",
    "default_session",
    "__version__",
]

_Path = Union[str, "os.PathLike[str]"]


class Session:
    """A process's part in a session: an arena of cached bytes that several processes share.

    `name` is the session's, by default the configuration's ("default"). Options are those of `forebay config`, as texts or numbers:
    `Session("work", memory="1GiB")`. With `keep` threads of this process keep the session, or stand by; without, another process does.

    A session and its files belong to the process that opened them: a forked child gets an `OSError`, and opens its own.
    """

    def __init__(self, name: Optional[str] = None, *, keep: bool = True, **options: object) -> None:
        self._native = NativeSession(name, [(key, _text(value)) for key, value in options.items()], keep)

    def open(self, path: _Path, mode: str = "rb", *, permissions: int = 0o666) -> File:
        """A file by this session; see `forebay.open`."""
        path = os.fsdecode(path)
        return File(self._native.open(path, _how(mode), _permissions(permissions)), path, mode)

    def window(self, nbytes: int) -> Window:
        """A window by this session; see `forebay.window`."""
        return self._native.window(Window, nbytes)

    def warm(self, nbytes: int) -> None:
        """Has the session touch so much memory now, within its budget, so that what is read or written next does not wait for the system
        to give some. A session that is idle for some seconds gives it back.
        """
        self._native.warm(nbytes)

    def stats(self) -> Dict[str, int]:
        """The session's counters; bytes where the name says so."""
        return self._native.stats()

    def close(self) -> None:
        """Leaves the session, once its files are closed as well."""
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether it has been closed, or belongs to the parent of this process."""
        return self._native.closed

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


_HOW = {"r": "r", "w": "wtc", "a": "ac", "x": "wx"}


def _how(mode: str) -> str:
    """A mode of Python's as the letters that the native half reads."""
    letters = mode.replace("b", "", 1)
    kind = letters.replace("+", "", 1)
    if kind not in _HOW:
        raise ValueError(
            f"invalid mode {mode!r}: one of r, w, a and x, with b and + as wanted; for text use io.TextIOWrapper over the file"
        )
    how = _HOW[kind]
    if "+" in letters:
        how += "w" if kind == "r" else "r"
    return how


def _permissions(bits: int) -> int:
    """Permissions that a file can have: the system would drop others without a word."""
    if not 0 <= bits <= 0o7777:
        raise ValueError(f"permissions must be of the bits 0o7777, not {bits:#o}")
    return bits


class View(NativeView):
    """The bytes of a range of a file as they were when the view was taken: memory, by the buffer protocol.

    `memoryview(view)`, `numpy.frombuffer(view, dtype)` and the like lie over the session's own memory, or a store's, without a copy. Nothing that happens to the
    file changes the bytes. The view holds them until it is released, or until it and all that lies over it has gone.

    The memory is read-only, or with `File.view(writable=True)` private: what is stored there is this process's alone, and reaches no file. The system
    copies a page (4 KiB) when it is first stored to.
    """

    __slots__ = ()

    @property
    def contiguous(self) -> bool:
        """Always true: one run of bytes, as `memoryview.contiguous` says it."""
        return True

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy: the kernel serves the file, or as much is held in views as may be."""
        return view_facts(self)[1]

    @property
    def readonly(self) -> bool:
        """Whether the bytes may not be written, as `memoryview.readonly` says it."""
        return not view_facts(self)[2]

    def release(self) -> None:
        """Gives the bytes back. A `BufferError` while arrays or buffers lie over them."""
        view_release(self)

    def __len__(self) -> int:
        return view_facts(self)[0]

    def __enter__(self) -> View:
        view_facts(self)  # an error once it was released
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Window(NativeWindow):
    """Memory of the session that a program fills and gives to files: a writable buffer.

    `memoryview(window)` and `numpy.frombuffer(window, dtype)` lie over it. `commit` gives bytes to a file, whole pieces of 2 MiB without a copy; what
    is stored into the window afterwards stays out of the file. The window lasts until it is released, or until it and all that lies over it has gone.
    A forked child has none of its parent's windows, and must not look at arrays over them.
    """

    __slots__ = ()

    def commit(self, file: File, offset: int, start: int = 0, stop: Optional[int] = None) -> int:
        """Gives the bytes from `start` to `stop` (by default the end) to a file at `offset`, as `File.write_at` writes them.

        Pieces of the file, 2 MiB each, that are given whole and lie in the window as they do in the file go without a copy; the rest is copied. Returns how
        many bytes: all, unless an error came after some.
        """
        stop = len(self) if stop is None else stop
        return window_commit(self, file._native, offset, start, stop)

    def refill(self) -> None:
        """Makes what was committed writable again, with the bytes that the window shows: one copy at once, instead of one for each page stored to."""
        window_refill(self)

    def detach(self) -> None:
        """Has zeros where pieces were committed without a copy, to fill the window anew."""
        window_detach(self)

    def slide(self, offset: int) -> None:
        """Empties the window, and moves it so that its first byte lies in its piece of 2 MiB as a byte at `offset` does in a file: so a commit at this offset goes
        without a copy but for its ends. A `BufferError` while arrays or buffers lie over the window."""
        window_slide(self, offset)

    @property
    def attached_bytes(self) -> int:
        """Bytes that commits have given to files without a copy."""
        return window_facts(self)[1]

    def release(self) -> None:
        """Gives the memory back. A `BufferError` while arrays or buffers lie over it."""
        window_release(self)

    def __len__(self) -> int:
        return window_facts(self)[0]

    def __enter__(self) -> Window:
        window_facts(self)  # an error once it was released
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class File(io.RawIOBase):
    """An open file. `read_at`, `readinto_at` and `write_at` name their offset, leave the position alone, and may be called by any number of threads at once.
    Threads may share the position as well: of two that read, each gets bytes of its own.

    Offsets and sizes are bytes. Errors are `OSError` with `errno` and `filename`.
    """

    # Whether there is anything to lay arrays over.
    _has_views = True

    def __init__(self, native: Union[NativeFile, NativePoolFile, NativeStoreFile], name: str, mode: str) -> None:
        super().__init__()
        self._native = native
        self.name = name
        self.mode = mode if "b" in mode else mode + "b"
        self._reads = "r" in mode or "+" in mode
        self._writes = "r" not in mode or "+" in mode
        self._appends = "a" in mode
        if self._appends:
            native.seek(0, io.SEEK_END)
        _files.add(self)

    # Positional calls.

    def read_at(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer only at the file's end, and before bytes that cannot be read: a read that begins with these raises."""
        return self._native.read_at(size, offset)

    def readinto_at(self, buffer: Any, offset: int) -> int:
        """Reads into a writable buffer. Returns how many bytes: fewer than it has room for only at the file's end, and before bytes that cannot be read."""
        return self._native.readinto_at(buffer, offset)

    def view(self, offset: int = 0, length: Optional[int] = None, *, writable: bool = False) -> View:
        """The bytes from `offset` on as they are now, without a copy where that can be; to the file's end, or `length` of them.

        Those of a `writable` view may be changed: the changes stay in it, and reach neither the file nor anybody else.
        """
        return self._native.view(View, offset, length, writable)

    def write_at(self, data: Any, offset: int) -> int:
        """Writes at `offset`; at the end where the file was opened for appending. Returns how many bytes: all, unless an error came after some."""
        return self._native.write_at(data, offset)

    def append(self, data: Any) -> int:
        """Writes at the file's end, whole and apart from what others append. Returns the offset."""
        return self._native.append(data)

    def sync(self, data_only: bool = False) -> None:
        """Makes what was written durable: `os.fsync`, or `os.fdatasync`."""
        self._native.sync(data_only)

    def punch(self, offset: int, length: int) -> None:
        """Makes a range zeros and gives its space back."""
        self._native.punch(offset, length)

    def size(self) -> int:
        """The file's length, as the session sees it."""
        return self._native.size()

    @property
    def kernel_reason(self) -> Optional[str]:
        """Why the kernel serves this file; `None` while the engine does."""
        return self._native.kernel_reason()

    # What `io` asks for.

    def readinto(self, buffer: Any) -> int:
        self._must(self._reads, "read")
        return self._native.readinto(buffer)

    def readall(self) -> bytes:
        self._must(self._reads, "read")
        parts = []
        while True:
            rest = self._native.size() - self.tell()
            # The kernel tells no length of what it makes up (`/proc`), nor of devices that have no end.
            part = self._native.read(rest if rest > 0 else io.DEFAULT_BUFFER_SIZE)
            if not part:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            parts.append(part)

    def write(self, data: Any) -> int:
        self._must(self._writes, "write")
        return self._native.write(data, self._appends)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check_open()
        return self._native.seek(offset, whence)

    def tell(self) -> int:
        self._check_open()
        return self._native.seek(0, io.SEEK_CUR)

    def truncate(self, size: Optional[int] = None) -> int:
        self._must(self._writes, "truncate")
        size = self.tell() if size is None else size
        if size < 0:
            raise OSError(22, os.strerror(22), self.name)
        self._native.truncate(size)
        return size

    def flush(self) -> None:
        """Hands what was written to the device, so that programs outside the session see it; not durable by that."""
        self._check_open()
        if self._writes:
            self._native.flush()

    def close(self) -> None:
        """Closes; errors of earlier writes that nobody has heard of are raised."""
        if self.closed:
            return
        try:
            super().close()
        finally:
            self._native.close()

    def __del__(self) -> None:
        # The collector, and the end of the program, may come here before a wrapper has written what it holds back. The wrapper needs an open file, and
        # closes it. Without a wrapper the native half closes the file when it goes.
        try:
            self._hand_over()
        except Exception:
            # Closed, or never opened; else the bytes stay in the session's memory.
            pass

    def _hand_over(self) -> None:
        """Takes what was written out of this process's hands, whether the file is closed afterwards or not."""
        self._native.flush()

    @property
    def closed(self) -> bool:
        """Whether it has been closed, or belongs to the parent of this process: so a wrapper that a child has inherited ends without a word, and what it holds
        is its parent's to write."""
        return super().closed or not self._native.is_ours

    def readable(self) -> bool:
        self._check_open()
        return self._reads

    def writable(self) -> bool:
        self._check_open()
        return self._writes

    def seekable(self) -> bool:
        self._check_open()
        return True

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<forebay.File name={self.name!r} mode={self.mode!r}{state}>"

    def _check_open(self) -> None:
        # What is a parent's says so itself.
        if super().closed:
            raise ValueError("I/O operation on a closed file")

    def _must(self, allowed: bool, what: str) -> None:
        self._check_open()
        if not allowed:
            raise io.UnsupportedOperation(f"file not open to {what}")


class PoolFile(File):
    """An open file of a pool. What is written is in this process's memory until it is synced, closed, or wanted by another host."""

    _has_views = False

    def view(self, offset: int = 0, length: Optional[int] = None, *, writable: bool = False) -> View:
        raise io.UnsupportedOperation("files of pools have no views")

    def punch(self, offset: int, length: int) -> None:
        raise io.UnsupportedOperation("files of pools have no holes to be made")

    @property
    def kernel_reason(self) -> Optional[str]:
        """Always `None`: the kernel knows nothing of pools."""
        return None

    def _hand_over(self) -> None:
        if self._writes:
            self._native.sync(False)

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<forebay.PoolFile name={self.name!r} mode={self.mode!r}{state}>"


class Pool:
    """A process's membership in a pool: files in other hosts' memory, by paths that begin at the pool's root.

    `name` is `NAME` for `~/.config/forebay/pools/NAME.toml` or `/etc/forebay/pools/NAME.toml`, or the configuration's path with a `/` in it.

    A pool that has given this process up, since its servers began anew or did not hear of it for a term, is joined again by the next call. What was open
    before is lost: each call with it is an `OSError` (`ENOTCONN`).
    """

    def __init__(self, name: str) -> None:
        self._native = NativePool(name)
        self.name = name

    def open(self, path: _Path, mode: str = "rb", *, permissions: int = 0o666) -> PoolFile:
        """A file of the pool; modes as of `forebay.open`."""
        path = os.fsdecode(path)
        how, permissions = _how(mode), _permissions(permissions)
        joined = self._joined()
        try:
            native = joined.open(path, how, permissions)
        except OSError:
            # It may have been done, which makes no difference but to a file that must be new.
            if "x" in how or not joined.given_up():
                raise
            native = self._joined().open(path, how, permissions)
        return PoolFile(native, f"pool://{self.name}/{path.lstrip('/')}", mode)

    def listdir(self, path: _Path = "/") -> List[str]:
        """The names in a directory."""
        return self._joined().list(os.fsdecode(path))

    def mkdir(self, path: _Path, permissions: int = 0o777) -> None:
        """Makes a directory."""
        self._joined().make_directory(os.fsdecode(path), _permissions(permissions))

    def remove(self, path: _Path) -> None:
        """Removes a file or an empty directory."""
        self._joined().remove(os.fsdecode(path))

    def rename(self, old: _Path, new: _Path) -> None:
        """Renames; a file that has the new name is replaced."""
        self._joined().rename(os.fsdecode(old), os.fsdecode(new))

    def close(self) -> None:
        """Leaves the pool, once its files are closed as well. What was not synced by then is lost."""
        self._native.close()

    def _joined(self) -> NativePool:
        """The membership, a new one where the pool has given up the one before."""
        with _lock:
            if self._native.given_up():
                self._native = NativePool(self.name)
            return self._native

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StoreWindow(NativeStoreWindow):
    """Memory of a store, for bytes of a file from an offset on: a writable buffer, which `commit` makes a part of the file without a copy.

    It may be shorter than what was asked for (`len(window)`). What it holds at first is whatever lay there: fill it. Nothing of it is in the file before
    the commit. A forked child has none of its parent's windows, and must not look at arrays over them.
    """

    __slots__ = ()

    def commit(self, nbytes: Optional[int] = None) -> int:
        """Gives the bytes, or the first so many of them, to the file. The window is empty then. A `BufferError` while arrays or buffers lie over it: their
        memory would be the file's.

        Returns how many bytes: all, unless an error came after some; the window has the others then, and they may be committed again.
        """
        return store_window_commit(self, len(self) if nbytes is None else nbytes)

    def release(self) -> None:
        """Gives the memory back; what was not committed is nowhere. A `BufferError` while arrays or buffers lie over it."""
        store_window_release(self)

    def __len__(self) -> int:
        return store_window_facts(self)

    def __enter__(self) -> StoreWindow:
        store_window_facts(self)  # an error once it was released
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class StoreFile(File):
    """An open file of a store. `view` shows its bytes where they lie in persistent memory, if that is side by side, else a copy; a writable view is a copy."""

    def window(self, offset: int, nbytes: int) -> StoreWindow:
        """A window for up to `nbytes` from `offset` on: as many as the store has side by side."""
        return self._native.window(StoreWindow, offset, nbytes)

    @property
    def kernel_reason(self) -> Optional[str]:
        """Always `None`: the kernel does not serve files of stores."""
        return None

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<forebay.StoreFile name={self.name!r} mode={self.mode!r}{state}>"


class Store:
    """A store in persistent memory, open in this process and in no other: files, by paths that begin at the store's root.

    `path` is that of a DAX device, or of a file; `Store.create` makes one. What was done is durable after `flush_interval` seconds (`None`: never by
    itself), after `sync`, and after the close.
    """

    def __init__(self, path: _Path, *, read_only: bool = False, flush_interval: Optional[float] = 1.0) -> None:
        self.path = os.fsdecode(path)
        self._native = NativeStore(self.path, read_only, flush_interval, os.geteuid(), os.getegid())
        _stores.add(self)

    @classmethod
    def create(
        cls, path: _Path, size: Optional[int] = None, *, sparse: bool = False, force: bool = False, inodes: Optional[int] = None
    ) -> Store:
        """Makes a store of `size` bytes, by default as many as the file or device has, and opens it; options as of `forebay pmem create`."""
        store_create(os.fsdecode(path), size, sparse, force, inodes)
        return cls(path)

    def open(self, path: _Path, mode: str = "rb", *, permissions: int = 0o644) -> StoreFile:
        """A file of the store; modes as of `forebay.open`."""
        path = os.fsdecode(path)
        return StoreFile(self._native.open(path, _how(mode), _permissions(permissions)), path, mode)

    def listdir(self, path: _Path = "/") -> List[str]:
        """The names in a directory."""
        return self._native.list(os.fsdecode(path))

    def stat(self, path: _Path) -> os.stat_result:
        """As `os.stat`."""
        (mode, number, links, uid, gid, size), times = self._native.stat(os.fsdecode(path))
        exact = {f"st_{which}_ns": time for which, time in zip(("atime", "mtime", "ctime"), times)}
        exact.update({f"st_{which}": time / 1e9 for which, time in zip(("atime", "mtime", "ctime"), times)})
        return os.stat_result((mode, number, 0, links, uid, gid, size, *(time // 10**9 for time in times)), exact)

    def mkdir(self, path: _Path, permissions: int = 0o755) -> None:
        """Makes a directory."""
        self._native.make_directory(os.fsdecode(path), _permissions(permissions))

    def remove(self, path: _Path) -> None:
        """Removes a file, a symbolic link or an empty directory."""
        self._native.remove(os.fsdecode(path))

    def rename(self, old: _Path, new: _Path) -> None:
        """Renames; what has the new name is replaced."""
        self._native.rename(os.fsdecode(old), os.fsdecode(new))

    def sync(self) -> None:
        """Makes everything durable that was done in the store before."""
        self._native.sync()

    def close(self) -> None:
        """Syncs, and closes the store once its files, windows and views are closed as well: nobody else can open it before."""
        self._native.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_pools: Dict[str, Pool] = {}
_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _pool_of(rest: str) -> Tuple[Pool, str]:
    """The pool of `NAME/path`, joined when it is first needed, and the path."""
    name, _, path = rest.partition("/")
    with _lock:
        if name not in _pools:
            _pools[name] = Pool(name)
        return _pools[name], path


_default: Optional[Session] = None
# Reentrant: a handler of a signal may open a file while the thread that it interrupts has the lock. Of two sessions, or two memberships in a pool, that are
# made so, either may stay.
_lock = threading.RLock()
_files: weakref.WeakSet[File] = weakref.WeakSet()


def default_session() -> Session:
    """The session that `forebay.open` uses by default: this process's own, as configured, opened when it is first needed."""
    global _default
    with _lock:
        if _default is None or _default.closed:
            _default = Session()
        return _default


def open(path: _Path, mode: str = "rb", session: Optional[Session] = None) -> File:
    """Opens a file: modes are those of the built-in `open`, and always binary. `pool://NAME/path` is a file of a pool."""
    if isinstance(path, str) and path.startswith("pool://"):
        if session is not None:
            raise ValueError(f"{path}: files of pools are in no session")
        pool, path = _pool_of(path[len("pool://") :])
        return pool.open(path, mode)
    if session is None:
        session = default_session()
    return session.open(path, mode)


def window(nbytes: int, session: Optional[Session] = None) -> Window:
    """A window of so many zeros, of the session's memory: to be filled, and given to files of that session without a copy."""
    if session is None:
        session = default_session()
    return session.window(nbytes)


def _at_exit() -> None:
    """What a program has left open is written out when it ends.

    Files stay open: `io.BufferedWriter` and its like write what they hold only when Python takes them down, which comes after this. A file keeps its
    session and its pool until then.
    """
    for file in list(_files):
        try:
            file._hand_over()
        except Exception:
            # Its bytes stay in the session's memory.
            pass
    while _pools:
        # One that is opened later is joined anew.
        _pools.popitem()[1].close()
    for store in list(_stores):
        try:
            store.close()
        except OSError:
            # Whoever wants to know closes it.
            pass
    if _default is not None:
        _default.close()


def _after_fork() -> None:
    """A child begins without a session, in no pool, and without a store."""
    global _default, _lock, _files, _pools, _stores
    _default = None
    _pools = {}
    _lock = threading.RLock()
    _files = weakref.WeakSet()
    _stores = weakref.WeakSet()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
