"""Proposed specs: the narrowest that reads everything, and code that runs."""
# ruff: noqa: E501 - tables of whole texts read better in one line each.

import gzip
import struct
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import framed, inferred
from hypothesis import given, settings
from hypothesis import strategies as st
from range_server import range_server

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    ParseError,
    RawTensor,
    SequenceFeatures,
    SerializedTensor,
    Text,
    TFRecordError,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    encode_example,
    encode_image,
    encode_sequence_example,
    infer_features,
    parse_example,
    parse_sequence_example,
    serialize_tensor,
)
from torch_tfrecord.tables import inference


def infer(*rows):
    records = [encode_example(row) for row in rows]
    spec = inferred(records)
    if spec:
        parse_example(records, spec)  # what is proposed reads what it was shown
    return spec


EMPTY_INTS = np.zeros(0, np.int64)
ONE = FixedLenFeature((), torch.int64)


@pytest.mark.parametrize(
    ("values", "spec"),
    [
        ([1, 2], FixedLenFeature((), torch.int64)),
        ([1.5, 2.5], FixedLenFeature((), torch.float32)),
        ([[1, 2], [3, 4]], FixedLenFeature((2,), torch.int64)),
        ([[1, 2], [3]], VarLenFeature(torch.int64)),
        ([1, None], VarLenFeature(torch.int64)),
        ([[1.0], EMPTY_INTS.astype("f4")], VarLenFeature(torch.float32)),
        ([EMPTY_INTS, EMPTY_INTS], VarLenFeature(torch.int64)),
        (["cat", "é\n"], Text()),
        (["cat", None], VarLenFeature(str)),
        ([["a", "b"], ["c", "d"]], FixedLenFeature((2,), str)),
        ([[b"\xff", b"b"], [b"c"]], VarLenFeature(bytes)),
        ([b"\xff\x00", "cat"], FixedLenFeature((), bytes)),
        (["bell\x07", "cat"], FixedLenFeature((), bytes)),
        (["", ""], FixedLenFeature((), bytes)),
        (["", "cat"], Text()),
        ([serialize_tensor(torch.zeros(2)), serialize_tensor(torch.tensor(1))], SerializedTensor()),
        ([serialize_tensor(torch.zeros(2)), b"\x08"], FixedLenFeature((), bytes)),
    ],
)
def test_one_feature(values, spec):
    rows = [{"n": 1} | ({} if value is None else {"x": value}) for value in values]
    assert infer(*rows) == {"n": ONE, "x": spec}


@pytest.mark.parametrize(
    ("rows", "spec"),
    [
        ([{"raw": bytes(24), "height": 2, "width": 3, "depth": 4}], RawTensor(("height", "width", "depth"), torch.uint8)),
        ([{"raw": bytes(6), "height": 2, "width": 3}, {"raw": bytes(4), "height": 4, "width": 1}], RawTensor(("height", "width"), torch.uint8)),
        ([{"i/raw": b"\x00" * 6, "i/height": 2, "i/width": 3, "height": 9}], RawTensor(("i/height", "i/width"), torch.uint8)),
        ([{"raw": np.array([0.5, -2, 0, 1e5], "<f4").tobytes(), "height": 2, "width": 2}], RawTensor(("height", "width"), torch.float32)),
        ([{"raw": np.array([0.5, 3.25], "<f8").tobytes(), "rows": 2, "cols": 1}], RawTensor(("rows", "cols"), torch.float64)),
        ([{"raw": np.array([1, 2, 3, 4], "<i4").tobytes(), "height": 2, "width": 2}], FixedLenFeature((), bytes)),  # integers or floats?
        ([{"raw": bytes(8), "height": 2, "width": 2}], FixedLenFeature((), bytes)),  # two bytes: which dtype?
        ([{"raw": bytes(6), "height": 6}], FixedLenFeature((), bytes)),  # one size alone says little
        ([{"raw": bytes(6), "height": 2, "width": 3}, {"raw": bytes(5), "height": 2, "width": 3}], FixedLenFeature((), bytes)),
        ([{"raw": bytes(6), "height": -2, "width": -3}], FixedLenFeature((), bytes)),
    ],
)  # fmt: skip
def test_raw_arrays(rows, spec):
    got = infer(*rows)
    assert got["i/raw" if "i/raw" in rows[0] else "raw"] == spec


def test_nothing_to_go_by():
    assert infer({}) == {}
    # a kind that is never set
    assert inferred([bytes.fromhex("0a070a050a01611200")]) == {}


def test_errors():
    with pytest.raises(ParseError) as caught:
        infer({"a": 1}, {"a": 1.5})
    assert (
        str(caught.value)
        == "record 1: feature 'a': Data types don't match: float32 and int64 in different records"
    )
    with pytest.raises(
        ParseError, match=r"^record 1: expected an Example or SequenceExample, got 1 "
    ):
        inferred([b"", b"\xff"])


def test_printed_code():
    spec = {
        "image": Image(key="image/encoded"),
        "it's": FixedLenFeature((), torch.int64, -1),
        'q"': Text(),
    }
    features = inferred([encode_example({})])
    assert str(features) == "features = {}"
    features.update(spec)
    assert str(features) == "\n".join(
        [
            "import torch",
            "from torch_tfrecord import FixedLenFeature, Image, Text",
            "",
            "features = {",
            "    \"image\": Image(key='image/encoded'),",
            '    "it\'s": FixedLenFeature((), torch.int64, default_value=-1),',
            "    'q\"': Text(),",
            "}",
        ]
    )


NAMES = st.text(max_size=6).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
VALUES = st.one_of(
    st.lists(st.integers(-9, 9), min_size=1, max_size=3),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=3),
    st.lists(st.binary(max_size=6), min_size=1, max_size=2),
    st.text(max_size=6),
)


LISTS = st.sampled_from(
    [
        np.zeros(0, np.int64),
        np.zeros(0, np.float32),
        [1],
        [0, -1],
        [0.5],
        [1.5, 2.5],
        ["text"],
        [b"\xff"],
        ["a", "b"],
        bytes(6),
        serialize_tensor(torch.zeros(2)),
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "b", "raw", "height", "width"]), LISTS, min_size=1),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 3),
)
def test_records_read_together_propose_what_each_by_itself_does(rows, kindless):
    """A key without a kind (the last of its features has none) says nothing, and is no error."""
    records = [encode_example(row) for row in rows]
    records[kindless % len(records)] += b"\x0a\x0a\x0a\x08\x0a\x04none\x12\x00"

    def outcome():
        try:
            return str(inferred(records))
        except ParseError as error:
            return str(error)

    together = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "_read_columns", lambda records: None)
        assert together == outcome()


@pytest.mark.daily
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=5), st.integers(1, 3))
def test_proposals_read_their_records_and_their_code_runs(row, count):
    spec = infer(*[row] * count)
    assert spec.keys() == row.keys()
    names = {}
    exec(str(spec), names)
    assert names["features"] == spec


def test_what_only_begins_as_an_image_is_bytes():
    assert infer({"a": b"\xff\xd8\xff"}) == {"a": FixedLenFeature((), bytes)}


def test_what_looks_like_a_size_is_one_integer():
    assert infer({"raw": struct.pack("<6B", *range(6)), "height": [2, 2], "width": 3})[
        "raw"
    ] == FixedLenFeature((), bytes)


# --- SequenceExamples
# ------------------------------------------------------------------------------------------------


def infer_sequences(*rows):
    records = [encode_sequence_example(context, lists) for context, lists in rows]
    spec = inferred(records)
    names = {}
    exec(str(spec), names)
    assert names["features"] == spec
    # it reads what it was shown
    parse_sequence_example(records, spec.context_features, spec.sequence_features)
    return spec


PNG = encode_image(torch.zeros(3, 4, 5, dtype=torch.uint8), "png")
NO_INTS = np.zeros(0, np.int64)


@pytest.mark.parametrize(
    ("lists", "spec"),
    [
        ([[1, 2], [3]], FixedLenSequenceFeature((), torch.int64)),
        ([[[1.0, 2.0]], []], FixedLenSequenceFeature((2,), torch.float32)),
        ([[1, [2, 3]], [4]], VarLenFeature(torch.int64)),
        ([[1, NO_INTS]], VarLenFeature(torch.int64)),
        ([[1], None], FixedLenSequenceFeature((), torch.int64, allow_missing=True)),
        ([["a", "b"], ["c"]], Text()),
        ([["a"], None], FixedLenSequenceFeature((), str, allow_missing=True)),
        ([[b"\xff"], []], FixedLenSequenceFeature((), bytes)),
        ([[["a", "b"]], ["c"]], VarLenFeature(str)),
        ([[PNG, PNG], [PNG]], Image()),
        ([[PNG], None], FixedLenSequenceFeature((), bytes, allow_missing=True)),
        ([[serialize_tensor(torch.zeros(2))]], SerializedTensor()),
        ([[b"\xff" * 6, bytes(6)]], RawTensor(("height", "width"), torch.uint8)),
    ],
)
def test_one_feature_list(lists, spec):
    context = {"height": 2, "width": 3}
    rows = [(context, {"n": [1]} | ({} if steps is None else {"x": steps})) for steps in lists]
    got = infer_sequences(*rows)
    assert got.context_features == {"height": ONE, "width": ONE}
    assert got.sequence_features == {"n": FixedLenSequenceFeature((), torch.int64), "x": spec}


def test_sizes_of_each_step():
    lists = {"raw": [bytes(6), b"\xff" * 4], "height": [2, 2], "width": [3, 2]}
    got = infer_sequences(({}, lists))
    assert got.context_features == {}
    assert got.sequence_features["raw"] == RawTensor(("height", "width"), torch.uint8)


def test_lists_that_say_nothing():
    record = bytes.fromhex("0a0c0a0a0a016112051a030a010512090a070a017812020a00")
    assert inferred([record]) == {"a": ONE}
    assert inferred([encode_sequence_example({"a": 5}, {"x": []})]) == {"a": ONE}
    with pytest.raises(ParseError, match="feature 'x': Data types don't match: float32 and int64"):
        infer_sequences(({}, {"x": [1, 1.5]}))


def test_printed_code_of_sequences(tmp_path):
    path = tmp_path / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        writer.write(encode_sequence_example({"id": 1}, {"frame": [PNG], "x": [1, 2]}))
        writer.write(encode_sequence_example({"id": 2}, {"frame": [PNG, PNG], "x": [1]}))
    spec = infer_features(path)
    assert isinstance(spec, SequenceFeatures)
    assert str(spec) == "\n".join(
        [
            "import torch",
            "from torch_tfrecord import FixedLenFeature, FixedLenSequenceFeature, Image, SequenceFeatures",
            "",
            "features = SequenceFeatures(",
            "    context_features={",
            '        "id": FixedLenFeature((), torch.int64),',
            "    },",
            "    sequence_features={",
            '        "frame": Image(),',
            '        "x": FixedLenSequenceFeature((), torch.int64),',
            "    },",
            ")",
        ]
    )
    text_only = SequenceFeatures(sequence_features={"t": Text()})
    assert str(text_only) == "\n".join(
        [
            "from torch_tfrecord import SequenceFeatures, Text",
            "",
            "features = SequenceFeatures(",
            "    context_features={},",
            "    sequence_features={",
            '        "t": Text(),',
            "    },",
            ")",
        ]
    )


# --- Files
# -----------------------------------------------------------------------------------------------------------


def write(path, rows, **options):
    with TFRecordWriter(path, **options) as writer:
        for row in rows:
            writer.write(row if isinstance(row, bytes) else encode_example(row))


ROWS = st.fixed_dictionaries(
    {"a": st.lists(st.integers(0, 9), min_size=1, max_size=3)},
    optional={
        "late": st.lists(st.floats(0, 1, width=32), min_size=1, max_size=2),
        "text": st.text(min_size=1, max_size=9),
        "raw": st.binary(min_size=1, max_size=40),
        "kind": st.one_of(st.just([1]), st.just(["text"])),
    },
)


@pytest.mark.daily
@settings(max_examples=25, deadline=None)
@given(
    st.lists(ROWS, min_size=1, max_size=4), st.sampled_from(["plain", "index", "gzip", "shards"])
)
def test_what_later_records_have_is_seen(tmp_path_factory, segments, layout):
    """Each segment is of equal records, and is long enough for one of those looked at: features,
    lengths and kinds.
    """
    folder = tmp_path_factory.mktemp("files")
    rows = [row | {"n": number} for row in segments for number in range(400)]
    options = {
        "plain": {},
        "index": {"write_index": True},
        "gzip": {"compression_type": "GZIP"},
        "shards": {},
    }[layout]
    shards = 7 if layout == "shards" else 1
    for shard in range(shards):
        write(
            folder / f"a-{shard:05}-of-{shards:05}",
            rows[shard * len(rows) // shards : (shard + 1) * len(rows) // shards],
            **options,
        )
    kinds = {type(row["kind"][0]) for row in segments if "kind" in row}
    if len(kinds) > 1:
        with pytest.raises(
            ParseError, match="feature 'kind': Data types don't match: bytes and int64"
        ):
            infer_features(folder)
        return
    parse_example([encode_example(row) for row in rows], infer_features(folder))


def test_a_record_of_a_file_that_is_no_example(tmp_path):
    write(
        tmp_path / "a.tfrecord", [encode_example({"a": 1})] * 3 + [b"\x09" + bytes(8) + b"\x10\x01"]
    )
    with pytest.raises(ParseError) as caught:
        infer_features(tmp_path / "a.tfrecord")
    size = len(encode_example({"a": 1})) + 16
    assert str(caught.value) == (
        f"{tmp_path}/a.tfrecord: record 3 at byte {3 * size}: expected an Example or SequenceExample, got 11 bytes that "
        "look like a TensorFlow event, as in tfevents files: features=Proto(...) reads them"
    )


@pytest.mark.parametrize("kind", ["plain", "gzip", pytest.param("http", marks=pytest.mark.slow)])
def test_each_error_names_file_record_and_byte(kind, tmp_path, monkeypatch):
    """Of a file that counts as large, of which only some records are looked at."""
    monkeypatch.setattr("torch_tfrecord.tables.found_records._SMALL_FILES", 1)
    monkeypatch.setattr("torch_tfrecord.tables.found_records._SMALL_FILE", 1)
    records = [framed(encode_example({"a": number, "b": bytes(1000)})) for number in range(100)]
    at = 30
    first, good, rest = b"".join(records[:at]), records[at], b"".join(records[at + 1 :])
    flipped = good[:40] + bytes([good[40] ^ 1]) + good[41:]
    text = framed(b"a line of text" * 70)
    floats = framed(encode_example({"a": 1.0, "b": bytes(1000)}))
    contents = {
        "expected an Example or SequenceExample, got 980 bytes that look like text": text + rest,
        "feature 'a': Data types don't match: float32 and int64": floats + rest,
        "corrupted record: expected payload checksum": flipped + rest,
        f"truncated record: expected {len(good)} bytes": good[:40],
    }
    with range_server(tmp_path) if kind == "http" else nullcontext() as server:
        for number, (message, content) in enumerate(contents.items()):
            path = f"{tmp_path}/{number}"
            data = first + content
            Path(path).write_bytes(gzip.compress(data) if kind == "gzip" else data)
            path = f"{server}/{number}" if kind == "http" else path
            with pytest.raises(TFRecordError) as caught:
                infer_features(path, num_records=110)
                # Damage of the others is found where they are read.
                assert kind != "gzip" and number > 1
                list(TFRecordIterableDataset(path, "auto"))
            start = f"{path}: record {at} at byte {len(first)}: {message}"
            assert str(caught.value).startswith(start)


@pytest.mark.daily
@pytest.mark.parametrize("options", [{}, {"compression_type": "GZIP"}, {"write_index": True}])
def test_small_files_are_read_whole(options, tmp_path):
    """What one of many records has is seen: what is printed reads the files that it was inferred
    from.
    """
    for shard in range(3):
        rows = [
            {"a": [1] * (1 + (shard == 1 and number == 777)), "pad": bytes(600)}
            for number in range(2000)
        ]
        write(tmp_path / f"a-{shard:05}-of-00003", rows, **options)
    spec = infer_features(tmp_path)
    assert spec == {"a": VarLenFeature(torch.int64), "pad": FixedLenFeature((), bytes)}
    assert infer_features(tmp_path, num_records=1) == spec


def test_the_number_of_records(tmp_path, monkeypatch):
    monkeypatch.setattr("torch_tfrecord.tables.found_records._SMALL_FILES", 1)
    write(tmp_path / "a.tfrecord", [{"a": [1] * (1 + (number == 1))} for number in range(9)])
    assert infer_features(tmp_path / "a.tfrecord", num_records=3) == {"a": ONE}  # 0, 4 and 8
    assert infer_features(tmp_path / "a.tfrecord", num_records=9) == {
        "a": VarLenFeature(torch.int64)
    }
    for number in (0, True, 1.5):
        with pytest.raises(
            (TypeError, ValueError), match="num_records must be an integer of at least 1, got"
        ):
            infer_features(tmp_path / "a.tfrecord", num_records=number)
    write(tmp_path / "b.tfrecord", [])
    with pytest.raises(
        ValueError, match="expected at least one record to look at, got none in 1 files"
    ):
        infer_features(tmp_path / "b.tfrecord")
