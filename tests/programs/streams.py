"""Arrays that numpy writes and reads: by streams of C over Python's descriptors, by Python's files, by mappings."""

import hashlib
import os

import numpy as np

a = np.arange(300_000, dtype=np.float64) * 1.5
a.tofile("plain")
assert (np.fromfile("plain") == a).all()
assert (np.fromfile("plain", count=1000, offset=80_000) == a[10_000:11_000]).all()
np.save("one.npy", a)
assert (np.load("one.npy") == a).all()
assert (np.load("one.npy", mmap_mode="r")[::999] == a[::999]).all()
np.savez("some.npz", x=a[:1000], y=a)
assert (np.load("some.npz")["y"] == a).all()
with open("between", "wb") as file:
    file.write(b"head")
    a.tofile(file)
    file.write(b"tail")
with open("between", "r+b") as file:
    assert file.read(4) == b"head"
    assert (np.fromfile(file, count=len(a)) == a).all()
    assert file.read() == b"tail"
    file.seek(4)
    a[::-1].tofile(file)
    assert file.tell() == 4 + a.nbytes
np.savetxt("text", a[:20_000])
assert np.allclose(np.loadtxt("text"), a[:20_000])
mapped = np.memmap("mapped", dtype="f8", mode="w+", shape=(50_000,))
mapped[:] = a[:50_000]
mapped.flush()
del mapped
for name in sorted(os.listdir()):
    with open(name, "rb") as file:
        print(name, hashlib.sha256(file.read()).hexdigest())
