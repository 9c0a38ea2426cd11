"""docs/rlds.md: its code runs as it stands, and its tables name what is there."""

import inspect
import re
import shutil
from pathlib import Path

import pytest
import torch
from rlds_episodes import FEATURES, write_episodes

import torch_tfrecord
from torch_tfrecord import tfds

DOC = Path(__file__).parents[2] / "docs" / "rlds.md"
TEXT = DOC.read_text(encoding="utf-8")
# By the heading above them, where they are no part of the page's one program.
APART = (
    "Kept steps",
    "Goal images",
    "Choices and masks",
    "Transforms of batches",
    "Pictures of one size",
    "Mixtures",
)
BLOCKS = {
    section.partition("\n")[0]: re.findall(
        r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL
    )
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)
}
KEEP, GOALS, CHOICES, TRANSFORM, PICTURES, MIXTURE = (BLOCKS[heading] for heading in APART)
PLAIN = [block for heading, blocks in BLOCKS.items() if heading not in APART for block in blocks]


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the blocks before have defined; in a folder that has the data."""
    for name, lengths in {"pick": (40, 30, 5) * 15, "push": (7, 50)}.items():
        write_episodes(tmp_path / "data" / name / "1.0.0", lengths, name=name)
    monkeypatch.chdir(tmp_path)
    return {}


def run(block, names):
    exec(compile(block, str(DOC), "exec"), names)


@pytest.mark.daily
def test_code(names):
    assert len(PLAIN) == 5
    run(PLAIN[0], names)
    assert names["sample"]["observation"]["image"].shape == (2, 3, 32, 40)
    assert names["sample"]["action"].shape == (4, 3)
    names["loader"] = None  # the last block has its own
    run(PLAIN[1], names)
    assert names["episode"]["steps"]["observation"]["image"][0][:4] == b"\x89PNG"
    run(PLAIN[2], names)
    assert names["statistics"]["num_trajectories"] == 45
    run(PLAIN[3], names)
    sample = names["normalized"][5]
    assert sample["action"].shape == (4, 3)
    assert sample["action"].abs().max() <= 1
    torch.testing.assert_close(names["action"], names["ds"][0]["action"])
    run(PLAIN[4], names)
    batch = next(iter(names["loader"]))
    assert batch["observation"]["image_primary"].shape == (8, 2, 3, 24, 24)
    assert batch["observation"]["proprio"].shape == (8, 2, 2)


@pytest.mark.daily
def test_pictures_of_one_size(names):
    run(PLAIN[0], names)
    run(PICTURES[0], names)
    observation = names["batch"]["observation"]
    assert observation["image"].shape == observation["wrist_image"].shape == (8, 1, 3, 24, 24)
    assert observation["image"].dtype == torch.uint8


@pytest.mark.daily
@pytest.mark.skipif(not hasattr(torch_tfrecord, "Mixture"), reason="mixtures are not there yet")
def test_mixture(names):
    run(PLAIN[0], names)
    run(MIXTURE[0], names)
    batches = list(names["loader"])
    found = {name for batch in batches for name in batch["dataset_name"]}
    assert found == {"pick", "push"}
    assert repr(names["mixture"]).endswith(
        "2 datasets: 'pick' 97.5% of 1125 samples, 'push' 2.5% of 57 samples)"
    )


@pytest.mark.daily
def test_kept_steps_and_goals(names):
    run(PLAIN[0], names)
    run(KEEP[0], names)
    assert len(names["kept"]) == 30
    for _ in range(20):
        run(GOALS[0], names)
        assert names["sample"]["task"]["image"].shape == (3, 32, 40)
        assert 3 <= names["sample"]["task"]["timestep"] <= 23


@pytest.mark.daily
def test_choices_and_transforms_of_batches(names, tmp_path):
    def change(episode):
        for step in episode["steps"]:
            step["observation"]["other_image"] = step["observation"]["image"]
        return episode

    steps = FEATURES["steps"].feature
    observation = {**steps["observation"], "other_image": steps["observation"]["image"]}
    features = {**FEATURES, "steps": tfds.features.Dataset({**steps, "observation": observation})}
    directory = tmp_path / "data" / "pick" / "1.0.0"
    shutil.rmtree(directory)
    write_episodes(directory, (40, 30), name="pick", features=features, change=change)
    names |= {"tfds": tfds, "make_dataloader": torch_tfrecord.make_dataloader}
    run(CHOICES[0], names)
    there = names["batch"]["observation"]["pad_mask_dict"]["wrist_image"]
    wrist = names["batch"]["observation"]["wrist_image"]
    assert torch.equal(wrist.flatten(1).any(1), there) and there.shape == (8,)
    assert names["batch"]["observation"]["image"].shape == (8, 1, 3, 32, 40)
    run(TRANSFORM[0], names)
    assert names["batch"]["actions"].shape == (8, 4, 3)


@pytest.mark.daily
def test_names_of_arguments_and_of_what_a_sample_has(names):
    arguments = set(inspect.signature(tfds.RLDSDataset).parameters)
    section = TEXT.split("| argument | |")[1].split("\n\n")[0]
    listed = {
        name
        for row in re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)", row)
    }
    assert listed <= arguments
    assert arguments <= listed | {"directory", "split", "window_size", "action_horizon"}
    table = TEXT.split("| name | value for step t")[1].split("\n\n")[0]
    sample = tfds.RLDSDataset("data/pick/1.0.0")[0]
    described = {
        name
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`([\w.]+)`", row)
    }
    described -= {"discount", "is_terminal"}  # this dataset has none
    for path in described:
        value = sample
        for name in path.split("."):
            value = value[name]
