"""The episode index: its file, its freshness, what is refused, and where it is kept."""

import gc
import json
import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from rlds_episodes import LENGTHS, write_episodes

from torch_tfrecord import IndexMismatchError, RecordIndex, RecordSampler, tfds
from torch_tfrecord.files import LocalFile
from torch_tfrecord.records import OVERHEAD_BYTES, IndexKeeper
from torch_tfrecord.rlds.episode_index import EpisodeFile, EpisodeIndex, EpisodeKeeper
from torch_tfrecord.tfds import RLDSDataset


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    directory = write_episodes(tmp_path_factory.mktemp("rlds") / "drawn" / "1.0.0")
    RLDSDataset(directory)
    return directory


@pytest.fixture
def own(drawn, tmp_path):
    return Path(shutil.copytree(drawn, tmp_path / "own" / "1.0.0"))


def sidecar(directory, number=1):
    return Path(
        IndexKeeper.place(str(directory / f"drawn-train.tfrecord-{number:05d}-of-00002.steps"))
    )


def written(directory):
    """The file of each episode index; another one if it is built again."""
    paths = [sidecar(directory, number) for number in range(2)]
    return [path.stat().st_ino for path in paths if path.exists()]


def test_it_is_built_once_and_kept_beside_the_data(own):
    before = written(own)
    assert len(before) == 2
    assert RLDSDataset(own).num_steps.tolist() == list(LENGTHS)
    assert written(own) == before
    sidecar(own).unlink()
    RLDSDataset(own)
    assert len(written(own)) == 2
    assert written(own)[0] == before[0]


def change_features(own):
    features = json.loads((own / "features.json").read_text())
    steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"][
        "features"
    ]
    del steps["reward"]
    (own / "features.json").write_text(json.dumps(features))


def rewrite_data(own):
    path = own / "drawn-train.tfrecord-00001-of-00002"
    path.write_bytes(path.read_bytes())


def cut_index(own):
    path = sidecar(own)
    path.write_bytes(path.read_bytes()[:-7])


def empty_index(own):
    sidecar(own).write_bytes(b"")


def flip_steps(own):
    content = bytearray(sidecar(own).read_bytes())
    content[8 + int.from_bytes(content[:8], "little")] ^= 1
    sidecar(own).write_bytes(content)


def foreign_index(own):
    shutil.copy(sidecar(own, 0), sidecar(own, 1))


STALE = [
    change_features,
    rewrite_data,
    cut_index,
    empty_index,
    flip_steps,
    foreign_index,
]


@pytest.mark.parametrize("change", STALE)
def test_a_stale_or_damaged_index_is_built_again(own, change):
    change(own)
    before = written(own)
    ds = RLDSDataset(own)
    assert written(own)[1] != before[1]
    assert ds.num_steps.tolist() == list(LENGTHS)
    assert torch.equal(ds[6]["action"], torch.tensor([[2, 0, 0.5]]))
    before = written(own)
    RLDSDataset(own)
    assert written(own) == before


@pytest.mark.parametrize("change", STALE)
def test_with_require_it_is_an_error(own, change):
    change(own)
    before = written(own)
    with pytest.raises(IndexMismatchError, match="drawn-train"):
        RLDSDataset(own, index="require")
    assert written(own) == before


def test_with_require_and_without_an_index(own):
    sidecar(own).unlink()
    with pytest.raises(IndexMismatchError, match=r"expected an episode index at .*, got none"):
        RLDSDataset(own, index="require")


@pytest.mark.parametrize("policy", ["auto", "require"])
@pytest.mark.parametrize("at", [0, 4, 11])
@pytest.mark.parametrize("is_open", [False, True])
def test_damaged_pieces_are_an_error_of_their_episode(own, at, is_open, policy):
    """They stay in the file, and are checked when they are read."""
    ds = RLDSDataset(own, index=policy)
    content = bytearray(sidecar(own).read_bytes())
    content[at - safetensors.numpy.load(bytes(content))["pieces"].nbytes] ^= 1
    with open(sidecar(own), "r+b") as file:
        file.write(content)
    if not is_open:
        ds = RLDSDataset(own, index=policy)
    assert ds[5]["_len"] == 1  # of the other file
    with pytest.raises(IndexMismatchError) as caught:
        ds[10]
    text = str(caught.value)
    name = own / "drawn-train.tfrecord-00001-of-00002"
    assert text.startswith(f"{name}: record 0 at byte 0: the episode index at {sidecar(own)}: ")
    assert text.endswith("remove it, and it is built again")
    sidecar(own).unlink()
    assert torch.equal(RLDSDataset(own)[10]["action"], torch.tensor([[2, 4, 0.5]]))


def test_in_memory_nothing_is_written(own):
    shutil.rmtree(own / ".torch_index")
    before = sorted(own.iterdir())
    ds = RLDSDataset(own, window_size=2, index="memory")
    assert torch.equal(ds[10]["action"], torch.tensor([[2, 4, 0.5]]))
    assert ds[10]["observation"]["image"].shape == (2, 3, 32, 40)
    assert sorted(own.iterdir()) == before
    assert not Path(os.environ["XDG_CACHE_HOME"], "torch_tfrecord").exists()


def of_many_episodes(directory, num_episodes):
    """A directory with the indexes of so many episodes, of 2 steps and 20 pieces each; the data are a hole."""
    f = tfds.features
    features = {"steps": f.Dataset({"action": f.Tensor((3,), "float32")})}
    tfds.write(directory, {"train": [{"steps": []}]}, features, name="drawn")
    info = json.loads((directory / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = [str(num_episodes)]
    (directory / "dataset_info.json").write_text(json.dumps(info))
    path = str(directory / "drawn-train.tfrecord-00000-of-00001")
    os.truncate(path, 0)
    os.truncate(path, num_episodes * 1000)
    source = LocalFile(path)
    records = RecordIndex(
        np.arange(num_episodes) * 1000,
        np.full(num_episodes, 1000 - OVERHEAD_BYTES),
        source.file_size,
        mtime_ns=source.mtime_ns,
        fingerprint=source.fingerprint(),
    )
    IndexKeeper.write(IndexKeeper.place(path), records.to_bytes())
    ends = np.arange(1, num_episodes + 1) * 20
    pieces = np.ones((int(ends[-1]), 3), np.uint32)
    data = EpisodeFile(path, records, {"steps/action": 3})
    index = EpisodeIndex(data, np.full(num_episodes, 2), ("steps/action",), ends, pieces)
    place = IndexKeeper.place(path + ".steps")
    IndexKeeper.write(place, EpisodeKeeper("auto", None)._packed(data, index))
    assert os.path.getsize(place) > num_episodes * 260


def test_an_episode_takes_no_object_and_its_frames_nothing(tmp_path):
    """Only numbers in arrays, 8 bytes each: its frames' places stay in the file."""
    most = {}
    for num_episodes in (1000, 101_000):
        directory = tmp_path / f"drawn{num_episodes}"
        of_many_episodes(directory, num_episodes)
        gc.collect()
        tracemalloc.start()
        ds = RLDSDataset(directory, index="require")
        sampler = iter(RecordSampler(ds))
        assert 0 <= next(sampler) < len(ds) == 2 * num_episodes
        most[num_episodes] = np.array(tracemalloc.get_traced_memory())
        tracemalloc.stop()
    kept, at_once = (most[101_000] - most[1000]) / 100_000
    assert kept < 110
    assert at_once < 150
