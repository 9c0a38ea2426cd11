"""A batch, its samples, and two names of one key share nothing that can be changed, once somebody
can see both.
"""

import copy
import gc
import io
import wave
import weakref

import numpy as np
import pytest
import torch
from batches import assert_same
from torch.utils.data import DataLoader, default_collate
from torchvision.transforms import v2

from torch_tfrecord import (
    Audio,
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    Json,
    PaddedCollate,
    RaggedFeature,
    RandomResizedCrop,
    RawTensor,
    SequenceFeatures,
    SparseFeature,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_example,
    encode_image,
    encode_sequence_example,
    make_dataloader,
    parse_example,
    parse_single_example,
)

I64, F32 = torch.int64, torch.float32
FEATURES = {
    "scalar": FixedLenFeature((), I64),
    "row": FixedLenFeature((40,), F32),
    "half": FixedLenFeature((40,), torch.float16, key="row"),
    "ids": VarLenFeature(I64),
    "steps": FixedLenSequenceFeature((), I64, allow_missing=True, key="ids"),
    "ragged": RaggedFeature(I64, "ids", partitions=[RaggedFeature.RowLengths("lengths")]),
    "sparse": SparseFeature("index", "ids", I64, 10),
    "sparse_words": SparseFeature("index", "words", bytes, 10),
    "name": FixedLenFeature((), bytes),
    "names": FixedLenFeature((2,), str),
    "words": VarLenFeature(bytes),
    "image": Image(),
    "raw": RawTensor((-1,), torch.int16),
    "json": Json(),
    "sound": Audio(),
}
DENSE = ("scalar", "row", "half", "name", "image")


def sound(number):
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(np.arange(100 + number, dtype="<i2").tobytes())
    return file.getvalue()


def record(number):
    count = number % 4
    return {
        "scalar": number,
        "row": np.full(40, number, np.float32),
        "ids": np.arange(count) + 1,
        "lengths": [count, 0],
        "index": np.arange(count),
        "words": [f"w{number} {place}" for place in range(count)] or np.array([], object),
        "name": f"n{number}",
        "names": [f"a{number}", "b"],
        "image": encode_image(torch.full((3, 24, 32), number + 20, dtype=torch.uint8), "jpeg"),
        "raw": np.arange(6, dtype="<i2").tobytes(),
        "json": f'{{"boxes": [[{number}, 2]], "tags": ["x"]}}',
        "sound": sound(number),
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    with TFRecordWriter(folder / "a.tfrecord") as writer:
        for number in range(12):
            writer.write({name: value for name, value in record(number).items() if np.size(value)})
    return folder / "a.tfrecord"


def spoil(value):
    """Change everything in place that a batch or sample holds."""
    if isinstance(value, torch.Tensor):
        if value.is_sparse:
            value = value._values()
        (value.values() if value.is_nested else value).fill_(1)
    elif isinstance(value, dict):
        for part in [*value.values()]:
            spoil(part)
        value.clear()
    elif isinstance(value, (list, tuple)):
        for part in value:
            spoil(part)
        if isinstance(value, list):
            value.clear()
    elif hasattr(value, "flat_values"):
        spoil(value.flat_values)
    elif hasattr(value, "indices"):
        spoil([value.indices, value.values])


def seen(sample):
    """The sample as it is now, in Python's own types and new memory."""
    if isinstance(sample, tuple):
        return tuple(map(seen, sample))
    return {
        name: seen(part) if isinstance(part, dict) else copy.deepcopy(part)
        for name, part in sample.items()
    }


COLLATES = {
    "ours": collate,
    "ours, of a list": lambda samples: collate([*samples]),
    "ours, of some": lambda samples: collate([*samples][:-1]),
    "torch's": default_collate,
    "padded": PaddedCollate(),
}


def names_for(way):
    if way == "torch's":
        return DENSE
    return [
        name for name in FEATURES if way != "padded" or not name.startswith(("ragged", "sparse"))
    ]


@pytest.mark.parametrize("looked", ["before", "after", "at one before"])
@pytest.mark.parametrize("way", COLLATES)
def test_a_batch_shares_nothing_with_its_samples(path, way, looked):
    ds = TFRecordDataset(path, {name: FEATURES[name] for name in names_for(way)})
    expected = [seen(ds[position]) for position in (5, 0, 3, 7)]
    whole = COLLATES[way]([*ds.__getitems__([5, 0, 3, 7])])
    samples = ds.__getitems__([5, 0, 3, 7])
    if looked != "after":
        for sample in samples[:1] if looked == "at one before" else samples:
            [*sample.values()]
    batch = COLLATES[way](samples)
    assert_same(batch, whole)
    spoil(batch)
    assert_same([seen(sample) for sample in samples], expected)
    assert_same(COLLATES[way](samples), whole)


def test_sequences(tmp_path):
    with TFRecordWriter(tmp_path / "a") as writer:
        for number in range(4):
            lists = {"x": [[number], [5]], "w": [[b"a"], [b"%d" % number]]}
            writer.write(encode_sequence_example({"i": number}, lists))
    features = SequenceFeatures(
        {"i": FixedLenFeature((), I64)},
        {"x": FixedLenSequenceFeature((), I64), "w": VarLenFeature(bytes)},
    )
    ds = TFRecordDataset(tmp_path / "a", features)
    samples = ds.__getitems__([0, 3])
    spoil(collate(samples))
    assert_same([*map(seen, samples)], [seen(ds[0]), seen(ds[3])])


@pytest.mark.parametrize("fused", [False, True])
def test_random_crops_are_drawn_once(path, fused):
    """What is parsed again has the draws of the batch, and torch's generator goes on as if nothing
    was.
    """
    crop = Image(crop=RandomResizedCrop(8)) if fused else Image()
    transform = None if fused else v2.RandomResizedCrop(8)
    ds = TFRecordDataset(path, {"image": crop, "scalar": FEATURES["scalar"]}, transform=transform)
    torch.manual_seed(3)
    whole = collate(ds.__getitems__([1, 2, 3]))
    after = torch.rand(1)
    torch.manual_seed(3)
    samples = ds.__getitems__([1, 2, 3])
    batch = collate(samples)
    spoil(batch)
    assert_same(collate([dict(sample) for sample in samples]), whole)
    assert torch.rand(1) == after


# Two names of one key.


# Lists.


class Owner:
    """What a list may be part of a cycle with."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        "sample",
        "samples",
        "batch",
        "outer",
        "text",
        "single",
        "parsed",
        "loader",
        "threads",
        "texts of threads",
    ],
)
def test_a_cycle_through_a_list_of_strings_is_freed(path, way):
    features = {"words": FEATURES["words"], "name": FixedLenFeature((), str)}
    ds = TFRecordDataset(path, features)
    data = encode_example(record(3))
    words = {
        "sample": lambda: ds[3]["words"],
        "samples": lambda: ds.__getitems__([3, 7])[0]["words"],
        "batch": lambda: ds[[3, 7]]["words"][0],
        "outer": lambda: ds[[3, 7]]["words"],
        "text": lambda: ds[[3, 7]]["name"],
        "single": lambda: parse_single_example(data, features)["words"],
        "parsed": lambda: parse_example([data], {"names": FEATURES["names"]})["names"][0],
        "loader": lambda: next(iter(DataLoader(ds, 4, num_workers=1, collate_fn=collate)))["words"][
            3
        ],
        "threads": lambda: next(iter(make_dataloader(ds, 4, num_threads=1)))["words"][3],
        "texts of threads": lambda: next(iter(make_dataloader(ds, 4, num_threads=1)))["name"],
    }[way]()
    assert type(words) is list and words
    owner = Owner()
    owner.words = words
    words.append(owner)
    gone = weakref.ref(owner)
    del owner, words
    gc.collect()
    assert gone() is None
