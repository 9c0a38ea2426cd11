"""What LeRobot's own writer makes of the episodes below, and what its own reader reads from a
folder.

    python oracle.py make expected.json.gz      # needs lerobot[dataset] 0.6
    python oracle.py read FOLDER result.npz     # every frame of a LeRobot dataset

Of the tests' modules it needs none: `tests/tfds/test_lerobot_export.py` imports the values from
here.
"""

import gzip
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

FPS, ROBOT = 10, "drawn"
LENGTHS = (5, 2, 6)
SIZES = {"image": (32, 48, 3), "wrist": (32, 32, 1)}
NUMBERS = {
    "observation.state": ("float32", (2,)),
    "observation.pose": ("float32", (2, 2)),
    "action": ("float32", (3,)),
    "reward": ("float32", (1,)),
    "count": ("int64", (1,)),
    "level": ("float64", (4,)),
    "is_first": ("bool", (1,)),
}


def frame(camera, episode, step):
    """uint8 [H, W, C], smooth."""
    height, width, channels = SIZES[camera]
    y, x, c = np.ogrid[:height, :width, :channels]
    return (40 + 3 * x + 2 * y + 20 * c + 9 * step + 31 * episode).clip(0, 250).astype(np.uint8)


def numbers(name, episode, step):
    dtype, shape = NUMBERS[name]
    if name == "is_first":
        return np.array([step == 0])
    random = np.random.default_rng([episode, step, len(name)])
    return (random.standard_normal(shape, np.float32) * 10).astype(dtype)  # TFRecord stores float32


def note(episode, step):
    return f"note {episode} {step} ü"


def task(episode):
    return ("push", "pull ü", "push")[episode]


def steps():
    return [(episode, step) for episode, length in enumerate(LENGTHS) for step in range(length)]


def make(path):
    expected = {}
    for mode in ("image", "video"):
        folder = Path(tempfile.mkdtemp(), "out")
        write(folder, mode)
        expected[mode] = described(folder)
        shutil.rmtree(folder.parent)
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps(expected).encode())


def write(folder, mode):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        name: {"dtype": dtype, "shape": shape, "names": None}
        for name, (dtype, shape) in NUMBERS.items()
    }
    features["note"] = {"dtype": "string", "shape": (1,), "names": None}
    for camera, (height, width, _) in SIZES.items():
        features[f"observation.images.{camera}"] = {
            "dtype": mode,
            "shape": (height, width, 3),
            "names": ["height", "width", "channels"],
        }
    arguments = {"fps": FPS, "features": features, "root": folder, "robot_type": ROBOT}
    dataset = LeRobotDataset.create("drawn/episodes", use_videos=mode == "video", **arguments)
    for episode, step in steps():
        values = {name: numbers(name, episode, step) for name in NUMBERS}
        frames = {f"observation.images.{name}": frame(name, episode, step) for name in SIZES}
        frames = {
            name: np.repeat(pixels, 3 // pixels.shape[2], axis=2) for name, pixels in frames.items()
        }
        dataset.add_frame({**values, **frames, "note": note(episode, step), "task": task(episode)})
        if step == LENGTHS[episode] - 1:
            dataset.save_episode()
    dataset.finalize()


def described(folder):
    """What is in the folder, but for frames."""
    import pyarrow.parquet as pq

    data = pq.read_table(folder / "data/chunk-000/file-000.parquet")
    return {
        "info": json.loads((folder / "meta/info.json").read_text()),
        "stats": json.loads((folder / "meta/stats.json").read_text()),
        "tasks": pq.read_table(folder / "meta/tasks.parquet").to_pydict(),
        "episodes": pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist(),
        "schema": {
            field.name: str(getattr(field.type, "storage_type", field.type))
            for field in data.schema
        },
        "described": json.loads(data.schema.metadata[b"huggingface"]),
        "rows": data.select(
            [name for name in data.column_names if "images" not in name]
        ).to_pylist(),
    }


def read(folder, path):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("drawn/episodes", root=folder)
    items = [dataset[position] for position in range(len(dataset))]
    np.savez(
        path, **{name: np.stack([np.asarray(item[name]) for item in items]) for name in items[0]}
    )


if __name__ == "__main__":
    {"make": make, "read": read}[sys.argv[1]](*sys.argv[2:])
