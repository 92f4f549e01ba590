"""`ragged.py SEED COUNT`: random writes, reads, appends, truncations and renames of a few files, each held against a model in memory."""

import os
import random
import sys

source = random.Random(int(sys.argv[1]))
models = {}
for step in range(int(sys.argv[2])):
    name = f"file-{source.randrange(5)}"
    model = models.setdefault(name, bytearray())
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    for _ in range(source.randrange(1, 12)):
        what = source.random()
        if what < 0.5:
            at, data = source.randrange(len(model) + 30000), source.randbytes(source.choice((1, 100, 4096, 5000, 70000, 300000)))
            os.pwrite(fd, data, at)
            model.extend(bytes(max(0, at - len(model))))
            model[at:at + len(data)] = data
        elif what < 0.8 and model:
            at, size = source.randrange(len(model)), source.choice((10, 4096, 60000, 400000))
            assert os.pread(fd, size, at) == model[at:at + size], (step, name, at, size)
        elif what < 0.9:
            size = source.randrange(min(len(model), 2_000_000) + 1)
            os.ftruncate(fd, size)
            del model[size:]
        elif what < 0.95:
            assert os.fstat(fd).st_size == os.stat(name).st_size == len(model), (step, name)
        elif what < 0.98:
            os.fsync(fd)
        else:
            os.rename(name, "other")
            os.rename("other", name)
    os.close(fd)
    if source.random() < 0.1:
        with open(name, "rb") as file:
            assert file.read() == model, (step, name)
for name, model in sorted(models.items()):
    with open(name, "rb") as file:
        assert file.read() == model, name
print("as the model says")
