"""What a store's views and windows are worth from Python: an array saved by a window and loaded by a view, by the store's files, and by numpy on a file system.

    python stores.py STORE DIR [MIB [ROUNDS]]

STORE is made, with room for eight copies, and removed afterwards. The sides take turns, after five rounds that go round the store and do not count, and medians are printed in
milliseconds. "saved": the numbers are calculated, to where they are to lie or into an array that is written then. "loaded": they are summed.
"""

import os
import statistics
import sys
import time

import numpy as np

import forebay

MIB = 1 << 20
WARMING = 5

store_path, where = sys.argv[1:3]
size = int(sys.argv[3] if len(sys.argv) > 3 else 64) * MIB
rounds = int(sys.argv[4] if len(sys.argv) > 4 else 5)
source = np.arange(size // 8, dtype="<f8")
kernel_path = f"{where}/stores-{os.getpid()}.npy"


def calculate(into, first=0):
    np.multiply(source[first : first + len(into)], 2, out=into)


def by_window(file):
    done = 0
    while done < size:
        with file.window(done, size - done) as window:
            length = len(window) // 8 * 8
            calculate(np.frombuffer(window, "<f8", length // 8), done // 8)
            done += window.commit(length)


def by_write(file):
    array = np.empty_like(source)
    calculate(array)
    file.write_at(array, 0)


def by_numpy(file):
    array = np.empty_like(source)
    calculate(array)
    np.save(file, array)


def by_view(file):
    view = file.view()
    assert not view.is_copy
    return np.frombuffer(view, "<f8")


def by_read(file):
    return np.frombuffer(file.read_at(size, 0), "<f8")


sides = {
    "store, window and view": ("window", by_window, by_view),
    "store, write and read": ("file", by_write, by_read),
    "numpy, save and load": (None, by_numpy, np.load),
    "numpy, save and load by mmap": (None, by_numpy, lambda file: np.load(kernel_path, mmap_mode="r")),
}
times = {name: ([], [], []) for name in sides}
with forebay.Store.create(store_path, 8 * size + 64 * MIB) as store:
    for round in range(WARMING + rounds):
        for name, (path, save, load) in sides.items():
            begun = time.perf_counter()
            with store.open(path, "wb") if path else open(kernel_path, "wb") as file:
                save(file)
                saved = time.perf_counter()
                file.sync() if path else (file.flush(), os.fsync(file.fileno()))
            synced = time.perf_counter()
            with store.open(path) if path else open(kernel_path, "rb") as file:
                opened = time.perf_counter()
                total = np.add.reduce(load(file))
                loaded = time.perf_counter()
            assert total == 2 * np.add.reduce(source)
            if round >= WARMING:
                for list, took in zip(times[name], (saved - begun, synced - begun, loaded - opened)):
                    list.append(took * 1e3)
os.unlink(store_path)
os.unlink(kernel_path)
print(f"{size // MIB} MiB, medians of {rounds}, load {os.getloadavg()[0]:.1f}")
print("| | saved | saved and synced | loaded and summed |\n|---|---|---|---|")
for name, each in times.items():
    print(f"| {name} | " + " | ".join(f"{statistics.median(all):.1f}" for all in each) + " |")
