"""Batches and samples by the compiled core are those by protobuf's messages: values, bits, kinds,
errors.

Covers columns/column_plan.
"""

import io

import numpy as np
import pytest
import torch
from helpers import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage
from wire_examples import UNKNOWN, WIRE_EXAMPLE

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    ParseError,
    RaggedFeature,
    RaggedTensor,
    RawTensor,
    SerializedTensor,
    SparseFeature,
    SparseList,
    Text,
    TFRecordError,
    VarLenFeature,
    encode_example,
    serialize_tensor,
)
from torch_tfrecord.columns import Nested, OneValueReader, column_plan, parsers
from torch_tfrecord.columns.containers import wrap_nested
from torch_tfrecord.columns.parsers import ExampleParser
from torch_tfrecord.loading.sample import take_apart
from torch_tfrecord.native import native_module
from torch_tfrecord.protobuf import parse_message
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.samples import is_ragged

I64, F32 = torch.int64, torch.float32

needs_core = pytest.mark.skipif(
    native_module("columns") is None, reason="the compiled core was not built"
)


def twin_of(features, **options):
    """A parser that does not use the compiled core."""
    parser = ExampleParser(features, **options)
    parser._plan.core = None
    return parser


def rows_of_batch(parser, records, keys=None):
    """Each record's part of a batch, as datasets hand it out."""
    return [dict(row) for row in take_apart(parser.batch(records, keys), len(records))]


def packed(records, gap=b"\x00garbage"):
    """PackedRecords in another order than in the buffer, the last ending with it."""
    order = list(reversed(range(len(records))))
    buffer = b"".join(gap + records[place] for place in order)
    starts, at = np.zeros(len(records), np.int64), 0
    for place in order:
        starts[place] = at + len(gap)
        at += len(gap) + len(records[place])
    return PackedRecords(buffer, starts, np.array([len(record) for record in records], np.int64))


def bits(value):
    """A value as something that compares by type, shape, dtype and bits."""
    if isinstance(value, dict):
        return {name: bits(item) for name, item in value.items()}
    if isinstance(value, Nested):
        value = wrap_nested(value)
    if isinstance(value, (list, tuple)):
        return type(value), [bits(item) for item in value]
    if isinstance(value, RaggedTensor):
        return RaggedTensor, bits(value.flat_values), bits(value.row_splits)
    if isinstance(value, SparseList):
        return SparseList, bits(value.indices), value.values, value.shape
    if isinstance(value, torch.Tensor):
        if value.layout == torch.jagged:
            return "jagged", bits(value.values()), bits(value.offsets())
        if value.layout == torch.sparse_coo:
            return (
                "sparse",
                bits(value._indices()),
                bits(value._values()),
                tuple(value.shape),
                value.is_coalesced(),
            )
        plain = value.as_subclass(torch.Tensor).contiguous()
        return (
            type(value),
            value.dtype,
            tuple(value.shape),
            is_ragged(value),
            bytes(plain.flatten().view(torch.uint8).numpy()) if plain.numel() else b"",
        )
    return type(value), value


def outcome(function):
    try:
        return bits(function())
    except TFRecordError as error:
        return type(error), str(error), error.position


def check(features, records):
    native, twin = ExampleParser(features), twin_of(features)
    for rows in (records, packed(records)):
        assert outcome(lambda rows=rows: native.batch(rows)) == outcome(
            lambda rows=rows: twin.batch(rows)
        )
        wanted = outcome(lambda rows=rows: [twin._single_at(*item, 0) for item in enumerate(rows)])
        assert (
            outcome(lambda rows=rows: [native._single_at(*item, 0) for item in enumerate(rows)])
            == wanted
        )
        for parser in (ExampleParser(features, pads=False), twin_of(features, pads=False)):
            assert outcome(lambda rows=rows, parser=parser: rows_of_batch(parser, rows)) == wanted


def picture(height, width):
    file = io.BytesIO()
    pixels = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)
    PillowImage.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


FEATURES = {
    "i": FixedLenFeature((), I64, key="int"),
    "one": FixedLenFeature((1,), I64, key="int"),
    "u64": FixedLenFeature((), torch.uint64, 2**64 - 1, key="int?"),
    "u16": FixedLenFeature((2,), torch.uint16, [7, 8], key="ints?"),
    "bool": FixedLenFeature((), torch.bool, True, key="bool?"),
    "f": FixedLenFeature((), F32, key="float"),
    "f64": FixedLenFeature((2, 2), torch.float64, [0.1, 0.2, 0.3, 0.4], key="floats?"),
    "f8": FixedLenFeature((), torch.float8_e5m2, 1.5, key="float8?"),
    "half": VarLenFeature(torch.float16, key="halves?"),
    "v": VarLenFeature(I64, key="var?"),
    "bytes": FixedLenFeature((), bytes, b"none", key="bytes?"),
    "strs": FixedLenFeature((2, 1), str, ["x", "y"], key="strs?"),
    "varbytes": VarLenFeature(bytes, key="varbytes?"),
    "varstr": VarLenFeature(str, key="varstr?"),
    "text": Text(),
    "image": Image(shape=("height", "width", 3)),
    "raw": RawTensor(("height", "width", -1), torch.uint16),
    "whole": RawTensor((-1,), torch.uint8, key="raw"),
    "tensor": SerializedTensor(),
    "rows": FixedLenSequenceFeature((2,), F32, allow_missing=True, default_value=-1.0, key="rows?"),
    "strrows": FixedLenSequenceFeature((2,), str, allow_missing=True, key="strrows?"),
    "ragged": RaggedFeature(I64, "ragged?"),
    "raggedstr": RaggedFeature(str, "raggedstr?"),
    "parts": RaggedFeature(I64, "var?", [RaggedFeature.UniformRowLength(1)]),
    "sparse": SparseFeature("index?", "sparse?", F32, 100),
    "height": FixedLenFeature((), torch.int32),
}  # fmt: skip


def row(rng, height=2, width=3, leave_out=0.3):
    values = {
        "int": int(rng.integers(-300, 300)),
        "int?": int(rng.integers(0, 1 << 40)),
        "ints?": rng.integers(0, 9, 2),
        "bool?": int(rng.integers(0, 2)),
        "float": np.array([int(rng.integers(0, 1 << 32))], np.uint32).view(np.float32),
        "floats?": rng.normal(size=4),
        "float8?": 2.0,
        "halves?": rng.normal(size=rng.integers(0, 4)).astype(np.float32),
        "var?": rng.integers(-5, 1 << 20, rng.integers(0, 5)),
        "bytes?": rng.bytes(3),
        "strs?": ["é", ""],
        "varbytes?": [rng.bytes(2)] * int(rng.integers(1, 4)),
        "varstr?": ["ab", "c"],
        "text": "täxt" * int(rng.integers(0, 50)),
        "image": picture(height, width),
        "raw": rng.bytes(height * width * 4),
        "height": height,
        "width": width,
        "tensor": serialize_tensor(torch.arange(int(rng.integers(1, 3)))),
        "rows?": rng.normal(size=2 * int(rng.integers(0, 3))).astype(np.float32),
        "strrows?": ["a", "b"] * int(rng.integers(1, 3)),
        "ragged?": rng.integers(0, 9, rng.integers(0, 4)),
        "raggedstr?": ["r"],
        "skipped": rng.integers(0, 1 << 30, 3),
    }
    values = {
        key: value for key, value in values.items() if "?" not in key or rng.random() >= leave_out
    }
    if rng.random() >= leave_out:
        count = int(rng.integers(0, 4))
        values["index?"] = rng.permutation(100)[:count]
        values["sparse?"] = rng.normal(size=count).astype(np.float32)
    order = rng.permutation(list(values)) if rng.random() < 0.3 else list(values)
    return b"".join(encode_example({str(key): values[str(key)]}) for key in order)


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 17])
def test_every_spec_alone_and_together(count):
    rng = np.random.default_rng(count)
    records = [row(rng) for _ in range(count)]
    check(FEATURES, records)
    for name, spec in FEATURES.items():
        check({name: spec}, records)


@needs_core
def test_plain_records_are_read_by_the_core(monkeypatch):
    # Else all of the above would compare the fallback with itself.
    rng = np.random.default_rng(0)
    records = packed([row(rng) for _ in range(5)])
    seen = counted_protobuf(monkeypatch)
    ExampleParser(FEATURES).batch(records)
    features = {name: spec for name, spec in FEATURES.items() if spec.key != "ints?"}
    ExampleParser(features).single(records[0])
    assert not seen


def counted_protobuf(monkeypatch):
    """The records that protobuf sees from now on."""
    seen = []

    def parse(record, *message):
        seen.append(bytes(record))
        return parse_message(record, *message)

    for module in (parsers, column_plan):
        monkeypatch.setattr(module, "parse_message", parse)
    return seen


def odd(record):
    """The record with an unknown field: of no other value, but not what every writer makes."""
    return record + b"\x10\x01"


@needs_core
def test_the_first_bad_record_is_the_error_among_odd_ones(monkeypatch):
    good, bad = encode_example({"a": 1, "t": "x"}), encode_example({"a": [1, 2], "t": "x"})
    late = encode_example({"a": 1, "t": b"\xff"})
    parser = ExampleParser({"a": FixedLenFeature((), I64), "t": Text()})
    seen = counted_protobuf(monkeypatch)
    for records, text in (
        (
            [good, odd(good), bad, odd(late)],
            r"^record 2: feature 'a' \(int64\): Number of int64 values",
        ),
        (
            [odd(good), late, odd(bad), b"\xff"],
            r"^record 1: feature 't' \(Text\): expected UTF-8 text",
        ),
        ([good, good, b"\xff", bad], r"^record 2: Could not parse example input"),
    ):
        with pytest.raises(ParseError, match=text) as caught:
            parser.batch(records)
        assert good not in seen
        assert (
            str(caught.value) == outcome(lambda records=records: rows_of_batch(parser, records))[1]
        )
        seen.clear()


@needs_core
def test_one_key_is_read_in_several_ways():
    features = {"a": FixedLenFeature((2,), I64), "b": FixedLenFeature((2,), torch.int32, [1, 2], key="a"),
                "c": VarLenFeature(I64, key="a"), "d": FixedLenFeature((), I64, 3),
                "e": VarLenFeature(F32, key="f"), "f": VarLenFeature(bytes)}  # fmt: skip
    records = [encode_example({"a": [number, 5]}) for number in range(5)]
    check(features, records)
    check(features, [*records, encode_example({"d": 1})])
    check(features, [*records, encode_example({"a": [1, 2], "f": 0.5})])
    check({"x": RawTensor(("raw", 1), torch.uint8, key="raw")}, [encode_example({"raw": b"1"})])


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_errors_are_those_of_the_lowest_record(batch):
    good = encode_example({"a": 1, "b": [0.5, 1.0], "t": "text", "r": b"123456", "n": 2})
    features = {
        "a": FixedLenFeature((), torch.int8),
        "b": FixedLenFeature((2,), F32),
        "t": Text(),
        "r": RawTensor(("n", -1), torch.uint8),
        "rows": FixedLenSequenceFeature((2,), I64, allow_missing=True),
        "v": VarLenFeature(torch.uint8),
    }
    base = {"a": 1, "b": [0.5, 1.0], "t": "text", "r": b"123456", "n": 2}
    wrong = [
        base | {"a": 200}, base | {"a": [1, 2]}, base | {"a": 0.5}, base | {"b": [1.0]}, base | {"t": b"\xff"},
        base | {"n": 4}, base | {"n": -1}, base | {"rows": [1]}, base | {"v": [3, 256]}, {"a": 1},
        base | {"t": ["a", "b"]}, base | {"r": 5},
    ]  # fmt: skip
    bad = [*map(encode_example, wrong), b"\xff", good[:-1], good + b"\x0b"]
    for record in bad:
        records = [good] * (batch - 1) + [record, good, bad[0]]
        check(features, records)
        with pytest.raises(ParseError, match=rf"^record {batch - 1}: "):
            ExampleParser(features).batch(records)
        with pytest.raises(ParseError, match=rf"^record {batch - 1}: "):
            rows_of_batch(ExampleParser(features, pads=False), records)


PARTS = {
    "v": VarLenFeature(I64, key="a"),
    "s": VarLenFeature(bytes, key="b"),
    "f": VarLenFeature(F32, key="é"),
    "d": FixedLenFeature((), torch.int32, -1, key=""),
}
ONES = {
    "i": FixedLenFeature((), I64, 0, key="a"),
    "f": FixedLenFeature((), F32, 0.0, key="b"),
    "t": FixedLenFeature((), str, "", key="é"),
}


@pytest.mark.daily
@settings(
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(st.one_of(WIRE_EXAMPLE, UNKNOWN), max_size=5), st.sampled_from([PARTS, ONES]))
def test_any_wire_form(records, features):
    check(features, records)


ROW = st.fixed_dictionaries(
    {"a": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=3)},
    optional={
        "b": st.one_of(
            st.lists(st.binary(max_size=3), min_size=1, max_size=2), st.floats(width=32)
        ),
        "é": st.one_of(st.text(max_size=3), st.floats(width=32)),
        "": st.integers(-9, 9),
        "skipped": st.one_of(st.text(max_size=3), st.floats(width=32), st.integers(0, 300)),
    },
)


@pytest.mark.daily
@settings(deadline=None, max_examples=200)
@given(st.lists(ROW, min_size=1, max_size=6), st.sampled_from([PARTS, ONES]), st.data())
def test_damaged_bytes(rows, features, data):
    records = [bytearray(encode_example(row)) for row in rows]
    for _ in range(data.draw(st.integers(0, 2))):
        record = data.draw(st.sampled_from(records))
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    check(features, [bytes(record) for record in records])


def test_results_own_their_memory():
    records = packed([encode_example({"a": [1, 2], "b": 0.5, "v": [1, 2, 3], "raw": b"1234"})] * 4)
    buffer = bytearray(records.buffer)
    records = PackedRecords(buffer, records.starts, records.lengths)
    parser = ExampleParser({"a": FixedLenFeature((2,), I64), "b": FixedLenFeature((), F32), "v": VarLenFeature(I64),
                            "raw": RawTensor((4,), torch.uint8), "n": FixedLenFeature((), I64, 7)})  # fmt: skip
    batch, samples = parser.batch(records), rows_of_batch(parser, records)
    buffer[:] = bytes(len(buffer))
    for got in (batch["a"][3], samples[3]["a"]):
        assert got.tolist() == [1, 2]
    assert batch["raw"].tolist() == [[49, 50, 51, 52]] * 4
    assert batch["v"].values.tolist() == [1, 2, 3] * 4
    for name in ("a", "b", "n", "raw"):
        batch[name].zero_()
        assert not batch[name].any()
    assert batch["v"].values.tolist() == [1, 2, 3] * 4


def test_columns_are_independent_for_autograd():
    records = [encode_example({"a": [1.0, 2.0], "b": [3.0, 4.0]})] * 4
    batch = ExampleParser({"a": FixedLenFeature((2,), F32), "b": FixedLenFeature((2,), F32)}).batch(
        records
    )
    weight = torch.ones(2, requires_grad=True)
    loss = (batch["a"] * weight).sum()
    batch["b"].mul_(2)  # must not count as a change of "a"
    loss.backward()
    assert weight.grad.tolist() == [4.0, 8.0]


def test_a_huge_shape_is_not_allocated():
    parser = ExampleParser({"a": FixedLenFeature((1 << 40,), I64)})
    with pytest.raises(ParseError, match=r"^record 0: .*got 1, expected 1099511627776"):
        parser.batch([encode_example({"a": 1})] * 3)


class Keyed(OneValueReader):
    """Adds the record's key to its first byte."""

    def __init__(self, *args):
        super().__init__(*args)
        self.keyed = True

    def read(self, columns, keys):
        return torch.tensor(
            [view[0] + int(key) for view, key in zip(columns[0].views(), keys, strict=True)]
        )


@pytest.mark.parametrize("make", [ExampleParser, twin_of])
def test_readers_that_draw_get_their_records_keys(make):
    parser = make({"x": Text(), "a": FixedLenFeature((), I64)})
    assert not parser.needs_keys
    parser._readers[0], parser.needs_keys = Keyed("x", Text()), True
    records = packed([encode_example({"x": chr(65 + number), "a": number}) for number in range(5)])
    keys = np.array([100, 0, 1 << 40, 3, 4], np.uint64)
    wanted = [65 + 100, 66, 67 + (1 << 40), 68 + 3, 69 + 4]
    assert parser.batch(records, keys)["x"].tolist() == wanted
    assert parser.batch(records)["x"].tolist() == [65, 66, 67, 68, 69]
    for count in (2, 5):
        samples = rows_of_batch(parser, records[:count], keys[:count])
        assert [sample["x"].item() for sample in samples] == wanted[:count]
        assert [sample["a"].item() for sample in samples] == [*range(count)]
    assert parser.single(records[2], 5)["x"] == 67 + 5
    with pytest.raises(ValueError, match="a key for each of 5 records, got 4"):
        parser.batch(records, keys[:4])


# Outputs of one key


def memory_of(value):
    """The tensors that hold a value, of a sample or a batch."""
    if isinstance(value, list):
        return [part for item in value for part in memory_of(item)]
    if isinstance(value, Nested):
        values, splits = value.tensors()
        return [values, *splits]
    return [value.values(), value.offsets()] if value.is_nested else [value]


def overlap(first, second):
    begins, ends = zip(
        *((part.data_ptr(), part.data_ptr() + part.nbytes) for part in (first, second)), strict=True
    )
    return min(ends) > max(begins)


TWICE = {
    "fixed": FixedLenFeature((2,), I64, key="two"),
    "fixed float": FixedLenFeature((2,), F32, key="float"),
    "scalar": FixedLenFeature((), I64, key="one"),
    "default": FixedLenFeature((2,), I64, (7, 8), key="none"),
    "var-length": VarLenFeature(I64, key="any"),
    "sequence": FixedLenSequenceFeature((), I64, allow_missing=True, key="two"),
    "ragged": RaggedFeature(I64, "any"),
}


@pytest.mark.slow
@for_each("first", TWICE)
@for_each("second", TWICE)
@for_each("read", ["batch", "samples"])
def test_outputs_of_one_key_have_memory_of_their_own(read, first, second):
    features = {"a": TWICE[first], "b": TWICE[second], "c": TWICE[first]}
    records = [
        encode_example({"two": [n, -n], "float": [n, 0.5], "one": n, "any": np.arange(n % 4)})
        for n in range(1, 9)
    ]
    parser = ExampleParser(features, pads=read == "batch")
    found = parser.batch(records) if read == "batch" else rows_of_batch(parser, records)
    columns = {
        name: [row[name] for row in found] if read == "samples" else found[name]
        for name in features
    }
    before = {name: [part.clone() for part in memory_of(value)] for name, value in columns.items()}
    expected = {
        name: memory_of([parser.single(record)[name] for record in records]) for name in features
    }
    for name in features:
        assert torch.equal(
            torch.cat([part.flatten() for part in before[name][:: 1 if read == "samples" else 2]]),
            torch.cat([part.flatten() for part in expected[name]]),
        )
        for part in memory_of(columns[name]):
            part.zero_()
        for other in features:
            if other > name:
                assert all(map(torch.equal, memory_of(columns[other]), before[other]))
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        assert not any(
            overlap(x, y) for x in memory_of(columns[one]) for y in memory_of(columns[other])
        )
