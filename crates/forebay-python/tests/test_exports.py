"""What lies over a view or a window keeps its memory, or keeps it from going to somebody else."""

import gc
import warnings

import pytest

import forebay

MIB = 1 << 20

np = pytest.importorskip("numpy")


@pytest.fixture
def file(session, path):
    with session.open(path, "w+b") as file:
        file.write_at(b"a" * MIB, 0)
        yield file


def tensor(memory):
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        # Of memory that may not be written.
        warnings.simplefilter("ignore")
        return torch.frombuffer(memory, dtype=torch.uint8)


def by_memoryview(memory):
    return np.ndarray((len(memory),), "u1", memoryview(memory))


def by_itself(memory):
    return np.ndarray((len(memory),), "u1", memory)


# All of these give the buffer back at once, or hand it to something that does.
TOLD = {"torch.frombuffer": tensor, "numpy.ndarray of a memoryview": by_memoryview, "numpy.frombuffer": lambda memory: np.frombuffer(memory, "u1")}
told = pytest.mark.parametrize("lay_over", TOLD.values(), ids=TOLD)
writable = pytest.mark.parametrize("writable", [False, True], ids=["shared", "private"])


def overwrite(session, path):
    """Has the session use all the memory that is free."""
    with session.open(f"{path}-other", "w+b") as other:
        for part in range(48):
            other.write_at(b"o" * MIB, part * MIB)


def shows(array, byte):
    return bytes(memoryview(np.asarray(array))) == byte * MIB


@told
@writable
def test_a_view_is_not_released_under_an_array(session, file, path, lay_over, writable):
    view = file.view(writable=writable)
    array = lay_over(view)
    second = memoryview(view)
    second.release()
    with pytest.raises(BufferError, match="lie over this view"):
        view.release()
    with pytest.raises(BufferError):
        with view:
            pass
    file.write_at(b"b" * MIB, 0)
    overwrite(session, path)
    assert shows(array, b"a") and len(view) == MIB
    del array
    gc.collect()
    view.release()
    assert session.stats()["viewed_bytes"] == 0


@writable
def test_memory_that_nobody_gives_back_stays_with_the_view(session, file, path, writable):
    with file.view(writable=writable) as view:
        array = by_itself(view)
        with memoryview(view), pytest.raises(BufferError):
            view.release()
    for use in (len, memoryview, lambda view: view.readonly):
        with pytest.raises(ValueError, match="closed"):
            use(view)
    view.release()
    file.write_at(b"b" * MIB, 0)
    overwrite(session, path)
    assert shows(array, b"a")
    del array, view
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0


def test_an_array_outlives_its_view(session, file, path):
    views = [file.view() for _ in range(4)]
    arrays = [lay_over(view) for lay_over, view in zip((*TOLD.values(), by_itself), views)]
    del views
    gc.collect()
    overwrite(session, path)
    assert all(shows(array, b"a") for array in arrays)
    del arrays
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0


def test_what_loads_arrays_has_views_that_know_of_them(session, path):
    import forebay.numpy
    import forebay.safetensors

    numbers = np.arange(MIB // 4, dtype="<u4")
    forebay.numpy.save(f"{path}.npy", numbers, session)
    forebay.safetensors.save_file({"numbers": numbers}, path, session=session)
    taken = []
    take = forebay.File.view

    def view(self, *args, **how):
        taken.append(take(self, *args, **how))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forebay.File, "view", view)
        loaded = [forebay.numpy.load(f"{path}.npy", session), forebay.safetensors.load_file(path, session)["numbers"]]
    assert len(taken) == 2
    for view in taken:
        with pytest.raises(BufferError):
            view.release()
    assert all((array == numbers).all() for array in loaded)
    del loaded
    gc.collect()
    for view in taken:
        view.release()


@told
def test_a_window_stays_where_it_is_under_an_array(session, file, lay_over):
    window = session.window(MIB)
    array = lay_over(window)
    for go in (window.release, lambda: window.slide(4096)):
        with pytest.raises(BufferError, match="lie over this window"):
            go()
    del array
    gc.collect()
    window.slide(4096)
    window.release()


def test_a_window_that_may_be_kept_does_not_move(session, file, path):
    window = session.window(MIB)
    array = by_itself(window)
    array[:] = ord("w")
    with pytest.raises(BufferError, match="numpy.frombuffer"):
        window.slide(4096)
    assert window.commit(file, 0) == MIB
    window.release()
    with pytest.raises(ValueError, match="closed"):
        window.commit(file, 0)
    overwrite(session, path)
    assert shows(array, b"w")
    del array, window
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0


@pytest.mark.parametrize("lay_over", [*TOLD.values(), by_itself], ids=[*TOLD, "numpy.ndarray"])
def test_a_stores_window_is_not_committed_under_an_array(tmp_path, lay_over):
    with forebay.Store.create(tmp_path / "store", 64 * MIB) as store, store.open("file", "w+b") as file:
        with file.window(0, MIB) as window:
            array = lay_over(window)
            with pytest.raises(BufferError, match="over this window"):
                window.commit()
            assert file.size() == 0
            if lay_over is by_itself:
                return
            del array
            gc.collect()
            assert window.commit() == MIB
        with file.view() as view:
            array = lay_over(view)
            with pytest.raises(BufferError):
                view.release()
            del array
