"""TFDS directories in storages: written, described and read by `storage_options`, which appear
nowhere.
"""

import numpy as np
import pytest
import torch
from rlds_episodes import LENGTHS, write_episodes

import torch_tfrecord.tfds.features as f
from torch_tfrecord import tfds
from torch_tfrecord.remote import storages

OPTIONS = {"skip_instance_cache": True}
TREE = {"x": f.Tensor(shape=(3,), dtype=np.int64), "label": f.ClassLabel(names=["a", "b"])}
SAMPLES = [{"x": np.arange(3) + number, "label": number % 2} for number in range(7)]


def names(folder):
    import fsspec

    return sorted(name.rpartition("/")[2] for name in fsspec.filesystem("memory").find(folder))


def test_written_and_read():
    found = tfds.write(
        "memory://w/toy/1.0.0",
        {"train": SAMPLES},
        TREE,
        name="toy",
        num_shards=2,
        storage_options=OPTIONS,
    )
    assert names("/w/toy/1.0.0") == [
        "dataset_info.json",
        "features.json",
        "label.labels.txt",
        "toy-train.tfrecord-00000-of-00002",
        "toy-train.tfrecord-00001-of-00002",
    ]
    assert found.splits["train"].shard_lengths == (4, 3)
    again = tfds.info("memory://w/toy", storage_options=OPTIONS)
    assert again == found
    assert again.features["label"].names == ("a", "b")
    for ds in (
        tfds.load(again, "train[1:]", index="memory"),
        tfds.load("memory://w/toy", "train[1:]", storage_options=OPTIONS, index="memory"),
    ):
        assert [sample["x"].tolist() for sample in ds] == [
            sample["x"].tolist() for sample in SAMPLES[1:]
        ]
        assert "skip_instance" not in repr(ds) + repr(found) + str(found)


def test_a_directory_that_is_there_is_refused():
    write = {"name": "toy", "storage_options": OPTIONS}
    tfds.write("memory://r/toy/1.0.0", {"train": SAMPLES}, TREE, **write)
    with pytest.raises(
        FileExistsError, match=r"there is something already: 'memory://r/toy/1.0.0'"
    ):
        tfds.write("memory://r/toy/1.0.0", {"train": SAMPLES}, TREE, **write)


def test_nothing_stays_after_an_error(monkeypatch):
    real = storages.upload

    def failing(items, access):
        if any(item[0].endswith("dataset_info.json") for item in items):
            raise OSError("no")
        return real(items, access)

    monkeypatch.setattr("torch_tfrecord.remote.storages.upload", failing)
    with pytest.raises(OSError, match=r"^no$"):
        tfds.write("memory://e/toy/1.0.0", {"train": SAMPLES}, TREE, name="toy")
    with pytest.raises(ValueError, match="split 'train', sample 7: "):
        tfds.write("memory://e/toy/1.0.0", {"train": [*SAMPLES, {"x": "?"}]}, TREE, name="toy")
    assert names("/e/toy/1.0.0") == []


def copied(folder, target):
    import fsspec

    fsspec.filesystem("memory").put(str(folder) + "/", target + "/", recursive=True)


@pytest.mark.slow
def test_episodes(tmp_path):
    folder = write_episodes(tmp_path)
    copied(folder, "/m/drawn/1.0.0")
    local = tfds.RLDSDataset(folder, window_size=2, index="memory")
    remote = tfds.RLDSDataset(
        "memory://m/drawn/1.0.0", window_size=2, index="memory", storage_options=OPTIONS
    )
    assert len(remote) == len(local)
    for position in (0, 5, len(local) - 1):
        assert torch.equal(local[position]["action"], remote[position]["action"])
        assert torch.equal(
            local[position]["observation"]["image"], remote[position]["observation"]["image"]
        )
    episodes = tfds.RLDSEpisodes(
        "memory://m/drawn/1.0.0", index="memory", storage_options=OPTIONS, decode_images=False
    )
    assert [len(episodes[number]["steps"]["action"]) for number in range(len(episodes))] == [
        *LENGTHS
    ]
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "keep.json").write_text('{"episode 2": [[3, 5]]}')
    copied(tmp_path / "keep", "/m/keep")
    kept = tfds.RLDSDataset(
        "memory://m/drawn/1.0.0",
        keep="memory://m/keep/keep.json",
        keep_key="{episode_metadata/name}",
        index="memory",
        storage_options=OPTIONS,
    )
    assert [kept.locate(position) for position in range(len(kept))] == [(2, 3), (2, 4)]
    told = tfds.dataset_statistics(
        "memory://m/drawn/1.0.0", storage_options=OPTIONS, index="memory", cache=False
    )
    assert told == tfds.dataset_statistics(folder, index="memory", cache=False)
