"""Statistics against numpy over the written values; the cache and its key."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from rlds_episodes import LENGTHS, action, state, write_episodes
from sidecars import changed

from torch_tfrecord import ParseError, tfds
from torch_tfrecord.rlds import statistics
from torch_tfrecord.tfds import RLDSEpisodes, dataset_statistics

STEPS = [(number, at) for number, length in enumerate(LENGTHS) for at in range(length)]
NAMES = ["mean", "std", "max", "min", "q01", "q99"]


@pytest.fixture
def drawn(tmp_path):
    return write_episodes(tmp_path / "drawn" / "1.0.0")


@pytest.fixture
def computed(monkeypatch):
    """How often statistics were computed."""
    calls = []
    real = statistics._Keeper._build

    def build(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(statistics._Keeper, "_build", build)
    return calls


def by_numpy(rows):
    rows = np.asarray(rows, np.float64)
    low, high = np.quantile(rows, [0.01, 0.99], axis=0)
    return {
        "mean": rows.mean(0),
        "std": rows.std(0),
        "max": rows.max(0),
        "min": rows.min(0),
        "q01": low,
        "q99": high,
    }


def assert_described(found, rows):
    assert list(found) == NAMES
    for name, expected in by_numpy(rows).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-12)


def test_values(drawn):
    found = dataset_statistics(drawn)
    assert list(found) == ["action", "proprio", "num_transitions", "num_trajectories"]
    assert (found["num_transitions"], found["num_trajectories"]) == (len(STEPS), len(LENGTHS))
    assert_described(found["action"], torch.stack([action(*step) for step in STEPS]))
    assert_described(found["proprio"], torch.stack([state(*step) for step in STEPS]))
    assert json.loads(json.dumps(found)) == found


def test_a_part(drawn):
    found = dataset_statistics(drawn, "train[1:3]", proprio="reward")
    steps = [step for step in STEPS if step[0] in (1, 2)]
    assert found["num_trajectories"] == 2
    assert_described(found["action"], torch.stack([action(*step) for step in steps]))
    assert_described(found["proprio"], [[at] for _, at in steps])


def test_several_names_are_joined(drawn):
    found = dataset_statistics(
        drawn, action=["observation/state", "is_first"], proprio="observation/state"
    )
    rows = [[*state(*step).tolist(), float(step[1] == 0)] for step in STEPS]
    assert_described(found["action"], rows)


def test_a_dict_of_actions(tmp_path):
    step = {"move": tfds.features.Tensor((2,), "float32"), "grip": tfds.features.Scalar("float32")}
    features = {"steps": tfds.features.Dataset({"action": step})}
    steps = [{"action": {"move": [float(at), 1.0], "grip": 0.5}} for at in range(3)]
    tfds.write(tmp_path / "d" / "1.0.0", {"train": [{"steps": steps}]}, features, name="d")
    found = dataset_statistics(tmp_path / "d")
    assert "proprio" not in found
    assert_described(found["action"], [[0.5, at, 1] for at in range(3)])


def test_large_offsets_cost_no_digits(tmp_path):
    features = {"steps": tfds.features.Dataset({"action": tfds.features.Tensor((1,), "float32")})}
    values = (1e6 + np.arange(64) / 8).astype(np.float32)
    steps = [{"action": value[None]} for value in values]
    tfds.write(tmp_path / "d" / "1.0.0", {"train": [{"steps": steps}]}, features, name="d")
    found = dataset_statistics(tmp_path / "d")
    np.testing.assert_allclose(found["action"]["std"], [np.std(np.arange(64) / 8)], rtol=1e-14)


def test_transform_of_episodes(drawn, computed):
    def gripper_first(episode):
        return {
            **episode,
            "action": episode["action"].flip(1),
            "observation": {"proprio": episode["reward"][:, None]},
        }

    def run():
        return dataset_statistics(
            drawn, episode_transform=gripper_first, proprio="observation/proprio"
        )

    assert_described(run()["action"], torch.stack([action(*step).flip(0) for step in STEPS]))
    assert_described(run()["proprio"], [[at] for _, at in STEPS])
    assert len(computed) == 2
    assert not kept_files(drawn)


@pytest.mark.slow
def test_a_result_is_kept_until_something_changes(drawn, computed):
    first = dataset_statistics(drawn)
    kept = kept_file(drawn)
    arrays = safetensors.numpy.load(kept.read_bytes())
    assert arrays["action"].tolist() == [value for name in NAMES for value in first["action"][name]]
    assert arrays["proprio"].tolist() == [
        value for name in NAMES for value in first["proprio"][name]
    ]
    assert arrays["counts"].tolist() == [len(STEPS), len(LENGTHS)]
    again = dataset_statistics(drawn)
    assert again == first
    assert list(again) == list(first)
    assert len(computed) == 1
    assert dataset_statistics(drawn, "train[:2]") != first
    assert dataset_statistics(drawn, proprio="reward") != first
    assert dataset_statistics(drawn, cache=False) == first
    assert len(computed) == 4
    assert len(kept_files(drawn)) == 3
    features = Path(drawn) / "features.json"
    features.write_text(features.read_text() + "\n")
    assert dataset_statistics(drawn) == first
    path = next(Path(drawn).glob("*-00000-of-00002"))
    os.utime(path, ns=(1, 1))
    assert dataset_statistics(drawn) == first
    assert len(computed) == 6


def kept_files(drawn):
    """Beside the indexes of the data."""
    files = Path(drawn).glob(".torch_index/*.safetensors")
    return [path for path in files if b"torch_tfrecord.statistics" in path.read_bytes()]


def kept_file(drawn):
    (kept,) = kept_files(drawn)
    return kept


def of_another_key(content):
    return changed(content, key="0" * 64)


def of_other_counts(content):
    return changed(content, {"counts": np.array([7, 4])})


def not_finite(content):
    return changed(content, {"proprio": np.full(12, np.nan)})


def without_a_part(content):
    return changed(content, {"action": np.zeros(17)})


def without_content(content):
    return b""


def cut(content):
    return content[:-1]


DAMAGES = [of_another_key, of_other_counts, not_finite, without_a_part, without_content, cut]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_result_is_computed_again(drawn, computed, damage):
    first = dataset_statistics(drawn)
    content = kept_file(drawn).read_bytes()
    kept_file(drawn).write_bytes(damage(content))
    assert dataset_statistics(drawn) == first
    assert len(computed) == 2
    assert kept_file(drawn).read_bytes() == content


@pytest.mark.slow
@pytest.mark.parametrize("make", ["json", "safetensors", "link"])
def test_a_file_of_somebody_else_is_left_alone(drawn, computed, tmp_path, make):
    first = dataset_statistics(drawn)
    place = kept_file(drawn)
    place.unlink()
    other = tmp_path / "mine"
    other.write_bytes(
        safetensors.numpy.save({"a": np.zeros(3)}) if make == "safetensors" else b'{"action": {}}'
    )
    if make == "link":
        place.symlink_to(other)
    else:
        shutil.copy(other, place)
    before = other.read_bytes()
    assert [dataset_statistics(drawn), dataset_statistics(drawn)] == [first, first]
    assert len(computed) == 2
    assert place.read_bytes() == other.read_bytes() == before
    assert (
        len(list(Path(os.environ["XDG_CACHE_HOME"], "torch_tfrecord").glob("dataset_statistics_*")))
        == 1
    )


def test_index_dir_holds_everything(drawn, tmp_path):
    copy = shutil.copytree(drawn, tmp_path / "copy" / "1.0.0")
    before = sorted(path.name for path in copy.iterdir())
    dataset_statistics(copy, index_dir=tmp_path / "kept")
    assert sorted(path.name for path in copy.iterdir()) == before
    assert len(list((tmp_path / "kept").glob("dataset_statistics_*.safetensors"))) == 1
    assert len(list((tmp_path / "kept").glob("*.steps.*.index.safetensors"))) == 2


@pytest.mark.slow
def test_no_image_is_read(drawn, monkeypatch):
    dataset_statistics(drawn, cache=False)
    images = sum(
        len(image)
        for episode in RLDSEpisodes(drawn, decode_images=False, index="memory")
        for image in episode["steps"]["observation"]["image"]
    )
    total = 0
    real = os.preadv

    def preadv(fd, buffers, offset):
        nonlocal total
        got = real(fd, buffers, offset)
        total += got if "-of-00002" in os.readlink(f"/proc/self/fd/{fd}")[-9:] else 0
        return got

    monkeypatch.setattr(os, "preadv", preadv)
    dataset_statistics(drawn, cache=False)
    assert total < images / 2


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"action": "wrong"}, KeyError, "no feature 'wrong' in the steps"),
        (
            {"action": "language_instruction"},
            ParseError,
            "expected a fixed number of numbers in each step",
        ),
        (
            {"proprio": "observation/image"},
            ParseError,
            "expected a fixed number of numbers in each step",
        ),
    ],
)
def test_wrong_names(drawn, arguments, kind, text):
    with pytest.raises(kind, match=text):
        dataset_statistics(drawn, **arguments)


@pytest.mark.slow
def test_values_that_are_not_finite(tmp_path):
    def broken(episode):
        if len(episode["steps"]) == 40:
            episode["steps"][7]["action"] = torch.tensor([0, float("nan"), 0])
        return episode

    directory = write_episodes(tmp_path / "drawn" / "1.0.0", change=broken)
    with pytest.raises(
        ParseError, match="action, dimension 1: expected finite numbers, got nan in episode 2"
    ):
        dataset_statistics(directory)


def test_a_split_without_steps(tmp_path):
    directory = write_episodes(tmp_path / "drawn" / "1.0.0", (0, 0))
    with pytest.raises(ValueError, match="the split has no steps"):
        dataset_statistics(directory)
