"""Tensors in files: torch.save and torch.load in both formats, safetensors, and loaders of several processes.

`tensors.py torch` or `tensors.py safetensors`. Prints checksums of what it has read back.
"""

import hashlib
import io
import os
import sys

import numpy as np


def checksum(*arrays):
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def use_torch():
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(700, 900), torch.nn.ReLU(), torch.nn.Linear(900, 300))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 700) * step).sum().backward()
        optimizer.step()
        # A checkpoint as training writes it: into another file first.
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "new.pt")
        os.replace("new.pt", "checkpoint.pt")
    torch.save(model.state_dict(), "old.pt", _use_new_zipfile_serialization=False)
    for name in ("checkpoint.pt", "old.pt"):
        state = torch.load(name)
        state = state.get("model", state)
        assert all((state[key] == value).all() for key, value in model.state_dict().items())
        print(name, checksum(*(value.numpy() for value in state.values())))
    with open("checkpoint.pt", "rb") as file:
        print(torch.load(io.BytesIO(file.read()))["step"], torch.load("checkpoint.pt")["optimizer"]["state"][0]["step"])
    torch.jit.script(model).save("script.pt")
    same = torch.jit.load("script.pt")
    assert (same(torch.ones(1, 700)) == model(torch.ones(1, 700))).all()
    # Random names are in the archive, and addresses in the old format.
    os.unlink("script.pt")
    os.unlink("old.pt")
    mapped = torch.from_file("mapped", shared=True, size=100_000, dtype=torch.float32)
    mapped[:] = torch.arange(100_000)
    del mapped
    for number in range(48):
        torch.save(torch.full((64, 64), float(number)), f"part-{number}.pt")
    for context in ("fork", "spawn"):
        loader = DataLoader(Parts(48), batch_size=8, num_workers=2, multiprocessing_context=context)
        print(context, [int(batch.sum()) for batch in loader])


class Parts:
    """A data set of one file for each item, which a worker opens."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        import torch

        if number >= self.count:
            raise IndexError
        return torch.load(f"part-{number}.pt")


def use_safetensors():
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    source = np.random.default_rng(5)
    tensors = {f"layer.{number}.weight": source.random((200, 40 + number)) for number in range(40)}
    tensors["ragged"] = np.arange(7, dtype=np.int8)
    save_file(tensors, "model.safetensors", metadata={"format": "np"})
    back = load_file("model.safetensors")
    assert back.keys() == tensors.keys() and all((back[key] == tensors[key]).all() for key in tensors)
    with safe_open("model.safetensors", framework="np") as file:
        print(checksum(file.get_slice("layer.7.weight")[10:20]), file.metadata())
    # Written again in place, larger and then smaller.
    for count in (60, 3):
        tensors = {f"{number}": source.random(10_000) for number in range(count)}
        save_file(tensors, "model.safetensors")
        print(count, checksum(*(load_file("model.safetensors")[f"{number}"] for number in range(count))))


if __name__ == "__main__":
    {"torch": use_torch, "safetensors": use_safetensors}[sys.argv[1]]()
    print("tensors are right")
