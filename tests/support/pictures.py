"""Drawn JPEG pictures of all kinds, and what may be made of them."""

import io

import numpy as np
from PIL import Image as Pillow

from torch_tfrecord import RandomResizedCrop, ResizedCenterCrop

KINDS = ["", "progressive", "cmyk", "png", "rgb", "restarts", "twice", "gray"]
SIZES = [(70, 90), (200, 130), (224, 224), (31, 400), (300, 301)]


def jpeg(number, kind=""):
    high, wide = SIZES[number % len(SIZES)]
    rng = np.random.default_rng(number)
    # Smooth and rough, and no channel like another.
    coarse = rng.integers(0, 256, (4, 5, 3), np.uint8)
    image = Pillow.fromarray(coarse).resize((wide, high), Pillow.Resampling.BICUBIC)
    image = image.convert({"gray": "L", "cmyk": "CMYK"}.get(kind, "RGB"))
    file = io.BytesIO()
    options = {"progressive": kind == "progressive", "quality": 80 + number % 20}
    if kind == "rgb":
        options["keep_rgb"] = True
    if kind == "restarts":
        options["restart_marker_blocks"] = 3
    image.save(file, "PNG" if kind == "png" else "JPEG", **({} if kind == "png" else options))
    data = file.getvalue()
    if kind == "cut":
        return data[: len(data) // 2]
    if kind == "bytes after":
        return data + b"more" * 5
    return data + data if kind == "twice" else data


CASES = {
    "random": {},
    "bicubic": {"crop": RandomResizedCrop((80, 100), interpolation="bicubic")},
    "centre": {"crop": ResizedCenterCrop(64, 70)},
    "centre, larger": {"crop": ResizedCenterCrop((90, 130), 450)},
    "padded": {"crop": ResizedCenterCrop((90, 131), "pad")},
    "padded, bicubic": {"crop": ResizedCenterCrop((300, 91), "pad", "bicubic")},
    "gray": {"mode": "L"},
    "normalized": {"normalize": ([0.5, 0.4, 0.3], [0.2, 0.3, 0.25])},
    "orientation": {"apply_orientation": True},
}
