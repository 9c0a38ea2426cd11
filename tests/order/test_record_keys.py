"""Random draws are a function of (seed, epoch, position) alone.

Covers order/leaves.
"""

import pickle

import pytest
import torch

from torch_tfrecord import (
    Image,
    RandomResizedCrop,
    TFRecordDataset,
    TFRecordWriter,
    encode_image,
    make_dataloader,
)

FEATURES = {"x": Image(crop=RandomResizedCrop(16))}


@pytest.fixture
def path(tmp_path):
    """Ten times one picture."""
    picture = torch.arange(3 * 40 * 40).reshape(3, 40, 40).to(torch.uint8)
    with TFRecordWriter(tmp_path / "a") as writer:
        for _ in range(10):
            writer.write({"x": encode_image(picture, "png")})
    return str(tmp_path / "a")


def drawn(samples):
    return [sample["x"].flatten().tolist() for sample in samples]


@pytest.mark.parametrize("transform", [None, dict])
def test_of_a_dataset(path, transform):
    ds = TFRecordDataset(path, FEATURES, transform=transform)
    found = []
    for epoch in (0, 3):
        ds.set_epoch(epoch)
        every = drawn(ds)
        assert drawn(ds.__getitems__([7, -1, 7])) == [every[7], every[9], every[7]]
        assert drawn([ds[::-1][0]]) == every[9:]  # by the position in the whole
        assert drawn([pickle.loads(pickle.dumps(ds))[4]]) == [every[4]]
        found += every
    assert len({*map(tuple, found)}) == 20
    with pytest.raises(ValueError, match="epoch must be an integer of at least 0, got -1"):
        ds.set_epoch(-1)


def test_no_seed_is_drawn_from_torch(path, monkeypatch):
    def crops():
        loader = make_dataloader(path, 4, FEATURES, seed=None)
        return drawn(loader), loader.state_dict()["seed"]

    with torch.random.fork_rng():
        torch.manual_seed(1)
        first, other = crops(), crops()
        torch.manual_seed(1)
        assert crops() == first
    assert first[0] != other[0]
    assert drawn(make_dataloader(path, 4, FEATURES, seed=first[1])) == first[0]
    wanted = "seed must be an integer, the same on all 2 ranks, got None"
    with pytest.raises(ValueError, match=wanted):
        make_dataloader(path, 4, FEATURES, seed=None, rank=0, world_size=2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=wanted):
        make_dataloader(path, 4, FEATURES, seed=None)


def test_crops_of_a_seed(path):
    def crops(seed):
        loader = make_dataloader(path, 10, FEATURES, shuffle=False, seed=seed)
        return [*drawn(loader), *drawn(loader)]

    found = [crop for seed in (0, 1, 2) for crop in crops(seed)]
    assert len({*map(tuple, found)}) == 6
    assert crops(1) == found[2:4]
