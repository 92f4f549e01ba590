"""What Python programs do with files, for the times: `corpus_python.py KIND MIB`. Always the same bytes."""

import os
import sys

MIB = 1 << 20


def lines(mib):
    with open("lines", "w") as file:
        for number in range(mib * 10_000):
            print("line", number, "of a text that is as long as others", file=file)
    with open("lines") as file:
        total = sum(len(line) for line in file)
    assert total == os.path.getsize("lines")


def arrays(mib):
    import numpy as np

    a = np.random.default_rng(1).random(mib * MIB // 8)
    np.save("a.npy", a)
    assert (np.load("a.npy") == a).all()
    a.tofile("a.bin")
    assert (np.fromfile("a.bin") == a).all()
    np.savez("a.npz", a=a[: len(a) // 2])
    assert len(np.load("a.npz")["a"]) == len(a) // 2


def hdf5(mib):
    import h5py
    import numpy as np

    a = np.random.default_rng(1).random((mib * 128, 1024))
    with h5py.File("a.h5", "w") as file:
        file.create_dataset("x", data=a, chunks=(64, 1024))
        for number in range(400):
            file.create_dataset(f"g/{number}", data=np.arange(number))
    with h5py.File("a.h5", "r+") as file:
        for row in range(0, len(a), 64):
            file["x"][row] = 0
    with h5py.File("a.h5") as file:
        assert file["x"][64].sum() == 0 and (file["x"][65] == a[65]).all()


def tensors(mib):
    import torch

    torch.manual_seed(1)
    state = {f"layer.{number}": torch.rand(mib * MIB // 4 // 64) for number in range(64)}
    for _ in range(2):
        torch.save(state, "new.pt")
        os.replace("new.pt", "checkpoint.pt")
    back = torch.load("checkpoint.pt")
    assert all((back[key] == state[key]).all() for key in state)


def safe(mib):
    import numpy as np
    from safetensors.numpy import load_file, save_file

    source = np.random.default_rng(1)
    tensors = {f"layer.{number}": source.random(mib * MIB // 8 // 64) for number in range(64)}
    save_file(tensors, "a.safetensors")
    back = load_file("a.safetensors")
    assert all((back[key] == tensors[key]).all() for key in tensors)


def parquet(mib):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = np.random.default_rng(1)
    rows = mib * MIB // 16
    table = pa.table({"number": np.arange(rows), "value": source.random(rows)})
    pq.write_table(table, "a.parquet", compression="none", use_dictionary=False, row_group_size=100_000)
    assert pq.read_table("a.parquet").equals(table)


if __name__ == "__main__":
    kinds = {"lines": lines, "numpy": arrays, "h5py": hdf5, "torch": tensors, "safetensors": safe, "parquet": parquet}
    kinds[sys.argv[1]](int(sys.argv[2]))
