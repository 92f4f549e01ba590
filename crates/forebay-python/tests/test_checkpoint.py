"""Checkpoints of `torch.distributed`: what torch's own reader and writer for directories write and read, and ours."""

import dataclasses
import gc
import os
import sys
import warnings

import pytest

import forebay
from conftest import OPTIONS

torch = pytest.importorskip("torch")


def modules():
    """torch's parts for checkpoints. Those of 1.13 have a dataclass as a default, which Python 3.11 takes for a mistake unless it has a hash."""
    try:
        import torch.distributed.checkpoint as parts
    except ModuleNotFoundError:
        make = dataclasses.dataclass

        def with_hash(kind=None, **how):
            if getattr(kind, "__name__", "") == "TensorProperties":
                how["unsafe_hash"] = True
            return make(kind, **how)

        dataclasses.dataclass = with_hash
        try:
            import torch.distributed._shard.checkpoint as parts
        finally:
            dataclasses.dataclass = make
    return parts


try:
    parts = modules()
    from forebay.checkpoint import Reader, Writer
except ImportError:
    pytest.skip("this torch has no checkpoints", allow_module_level=True)


def some():
    whole = torch.arange(300_000, dtype=torch.float32)
    return {
        "weights": whole.reshape(300, 1000).clone(),
        "part": whole[1000:2000],
        "half": torch.ones(7, dtype=torch.bfloat16),
        "turned": torch.arange(6).reshape(2, 3).t(),
        "scalar": torch.tensor(3),
        "step": 17,
        "names": {"a": [1, "text"]},
    }


def empty(value):
    """Of the same form: torch 2 saves what is nested one by one."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {name: empty(each) for name, each in value.items()}
    return [empty(each) for each in value] if isinstance(value, list) else type(value)()


def assert_same(loaded):
    for name, value in some().items():
        assert torch.equal(loaded[name], value) if isinstance(value, torch.Tensor) else loaded[name] == value, name


def save(writer, state):
    parts.save_state_dict(state, writer, no_dist=True)


def load(reader):
    state = empty(some())
    parts.load_state_dict(state, reader, no_dist=True)
    return state


@pytest.mark.parametrize("writes", ["ours", "torch's"])
@pytest.mark.parametrize("reads", ["ours", "torch's"])
def test_checkpoints_go_through_both(session, tmp_path, writes, reads):
    path = tmp_path / "steps" / "1"
    save(Writer(path, session) if writes == "ours" else parts.FileSystemWriter(path), some())
    assert_same(load(Reader(path, session) if reads == "ours" else parts.FileSystemReader(path)))
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0
    if writes == "ours":
        assert sorted(os.listdir(path)) == [".metadata", "__0_0.distcp"]
        # Not what else was in the tensor's memory.
        assert (path / "__0_0.distcp").stat().st_size < 1_300_000


def test_what_is_read_in_parts_is_whole(session, tmp_path, monkeypatch):
    """As where a byte of the next part cannot be read, and can the next time."""

    def read_at(file, size, offset):
        return file._native.read_at(min(size, 100), offset)

    def readinto_at(file, buffer, offset):
        return file._native.readinto_at(memoryview(buffer)[:100], offset)

    save(Writer(tmp_path, session), some())
    monkeypatch.setattr(forebay.File, "read_at", read_at)
    monkeypatch.setattr(forebay.File, "readinto_at", readinto_at)
    assert_same(load(Reader(tmp_path, session)))


def of_rank(rank):
    return {"both": torch.arange(1000.0), f"of {rank}": torch.full((50_000,), float(rank)), "step": 3}


def work(rank, ranks, path, name):
    """One of several processes that save together, each what it has."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=ranks)
    with forebay.Session(name, keep=False, **OPTIONS) as session:
        for step, save_to in enumerate((parts.save, lambda *what, **how: parts.async_save(*what, **how).result())):
            at = os.path.join(path, str(step))
            save_to(of_rank(rank), storage_writer=Writer(at, session))
            for reader in (Reader(at, session), parts.FileSystemReader(at)):
                state = empty(of_rank(rank))
                parts.load(state, storage_reader=reader)
                assert all(torch.equal(state[each], value) for each, value in of_rank(rank).items() if each != "step") and state["step"] == 3
            assert sorted(os.listdir(at)) == [".metadata", *(f"__{each}_0.distcp" for each in range(ranks))]
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not hasattr(parts, "async_save"), reason="torch 1.13 saves in this process, and at once")
def test_several_processes_save_together_and_behind_the_program(name, session, tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(work, (2, str(tmp_path), name), nprocs=2)


def test_a_checkpoint_is_written_over(session, tmp_path):
    for factor in (1, 2):
        state = {name: value * factor if isinstance(value, torch.Tensor) else value for name, value in some().items()}
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            save(Writer(tmp_path, session, sync_files=False), state)
        assert any("written over" in str(each.message) for each in warned) == (factor == 2)
    loaded = load(Reader(tmp_path, session))
    assert torch.equal(loaded["weights"], some()["weights"] * 2)


def test_a_checkpoint_is_not_written_over_where_that_is_not_wanted(session, tmp_path):
    for path in (tmp_path / "one", tmp_path / "two"):
        save(Writer(path, session, overwrite=False), some())
    with pytest.raises(BaseException, match="overwrite is False"):
        save(Writer(tmp_path / "one", session, overwrite=False), empty(some()))
    assert_same(load(Reader(tmp_path / "one", session)))


@pytest.mark.filterwarnings("ignore:.*written over")
@pytest.mark.parametrize("sync_files", [True, False])
def test_a_save_that_does_not_end_leaves_no_checkpoint(session, tmp_path, sync_files):
    class Dying(Writer):
        def finish(self, *_, **__):
            raise OSError("the program ends here")

    save(Writer(tmp_path, session), some())
    with pytest.raises(BaseException, match="the program ends here"):
        save(Dying(tmp_path, session, sync_files=sync_files), empty(some()))
    # Not the new bytes by the old description.
    with pytest.raises(BaseException, match="No such file"):
        load(Reader(tmp_path, session))
    save(Writer(tmp_path, session), some())
    assert_same(load(Reader(tmp_path, session)))


def test_what_is_no_checkpoint_is_refused(session, tmp_path):
    save(Writer(tmp_path, session), some())
    os.truncate(tmp_path / "__0_0.distcp", 100_000)
    with pytest.raises(BaseException):
        load(Reader(tmp_path, session))
    with pytest.raises(BaseException, match="No such file"):
        load(Reader(tmp_path / "other", session))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BaseException):
        save(Writer(tmp_path / "file", session), some())


class Planner:
    """What torch has for a plan, as both of them call it."""

    def __init__(self, state):
        self.state = state
        self.committed = []

    def resolve_data(self, item):
        return self.state[item.index.fqn]

    def load_bytes(self, item, value):
        self.state[item.dest_index.fqn] = value.read()

    def resolve_tensor(self, item):
        return self.state[item.dest_index.fqn]

    def commit_tensor(self, item, tensor):
        self.committed.append(item.dest_index.fqn)


def test_the_methods_of_torch_2(session, tmp_path):
    """In the order in which its documentation has them called, with two ranks, the second of which reads a part of what the first has written."""
    planner = sys.modules[f"{parts.__name__}.planner"]
    metadata = sys.modules[f"{parts.__name__}.metadata"]
    index = metadata.MetadataIndex
    tensors = [{"a": torch.arange(200_000)}, {"b": torch.arange(12).reshape(3, 4), "c": memoryview(b"bytes")}]
    kinds = planner.WriteItemType
    plans = [
        planner.SavePlan([planner.WriteItem(index("a"), kinds.TENSOR)]),
        planner.SavePlan([planner.WriteItem(index("b"), kinds.TENSOR), planner.WriteItem(index("c"), kinds.BYTE_IO)]),
    ]

    class Bytes:
        def getbuffer(self):
            return memoryview(b"bytes")

    tensors[1]["c"] = Bytes()
    writers = [Writer(tmp_path / "first", session) for _ in plans]
    assert Writer.validate_checkpoint_id(tmp_path / "any") and not Writer.validate_checkpoint_id("s3://any")
    assert not Reader.validate_checkpoint_id(3)
    # Not a directory of that name, which would be local.
    for kind in (Writer, Reader):
        with pytest.raises(ValueError, match="local"):
            kind("pool://work/any")
    for rank, writer in enumerate(writers):
        writer.reset(tmp_path / "second")
        writer.set_up_storage_writer(rank == 0)
    plans = writers[0].prepare_global_plan([writer.prepare_local_plan(plan) for writer, plan in zip(writers, plans)])
    results = [writer.write_data(plan, Planner(state)).wait() for writer, plan, state in zip(writers, plans, tensors)]
    writers[0].finish(metadata.Metadata({}), results)
    assert sorted(os.listdir(tmp_path / "second")) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert not (tmp_path / "first").exists() and writers[0].checkpoint_id == tmp_path / "second"

    def item(name, kind, offsets=(), lengths=()):
        sizes = torch.Size
        return planner.ReadItem(kind, index(name), sizes([0] * len(offsets)), index(name), sizes(offsets), sizes(lengths))

    kinds = planner.LoadItemType
    reader = Reader(tmp_path / "first", session)
    reader.reset(tmp_path / "second")
    reader.set_up_storage_reader(reader.read_metadata(), False)
    plan = planner.LoadPlan([item("b", kinds.TENSOR, (1, 2), (2, 1)), item("c", kinds.BYTE_IO), item("a", kinds.TENSOR, (100,), (5,))])
    [plan] = reader.prepare_global_plan([reader.prepare_local_plan(plan)])
    state = Planner({"a": torch.zeros(5, dtype=torch.int64), "b": torch.zeros((2, 1), dtype=torch.int64), "c": None})
    reader.read_data(plan, state).wait()
    assert state.state["a"].tolist() == [100, 101, 102, 103, 104] and state.state["b"].tolist() == [[6], [10]]
    assert state.state["c"] == b"bytes" and sorted(state.committed) == ["a", "b"]
