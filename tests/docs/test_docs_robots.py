"""examples/robots gives the batches of the originals' own code on the same data, kept in
batches.npz; the code of docs/robots.md runs.
"""

import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import lerobot_loader
import numpy as np
import octo_loader
import openpi_loader
import openvla_loader
import pytest
import torch
from robot_episodes import LENGTHS, write_robots

from torch_tfrecord import make_dataloader, tfds

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "robots.md"
RECORDED = np.load(ROOT / "tests" / "data" / "robots" / "batches.npz")
SIZE = (16, 16)  # of the recorded resized images
MIX = [("bridge_orig", 1.0), ("libero_spatial_no_noops", 0.5)]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """On a busy machine, each small operation would wait for torch's other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_robots(tmp_path_factory.mktemp("robots") / "data")


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


def droid(data):
    return SimpleNamespace(
        name="droid", version="1.0.1", weight=1.0, filter_dict_path=str(data / "keep.json")
    )


@pytest.mark.slow
def test_openpi(data):
    ds = openpi_loader.droid_steps(data, [droid(data)], 16)
    found = {}
    # In so many epochs each step has each camera with each instruction.
    for epoch in range(60):
        ds.set_epoch(epoch)
        for position, sample in enumerate(ds):
            number, step = ds.locate(position)
            folder = f"gs://raw/success/{number}"
            key = f"{folder}/recordings/MP4--{folder}/trajectory.h5--{step}"
            found[key, sample["observation"]["image"].tobytes(), sample["prompt"]] = sample
    expected = recorded("openpi")
    assert len(expected) == len(found) == 54
    for sample in expected:
        ours = found[sample["step_id"], sample["observation/image"].tobytes(), sample["prompt"]]
        assert ours["actions"].dtype == np.float64
        np.testing.assert_array_equal(ours["actions"], sample["actions"])
        for name in ("image", "wrist_image", "joint_position", "gripper_position"):
            np.testing.assert_array_equal(
                ours["observation"][name], sample[f"observation/{name}"], strict=True
            )


def test_openpi_without_filter_and_of_several_datasets(data):
    each = droid(data)
    each.filter_dict_path = None
    ds = openpi_loader.droid_steps(data, [each], 4, "joint_velocity")
    assert len(ds) == 9 + 12 + 5  # the second episode has failed
    expected = tfds.RLDSDataset(data / "droid" / "1.0.1", action_horizon=4)[15]["action_dict"]
    joined = torch.cat([expected["joint_velocity"], expected["gripper_position"]], -1)
    np.testing.assert_array_equal(ds[9]["actions"][0], joined.numpy())
    mixed = openpi_loader.droid_steps(data, [each, droid(data)], 4)
    batch = next(iter(make_dataloader(mixed, 8, collate_fn=openpi_loader.stack)))
    assert batch["actions"].shape == (8, 4, 8)
    assert batch["observation"]["image"].shape == (8, 20, 24, 3)
    tensors = openpi_loader.to_tensors({"actions": batch["actions"]})
    assert torch.equal(tensors["actions"], torch.as_tensor(batch["actions"]))


def make_openpi(monkeypatch, data):
    """openpi's modules as far as the example calls them, with one transform."""

    class Loader:
        def __init__(self, data_config, loader):
            self.config, self.loader = data_config, loader

        def __iter__(self):
            return ((batch["observation"], batch["actions"]) for batch in self.loader)

    def transform_dataset(dataset, data_config, *, skip_norm_stats):
        class Transformed:
            def __getitem__(self, index):
                sample = dataset[index]
                del sample["prompt"]  # openpi's makes tokens of it
                return sample | {"actions": sample["actions"] * data_config.scale}

        return Transformed()

    training = SimpleNamespace(
        transform_dataset=transform_dataset,
        DataLoaderImpl=Loader,
        create_data_loader=lambda config, **_: "theirs",
    )
    download = SimpleNamespace(maybe_download=lambda path: path.removeprefix("gs:"))
    shared = SimpleNamespace(download=download)
    parts = SimpleNamespace(shared=shared, training=SimpleNamespace(data_loader=training))
    for name, module in {
        "openpi": parts,
        "openpi.shared": shared,
        "openpi.shared.download": download,
        "openpi.training": parts.training,
        "openpi.training.data_loader": training,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_openpi_create_data_loader(monkeypatch, data):
    make_openpi(monkeypatch, data)
    from dataclasses import make_dataclass

    row = make_dataclass("Row", ["name", "version", "weight", "filter_dict_path"])
    chosen = SimpleNamespace(
        rlds_data_dir=str(data),
        datasets=[row("droid", "1.0.1", 1.0, f"gs:{data / 'keep.json'}")],
        action_space=SimpleNamespace(name="JOINT_POSITION"),
        scale=2.0,
    )
    config = SimpleNamespace(
        data=SimpleNamespace(create=lambda directory, model: chosen),
        assets_dirs="assets",
        model=SimpleNamespace(action_horizon=16),
        batch_size=4,
        num_workers=0,
        seed=3,
    )
    make = partial(openpi_loader.create_data_loader, config, shuffle=True, framework="pytorch")
    loader = make(num_batches=7)
    batches = list(loader)
    assert len(batches) == 7  # of two in an epoch
    observation, actions = batches[0]
    assert observation["image"].shape == (4, 20, 24, 3)
    assert actions.dtype == torch.float64
    plain = openpi_loader.droid_steps(data, [droid(data)], 16)
    rows = {(sample["actions"] * 2).tobytes() for sample in plain}
    assert {row.numpy().tobytes() for row in actions} <= rows
    # The state counts what was given.
    first = make()
    given = iter(first)
    next(given)
    state = first.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    for (expected, _), (found, _) in zip(batches[1:4], resumed, strict=False):
        assert torch.equal(found["wrist_image"], expected["wrist_image"])
        assert torch.equal(found["image"], expected["image"])
    chosen.rlds_data_dir = None
    assert make() == "theirs"


# OpenVLA.


@pytest.fixture(scope="module")
def mixture(data):
    """The mixture and the statistics."""
    return openvla_loader.openvla_steps(data, MIX)


@pytest.fixture(scope="module")
def openvla(mixture):
    """The samples of the datasets, by dataset, instruction and step."""
    samples = [sample for ds in mixture[0].datasets for sample in ds]
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


def test_openvla(openvla):
    expected = recorded("openvla")
    assert len(expected) == len(openvla) == 28
    for sample in expected:
        ours = openvla_loader.as_openvla(openvla[key_of(sample)], SIZE)
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
def test_openvla_statistics_and_normalisation(data, mixture, name):
    expected = described(f"openvla/{name}")["action"]
    found = mixture[1][name]
    for each in ("mean", "std", "max", "min", "q01", "q99"):
        np.testing.assert_allclose(found["action"][each], expected[each], rtol=1e-5, atol=1e-6)
    for count in ("num_transitions", "num_trajectories"):
        assert found[count] == RECORDED[f"openvla/{name}/statistics/{count}"]
    # With the original's numbers the arithmetic is the same, too.
    normalize = tfds.Normalize({"action": expected}, "bounds_q99")
    path = openvla_loader.directory_of(data, name)
    ds = tfds.RLDSDataset(
        path,
        keep=openvla_loader.steps_to_keep(path, name, is_labeled=True),
        keep_key="{_traj_index}",
        episode_transform=partial(openvla_loader.prepare, name, normalize),
    )
    ours = {
        (name, sample["task"]["language_instruction"], sample["_frame_index"]): sample
        for sample in ds
    }
    rows = [sample for sample in recorded("openvla") if sample["dataset_name"] == name]
    assert len(rows) == len(ours)
    for sample in rows:
        np.testing.assert_array_equal(ours[key_of(sample)]["action"].numpy(), sample["action"])


def test_openvla_weights(mixture):
    assert mixture[0].names == ["bridge_orig", "libero_spatial_no_noops"]
    np.testing.assert_allclose(mixture[0].shares, RECORDED["openvla/sample_weights"], rtol=1e-12)


@pytest.mark.parametrize("image_aug", [False, True])
def test_openvla_dataset(data, openvla, image_aug):
    """OpenVLA's arguments; endless, each sample given to its batch transform."""
    ds = openvla_loader.RLDSDataset(
        str(data), MIX, lambda sample: sample, SIZE, image_aug=image_aug, batch_size=4
    )
    assert isinstance(ds, torch.utils.data.IterableDataset)
    samples = [sample for sample, _ in zip(ds, range(3 * len(ds)), strict=False)]
    assert len(samples) == 3 * len(ds)  # of one in an epoch
    form = openvla_loader.as_openvla(next(iter(openvla.values())), SIZE)
    images = set()
    for sample in samples:
        assert sample["observation"]["image_primary"].shape == (1, *SIZE, 3)
        assert sample["action"].shape == form["action"].shape
        images.add(sample["observation"]["image_primary"].tobytes())
    assert len(images) == (28 if not image_aug else len(samples))
    assert [*ds.dataset_statistics] == [name for name, _ in MIX]
    assert ds.dataset_statistics["bridge_orig"]["action"]["mask"] == [True] * 6 + [False]
    alone = openvla_loader.RLDSDataset(
        data, "bridge_orig", lambda sample: sample, SIZE, batch_size=4
    )
    assert {sample["dataset_name"] for sample, _ in zip(alone, range(20), strict=False)} == {
        b"bridge_orig"
    }


@pytest.mark.slow
def test_openvla_goals(data):
    """Both draw from the same steps; for the recorded goal we give the recorded image."""
    name = "libero_spatial_no_noops"
    ds = tfds.RLDSDataset(
        data / name / "1.0.0",
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
        image = openvla_loader.resize(images[text, goal], *SIZE)
        assert_resized(channels_last(image), sample["task/image_primary"])
    for (text, step), goals in drawn.items():
        last = LENGTHS[name][int(text.split()[1])] - 1 if text else 6
        assert goals == set(range(min(step + 1, last), last + 1))


# Octo.


@pytest.mark.slow
def test_octo(data):
    ds, _ = octo_loader.octo_steps(data / "bridge_dataset" / "1.0.0")
    expected = recorded("octo")
    assert len(expected) == len(ds) == 18
    rows = {}
    for epoch in range(60):
        ds.set_epoch(epoch)
        batch = octo_loader.finish(SIZE, ds.__getitems__(range(len(ds))))
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


def test_octo_iterator(data):
    """The arrays, and their names, of the recorded batches."""
    ours = octo_loader.OctoBatches(data / "bridge_dataset" / "1.0.0", 6, size=SIZE)
    batches = [batch for batch, _ in zip(ours.iterator(), range(4), strict=False)]
    assert len(batches) == 4  # of three in an epoch
    expected, batch = recorded("octo")[0], flat(batches[0])
    assert {*batch} == {*expected}
    for name, column in expected.items():
        assert batch[name].shape == (6, *np.shape(column))
        if batch[name].dtype == object:
            assert isinstance(batch[name][0], bytes)
        else:
            assert batch[name].dtype == column.dtype
        if "pad_mask_dict" in name:
            assert batch[name].all() == column.all() == np.True_


def flat(tree, path=""):
    if not isinstance(tree, dict):
        return {path: tree}
    return {
        key: leaf
        for name, item in tree.items()
        for key, leaf in flat(item, f"{path}/{name}" if path else name).items()
    }


def test_octo_statistics(data):
    expected = described("octo")
    _, found = octo_loader.octo_steps(data / "bridge_dataset" / "1.0.0")
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


# LeRobot.


@pytest.mark.parametrize("n_obs_steps", [1, 2])
def test_lerobot(data, n_obs_steps):
    directory = data / "bridge_orig" / "1.0.0"
    steps, stats = lerobot_loader.lerobot_steps(
        directory, {"top": "image_0"}, chunk_size=4, n_obs_steps=n_obs_steps
    )
    loader = make_dataloader(steps, len(steps), shuffle=False)
    (batch,) = loader
    time = [n_obs_steps] if n_obs_steps > 1 else []
    names = {
        "observation.images.top": (torch.float32, [*time, 3, 20, 24]),
        "observation.state": (torch.float32, [*time, 7]),
        "action": (torch.float32, [4, 7]),
        "action_is_pad": (torch.bool, [4]),
        "timestamp": (torch.float32, []),
        "frame_index": (torch.int64, []),
        "episode_index": (torch.int64, []),
        "index": (torch.int64, []),
    }
    if time:
        names |= {f"{name}_is_pad": (torch.bool, time) for name in [*names][:2]}
    assert {*batch} == {*names, "task"}
    for name, (dtype, shape) in names.items():
        assert (batch[name].dtype, [*batch[name].shape]) == (dtype, [19, *shape])
    assert batch["index"].tolist() == [*range(19)]
    assert batch["episode_index"].tolist() == [0] * 5 + [1] * 8 + [2] * 6
    plain = tfds.RLDSDataset(directory, window_size=n_obs_steps, action_horizon=4)
    for row in (0, 4, 6, 18):
        sample = plain[row]
        image = sample["observation"]["image_0"] / 255
        found = batch["observation.images.top"][row]
        assert torch.equal(found, torch.Tensor(image if time else image[0]))
        assert torch.equal(batch["action"][row], sample["action"])
        assert torch.equal(batch["action_is_pad"][row], ~sample["action_pad_mask"])
        assert batch["task"][row] == sample["task"]["language_instruction"]
        assert batch["timestamp"][row] == torch.tensor(sample["_frame_index"] / 10)
        if time:
            padded = ~sample["observation"]["pad_mask"]
            assert torch.equal(batch["observation.images.top_is_pad"][row], padded)
    every = torch.stack([sample["observation"]["state"][-1] for sample in plain]).double()
    torch.testing.assert_close(stats["observation.state"]["max"].double(), every.amax(0))
    torch.testing.assert_close(stats["observation.state"]["mean"].double(), every.mean(0))
    assert stats["observation.images.top"]["mean"].shape == (3, 1, 1)


def test_page(data, monkeypatch):
    """The code of the page runs, in a folder that has the data, and its shapes are right."""
    monkeypatch.chdir(data.parent)
    text = DOC.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{DOC.name}, block {number}", "exec"), names)
        for expression, shape in re.findall(
            r"^(\S+\.shape)  # torch\.Size\((.*?)\)", block, re.MULTILINE
        ):
            assert [*eval(expression, names)] == eval(shape), expression


def test_every_example_is_run():
    files = {path.stem for path in (ROOT / "examples" / "robots").glob("*.py")}
    assert files == {"compare", "lerobot_loader", "octo_loader", "openpi_loader", "openvla_loader"}
    assert files - {"compare"} <= {*sys.modules}
