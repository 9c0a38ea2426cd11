"""RLDS to LeRobot: what LeRobot's own writer makes of the same episodes, read by its own reader
where it is installed.

Covers index_tools/lerobot_export, index_tools/lerobot_features, index_tools/lerobot_files.
"""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import load_script
from rlds_episodes import write_episodes

from index_tools import lerobot_export
from index_tools.lerobot_export import rlds_to_lerobot
from index_tools.lerobot_features import choose_features
from torch_tfrecord import decode_image, encode_image, tfds
from torch_tfrecord.errors import ImageDecodeError, ParseError

pq = pytest.importorskip("pyarrow.parquet")

DATA = Path(__file__).parents[1] / "data" / "lerobot"
LEROBOT_PYTHON = os.environ.get("LEROBOT_PYTHON")
f = tfds.features


oracle = load_script(DATA / "oracle.py")
FRAMES = [
    (episode, step) for episode, length in enumerate(oracle.LENGTHS) for step in range(length)
]


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
        name: encode_image(oracle.frame(name, episode, step).transpose(2, 0, 1), "png")
        for name in oracle.SIZES
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
        {"steps": [make_step(episode, step) for step in range(length)]}
        for episode, length in enumerate(oracle.LENGTHS)
    ]
    tfds.write(
        directory, {"train": episodes}, {"steps": f.Dataset(STEPS)}, name="drawn", num_shards=2
    )
    return directory


def export(directory, out, **options):
    return rlds_to_lerobot(
        directory, out, **{"fps": 10, "robot_type": "drawn", "num_workers": 2, **options}
    )


@pytest.fixture(scope="module", params=["image", "video"])
def exported(request, directory, tmp_path_factory):
    """The folder, what was returned, and the mode."""
    if request.param == "video":
        pytest.importorskip("av")
    out = tmp_path_factory.mktemp("lerobot") / "out"
    return out, export(directory, out, images=request.param), request.param


def read_tables(out, folder):
    """Every row of the tables of a folder, in the order in which LeRobot reads the files."""
    return [
        row
        for path in sorted((out / folder).glob("*/*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


@pytest.mark.daily
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
        is_place = {
            name for name in row if name.endswith(("chunk_index", "file_index", "_timestamp"))
        }
        is_statistic = {name for name in row if name.startswith("stats/")}
        others = row.keys() - is_place - is_statistic
        assert {name: row[name] for name in others} == {name: other[name] for name in others}
        same_statistics(
            {name: row[name] for name in is_statistic}, {name: other[name] for name in is_statistic}
        )
        assert (
            row["data/file_index"] == row["meta/episodes/file_index"] == number
        )  # a group of its own


def test_rows_as_lerobots_writer(exported, expected):
    out, _, mode = exported
    rows, wanted = read_tables(out, "data"), expected[mode]["rows"]
    for row, other in zip(rows, wanted, strict=True):
        assert {name: row[name] for name in other} == other
    schema = pq.read_schema(out / "data/chunk-000/file-000.parquet")
    kinds = {field.name: str(field.type).replace("element: ", "item: ") for field in schema}
    assert kinds == {
        name: kind.replace("element: ", "item: ") for name, kind in expected[mode]["schema"].items()
    }
    kind = schema.field("observation.pose").metadata[b"ARROW:extension:name"]
    assert kind == b"datasets.features.features.Array2DExtensionType"
    assert (
        json.loads(schema.metadata[b"huggingface"])["info"] == expected[mode]["described"]["info"]
    )


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
        with av.open(
            str(out / name / f"chunk-000/file-{row[f'{name}/file_index']:03d}.mp4")
        ) as container:
            stored = {
                round(float(frame.time) * 10): frame.to_ndarray(format="rgb24")
                for frame in container.decode()
            }
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
    subprocess.run(
        [LEROBOT_PYTHON, DATA / "oracle.py", *arguments],
        check=True,
        timeout=300,
        env=plain_environment(),
    )
    found = np.load(tmp_path / "read.npz")
    for name, (dtype, shape) in oracle.NUMBERS.items():
        values = np.stack([oracle.numbers(name, episode, step) for episode, step in FRAMES])
        assert found[name].dtype == (
            "float32" if dtype == "float64" else dtype
        )  # as its reader makes it
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
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "HF_HUB_OFFLINE": "1"
    }


# Interrupted, and called again.


def contents(out):
    return {
        str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()
    }


def interrupted(directory, out, monkeypatch, lost=(1,), **options):
    """An export that ended before it was finished, without these groups; one of them with a torn
    file.
    """

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(lerobot_export, "_finish", stop)
        export(directory, out, images="image", **options)
    for number in lost:
        (out / f"meta/episodes/chunk-000/file-{number:03d}.parquet").unlink()
        (out / f"data/chunk-000/file-{number:03d}.parquet").write_bytes(b"torn")


@pytest.mark.daily
@pytest.mark.parametrize("lost", [(), (1,), (0, 1, 2)])
def test_it_continues_with_what_is_missing(directory, tmp_path, monkeypatch, lost):
    whole, out = tmp_path / "whole", tmp_path / "out"
    export(directory, whole, images="image")
    interrupted(directory, out, monkeypatch, lost)
    assert not (out / "meta/info.json").exists()
    before = {path: path.stat().st_ino for path in (out / "data").rglob("*.parquet")}
    result = export(directory, out, images="image", num_workers=1)
    assert result.num_frames == 13
    assert contents(out) == contents(whole)
    kept = [path for path in before if int(path.stem[-3:]) not in lost]
    assert [path.stat().st_ino for path in kept] == [before[path] for path in kept]
    assert [path for path in out.iterdir() if path.name.startswith(".")] == []


@pytest.mark.daily
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"fps": 5}, "fps"),
        ({"features": {"count": None}}, "features"),
        ({"episodes": [0, 1]}, "episodes"),
        ({"crf": 20, "robot_type": "other"}, "robot_type, video"),
    ],
)
def test_another_export_in_the_folder(directory, tmp_path, monkeypatch, options, named):
    out = tmp_path / "out"
    interrupted(directory, out, monkeypatch)
    before = contents(out)
    text = (
        f"{out}: expected an unfinished export of the same {named}, got another one; repeat its arguments, or delete "
        f"the folder"
    )
    with pytest.raises(FileExistsError) as raised:
        export(directory, out, images="image", **options)
    assert str(raised.value) == text
    assert contents(out) == before


@pytest.mark.daily
def test_other_data_in_the_folder(directory, tmp_path, monkeypatch):
    interrupted(directory, tmp_path / "out", monkeypatch)
    with pytest.raises(
        FileExistsError, match="an unfinished export of the same data, episodes, got another one"
    ):
        export(directory, tmp_path / "out", split="train[:2]", images="image")


def test_files_of_others(directory, exported, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError) as raised:
        export(directory, tmp_path)
    wanted = "expected a folder that is new or empty, or an unfinished export"
    assert str(raised.value) == f"{tmp_path}: {wanted}, got mine.txt"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(FileExistsError) as raised:
        export(directory, exported[0])
    assert str(raised.value) == f"{exported[0]}: {wanted}, got a LeRobot dataset"


@pytest.mark.daily
def test_two_at_once(directory, tmp_path, monkeypatch):
    seen = []

    def meanwhile(*arguments):
        with pytest.raises(FileExistsError) as raised:
            export(directory, tmp_path / "out", images="image")
        seen.append(str(raised.value))
        finish(*arguments)

    finish = lerobot_export._finish
    monkeypatch.setattr(lerobot_export, "_finish", meanwhile)
    export(directory, tmp_path / "out", images="image")
    assert seen == [f"{tmp_path}/out: another process is exporting to this folder"]


PROGRAM = """
import sys
from index_tools.lerobot_export import rlds_to_lerobot
if __name__ == "__main__":
    rlds_to_lerobot(sys.argv[1], sys.argv[2], fps=10, num_workers=2)
"""


@pytest.mark.daily
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_called_again(tmp_path, number):
    pytest.importorskip("av")
    directory, out = tmp_path / "drawn/1.0.0", tmp_path / "out"
    write_episodes(directory, (12,) * 64)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), str(directory), str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while process.poll() is None and not [*out.glob("meta/episodes/*/*.parquet")]:
            time.sleep(0.01)
        process.send_signal(number)
        process.wait(200)
        deadline = time.monotonic() + 200
        while (left := of_session(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
    finally:
        for pid in of_session(process.pid):
            os.kill(pid, signal.SIGKILL)
    if not (out / "meta/info.json").exists():
        done = {path: path.stat().st_ino for path in out.glob("meta/episodes/*/*.parquet")}
        assert done
        rlds_to_lerobot(directory, out, fps=10, num_workers=2)
        assert {path: path.stat().st_ino for path in done} == done
    rlds_to_lerobot(directory, tmp_path / "whole", fps=10, num_workers=2)
    assert contents(out) == contents(tmp_path / "whole")


def of_session(number):
    """The processes of a session, but for those that have ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == number and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


# What is chosen.


def chosen(features=None, steps=STEPS):
    tree = tfds.features.FeaturesDict({"steps": f.Dataset(steps)})
    found, left_out = choose_features(tree, features or {}, "video")
    return {item.name: (item.dtype, item.shape, item.paths) for item in found}, left_out


def test_features_by_other_names():
    found, left_out = chosen(
        {
            "observation.state": ["observation/pose", "observation/state"],
            "observation.images.top": "observation/image",
            "mixed": ["count", "level"],
            "wrist": None,
            "observation.images.wrist": None,
            "reward": None,
        }
    )
    assert found["observation.state"] == (
        "float32",
        (6,),
        ("observation/pose", "observation/state"),
    )
    assert found["observation.images.top"] == ("video", (0, 0, 3), ("observation/image",))
    assert found["mixed"] == ("float32", (5,), ("count", "level"))
    assert (
        not {"count", "level", "reward", "observation.images.wrist", "observation.pose"}
        & found.keys()
    )
    assert left_out == [
        "observation/wrist",
        "observation/depth",
        "observation/words",
        "reward",
        "timestamp",
    ]


def test_a_dict_of_actions_is_one_action():
    steps = {
        "action": {"world": f.Tensor((3,), "float32"), "grip": f.Scalar("float32")},
        "observation": {
            "proprio": f.Tensor((2,), "float32"),
            "state": f.Tensor((4,), "float32"),
            "name": f.Text(),
        },
        "natural_language_instruction": f.Text(),
        "raw": f.Tensor((), "string"),
        "label": f.ClassLabel(num_classes=3),
    }
    found, left_out = chosen(steps=steps)
    assert found == {
        "action": ("float32", (4,), ("action/grip", "action/world")),
        "observation.proprio": ("float32", (2,), ("observation/proprio",)),
        "observation.state": ("float32", (4,), ("observation/state",)),
        "observation.name": ("string", (1,), ("observation/name",)),
        "label": ("int64", (1,), ("label",)),
    }
    assert left_out == ["raw"]


@pytest.mark.parametrize(
    ("features", "text"),
    [
        (
            {"task": "note"},
            "features: 'task' cannot be the name of a feature: LeRobot uses it, or it has a '/'",
        ),
        (
            {"a/b": "note"},
            "features: 'a/b' cannot be the name of a feature: LeRobot uses it, or it has a '/'",
        ),
        ({"a": []}, "features: 'a' must have at least one path"),
        (
            {"a": ["note", "count"]},
            "features: 'a': only numbers can be concatenated, got note, count",
        ),
        (
            {"a": "observation/depth"},
            "features: 'a': no feature 'observation/depth' in the steps that LeRobot can",
        ),
    ],
)
def test_features_that_cannot_be(features, text):
    with pytest.raises(ValueError) as raised:
        chosen(features)
    assert str(raised.value).startswith(text)


# Data of other kinds.


def write_cameras(directory, frames, feature):
    """One episode for each list of encoded frames."""
    tree = {
        "steps": f.Dataset({"observation": {"image": feature}, "action": f.Tensor((1,), "float32")})
    }
    episodes = [
        {
            "steps": [
                {"observation": {"image": data}, "action": np.zeros(1, np.float32)}
                for data in episode
            ]
        }
        for episode in frames
    ]
    tfds.write(directory, {"train": episodes}, tree, name="drawn", num_shards=1)
    return directory


def picture(height=16, width=16, channels=3, format="png"):
    pixels = (
        np.arange(height * width * channels, dtype=np.int64).reshape(channels, height, width) % 251
    )
    return encode_image(pixels.astype(np.uint8), format)


@pytest.mark.daily
def test_images_keep_their_bytes_where_every_program_reads_the_same_pixels(tmp_path):
    frames = [
        picture(format="jpeg"),
        picture(),
        picture(channels=1, format="jpeg"),
        picture(channels=4),
    ]
    write_cameras(tmp_path / "in", [frames], f.Image((None, None, 3)))
    export(tmp_path / "in", tmp_path / "out", images="image")
    stored = [row["observation.images.image"] for row in read_tables(tmp_path / "out", "data")]
    assert [row["path"] for row in stored] == [
        f"frame-00000{n}.{kind}" for n, kind in enumerate(["jpeg"] + 3 * ["png"])
    ]
    assert [row["bytes"] == data for row, data in zip(stored, frames, strict=True)] == [
        True,
        True,
        False,
        False,
    ]
    found, wanted = (
        our_frames(tmp_path / "out", "image", "image"),
        [decode_image(data, "RGB") for data in frames],
    )
    np.testing.assert_array_equal(
        found, np.stack([image.permute(1, 2, 0).numpy() for image in wanted])
    )


@pytest.mark.daily
@pytest.mark.parametrize("channels", [1, 4])
def test_alpha_is_left_out_and_gray_repeated(tmp_path, channels):
    write_cameras(tmp_path / "in", [[picture(channels=channels)]], f.Image((16, 16, channels)))
    export(tmp_path / "in", tmp_path / "out", images="image")
    found = our_frames(tmp_path / "out", "image", "image")[0]
    wanted = decode_image(picture(channels=channels), "RGBA")[:3].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.daily
def test_episodes_of_one_step_and_of_none(tmp_path):
    write_cameras(tmp_path / "in", [[picture()], [], [picture(), picture()]], f.Image((16, 16, 3)))
    result = export(tmp_path / "in", tmp_path / "out", images="image")
    assert (result.num_episodes, result.num_frames) == (2, 3)
    rows = read_tables(tmp_path / "out", "meta/episodes")
    assert [(row["episode_index"], row["length"], row["tasks"]) for row in rows] == [
        (0, 1, [""]),
        (1, 2, [""]),
    ]
    assert rows[0]["stats/action/std"] == [0.0]
    assert rows[0]["stats/action/count"] == [1]


@pytest.mark.daily
def test_chosen_episodes_in_their_order(directory, tmp_path):
    export(directory, tmp_path / "out", images="image", episodes=[2, 0])
    rows = read_tables(tmp_path / "out", "data")
    wanted = [(2, step) for step in range(6)] + [(0, step) for step in range(5)]
    assert [row["note"] for row in rows] == [oracle.note(*place) for place in wanted]
    assert [row["task_index"] for row in rows] == [0] * 11  # both have the task "push"
    assert pq.read_table(tmp_path / "out/meta/tasks.parquet").column("task").to_pylist() == ["push"]


@pytest.mark.slow
@pytest.mark.parametrize("images", ["image", "video"])
def test_images_of_another_size(tmp_path, images):
    if images == "video":
        pytest.importorskip("av")
    write_cameras(
        tmp_path / "in",
        [[picture(), picture()], [picture(), picture(18, 20)]],
        f.Image((None, None, 3)),
    )
    with pytest.raises(ParseError) as raised:
        export(tmp_path / "in", tmp_path / "out", images=images)
    text = "expected an image of 16 x 16 pixels, as in the first episode, got 18 x 20"
    assert f"feature 'steps/observation/image', step 1: {text}" in str(raised.value)
    assert ": record 1 at byte" in str(raised.value)
    assert not (tmp_path / "out/meta/info.json").exists()


@pytest.mark.parametrize("frames", [[[b"text"]], [[picture()], [picture()[:-30]]]])
def test_damaged_images(tmp_path, frames):
    write_cameras(tmp_path / "in", frames, f.Image((16, 16, 3)))
    with pytest.raises(
        ImageDecodeError,
        match=r"record . at byte .* feature 'steps/observation/image', step 0: exp",
    ):
        export(tmp_path / "in", tmp_path / "out", images="image")


@pytest.mark.slow
def test_sizes_that_a_codec_cannot_encode(tmp_path):
    pytest.importorskip("av")
    write_cameras(tmp_path / "in", [[picture(15, 17)]], f.Image((15, 17, 3)))
    with pytest.raises(ValueError) as raised:
        export(tmp_path / "in", tmp_path / "out", codec="h264")
    assert str(raised.value) == (
        "observation.images.image: h264 cannot encode frames of 15 x 17 pixels; use another codec, or images='image'"
    )


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"fps": 0}, ValueError, "fps must be an integer of at least 1, got 0"),
        ({"fps": 5.0}, TypeError, "fps must be an integer of at least 1, got 5.0 (float)"),
        ({"images": "png"}, ValueError, "images must be 'video' or 'image', got 'png'"),
        ({"codec": "av1"}, ValueError, "codec must be 'libsvtav1', 'h264' or 'hevc', got 'av1'"),
        ({"crf": -1}, ValueError, "crf must be an integer of at least 0, got -1"),
        ({"num_workers": 0}, ValueError, "num_workers must be an integer of at least 1, got 0"),
        ({"episodes": [3]}, ValueError, "episodes: the split has 3 episodes, got the position 3"),
        ({"episodes": []}, ValueError, "{directory}: expected episodes with steps, got none"),
    ],
)
def test_wrong_arguments(directory, tmp_path, options, error, text):
    with pytest.raises(error) as raised:
        export(directory, tmp_path / "out", **{"images": "image", **options})
    assert str(raised.value) == text.format(directory=directory)
    assert not (tmp_path / "out").exists()


def test_a_bucket(directory):
    with pytest.raises(ValueError) as raised:
        export(directory, "s3://bucket/out")
    assert str(raised.value) == "out must be a local folder, got 's3://bucket/out'"


def test_without_the_extra(directory, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError) as raised:
        export(directory, tmp_path / "out")
    text = "a LeRobot dataset needs the package pyarrow: pip install pyarrow, or all of its extra: "
    assert str(raised.value).startswith(text)


def die(job, number, advance):
    os._exit(1)


@pytest.mark.daily
def test_a_worker_that_dies(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(lerobot_export, "_write_group", die)
    with pytest.raises(ChildProcessError) as raised:
        export(directory, tmp_path / "out", images="image")
    text = "a worker process died, perhaps because memory ran out; run it again, with fewer workers: it continues"
    assert str(raised.value) == text
    monkeypatch.undo()
    assert export(directory, tmp_path / "out", images="image").num_frames == 13
