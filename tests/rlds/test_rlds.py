"""Windows of steps and whole episodes: against TFDS's own values, and against the drawn episodes'
formulas.

Covers rlds/dataset, rlds/episode_columns, rlds/episode_store, rlds/step_samples.
"""

import gzip
import hashlib
import io
import json
import os
import pickle
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage
from PIL.ImageFile import ImageFile as PillowFile
from rlds_episodes import FEATURES, LENGTHS, action, pixels, state, write_episodes
from torch.utils.data import DataLoader
from wire_examples import Example

from torch_tfrecord import (
    CorruptRecordError,
    ImageDecodeError,
    IndexMismatchError,
    ParseError,
    TFRecordWriter,
    collate,
    decode_example,
    decode_image,
    tfds,
)
from torch_tfrecord.loading import ReadAheadLoader
from torch_tfrecord.native import native_module
from torch_tfrecord.tfds import RLDSDataset, RLDSEpisodes

DATA = Path(__file__).parents[1] / "data" / "tfds_rlds"
EXPECTED = json.loads(gzip.decompress((DATA / "expected.json.gz").read_bytes()))
STEPS = [(number, at) for number, length in enumerate(LENGTHS) for at in range(length)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A directory whose indexes are built; not to be changed."""
    directory = write_episodes(tmp_path_factory.mktemp("rlds") / "drawn" / "1.0.0")
    RLDSDataset(directory)
    return directory


@pytest.fixture
def own(drawn, tmp_path):
    """A copy that a test may damage; times are kept, so that its indexes stay fresh."""
    return Path(shutil.copytree(drawn, tmp_path / "own" / "1.0.0"))


@pytest.fixture
def tfds_written(tmp_path):
    return Path(shutil.copytree(DATA / "drawn_episodes", tmp_path / "drawn_episodes")) / "0.1.0"


# Against TFDS.


def assert_value(found, expected):
    if isinstance(expected, str):
        assert (found.decode() if isinstance(found, bytes) else found) == expected
        return
    array = (found.movedim(-3, -1) if "sha256" in expected else found).numpy()
    if "sha256" in expected:
        assert list(array.shape) == expected["shape"]
        assert hashlib.sha256(array.tobytes(order="C")).hexdigest() == expected["sha256"]
        return
    assert str(array.dtype) == expected["dtype"]
    assert array.tolist() == expected["values"]


def leaf(tree, path):
    for name in path.split("/"):
        tree = tree[name]
    return tree


def first(samples):
    return samples[0]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("split", ["train", "val"])
def test_every_step_is_tfds_own(tfds_written, split, num_workers):
    ds = RLDSDataset(tfds_written, split)
    loader = DataLoader(ds, batch_size=1, collate_fn=first, num_workers=num_workers)
    expected = [
        (number, at, episode)
        for number, episode in enumerate(EXPECTED[split])
        for at in range(len(episode["steps"]))
    ]
    for (number, at, episode), sample in zip(expected, loader, strict=True):
        for path, value in episode["steps"][at].items():
            found = leaf(sample, path)
            assert_value(found[0] if path.startswith(("action/", "observation/")) else found, value)
        for path in ("episode_metadata/name", "episode_metadata/gains"):
            assert_value(leaf(sample, path), episode[path])
        assert (
            sample["task"]["language_instruction"]
            == f"push block {episode['episode_metadata/name'].split()[1]}"
        )
        assert (sample["_traj_index"], sample["_frame_index"], sample["_len"]) == (
            number,
            at,
            len(episode["steps"]),
        )
        assert sample["dataset_name"] == "drawn_episodes"


def test_every_episode_is_tfds_own(tfds_written):
    episodes = RLDSEpisodes(tfds_written, "train")
    assert len(episodes) == len(EXPECTED["train"])
    for number, expected in enumerate(EXPECTED["train"]):
        episode = episodes[number]
        for at, step in enumerate(expected["steps"]):
            for path, value in step.items():
                assert_value(leaf(episode["steps"], path)[at], value)


def test_sequences_in_steps_are_windows_too(tfds_written):
    sample = RLDSDataset(tfds_written, "train[2:3]", window_size=3, pad="zero")[1]
    expected = [step["observation/points"] for step in EXPECTED["train"][2]["steps"][:2]]
    points = sample["observation"]["points"]
    assert [item.tolist() for item in points[1:]] == [item["values"] for item in expected]
    assert not points[0].any()
    assert sample["observation"]["natural_language_instruction"] == [
        b"",
        b"push block 2",
        b"push block 2",
    ]
    assert sample["observation"]["depth"].shape == (3, 6, 5)


# Windows.


def test_samples_at_every_step(drawn):
    ds = RLDSDataset(drawn, window_size=2, action_horizon=3)
    assert len(ds) == len(STEPS)
    for position, (number, at) in enumerate(STEPS):
        sample = ds[position]
        length = LENGTHS[number]
        seen = [max(at - 1, 0), at]
        done = [min(at + ahead, length - 1) for ahead in range(3)]
        observation = sample["observation"]
        assert torch.equal(
            observation["image"], torch.stack([pixels(number, step) for step in seen])
        )
        assert torch.equal(
            observation["wrist_image"], torch.stack([pixels(number, step, 16, 16) for step in seen])
        )
        assert torch.equal(
            observation["state"], torch.stack([state(number, step) for step in seen])
        )
        assert observation["timestep"].tolist() == seen
        assert observation["pad_mask"].tolist() == [at > 0, True]
        assert torch.equal(sample["action"], torch.stack([action(number, step) for step in done]))
        assert sample["action_pad_mask"].tolist() == [at + ahead < length for ahead in range(3)]
        assert sample["task"] == {"language_instruction": f"task {number} ü"}
        assert sample["language_instruction"] == f"task {number} ü"
        assert (sample["reward"], sample["is_first"], sample["is_last"]) == (
            at,
            at == 0,
            at == length - 1,
        )
        assert sample["episode_metadata"] == {
            "name": f"episode {number}",
            "success": torch.tensor(number % 2 == 0),
        }
        assert (sample["_traj_index"], sample["_frame_index"], sample["_len"]) == (
            number,
            at,
            length,
        )
        assert ds.locate(position) == (number, at)


def test_zero_padding(drawn):
    # the episode of one step
    sample = RLDSDataset(drawn, window_size=3, action_horizon=2, pad="zero")[5]
    observation = sample["observation"]
    assert torch.equal(observation["image"][2], pixels(1, 0))
    assert not observation["image"][:2].any()
    assert observation["state"].tolist() == [[0, 0], [0, 0], [100, -1]]
    assert observation["pad_mask"].tolist() == [False, False, True]
    assert sample["action"].tolist() == [[1, 0, 0.5], [0, 0, 0]]
    assert sample["action_pad_mask"].tolist() == [True, False]


def test_positions(drawn):
    ds = RLDSDataset(drawn)
    assert ds[-1]["action"].tolist() == ds[len(STEPS) - 1]["action"].tolist()
    assert [sample["_frame_index"] for sample in ds.__getitems__([4, 0, 7])] == [4, 0, 1]
    part = ds[3:9:2]
    assert [tuple(part.locate(i)) for i in range(len(part))] == STEPS[3:9:2]
    assert part[-1]["_frame_index"] == STEPS[7][1]
    for position in (len(STEPS), -len(STEPS) - 1):
        with pytest.raises(IndexError, match="out of range for 49 steps"):
            ds[position]
    assert "49 positions in 4 episodes of drawn/1.0.0" in repr(ds)


def test_splits_are_of_episodes(drawn):
    assert RLDSDataset(drawn, "train[1:3]").num_steps.tolist() == [1, 40]
    ds = RLDSDataset(drawn, "train[2:3]+train[:1]")
    assert ds.num_steps.tolist() == [40, 5]
    assert torch.equal(ds[40]["observation"]["image"][0], pixels(0, 0))
    assert ds[40]["_traj_index"] == 1
    episodes = RLDSEpisodes(drawn)[1:]
    assert [episode["_len"] for episode in episodes] == [1, 40, 3]
    assert episodes[-1]["steps"]["reward"].tolist() == [0, 1, 2]
    with pytest.raises(IndexError, match="out of range for 3 episodes"):
        episodes[3]


# Batches.


def half(sample):
    sample["action"] = sample["action"] / 2
    return sample


def assert_same(found, expected):
    """Equal in values, kinds and the order of names."""
    if isinstance(expected, dict):
        assert isinstance(found, dict)  # a sample of a batch is a dict of a class of its own
        assert list(found) == list(expected)
        for name in expected:
            assert_same(found[name], expected[name])
        return
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


def relabel(episode):
    episode["action"] = episode["action"].to(torch.bfloat16)
    episode["step"] = [number * 2 for number in range(len(episode["reward"]))]
    episode["picture"] = episode["observation"].pop("image")
    return episode


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window_size": 3, "action_horizon": 4},
        {"window_size": 3, "action_horizon": 4, "pad": "zero"},
        {"window_size": 2, "action_horizon": 2, "pad": None},
        {"window_size": 2, "decode_images": False},
        {"window_size": 2, "decode_images": ["image"], "episode_bytes": 0},
        {"window_size": 2, "step_transform": half},
        {"window_size": 2, "episode_transform": relabel},
        {"features": ["steps/action"]},
    ],
)
def test_a_batch_is_its_samples(drawn, options):
    ds = RLDSDataset(drawn, **options)
    positions = [*range(len(ds)), -1, 3, 3, 0]
    random.Random(0).shuffle(positions)
    expected = [ds[position] for position in positions]
    assert_same(list(ds.__getitems__(positions)), expected)
    assert_same(collate(ds.__getitems__(positions)), collate(expected))
    assert_same(list(ds[::-3].__getitems__([1, -2])), [ds[::-3][1], ds[::-3][-2]])
    assert list(ds.__getitems__([])) == []


def test_a_batch_of_tfds_own(tfds_written):
    ds = RLDSDataset(tfds_written, window_size=2)
    expected = [ds[position] for position in range(len(ds))]
    assert_same(list(ds.__getitems__(range(len(ds)))), expected)


def as_jpeg(episode, size=(24, 32)):
    for number, step in enumerate(episode["steps"]):
        image = step["observation"]["image"]
        small = decode_image(image)[:, : size[0], : size[1]]
        options = {"quality": 90} if number % 5 else {"quality": 80, "progressive": True}
        buffer = io.BytesIO()
        PillowImage.fromarray(small.permute(1, 2, 0).numpy()).save(buffer, "jpeg", **options)
        step["observation"]["image"] = buffer.getvalue()
    return episode


def jpeg_features():
    steps = FEATURES["steps"].feature
    observation = tfds.features.FeaturesDict(
        {
            **steps.features["observation"].features,
            "image": tfds.features.Image((None, None, 3), encoding_format="jpeg"),
        }
    )
    return {
        **FEATURES,
        "steps": tfds.features.Dataset({**steps.features, "observation": observation}),
    }


@pytest.mark.slow
def test_a_batch_of_jpeg_pictures(tmp_path):
    directory = write_episodes(tmp_path / "1.0.0", change=as_jpeg, features=jpeg_features())
    for options in ({"window_size": 3}, {"window_size": 3, "pad": "zero"}):
        ds = RLDSDataset(directory, **options)
        positions = torch.randperm(len(ds), generator=torch.Generator().manual_seed(0)).tolist()
        assert_same(list(ds.__getitems__(positions)), [ds[position] for position in positions])


def test_pictures_of_several_sizes_in_a_batch(tmp_path):
    sizes = iter([(24, 32), (20, 20), (24, 32), (24, 32)])
    directory = write_episodes(
        tmp_path / "1.0.0",
        change=lambda episode: as_jpeg(episode, next(sizes)),
        features=jpeg_features(),
    )
    ds = RLDSDataset(directory)
    positions = list(range(len(ds)))
    assert_same(list(ds.__getitems__(positions)), [ds[position] for position in positions])
    with pytest.raises(
        ValueError,
        match=r"\['observation'\]\['image'\]: cannot batch tensors with different shapes",
    ):
        collate(ds.__getitems__(positions))


def test_large_episodes_are_not_held_together(own, monkeypatch):
    monkeypatch.setattr("torch_tfrecord.rlds.dataset._MOST_HELD_BYTES", 1)
    ds = RLDSDataset(own, window_size=2)
    samples = ds.__getitems__([40, 3])
    assert isinstance(samples, list)  # no columns
    assert_same(list(samples), [ds[40], ds[3]])


@pytest.mark.parametrize("num_threads", [None, 0, 1, 3])
@pytest.mark.parametrize("transform", [None, half])
def test_read_ahead_by_threads(drawn, num_threads, transform):
    ds = RLDSDataset(drawn, window_size=2, action_horizon=2, step_transform=transform)
    order = torch.randperm(len(ds), generator=torch.Generator().manual_seed(1)).tolist()
    loader = ReadAheadLoader(ds, batch_size=6, sampler=order, num_threads=num_threads)
    batches = list(loader)
    assert len(batches) == len(loader) == -(-len(ds) // 6)
    for number, batch in enumerate(batches):
        assert_same(
            batch, collate([ds[position] for position in order[6 * number : 6 * number + 6]])
        )


# What is read and decoded.


@pytest.fixture
def decoded(monkeypatch):
    """The sizes of the images that are decoded."""
    sizes = []
    real = PillowFile.load

    def load(image):
        if image.tile:  # not loaded yet
            sizes.append(image.size[::-1])
        return real(image)

    monkeypatch.setattr(PillowFile, "load", load)
    return sizes


def test_images_that_are_not_decoded(drawn, decoded):
    sample = RLDSDataset(drawn, window_size=2, decode_images=False)[20]
    assert decoded == []
    expected = RLDSEpisodes(drawn, decode_images=False)[2]["steps"]["observation"]["image"][13:15]
    assert sample["observation"]["image"] == expected
    assert all(data.startswith(b"\x89PNG") for data in expected)
    for name in ("image", "observation/image", "steps/observation/image"):
        decoded.clear()
        observation = RLDSDataset(drawn, decode_images=[name])[20]["observation"]
        assert decoded == [(32, 40)]
        assert isinstance(observation["wrist_image"][0], bytes)
    padded = RLDSDataset(drawn, window_size=3, decode_images=False, pad="zero")[5]
    assert padded["observation"]["image"][:2] == [b"", b""]
    with pytest.raises(
        ValueError,
        match="'front' is none of 'steps/observation/image', 'steps/observation/wrist_image'",
    ):
        RLDSDataset(drawn, decode_images=["front"])


@pytest.fixture
def reads(monkeypatch):
    """(path, first byte, one behind the last) of each read of a file."""
    found = []
    real, real_v = os.pread, os.preadv

    def pread(fd, num_bytes, offset):
        data = real(fd, num_bytes, offset)
        found.append((os.readlink(f"/proc/self/fd/{fd}"), offset, offset + len(data)))
        return data

    def preadv(fd, buffers, offset):
        num_bytes = real_v(fd, buffers, offset)
        found.append((os.readlink(f"/proc/self/fd/{fd}"), offset, offset + num_bytes))
        return num_bytes

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(os, "preadv", preadv)
    # the compiled core reads by itself
    monkeypatch.setattr("torch_tfrecord.files.local_file._job", lambda *_: None)
    return found


def test_only_bytes_of_the_episode_are_read_and_of_frames_only_those_of_the_window(drawn, reads):
    ds = RLDSDataset(drawn, window_size=2)
    records = tfds.load(drawn, features=["steps/reward"])
    ds[len(STEPS) - 1]  # opens the second file
    position = STEPS.index((2, 20))
    path, offset = records.locate(2)
    length = len(records.raw(2))
    reads.clear()
    ds[position]
    data = [(start, stop) for name, start, stop in reads if name == path]
    assert data
    assert all(offset <= start <= stop <= offset + 12 + length for start, stop in data)
    frame_bytes = sum(
        len(image) for name in ("image", "wrist_image") for image in _encoded(drawn, 20)[name]
    )
    assert sum(stop - start for start, stop in data) < frame_bytes + 6000 < length / 10
    reads.clear()
    ds[position + 1]  # the short columns are kept: two reads of two frames each
    assert len(reads) == 2
    assert all(name == path for name, _, _ in reads)
    total = sum(stop - start for _, start, stop in reads)
    expected = sum(
        len(image) + 3 for name in ("image", "wrist_image") for image in _encoded(drawn, 21)[name]
    )
    assert total in range(expected - 8, expected + 1)


def _encoded(directory, step):
    ds = RLDSDataset(directory, window_size=2, decode_images=False)
    return {
        name: ds[STEPS.index((2, step))]["observation"][name] for name in ("image", "wrist_image")
    }


LONG = (9, 12, 40, 5, 7, 8, 5, 6, 11, 5, 5, 6)


@pytest.fixture(scope="module")
def many_files(tmp_path_factory):
    """More files than are open at once for a batch, each of one episode whose pictures are all read
    one by one.
    """
    directory = write_episodes(
        tmp_path_factory.mktemp("many") / "drawn" / "1.0.0", LONG, num_shards=len(LONG)
    )
    RLDSDataset(directory)
    return directory


def pictures_alone(directory, **options):
    """Of noise in PNG, the large ones make lists of frames in all these episodes."""
    return RLDSDataset(directory, features=["steps/observation/image", "steps/action"], **options)


@pytest.mark.parametrize("split", ["train", "train[50%:]+train[:50%]"])
@pytest.mark.parametrize("options", [{}, {"window_size": 3}, {"window_size": 4, "pad": "zero"}])
def test_frames_of_a_batch_are_read_together(many_files, options, split, reads):
    ds = pictures_alone(many_files, split=split, **options)
    positions = [*range(len(ds)), 3, 3, -1]
    random.Random(1).shuffle(positions)
    expected = [ds[position] for position in positions]
    reads.clear()
    found = ds.__getitems__(positions)
    # Without the compiled core neighbours are not joined: each window is a read.
    assert len(reads) < len(positions) + (native_module("frames") is None)
    assert_same(list(found), expected)
    for number, position in enumerate(positions):
        episode, step = ds.locate(position)
        real = int(split != "train") * 6
        assert torch.equal(
            found[number]["observation"]["image"][-1], pixels((episode + real) % 12, step)
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a byte", "the end", "another file", "no file"])
def test_a_damaged_frame_in_a_batch(many_files, tmp_path, kind):
    own = Path(shutil.copytree(many_files, tmp_path / "1.0.0"))
    path, at = place_of(own, 10, "steps/observation/image", 2)
    if kind == "a byte":
        damage(path, at + 100)
    ds = pictures_alone(own)
    before = sum(LONG[:10])
    good = [*range(before), *range(before + 5, len(ds))]
    assert_same(list(ds.__getitems__(good)), [ds[position] for position in good])
    if kind in ("a byte", "the end"):
        ds[before + 1]  # its short columns are kept from here on
    else:
        ds = pickle.loads(pickle.dumps(ds))  # without open files
    if kind == "the end":
        os.truncate(path, at + 100)
    elif kind == "another file":
        path.write_bytes(path.read_bytes())
    elif kind == "no file":
        path.unlink()
    with pytest.raises((CorruptRecordError, IndexMismatchError, FileNotFoundError)) as expected:
        ds[before + 2]
    with pytest.raises(type(expected.value)) as found:
        ds.__getitems__([*good[::-1], before + 2])
    assert str(found.value) == str(expected.value)
    assert str(path) in str(found.value)
    if kind == "a byte":
        assert "feature 'steps/observation/image', step 2: expected checksum 0x" in str(found.value)
    assert_same(list(ds.__getitems__(good)), [ds[position] for position in good])


def test_what_is_kept_is_bounded(drawn, reads):
    for limit, is_kept in ((0, False), (32 << 20, True)):
        ds = RLDSDataset(drawn, features=["steps/action"], episode_bytes=limit)
        list(ds)
        reads.clear()
        ds[0]
        assert (reads == []) is is_kept
        reads.clear()
        ds[0]
        assert reads == []


# Transforms.


def shift_actions(episode):
    episode["observation"]["image_primary"] = episode["observation"].pop("image")
    del episode["observation"]["wrist_image"]
    episode["action"] = episode["action"].roll(-1, 0)
    episode["number"] = torch.arange(len(episode["action"]))
    episode["language_instruction"] = [text.upper() for text in episode["language_instruction"]]
    return episode


def test_episode_transform(drawn, decoded):
    ds = RLDSDataset(drawn, window_size=2, action_horizon=2, episode_transform=shift_actions)
    sample = ds[4]
    assert decoded == [(32, 40)] * 2
    assert torch.equal(sample["observation"]["image_primary"][1], pixels(0, 4))
    assert sample["action"].tolist() == [[0, 0, 0.5], [0, 0, 0.5]]
    assert sample["number"] == 4
    assert sample["task"]["language_instruction"] == "TASK 0 Ü"
    assert sample["episode_metadata"]["name"] == "episode 0"
    assert set(sample["observation"]) == {"image_primary", "state", "timestep", "pad_mask"}
    assert torch.equal(ds[4]["action"], sample["action"])


@pytest.mark.parametrize(
    ("transform", "kind", "text"),
    [
        (
            lambda episode: None,
            TypeError,
            r".*record 0 at byte 0: the transform <lambda> returned None: .*",
        ),
        (
            lambda episode: {**episode, "action": episode["action"][1:]},
            ValueError,
            "episode_transform: 'action': expected one value for each of the 5 steps of episode 0, got 4 of them",
        ),
        (
            lambda episode: {**episode, "observation": {"state": 3}},
            ValueError,
            "episode_transform: 'observation/state': expected one value for each of the 5 steps of episode 0, got int",
        ),
    ],
)
def test_wrong_episode_transforms(drawn, transform, kind, text):
    with pytest.raises(kind, match=f"^{text}$"):
        RLDSDataset(drawn, episode_transform=transform)[0]


def test_transform_of_whole_episodes(drawn):
    assert list(RLDSEpisodes(drawn, transform=lambda episode: episode["_len"])) == list(LENGTHS)


# Processes and threads.


def test_pickles_without_files_or_episodes(drawn):
    ds = RLDSDataset(drawn, window_size=2)
    small = len(pickle.dumps(ds))
    for position in range(0, len(ds), 3):
        ds[position]
    data = pickle.dumps(ds)
    assert len(data) < small + 100
    assert torch.equal(pickle.loads(data)[9]["action"], ds[9]["action"])


# Errors.


def damage(path, offset):
    """Change one byte; the file's size, ends and time stay, so that indexes think it fresh."""
    status = path.stat()
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x40]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def place_of(directory, number, key, step=0):
    """File of an episode, and the byte in it of a value."""
    records = tfds.load(directory)
    path, offset = records.locate(number)
    values = decode_example(records.raw(number))[key]
    value = values[step] if isinstance(values, list) else values.tobytes()
    return Path(path), offset + 12 + records.raw(number).index(value)


def test_a_damaged_frame_names_file_record_feature_and_step(own):
    path, at = place_of(own, 2, "steps/observation/image", 17)
    damage(path, at + 100)
    ds = RLDSDataset(own)
    assert torch.equal(ds[STEPS.index((2, 16))]["observation"]["image"][0], pixels(2, 16))
    with pytest.raises(CorruptRecordError) as caught:
        ds[STEPS.index((2, 17))]
    assert str(caught.value).startswith(
        f"{path}: record 0 at byte 0: corrupted record: feature 'steps/observation/image'"
    )
    assert "step 17: expected checksum 0x" in str(caught.value)
    assert caught.value.position == 0


def test_a_damaged_column_names_file_record_and_feature(own):
    path, at = place_of(own, 2, "steps/reward")
    damage(path, at + 3)
    with pytest.raises(CorruptRecordError) as caught:
        RLDSDataset(own)[STEPS.index((2, 3))]
    assert str(caught.value).startswith(
        f"{path}: record 0 at byte 0: corrupted record: feature 'steps/reward': expected"
    )


def test_an_image_that_is_none(tmp_path):
    def broken(episode):
        episode["steps"][min(1, len(episode["steps"]) - 1)]["observation"]["image"] = b"no image"
        return episode

    directory = write_episodes(tmp_path / "drawn" / "1.0.0", (3,), num_shards=1, change=broken)
    ds = RLDSDataset(directory)
    assert torch.equal(ds[0]["observation"]["image"][0], pixels(0, 0))
    with pytest.raises(
        ImageDecodeError,
        match="record 0 at byte 0: feature 'steps/observation/image', step 1: expected",
    ):
        ds[1]


def test_features_of_different_numbers_of_steps(own):
    path = own / "drawn-train.tfrecord-00001-of-00002"
    records = tfds.load(own, features=["steps/reward"])
    payloads = [decode_example(records.raw(number)) for number in (2, 3)]
    payloads[1]["steps/reward"] = payloads[1]["steps/reward"][:-1]
    with TFRecordWriter(path) as writer:
        for payload in payloads:
            writer.write(payload)
    with pytest.raises(ParseError) as caught:
        RLDSDataset(own)
    assert caught.value.path == str(path)
    assert caught.value.position == 1
    assert "the same number of steps in each feature of an episode" in str(caught.value)
    assert "2 in 'steps/reward'" in str(caught.value)
    payloads[1]["steps/reward"] = np.zeros(3, np.float32)
    payloads[1]["steps/action"] = payloads[1]["steps/action"][:-1]
    with TFRecordWriter(path) as writer:
        for payload in payloads:
            writer.write(payload)
    with pytest.raises(
        ParseError, match="feature 'steps/action': expected a multiple of 3 values, got 8"
    ):
        RLDSDataset(own)


def test_a_dataset_without_steps(tmp_path):
    features = {"x": tfds.features.Scalar("int64")}
    tfds.write(tmp_path / "plain" / "1.0.0", {"train": [{"x": 1}]}, features, name="plain")
    with pytest.raises(
        ParseError, match=r"features.json: expected a feature 'steps' that is a Dataset of dicts"
    ):
        RLDSDataset(tmp_path / "plain")


def test_a_data_file_that_was_replaced(own):
    ds = RLDSDataset(own)
    path = own / "drawn-train.tfrecord-00001-of-00002"
    path.write_bytes(path.read_bytes())  # another time
    with pytest.raises(IndexMismatchError, match="the index is not of this file as it is now"):
        ds[20]
    assert torch.equal(RLDSDataset(own)[20]["action"], torch.tensor([action(2, 14).tolist()]))


# Other forms of data.


def test_episodes_of_no_steps(tmp_path):
    directory = write_episodes(tmp_path / "drawn" / "1.0.0", (2, 0, 3))
    ds = RLDSDataset(directory)
    assert ds.num_steps.tolist() == [2, 0, 3]
    assert [ds.locate(position) for position in range(5)] == [
        (0, 0),
        (0, 1),
        (2, 0),
        (2, 1),
        (2, 2),
    ]
    episode = RLDSEpisodes(directory)[1]
    assert episode["_len"] == 0
    assert episode["steps"]["action"].shape == (0, 3)
    assert episode["steps"]["language_instruction"] == []


def test_records_in_another_form(own):
    expected = RLDSDataset(own, window_size=2)[30]
    records = tfds.load(own, features=["steps/reward"])
    path = own / "drawn-train.tfrecord-00001-of-00002"
    with TFRecordWriter(path) as writer:
        for number in (2, 3):
            message = Example.FromString(records.raw(number))
            half = Example()
            half.features.feature["steps/action"].CopyFrom(message.features.feature["steps/action"])
            del message.features.feature["steps/action"]
            writer.write(message.SerializeToString() + half.SerializeToString())
    ds = RLDSDataset(own, window_size=2)
    found = ds[30]
    assert torch.equal(found["observation"]["image"], expected["observation"]["image"])
    assert torch.equal(found["action"], expected["action"])


def test_actions_in_a_dict_and_names_of_instructions(tmp_path):
    features = {
        "steps": tfds.features.Dataset(
            {
                "action": {
                    "move": tfds.features.Tensor((2,), "float32"),
                    "grip": tfds.features.Scalar("float32"),
                }
            }
        ),
        "language_instruction": tfds.features.Text(),
    }
    steps = [{"action": {"move": [float(at), 1.0], "grip": 0.5}} for at in range(3)]
    directory = tmp_path / "dicts" / "1.0.0"
    tfds.write(
        directory,
        {"train": [{"steps": steps, "language_instruction": "lift"}]},
        features,
        name="dicts",
    )
    sample = RLDSDataset(directory, action_horizon=2)[1]
    assert sample["action"]["move"].tolist() == [[1, 1], [2, 1]]
    assert sample["action"]["grip"].tolist() == [0.5, 0.5]
    assert sample["task"]["language_instruction"] == sample["language_instruction"] == "lift"
    assert sample["observation"]["timestep"].tolist() == [1]
