"""What views are worth: bytes of a cached file by a view, by reads and by the kernel's mmap; tensors by this package and by safetensors' own.

    python views.py DIR [MIB [ROUNDS]]

The sides take turns, and medians are printed. Memory that is read into is touched before. "cold": neither the session nor the kernel has
bytes of the file in memory.
"""

import mmap
import os
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
    """The kernel's cached bytes of the file."""
    fd = os.open(path, os.O_RDONLY)
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
        if cold:
            let_go_of()
        else:
            with sessions[-1].open(path) as file:
                file.view().release()

    def kernels():
        touch(safetensors.numpy.load_file(path))

    sides = {
        "safetensors.numpy": kernels,
        "forebay.safetensors": ours(),
        "the same, writable=True": ours(writable=True),
        "the same, copy=True": ours(copy=True),
    }
    try:
        import safetensors.torch
    except ImportError:
        pass
    else:
        sides["safetensors.torch"] = lambda: touch({name: tensor.numpy() for name, tensor in safetensors.torch.load_file(path).items()})
        sides["forebay.safetensors, torch"] = lambda: touch(
            {name: tensor.numpy() for name, tensor in forebay.safetensors.load_file(path, sessions[-1], framework="torch").items()}
        )
    if cold:
        for name, side in sides.items():
            side.prepare = let_go_of if name.startswith("safetensors") else anew
    else:
        anew()
        kernels()
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
    tensors(cold=False)
    tensors(cold=True)
    print(f"load {os.getloadavg()[0]:.1f}")
finally:
    os.unlink(path)
