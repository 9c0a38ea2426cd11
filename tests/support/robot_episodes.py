"""Small directories with the features of DROID, LIBERO and Bridge V2, for the recipes of
docs/robots.md.

    python tests/support/robot_episodes.py DIRECTORY

writes them, for `tests/data/robots/record.py`. All values are formulas: they are the same on every
machine.
"""

import json
import sys
from pathlib import Path

import torch

from torch_tfrecord import encode_image, tfds

f = tfds.features
SIZE = (20, 24)
TEXTS = {
    "language_instruction": f.Text(),
    "is_first": f.Scalar("bool"),
    "is_last": f.Scalar("bool"),
}
LENGTHS = {
    "droid": (9, 6, 12, 5),
    "libero_spatial_no_noops": (6, 4, 7, 5),
    "bridge_orig": (5, 8, 6),
    "bridge_dataset": (7, 10, 4),
}
VERSIONS = {"droid": "1.0.1"}
DROID_KEEP = {
    f"gs://raw/success/{number}/recordings/MP4--gs://raw/success/{number}/trajectory.h5": ranges
    for number, ranges in {
        0: [[0, 4], [6, 20]],
        2: [[2, 3], [11, 12], [5, 5]],
        7: [[0, 100]],
    }.items()
} | {"gs://raw/failure/1/recordings/MP4--gs://raw/failure/1/trajectory.h5": [[0, 6]]}


def waves(number, step, count, phase=0.0):
    """float32 [count] between -1 and 1, of a few binary digits."""
    places = torch.arange(count)
    return ((places * 37 + step * 11 + number * 23 + int(phase * 16)) % 64 - 32) / 32


def picture(number, step, camera):
    """A PNG: stripes that move, with noise."""
    y, x = torch.meshgrid(torch.arange(SIZE[0]), torch.arange(SIZE[1]), indexing="ij")
    layers = [
        (x * (3 + c) + y * 5 + step * 19 + number * 41 + camera * 77 + x * y * (c + 1)) % 256
        for c in range(3)
    ]
    return encode_image(torch.stack(layers).to(torch.uint8), "png")


def image():
    return f.Image((*SIZE, 3), encoding_format="png")


FEATURES = {
    "droid": {
        "steps": f.Dataset(
            {
                "observation": {
                    "exterior_image_1_left": image(),
                    "exterior_image_2_left": image(),
                    "wrist_image_left": image(),
                    "joint_position": f.Tensor((7,), "float64"),
                    "gripper_position": f.Tensor((1,), "float64"),
                },
                "action_dict": {
                    "joint_position": f.Tensor((7,), "float64"),
                    "joint_velocity": f.Tensor((7,), "float64"),
                    "gripper_position": f.Tensor((1,), "float64"),
                },
                "action": f.Tensor((7,), "float64"),
                "language_instruction_2": f.Text(),
                "language_instruction_3": f.Text(),
                **TEXTS,
            }
        ),
        "episode_metadata": {"recording_folderpath": f.Text(), "file_path": f.Text()},
    },
    "libero_spatial_no_noops": {
        "steps": f.Dataset(
            {
                "observation": {
                    "image": image(),
                    "wrist_image": image(),
                    "state": f.Tensor((8,), "float32"),
                },
                "action": f.Tensor((7,), "float32"),
                **TEXTS,
            }
        ),
        "episode_metadata": {"file_path": f.Text()},
    },
}
FEATURES["bridge_orig"] = FEATURES["bridge_dataset"] = {
    "steps": f.Dataset(
        {
            "observation": {"image_0": image(), "state": f.Tensor((7,), "float32")},
            "action": f.Tensor((7,), "float32"),
            **TEXTS,
        }
    ),
    "episode_metadata": {"file_path": f.Text()},
}


def droid_step(number, step):
    return {
        "observation": {
            "exterior_image_1_left": picture(number, step, 1),
            "exterior_image_2_left": picture(number, step, 2),
            "wrist_image_left": picture(number, step, 3),
            "joint_position": waves(number, step, 7).double(),
            "gripper_position": waves(number, step, 1, 0.5).double(),
        },
        "action_dict": {
            "joint_position": waves(number, step, 7, 1).double(),
            "joint_velocity": waves(number, step, 7, 2).double(),
            "gripper_position": waves(number, step, 1, 3).double(),
        },
        "action": waves(number, step, 7, 1).double(),
        "language_instruction_2": f"second words {number}",
        "language_instruction_3": f"third words {number}",
    }


def libero_step(number, step):
    return {
        "observation": {
            "image": picture(number, step, 4),
            "wrist_image": picture(number, step, 5),
            "state": waves(number, step, 8),
        },
        "action": torch.cat(
            [waves(number, step, 5), torch.zeros(1), waves(number, step, 1, 2).sign()]
        ),
    }


def bridge_step(number, step):
    still = torch.tensor([1, 1, 1, 0, 1, 1, 1])  # one dimension never moves
    gripper = torch.tensor([1.0, 0.6, 0.3, 0.0, 0.5, 1.0])[(number + step) % 6]
    return {
        "observation": {
            "image_0": picture(number, step, 6),
            "state": waves(number, step, 7) * still,
        },
        "action": torch.cat([waves(number, step, 6, 1), gripper[None]]),
    }


STEPS = {"droid": droid_step, "libero_spatial_no_noops": libero_step}


def make_episode(name, number):
    length = LENGTHS[name][number]
    texts = "" if (name, number) == ("libero_spatial_no_noops", 2) else f"Task {number} of {name}"
    steps = [
        STEPS.get(name, bridge_step)(number, step)
        | {"language_instruction": texts, "is_first": step == 0, "is_last": step == length - 1}
        for step in range(length)
    ]
    folder = f"gs://raw/{'failure' if number == 1 else 'success'}/{number}"
    metadata = {"file_path": f"{folder}/trajectory.h5"}
    if name == "droid":
        metadata["recording_folderpath"] = f"{folder}/recordings/MP4"
    return {"steps": steps, "episode_metadata": metadata}


def write_robots(directory):
    """Write all datasets below a directory, and keep.json."""
    for name, lengths in LENGTHS.items():
        episodes = [make_episode(name, number) for number in range(len(lengths))]
        folder = directory / name / VERSIONS.get(name, "1.0.0")
        tfds.write(folder, {"train": episodes}, FEATURES[name], name=name)
    (directory / "keep.json").write_text(json.dumps(DROID_KEEP))
    return directory


if __name__ == "__main__":
    write_robots(Path(sys.argv[1]))
