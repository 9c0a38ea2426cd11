"""Keys for random draws: a function of (epoch, position) alone, and they reach the parser that asks
for them.

Covers order/leaves.
"""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    RandomResizedCrop,
    TFRecordDataset,
    TFRecordWriter,
    encode_image,
    make_dataloader,
)
from torch_tfrecord.columns.parsers import ExampleParser
from torch_tfrecord.order.leaves import PositionBatch
from torch_tfrecord.random_stream import record_keys


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Ten records, and a parser that gives each record's key as its sample."""
    with TFRecordWriter(tmp_path / "a") as writer:
        for number in range(10):
            writer.write({"n": number})

    def single(parser, record, key=0):
        return {"key": torch.tensor(key >> 1)}

    def batches(parser, records, keys, borders):
        numbers = torch.from_numpy((keys >> np.uint64(1)).astype(np.int64))
        return [{"key": numbers[begin:end]} for begin, end in pairwise(borders)]

    monkeypatch.setattr(ExampleParser, "single", single)
    monkeypatch.setattr(ExampleParser, "batches", batches)
    build = ExampleParser.__init__

    def keyed(parser, features, **options):
        build(parser, features, **options)
        parser.needs_keys = True

    monkeypatch.setattr(ExampleParser, "__init__", keyed)
    return str(tmp_path / "a")


FEATURES = {"n": FixedLenFeature((), torch.int64)}


def halves(positions, *seeds):
    return [key >> 1 for key in record_keys(np.array(positions), *seeds).tolist()]


@pytest.mark.parametrize("transform", [None, dict])
def test_of_a_dataset(path, transform):
    ds = TFRecordDataset(path, FEATURES, transform=transform)
    for epoch in (0, 3):
        ds.set_epoch(epoch)
        assert [int(sample["key"]) for sample in ds.__getitems__([7, -1, 7])] == halves(
            [7, 9, 7], epoch
        )
        assert int(ds[4]["key"]) == halves([4], epoch)[0]
        assert int(ds[::-1][0]["key"]) == halves([9], epoch)[0]  # by the position in the whole
        assert int(pickle.loads(pickle.dumps(ds))[4]["key"]) == halves([4], epoch)[0]
    of_another = ds.__getitems__(PositionBatch([2, 1], 8))
    assert [int(sample["key"]) for sample in of_another] == halves([2, 1], 8)
    with pytest.raises(ValueError, match="epoch must be an integer of at least 0, got -1"):
        ds.set_epoch(-1)


def keys_of(loader):
    return [key for batch in loader for key in batch["key"].tolist()]


def test_no_seed_is_drawn_from_torch(path, monkeypatch):
    def keys():
        loader = make_dataloader(path, 4, FEATURES, seed=None)
        return keys_of(loader), loader.state_dict()["seed"]

    with torch.random.fork_rng():
        torch.manual_seed(1)
        first, other = keys(), keys()
        torch.manual_seed(1)
        assert keys() == first
    assert first[0] != other[0]
    assert keys_of(make_dataloader(path, 4, FEATURES, seed=first[1])) == first[0]
    wanted = "seed must be an integer, the same on all 2 ranks, got None"
    with pytest.raises(ValueError, match=wanted):
        make_dataloader(path, 4, FEATURES, seed=None, rank=0, world_size=2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=wanted):
        make_dataloader(path, 4, FEATURES, seed=None)


def test_crops_of_a_seed(tmp_path):
    picture = torch.arange(3 * 40 * 40).reshape(3, 40, 40).to(torch.uint8)
    with TFRecordWriter(tmp_path / "b") as writer:
        for _ in range(4):
            writer.write({"x": encode_image(picture, "png")})
    features = {"x": Image(crop=RandomResizedCrop(16))}

    def crops(seed):
        loader = make_dataloader(tmp_path / "b", 4, features, shuffle=False, seed=seed)
        return [batch["x"].flatten().tolist() for _ in range(2) for batch in loader]

    found = [crop for seed in (0, 1, 2) for crop in crops(seed)]
    assert len({*map(tuple, found)}) == 6
    assert crops(1) == found[2:4]
