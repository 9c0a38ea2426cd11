"""Writing by a spec: what a writer accepts the spec reads back equal; all else is an error that
names row and key.
"""
# ruff: noqa: E501 - tables of whole texts read better in one line each.

import math

import numpy as np
import pytest
import torch
from helpers import for_each
from hypothesis import given
from hypothesis import strategies as st
from wire_examples import Example

from torch_tfrecord import (
    Audio,
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    Json,
    NestedExample,
    Proto,
    RaggedFeature,
    RawTensor,
    SerializedTensor,
    ShardedTFRecordWriter,
    SparseFeature,
    Text,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    decode_example,
    encode_example,
    encode_image,
    parse_single_example,
    read_records,
)

PNG = encode_image(torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4), "png")
INT, FLOAT, NAN = FixedLenFeature((), torch.int64), FixedLenFeature((), torch.float32), float("nan")


class NAType:
    """As pandas.NA, which has no truth value."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = None


def read_back(value, spec):
    return parse_single_example(encode_example({"x": value}, {"x": spec}), {"x": spec})["x"]


def written(path, rows, **options):
    with TFRecordWriter(path, **options) as writer:
        for row in rows:
            writer.write(row)
    return [decode_example(record) for record in read_records(path)]


def test_rows_of_a_frame_with_missing_values_are_read_back(tmp_path):
    """`frame.to_dict("records")`: pandas makes floats of integers and writes NaN, None, NA for what
    is missing.
    """
    features = {
        "label": FixedLenFeature((), torch.int64, -1),
        "score": FixedLenFeature((), torch.float32, 0.0),
        "name": VarLenFeature(str),
        "city": FixedLenFeature((), str, "nowhere"),
        "count": FixedLenFeature((), torch.int32, 0),
    }
    rows = [
        {"label": 3.0, "score": 0.5, "name": "a", "city": "Ulm", "count": 7},
        {"label": NAN, "score": None, "name": NAN, "city": None, "count": NAType()},
        {"label": 20240101.0, "score": 1, "name": "ö", "city": "Rom", "count": np.int64(9)},
    ]
    with TFRecordWriter(tmp_path / "rows", features=features) as writer:
        for row in rows:
            writer.write(row)
    assert [decode_example(record) for record in read_records(tmp_path / "rows")][1] == {}
    found = [{**sample} for sample in TFRecordDataset(tmp_path / "rows", features)]
    assert [[sample[name] for sample in found] for name in features] == [
        [3, -1, 20240101],
        [0.5, 0.0, 1.0],
        [["a"], [], ["ö"]],
        ["Ulm", "nowhere", "Rom"],
        [7, 0, 9],
    ]


@for_each(
    ("value", "spec", "expected"),
    [
        (1, FLOAT, 1.0),
        ([0, 1], FixedLenFeature((2,), torch.float32), torch.tensor([0.0, 1.0])),
        (np.arange(3), VarLenFeature(torch.float64), torch.arange(3, dtype=torch.float64)),
        (np.float32(4), INT, 4),
        ([], VarLenFeature(torch.int64), torch.zeros(0, dtype=torch.int64)),
        ([], VarLenFeature(str), []),
        ([], FixedLenFeature((0,), torch.float32), torch.zeros(0)),
        (
            [],
            FixedLenSequenceFeature((2,), torch.int64, allow_missing=True),
            torch.zeros(0, 2, dtype=torch.int64),
        ),
        (
            [[1, 2], [3, 4]],
            FixedLenSequenceFeature((2,), torch.int64, allow_missing=True),
            torch.tensor([[1, 2], [3, 4]]),
        ),
        (
            [[1, 2], [3, 4]],
            FixedLenFeature((2, 2), torch.uint8),
            torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8),
        ),
        ([3, 4], RaggedFeature(torch.int64), torch.tensor([3, 4])),
        ("ä", Text(), "ä"),
        ("ä", FixedLenFeature((), bytes), "ä".encode()),
        (
            torch.arange(6, dtype=torch.int16).reshape(2, 3),
            RawTensor((2, -1), torch.int16),
            torch.arange(6, dtype=torch.int16).reshape(2, 3),
        ),
        (
            np.arange(3),
            RawTensor((3,), torch.int64, little_endian=False, compression="gzip"),
            torch.arange(3),
        ),
        (
            torch.ones(2, dtype=torch.complex64),
            RawTensor((2,), torch.complex64, compression="zlib"),
            torch.ones(2, dtype=torch.complex64),
        ),
        (
            [b"ab", b"cd"],
            RawTensor((2, 2), torch.uint8),
            torch.tensor([[97, 98], [99, 100]], dtype=torch.uint8),
        ),
        (np.arange(3.0), SerializedTensor(), torch.arange(3, dtype=torch.float64)),
        ({"a": [1, None, "é"]}, Json(), {"a": [1, None, "é"]}),
        (b"[1]", Json(), [1]),
        (Example(), Proto(Example), Example()),
    ],
)
def test_values_are_read_back(value, spec, expected):
    found = read_back(value, spec)
    assert torch.equal(found, expected) if isinstance(expected, torch.Tensor) else found == expected
    if isinstance(found, torch.Tensor):
        assert found.dtype == (expected.dtype if isinstance(expected, torch.Tensor) else spec.dtype)
    again = read_back(found, spec)  # a sample is a row that can be written
    assert torch.equal(again, found) if isinstance(found, torch.Tensor) else again == found


def test_pictures_and_rows_inside_rows():
    features = {
        "i": Image(key="image/encoded"),
        "inner": NestedExample({"age": FLOAT}),
        "many": Image(several="list"),
    }
    record = encode_example({"i": PNG, "inner": {"age": 3}, "many": [PNG, PNG]}, features)
    assert decode_example(record)["image/encoded"] == [PNG]
    found = parse_single_example(record, features)
    assert found["i"].shape == (3, 4, 4)
    assert found["inner"] == {"age": 3.0}
    assert len(found["many"]) == 2


@for_each(
    ("value", "spec", "kind", "text"),
    [
        ("a", FLOAT, TypeError, "feature 'x' (float32): expected floats, got bytes or str (str)"),
        (0.5, INT, TypeError, "feature 'x' (int64): expected integers, got floats (float)"),
        ([1.0], INT, TypeError, "feature 'x' (int64): expected integers, got floats (list)"),
        (3, Text(), TypeError, "feature 'x' (Text): expected bytes or str, got integers (int)"),
        (None, INT, ValueError, "feature 'x' (int64): expected a value, got None, and the spec has no default_value"),
        (NAN, INT, ValueError, "feature 'x' (int64): expected a value, got nan, and the spec has no default_value"),
        (NAN, Text(), ValueError, "feature 'x' (Text): expected a value, got nan, and the spec has no default_value"),
        (2**24 + 1, FLOAT, ValueError, "expected integers that float32 holds, got one beyond 2**24 that it would round"),
        (300, FixedLenFeature((), torch.uint8), ValueError, "outside the range of uint8, 0 to 255"),
        (2**63, INT, ValueError, "integer outside int64: an int64_list holds -2**63 to 2**63 - 1, got 9223372036854775808"),
        ([1, 2], INT, ValueError, "Number of int64 values != expected: got 2, expected 1 for shape []"),
        ([], INT, ValueError, "Number of int64 values != expected: got 0, expected 1 for shape []"),
        ([[1, 2, 3], [4, 5, 6]], FixedLenFeature((3, 2), torch.int64), ValueError, "expected shape [3, 2], or a flat list, got [2, 3]"),
        ([[1, 2]], VarLenFeature(torch.int64), ValueError, "expected any number of rows of shape [], or a flat list, got [1, 2]"),
        ([[1, 2, 3]] * 2, FixedLenSequenceFeature((2,), torch.int64, True), ValueError, "of shape [2], or a flat list, got [2, 3]"),
        ([1, 2, 3], FixedLenSequenceFeature((2,), torch.int64, True), ValueError, "not a multiple of stride length: got 3"),
        (b"\xff", Text(), ValueError, "feature 'x' (Text): expected UTF-8 text, got an invalid byte at 0 of 1"),
        (torch.zeros(2, 3), RawTensor((3, 2), torch.float32), ValueError, "expected [3, 2] of float32, got [2, 3] of float32"),
        (torch.zeros(2), RawTensor((2,), torch.int16), ValueError, "expected [2] of int16, got [2] of float32"),
        ([None, 1], RawTensor((2,), torch.int16), TypeError, "lists of numbers, or bytes, got list: Could not infer dtype"),
        (object(), RawTensor((2,), torch.int16), TypeError, "feature 'x' (RawTensor): expected a tensor, an array, nest"),
        ({"a": 1}, RawTensor((2,), torch.int16), TypeError, "lists of numbers, or bytes, got dict"),
        (np.array([1, None], object), RawTensor((2,), torch.int16), TypeError, "feature 'x' (RawTensor): "),
        ([2**24 + 1, 0.5], VarLenFeature(torch.float32), ValueError, "got 16777217, which it would round"),
        (b"abc", RawTensor((2,), torch.int16), ValueError, "expected 4 bytes for shape [2] of int16, got 3"),
        (b"abc", Image(), ValueError, "feature 'x' (Image): expected a JPEG, PNG, GIF, BMP or WebP image, got 3 bytes"),
        (PNG[:-4], Image(), ValueError, "feature 'x' (Image): expected"),
        (torch.zeros(3, 4, 4), Image(), TypeError, "expected an encoded picture, as from encode_image, got Tensor"),
        (b"{", Json(), ValueError, "expected JSON"),
        ({"a": NAN}, Json(), ValueError, "expected JSON, got NaN"),
        (b"abc", SerializedTensor(), ValueError, "feature 'x' (SerializedTensor): "),
        (1, Audio(), TypeError, "feature 'x' (Audio): expected bytes or str, got integers (int)"),
    ],
)  # fmt: skip
def test_what_the_spec_would_not_read_back_is_refused(value, spec, kind, text):
    with pytest.raises(kind) as caught:
        encode_example({"x": value}, {"x": spec})
    assert text in str(caught.value)
    assert "'x'" in str(caught.value)


@for_each(
    ("features", "kind", "text"),
    [
        ({"x": SparseFeature("i", "v", torch.int64, 4)}, TypeError, "cannot be written by, since it puts a value together"),
        ({"x": RaggedFeature(torch.int64, "v", [RaggedFeature.UniformRowLength(2)])}, TypeError, "cannot be written by"),
        ({"x": RawTensor(("h", 3), torch.uint8)}, TypeError, "give each key that it reads a spec of its own"),
        ({"x": torch.int64}, TypeError, "feature 'x': expected a spec, such as VarLenFeature(bytes), got torch.int64"),
        ({"a": Text(key="x"), "b": Text(key="x")}, ValueError, "expected one name for each key to write, got ['x', 'x']"),
        (Text(), TypeError, "features must be a mapping of keys to values, got Text"),
    ],
)  # fmt: skip
def test_features_that_cannot_be_written_by(tmp_path, features, kind, text):
    with pytest.raises(kind) as caught:
        TFRecordWriter(tmp_path / "x", features=features)
    assert text in str(caught.value)
    assert not [*tmp_path.iterdir()]


def test_a_name_that_is_not_in_features(tmp_path):
    with TFRecordWriter(tmp_path / "rows", features={"x": INT}) as writer:
        writer.write({"x": 1})
        with pytest.raises(
            ValueError,
            match=r"rows: row 1: feature 'y': expected one of \['x'\], the names in features",
        ):
            writer.write({"x": 1, "y": 2})
        with pytest.raises(
            TypeError,
            match=r"rows: row 1: feature 'x' \(int64\): expected integers, got bytes or str",
        ):
            writer.write({"x": "1"})
        writer.write({"x": 2})  # a refused row leaves the writer as it was
    assert [int(sample["x"]) for sample in TFRecordDataset(tmp_path / "rows", {"x": INT})] == [1, 2]


@for_each(
    ("first", "second", "text"),
    [
        (
            {"score": 0.5},
            {"score": 1},
            "row 1: feature 'score': expected floats, as in row 0, got integers (int)",
        ),
        (
            {"x": [0.1, 0.2]},
            {"x": [0, 1]},
            "row 1: feature 'x': expected floats, as in row 0, got integers (list)",
        ),
        (
            {"n": 1},
            {"n": 0.5},
            "row 1: feature 'n': expected integers, as in row 0, got floats (float)",
        ),
        (
            {"name": "a"},
            {"name": NAN},
            "NaN is how pandas writes a missing value: leave out the key",
        ),
        (
            {"name": NAN},
            {"name": "a"},
            "row 1: feature 'name': expected floats, as in row 0, got bytes or str (str)",
        ),
    ],
)
@pytest.mark.parametrize("is_set", [False, True])
def test_a_key_keeps_its_kind(tmp_path, is_set, first, second, text):
    open_writer = (lambda: ShardedTFRecordWriter(tmp_path / "set", num_shards=2)) if is_set else (
        lambda: TFRecordWriter(tmp_path / "one")
    )  # fmt: skip
    with open_writer() as writer:
        writer.write(first)
        with pytest.raises(ValueError) as caught:
            writer.write(second)
        assert text in str(caught.value)
        assert str(tmp_path) in str(caught.value)
        writer.write({"other": 1})
        writer.write(first)
    [path, *others] = sorted(tmp_path.glob("set-*")) if is_set else [tmp_path / "one"]
    num_records = sum(len([*read_records(each)]) for each in [path, *others])
    assert num_records == 3


def test_an_empty_list_says_that_features_know_its_type(tmp_path):
    with (
        TFRecordWriter(tmp_path / "a") as writer,
        pytest.raises(ValueError, match="or write by features, whose spec"),
    ):
        writer.write({"x": []})


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.binary(max_size=3),
)
VALUES = st.one_of(
    NUMBERS, st.lists(NUMBERS, max_size=4), st.lists(st.lists(NUMBERS, max_size=2), max_size=3)
)
DTYPES = st.sampled_from(
    [torch.int64, torch.uint8, torch.bool, torch.float32, torch.float16, bytes, str]
)
SPECS = st.one_of(
    st.builds(FixedLenFeature, st.sampled_from([(), (2,), (2, 2), (0,)]), DTYPES),
    st.builds(VarLenFeature, DTYPES),
    st.builds(FixedLenSequenceFeature, st.sampled_from([(), (2,)]), DTYPES, st.just(True)),
    st.sampled_from([Text(), Json(), SerializedTensor(), RawTensor((-1,), torch.uint8)]),
)


def flat(value):
    if isinstance(value, torch.Tensor):
        return flat(value.tolist())
    return (
        [leaf for part in value for leaf in flat(part)]
        if isinstance(value, (list, tuple))
        else [value]
    )


@pytest.mark.slow
@given(VALUES, SPECS)
def test_whatever_is_accepted_is_read_back(value, spec):
    try:
        record = encode_example({"x": value}, {"x": spec})
    except (TypeError, ValueError):
        return
    found = parse_single_example(record, {"x": spec})["x"]
    if isinstance(spec, (SerializedTensor, RawTensor)):
        return  # values are bytes here: the spec has read them, which is all there is to say
    if isinstance(spec, Json):
        assert isinstance(value, bytes) or found == value
        return
    wanted = [] if value is None else flat(value)
    assert len(flat(found)) == len(wanted)
    for one, other in zip(flat(found), wanted, strict=True):
        if isinstance(one, float):
            rounded = float(torch.tensor(float(other), dtype=torch.float32).to(spec.dtype))
            assert one == rounded or (math.isnan(one) and math.isnan(rounded))
        elif isinstance(one, str) and isinstance(other, bytes):
            assert one.encode() == other
        elif isinstance(one, bytes) and isinstance(other, str):
            assert one == other.encode()
        else:
            assert one == other
