"""The files that only the tables "doors" and "random" read."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from doors import RANDOM_SIZES
from PIL import Image

from torch_tfrecord import encode_example, encode_sequence_example, tfds

__all__ = ["DOOR_COUNTS", "DOOR_MAKERS", "write_tfds"]

DOOR_COUNTS = {
    "many-tokens": 20_000,
    "ragged": 50_000,
    "texts": 20_000,
    "sequences": 1_000,
    "tfds": 2_000,
    "few-images": 1_024,
}
# About 64 MB, 128 MB and 256 MB.
DOOR_COUNTS |= {f"random-{name}": count for name, count in zip(RANDOM_SIZES, (500_000, 32_000, 2_560), strict=True)}


def _ragged(generator: np.random.Generator, count: int) -> Iterator[bytes]:
    for number in range(count):
        length = int(generator.integers(1, 60))
        yield encode_example(
            {
                "ids": generator.integers(0, 50_000, length),
                "weights": generator.standard_normal(length, dtype=np.float32),
                "kinds": generator.integers(0, 4, int(generator.integers(1, 60))),
                "label": number,
            }
        )


def _texts(generator: np.random.Generator, count: int) -> Iterator[bytes]:
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
    words = [generator.choice(letters, int(size)).tobytes() for size in generator.integers(3, 11, 5000)]
    for number in range(count):
        chosen = [words[place] for place in generator.integers(0, 5000, int(generator.integers(0, 20)))]
        title = b" ".join(words[place] for place in generator.integers(0, 5000, 8)).decode() + " \u00e9"
        yield encode_example(
            {
                "words": chosen or np.zeros(0, np.bytes_),
                "ids": generator.integers(0, 50_000, len(chosen)),
                "title": title,
                "label": number,
            }
        )


def _sequences(generator: np.random.Generator, count: int) -> Iterator[bytes]:
    for number in range(count):
        length = int(generator.integers(20, 101))
        frames = [[generator.bytes(1024)] for _ in range(length)]
        states = generator.standard_normal((length, 32), dtype=np.float32)
        yield encode_sequence_example({"id": number}, {"frame": frames, "state": list(states)})


def _random(name: str) -> Callable[[np.random.Generator, int], Iterator[bytes]]:
    def make(generator: np.random.Generator, count: int) -> Iterator[bytes]:
        for number in range(count):
            # The key is what tfd-utils finds a record by.
            yield encode_example({"key": f"{number:08}", "data": generator.bytes(RANDOM_SIZES[name])})

    return make


DOOR_MAKERS = {"ragged": _ragged, "texts": _texts, "sequences": _sequences}
DOOR_MAKERS |= {f"random-{name}": _random(name) for name in RANDOM_SIZES}


def write_tfds(directory: Path, count: int) -> None:
    """A TFDS directory as of a data set for detection: an image, its objects, a caption, who took it."""
    f = tfds.features
    features = {
        "image": f.Image((64, 64, 3), encoding_format="jpeg"),
        "objects": f.Sequence(
            {"bbox": f.BBoxFeature(), "label": f.ClassLabel(num_classes=80), "area": f.Scalar("int64")}
        ),
        "caption": f.Text(),
        "meta": {"id": f.Scalar("int64"), "author": {"name": f.Text(), "score": f.Tensor((3,), "float32")}},
    }
    generator = np.random.default_rng(0)
    samples = {"train": (_detection(generator, number) for number in range(count))}
    tfds.write(directory, samples, features, name=directory.parent.name, version=directory.name, as_numpy_layout=True)


def _detection(generator: np.random.Generator, number: int) -> dict[str, Any]:
    length = int(generator.integers(0, 9))
    begins, sizes = generator.uniform(0, 0.5, (length, 2)), generator.uniform(0.1, 0.5, (length, 2))
    coarse = Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    with io.BytesIO() as file:
        coarse.resize((64, 64), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        picture = file.getvalue()
    return {
        "image": picture,
        "objects": {
            "bbox": np.concatenate([begins, begins + sizes], axis=1).astype(np.float32),
            "label": generator.integers(0, 80, length),
            "area": generator.integers(0, 4096, length),
        },
        "caption": f"picture {number} of {length} things",
        "meta": {"id": number, "author": {"name": f"author {number % 97}", "score": generator.random(3, np.float32)}},
    }
