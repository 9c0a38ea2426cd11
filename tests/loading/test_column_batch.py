"""Batches read as columns: equal to batches of single samples for every spec, and a list of samples
for everybody.

Covers loading/collating, columns/reading.
"""

import itertools

import numpy as np
import pytest
import torch
from batches import assert_same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate
from torchvision import tv_tensors

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    RaggedFeature,
    RawTensor,
    SerializedTensor,
    SparseFeature,
    Text,
    TFRecordDataset,
    TFRecordError,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_example,
    encode_image,
    serialize_tensor,
)
from torch_tfrecord.loading import ColumnBatch

SPECS = {
    "scalar": FixedLenFeature((), torch.int64),
    "small": FixedLenFeature((), torch.uint8, key="scalar"),
    "matrix": FixedLenFeature((2, 2), torch.float32, key="four"),
    "half": FixedLenFeature((4,), torch.float16, key="four"),
    "absent": FixedLenFeature((2,), torch.float32, [0.5, 1.5]),
    "sometimes": FixedLenFeature((), torch.int64, -1),
    "name": FixedLenFeature((), bytes),
    "names": FixedLenFeature((2,), str),
    "text": Text(key="name"),
    "ids": VarLenFeature(torch.int64),
    "ids32": VarLenFeature(torch.int32, key="ids"),
    "weights": VarLenFeature(torch.float32),
    "words": VarLenFeature(bytes),
    "strs": VarLenFeature(str, key="words"),
    "steps": FixedLenSequenceFeature((), torch.int64, allow_missing=True, key="ids"),
    "pairs": FixedLenSequenceFeature((2,), torch.float32, allow_missing=True, key="even"),
    "grid": FixedLenSequenceFeature(
        (1, 2), torch.float32, allow_missing=True, default_value=7.0, key="even"
    ),
    "word_steps": FixedLenSequenceFeature((), bytes, allow_missing=True, key="words"),
    "word_pairs": FixedLenSequenceFeature((2,), str, allow_missing=True, key="even_words"),
    "ragged": RaggedFeature(torch.float32, value_key="weights"),
    "ragged2": RaggedFeature(
        torch.float32, value_key="weights", partitions=[RaggedFeature.RowLengths("row_lengths")]
    ),
    "ragged3": RaggedFeature(
        torch.float32,
        value_key="weights",
        partitions=[
            RaggedFeature.RowSplits("outer_splits"),
            RaggedFeature.RowLengths("row_lengths"),
        ],
    ),
    "uniform": RaggedFeature(
        torch.float32, value_key="even", partitions=[RaggedFeature.UniformRowLength(2)]
    ),
    "ragged_words": RaggedFeature(bytes, value_key="words"),
    "ragged_words2": RaggedFeature(
        bytes, value_key="words", partitions=[RaggedFeature.RowLengths("word_lengths")]
    ),
    "sparse": SparseFeature("index", "value", torch.float32, 10),
    "sparse_sorted": SparseFeature("sorted_index", "value", torch.float32, 10, already_sorted=True),
    "sparse_words": SparseFeature("index", "value_words", bytes, 10),
    "image": Image(),
    "gray": Image("L", key="image"),
    "raw": RawTensor((2, -1), torch.int16, key="raw"),
    "raw_named": RawTensor(("height", 2), torch.uint8, key="raw_bytes"),
    "serialized": SerializedTensor(),
}


def record(number, sizes):
    """A record of small lists of these sizes; the image and arrays are of one size for all
    records.
    """
    rng = np.random.default_rng(number)
    ids, weights, words, pairs, index = sizes
    row_lengths = [weights // 2, weights - weights // 2, 0]
    values = {
        "scalar": number % 200,
        "four": rng.integers(-9, 9, 4).astype(np.float32),
        "name": f"näme{number}",
        "names": [f"a{number}", ""],
        "ids": rng.integers(-9, 9, ids),
        "weights": rng.standard_normal(weights).astype(np.float32),
        "words": np.array([b"w%d\0x" % value for value in range(words)], dtype=object).tolist()
        or None,
        "even": rng.standard_normal(2 * pairs).astype(np.float32),
        "even_words": [f"p{value}" for value in range(2 * pairs)] or None,
        "row_lengths": row_lengths,
        "outer_splits": [0, number % 3, 3],
        "word_lengths": [words],
        "index": rng.choice(10, index, replace=False),
        "sorted_index": np.sort(rng.choice(10, index, replace=False)),
        "value": rng.standard_normal(index).astype(np.float32),
        "value_words": [b"v%d" % value for value in range(index)] or None,
        "image": encode_image(
            torch.from_numpy(rng.integers(0, 255, (3, 2, 3), dtype=np.uint8)), "png"
        ),
        "raw": rng.integers(-9, 9, 6).astype("<i2").tobytes(),
        "height": 3,
        "raw_bytes": bytes(range(6)),
        "serialized": serialize_tensor(torch.from_numpy(rng.standard_normal((2, 2)))),
    }
    if number % 2:
        values["sometimes"] = number
    return encode_example({key: value for key, value in values.items() if value is not None})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    rng = np.random.default_rng(0)
    for file, count in enumerate([5, 0, 1, 9]):
        with TFRecordWriter(folder / f"part-{file}", write_index=True) as writer:
            for number in range(count):
                writer.write(record(100 * file + number, rng.integers(0, 4, 5).tolist()))
    return folder


COUNT = 15


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:none of 15 records")  # the feature "absent"
@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(positions=st.lists(st.integers(-COUNT, COUNT - 1), min_size=1, max_size=2 * COUNT))
def test_a_batch_is_what_single_samples_make(folder, name, positions):
    ds = TFRecordDataset(folder / "part-*", {name: SPECS[name]})
    batch = ds.__getitems__(positions)
    samples = [ds[position] for position in positions]
    assert isinstance(batch, ColumnBatch)
    assert_same(list(batch), samples)
    assert_same(collate(batch), collate(samples))


@pytest.mark.daily
@pytest.mark.filterwarnings("ignore:none of .* records looked at")
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    positions=st.lists(st.integers(0, 6), min_size=1),
    part=st.sampled_from([slice(2, 9), slice(-1, -8, -1)]),
)
def test_all_specs_at_once_in_a_slice(folder, positions, part):
    ds = TFRecordDataset(folder / "part-*", SPECS)[part]
    samples = [ds[position] for position in positions]
    assert_same(list(ds.__getitems__(positions)), samples)
    assert_same(collate(ds.__getitems__(positions)), collate(samples))


@pytest.mark.parametrize("positions", [[1.0], ["1"], [None], [0, 1.5], [[1, 2]]])
def test_no_positions(folder, positions):
    with pytest.raises(TypeError):
        TFRecordDataset(folder / "part-*", {"scalar": SPECS["scalar"]}).__getitems__(positions)


@pytest.fixture(scope="module")
def dense(folder):
    return TFRecordDataset(
        folder / "part-*", {name: SPECS[name] for name in ("scalar", "matrix", "name", "image")}
    )


def test_for_default_collate_and_list_idioms(dense):
    batch = dense.__getitems__([4, 0, 9])
    samples = [dense[position] for position in (4, 0, 9)]
    assert_same(default_collate(batch), default_collate(samples))
    assert [int(sample["scalar"]) for sample in batch] == [
        int(sample["scalar"]) for sample in samples
    ]
    assert [number for number, _ in enumerate(batch)] == [0, 1, 2]
    # of dicts: their keys
    assert_same(list(zip(*batch, strict=True)), list(zip(*samples, strict=True)))
    assert_same(batch[-1], samples[-1])
    assert_same(batch[1:], samples[1:])
    assert_same([*reversed(batch)], samples[::-1])
    assert isinstance(batch[0]["image"], tv_tensors.Image)
    assert len(batch) == 3
    assert batch
    with pytest.raises(IndexError):
        batch[3]


def test_what_a_collate_function_did_to_the_samples_counts(dense):
    batch = dense.__getitems__([0, 1, 2, 3])
    name = next(iter(batch[0]))
    taken = [sample.pop(name) for sample in batch]
    assert name not in collate(batch)
    assert len(taken) == 4
    batch = dense.__getitems__([0, 1, 2, 3])
    batch.sort(key=lambda sample: -int(sample["scalar"]))
    batch[0] = batch[1]
    del batch[3]
    batch.append(dense[7])
    expected = sorted((int(dense[number]["scalar"]) for number in range(4)), reverse=True)
    assert collate(batch)["scalar"].tolist() == [
        expected[1],
        expected[1],
        expected[2],
        int(dense[7]["scalar"]),
    ]
    assert len(batch.__add__([1])) == 5


def test_raw_batches_compare_as_lists():
    assert ColumnBatch({"x": [b"a", b"b"]}, 2) == [{"x": b"a"}, {"x": b"b"}]


def test_without_features_and_with_a_transform_plain_lists(folder, dense):
    ds = TFRecordDataset(folder / "part-*")
    assert ds.__getitems__([3, 0, -1]) == [ds.raw(3), ds.raw(0), ds.raw(-1)]
    calls = []
    seen = TFRecordDataset(
        folder / "part-*", {"n": SPECS["small"]}, transform=lambda s: calls.append(s) or len(calls)
    )
    assert seen.__getitems__([2, 1, 2]) == [1, 2, 3]  # one after another, in order
    assert [int(call["n"]) for call in calls] == [2, 1, 2]


BAD = {  # number of the record -> what is wrong with it, in the order in which a batch of all columns would see it
    3: {"b": 1.5},
    5: {"a": "text"},
    6: {"a": [1, 2]},
}


@pytest.mark.parametrize("positions", [*itertools.permutations([0, 3, 5, 6]), (7, 7, 6)])
@pytest.mark.parametrize("transform", [None, dict])
def test_the_error_is_that_of_the_first_bad_position(tmp_path, positions, transform):
    with TFRecordWriter(tmp_path / "a", write_index=True) as writer:
        for number in range(8):
            writer.write(
                encode_example({"a": number, "b": number, "ids": [1] * 3} | BAD.get(number, {}))
            )
    features = {
        "a": FixedLenFeature((), torch.int64),
        "b": FixedLenFeature((), torch.int64),
        "odd": FixedLenSequenceFeature((3,), torch.int64, True, key="ids"),
    }
    ds = TFRecordDataset(tmp_path / "a", features, transform=transform)
    first = next(position for position in positions if position in BAD)
    with pytest.raises(TFRecordError) as alone:
        ds[first]
    with pytest.raises(TFRecordError) as batch:
        ds.__getitems__(positions)
    assert str(batch.value) == str(alone.value)
    assert type(batch.value) is type(alone.value)
    assert (batch.value.path, batch.value.offset, batch.value.position) == (
        str(tmp_path / "a"),
        alone.value.offset,
        first,
    )
