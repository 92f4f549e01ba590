"""numpy's and safetensors' formats, compared with what those write and read themselves."""

import pytest

np = pytest.importorskip("numpy")

import forebay.numpy
import forebay.safetensors

ARRAYS = [
    np.arange(100_000, dtype="<f4").reshape(100, 1000),
    np.asfortranarray(np.arange(60, dtype=">i8").reshape(3, 4, 5)),
    np.array(7.5),
    np.zeros((0, 3)),
    np.array([(1, 2.5), (3, 4.5)], dtype=[("number", "i4"), ("value", "f8")]),
    np.array(["a", "text"]),
    np.arange(100)[::3],
]


def same(one, other):
    assert one.dtype == other.dtype and one.shape == other.shape
    assert one.tobytes() == other.tobytes() and one.flags.f_contiguous == other.flags.f_contiguous


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_arrays_are_numpys(session, tmp_path, array):
    np.save(tmp_path / "by-numpy.npy", array)
    forebay.numpy.save(tmp_path / "by-forebay", array, session)
    assert (tmp_path / "by-forebay.npy").read_bytes() == (tmp_path / "by-numpy.npy").read_bytes()
    same(forebay.numpy.load(tmp_path / "by-numpy.npy", session), np.load(tmp_path / "by-numpy.npy"))


def test_what_is_no_array_is_refused(session, path):
    for content in (b"", b"no array", b"\x93NUMPY\x09\x00"):
        path.write_bytes(content)
        with pytest.raises(ValueError):
            forebay.numpy.load(path, session)
    np.save(tmp := path.with_suffix(".npy"), np.arange(1000))
    tmp.write_bytes(tmp.read_bytes()[:-1])
    with pytest.raises(ValueError, match="1 bytes before"):
        forebay.numpy.load(tmp, session)
    np.save(tmp, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="objects"):
        forebay.numpy.load(tmp, session)
    with pytest.raises(ValueError, match="objects"):
        forebay.numpy.save(tmp, np.array([{}], dtype=object), session)


TENSORS = {
    "weights": np.arange(50_000, dtype="f4").reshape(250, 200),
    "half": np.ones(7, "f2"),
    "flag": np.array([True, False]),
    "scalar": np.array(3, "i8"),
    "none": np.zeros((0, 5), "u1"),
}


def test_tensors_go_through_both(session, path):
    forebay.safetensors.save_file(TENSORS, path, {"format": "np"}, session)
    theirs = pytest.importorskip("safetensors.numpy")
    for loaded in (forebay.safetensors.load_file(path, session), theirs.load_file(path)):
        assert loaded.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            same(loaded[name], tensor)
    theirs.save_file(TENSORS, path)
    for name, tensor in forebay.safetensors.load_file(path, session).items():
        same(tensor, TENSORS[name])


def test_what_holds_no_tensors_is_refused(session, path):
    def file(header, data=b""):
        return len(header).to_bytes(8, "little") + header + data

    for content in (
        b"",
        b"\xff" * 16,
        file(b"{no json"),
        file(b"[]"),
        file(b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}', b"xx"),
        file(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', b"xxxx"),
        file(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"xxx"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError):
            forebay.safetensors.load_file(path, session)
