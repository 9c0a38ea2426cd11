"""docs/recipes: Waymo's data sets give the values of Waymo's programs.

tests/data/recipes/<name>/make.py says what wrote the records, and what read them.
"""

import gzip
import sys
import types
from pathlib import Path

import pytest
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from recipe_data import DATA, NEEDS_DOCS, assert_equal, expected

pytestmark = NEEDS_DOCS


def unpack(source, goal):
    Path(goal).write_bytes(gzip.decompress((DATA / source).read_bytes()))


@pytest.fixture
def generate(monkeypatch):
    """Makes the modules that protoc writes, of the descriptors that it gave."""

    def generate(source):
        pool = descriptor_pool.DescriptorPool()
        files = descriptor_pb2.FileDescriptorSet.FromString(
            gzip.decompress((DATA / source).read_bytes())
        )
        for file in files.file:
            pool.Add(file)
        for file in files.file:
            parts = file.name.removesuffix(".proto").split("/")
            for end in range(1, len(parts)):
                package = ".".join(parts[:end])
                monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
            name = ".".join(parts) + "_pb2"
            module = types.ModuleType(name)
            for message in pool.FindFileByName(file.name).message_types_by_name.values():
                setattr(module, message.name, message_factory.GetMessageClass(message))
            monkeypatch.setitem(sys.modules, name, module)

    return generate


def test_motion(run, generate):
    generate("waymo_motion/scenario.pb.gz")
    unpack(
        "waymo_motion/training_tfexample.tfrecord.gz",
        "training_tfexample.tfrecord-00000-of-00001",
    )
    unpack("waymo_motion/training.tfrecord.gz", "training.tfrecord-00000-of-00001")
    names, original = run("recipes/waymo_motion"), expected("waymo_motion")
    scenes, scenarios = names["loader"].dataset, names["scenarios"]
    assert len(scenes) == len(scenarios) == 2
    for number in range(2):
        prefix = f"training_tfexample.tfrecord:{number}:"
        scene = scenes[number]
        # the tutorial does not read the scenario's id
        id_ = original[f"training.tfrecord:{number}:id"].item()
        assert scene.pop("scenario/id") == scenarios[number]["id"] == id_
        assert {prefix + name for name in scene} == {
            key for key in original if key.startswith(prefix)
        }
        for name, value in scene.items():
            assert_equal(value, original[prefix + name])
        for name, value in scenarios[number].items():
            if name != "id":
                assert_equal(value, original[f"training.tfrecord:{number}:{name}"])
        # Both files say the same of the first object to predict.
        x = torch.cat([scene[f"state/{time}/x"][0] for time in names["TIMES"]])
        valid = torch.cat([scene[f"state/{time}/valid"][0] for time in names["TIMES"]]) > 0
        place = scenarios[number]["to_predict"].min()
        assert torch.equal(valid, scenarios[number]["valid"][place])
        assert torch.equal(x[valid], scenarios[number]["states"][place, valid, 0].float())
    assert names["positions"].shape == (2, 128, 91, 2)
    assert names["is_valid"].any()


def test_perception(run, generate):
    generate("waymo_perception/frame.pb.gz")
    name = "segment-0_with_camera_labels.tfrecord"
    Path(name).write_bytes((DATA / "waymo_perception" / name).read_bytes())
    names, original = run("recipes/waymo_perception"), expected("waymo_perception")
    for number, frame in enumerate(names["frames"]):
        found = {"pose": frame["top_pose"], "boxes": frame["boxes"], "types": frame["types"]}
        found["timestamp_micros"] = torch.tensor(frame["timestamp_micros"])
        found |= {f"image:{key}": image.movedim(0, -1) for key, image in frame["images"].items()}
        for kind in ("range_image", "camera_projection"):
            for laser, returns in frame[f"{kind}s"].items():
                found |= {f"{kind}:{laser}:{n}": value for n, value in enumerate(returns)}
        theirs = {key for key in original if key.startswith(f"{number}:")}
        assert {f"{number}:{key}" for key in found} == theirs
        for key, value in found.items():
            assert_equal(value.as_subclass(torch.Tensor), original[f"{number}:{key}"])
    assert number == 2
    assert sorted(map(len, names["boxes"])) in ([0, 1], [0, 2], [1, 2], [0], [1], [2])
