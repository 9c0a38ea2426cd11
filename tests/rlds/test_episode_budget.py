"""`max_batch_bytes` of TFDS datasets and episodes."""

import re
import sys

import numpy as np
import pytest
from helpers import pure_python
from rlds_episodes import write_episodes
from tfds_values import directory

from torch_tfrecord import (
    LimitExceededError,
    TFRecordWriter,
    collate,
    encode_example,
    make_dataloader,
    tfds,
)

f = tfds.features


def test_load():
    folder = directory("drawings")
    size = max(
        sample["image"].nbytes
        for sample in tfds.load(folder, "train", features=["image"], index="memory")
    )
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
    with pytest.raises(
        LimitExceededError,
        match=r"record \d+ at byte \d+: .*at most 200000 bytes \(max_batch_bytes\)",
    ):
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


# Steps without bytes.

COUNT = 20_000
ZEROS = np.zeros(COUNT, np.int64)
ONE = np.eye(1, COUNT, COUNT - 1, dtype=np.int64)[0]  # one value in the last step
X = "steps/observation/x"
EMPTY_STEPS = {
    "tensors": (
        f.Tensor((None,), "int32", encoding="bytes"),
        np.zeros(0, np.int32),
        {X: [b""] * COUNT},
    ),
    "shaped tensors": (
        f.Tensor((None, None), "int16", encoding="bytes"),
        np.zeros((0, 0), np.int16),
        {f"{X}/value": [b""] * COUNT, f"{X}/shape": np.zeros(2 * COUNT, np.int64)},
    ),
    "words": (
        f.Sequence(f.Text()),
        ["a"],
        {f"{X}/ragged_flat_values": [b"a"], f"{X}/ragged_row_lengths_0": ONE},
    ),
    "frames": (
        f.Sequence(f.Image((4, 5, 3), encoding_format="png")),
        [],
        {f"{X}/ragged_flat_values": [b"no image"], f"{X}/ragged_row_lengths_0": ONE},
    ),
    "numbers": (
        f.Sequence(f.Scalar("int64")),
        [1],
        {f"{X}/ragged_flat_values": np.zeros(0, np.int64), f"{X}/ragged_row_lengths_0": ZEROS},
    ),
    "text": (f.Text(), "", {X: [b""] * COUNT}),
}


def hostile(folder, kind):
    """A directory of one episode whose steps hold next to nothing."""
    spec, value, lists = EMPTY_STEPS[kind]
    features = {"steps": f.Dataset({"observation": {"x": spec}})}
    tfds.write(
        folder, {"train": [{"steps": [{"observation": {"x": value}}]}]}, features, name="small"
    )
    [path] = folder.rglob("*.tfrecord*-of-*")
    with TFRecordWriter(path) as writer:
        writer.write(encode_example(lists))
    return folder


@pytest.fixture
def walked():
    """Each call that reads a step's value, or looks at a row of it."""
    calls = []

    def note(frame, event, _):
        if (
            event == "call"
            and frame.f_code.co_name == "decode"
            and "tfds" in frame.f_code.co_filename
        ):
            calls.append(frame.f_code)

    sys.setprofile(note)
    yield calls
    sys.setprofile(None)


@pytest.mark.parametrize("is_pure", [False, True])
@pytest.mark.parametrize("kind", EMPTY_STEPS)
def test_empty_steps_are_refused_before_they_are_walked(tmp_path, walked, kind, is_pure):
    folder = hostile(tmp_path, kind)
    walked.clear()
    text = r"record 0 at byte 0: .*expected a batch of at most 1000000 bytes \(max_batch_bytes\), got one that needs"
    with pure_python(is_pure):
        with pytest.raises(LimitExceededError, match=text):
            tfds.RLDSEpisodes(folder, "train", index="memory", max_batch_bytes=1_000_000)[0]
        windows = tfds.RLDSDataset(
            folder, "train", index="memory", window_size=COUNT, max_batch_bytes=1_000_000
        )
        with pytest.raises(LimitExceededError, match=text):
            windows[COUNT - 1]
        if kind not in (
            "frames",
            "numbers",
            "text",
        ):  # whose column needs no object for a step, or fails at once
            with pytest.raises(LimitExceededError, match=text):
                tfds.load(folder, "train", index="memory", max_batch_bytes=1_000_000)[0]
    assert len(walked) <= 2  # at most the one value
    few = tfds.RLDSDataset(folder, "train", index="memory", max_batch_bytes=1_000_000)
    assert len(few.__getitems__(range(10))) == 10
