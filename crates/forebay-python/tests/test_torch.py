"""Files of torch: what is saved and loaded by either is the same, and what is loaded lies over one view."""

import collections
import gc
import io
import os
import pickle
import zipfile

import pytest

from conftest import OPTIONS

torch = pytest.importorskip("torch")

import forebay.torch

KINDS = ["bool", "uint8", "int8", "int16", "float16", "bfloat16", "int32", "float32", "int64", "float64", "complex64", "complex128"]


def some():
    tensors = collections.OrderedDict((kind, (torch.arange(50_003) % 3).to(getattr(torch, kind)).reshape(-1, 1)) for kind in KINDS)
    whole = tensors["float32"]
    return {
        **tensors,
        "none": torch.empty((0, 3)),
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
        "turned": torch.arange(6).reshape(2, 3).t(),
        "part": whole[100:200],
        "parameter": torch.nn.Parameter(torch.ones(1000)),
        "nested": {"list": [1, "text", None, (True, torch.zeros(3))]},
    }


def same(one, other):
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
        assert torch.equal(one, other) and type(one) is type(other) and one.requires_grad == other.requires_grad
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other):
            same(*pair)
    else:
        assert one == other


@pytest.mark.parametrize("weights_only", [True, False])
def test_memory_comes_back_with_the_tensors(session, path, weights_only):
    torch.save({"a": torch.zeros(1 << 20)}, path)
    gc.collect()
    gc.disable()
    try:
        loaded = forebay.torch.load(path, session=session, weights_only=weights_only)
        assert session.stats()["viewed_bytes"] >= 4 << 20
        del loaded
        assert session.stats()["viewed_bytes"] == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("how", [{}, {"copy": True}, {"weights_only": False}, {"map_location": "cpu"}, {"map_location": lambda storage, _: storage}])
def test_files_go_through_both(session, path, how):
    tensors = some()
    torch.save(tensors, path)
    same(forebay.torch.load(path, session=session, **how), tensors)
    forebay.torch.save(tensors, other := path.with_name("ours"), session=session)
    same(torch.load(other), tensors)
    same(forebay.torch.load(other, session=session, **how), tensors)
    with session.open(other, "rb") as file:
        file.seek(77)
        same(forebay.torch.load(file, **how), tensors)
        assert file.tell() == 77


@pytest.mark.parametrize("weights_only", [True, False])
def test_what_is_loaded_lies_over_one_view(session, path, weights_only):
    tensors = some()
    forebay.torch.save(tensors, path, session=session)
    before = path.read_bytes()
    loaded = forebay.torch.load(path, session=session, weights_only=weights_only)
    again = forebay.torch.load(path, session=session, weights_only=weights_only)
    held = session.stats()["viewed_bytes"]
    assert held >= len(before)
    # Storages are shared as they were saved, and with nobody else.
    loaded["part"].fill_(9)
    assert (loaded["float32"][100:200] == 9).all() and torch.equal(again["float32"], tensors["float32"])
    loaded["float64"].add_(1)
    for name in KINDS:
        if name not in ("float32", "float64"):
            assert torch.equal(loaded[name], tensors[name])
    assert path.read_bytes() == before
    # The file may become anything.
    with session.open(path, "r+b") as file:
        file.write_at(b"x" * len(before), 0)
    path.unlink()
    same(again, tensors)
    kept = loaded["float32"][5:150]
    del loaded, again
    gc.collect()
    assert session.stats()["viewed_bytes"] >= len(before) and (kept[95:] == 9).all()
    del kept
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0


def test_no_bytes_are_copied(session, path):
    # Six of 32 MiB: were they copied, they would be elsewhere than in the view.
    torch.save([torch.full((1 << 20,), number, dtype=torch.uint8) for number in range(6)], path)
    with session.open(path) as file:
        loaded = forebay.torch.load(file)
        assert session.stats()["viewed_bytes"] >= 6 << 20
        starts = sorted(tensor.data_ptr() for tensor in loaded)
        assert starts[-1] - starts[0] < path.stat().st_size and [int(tensor[7]) for tensor in loaded] == list(range(6))
        assert all(start % 64 == 0 for start in starts)


class Records(torch.utils.data.Dataset):
    """A data set as docs/python.md wants one: it keeps a path, and each worker opens it at its first use."""

    def __init__(self, name, path, count):
        self.name, self.path, self.count = name, path, count
        self.opened = None

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if self.opened is None or self.opened[0] != os.getpid():
            session = forebay.Session(self.name, keep=False, **OPTIONS)
            records = forebay.torch.load(self.path, session=session)["records"]
            assert session.stats()["viewed_bytes"] >= records.numel() * 4
            self.opened = os.getpid(), session, records
        record = self.opened[2][number]
        record += 1
        return number, record.sum(), os.getpid()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader(session, name, path, method):
    records = torch.arange(64 * 3000, dtype=torch.int32).reshape(64, 3000)
    forebay.torch.save({"records": records}, path, session=session)
    # What a worker inherits by a fork it may read as well.
    held = forebay.torch.load(path, session=session)["records"]
    loader = torch.utils.data.DataLoader(
        Records(name, str(path), 64), batch_size=4, num_workers=2, multiprocessing_context=method, timeout=120
    )
    seen, workers = {}, set()
    for _ in range(2):
        for numbers, sums, pids in loader:
            seen.update(zip(numbers.tolist(), sums.tolist()))
            workers.update(pids.tolist())
        # What the workers have stored is theirs.
        assert seen == {number: int(records[number].sum()) + 3000 for number in range(64)}
    assert os.getpid() not in workers and len(workers) == 4
    assert torch.equal(held, records) and torch.equal(torch.load(path)["records"], records)


class Kept(torch.utils.data.Dataset):
    """A data set of a tensor that the parent holds."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __len__(self):
        return len(self.tensor)

    def __getitem__(self, number):
        record = self.tensor[number]
        record *= 2
        return record.sum()


def test_forked_workers_have_their_parents_tensors(session, path):
    records = torch.arange(64 * 3000, dtype=torch.int64).reshape(64, 3000)
    forebay.torch.save(records, path, session=session)
    held = forebay.torch.load(path, session=session)
    assert session.stats()["viewed_bytes"] >= records.numel() * 8
    loader = torch.utils.data.DataLoader(Kept(held), batch_size=8, num_workers=2, multiprocessing_context="fork", timeout=120)
    sums = [total for batch in loader for total in batch.tolist()]
    assert sums == (2 * records.sum(1)).tolist() and torch.equal(held, records)


class Runs:
    """What a file that was made to harm may hold."""

    def __reduce__(self):
        return os.mkdir, (os.environ["TEST_RUNS"],)


def test_what_is_not_held_for_safe_is_not_run(session, path, tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_RUNS", str(tmp_path / "ran"))
    torch.save({"weights": torch.zeros(1 << 17), "harm": Runs()}, path)
    with pytest.raises(pickle.UnpicklingError):
        forebay.torch.load(path, session=session)
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(pickle.UnpicklingError):
        forebay.torch.load(path, session=session, weights_only=False)
    assert not (tmp_path / "ran").exists()
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD")
    assert torch.equal(forebay.torch.load(path, session=session, weights_only=False)["weights"], torch.zeros(1 << 17))
    assert (tmp_path / "ran").exists()
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0


def test_other_formats_are_loaded_by_copy(session, path):
    tensors = some()
    forebay.torch.save(tensors, path, session=session, _use_new_zipfile_serialization=False)
    assert path.read_bytes()[:2] != b"PK"
    same(torch.load(path), tensors)
    for how in ({}, {"weights_only": False}):
        same(forebay.torch.load(path, session=session, **how), tensors)
    # An archive that is packed, or whose storages lie anywhere.
    torch.save(tensors, path)
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(other := path.with_name("packed"), "w", method) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
        same(forebay.torch.load(other, session=session, weights_only=False), tensors)
    gc.collect()
    module = torch.jit.script(torch.nn.Linear(300, 300))
    torch.jit.save(module, str(path))
    with pytest.warns(UserWarning, match="TorchScript"):
        loaded = forebay.torch.load(path, session=session, weights_only=False)
    assert torch.equal(loaded.weight, module.weight)


def test_damaged_files_are_torchs_or_refused(session, path):
    import random

    draw = random.Random(7)
    torch.save({"a": torch.arange(70_000), "b": torch.ones(10)}, path)
    whole = path.read_bytes()
    begin, agreed = whole.index(b"PK\x01\x02"), 0
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 1, 2, 5])):
            damaged[draw.choice([draw.randrange(1200), draw.randrange(begin, len(whole))])] = draw.randrange(256)
        path.write_bytes(damaged[: draw.choice([len(whole)] * 8 + [draw.randrange(1, len(whole))])])
        try:
            theirs = torch.load(path, weights_only=True)
        except Exception:
            theirs = None
        try:
            ours = forebay.torch.load(path, session=session)
        except Exception:
            continue
        # What lies elsewhere by what the archive says of itself has other bytes, but never such that are not the file's.
        if theirs is not None and [*ours] == [*theirs]:
            agreed += all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert agreed > 10


def test_errors_of_writes_are_raised(session, path):
    path.write_bytes(b"kept")
    with session.open(path, "rb") as file, pytest.raises(OSError):
        forebay.torch.save(torch.zeros(1 << 18), file)
    assert path.read_bytes() == b"kept"
    with session.open(path, "w+b") as file:
        file.write(b"before")
        forebay.torch.save([torch.ones(3)], file)
        content = file.read_at(1 << 20, 6)
    same(torch.load(io.BytesIO(content)), [torch.ones(3)])


@pytest.mark.parametrize("how", [{}, {"_use_new_zipfile_serialization": False}])
def test_what_cannot_be_saved_costs_no_file(session, path, how):
    forebay.torch.save({"a": torch.ones(3)}, path, session=session)
    before = path.read_bytes()
    for large in (torch.zeros(3), torch.zeros(1 << 20)):
        with pytest.raises(Exception, match="pickle"):
            forebay.torch.save({"large": large, "wrong": lambda: 0}, path, session=session, **how)
        assert path.read_bytes() == before
    # What can be is written whole, be it short or long.
    for size in (1, 1 << 20):
        forebay.torch.save(torch.full((size,), 3.0), path, session=session, **how)
        assert torch.equal(torch.load(path), torch.full((size,), 3.0))
    with pytest.raises(FileNotFoundError):
        forebay.torch.save(torch.zeros(3), path.with_name("none") / "below", session=session)
    with pytest.raises(FileNotFoundError):
        forebay.torch.save(torch.zeros(1 << 20), path.with_name("none") / "below", session=session)
