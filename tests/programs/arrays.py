"""Arrays in files as scientific programs write them: HDF5, numpy's formats, maps. Written, changed, and read back."""

import h5py
import numpy as np

a = np.random.default_rng(1).random((700, 1000))

with h5py.File("a.h5", "w") as file:
    file.create_dataset("x", a.shape, dtype="f8", chunks=(100, 100), compression="gzip")[...] = a
    file.create_dataset("y", data=np.arange(2_000_000))
    file["y"][1000:2000] = 7
    group = file.create_group("g")
    for number in range(300):
        group.create_dataset(str(number), data=number)
with h5py.File("a.h5", "r+") as file:
    assert (file["x"][...] == a).all()
    del file["g/3"]
    file["y"].attrs["unit"] = "m"
    file["x"][0, :] = 0
with h5py.File("a.h5") as file:
    assert file["x"][0].sum() == 0 and file["y"][1500] == 7 and len(file["g"]) == 299

np.save("a.npy", a)
assert (np.load("a.npy") == a).all()
mapped = np.load("a.npy", mmap_mode="r+")
mapped[5, 5] = 42
mapped.flush()
del mapped
assert np.load("a.npy")[5, 5] == 42
a.tofile("a.bin")
assert (np.fromfile("a.bin").reshape(a.shape) == a).all()
np.savez("a.npz", a=a, b=a * 2)
assert (np.load("a.npz")["b"] == a * 2).all()
mapped = np.memmap("map", dtype="u1", mode="w+", shape=(1 << 20,))
mapped[:] = 3
mapped.flush()
with open("map", "rb") as file:
    assert file.read() == b"\3" * (1 << 20)
print("arrays are right")
