"""From samples to batches: every row of collate's description, alone and behind DataLoader's
workers.

Covers columns/containers.
"""

import collections
import re
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.transforms import v2

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    PaddedCollate,
    RawTensor,
    SerializedTensor,
    Text,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_image,
    make_dataloader,
    parse_example,
    serialize_tensor,
)

FEATURES = {
    "image": Image(),
    "number": FixedLenFeature((), torch.int64),
    "pair": FixedLenFeature((2,), torch.float32),
    "raw": RawTensor((2, 2), torch.int16),
    "tensor": SerializedTensor(),
    "name": Text(),
    "data": FixedLenFeature((), bytes),
    "square": FixedLenFeature((2, 2), bytes),
    "words": VarLenFeature(bytes),
    "texts": VarLenFeature(str),
    "values": VarLenFeature(torch.float32),
    "same": VarLenFeature(torch.int64),
    "never": VarLenFeature(torch.float32),
}
FIXED = {
    name: FEATURES[name] for name in ("image", "number", "pair", "raw", "tensor", "name", "data")
}
COUNT = 6


def record(number):
    return {
        "image": encode_image(torch.full((3, 2, 4), number, dtype=torch.uint8), "png"),
        "number": number,
        "pair": torch.tensor([number, -number], dtype=torch.float32),
        "raw": torch.full((2, 2), number, dtype=torch.int16).numpy().tobytes(),
        "tensor": serialize_tensor(torch.full((3,), number)),
        "name": f"n{number}",
        "data": b"\0" * number,
        "square": [b"a", b"b", b"c", b"%d" % number],
        "words": [b"w\0"] * (number % 3),
        "texts": ["t"] * number,
        "values": torch.arange(number % 4, dtype=torch.float32),
        "same": [number, number],  # of varying length by its spec, of equal length in fact
        "never": torch.zeros(0),
    }


def without_empty_lists(features):
    """An empty Python list does not tell what it is a list of; a feature that is not there has no
    values either.
    """
    return {
        name: value
        for name, value in features.items()
        if not (isinstance(value, list) and not value)
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("collate") / "a.tfrecord"
    with TFRecordWriter(path, write_index=True) as writer:
        for number in range(COUNT):
            writer.write(without_empty_lists(record(number)))
    return path


def plain(value):
    """A batch in plain Python, with what each part is."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        assert value.layout == torch.jagged
        return "jagged", value.dtype, [row.tolist() for row in value.unbind()]
    if isinstance(value, torch.Tensor):
        return type(value).__name__, value.dtype, tuple(value.shape), value.tolist()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    assert isinstance(value, (bytes, str)), type(value)
    return value


def expected(numbers):
    samples = [record(number) for number in numbers]
    column = {name: [sample[name] for sample in samples] for name in FEATURES}
    count = len(samples)
    return {
        "image": (
            "Tensor",
            torch.uint8,
            (count, 3, 2, 4),
            [np.full((3, 2, 4), number).tolist() for number in numbers],
        ),
        "number": ("Tensor", torch.int64, (count,), list(numbers)),
        "pair": ("Tensor", torch.float32, (count, 2), [[n, -n] for n in numbers]),
        "raw": ("Tensor", torch.int16, (count, 2, 2), [[[n, n], [n, n]] for n in numbers]),
        "tensor": ("Tensor", torch.int64, (count, 3), [[n, n, n] for n in numbers]),
        "name": column["name"],
        "data": column["data"],
        "square": [[[b"a", b"b"], [b"c", b"%d" % n]] for n in numbers],
        "words": column["words"],
        "texts": column["texts"],
        "values": ("jagged", torch.float32, [values.tolist() for values in column["values"]]),
        "same": ("jagged", torch.int64, column["same"]),
        "never": ("jagged", torch.float32, [[] for _ in numbers]),
    }


def test_every_feature(path):
    ds = TFRecordDataset(path, FEATURES)
    assert plain(collate(list(ds))) == expected(range(COUNT))
    assert plain(collate(ds.__getitems__([4, 1]))) == expected([4, 1])
    assert plain(collate((ds[3],))) == expected([3])


def test_equals_what_parsing_a_batch_gives(path):
    ds = TFRecordDataset(path, FEATURES)
    batch = parse_example([ds.raw(position) for position in range(COUNT)], FEATURES)
    assert plain(batch) == plain(collate(list(ds)))


def test_torchs_default_collate_is_enough_for_fixed_shapes(path):
    (batch,) = DataLoader(TFRecordDataset(path, FIXED), batch_size=COUNT)
    wanted = expected(range(COUNT))
    got = plain(batch)
    assert {name: got[name][-3:] for name in ("number", "pair", "raw", "tensor", "image")} == {
        name: wanted[name][-3:] for name in ("number", "pair", "raw", "tensor", "image")
    }
    assert (batch["name"], batch["data"]) == (wanted["name"], wanted["data"])


# Single kinds of value


def test_bytes_and_str():
    assert collate([b"a", b"bcd\0"]) == [b"a", b"bcd\0"]
    assert collate(["a", ""]) == ["a", ""]


@pytest.mark.parametrize(
    "samples",
    [
        [[b"a"], [b"b", b"c"], []],
        [[], [b"b"]],
        [[], []],
        [["a", "b"], ["c", "d"]],
        [[b"a"], [b"b"]],
        [[[b"a", b"b"], [b"c", b"d"]], [[b"e", b"f"], [b"g", b"h"]]],
    ],
    ids=repr,
)
def test_lists_of_bytes_or_str_stay_with_their_sample(samples):
    assert collate(samples) == samples
    assert collate([{"x": sample} for sample in samples]) == {"x": samples}


def test_none_stays_a_list():
    assert collate([None, None]) == [None, None]
    assert collate([{"a": None}, {"a": torch.ones(1)}])["a"][0] is None


def test_numbers_become_tensors():
    assert torch.equal(collate([1, 2]), torch.tensor([1, 2]))
    assert torch.equal(collate([1.5, 2.0]), torch.tensor([1.5, 2.0], dtype=torch.float64))
    assert torch.equal(collate([True, False]), torch.tensor([True, False]))
    assert torch.equal(collate([np.float32(1), np.float32(2)]), torch.tensor([1.0, 2.0]))
    assert torch.equal(
        collate([np.ones(2), np.zeros(2)]),
        torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64),
    )


def test_vectors_of_unequal_length_become_jagged_also_without_a_feature():
    batch = collate([torch.tensor([1.0]), torch.zeros(0), torch.tensor([2.0, 3.0])])
    assert plain(batch) == ("jagged", torch.float32, [[1.0], [], [2.0, 3.0]])
    assert batch.offsets().tolist() == [0, 1, 1, 3]


PICTURES = {name: FEATURES[name] for name in ("image", "number")}


def looked_at(samples):
    for sample in samples:
        assert type(sample["image"]) is tv_tensors.Image
    return samples


@pytest.mark.parametrize("transform", [None, v2.Identity(), v2.CenterCrop((2, 4)), looked_at])
def test_every_batch_of_pictures_is_a_plain_tensor(path, transform):
    if transform is looked_at:
        transform = lambda sample: looked_at([sample])[0]  # noqa: E731
    ds = TFRecordDataset(path, PICTURES, transform=transform)
    stream = TFRecordIterableDataset(path, PICTURES, transform=transform)
    batches = TFRecordIterableDataset(path, PICTURES, transform=transform, batch_size=COUNT)
    options = {"shuffle": False, "transform": transform}
    every = [*range(COUNT)]
    looked_at([ds[0], next(iter(stream)), ds.__getitems__([1])[0]])
    found = {
        "torch": next(iter(DataLoader(ds, COUNT))),
        "collate": next(iter(DataLoader(ds, COUNT, collate_fn=collate))),
        "padded": PaddedCollate()(ds.__getitems__(every)),
        "looked at": collate(looked_at(list(ds.__getitems__(every)))),
        "looked at by torch": next(iter(DataLoader([*looked_at(list(ds))], COUNT))),
        "one by one": collate([ds[position] for position in every]),
        "list": ds[every],
        "threads": next(iter(make_dataloader(path, COUNT, PICTURES, **options))),
        "no threads": next(iter(make_dataloader(ds, COUNT, shuffle=False, num_threads=0))),
        "stream": next(iter(DataLoader(stream, COUNT))),
        "batches": next(iter(batches)),
        "parsed": parse_example([*map(ds.raw, every)], PICTURES),
        "alone": {"image": parse_example([record(n)["image"] for n in every], Image())},
    }
    pixels = [[[[number] * 4] * 2] * 3 for number in every]
    for way, batch in found.items():
        assert type(batch["image"]) is torch.Tensor, way
        assert batch["image"].tolist() == pixels, way


@pytest.mark.slow
def test_torch_compiles_what_takes_a_batch(path):
    def step(batch):
        return batch["image"].float().mean((1, 2, 3)) + batch["number"]

    compiled = torch.compile(step, backend="aot_eager")
    loader = make_dataloader(path, COUNT, PICTURES, shuffle=False, num_workers=1)
    for batches in (loader, DataLoader(TFRecordDataset(path, PICTURES), COUNT)):
        assert [compiled(batch).tolist() for batch in batches] == [[*range(0, 2 * COUNT, 2)]]


def test_boxes_stay_with_their_image():
    # torchvision has no batch of boxes: their number and the size of their image differ.
    for counts in ([1, 1], [2, 0], [3, 1]):
        boxes = [
            tv_tensors.BoundingBoxes(torch.ones(count, 4), format="XYXY", canvas_size=(5, size + 5))
            for size, count in enumerate(counts)
        ]
        batch = collate([{"boxes": box, "n": n} for n, box in enumerate(boxes)])
        assert all(got is box for got, box in zip(batch["boxes"], boxes, strict=True))


class Pair(NamedTuple):
    image: torch.Tensor
    label: int


def test_nesting():
    samples = [
        {"pair": Pair(torch.full((2,), n), n), "deep": {"list": [torch.tensor(n), (b"b", None)]}}
        for n in range(2)
    ]
    batch = collate(samples)
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].image.tolist() == [[0, 0], [1, 1]]
    assert batch["pair"].label.tolist() == [0, 1]
    numbers, (data, nothing) = batch["deep"]["list"]
    assert isinstance(batch["deep"]["list"], list)
    assert isinstance(batch["deep"]["list"][1], tuple)
    assert (numbers.tolist(), data, nothing) == ([0, 1], [b"b", b"b"], [None, None])


@pytest.mark.parametrize(
    "kind", [dict, collections.OrderedDict, MappingProxyType, collections.ChainMap]
)
def test_every_mapping(kind):
    batch = collate([kind({"b": 1, "a": b"x"}), kind({"a": b"y", "b": 2})])
    assert batch["b"].tolist() == [1, 2]
    assert batch["a"] == [b"x", b"y"]


def test_tuples_stay_tuples_and_lists_lists():
    batch = collate([(torch.tensor(1), b"a"), (torch.tensor(2), b"b")])
    assert type(batch) is tuple
    assert batch[0].tolist() == [1, 2]
    assert batch[1] == [b"a", b"b"]
    assert type(collate([[1, 2], [3, 4]])) is list


def test_the_samples_are_left_alone(path):
    samples = list(TFRecordDataset(path, FEATURES))
    before = [plain(sample) for sample in samples]
    batch = collate(samples)
    batch["pair"] += 1
    assert [plain(sample) for sample in samples] == before


# What cannot be a batch


def tensor(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


SHAPES = "cannot batch tensors with different shapes: "
WRONG = [
    (
        [{"image": tensor(3, 2, 2)}, {"image": tensor(3, 2, 3)}],
        ValueError,
        f"['image']: {SHAPES}[3, 2, 2] in sample 0",
    ),
    (
        [{"image": tensor(3, 2, 2)}] * 4 + [{"image": tensor(3)}],
        ValueError,
        f"['image']: {SHAPES}[3, 2, 2] in sample 0, [3] in sample 4 (crop, resize or pad them in a transform; "
        "Image takes crop=)",
    ),
    (
        [{"a": {"b": tensor()}}, {"a": {"b": tensor(1)}}],
        ValueError,
        f"['a']['b']: {SHAPES}[] in sample 0, [1]",
    ),
    (
        [(b"", tensor(1, 2)), (b"", tensor(2, 1))],
        ValueError,
        f"[1]: {SHAPES}[1, 2] in sample 0, [2, 1] in sample 1",
    ),
    ([tensor(1, 2), tensor(2, 1)], ValueError, f"samples: {SHAPES}[1, 2] in sample 0"),
    (
        [{"n": tensor(2)}, {"n": tensor(2)}, {"n": tensor(2, dtype=torch.int64)}],
        ValueError,
        "['n']: cannot batch tensors with different dtypes: torch.float32 in sample 0, torch.int64 in sample 2",
    ),
    (
        [{"n": tensor(2)}, {"n": tensor(3, dtype=torch.int8)}],
        ValueError,
        "['n']: cannot batch tensors with different",
    ),
    (
        [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1, "c": 2}],
        ValueError,
        "samples: expected the keys ['a', 'b'] in each, got ['a', 'c'] in sample 2",
    ),
    (
        [{"a": 1, "b": 2}, {"a": 1}],
        ValueError,
        "expected the keys ['a', 'b'] in each, got ['a'] in sample 1",
    ),
    (
        [{"x": {"a": 1}}, {"x": {}}],
        ValueError,
        "['x']: expected the keys ['a'] in each, got [] in sample 1",
    ),
    (
        [{"x": (1, 2)}, {"x": (1,)}],
        ValueError,
        "['x']: expected sequences of equal length, got lengths [1, 2]",
    ),
    (
        [{"x": tensor(1)}, {"x": None}],
        TypeError,
        "['x']: expected the same type in each, got Tensor in sample 0, NoneType in sample 1",
    ),
    (
        [{"x": 1}, 5],
        TypeError,
        "samples: expected the same type in each, got dict in sample 0, int in sample 1",
    ),
    (
        [(1, 2), None],
        TypeError,
        "samples: expected the same type in each, got tuple in sample 0, NoneType in sample 1",
    ),
]


@pytest.mark.parametrize(("samples", "error", "text"), WRONG, ids=range(len(WRONG)))
def test_errors_name_the_feature_and_the_sample(samples, error, text):
    with pytest.raises(
        error, match="^" + ("" if text.startswith("expected") else re.escape(text))
    ) as caught:
        collate(samples)
    assert text in str(caught.value)


def test_no_samples():
    with pytest.raises(ValueError, match=r"^a batch needs at least one sample, got none$"):
        collate([])
