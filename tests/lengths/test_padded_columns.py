"""PaddedCollate of a batch that is columns: the same batches and the same errors as of its samples.

Covers lengths/padding.
"""

import copy
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchvision import tv_tensors

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    LimitExceededError,
    PaddedCollate,
    RaggedFeature,
    SparseFeature,
    SparseList,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    encode_example,
    make_dataloader,
)
from torch_tfrecord.columns import Nested
from torch_tfrecord.loading import ColumnBatch

DTYPES = [torch.int64, torch.float32, torch.bool, torch.uint8, torch.bfloat16, torch.float64]


def shown(batch):
    """A batch as something that compares: types, dtypes, bits."""
    if isinstance(batch, torch.Tensor):
        bits = batch.as_subclass(torch.Tensor).contiguous().reshape(-1).view(torch.uint8).tolist()
        return type(batch), batch.dtype, tuple(batch.shape), bits
    if isinstance(batch, dict):
        return {key: shown(value) for key, value in batch.items()}
    return type(batch), [*map(shown, batch)] if isinstance(batch, tuple) else batch


def outcome(pad, batch):
    try:
        return shown(pad(batch))
    except (LimitExceededError, TypeError, ValueError) as error:
        return type(error), str(error)


def both_ways(pad, batch):
    """What comes of columns, and of the samples that they are."""
    found = outcome(pad, batch)
    assert batch.is_columns
    list(batch)
    assert not batch.is_columns
    return found, outcome(pad, batch)


def numbers(dtype, shape):
    count = torch.Size(shape).numel()
    return (
        (torch.arange(count, dtype=torch.int64) % 2 + (0 if dtype == torch.bool else 3))
        .reshape(shape)
        .to(dtype)
    )


INNER = st.lists(st.integers(0, 3), max_size=2).map(tuple)
LENGTHS = st.integers(0, 5)


@st.composite
def columns(draw, count, depth=1):
    kinds = [
        "dense",
        "jagged",
        "strings",
        "words",
        "lists",
        "image",
        "none",
        "ragged",
        "sparse",
        "sparse list",
        "rows",
    ]
    kind = draw(st.sampled_from(kinds + (["dict", "tuple"] * 3 if depth else [])))
    lengths = [draw(LENGTHS) for _ in range(count)]
    dtype, inner = draw(st.sampled_from(DTYPES)), draw(INNER)
    word = draw(st.sampled_from([b"a", "a"]))
    if kind == "dict":
        return {
            name: draw(columns(count, depth - 1))
            for name in draw(st.sampled_from(["x", "xy", "zyx"]))
        }
    if kind == "tuple":
        return tuple(draw(columns(count, depth - 1)) for _ in range(draw(st.integers(1, 3))))
    return {
        "dense": lambda: numbers(dtype, (count, *inner)),
        "jagged": lambda: Nested(
            numbers(dtype, (sum(lengths), *inner)), dtype, (np.cumsum([0, *lengths]),)
        ),
        "strings": lambda: [word * length for length in lengths],
        "words": lambda: [[word] * length for length in lengths],
        "lists": lambda: [[[word] * (length % 3)] * length for length in lengths],
        "image": lambda: tv_tensors.Image(numbers(torch.uint8, (count, 3, *(*inner, 2, 2)[:2]))),
        "none": lambda: [None] * count,
        "ragged": lambda: Nested(
            numbers(dtype, (sum(lengths),)), dtype, (np.arange(count + 1), np.cumsum([0, *lengths]))
        ),
        "sparse": lambda: torch.eye(count).to_sparse(),
        "sparse list": lambda: SparseList(torch.tensor([[0], [0]]), [word], (count, 2)),
        "rows": lambda: [numbers(dtype, (length, *inner)) for length in lengths],
    }[kind]()


SHAPES = st.one_of(
    st.none(),
    st.integers(-1, 9),
    st.lists(st.sampled_from([None, -1, 0, 2, 3, 5, 2**40]), max_size=3),
)
VALUES = st.sampled_from([0, None, 1, -1, 2.5, 300, True, b"pad", "pad", 1e300])


def nested(draw, column, entries):
    """An argument that is nested as the columns are, mostly."""
    if isinstance(column, dict) and draw(st.integers(0, 9)):
        return {
            key: nested(draw, value, entries)
            for key, value in column.items()
            if draw(st.booleans())
        }
    if isinstance(column, tuple) and draw(st.integers(0, 9)):
        return tuple(nested(draw, value, entries) for value in column)
    return draw(entries)


@pytest.mark.daily
@settings(max_examples=200)
@given(data=st.data(), count=st.integers(1, 5), return_lengths=st.booleans())
def test_the_same_as_of_samples(data, count, return_lengths):
    column = data.draw(columns(count, 2))
    pad = PaddedCollate(
        nested(data.draw, column, SHAPES) if data.draw(st.booleans()) else None,
        nested(data.draw, column, VALUES) if data.draw(st.booleans()) else 0,
        return_lengths=return_lengths,
        max_batch_bytes=data.draw(st.sampled_from([100, 1 << 20])),
    )
    again = copy.deepcopy(column)
    batch = ColumnBatch(column, count, lambda number: f"<path>: record {number + 7}", lambda: again)
    of_columns, of_samples = both_ways(pad, batch)
    assert of_columns == of_samples


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("padded") / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        for number in range(23):
            count = number * 7 % 5
            words = [f"w{word}" for word in range(count)]
            values = {
                "ids": [*range(count)],
                "x": [0.5] * (2 * count),
                "small": [1.5] * count,
                "words": words,
                "label": number,
                "name": "n",
            }
            writer.write(
                encode_example({key: value for key, value in values.items() if value != []})
            )
    return path


FEATURES = {
    "ids": VarLenFeature(torch.int64),
    "small": VarLenFeature(torch.int32, key="ids"),
    "x": VarLenFeature(torch.float32),
    "pairs": FixedLenSequenceFeature((2,), torch.float32, allow_missing=True, key="x"),
    "words": VarLenFeature(bytes),
    "text": VarLenFeature(str, key="words"),
    "rows": FixedLenSequenceFeature((1,), bytes, allow_missing=True, key="words"),
    "ragged": RaggedFeature(torch.int64, key="ids"),
    "label": FixedLenFeature((), torch.int64),
    "name": FixedLenFeature((), bytes),
}


@pytest.mark.parametrize(
    "pad",
    [
        PaddedCollate(),
        PaddedCollate(
            {"ids": [9], "pairs": [None, 4], "words": 5, "rows": (4, 2)}, {"ids": -1, "pairs": 0.5}
        ),
        PaddedCollate(padding_values=2, return_lengths=True),
        PaddedCollate(padding_values={"text": "<pad>"}, return_lengths=True),
        PaddedCollate({"x": 3}),
        PaddedCollate({"words": 3}),
        PaddedCollate({"pairs": [None, 1]}),
        PaddedCollate(padding_values={"small": 2**40}),
        PaddedCollate(max_batch_bytes=500),
    ],
)
def test_a_dataset(path, pad):
    dataset = TFRecordDataset(path, FEATURES)
    of_columns, of_samples = both_ways(pad, dataset.__getitems__([3, 1, 22, 5, 0, 4]))
    assert of_columns == of_samples
    one_by_one = outcome(pad, [dataset[position] for position in (3, 1, 22, 5, 0, 4)])
    if pad.max_batch_bytes == 500:  # one by one nobody knows the record
        assert re.fullmatch(
            re.escape(one_by_one[1]) + rf": {re.escape(str(path))}: record \d+ at byte \d+",
            of_columns[1],
        )
    else:
        assert of_columns == one_by_one


def test_sparse_features_are_the_same_error(path):
    batch = TFRecordDataset(
        path, {"s": SparseFeature("ids", "small", torch.float32, 99)}
    ).__getitems__([20, 5])
    error = "['s']: padding is only supported for dense tensors, numbers, bytes and str, got a jagged or sparse tensor"
    assert both_ways(PaddedCollate(), batch) == ((TypeError, f"{error} in sample 0"),) * 2


def test_samples_that_were_changed_count(path):
    batch = TFRecordDataset(path, {"ids": FEATURES["ids"]}).__getitems__([3, 1])
    batch[0] = {"ids": torch.tensor([7, 8, 9])}
    assert PaddedCollate()(batch)["ids"].tolist() == [[7, 8, 9], [0, 1, 0]]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders(path, workers):
    pad = PaddedCollate({"pairs": [None, 3]}, {"ids": -1}, return_lengths=True)
    dataset = TFRecordDataset(path, FEATURES)
    expected = [
        shown(pad([dataset[position] for position in range(begin, min(begin + 4, 23))]))
        for begin in range(0, 23, 4)
    ]
    loader = DataLoader(dataset, 4, collate_fn=pad, num_workers=workers)
    assert [*map(shown, loader)] == expected
    ours = make_dataloader(
        path, 4, features=FEATURES, collate_fn=pad, shuffle=False, num_workers=workers
    )
    assert [*map(shown, ours)] == expected


@pytest.mark.parametrize(
    "column",
    [
        torch.ones(2, 3, requires_grad=True),
        torch.nested.nested_tensor_from_jagged(
            torch.ones(3, requires_grad=True), torch.tensor([0, 1, 3])
        ),
    ],
)
def test_gradients_pass(column):
    batch = PaddedCollate({"x": [4]})(ColumnBatch({"x": column}, 2))
    assert batch["x"].shape == (2, 4)
    assert batch["x"].requires_grad
