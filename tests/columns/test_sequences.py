"""SequenceExamples: spec/example.md section 4 as a table, our own specs in feature lists, datasets,
errors.

Covers columns/reading.
"""
# ruff: noqa: E501 - tables of whole texts read better in one line each.

import pickle

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    ImageDecodeError,
    ParseError,
    RaggedFeature,
    RaggedTensor,
    RawTensor,
    SequenceFeatures,
    SparseFeature,
    Text,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_image,
    encode_sequence_example,
    parse_sequence_example,
    parse_single_sequence_example,
)
from torch_tfrecord.columns import Feature, make_parser

I64, F32 = torch.int64, torch.float32
X = {"x": FixedLenSequenceFeature((), I64)}
ANY = {"x": FixedLenSequenceFeature((), I64, allow_missing=True)}


def steps(record, spec, key="x"):
    return parse_single_sequence_example(record, None, {key: spec})[1][key]


def column(records, spec, key="x"):
    return parse_sequence_example(records, None, {key: spec})[1][key]


def sequence(**lists):
    return encode_sequence_example({}, lists)


TABLE = {
    "c = 7, x = [1], [2]": ("0a0c0a0a0a016312051a030a0107 12150a130a0178120e0a051a030a01010a051a030a0102", [1, 2]),
    "0 steps": ("0a0012070a050a01781200", []),
    "entry with key only": ("12050a030a0178", []),
    "value before key": ("0a00120e0a0c12070a051a030a01010a0178", [1]),
    "two packed chunks in one step": ("0a0012110a0f0a0178120a0a081a060a01010a0102", "step 0: feature 'x' (int64): Number of int64 values != expected: got 2, expected 1 for shape []"),
    "second step an empty list": ("0a0012190a170a017812120a051a030a01010a021a000a051a030a0103", "step 1: feature 'x' (int64): Number of int64 values != expected: got 0, expected 1 for shape []"),
    "second step, kind not set": ("0a0012170a150a017812100a051a030a01010a000a051a030a0103", "step 1: feature 'x' (int64): Number of int64 values != expected: got 0, expected 1 for shape []"),
    "list key twice": ("0a0012230a0c0a017812070a051a030a01010a130a0178120e0a051a030a01020a051a030a0103", [2, 3]),
    "two feature_lists messages": ("0a00120e0a0c0a017812070a051a030a0101120e0a0c0a017912070a051a030a0102", [1]),
    "no message at all": ("", "feature 'x' (int64): Feature list 'x' is required but could not be found: the record has no features. Did you mean to give allow_missing=True?"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_the_bytes_of_the_reference(name):
    record, want = bytes.fromhex(TABLE[name][0]), TABLE[name][1]
    if isinstance(want, str):
        with pytest.raises(ParseError) as caught:
            parse_single_sequence_example(record, None, X)
        assert str(caught.value) == want
        with pytest.raises(ParseError) as caught:
            parse_sequence_example([bytes.fromhex(TABLE["0 steps"][0]), record], None, X)
        assert str(caught.value) == f"record 1: {want}"
    else:
        assert parse_single_sequence_example(record, None, X)[1]["x"].tolist() == want
        _, batch, lengths = parse_sequence_example([record], None, X)
        assert (batch["x"].tolist(), lengths["x"].tolist()) == ([want], [len(want)])
    if "chunks" in name:
        assert [row.tolist() for row in steps(record, VarLenFeature(I64)).unbind()] == [[1, 2]]


def test_batches_are_padded():
    records = [sequence(x=[1, 2]), b"", sequence(x=[9])]
    context, batch, lengths = parse_sequence_example(records, None, ANY)
    assert context == {}
    assert batch["x"].tolist() == [[1, 2], [0, 0], [9, 0]]
    assert lengths["x"].tolist() == [2, 0, 1]
    rows = FixedLenSequenceFeature((2,), torch.float16, allow_missing=True)
    records = [sequence(x=np.array([[1.0, 2.0]])), b""]
    assert column(records, rows).tolist() == [[[1, 2]], [[0, 0]]]
    assert column([sequence(x=["a", "b"]), b""], FixedLenSequenceFeature((), str, True)) == [
        ["a", "b"],
        ["", ""],
    ]
    assert column([sequence(x=["a"]), b""], FixedLenSequenceFeature((1,), bytes, True)) == [
        [[b"a"]],
        [[b""]],
    ]


def test_no_records():
    spec = ANY | {
        "v": VarLenFeature(F32),
        "i": Image(),
        "r": RaggedFeature(I64, "v", [RaggedFeature.RowLengths("n")]),
    }
    context, batch, lengths = parse_sequence_example([], {"c": FixedLenFeature((2,), I64)}, spec)
    assert context["c"].shape == (0, 2)
    assert (batch["x"].shape, lengths["x"].shape, lengths["x"].dtype) == ((0, 0), (0,), I64)
    assert (batch["v"].shape, batch["r"].shape, batch["i"]) == (
        (0, None, None),
        (0, None, None, None),
        [],
    )


def test_one_record_alone_has_no_batch_dimension():
    context, sequences, lengths = parse_sequence_example(
        encode_sequence_example({"c": 1}, {"x": [4, 5]}), {"c": FixedLenFeature((), I64)}, X
    )
    assert (context["c"].tolist(), sequences["x"].tolist(), lengths["x"].tolist()) == (1, [4, 5], 2)


def test_steps_of_varying_length():
    record = sequence(x=[[1, 2], np.zeros(0, int), [3]], s=["a", ["b", "c"]])
    value = steps(record, VarLenFeature(torch.uint8))
    assert (value.layout, value.dtype) == (torch.jagged, torch.uint8)
    assert [row.tolist() for row in value.unbind()] == [[1, 2], [], [3]]
    assert steps(b"", VarLenFeature(I64)).shape[0] == 0
    for spec in (VarLenFeature(I64), RaggedFeature(I64)):
        batch = column([record, b"", sequence(x=[5])], spec)
        assert isinstance(batch, RaggedTensor)
        assert batch.to_list() == [[[1, 2], [], [3]], [], [[5]]]
    assert column([record, b""], VarLenFeature(str), "s") == [[["a"], ["b", "c"]], []]
    unset = bytes.fromhex("12 09 0a070a017812020a00")
    assert [row.tolist() for row in steps(unset, VarLenFeature(I64)).unbind()] == [[]]
    assert steps(unset, VarLenFeature(bytes)) == [[]]


def test_partitions_are_read_step_by_step():
    record = sequence(v=[[1, 2, 3], [4]], p=[[0, 1, 3], [0, 1]])
    spec = RaggedFeature(I64, "v", [RaggedFeature.RowSplits("p")])
    assert steps(record, spec).to_list() == [[[1], [2, 3]], [[4]]]
    assert column([record, b"", record], spec).to_list() == [
        [[[1], [2, 3]], [[4]]],
        [],
        [[[1], [2, 3]], [[4]]],
    ]
    words = sequence(x=[["a", "b"], ["c", "d"]])
    pairs = RaggedFeature(str, partitions=[RaggedFeature.UniformRowLength(2)])
    assert steps(words, pairs) == [[["a", "b"]], [["c", "d"]]]
    assert column([words, b""], pairs) == [[[["a", "b"]], [["c", "d"]]], []]
    halves = RaggedFeature(I64, "v", [RaggedFeature.UniformRowLength(1)])
    assert [row.tolist() for row in steps(record, halves).unbind()] == [[[1], [2], [3]], [[4]]]
    with pytest.raises(
        ParseError,
        match=r"^step 1: feature 'x' \(RowSplits, key 'p'\): the rows and the values do not",
    ):
        steps(sequence(v=[[1], [2]], p=[[0, 1], [0]]), spec)
    with pytest.raises(
        ParseError, match=r"expected feature lists of equal length, got \{'v': 2, 'p': 1\}"
    ):
        steps(sequence(v=[[1], [2]], p=[[0, 1]]), spec)
    loose = RaggedFeature(I64, "v", [RaggedFeature.RowSplits("p")], validate=False)
    assert steps(sequence(v=[[1], [2]], p=[[0, 1]]), loose).to_list() == [[[1]], []]


# --- the context
# ----------------------------------------------------------------------------------------------------


UNSET = "0a070a050a01631200"
EMPTY = "0a090a070a016312021a00"


@pytest.mark.parametrize(
    ("record", "spec", "text"),
    [
        (UNSET, FixedLenFeature((), I64, 5), "feature 'c' (int64): Unexpected number of elements: the feature is there without a value"),
        (UNSET, FixedLenFeature((), bytes, "x"), "feature 'c' (bytes): Unexpected number of elements: the feature is there without a value"),
        (EMPTY, FixedLenFeature((), I64, 5), "feature 'c' (int64): Number of int64 values != expected: got 0, expected 1 for shape []"),
        (EMPTY, FixedLenFeature((), F32, 5), "feature 'c' (float32): Data types don't match. Data type: int64 but expected type: float; the record holds int64: read torch.int64, then convert"),
        ("", FixedLenFeature((), I64), "feature 'c' (int64): key 'c' is required but could not be found: the record has no features; to read records that lack it, take VarLenFeature, or a spec with default_value="),
    ],
)  # fmt: skip
def test_contexts_that_do_not_fit(record, spec, text):
    good = encode_sequence_example(
        {"c": b"" if spec.dtype is bytes else 1.0 if spec.dtype == F32 else 1}, {}
    )
    for parse in (
        lambda: parse_single_sequence_example(bytes.fromhex(record), {"c": spec}),
        lambda: parse_sequence_example([good, bytes.fromhex(record)], {"c": spec}),
    ):
        with pytest.raises(ParseError) as caught:
            parse()
        assert caught.value.args[0] == text
    assert caught.value.position == 1


# --- our own specs in feature lists
# ----------------------------------------------------------------------------------


def picture(value, height=4, width=5):
    return encode_image(torch.full((3, height, width), value, dtype=torch.uint8), "png")


def test_frames():
    record = sequence(x=[picture(1), picture(2)])
    video = steps(record, Image())
    assert type(video) is tv_tensors.Video
    assert (video.dtype, video.shape) == (torch.uint8, (2, 3, 4, 5))
    assert video[:, 0, 0, 0].tolist() == [1, 2]
    batch = column([record, record], Image("L"))
    assert type(batch) is torch.Tensor
    assert batch.shape == (2, 2, 1, 4, 5)
    mixed = steps(sequence(x=[picture(1), picture(2, 5)]), Image())
    assert [type(item) for item in mixed] == [tv_tensors.Image] * 2
    assert [item.shape for item in mixed] == [(3, 4, 5), (3, 5, 5)]
    assert isinstance(column([record, sequence(x=[picture(1)])], Image()), list)
    assert isinstance(column([record, sequence(x=[picture(1), picture(2, 5)])], Image()), list)
    assert steps(sequence(x=[]), Image()) == []


def test_sizes_come_from_the_step_or_the_context():
    context, lists = (
        {"h": 4, "n": 2},
        {"x": [picture(1), picture(2, 4, 6)], "w": [5, 6], "r": [b"\1\2", b"\3\4"]},
    )
    record = encode_sequence_example(context, lists)
    assert len(steps(record, Image(key="x", shape=("h", "w", 3)))) == 2
    assert steps(record, RawTensor(("n",), torch.uint8), "r").tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ParseError) as caught:
        steps(record, Image(shape=("h", 5, 3)))
    assert str(caught.value) == (
        "step 1: feature 'x' (Image): expected an image of (height, width, channels) (4, 5, 3), got (4, 6, 3)"
    )
    with pytest.raises(
        ParseError, match=r"^step 0: .* could not be found: the record has 'h', 'n', 'r', 'w', 'x'$"
    ):
        steps(record, Image(shape=("gone", 5, 3)))
    short = encode_sequence_example({}, {"x": [picture(1)] * 2, "w": [5]})
    with pytest.raises(
        ParseError, match=r"^step 1: feature 'x' \(size, key 'w'\): key 'w' is required"
    ):
        steps(short, Image(shape=(4, "w", 3)))


@pytest.mark.parametrize(
    ("record", "spec", "kind", "text"),
    [
        (sequence(x=[b"SECRET"]), Image(), ImageDecodeError, "step 0: feature 'x' (Image): "),
        (sequence(x=["ok", b"SECRET\xff"]), Text(), ParseError, "step 1: feature 'x' (Text): expected UTF-8 text, got an invalid byte at 6 of 7"),
        (sequence(x=["ok", ["a", "b"]]), Text(), ParseError, "step 1: feature 'x' (Text): Number of bytes values != expected: got 2, expected 1 for shape []"),
        (sequence(y=[1]), Image(), ParseError, "feature 'x' (Image): Feature list 'x' is required but could not be found: the record has 'y'. Did you"),
        (sequence(x=[1, 1.5]), FixedLenSequenceFeature((), I64), ParseError, "step 1: feature 'x' (int64): Data types don't match. Data type: float but expected type: int64"),
        (sequence(x=[[1, 2], [3]]), FixedLenSequenceFeature((2,), I64), ParseError, "step 1: feature 'x' (int64): Number of int64 values != expected: got 1, expected 2 for shape [2]"),
        (sequence(x=[1, np.zeros(0, "f4")]), VarLenFeature(I64), ParseError, "step 1: feature 'x' (int64): Data types don't match. Data type: float but expected type: int64"),
        (sequence(x=["a", 1]), VarLenFeature(str), ParseError, "step 1: feature 'x' (str): Data types don't match. Data type: int64 but expected type: string"),
        (sequence(x=[1, 300]), FixedLenSequenceFeature((), torch.uint8), ParseError, "feature 'x' (uint8): a value is outside the range of uint8, 0 to 255: the cast would change it"),
        (b"SECRET", Text(), ParseError, "Could not parse example input: expected one SequenceExample message, got 6 bytes that are not one"),
    ],
)  # fmt: skip
def test_lists_that_do_not_fit(record, spec, kind, text):
    with pytest.raises(kind) as caught:
        steps(record, spec)
    assert str(caught.value).startswith(text)
    assert "SECRET" not in str(caught.value)
    with pytest.raises(kind) as caught:
        column([record, b"\xff"], spec)
    assert caught.value.position == 0


def test_the_lowest_failing_position_is_reported():
    good = encode_sequence_example({"c": 1}, {"x": [1]})
    no_list, no_context = encode_sequence_example({"c": 1}, {}), sequence(x=[1])
    spec = ({"c": FixedLenFeature((), I64)}, X)
    for rows, position in (
        ([good, no_list, no_context], 1),
        ([good, no_context, no_list], 1),
        ([no_list, b"\xff"], 0),
    ):
        with pytest.raises(ParseError) as caught:
            parse_sequence_example(rows, *spec)
        assert caught.value.position == position


# --- specs
# ----------------------------------------------------------------------------------------------------------


def test_wrong_arguments():
    class Unknown(Feature):
        pass

    for empty in ((), (None, None), ({}, {}), ({}, None)):
        with pytest.raises(
            ValueError, match="Both `context_features` and `sequence_features` argument are None"
        ):
            parse_single_sequence_example(b"", *empty)
    for spec in (FixedLenSequenceFeature((), I64), SparseFeature("a", "b", I64, 3)):
        with pytest.raises(
            ValueError,
            match=f"^Unsupported {type(spec).__name__} for key 'c' of a context: expected",
        ):
            parse_single_sequence_example(b"", {"c": spec})
    for spec in (FixedLenFeature((), I64), SparseFeature("a", "b", I64, 3)):
        with pytest.raises(
            ValueError,
            match=f"^Unsupported {type(spec).__name__} for key 'x' of a feature list: exp",
        ):
            parse_sequence_example([], None, {"x": spec})
    with pytest.raises(ValueError, match=r"^Value feature_list.dense_defaults\[x\] must be None"):
        parse_sequence_example([], None, {"x": FixedLenSequenceFeature((), I64, True, -1)})
    with pytest.raises(TypeError, match=r"^Unsupported Unknown for key 'x' of a feature list"):
        parse_sequence_example([], None, {"x": Unknown()})
    with pytest.raises(TypeError, match="a name in features must be str, got int"):
        parse_sequence_example([], None, {1: VarLenFeature(I64)})
    for argument in ([X], "x"):
        with pytest.raises(
            TypeError, match="sequence_features must be a mapping of names to specs"
        ):
            parse_single_sequence_example(b"", None, argument)
    with pytest.raises(TypeError, match="context_features must be a mapping of names to specs"):
        SequenceFeatures([1])
    for serialized in ("text", [b""], None):
        with pytest.raises(TypeError, match="Input serialized must be a scalar"):
            parse_single_sequence_example(serialized, None, X)
    with pytest.raises(TypeError, match="a list of bytes, got str at 1"):
        parse_sequence_example([b"", "x"], None, X)


def test_parsers():
    features = SequenceFeatures({"c": FixedLenFeature((), I64)}, X)
    parser = make_parser(features)
    record = encode_sequence_example({"c": 1}, {"x": [2]})
    again = pickle.loads(pickle.dumps(parser))
    assert again.features == features
    assert (
        again.single(record)
        == parser.single(record)
        == ({"c": torch.tensor(1)}, {"x": torch.tensor([2])})
    )
    with pytest.raises(TypeError, match="unhashable"):
        hash(features)
    assert repr(features) == (
        "SequenceFeatures(context_features={'c': FixedLenFeature((), torch.int64)}, "
        "sequence_features={'x': FixedLenSequenceFeature((), torch.int64)})"
    )


@pytest.mark.parametrize("wrong", [None, 0, 499, 500, 501, 1203])
def test_many_steps(wrong, tmp_path):
    counts = [700, 1204, 3]
    steps = [np.arange(2 * count).reshape(-1, 2).tolist() for count in counts]
    ragged = [[[number] * (number % 3 + 1) for number in range(count)] for count in counts]
    if wrong is not None:
        steps[1][wrong] = [5]
    records = [sequence(x=x, y=y) for x, y in zip(steps, ragged, strict=True)]
    with TFRecordWriter(tmp_path / "a") as writer:
        [writer.write(record) for record in records]
    pair, number = FixedLenSequenceFeature((2,), I64), VarLenFeature(I64)
    ds = TFRecordDataset(tmp_path / "a", SequenceFeatures({}, {"x": pair, "y": number}))
    if wrong is not None:
        with pytest.raises(ParseError, match=rf"record 1 .*: step {wrong}: .* got 1, expected 2"):
            ds.__getitems__([0, 1, 2])
        return
    batches = [collate(samples) for samples in ds._load_batches([[0], [2, 1], [2]])]
    for (_, found), rows in zip(batches, [[0], [2, 1], [2]], strict=True):
        assert [row.tolist() for row in found["x"].unbind()] == [steps[row] for row in rows]
        assert found["y"].to_list() == [ragged[row] for row in rows]


def test_datasets_read_sequence_examples(tmp_path):
    path = tmp_path / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        for number in range(3):
            writer.write(encode_sequence_example({"c": number}, {"x": list(range(number + 1))}))
        writer.write(b"")
    features = SequenceFeatures({"c": FixedLenFeature((), I64)}, X)
    dataset = TFRecordDataset(path, features, index="memory")
    context, sequences = dataset[2]
    assert (context["c"].tolist(), sequences["x"].tolist()) == (2, [0, 1, 2])
    with pytest.raises(ParseError, match=r"a.tfrecord: record 3 at byte \d+: feature 'c'"):
        dataset[3]
    stream = iter(TFRecordIterableDataset(path, features))
    assert [next(stream)[1]["x"].tolist() for _ in range(3)] == [[0], [0, 1], [0, 1, 2]]
