"""`tfrecord rlds-to-lerobot`: its options, and what it prints."""

import json

import pytest
from rlds_episodes import write_episodes

from index_tools.main import main

pytest.importorskip("pyarrow")


@pytest.fixture
def directory(tmp_path):
    return str(write_episodes(tmp_path / "drawn/1.0.0", (3, 2)))


def run(directory, out, *options):
    return main(
        [
            "rlds-to-lerobot",
            directory,
            str(out),
            "--fps",
            "5",
            "--images",
            "image",
            "--jobs",
            "1",
            *options,
        ]
    )


@pytest.mark.daily
def test_what_it_writes_and_prints(directory, tmp_path, capsys):
    out = tmp_path / "out\n"
    names = [
        "--feature",
        "observation.state=action,observation/state",
        "--feature",
        "reward=",
        "--robot-type",
        "arm",
    ]
    assert run(directory, out, *names, "--split", "train[:1]") == 0
    *features, left_out, last = capsys.readouterr().out.splitlines()
    assert features == [
        "observation.state: action, observation/state",
        "is_first: is_first",
        "is_last: is_last",
        "observation.images.image: observation/image",
        "observation.images.wrist_image: observation/wrist_image",
    ]
    assert left_out == "left out: reward"
    assert last == f"wrote 1 episode, 3 frames: {tmp_path}/out\\n"
    info = json.loads((out / "meta/info.json").read_text())
    assert (info["fps"], info["robot_type"], info["total_frames"]) == (5, "arm", 3)
    assert info["features"]["observation.state"] == {
        "dtype": "float32",
        "shape": [5],
        "names": None,
    }


def test_a_folder_with_other_files(directory, tmp_path, capsys):
    assert run(directory, tmp_path) == 2
    text = "expected a folder that is new or empty, or an unfinished export, got drawn"
    assert capsys.readouterr().err == f"tfrecord: {tmp_path}: {text}\n"


@pytest.mark.parametrize("feature", ["name", "=action", ""])
def test_features_that_are_no_pair(directory, tmp_path, capsys, feature):
    assert run(directory, tmp_path / "out", "--feature", feature) == 2
    text = f"argument --feature: expected NAME=PATH, NAME=PATH,PATH or NAME=, got {feature!r}"
    assert text in capsys.readouterr().err


def test_fps_is_needed(directory, tmp_path, capsys):
    assert main(["rlds-to-lerobot", directory, str(tmp_path / "out")]) == 2
    assert "the following arguments are required: --fps" in capsys.readouterr().err
