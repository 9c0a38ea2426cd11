"""docs/recipes: Earth Engine, genomes and simulations give the values of the original programs.

tests/data/recipes/<name>/make.py says what wrote the records, and what read them.
"""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from range_server import range_server
from recipe_data import DATA, NEEDS_DOCS, assert_equal, expected

from torch_tfrecord import RaggedTensor, TFRecordDataset, make_dataloader

pytestmark = NEEDS_DOCS


def copied(source, goal="."):
    shutil.copytree(DATA / source, goal, dirs_exist_ok=True)


def test_earth_engine(run):
    copied("earth_engine")
    names, original = run("recipes/earth_engine"), expected("earth_engine")
    for patch, theirs in zip(names["patches"], original["patches"], strict=True):
        assert_equal(patch.movedim(0, -1), theirs)
    assert_equal(names["picture"], original["picture"])
    # Of the third patch of the second row, 16 pixels to the right and 8 down, 30 m each.
    assert names["place"](16, 8) == (399960 + 16 * 30, 5300040 - 8 * 30)
    points = make_dataloader(
        "training.tfrecord.gz", 20, names["columns"], label_key="landcover", shuffle=False
    )
    ((bands, label),) = points
    assert_equal(label.int(), original["landcover"])
    for band in names["BANDS"]:
        assert_equal(bands[band], original[band])


@pytest.mark.filterwarnings("ignore:no file has a record")  # as its author wrote them
def test_basenji(run):
    copied("basenji", "human")
    names, original = run("recipes/basenji"), expected("basenji")
    assert [names["number"](path) for path in names["files"]] == [0, 2, 3, 10]  # 3 is empty
    for split in ("train", "valid"):
        sequences, targets = zip(*names[split], strict=True)
        assert_equal(torch.stack(sequences), original[f"{split}:sequence"])
        assert_equal(torch.stack(targets), original[f"{split}:target"])
    crop = partial(names["to_floats"], crop_to=48)
    data = TFRecordDataset("human/tfrecords/train-*.tfr", names["features"], transform=crop)
    cropped, _ = zip(*data, strict=True)
    assert_equal(torch.stack(cropped), original["train:cropped"])
    assert not original["train:sequence"].sum(-1).all()  # an N is among the letters


def test_basenji_one_hot(run):
    copied("basenji/old", "human")
    names, original = run("recipes/basenji"), expected("basenji")
    assert not names["is_number"]
    sequences, targets = zip(*names["valid"], strict=True)
    assert_equal(torch.stack(sequences), original["old:sequence"])
    assert_equal(torch.stack(targets), original["old:target"])


def test_borzoi(run):
    copied("borzoi")
    names, original = run("recipes/borzoi"), expected("borzoi")
    for data, fold, key in (("train", "fold0", "sequence"), ("small", "fold1", "cropped")):
        sequences, targets = zip(*names[data], strict=True)
        assert_equal(torch.stack(sequences), original[f"{fold}:{key}"])
        assert_equal(torch.stack(targets), original[f"{fold}:target"][..., names["TARGETS"]])
    assert names["by_bin"].shape == (2, 16, 4, 4)


def test_borzoi_from_a_bucket_whose_readers_pay(run):
    pytest.importorskip("obstore")
    copied("borzoi")
    names, original = run("recipes/borzoi"), expected("borzoi")
    with range_server(Path.cwd(), payer=("x-goog-user-project", "my-project", 400)) as url:
        train = TFRecordDataset(
            "gs://hg38/tfrecords/fold0-*.tfr",
            names["features"],
            transform=names["to_floats"],
            index="memory",
            storage_options={
                "requester_pays": "my-project",
                "token": "anon",
                "endpoint_url": url,
            },
        )
        sequences, _ = zip(*train, strict=True)
        assert {status for *_, status in url.requests()} <= {200, 206}
    assert_equal(torch.stack(sequences), original["fold0:sequence"])


def assert_trajectory(sample, original, prefix):
    theirs = {key.removeprefix(prefix) for key in original if key.startswith(prefix)}
    assert {*sample} == {key for key in theirs if not key.endswith(":lengths")}
    for name, value in sample.items():
        if value.is_nested:
            lengths = original[f"{prefix}{name}:lengths"]
            assert value.offsets().diff().tolist() == lengths.tolist()
            value = value.values()
        assert_equal(value, original[prefix + name])


def test_meshgraphnets(run):
    copied("meshgraphnets/flow", "cylinder_flow")
    copied("meshgraphnets/cloth", "flag_dynamic")
    names, original = run("recipes/meshgraphnets"), expected("meshgraphnets")
    for folder, data in (("flow", "trajectories"), ("cloth", "flags"), ("targets", "train")):
        for number, sample in enumerate(names[data]):
            prefix = f"targets:{number}:" if folder == "targets" else f"{folder}:{number}:"
            assert_trajectory(sample, original, prefix)
        assert number == 2
    assert names["velocity"].shape == (5, 4, 2)
    assert names["cells"].stride(0) == 0  # not copied
    assert [mesh.shape[1] for mesh in names["meshes"]] == [3] * 5
    (batch,) = make_dataloader(names["flags"], 3, shuffle=False)
    assert isinstance(batch["cells"], RaggedTensor)
    for number in range(3):
        row = batch["cells"][number]
        assert_equal(row.values(), original[f"cloth:{number}:cells"])


def test_learning_to_simulate(run):
    copied("learning_to_simulate")
    names, original = run("recipes/learning_to_simulate"), expected("learning_to_simulate")
    for folder in ("WaterRamps", "Sand"):
        data, cut = (names["read"](folder, "train", way) for way in (None, names["windows"]))
        for number, (parts, windows) in enumerate(zip(data, cut, strict=True)):
            found = {**parts[0], **parts[1]}
            found |= {f"windows:{name}": value for name, value in windows.items()}
            keys = {key for key in original if key.startswith(f"{folder}:{number}:")}
            assert {f"{folder}:{number}:{name}" for name in found} == keys
            for name, value in found.items():
                assert_equal(value, original[f"{folder}:{number}:{name}"])
        assert number == 2
    assert names["inputs"].shape == (3, 6, 3, 2)
    assert names["target"].shape == (3, 3, 2)
