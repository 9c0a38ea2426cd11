"""RLDS to LeRobot: what LeRobot's own writer makes of the same episodes, read by its own reader where it is installed.

Covers tfds/lerobot_export, tfds/lerobot_features, tfds/lerobot_files, tfds/lerobot_group.
"""

import gzip
import importlib.util
import io
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from torch_tfrecord import encode_image, tfds

pq = pytest.importorskip("pyarrow.parquet")

DATA = Path(__file__).parents[1] / "data" / "lerobot"
LEROBOT_PYTHON = os.environ.get("LEROBOT_PYTHON")
f = tfds.features


def load_oracle():
    spec = importlib.util.spec_from_file_location("lerobot_oracle", DATA / "oracle.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oracle = load_oracle()
FRAMES = [(episode, step) for episode, length in enumerate(oracle.LENGTHS) for step in range(length)]


@pytest.fixture(scope="module")
def expected():
    return json.loads(gzip.decompress((DATA / "expected.json.gz").read_bytes()))


STEPS = {
    "observation": {
        "image": f.Image((32, 48, 3), encoding_format="png"),
        "wrist": f.Image((32, 32, 1), encoding_format="png"),
        "depth": f.Image((32, 32, 1), dtype="uint16", encoding_format="png"),
        "state": f.Tensor((2,), "float32"),
        "pose": f.Tensor((2, 2), "float32"),
        "words": f.Sequence(f.Tensor((), "int64")),
    },
    "action": f.Tensor((3,), "float32"),
    "reward": f.Scalar("float32"),
    "count": f.Scalar("int64"),
    "level": f.Tensor((4,), "float64"),
    "is_first": f.Scalar("bool"),
    "note": f.Text(),
    "language_instruction": f.Text(),
    "timestamp": f.Scalar("float32"),
}


def make_step(episode, step):
    values = {name.split(".")[-1]: oracle.numbers(name, episode, step) for name in oracle.NUMBERS}
    pictures = {
        name: encode_image(oracle.frame(name, episode, step).transpose(2, 0, 1), "png") for name in oracle.SIZES
    }
    depth = encode_image(np.full((1, 32, 32), step, np.uint16), "png")
    return {
        "observation": {
            **pictures,
            "depth": depth,
            "state": values["state"],
            "pose": values["pose"],
            "words": [1] * step,
        },
        **{name: values[name] for name in ("action", "level")},
        **{name: values[name].item() for name in ("reward", "count", "is_first")},
        "note": oracle.note(episode, step),
        "language_instruction": oracle.task(episode),
        "timestamp": 0.0,
    }


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rlds") / "drawn" / "1.0.0"
    episodes = [
        {"steps": [make_step(episode, step) for step in range(length)]} for episode, length in enumerate(oracle.LENGTHS)
    ]
    tfds.write(directory, {"train": episodes}, {"steps": f.Dataset(STEPS)}, name="drawn", num_shards=2)
    return directory


def export(directory, out, **options):
    return tfds.rlds_to_lerobot(directory, out, **{"fps": 10, "robot_type": "drawn", "num_workers": 2, **options})


@pytest.fixture(scope="module", params=["image", "video"])
def exported(request, directory, tmp_path_factory):
    """The folder, what was returned, and the mode."""
    if request.param == "video":
        pytest.importorskip("av")
    out = tmp_path_factory.mktemp("lerobot") / "out"
    return out, export(directory, out, images=request.param), request.param


def read_tables(out, folder):
    """Every row of the tables of a folder, in the order in which LeRobot reads the files."""
    return [row for path in sorted((out / folder).glob("*/*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_what_is_exported(exported):
    _, result, _ = exported
    assert (result.num_episodes, result.num_frames) == (3, 13)
    assert result.features["observation.state"] == ("observation/state",)
    assert result.features["observation.images.wrist"] == ("observation/wrist",)
    assert result.left_out == ["observation/depth", "observation/words", "timestamp"]


def test_metadata_as_lerobots_writer(exported, expected):
    out, _, mode = exported
    wanted = expected[mode]
    info = json.loads((out / "meta/info.json").read_text())
    assert info == wanted["info"]
    assert pq.read_table(out / "meta/tasks.parquet").to_pydict() == wanted["tasks"]
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def same_statistics(found, wanted):
    """Of pixels, LeRobot adds up thousands of float32; ours are exact."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        tolerance = 5e-3 if np.ndim(value) == 3 else 1e-5
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=1e-6, err_msg=name)


def test_statistics_as_lerobots_writer(exported, expected):
    out, _, mode = exported
    found, wanted = json.loads((out / "meta/stats.json").read_text()), expected[mode]["stats"]
    assert found.keys() == wanted.keys()
    for name in wanted:
        same_statistics(found[name], wanted[name])


def test_episodes_as_lerobots_writer(exported, expected):
    out, _, mode = exported
    rows, wanted = read_tables(out, "meta/episodes"), expected[mode]["episodes"]
    assert len(rows) == len(wanted) == 3
    for number, (row, other) in enumerate(zip(rows, wanted, strict=True)):
        assert row.keys() == other.keys()
        assert {type(value) for value in row.values()} == {type(value) for value in other.values()}
        is_place = {name for name in row if name.endswith(("chunk_index", "file_index", "_timestamp"))}
        is_statistic = {name for name in row if name.startswith("stats/")}
        others = row.keys() - is_place - is_statistic
        assert {name: row[name] for name in others} == {name: other[name] for name in others}
        same_statistics({name: row[name] for name in is_statistic}, {name: other[name] for name in is_statistic})
        assert row["data/file_index"] == row["meta/episodes/file_index"] == number  # a group of its own


def test_rows_as_lerobots_writer(exported, expected):
    out, _, mode = exported
    rows, wanted = read_tables(out, "data"), expected[mode]["rows"]
    for row, other in zip(rows, wanted, strict=True):
        assert {name: row[name] for name in other} == other
    schema = pq.read_schema(out / "data/chunk-000/file-000.parquet")
    assert {field.name: str(field.type) for field in schema} == expected[mode]["schema"]
    kind = schema.field("observation.pose").metadata[b"ARROW:extension:name"]
    assert kind == b"datasets.features.features.Array2DExtensionType"
    assert json.loads(schema.metadata[b"huggingface"]) == expected[mode]["described"]


def true_frames(camera):
    frames = [oracle.frame(camera, episode, step) for episode, step in FRAMES]
    return np.stack([np.repeat(frame, 3 // frame.shape[2], axis=2) for frame in frames])


def signal_to_noise(found, wanted):
    """Decibels, of 8 bits."""
    return 10 * np.log10(255**2 / np.mean((found.astype(float) - wanted.astype(float)) ** 2))


def our_frames(out, camera, mode):
    """uint8 [T, H, W, 3], from where the metadata says they are."""
    if mode == "image":
        from PIL import Image

        rows = [row[f"observation.images.{camera}"] for row in read_tables(out, "data")]
        return np.stack([np.asarray(Image.open(io.BytesIO(row["bytes"]))) for row in rows])
    import av

    name, frames = f"videos/observation.images.{camera}", []
    for row in read_tables(out, "meta/episodes"):
        with av.open(str(out / name / f"chunk-000/file-{row[f'{name}/file_index']:03d}.mp4")) as container:
            stored = {round(float(frame.time) * 10): frame.to_ndarray(format="rgb24") for frame in container.decode()}
        first = round(row[f"{name}/from_timestamp"] * 10)
        assert round(row[f"{name}/to_timestamp"] * 10) == first + row["length"] <= len(stored)
        frames += [stored[first + step] for step in range(row["length"])]
    return np.stack(frames)


@pytest.mark.parametrize("camera", ["image", "wrist"])
def test_frames(exported, camera):
    out, _, mode = exported
    found, wanted = our_frames(out, camera, mode), true_frames(camera)
    assert found.shape == wanted.shape
    if mode == "image":
        np.testing.assert_array_equal(found, wanted)
    else:
        assert signal_to_noise(found, wanted) > 35


@pytest.mark.skipif(LEROBOT_PYTHON is None, reason="LEROBOT_PYTHON names no Python with lerobot")
def test_lerobots_reader(exported, tmp_path):
    out, _, mode = exported
    arguments = ["read", str(out), str(tmp_path / "read.npz")]
    subprocess.run([LEROBOT_PYTHON, DATA / "oracle.py", *arguments], check=True, timeout=300, env=plain_environment())
    found = np.load(tmp_path / "read.npz")
    for name, (dtype, shape) in oracle.NUMBERS.items():
        values = np.stack([oracle.numbers(name, episode, step) for episode, step in FRAMES])
        assert found[name].dtype == ("float32" if dtype == "float64" else dtype)  # as its reader makes it
        np.testing.assert_array_equal(found[name], values[:, 0] if shape == (1,) else values)
    assert found["note"].tolist() == [oracle.note(episode, step) for episode, step in FRAMES]
    assert found["task"].tolist() == [oracle.task(episode) for episode, _ in FRAMES]
    assert found["episode_index"].tolist() == [episode for episode, _ in FRAMES]
    for camera in oracle.SIZES:
        frames = np.round(found[f"observation.images.{camera}"] * 255).transpose(0, 2, 3, 1)
        if mode == "image":
            np.testing.assert_array_equal(frames, true_frames(camera))
        else:
            assert signal_to_noise(frames, true_frames(camera)) > 35
            np.testing.assert_array_equal(frames, our_frames(out, camera, mode))


def plain_environment():
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
