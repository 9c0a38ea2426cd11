"""`max_batch_bytes` of TFDS datasets and episodes."""

import re

import pytest
from rlds_episodes import write_episodes
from tfds_values import directory

from torch_tfrecord import LimitExceededError, collate, make_dataloader, tfds


def test_load():
    folder = directory("drawings")
    size = max(sample["image"].nbytes for sample in tfds.load(folder, "train", features=["image"], index="memory"))
    small = tfds.load(folder, "train", features=["image"], index="memory", max_batch_bytes=5 * size)
    assert len(small.__getitems__([0, 1])) == 2
    text = rf"record \d+ at byte \d+: feature 'image'.* at most {5 * size} bytes"
    with pytest.raises(LimitExceededError, match=text):
        small.__getitems__([0] * 10)
    text = rf"feature '\w+'.* at most {5 * size} bytes"  # of the first feature whose column is too large
    with pytest.raises(LimitExceededError, match=text):
        tfds.load(folder, "train", index="memory", max_batch_bytes=5 * size).__getitems__([0] * 10)
    with pytest.raises(LimitExceededError, match=r"at most 10 bytes"):
        tfds.load(folder, "train", index="memory", max_batch_bytes=10)[0]


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("episodes")
    return write_episodes(folder) or folder


def test_windows(episodes):
    ds = tfds.RLDSDataset(episodes, "train", window_size=2, max_batch_bytes=200_000)
    batch = collate(ds.__getitems__([0, 1]))
    assert len(batch["action"]) == 2
    positions = list(range(len(ds)))
    with pytest.raises(LimitExceededError, match=r"record \d+ at byte \d+: .*at most 200000 bytes \(max_batch_bytes\)"):
        ds.__getitems__(positions)
    with pytest.raises(LimitExceededError, match="at most 1000 bytes"):
        tfds.RLDSDataset(episodes, "train", max_batch_bytes=1000)[0]
    whole = tfds.RLDSDataset(episodes, "train", window_size=2)
    assert len(collate(whole.__getitems__(positions))["action"]) == len(ds)


def test_windows_in_a_loader(episodes):
    ds = tfds.RLDSDataset(episodes, "train", window_size=2, max_batch_bytes=200_000)
    with pytest.raises(LimitExceededError, match="at most 200000 bytes"):
        list(make_dataloader(ds, len(ds), num_threads=2))


def test_whole_episodes(episodes):
    assert len(tfds.RLDSEpisodes(episodes, "train")[0]["steps"]["action"])
    with pytest.raises(LimitExceededError, match=r"record 0 at byte \d+: .*at most 5000 bytes"):
        tfds.RLDSEpisodes(episodes, "train", max_batch_bytes=5000)[0]


@pytest.mark.parametrize("wrong", [0, 1.5])
def test_arguments(episodes, wrong):
    calls = [
        lambda: tfds.load(directory("drawings"), "train", index="memory", max_batch_bytes=wrong),
        lambda: tfds.RLDSDataset(episodes, "train", max_batch_bytes=wrong),
        lambda: tfds.RLDSEpisodes(episodes, "train", max_batch_bytes=wrong),
    ]
    for call in calls:
        with pytest.raises(
            ValueError if type(wrong) is int else TypeError,
            match=f"^max_batch_bytes must be an integer of at least 1, got {re.escape(str(wrong))}",
        ):
            call()
