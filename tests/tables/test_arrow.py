"""Arrow tables: equal to what `parse_example` gives, for all golden cases; and back, byte for byte."""

import contextlib
import math
import re
import warnings
from tempfile import TemporaryDirectory

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from golden_cases import CASES, golden_specs, unbase64
from helpers import for_each

from torch_tfrecord import (
    Audio,
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    Json,
    ListFeatures,
    NestedExample,
    RaggedFeature,
    RaggedTensor,
    RawTensor,
    SequenceFeatures,
    SerializedTensor,
    Source,
    SparseFeature,
    SparseList,
    Text,
    TFRecordDataset,
    TFRecordError,
    TFRecordWriter,
    VarLenFeature,
    decode_example,
    decode_sequence_example,
    encode_example,
    encode_image,
    infer_features,
    parse_example,
    parse_single_example,
    parse_single_sequence_example,
    read_records,
    serialize_tensor,
    write_arrow,
)


def table_of(records, features, **options):
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of keys that no record has
        with TFRecordWriter(f"{folder}/x") as writer:
            for record in records:
                writer.write(record)
        ds = TFRecordDataset(f"{folder}/x", features, index="memory")
        table = ds.to_arrow(**options)
        assert ds[:0].to_arrow(**options).schema == table.schema
    table.validate(full=True)
    return table


def plain(value):
    """A sample's value in the form of `to_pylist`."""
    if isinstance(value, SparseList) or getattr(value, "layout", None) is torch.sparse_coo:
        is_list = isinstance(value, SparseList)
        places = (value.indices if is_list else value._indices()).T.tolist()
        places = [place[0] if len(place) == 1 else place for place in places]
        return {"indices": places, "values": value.values if is_list else value._values().tolist()}
    if isinstance(value, RaggedTensor):
        return value.to_list()
    if isinstance(value, torch.Tensor):
        return [plain(row) for row in value.unbind()] if value.is_nested else value.tolist()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def check_rows(found, samples, records_lack):
    """NaN equals NaN; null is what a record lacks, which a sample has without values."""
    assert len(found) == len(samples)
    for row, (own, sample) in enumerate(zip(found, samples, strict=True)):
        assert own.keys() == sample.keys()
        for name, value in own.items():
            wanted = plain(sample[name])
            if value is None:
                assert records_lack(row, name)
                assert wanted in ([], {"indices": [], "values": []})
            else:
                assert repr(value) == repr(wanted), name


EXAMPLES = [
    case
    for case in CASES
    if "features" in case and case["features"] and "outputs" in case.get("expected", {})
]
SEQUENCES = [
    case for case in CASES if "features" not in case and "context" in case.get("expected", {})
]


def test_there_are_golden_cases():
    assert len(EXAMPLES) > 100
    assert len(SEQUENCES) > 30


@for_each("case", EXAMPLES, ids=lambda case: case["name"])
def test_golden_examples(case):
    records, specs = [*map(unbase64, case["serialized"])], golden_specs(case, "features")
    try:
        samples = [parse_single_example(record, specs) for record in records]
    except TFRecordError as error:  # ours alone: see test_golden
        with pytest.raises(type(error)):
            table_of(records, specs)
        return

    def lacks(row, name):
        spec = specs[name]
        key = getattr(spec, "value_key", None) or name
        return not len(decode_example(records[row]).get(key, ()))

    check_rows(table_of(records, specs).to_pylist(), samples, lacks)


def refused_examples():
    """Cases that TensorFlow refuses, with specs that can be written here."""
    for case in CASES:
        if case.get("features") and "error" in case["expected"]:
            with contextlib.suppress(ValueError, TypeError):
                yield [*map(unbase64, case["serialized"])], golden_specs(case, "features")


def test_golden_errors():
    """What `parse_example` refuses is refused with the same error."""
    num_refused = 0
    for records, specs in refused_examples():
        try:
            parse_example(records, specs)
        except (TFRecordError, ValueError) as error:
            num_refused += 1
            with pytest.raises(type(error)) as caught:
                table_of(records, specs)
            assert re.sub(r"^record \d+: ", "", str(error)) in str(caught.value)
        else:
            table_of(records, specs)
    assert num_refused > 200


@for_each("case", SEQUENCES, ids=lambda case: case["name"])
def test_golden_sequences(case):
    records = [*map(unbase64, case["serialized"])]
    context, steps = (golden_specs(case, f"{name}_features") for name in ("context", "sequence"))
    try:
        samples = [parse_single_sequence_example(record, context, steps) for record in records]
    except TFRecordError as error:
        with pytest.raises(type(error)):
            table_of(records, SequenceFeatures(context, steps))
        return
    if {*(context or {})} & {*(steps or {})}:
        with pytest.raises(ValueError, match="expected one column of each name"):
            table_of(records, SequenceFeatures(context, steps))
        return
    found = table_of(records, SequenceFeatures(context, steps)).to_pylist()

    def lacks(row, name):
        stored_context, stored_lists = decode_sequence_example(records[row])
        key = getattr((context or {}).get(name) or steps[name], "value_key", None) or name
        return not len((stored_context if name in (context or {}) else stored_lists).get(key, ()))

    check_rows(found, [{**own, **lists} for own, lists in samples], lacks)


JPEG = encode_image(torch.arange(192, dtype=torch.uint8).reshape(3, 8, 8), "png")


# Spec, value in the record, type, value in the table.
KINDS = {
    "bool": (FixedLenFeature((), torch.bool), 1, pa.bool_(), True),
    "uint64": (FixedLenFeature((), torch.uint64), 7, pa.uint64(), 7),
    "float16": (FixedLenFeature((), torch.float16), 0.5, pa.float16(), 0.5),
    "bfloat16": (FixedLenFeature((), torch.bfloat16), 0.5, pa.float32(), 0.5),
    "bytes": (FixedLenFeature((), bytes), b"\0\xff", pa.binary(), b"\0\xff"),
    "text": (Text(), "é", pa.string(), "é"),
    "matrix": (
        FixedLenFeature((2, 2), torch.int32),
        [1, 2, 3, 4],
        pa.list_(pa.list_(pa.int32(), 2), 2),
        [[1, 2], [3, 4]],
    ),
    "strings": (FixedLenFeature((2,), str), ["a", "b"], pa.list_(pa.string(), 2), ["a", "b"]),
    "default": (FixedLenFeature((2,), torch.int64, [5, 6]), None, pa.list_(pa.int64(), 2), [5, 6]),
    "list": (VarLenFeature(torch.float32), [0.5, 1], pa.list_(pa.float32()), [0.5, 1.0]),
    "missing list": (VarLenFeature(torch.int64), None, pa.list_(pa.int64()), None),
    "rows": (
        FixedLenSequenceFeature((2,), torch.int64, allow_missing=True),
        [1, 2, 3, 4],
        pa.list_(pa.list_(pa.int64(), 2)),
        [[1, 2], [3, 4]],
    ),
    "ragged": (
        RaggedFeature(
            torch.int64,
            partitions=[RaggedFeature.RowLengths("n"), RaggedFeature.UniformRowLength(2)],
        ),
        [1, 2, 3, 4, 5, 6],
        pa.list_(pa.list_(pa.list_(pa.int64(), 2))),
        [[[1, 2], [3, 4]], [[5, 6]]],
    ),
    "sparse": (
        SparseFeature("n", "n", torch.int64, 9),
        None,
        pa.struct({"indices": pa.list_(pa.int64()), "values": pa.list_(pa.int64())}),
        {"indices": [1, 2], "values": [1, 2]},
    ),
    "sparse matrix": (
        SparseFeature(["n", "n"], "n", torch.int64, [9, 9]),
        None,
        pa.struct({"indices": pa.list_(pa.list_(pa.int64(), 2)), "values": pa.list_(pa.int64())}),
        {"indices": [[1, 1], [2, 2]], "values": [1, 2]},
    ),
    "sparse strings": (
        SparseFeature("m", "words", bytes, 9),
        None,
        pa.struct({"indices": pa.list_(pa.int64()), "values": pa.list_(pa.binary())}),
        None,
    ),
    "raw": (
        RawTensor((2, 3), torch.uint8),
        bytes(range(6)),
        pa.list_(pa.list_(pa.uint8(), 3), 2),
        [[0, 1, 2], [3, 4, 5]],
    ),
    "raw by key": (
        RawTensor(("size", -1), torch.int16),
        np.arange(6, dtype=np.int16).tobytes(),
        pa.list_(pa.list_(pa.int16())),
        [[0, 1, 2], [3, 4, 5]],
    ),
    "raw of any rank": (
        RawTensor("n", torch.uint8),
        bytes(range(2)),
        pa.struct({"shape": pa.list_(pa.int64()), "values": pa.list_(pa.uint8())}),
        {"shape": [2, 1], "values": [0, 1]},
    ),
    "image": (Image(), JPEG, pa.binary(), JPEG),
    "images": (Image(several="list"), [JPEG, JPEG], pa.list_(pa.binary()), [JPEG, JPEG]),
    "audio": (Audio(), b"RIFF", pa.binary(), b"RIFF"),
    "tensor": (
        SerializedTensor(),
        serialize_tensor(torch.ones(2)),
        pa.binary(),
        serialize_tensor(torch.ones(2)),
    ),
    "json": (Json(), '{"a": [1]}', pa.string(), '{"a": [1]}'),
    "nested": (
        NestedExample({"age": FixedLenFeature((), torch.int64), "photo": Image()}),
        encode_example({"age": 3, "photo": JPEG}),
        pa.struct({"age": pa.int64(), "photo": pa.binary()}),
        {"age": 3, "photo": JPEG},
    ),
}


@for_each("kind", KINDS)
def test_types_and_values(kind):
    spec, stored, wanted_type, wanted = KINDS[kind]
    row = {"size": 2, "n": [2, 1], **({} if stored is None else {"x": stored})}
    batch = table_of([encode_example(row)] * 3, {"x": spec})
    assert batch.schema.field("x").type == wanted_type
    assert batch.column("x").to_pylist() == [wanted] * 3


def test_arrays_of_different_shapes():
    spec = {"x": RawTensor(("h", "w"), torch.uint8)}
    rows = [(1, 2), (0, 3), (2, 1)]
    records = [encode_example({"x": bytes(h * w), "h": h, "w": w}) for h, w in rows]
    assert table_of(records, spec).column("x").to_pylist() == [[[0, 0]], [], [[0], [0]]]


def test_pictures_are_decoded_if_asked():
    record = encode_example({"x": JPEG})
    batch = table_of([record] * 2, {"x": Image()}, decode_images=True)
    assert batch.schema.field("x").type == pa.list_(pa.list_(pa.list_(pa.uint8())))
    (wanted,) = parse_example([record], {"x": Image()})["x"].tolist()
    assert batch.column("x").to_pylist() == [wanted] * 2
    normal = Image(normalize=((0, 0, 0), (1, 1, 1)))
    batch = table_of([record], {"x": normal}, decode_images=True)
    assert batch.schema.field("x").type == pa.list_(pa.list_(pa.list_(pa.float32())))


def test_lists_of_examples():
    features = ListFeatures(
        {"query": FixedLenFeature((), str, "")},
        {"score": FixedLenFeature((), torch.float32, -1.0), "words": VarLenFeature(bytes)},
        size_feature_name="size",
        mask_feature_name="mask",
        format="eie",
    )
    inner = [encode_example({"score": 0.5, "words": [b"a"]}), encode_example({})]
    record = encode_example(
        {"serialized_context": encode_example({"query": "q"}), "serialized_examples": inner}
    )
    assert (
        table_of([record, record], features).to_pylist()
        == [
            {
                "query": "q",
                "score": [0.5, -1.0],
                "words": [[b"a"], []],
                "size": 2,
                "mask": [True, True],
            }
        ]
        * 2
    )


def test_records_of_one_value(tmp_path):
    with TFRecordWriter(tmp_path / "x") as writer:
        writer.write(b'{"a": 1}')
        writer.write(b"[2]")
    assert TFRecordDataset(tmp_path / "x").to_arrow().to_pydict() == {
        "record": [b'{"a": 1}', b"[2]"]
    }
    table = TFRecordDataset(tmp_path / "x", Json()).to_arrow()
    assert table.to_pydict() == {"record": ['{"a": 1}', "[2]"]}


def test_where_records_are_from(tmp_path):
    with TFRecordWriter(tmp_path / "x") as writer:
        for _ in range(2):
            writer.write({"n": 1})
    features = {"at": Source(), "file": Source("path"), "n": FixedLenFeature((), torch.int64)}
    table = TFRecordDataset(tmp_path / "x", features).to_arrow()
    path = str(tmp_path / "x")
    size = 16 + len(encode_example({"n": 1}))
    assert table.to_pylist() == [
        {"at": {"path": path, "position": i, "offset": i * size}, "file": path, "n": 1}
        for i in range(2)
    ]


def test_what_has_no_type():
    with pytest.raises(TypeError, match=r"Arrow has no type for torch\.complex64"):
        table_of([], {"x": RawTensor((2,), torch.complex64)})


def test_without_pyarrow(monkeypatch, tmp_path):
    monkeypatch.setattr("torch_tfrecord.tables.arrow.pa", None)
    with pytest.raises(ImportError, match=r"pip install 'torch-tfrecord\[arrow\]'"):
        table_of([], {"x": Text()})
    with pytest.raises(ImportError, match=r"pip install 'torch-tfrecord\[arrow\]'"):
        write_arrow([], tmp_path / "x")
    assert not (tmp_path / "x").exists()


# Back.


ROWS = [
    {
        "i": 3,
        "b": True,
        "f": 0.5,
        "s": "é",
        "x": b"\xff",
        "many": [1, 2],
        "words": ["a", ""],
        "m": [[1, 2], [3, 4]],
    },
    {
        "i": -(2**63),
        "b": False,
        "f": math.inf,
        "s": "",
        "many": [],
        "words": [],
        "m": [[0, 0], [0, 0]],
    },
    {"i": 2**63 - 1, "b": True, "f": -0.0, "s": "z", "x": b"", "m": [[5, 6], [7, 8]]},
]


def own_records(tmp_path):
    """Deterministic Examples: an empty list has a kind."""
    empty = {"many": np.empty(0, np.int64), "words": np.empty(0, object)}
    with TFRecordWriter(tmp_path / "own.tfrecord") as writer:
        for row in ROWS:
            typed = {
                name: empty[name] if value == [] and name == "many" else value
                for name, value in row.items()
            }
            if row.get("words") == []:
                del typed["words"]
            writer.write(typed)
    return [*read_records(tmp_path / "own.tfrecord")]


def test_tfrecord_to_parquet_to_tfrecord(tmp_path):
    records = own_records(tmp_path)
    ds = TFRecordDataset(tmp_path / "own.tfrecord", infer_features(tmp_path / "own.tfrecord"))
    pa.parquet.write_table(pa.table(ds), tmp_path / "own.parquet")
    for source in (
        pa.parquet.read_table(tmp_path / "own.parquet"),
        pa.parquet.ParquetFile(tmp_path / "own.parquet").iter_batches(2),
        ds,
    ):
        assert write_arrow(source, tmp_path / "back.tfrecord") == [str(tmp_path / "back.tfrecord")]
        assert [*read_records(tmp_path / "back.tfrecord")] == records


def test_a_column_has_one_kind_in_all_rows(tmp_path):
    frame = pandas.DataFrame(
        {"n": pandas.array([1, None, 3], dtype="Int64"), "s": ["a", None, "c"]}
    )
    write_arrow(frame, tmp_path / "x")
    assert [decode_example(record) for record in read_records(tmp_path / "x")] == [
        {"n": np.array([1]), "s": [b"a"]},
        {},
        {"n": np.array([3]), "s": [b"c"]},
    ]
    table = pa.table(
        {
            "n": pa.array([1, None]),
            "none": pa.nulls(2),
            "d": pa.array(["u", "v"]).dictionary_encode(),
        }
    )
    write_arrow(table, tmp_path / "x")
    assert [decode_example(record) for record in read_records(tmp_path / "x")] == [
        {"n": np.array([1]), "d": [b"u"]},
        {"d": [b"v"]},
    ]


def test_columns_of_each_arrow_type(tmp_path):
    table = pa.table(
        {
            "u8": pa.array([255], pa.uint8()),
            "half": pa.array(np.array([0.5], np.float16)),
            "large": pa.array(["x"], pa.large_string()),
            "view": pa.array(["y"], pa.string_view()),
            "fixed": pa.array([b"ab"], pa.binary(2)),
            "bools": pa.array([[True, False]]),
            "large_list": pa.array([[1, 2]], pa.large_list(pa.int32())),
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(
                np.arange(4.0, dtype=np.float32).reshape(1, 2, 2)
            ),
        }
    )
    write_arrow(table, tmp_path / "x")
    (record,) = read_records(tmp_path / "x")
    found = {name: list(values) for name, values in decode_example(record).items()}
    assert found == {
        "u8": [255],
        "half": [0.5],
        "large": [b"x"],
        "view": [b"y"],
        "fixed": [b"ab"],
        "bools": [1, 0],
        "large_list": [1, 2],
        "tensor": [0, 1, 2, 3],
    }


def test_slices_of_tables_keep_their_rows(tmp_path):
    table = pa.table({"x": [[1], [2, 3], None, [4]], "s": ["a", "b", "c", "d"]}).slice(1, 2)
    write_arrow(table, tmp_path / "x")
    assert [decode_example(record)["s"] for record in read_records(tmp_path / "x")] == [
        [b"b"],
        [b"c"],
    ]
    first, second = read_records(tmp_path / "x")
    assert decode_example(first)["x"].tolist() == [2, 3]
    assert "x" not in decode_example(second)


def test_float64_is_rounded_and_told(tmp_path):
    with pytest.warns(UserWarning, match="float64 columns were rounded to float32.*: x; cast them"):
        write_arrow(pa.table({"x": [0.1], "y": [0.5]}), tmp_path / "x")
    (record,) = read_records(tmp_path / "x")
    assert decode_example(record)["x"] == np.float32(0.1)
    with pytest.raises(ValueError, match="column 'x': a value is outside float32"):
        write_arrow(pa.table({"x": [1e300]}), tmp_path / "y")
    assert not (tmp_path / "y").exists()


REFUSED = {
    "dates": (
        pa.array([pandas.Timestamp("2020-01-01")]),
        TypeError,
        r"no list of an Example holds timestamp",
    ),
    "structs": (pa.array([{"a": 1}]), TypeError, "no list of an Example holds struct"),
    "lists of lists": (pa.array([[[1], [2, 3]]]), TypeError, "no list of an Example holds list"),
    "null in a list": (pa.array([[1, None]]), ValueError, "expected lists without nulls"),
    "beyond int64": (pa.array([2**63], pa.uint64()), ValueError, "integer outside int64"),
}


@for_each("kind", REFUSED)
def test_what_is_refused(kind, tmp_path):
    array, error, text = REFUSED[kind]
    with pytest.raises(error, match=text) as caught:
        write_arrow(pa.table({"good": [1], "x": array}), tmp_path / "out")
    assert "'x'" in str(caught.value)
    assert [*tmp_path.iterdir()] == []


def test_no_table(tmp_path):
    for other in (5, "x.parquet", {"x": [1]}, [1]):
        with pytest.raises(TypeError, match="expected a table, a DataFrame, or record batches"):
            write_arrow(other, tmp_path / "out")
        assert [*tmp_path.iterdir()] == []


def test_by_features(tmp_path):
    features = {
        "x": RawTensor((2,), torch.uint8),
        "n": FixedLenFeature((), torch.float32),
        "t": Text(key="text"),
    }
    schema = pa.schema({"x": pa.list_(pa.uint8(), 2), "n": pa.int64(), "t": pa.string()})
    rows = [{"x": [1, 2], "n": 1, "t": "a"}, {"x": [3, 4], "n": 2, "t": "b"}]
    write_arrow(
        pa.Table.from_pylist(rows, schema),
        tmp_path / "x",
        features=features,
    )
    assert decode_example(next(read_records(tmp_path / "x"))) == {
        "n": np.float32(1),
        "text": [b"a"],
        "x": [b"\1\2"],
    }
    assert TFRecordDataset(tmp_path / "x", features).to_arrow().to_pylist() == rows


def test_shards(tmp_path):
    table = pa.table({"n": range(10)})
    paths = write_arrow(
        table, tmp_path / "x", num_shards=2, write_index=True, compression_type="GZIP"
    )
    assert [path.split("/")[-1] for path in paths] == [
        "x-00000-of-00002.tfrecord",
        "x-00001-of-00002.tfrecord",
    ]
    ds = TFRecordDataset(tmp_path / "x-*", {"n": FixedLenFeature((), torch.int64)}, index="require")
    assert sorted(ds.to_arrow()["n"].to_pylist()) == [*range(10)]
