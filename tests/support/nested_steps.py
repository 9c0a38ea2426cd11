"""A small RLDS directory whose steps and metadata have every nested kind of feature."""

import numpy as np
import torch

from torch_tfrecord import encode_image, tfds

f = tfds.features
LENGTHS = (4, 1, 6)
STEP = {
    "action": f.Tensor((2,), "float32"),
    "numbers": f.Sequence(f.Scalar("int64")),
    "deep": f.Sequence(f.Sequence(f.Sequence(f.Scalar("uint8")))),
    "pairs": f.Sequence(f.Tensor((2,), "float32")),
    "words": f.Sequence(f.Text()),
    "phrases": f.Sequence(f.Sequence(f.Text())),
    "raw": f.Sequence(f.Scalar("string")),
    "objects": f.Sequence({"box": f.BBoxFeature(), "label": f.ClassLabel(num_classes=9)}),
    "frames": f.Sequence(f.Image((4, 5, 3), encoding_format="png")),
    "zipped": f.Tensor((3,), "int32", encoding="zlib"),
    "shaped": f.Tensor((None, None), "int16", encoding="bytes"),
    "big": f.Scalar("uint64"),
}
FEATURES = {
    "steps": f.Dataset(STEP),
    "about": {
        "name": f.Text(),
        "tags": f.Sequence(f.Text()),
        "rows": f.Sequence(f.Sequence(f.Scalar("int32"))),
    },
    "box": f.BBoxFeature("XYXY"),
    "goal": f.Image((6, 7, 3), encoding_format="png"),
}


def picture(seed, height, width):
    random = np.random.default_rng(seed)
    return encode_image(
        torch.from_numpy(random.integers(0, 256, (3, height, width), dtype=np.uint8)), "png"
    )


def make_step(number, at):
    count = (number + at) % 3
    return {
        "action": [float(number), float(at)],
        "numbers": list(range(count)),
        "deep": [[[at, row][: (row + at) % 3] for row in range(count)] for _ in range(2 - count)],
        "pairs": [[1.0 * at, -1.0 * row] for row in range(count)],
        "words": [f"wörd {row}" for row in range(count)],
        "phrases": [["a", "b"][:row] for row in range(count + 1)],
        "raw": [bytes([at, row]) for row in range(count)],
        "objects": [
            {"box": [0.0, 0.25, 0.5, 1.0 / (row + 1)], "label": row} for row in range(count)
        ],
        "frames": [picture([number, at, row], 4, 5) for row in range(count)],
        "zipped": [number, at, -1],
        "shaped": np.full((count, at), at, np.int16),
        "big": 2**64 - 1 - at,
    }


def make_episode(number, length):
    return {
        "steps": [make_step(number, at) for at in range(length)],
        "about": {
            "name": f"episode {number}",
            "tags": ["x", "ü"][:number],
            "rows": [[1, 2], [], [number]][: number + 1],
        },
        "box": [1.0, 2.0, 3.0, 4.0],
        "goal": picture([number], 6, 7),
    }


def write_nested(directory):
    episodes = [make_episode(number, length) for number, length in enumerate(LENGTHS)]
    tfds.write(directory, {"train": episodes}, FEATURES, name="nested", num_shards=1)
    return directory
