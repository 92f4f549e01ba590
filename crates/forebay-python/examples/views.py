"""What views are worth: bytes of a cached file by a view, by reads and by the kernel's mmap; tensors by this package and by safetensors' own.

    python views.py DIR [MIB [ROUNDS]]

The sides take turns, and medians are printed. Memory that is read into is touched before. "cold": neither the session nor the kernel has
bytes of the file in memory. Where torch and fastsafetensors are installed, their own ways are among the sides: `torch.load(mmap=True)` of the same
tensors (torch 2.1 and later), and `fastsafe_open` in memory, without the GPU that it is made for.
"""

import mmap
import os
import shutil
import statistics
import sys
import time

import numpy as np

import forebay
import forebay.numpy
import forebay.safetensors

MIB = 1 << 20
POPULATE_READ = 22

where = sys.argv[1]
size = int(sys.argv[2] if len(sys.argv) > 2 else 1024) * MIB
rounds = int(sys.argv[3] if len(sys.argv) > 3 else 7)
path = f"{where}/views-{os.getpid()}"
# The same tensors, for others: what somebody opens past the session is the kernel's for a while.
theirs = f"{path}.theirs"
of_torch, theirs_of_torch = f"{path}.pt", f"{theirs}.pt"
files = (path, theirs, of_torch, theirs_of_torch)
memory = f"{max(4 * size, 256 * MIB)}"


def compare(what, sides, rounds, unit=1e3):
    """Runs all sides in turn."""
    times = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            prepare = getattr(run, "prepare", None)
            if prepare:
                prepare()
            begun = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begun)
    first = statistics.median(next(iter(times.values())))
    print(what)
    for name, each in times.items():
        middle = statistics.median(each)
        print(f"    {name:34} {middle * unit:10.3f} ({min(each) * unit:.3f} to {max(each) * unit:.3f})  x{middle / first:.2f}")
    sys.stdout.flush()


def total(buffer):
    return np.add.reduce(np.frombuffer(buffer, np.uint64))


def let_go_of():
    """The kernel's cached bytes of the files."""
    for each in filter(os.path.exists, files):
        fd = os.open(each, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def pieces(session):
    """A piece of 2 MiB, whole and a byte of it."""
    piece = 2 * MIB
    with session.open(path) as file, open(path, "rb", buffering=0) as plain:
        room = bytearray(piece)
        at = size // 2 // piece * piece

        def view(use):
            with file.view(at, piece) as view, memoryview(view) as bytes_of:
                assert not view.is_copy
                return use(bytes_of)

        def read(use):
            file.readinto_at(room, at)
            return use(room)

        def kernel_read(use):
            os.preadv(plain.fileno(), [room], at)
            return use(room)

        def kernel_mmap(use):
            with mmap.mmap(plain.fileno(), piece, mmap.MAP_SHARED, mmap.PROT_READ, offset=at) as mapped:
                with memoryview(mapped) as bytes_of:
                    return use(bytes_of)

        def kernel_populated(use):
            with mmap.mmap(plain.fileno(), piece, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ, offset=at) as mapped:
                with memoryview(mapped) as bytes_of:
                    return use(bytes_of)

        first = lambda bytes_of: bytes_of[0]
        sides = {"File.view": view, "File.readinto_at": read, "os.preadv": kernel_read, "mmap": kernel_mmap, "mmap, MAP_POPULATE": kernel_populated}
        for what, use in (("2 MiB, one byte of it (us)", first), ("2 MiB, all of it summed (us)", lambda bytes_of: int(total(bytes_of)))):
            compare(what, {name: (lambda side=side: side(use)) for name, side in sides.items()}, 200, 1e6)


def whole(session):
    with session.open(path) as file, open(path, "rb", buffering=0) as plain:
        room = bytearray(MIB)

        def view():
            with file.view() as view, memoryview(view) as bytes_of:
                assert not view.is_copy
                return total(bytes_of)

        def read():
            return sum(int(total(room)) for at in range(0, size, MIB) if file.readinto_at(room, at))

        def kernel_read():
            return sum(int(total(room)) for at in range(0, size, MIB) if os.preadv(plain.fileno(), [room], at))

        def kernel_mmap():
            with mmap.mmap(plain.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                mapped.madvise(POPULATE_READ)
                with memoryview(mapped) as bytes_of:
                    return total(bytes_of)

        sides = {"File.view": view, "File.readinto_at by 1 MiB": read, "os.preadv by 1 MiB": kernel_read, "mmap, MADV_POPULATE_READ": kernel_mmap}
        compare(f"{size // MIB} MiB cached, summed (ms)", sides, rounds)


def sides_of_torch(touch, sessions):
    """What there is with torch, which may not be installed."""
    try:
        import torch
        import safetensors.torch
    except ImportError:
        return {}
    import forebay.torch

    def touch_torch(loaded):
        touch({name: tensor.numpy() for name, tensor in loaded.items()})

    sides = {
        "safetensors.torch": lambda: touch_torch(safetensors.torch.load_file(theirs)),
        "forebay.safetensors, torch": lambda: touch_torch(forebay.safetensors.load_file(path, sessions[-1], framework="torch")),
        "forebay.torch.load": lambda: touch_torch(forebay.torch.load(of_torch, session=sessions[-1])),
    }
    for each in (of_torch, theirs_of_torch):
        if not os.path.exists(each):
            torch.save(safetensors.torch.load_file(theirs), each)
    try:
        torch.load(theirs_of_torch, mmap=True)
    except TypeError:
        pass
    else:
        sides["torch.load(mmap=True)"] = lambda: touch_torch(torch.load(theirs_of_torch, mmap=True))
    try:
        from fastsafetensors import fastsafe_open
    except ImportError:
        return sides

    def fast():
        with fastsafe_open(filenames=[theirs], device="cpu", nogds=True) as file:
            touch_torch({name: file.get_tensor(name) for name in file.keys()})

    sides["fastsafetensors"] = fast
    return sides


def tensors(cold):
    import safetensors.numpy

    sessions = []

    def touch(loaded):
        return sum(int(np.add.reduce(tensor.view(np.uint32), axis=None)) for tensor in loaded.values())

    def ours(**how):
        def run():
            loaded = forebay.safetensors.load_file(path, sessions[-1], **how)
            touch(loaded)

        return run

    def anew():
        while sessions:
            sessions.pop().close()
        sessions.append(forebay.Session(f"views-{os.getpid()}", memory=memory))
        # What a system needs for memory that nobody has touched is nobody's.
        sessions[-1].warm(size + size // 8)
        if cold:
            let_go_of()
        else:
            for each in filter(os.path.exists, (path, of_torch)):
                with sessions[-1].open(each) as file:
                    file.view().release()

    def kernels():
        touch(safetensors.numpy.load_file(theirs))

    sides = {
        "safetensors.numpy": kernels,
        "forebay.safetensors": ours(),
        "the same, writable=True": ours(writable=True),
        "the same, copy=True": ours(copy=True),
    }
    sides.update(sides_of_torch(touch, sessions))
    if cold:
        for name, side in sides.items():
            side.prepare = anew if name.startswith(("forebay", "the same")) else let_go_of
    else:
        anew()
        for side in sides.values():
            side()
    compare(f"safetensors, {size // MIB} MiB {'cold' if cold else 'cached'}, loaded and summed (ms)", sides, rounds)
    while sessions:
        sessions.pop().close()


try:
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    parts = {f"layer {number}": np.random.default_rng(number).integers(0, 1 << 32, size // 64, np.uint32).view(np.float32) for number in range(16)}
    with forebay.Session(f"views-{os.getpid()}", memory=memory) as session:
        forebay.safetensors.save_file(parts, path, session=session)
        # The kernel's sides have it in the kernel's cache as well.
        with open(path, "rb") as plain:
            while plain.read(MIB):
                pass
        size = os.path.getsize(path) // (2 * MIB) * (2 * MIB)
        with session.open(path) as file:
            file.view().release()
        pieces(session)
        whole(session)
    size = os.path.getsize(path)
    del parts
    shutil.copyfile(path, theirs)
    # What has come to the file past the session counts for some seconds.
    time.sleep(6)
    tensors(cold=False)
    tensors(cold=True)
    print(f"load {os.getloadavg()[0]:.1f}")
finally:
    for each in filter(os.path.exists, files):
        os.unlink(each)
