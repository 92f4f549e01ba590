"""numpy's and safetensors' formats, compared with what those write and read themselves."""

import gc
import io
import json
import os
import random
import sys
import time

import pytest

np = pytest.importorskip("numpy")

import forebay.numpy
import forebay.safetensors

ARRAYS = [
    np.arange(100_000, dtype="<f4").reshape(100, 1000),
    np.arange(100_000, dtype=">c16").reshape(10, 50, 200)[:, ::-1],
    np.asfortranarray(np.arange(60, dtype=">i8").reshape(3, 4, 5)),
    np.asfortranarray(np.arange(600_000, dtype="<i2").reshape(300, 2000)),
    np.array(7.5),
    np.array(b"0-d text"),
    np.zeros((0, 3)),
    np.zeros((3, 0, 1 << 40), "?", order="F"),
    np.zeros(3, "V0"),
    np.ones(1, "e"),
    np.array([(1, 2.5), (3, 4.5)], dtype=[("number", "i4"), ("value", "f8")]),
    np.zeros(20_000, dtype=np.dtype([("a", "u1"), ("b", [("c", ">i8"), ("d", "S5", (2, 3))])], align=True)),
    np.zeros(70_000, dtype=[("число", "<f4")]),
    np.zeros(2, dtype=[(f"field {number}", "u1") for number in range(400)]),
    np.array(["a", "text"]),
    np.array(["2026-11-24", "NaT"], "M8[D]"),
    np.array([1, -5], ">m8[ns]"),
    np.arange(100)[::3],
]


def same(one, other):
    assert one.dtype == other.dtype and one.shape == other.shape
    assert one.tobytes() == other.tobytes() and one.flags.f_contiguous == other.flags.f_contiguous


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}"[:40])
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_arrays_are_numpys(session, tmp_path, array, copy):
    np.save(tmp_path / "by-numpy.npy", array)
    forebay.numpy.save(tmp_path / "by-forebay", array, session)
    assert (tmp_path / "by-forebay.npy").read_bytes() == (tmp_path / "by-numpy.npy").read_bytes()
    longest = 1 << 20
    loaded = forebay.numpy.load(tmp_path / "by-numpy.npy", session, copy=copy, max_header_size=longest)
    same(loaded, np.load(tmp_path / "by-numpy.npy", max_header_size=longest))
    assert loaded.flags.writeable == copy
    with session.open(tmp_path / "by-numpy.npy") as file:
        same(forebay.numpy.load(file, copy=copy, max_header_size=longest), loaded)
        writable = forebay.numpy.load(file, writable=True, max_header_size=longest)
    same(writable, loaded)
    assert writable.flags.writeable


def test_an_array_lies_over_its_file(session, tmp_path):
    path = tmp_path / "array.npy"
    content = np.arange(1 << 19, dtype="<u8")
    forebay.numpy.save(path, content, session)
    loaded = forebay.numpy.load(path, session)
    held = session.stats()["viewed_bytes"]
    assert held >= content.nbytes
    with pytest.raises(ValueError, match="read-only"):
        loaded[0] = 1
    with pytest.raises(ValueError):
        loaded.flags.writeable = True
    # Another of the same file takes no more; what lies over an array keeps it.
    again = forebay.numpy.load(path, session)
    assert session.stats()["viewed_bytes"] == held
    part = loaded[1000:].reshape(-1, 8)[:, 3]
    expected = content[1000:].reshape(-1, 8)[:, 3].copy()
    del loaded, again
    forebay.numpy.save(path, content[::-1], session)
    path.unlink()
    gc.collect()
    assert (part == expected).all() and session.stats()["viewed_bytes"] == held
    del part
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0


def test_a_writable_array_lies_over_its_file(session, tmp_path):
    path = tmp_path / "array.npy"
    content = np.arange(1 << 19, dtype="<u8")
    forebay.numpy.save(path, content, session)
    before = path.read_bytes()
    one, other = (forebay.numpy.load(path, session, writable=True) for _ in range(2))
    assert session.stats()["viewed_bytes"] >= content.nbytes
    one[::3] = 7
    one.sort()
    assert (other == content).all() and (forebay.numpy.load(path, session) == content).all()
    del one
    changed = forebay.numpy.memmap(path, "<u8", "c", len(before) - content.nbytes, session=session)
    changed += 1
    assert (changed == content + 1).all() and (other == content).all() and path.read_bytes() == before
    del changed, other
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0


def test_what_is_no_array_is_refused(session, path):
    for content in (b"", b"no array", b"\x93NUMPY\x09\x00", b"\x93NUMPY\x02\x00\x00", b"\x93NUMPY\x01\x01" + b"\0" * 20):
        path.write_bytes(content)
        with pytest.raises(ValueError):
            forebay.numpy.load(path, session)
    np.save(tmp := path.with_suffix(".npy"), np.arange(100_000))
    tmp.write_bytes(tmp.read_bytes()[:-1])
    with pytest.raises(ValueError, match="1 bytes before"):
        forebay.numpy.load(tmp, session)
    np.save(tmp, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="objects"):
        forebay.numpy.load(tmp, session)
    with pytest.raises(ValueError, match="objects"):
        forebay.numpy.save(tmp, np.array([{}], dtype=object), session)
    with pytest.raises(ValueError, match="objects"):
        forebay.numpy.memmap(tmp, object, session=session)
    np.savez(path.with_suffix(".npz"), np.arange(3))
    with pytest.raises(ValueError, match="npz"):
        forebay.numpy.load(path.with_suffix(".npz"), session)
    np.save(tmp, np.zeros(1, [(f"field {number}", "u1") for number in range(1000)]))
    with pytest.raises(ValueError, match="max_header_size"):
        forebay.numpy.load(tmp, session)


def written(text, version=1):
    head = text.encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(head).to_bytes(2 if version == 1 else 4, "little") + head


HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -2), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % (1 << 62),
    "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 4), }" % (1 << 64),
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0, %d, %d), }" % (1 << 64, 1 << 64),
    "{'descr': '<f4', 'fortran_order': False, 'shape': %r, }" % ((1,) * 100,),
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1.5,), }",
    "{'descr': '<f4', 'fortran_order': 1, 'shape': (1,), }",
    "{'descr': 'no kind', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<f4', 'fortran_order': False}",
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,), }",
    "{'descr': [('a', '<f4'), ('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
    "__import__('os').abort()",
    "(" * 5000,
    "-" * 5000 + "1",
    "[" * 150 + "]" * 150,
    "'''",
    "",
]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_that_lie_are_refused(session, path, version):
    for text in HEADERS:
        path.write_bytes(written(text, version) + bytes(64))
        with pytest.raises(ValueError):
            forebay.numpy.load(path, session)
    # Longer than the file.
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + b"\xff" * (2 if version == 1 else 4) + b"{'descr'")
    with pytest.raises(ValueError):
        forebay.numpy.load(path, session, max_header_size=1 << 40)


def agree(path, session, ours, theirs):
    """What we load of a damaged file, and whether: as numpy, or refused."""
    try:
        loaded = ours(path, session)
    except ValueError:
        return 0
    wanted = theirs(path)
    assert loaded.tobytes() == wanted.tobytes() and loaded.shape == wanted.shape, (path.read_bytes()[:200], loaded, wanted)
    return 1


@pytest.mark.filterwarnings("ignore")
def test_damaged_arrays_are_numpys_or_refused(session, path):
    draw = random.Random(5)
    np.save(head := io.BytesIO(), np.arange(12, dtype="<i4").reshape(3, 4))
    whole, loaded = head.getvalue(), 0
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 1, 1, 2, 5])):
            damaged[draw.randrange(80)] = draw.choice(b"0123456789<>|=()'i4fUV,- \n\x00\xff" + bytes([draw.randrange(256)]))
        path.write_bytes(damaged[: draw.choice([len(whole)] * 8 + [draw.randrange(len(whole))])])
        loaded += agree(path, session, forebay.numpy.load, np.load)
    assert 0 < loaded < 500


def test_memmap(session, path):
    content = np.arange(300_000, dtype="<i4")
    path.write_bytes(b"12345678" + content.tobytes())
    whole = forebay.numpy.memmap(path, "<i4", "r", 8, session=session)
    same(whole, np.memmap(path, "<i4", "r", 8))
    assert not whole.flags.writeable and session.stats()["viewed_bytes"] >= content.nbytes
    for shape, order in ((1000, "C"), ((300, 1000), "F"), ([2, 3, 5], "C"), ((300, 1000), "C")):
        theirs = np.memmap(path, "<i4", "r", 8, tuple(shape) if isinstance(shape, list) else shape, order)
        same(forebay.numpy.memmap(path, "<i4", "r", 8, shape, order, session), theirs)
    changed = forebay.numpy.memmap(path, "<i4", "c", 8, session=session)
    changed[:] = 0
    assert (whole == content).all() and path.read_bytes()[8:] == content.tobytes()
    with session.open(path, "r+b") as file:
        file.write_at(b"\xff" * 100, 8)
        assert (whole == content).all()
        assert forebay.numpy.memmap(file, "<i4", "r", 8, 1)[0] == -1
    assert len(forebay.numpy.memmap(path, offset=path.stat().st_size, session=session)) == 0
    for wrong in (
        {"mode": "r+"},
        {"mode": "w+"},
        {"offset": -1},
        {"dtype": "<i8", "offset": 1},
        {"shape": (-1,)},
        {"shape": 1 << 40},
        {"dtype": "V0"},
        {"order": "Q"},
    ):
        with pytest.raises(ValueError):
            forebay.numpy.memmap(path, **{"session": session, **wrong})


TENSORS = {
    "weights": np.arange(150_000, dtype="f4").reshape(250, 600),
    "half": np.ones(7, "f2"),
    "flag": np.array([True, False]),
    "scalar": np.array(3, "i8"),
    "none": np.zeros((0, 5), "u1"),
    "имя": np.asfortranarray(np.arange(6, dtype=">u2").reshape(2, 3)),
    **{kind: np.arange(-3, 4).astype(kind) for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f8")},
}
KEPT = {name: np.ascontiguousarray(tensor.astype(tensor.dtype.newbyteorder("<"))).reshape(tensor.shape) for name, tensor in TENSORS.items()}


def test_tensors_go_through_both(session, path):
    theirs = pytest.importorskip("safetensors.numpy")
    forebay.safetensors.save_file(TENSORS, path, {"format": "np"}, session)
    theirs.save_file(KEPT, other := path.with_name("by-theirs"), {"format": "np"})
    assert path.read_bytes() == other.read_bytes()
    for copy in (False, True):
        for loaded in (forebay.safetensors.load_file(path, session, copy=copy), theirs.load_file(path)):
            assert loaded.keys() == TENSORS.keys()
            for name, tensor in KEPT.items():
                same(loaded[name], tensor)
        assert forebay.safetensors.load_file(path, session, copy=copy)["weights"].flags.writeable == copy
    writable = forebay.safetensors.load_file(path, session, writable=True)
    for tensor in writable.values():
        assert tensor.flags.writeable
        tensor.fill(1)
    assert path.read_bytes() == other.read_bytes()
    for name, tensor in forebay.safetensors.load_file(path, session).items():
        same(tensor, KEPT[name])
    path.write_bytes((2).to_bytes(8, "little") + b"{}")
    assert forebay.safetensors.load_file(path, session) == {}
    forebay.safetensors.save_file({}, path, session=session)
    assert path.read_bytes() == (8).to_bytes(8, "little") + b"{}      "


@pytest.mark.parametrize(
    "names, metadata, error",
    [
        (["__metadata__"], None, ValueError),
        ([1], None, TypeError),
        (["a"], {"a": 1}, TypeError),
        (["a"], {"a": None}, TypeError),
        (["a"], {1: "a"}, TypeError),
        (["a"], {"a": "x" * 100_000_000}, ValueError),
    ],
    ids=["metadata's name", "number for a name", "number", "nothing", "number for a key", "long header"],
)
def test_what_the_format_does_not_have_is_not_written(session, path, names, metadata, error):
    path.write_bytes(b"what was there")
    with pytest.raises(error):
        forebay.safetensors.save_file({name: np.zeros(3) for name in names}, path, metadata, session)
    assert path.read_bytes() == b"what was there"


def test_masks_are_not_dropped(session, path, tmp_path):
    """Neither format has masks. numpy refuses it for its own files."""
    for mask in ([False, True, False], False):
        masked = np.ma.masked_array([1.0, 2.0, 3.0], mask)
        with pytest.raises(ValueError, match="masks"):
            forebay.numpy.save(tmp_path / "masked.npy", masked, session)
        with pytest.raises(ValueError, match="masks"):
            forebay.safetensors.save_file({"masked": masked}, path, session=session)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("sides", [[(1 << 62) - 1] * 300_000, [1] * 65, [0] * 65], ids=["a long product", "ones", "zeros"])
def test_a_shape_of_too_many_sides_is_refused_at_once(session, path, sides):
    header = json.dumps({"tensor": {"dtype": "U8", "shape": sides, "data_offsets": [0, int(0 not in sides)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(int(0 not in sides)))
    begun = time.process_time()
    with pytest.raises(ValueError, match="64 are the most"):
        forebay.safetensors.load_file(path, session)
    assert time.process_time() - begun < 5


def test_a_shape_that_wants_more_than_there_is_is_refused(session, path):
    sides = [(1 << 62) - 1] * 64
    header = json.dumps({"tensor": {"dtype": "U8", "shape": sides, "data_offsets": [0, 1]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(1))
    with pytest.raises(ValueError, match="has 1 bytes, which its shape does not make"):
        forebay.safetensors.load_file(path, session)


def test_tensors_lie_over_one_view(session, path):
    forebay.safetensors.save_file({**TENSORS, "complex": np.ones(5, "c8")}, path, session=session)
    loaded = forebay.safetensors.load_file(path, session)
    assert (loaded.pop("complex") == 1).all()
    weights, count = loaded["weights"], session.stats()["viewed_bytes"]
    assert count >= weights.nbytes and weights.base is not None
    del loaded
    forebay.safetensors.save_file({"other": np.zeros(1 << 20, "u1")}, path, session=session)
    gc.collect()
    assert session.stats()["viewed_bytes"] == count
    same(weights, KEPT["weights"])
    del weights
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0


def safetensors_file(header, data=b""):
    return len(header).to_bytes(8, "little") + header + data


def test_what_lies_unaligned_is_right(session, path):
    data = np.arange(200_000, dtype="<f4")
    header = b'{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"F32","shape":[200000],"data_offsets":[1,800001]}}'
    path.write_bytes(safetensors_file(header, b"!" + data.tobytes()))
    for copy in (False, True):
        loaded = forebay.safetensors.load_file(path, session, copy=copy)
        assert loaded["a"].flags.aligned and loaded["a"].flags.writeable == copy and loaded["b"][0] == ord("!")
        same(loaded["a"], data)


def test_kinds_that_numpy_does_not_have(session, path, monkeypatch):
    header = b'{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F8_E4M3","shape":[1,1],"data_offsets":[4,5]}}'
    path.write_bytes(safetensors_file(header, b"\x80?\x00@8"))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    loaded = forebay.safetensors.load_file(path, session)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in loaded.items()} == {"a": ("V2", (2,)), "b": ("V1", (1, 1))}
    assert loaded["a"].tobytes() == b"\x80?\x00@" and loaded["b"].tobytes() == b"8"
    with pytest.raises(TypeError):
        loaded["a"] + 1
    for wrong in (loaded["a"], np.array(["text"]), np.ones(1, "c16"), np.array([{}], dtype=object)):
        with pytest.raises(ValueError, match="which the format does not have"):
            forebay.safetensors.save_file({"a": wrong}, path, session=session)
    monkeypatch.undo()
    ml_dtypes = pytest.importorskip("ml_dtypes")
    loaded = forebay.safetensors.load_file(path, session)
    assert loaded["a"].dtype == ml_dtypes.bfloat16 and loaded["a"].astype("f4").tolist() == [1, 2]
    assert loaded["b"].dtype == ml_dtypes.float8_e4m3fn and loaded["b"].astype("f4").tolist() == [[1]]
    forebay.safetensors.save_file(loaded, other := path.with_name("again"), session=session)
    assert other.read_bytes()[-5:] == path.read_bytes()[-5:]


def test_tensors_of_torch(session, path):
    torch = pytest.importorskip("torch")
    kinds = ["bool", "uint8", "int8", "int16", "float16", "bfloat16", "int32", "float32", "int64", "float64"]
    tensors = {kind: (torch.arange(100_003) % 3).to(getattr(torch, kind)).reshape(-1, 1) for kind in kinds}
    tensors["none"], tensors["scalar"] = torch.empty((0, 3)), torch.tensor(2.5, dtype=torch.bfloat16)
    tensors["turned"] = torch.arange(6).reshape(2, 3).t()
    forebay.safetensors.save_file(tensors, path, session=session)
    loaded = forebay.safetensors.load_file(path, session, framework="torch")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor)
    # All of them over one view, and writing reaches no file, and no other tensor.
    held, before = session.stats()["viewed_bytes"], path.read_bytes()
    assert held >= loaded["float64"].numel() * 8
    loaded["float32"].fill_(9)
    assert torch.equal(loaded["float64"], tensors["float64"]) and path.read_bytes() == before
    again = forebay.safetensors.load_file(path, session, framework="torch")
    assert torch.equal(again["float32"], tensors["float32"]) and session.stats()["viewed_bytes"] == held
    del again
    kept = loaded["float32"][5:]
    del loaded
    gc.collect()
    assert session.stats()["viewed_bytes"] == held and (kept == 9).all()
    del kept
    gc.collect()
    assert session.stats()["viewed_bytes"] == 0
    copied = forebay.safetensors.load_file(path, session, framework="torch", copy=True)
    assert torch.equal(copied["int64"], tensors["int64"]) and session.stats()["viewed_bytes"] == 0
    theirs = pytest.importorskip("safetensors.torch")
    for name, tensor in theirs.load_file(path).items():
        assert tensor.dtype == tensors[name].dtype and torch.equal(tensor, tensors[name])
    with pytest.raises(ValueError, match="framework"):
        forebay.safetensors.load_file(path, session, framework="jax")


def test_what_holds_no_tensors_is_refused(session, path):
    entry = b'"dtype":"F32","shape":[1],"data_offsets":[0,4]'
    file = safetensors_file
    for content in (
        b"",
        b"\xff" * 16,
        (1 << 40).to_bytes(8, "little") + b"{}",
        file(b"{no json"),
        file(b"\xff{}"),
        file(b"[]"),
        file(b"[" * 100_000),
        file(b"9" * 100_000),
        file(b'{"a":1}'),
        file(b'{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}', b"x"),
        file(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', b"xxxx"),
        file(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[4,0]}}', b"xxxx"),
        file(b'{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}', b"xxxx"),
        file(b'{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}', b"xxxx"),
        file(b'{"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}}', b"xxxx"),
        file(b'{"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}}', b"xxxx"),
        file(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}', b"xxxx"),
        file(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}', b"xxxx"),
        file(b'{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}}', b"xxxx"),
        file(b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,4]}}' % b",".join([b"1"] * 200), b"xxxx"),
        file(b'{"a":{%s}}' % entry, b"xxx"),
        file(b'{"a":{%s}}' % entry, b"xxxxx"),
        file(b'{"a":{%s},"b":{%s}}' % (entry, entry), b"xxxx"),
        file(b'{"a":{%s},"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}}' % entry, b"xxxxxx"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=str(path)):
            forebay.safetensors.load_file(path, session)
