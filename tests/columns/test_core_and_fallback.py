"""Batches and samples by the compiled core are those by protobuf's messages: values, bits, kinds,
errors; of Examples and of SequenceExamples. Any and damaged bytes: the fuzz targets `examples` and
`sequences`.

Covers columns/column_plan, columns/sequences.
"""

import io
import sys

import numpy as np
import pytest
import torch
from batches import outcome
from helpers import for_each, pure_python
from PIL import Image as PillowImage

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    ParseError,
    RaggedFeature,
    RawTensor,
    SequenceFeatures,
    SerializedTensor,
    SparseFeature,
    Text,
    TFRecordError,
    VarLenFeature,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
    parse_example,
    parse_sequence_example,
    parse_single_sequence_example,
    serialize_tensor,
)
from torch_tfrecord.columns import Nested, make_parser, rows_of
from torch_tfrecord.native import native_module
from torch_tfrecord.records import PackedRecords

I64, F32 = torch.int64, torch.float32
ODD = b"\x1a\x00"  # a field that no message has: protobuf reads such a record, and writes it again

needs_core = pytest.mark.skipif(
    native_module("columns") is None, reason="the compiled core was not built"
)


def rows_of_batch(parser, records):
    """Each record's part of a batch."""
    batch = parser.batch(records)
    if isinstance(batch, dict):
        return rows_of(batch)
    parts = [rows_of(part) if part else [{}] * len(records) for part in batch]
    return [*zip(*parts, strict=True)]


def singles(parser, records):
    found = []
    for position, record in enumerate(records):
        try:
            found.append(parser.single(record))
        except TFRecordError as error:
            raise error.locate(position=position) from None
    return found


def packed(records, gap=b"\x00garbage"):
    """PackedRecords in another order than in the buffer, the last ending with it."""
    order = list(reversed(range(len(records))))
    buffer = b"".join(gap + records[place] for place in order)
    starts, at = np.zeros(len(records), np.int64), 0
    for place in order:
        starts[place] = at + len(gap)
        at += len(gap) + len(records[place])
    return PackedRecords(buffer, starts, np.array([len(record) for record in records], np.int64))


def check(features, records):
    """Core and fallback agree, and a sample is the row of a batch."""
    found = []
    for is_pure in (False, True):
        for rows in (records, packed(records)):
            with pure_python(is_pure):
                padded, plain = make_parser(features), make_parser(features, pads=False)
                found.append(
                    [
                        outcome(lambda p=padded, rows=rows: p.batch(rows)),
                        outcome(lambda p=plain, rows=rows: p.batch(rows)),
                        outcome(lambda p=plain, rows=rows: rows_of_batch(p, rows)),
                    ]
                )
                samples = outcome(lambda p=plain, rows=rows: singles(p, rows))
            assert found[-1] == found[0]
            assert found[-1][2] == samples


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


CONTEXT = {
    "id": FixedLenFeature((), I64),
    "pair": FixedLenFeature((2,), F32, (0.5, 1.5)),
    "name": Text(),
    "ids": VarLenFeature(torch.int32),
    "rows": RaggedFeature(I64, "ids", [RaggedFeature.RowLengths("lengths")]),
}
PARTITIONS = [RaggedFeature.RowLengths("n"), RaggedFeature.UniformRowLength(1)]
STEPS = {
    "x": FixedLenSequenceFeature((2,), F32),
    "maybe": FixedLenSequenceFeature((), torch.int16, allow_missing=True),
    "words": FixedLenSequenceFeature((), bytes, key="text"),
    "pairs": FixedLenSequenceFeature((1, 2), str, True, key="two"),
    "v": VarLenFeature(I64),
    "again": VarLenFeature(torch.int32, key="v"),
    "ragged": RaggedFeature(I64, "v", [RaggedFeature.RowLengths("n")]),
    "deep": RaggedFeature(I64, "v", PARTITIONS),
    "strings": RaggedFeature(str, "two", [RaggedFeature.UniformRowLength(1)]),
    "lists": VarLenFeature(bytes, key="two"),
    "text": Text(),
    "raw": RawTensor(("h", -1), torch.uint8),
    "tensor": SerializedTensor(),
}


def sequence(seed, num_steps=None):
    """A record that has it all."""
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(0, 5)) if num_steps is None else num_steps
    counts = [int(rng.integers(0, 4)) for _ in range(steps)]
    lists = {
        "x": rng.random((steps, 2)).astype("f4"),
        "text": [f"ü{rng.integers(1000)}" for _ in counts],
        "two": [["a" * int(rng.integers(20)), "é"] for _ in counts],
        "v": [rng.integers(0, 1 << 30, count) for count in counts],
        "n": [[count, 0] for count in counts],
        "raw": [rng.bytes(6) for _ in counts],
        # the others': the context's
        "h": [int(rng.choice([1, 2, 3])) for _ in counts[: steps // 2]],
        "tensor": [serialize_tensor(torch.tensor([number, 2])) for number in counts],
        "skipped": rng.random(steps),
    }
    if seed % 2:
        lists["maybe"] = rng.integers(-9, 9, steps)
    context = {
        "id": seed,
        "name": f"n{seed}",
        "ids": counts,
        "lengths": [len(counts)],
        "h": 2,
        "skipped": [0.5],
    }
    return encode_sequence_example(context | ({"pair": [seed, np.nan]} if seed % 3 else {}), lists)


@pytest.mark.slow
@needs_core
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 17])
def test_every_spec_alone_and_together(count):
    rng = np.random.default_rng(count)
    records = [row(rng) for _ in range(count)]
    check(FEATURES, records)
    for name, spec in FEATURES.items():
        check({name: spec}, records)


@pytest.mark.daily
@needs_core
@pytest.mark.parametrize("seed", range(4))
def test_every_spec_of_sequences(seed):
    records = [sequence(number) for number in range(seed, seed + 6)]
    odd = [row + ODD if number % 2 else row for number, row in enumerate(records)]
    for rows in (records, odd, records[:1], [], [sequence(1, 3), sequence(3, 3)]):
        check(SequenceFeatures(CONTEXT, STEPS), rows)
        for name, spec in STEPS.items():
            check(SequenceFeatures(None, {name: spec}), rows)
        for name, spec in CONTEXT.items():
            check(SequenceFeatures({name: spec}), rows)


def asks_protobuf(function):
    """Whether a message is parsed; else all of the above would compare the fallback with itself."""
    called = set()
    sys.setprofile(lambda frame, event, _: called.add((event, frame.f_code.co_name)))
    try:
        function()
    finally:
        sys.setprofile(None)
    return ("call", "parse_message") in called


@needs_core
def test_plain_records_never_become_messages():
    rng = np.random.default_rng(0)
    features = {name: spec for name, spec in FEATURES.items() if name not in ("u16", "tensor")}
    each = (
        (features, [row(rng) for _ in range(5)]),
        (
            SequenceFeatures(CONTEXT, STEPS | {"tensor": Text(key="text")}),
            [*map(sequence, range(5))],
        ),
    )
    for spec, records in each:
        parser = make_parser(spec)
        assert not asks_protobuf(lambda p=parser, rows=records: p.batch(rows))
        assert not asks_protobuf(lambda p=parser, rows=records: p.single(rows[3]))
        assert asks_protobuf(lambda p=parser, rows=records: p.batch([*rows, rows[0] + ODD]))


@needs_core
def test_the_first_bad_record_is_the_error_among_odd_ones():
    good, bad = encode_example({"a": 1, "t": "x"}), encode_example({"a": [1, 2], "t": "x"})
    late = encode_example({"a": 1, "t": b"\xff"})
    features = {"a": FixedLenFeature((), I64), "t": Text()}
    for records, text in (
        (
            [good, good + ODD, bad, late + ODD],
            r"^record 2: feature 'a' \(int64\): Number of int64 values",
        ),
        (
            [good + ODD, late, bad + ODD, b"\xff"],
            r"^record 1: feature 't' \(Text\): expected UTF-8 text",
        ),
        ([good, good, b"\xff", bad], r"^record 2: Could not parse example input"),
    ):
        check(features, records)
        with pytest.raises(ParseError, match=text):
            parse_example(records, features)


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
            parse_example(records, features)


BAD = {
    "malformed": b"\xff",
    "no list": encode_sequence_example({"id": 1, "h": 1}, {}),
    "kind": encode_sequence_example({"id": 1, "h": 1}, {"x": [1, 2], "raw": []}),
    "count": encode_sequence_example({"id": 1, "h": 1}, {"x": [[1.0, 2.0], [1.0]], "raw": []}),
    "no id": encode_sequence_example({"h": 1}, {"x": [], "raw": []}),
    "bytes": encode_sequence_example({"id": 1, "h": 4}, {"x": [], "raw": [bytes(4), bytes(5)]}),
    "no size": encode_sequence_example({"id": 1}, {"x": [], "raw": [b"1"]}),
    "size": encode_sequence_example({"id": 1, "h": [1, 2]}, {"x": [], "raw": [b"1"]}),
    "lengths": encode_sequence_example(
        {"id": 1, "h": 1}, {"x": [], "raw": [], "v": [1, 2], "n": [[1]]}
    ),
    "partition": encode_sequence_example(
        {"id": 1, "h": 1}, {"x": [], "raw": [], "v": [1, 2], "n": [[1], [2]]}
    ),
    "step unset": encode_sequence_example({"id": 1, "h": 1}, {"raw": []})
    + bytes.fromhex("12 09 0a070a017812020a00"),
}
SOME = {name: STEPS[name] for name in ("x", "raw", "ragged")}
GOOD = encode_sequence_example({"id": 7, "h": 2}, {"x": [[1.0, 2.0]], "raw": [b"1234"]})


@pytest.mark.slow
@needs_core
@pytest.mark.parametrize("name", BAD)
def test_the_first_bad_sequence_is_the_error(name):
    for other in BAD.values():
        check(SequenceFeatures({"id": CONTEXT["id"]}, SOME), [GOOD, BAD[name], GOOD, other])


def test_words_of_what_does_not_fit():
    texts = {
        "no list": "feature 'x' (float32): Feature list 'x' is required but could not be found: the record has no feat",
        "no id": "feature 'id' (int64): key 'id' is required but could not be found: the record has 'h'",
        "bytes": "step 1: feature 'raw' (RawTensor): expected a multiple of 4 bytes for shape [4, -1] of uint8, got 5",
        "no size": "step 0: feature 'raw' (size, key 'h'): key 'h' is required but could not be found: the record has",
        "size": "step 0: feature 'raw' (size, key 'h'): Number of int64 values != expected: got 2, expected 1 for sha",
        "lengths": "feature 'ragged' (int64, key 'v'): expected feature lists of equal length, got {'v': 2, 'n': 1}",
        "partition": "step 1: feature 'ragged' (RowLengths, key 'n'): the rows and the values do not form a valid Rag",
        "step unset": "step 0: feature 'x' (float32): Number of float values != expected: got 0, expected 2 for shape",
    }
    for name, text in texts.items():
        with pytest.raises(ParseError) as caught:
            parse_single_sequence_example(BAD[name], {"id": CONTEXT["id"]}, SOME)
        assert str(caught.value).startswith(text)


def test_a_size_that_no_step_asks_for_may_be_anything():
    spec = {"raw": STEPS["raw"]}
    for context, sizes in (({"h": "text"}, [2]), ({"h": [1, 2]}, [2, 3]), ({}, [1])):
        row = encode_sequence_example(context, {"raw": [b"1234"], "h": sizes})
        assert parse_single_sequence_example(row, None, spec)[1]["raw"].shape[0] == 1


NANS = [0x7F800001, 0xFF812345, 0x7FC00001, 0xFFFFFFFF]


def nan_record(is_plain=True):
    values = np.array(NANS, np.uint32).view(np.float32)
    lists = {"x": values.reshape(2, 2), "v": [values[:3], values[3:]]}
    row = encode_sequence_example({"c": values[:1], "w": values}, lists)
    return row if is_plain else row + ODD


def raw_bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.int32).numpy().view(np.uint32).tolist()


@pytest.mark.parametrize("is_plain", [True, False])
def test_nans_keep_their_bits(is_plain):
    row = nan_record(is_plain)
    context = {"c": FixedLenFeature((), F32), "w": VarLenFeature(F32)}
    lists = {"x": FixedLenSequenceFeature((2,), F32), "v": VarLenFeature(F32)}
    single = parse_single_sequence_example(row, context, lists)
    batched = parse_sequence_example([row], context, lists)
    assert raw_bits(single[0]["c"]) == raw_bits(batched[0]["c"]) == NANS[:1]
    for got in (
        single[0]["w"],
        single[1]["x"],
        single[1]["v"].values(),
        batched[1]["x"],
        batched[1]["v"].flat_values,
    ):
        assert raw_bits(got) == NANS
    decoded = decode_sequence_example(row)
    assert decoded[0]["w"].view(np.uint32).tolist() == NANS
    assert np.concatenate(decoded[1]["v"]).view(np.uint32).tolist() == NANS


def test_results_own_their_memory():
    records = packed([encode_example({"a": [1, 2], "b": 0.5, "v": [1, 2, 3], "raw": b"1234"})] * 4)
    buffer = bytearray(records.buffer)
    records = PackedRecords(buffer, records.starts, records.lengths)
    parser = make_parser({"a": FixedLenFeature((2,), I64), "b": FixedLenFeature((), F32), "v": VarLenFeature(I64),
                            "raw": RawTensor((4,), torch.uint8), "n": FixedLenFeature((), I64, 7)})  # fmt: skip
    batch, samples = parser.batch(records), singles(parser, records)
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
    batch = make_parser({"a": FixedLenFeature((2,), F32), "b": FixedLenFeature((2,), F32)}).batch(
        records
    )
    weight = torch.ones(2, requires_grad=True)
    loss = (batch["a"] * weight).sum()
    batch["b"].mul_(2)  # must not count as a change of "a"
    loss.backward()
    assert weight.grad.tolist() == [4.0, 8.0]


def test_a_huge_shape_is_not_allocated():
    with pytest.raises(ParseError, match=r"^record 0: .*got 1, expected 1099511627776"):
        parse_example([encode_example({"a": 1})] * 3, {"a": FixedLenFeature((1 << 40,), I64)})


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
    parser = make_parser(features, pads=read == "batch")
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
