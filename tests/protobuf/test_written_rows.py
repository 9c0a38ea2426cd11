"""Rows and columns to Examples by the compiled core: protobuf, with messages of a pool of its own, writes
the same bytes.

Covers protobuf/example.
"""

import io
import itertools
import random
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_examples import Example

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    ShardedTFRecordWriter,
    TFRecordWriter,
    VarLenFeature,
    encode_example,
    read_records,
)
from torch_tfrecord.native import optional_module
from torch_tfrecord.protobuf import RowEncoder

KINDS = {"bytes_list": bytes, "float_list": float, "int64_list": int}
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, 127, 128, 2**14, 2**32])
SINGLES = st.floats(width=32) | st.integers(0, 2**32 - 1).map(
    lambda bits: struct.unpack("f", struct.pack("I", bits))[0]
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
KEYS = st.text(st.characters(codec="utf-8"), max_size=6)


def oracle(lists):
    """The Example of lists by name: kind, values."""
    message = Example()
    message.features.SetInParent()
    for key, (kind, values) in lists.items():
        target = getattr(message.features.feature[key], kind)
        target.SetInParent()
        if kind == "float_list":  # bit for bit
            data = np.asarray(values, "<f4").tobytes()
            wire = io.BytesIO()
            wire.write(b"\n")
            size = len(data)
            while size > 127:
                wire.write(bytes([size & 127 | 128]))
                size >>= 7
            wire.write(bytes([size]) + data)
            target.MergeFromString(wire.getvalue())
        else:
            target.value.extend(values)
    return message.SerializeToString(deterministic=True)


def utf8(values):
    return [value.encode() if isinstance(value, str) else value for value in values]


@st.composite
def values_of(draw):
    """A value as people write it, and its list."""
    kind = draw(st.sampled_from([*KINDS]))
    if kind == "bytes_list":
        values = draw(st.lists(TEXTS | st.binary(max_size=200), min_size=1, max_size=5))
        return draw(st.sampled_from([values, values[0]])), kind
    if kind == "int64_list":
        values = draw(st.lists(INTEGERS, min_size=1, max_size=40))
        forms = [values, values[0], np.array(values), torch.tensor(values), np.int64(values[0])]
        forms += [
            np.zeros(0, np.int32),
            np.array(values, np.int64).reshape(1, -1),
            [True, False],
            True,
        ]
        return draw(st.sampled_from(forms)), kind
    values = draw(st.lists(SINGLES, min_size=1, max_size=40))
    single = np.array(values, np.float32)
    forms = [values, values[0], single, torch.from_numpy(single), single.astype(np.float64)]
    return draw(st.sampled_from([*forms, np.zeros(0, np.float32), single[::-1]])), kind


def list_of(value, kind):
    if kind == "bytes_list":
        return kind, utf8(value if isinstance(value, list) else [value])
    return kind, np.asarray(value).astype(np.float32 if kind == "float_list" else np.int64).ravel()


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, values_of(), max_size=12), st.randoms(use_true_random=False))
def test_rows_are_those_of_protobuf(values, order):
    row = {key: value for key, (value, _) in values.items()}
    expected = oracle({key: list_of(*each) for key, each in values.items()})
    assert encode_example(row) == expected
    encoder = RowEncoder()
    assert [encoder.encode(row, number) for number in range(3)] == [expected] * 3
    names = [*row]
    order.shuffle(names)
    assert encoder.encode({name: row[name] for name in names}, 4) == expected


@pytest.mark.daily
def test_many_random_rows():
    """10^5, of the shapes that people write."""
    random.seed(0)
    rng = np.random.default_rng(0)
    names = [f"c{number}" for number in range(13)] + ["c", "ü", "c1x"]
    encoder = RowEncoder()
    for number in range(100_000):
        row, lists = {}, {}
        for key in random.sample(names, random.randrange(len(names))):
            kind = [*KINDS][names.index(key) % 3]
            count = random.choice([1, 1, 1, 0, 2, 130])
            if kind == "bytes_list":
                found = [rng.bytes(random.randrange(300)) for _ in range(max(count % 9, 1))]
            elif kind == "int64_list":
                found = rng.integers(-(2**62), 2**62, count) >> random.randrange(63)
            else:
                found = rng.normal(size=count).astype(np.float32)
            lists[key] = kind, found
            is_single = len(found) == 1 and random.random() < 0.8
            row[key] = (
                found if not is_single else found[0] if kind == "bytes_list" else found[0].item()
            )
        assert encoder.encode(row, number) == oracle(lists)


SPECS = {
    "int": FixedLenFeature((), torch.int64),
    "many": FixedLenFeature((2,), torch.int64),
    "small": FixedLenFeature((), torch.uint8, default_value=0),
    "float": FixedLenFeature((), torch.float32),
    "any": VarLenFeature(torch.int64),
    "rows": FixedLenSequenceFeature((2,), torch.float32, allow_missing=True),
    "bytes": FixedLenFeature((), bytes, key="stored"),
    "text": FixedLenFeature((), str, default_value=""),
}
GOOD = {"int": 1, "many": [2, 3], "float": 0.5, "bytes": b"x"}


def test_rows_by_specs():
    writes = RowEncoder(SPECS)
    expected = {
        "int": ("int64_list", [1]),
        "many": ("int64_list", [2, 3]),
        "float": ("float_list", [0.5]),
        "stored": ("bytes_list", [b"x"]),
    }
    more = {
        "small": ("int64_list", [7]),
        "any": ("int64_list", [9]),
        "text": ("bytes_list", [b"t"]),
    }
    assert writes.encode(GOOD) == oracle(expected)
    assert writes.encode(GOOD | {"small": 7, "any": 9, "text": "t"}) == oracle(expected | more)
    # widened by the specs, and left out
    row = GOOD | {"int": 1.0, "float": 2, "any": None, "rows": np.zeros((0, 2))}
    assert writes.encode(row) == oracle(expected | {"float": ("float_list", [2.0])})
    assert writes.encode(GOOD | {"rows": [[1.0, 2.0]]}) == oracle(
        expected | {"rows": ("float_list", [1.0, 2.0])}
    )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"int": 2**63}, "integer outside int64"),
        ({"int": "x"}, "expected integers, got bytes or str"),
        ({"int": [1, 2]}, "Number of int64 values"),
        ({"many": 1}, "Number of int64 values"),
        ({"small": 256}, "range of uint8"),
        ({"float": 1e39}, "outside float32"),
        ({"float": None}, "expected a value, got None"),
        ({"rows": 1.0}, "rows"),
        ({"text": "\ud800"}, "not valid Unicode"),
        ({"text": b"\xff"}, "UTF-8"),
        ({"more": 1}, "'more': expected one of"),
    ],
)
def test_what_is_refused_after_a_good_row(tmp_path, change, error):
    path = str(tmp_path / "rows")
    with TFRecordWriter(path, features=SPECS) as writer:
        writer.write(GOOD)
        with pytest.raises((TypeError, ValueError), match=error) as caught:
            writer.write(GOOD | change)
        assert f"{path}: row 1" in str(caught.value)
        writer.write(GOOD)
    assert len([*read_records(path)]) == 2


def test_a_key_that_changes_its_kind_is_refused(tmp_path):
    with TFRecordWriter(str(tmp_path / "rows")) as writer:
        writer.write({"a": 1, "b": 2.0})
        writer.write({"b": 2.0, "a": 1})
        for wrong in ({"a": 1.0, "b": 2.0}, {"a": 1, "b": 2}, {"a": "x", "b": 1.0}):
            with pytest.raises(ValueError, match="as in row 0"):
                writer.write(wrong)
        writer.write({"a": np.arange(3), "b": np.zeros(2, np.float32)})


def columns():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 4, 100)
    splits = np.insert(np.cumsum(lengths), 0, 0)
    texts = [bytes(rng.bytes(size)) for size in rng.integers(0, 200, splits[-1])]
    offsets = np.insert(np.cumsum([*map(len, texts)]), 0, 0)
    none = np.zeros(100, bool)
    data = memoryview(b"".join(texts))
    numbers, floats = rng.integers(-9, 2**40, 100), rng.normal(size=splits[-1]).astype("f4")
    return {
        "b": ("bytes_list", data, offsets, splits, rng.random(100) < 0.3),
        "ab": ("int64_list", numbers, None, np.arange(101), none),
        "a": ("float_list", floats, None, splits, none),
    }


def rows_of(lists):
    for row in range(100):
        found = {}
        for key, (kind, values, offsets, splits, is_missing) in lists.items():
            begin, end = splits[row], splits[row + 1]
            if offsets is not None:
                places = range(begin, end)
                here = [bytes(values[offsets[place] : offsets[place + 1]]) for place in places]
            else:
                here = values[begin:end]
            if not is_missing[row]:
                found[key] = kind, here
        yield oracle(found)


@pytest.mark.parametrize("compression_type", [None, "GZIP"])
def test_columns_are_the_rows(tmp_path, compression_type):
    expected = [*rows_of(columns())]
    options = {"compression_type": compression_type, "write_index": True}
    with TFRecordWriter(str(tmp_path / "one"), **options) as writer:
        writer.write_columns(columns(), 100)
        writer.write(b"last")
    with TFRecordWriter(str(tmp_path / "same"), **options) as writer:
        for record in [*expected, b"last"]:
            writer.write(record)
    paths = [tmp_path / "one", tmp_path / "same"]
    paths += [tmp_path / ".torch_index" / f"{path.name}.safetensors" for path in paths]
    assert [*read_records(str(paths[0]), compression_type=compression_type)] == [*expected, b"last"]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with ShardedTFRecordWriter(str(tmp_path / "two"), num_shards=2, **options) as writer:
        writer.write_columns(columns(), 100)
    found = [[*read_records(path, compression_type=compression_type)] for path in writer.paths]
    assert found == [expected[::2], expected[1::2]]
    with ShardedTFRecordWriter(str(tmp_path / "some"), max_shard_bytes=5000, **options) as writer:
        writer.write_columns(columns(), 100)
    found = [[*read_records(path, compression_type=compression_type)] for path in writer.paths]
    assert [*itertools.chain(*found)] == expected
    assert len(found) > 2


@pytest.mark.skipif(optional_module("examples") is None, reason="the core alone checks them")
@pytest.mark.parametrize(
    "change",
    [
        {"splits": np.arange(100)},
        {"splits": np.arange(102)},
        {"splits": np.arange(1, 102)},
        {"splits": np.arange(101)[::-1].copy()},
        {"is_missing": np.zeros(99, bool)},
        {"values": np.zeros(99, np.int64)},
        {"values": np.zeros(100)},
        {"kind": "float_list", "values": np.zeros(100)},
        {"kind": "bytes_list", "offsets": np.arange(0, 9 * 101, 9)},
        {"kind": "bytes_list", "offsets": np.array([-1, *range(100)])},
    ],
)
def test_columns_that_do_not_fit(tmp_path, change):
    good = {
        "kind": "int64_list",
        "values": np.arange(100),
        "offsets": None,
        "splits": np.arange(101),
        "is_missing": np.zeros(100, bool),
    }
    with TFRecordWriter(str(tmp_path / "rows")) as writer:
        with pytest.raises(ValueError, match="expected"):
            writer.write_columns({"x": (*(good | change).values(),)}, 100)
        writer.write_columns({"x": (*good.values(),)}, 100)
    assert len([*read_records(str(tmp_path / "rows"))]) == 100
