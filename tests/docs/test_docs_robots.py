"""docs/robots.md: its recipes give the batches of the originals' own code on the same data, kept in
batches.npz.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from robot_episodes import LENGTHS, write_robots

from torch_tfrecord import tfds

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "robots.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", DOC.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
RECORDED = np.load(ROOT / "tests" / "data" / "robots" / "batches.npz")
SIZE = (16, 16)  # of the recorded resized images


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """On a busy machine, each small operation would wait for torch's other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """What the blocks define; they run in a folder that has the data."""
    folder = tmp_path_factory.mktemp("robots")
    write_robots(folder / "data")
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert len(BLOCKS) == 5
        for number, block in enumerate(BLOCKS):
            exec(compile(block, f"{DOC.name}, block {number}", "exec"), names)
            names[f"loader {number}"] = names.get("loader")
            if number == 2:
                names["statistics of OpenVLA"] = names["statistics"]
        names["folder"] = folder
        yield names


def recorded(prefix):
    """The recorded samples, as flat dicts."""
    columns = {
        name.removeprefix(f"{prefix}/"): RECORDED[name]
        for name in RECORDED.files
        if name.startswith(prefix)
    }
    columns = {
        name: column
        for name, column in columns.items()
        if "statistics" not in name and column.shape
    }
    count = len(columns[next(iter(columns))])
    return [
        {name: column[row] for name, column in columns.items() if len(column) == count}
        for row in range(count)
    ]


def channels_last(image):
    return image.movedim(-3, -1).numpy()


def described(prefix):
    """The recorded statistics of a dataset, as `dataset_statistics` gives them."""
    found = {}
    for name in RECORDED.files:
        if name.startswith(f"{prefix}/statistics/") and name.count("/") == prefix.count("/") + 3:
            column, each = name.removeprefix(f"{prefix}/statistics/").split("/")
            found.setdefault(column, {})[each] = RECORDED[name].tolist()
    return found


# openpi.


@pytest.mark.slow
def test_openpi(page):
    ds = page["droid"]
    found = {}
    # In so many epochs each step has each camera with each instruction.
    for epoch in range(60):
        ds.set_epoch(epoch)
        for position, sample in enumerate(ds):
            number, step = ds.locate(position)
            folder = f"gs://raw/success/{number}"
            key = f"{folder}/recordings/MP4--{folder}/trajectory.h5--{step}"
            image = channels_last(sample["observation"]["image"])
            found[key, image.tobytes(), sample["prompt"]] = sample
    expected = recorded("openpi")
    assert len(expected) == len(found) == 54
    for sample in expected:
        ours = found[sample["step_id"], sample["observation/image"].tobytes(), sample["prompt"]]
        assert ours["actions"].dtype == torch.float64
        np.testing.assert_array_equal(ours["actions"].numpy(), sample["actions"])
        np.testing.assert_array_equal(
            channels_last(ours["observation"]["wrist_image"]), sample["observation/wrist_image"]
        )
        for name in ("joint_position", "gripper_position"):
            np.testing.assert_array_equal(
                ours["observation"][name].numpy(), sample[f"observation/{name}"]
            )


# OpenVLA.


@pytest.fixture(scope="module")
def openvla(page):
    """The samples of the page's datasets, by dataset, instruction and step."""
    samples = [sample for ds in page["datasets"].values() for sample in ds]
    return {
        (s["dataset_name"], s["task"]["language_instruction"], s["_frame_index"]): s
        for s in samples
    }


def key_of(sample):
    """The key of an OpenVLA sample; the original had dropped Bridge's first step."""
    dropped = int(sample["dataset_name"] == "bridge_orig")
    return (
        sample["dataset_name"],
        sample["task/language_instruction"],
        int(sample["observation/timestep"][-1]) + dropped,
    )


def test_openvla(page, openvla):
    expected = recorded("openvla")
    assert len(expected) == len(openvla) == 28
    for sample in expected:
        ours = page["as_openvla"](openvla[key_of(sample)], SIZE)
        np.testing.assert_allclose(ours["action"], sample["action"], rtol=1e-5, atol=1e-6)
        assert ours["action"].dtype == np.float32
        assert_resized(ours["observation"]["image_primary"], sample["observation/image_primary"])
        assert ours["dataset_name"].decode() == sample["dataset_name"]
        assert ours["task"]["language_instruction"].decode() == sample["task/language_instruction"]


def assert_resized(found, expected):
    """Equal but for the rounding of sums in another order."""
    assert found.dtype == expected.dtype == np.uint8
    difference = np.abs(found.astype(int) - expected.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.001


@pytest.mark.parametrize("name", ["bridge_orig", "libero_spatial_no_noops"])
def test_openvla_statistics_and_normalisation(page, name):
    expected = described(f"openvla/{name}")["action"]
    found = page["statistics of OpenVLA"][name]
    for each in ("mean", "std", "max", "min", "q01", "q99"):
        np.testing.assert_allclose(found["action"][each], expected[each], rtol=1e-5, atol=1e-6)
    for count in ("num_transitions", "num_trajectories"):
        assert found[count] == RECORDED[f"openvla/{name}/statistics/{count}"]
    # With the original's numbers the arithmetic is the same, too.
    normalize = tfds.Normalize({"action": expected}, "bounds_q99")
    keep = page["steps_to_keep"](name, is_labeled=True)
    ds = tfds.RLDSDataset(
        page["folder"] / "data" / name / "1.0.0",
        keep=keep,
        keep_key="{_traj_index}",
        episode_transform=lambda episode: normalize(page["standardize"](name, episode)),
    )
    ours = {
        (name, sample["task"]["language_instruction"], sample["_frame_index"]): sample
        for sample in ds
    }
    rows = [sample for sample in recorded("openvla") if sample["dataset_name"] == name]
    assert len(rows) == len(ours)
    for sample in rows:
        np.testing.assert_array_equal(ours[key_of(sample)]["action"].numpy(), sample["action"])


def test_openvla_weights(page):
    mixture, statistics = page["mixture"], page["statistics of OpenVLA"]
    assert mixture.names == ["bridge_orig", "libero_spatial_no_noops"]
    assert mixture.shares == [13 / 20.5, 7.5 / 20.5]
    exact = {name: weight * statistics[name]["num_transitions"] for name, weight in page["MIX"]}
    exact = page["Mixture"](page["datasets"], exact)
    np.testing.assert_allclose(exact.shares, RECORDED["openvla/sample_weights"], rtol=1e-12)


@pytest.mark.slow
def test_openvla_goals(page):
    """Both draw from the same steps; for the recorded goal we give the recorded image."""
    name = "libero_spatial_no_noops"
    ds = tfds.RLDSDataset(
        page["folder"] / "data" / name / "1.0.0",
        goals=tfds.UniformGoals(min_distance=1),
        features=["steps/observation/image", "steps/language_instruction"],
    )
    drawn, images = {}, {}
    for epoch in range(40):
        ds.set_epoch(epoch)
        for sample in ds:
            text, goal = sample["task"]["language_instruction"], sample["task"]["timestep"]
            drawn.setdefault((text, sample["_frame_index"]), set()).add(goal)
            images[text, goal] = sample["task"]["image"]
    rows = [sample for sample in recorded("openvla") if sample["dataset_name"] == name]
    for sample in rows:
        text, goal = sample["task/language_instruction"], int(sample["task/timestep"])
        assert goal in drawn[text, int(sample["observation/timestep"][-1])]
        image = page["resize"](images[text, goal], *SIZE)
        assert_resized(channels_last(image), sample["task/image_primary"])
    for (text, step), goals in drawn.items():
        last = LENGTHS[name][int(text.split()[1])] - 1 if text else 6
        assert goals == set(range(min(step + 1, last), last + 1))


# Octo.


def octo_batches(page, num_epochs):
    for epoch in range(num_epochs):
        page["octo"].set_epoch(epoch)
        yield page["finish"](page["octo"].__getitems__(range(len(page["octo"]))), SIZE)


@pytest.mark.slow
def test_octo(page):
    expected = recorded("octo")
    assert len(expected) == len(page["octo"]) == 18
    rows = {}
    for batch in octo_batches(page, 60):
        seen, task = batch["observation"], batch["task"]
        for row, text in enumerate(task["language_instruction"]):
            rows[text, int(seen["timestep"][row, -1]), int(task["timestep"][row])] = batch, row
    for sample in expected:
        text = sample["task/language_instruction"]
        batch, row = rows[
            text, int(sample["observation/timestep"][-1]), int(sample["task/timestep"])
        ]
        seen, task = batch["observation"], batch["task"]
        np.testing.assert_allclose(
            batch["action"][row].numpy(), sample["action"], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_array_equal(
            batch["action_pad_mask"][row].numpy(), sample["action_pad_mask"]
        )
        for name in ("timestep", "timestep_pad_mask", "task_completed"):
            np.testing.assert_array_equal(seen[name][row].numpy(), sample[f"observation/{name}"])
        for ours, name in ((seen, "observation"), (task, "task")):
            np.testing.assert_allclose(
                ours["proprio"][row].numpy(), sample[f"{name}/proprio"], rtol=1e-5, atol=1e-6
            )
            assert_resized(
                channels_last(ours["image_primary"][row]), sample[f"{name}/image_primary"]
            )
        assert batch["dataset_name"][row] == sample["dataset_name"]


def test_octo_statistics(page):
    expected, found = described("octo"), page["statistics"]
    for column in ("action", "proprio"):
        for each, theirs in {
            "mean": "mean",
            "std": "std",
            "max": "max",
            "min": "min",
            "q01": "p01",
            "q99": "p99",
        }.items():
            np.testing.assert_allclose(
                found[column][each], expected[column][theirs], rtol=1e-5, atol=1e-6
            )
    for count in ("num_transitions", "num_trajectories"):
        assert found[count] == RECORDED[f"octo/statistics/{count}"]


def test_what_the_page_says_of_numbers(page):
    assert "torch.Size([9, 16, 8])" in DOC.read_text(encoding="utf-8")
    assert page["batch"]["actions"].shape == (9, 16, 8)
