"""The contents of the files: numbers, texts and pictures, drawn the same each time; pictures may be cuts
of photographs.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from workloads import COMPRESSED, RANDOM_SIZES

from torch_tfrecord import encode_example, encode_sequence_example, tfds

__all__ = ["MAKERS", "images", "write_tfds"]

_PICTURE_SIZE = (500, 375)
_PICTURE_QUALITY = 93


def _tabular(generator: np.random.Generator, count: int) -> Iterator[bytes]:
    """13 floats and 27 integers of 1 to 4 bytes on the wire: about 650 bytes a record, as of a
    click log.
    """
    floats = generator.standard_normal((count, 13), dtype=np.float32)
    # Small numbers are more frequent, as counts and categories are.
    bits = generator.integers(1, 27, (count, 27))
    integers = generator.integers(0, 1 << 27, (count, 27)) >> (27 - bits)
    for row in range(count):
        example: dict[str, Any] = {
            f"f{n:02}": value for n, value in enumerate(floats[row].tolist())
        }
        example.update((f"i{n:02}", value) for n, value in enumerate(integers[row].tolist()))
        yield encode_example(example)


def _tokens(generator: np.random.Generator, count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield encode_example({"tokens": generator.integers(0, 50_000, 2048)})


def _embeddings(generator: np.random.Generator, count: int) -> Iterator[bytes]:
    for number in range(count):
        yield encode_example(
            {"id": number, "embedding": generator.standard_normal(1024, dtype=np.float32)}
        )


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
    words = [
        generator.choice(letters, int(size)).tobytes() for size in generator.integers(3, 11, 5000)
    ]
    for number in range(count):
        chosen = [
            words[place] for place in generator.integers(0, 5000, int(generator.integers(0, 20)))
        ]
        title = (
            b" ".join(words[place] for place in generator.integers(0, 5000, 8)).decode() + " \u00e9"
        )
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


def _random(size: int) -> Callable[[np.random.Generator, int], Iterator[bytes]]:
    def make(generator: np.random.Generator, count: int) -> Iterator[bytes]:
        for number in range(count):
            # The key is what tfd-utils finds a record by.
            yield encode_example({"key": f"{number:08}", "data": generator.bytes(size)})

    return make


def _articles(generator: np.random.Generator, count: int) -> Iterator[bytes]:
    """Texts of 24 sentences, of which 0.7 are among 100 frequent ones, counts and scores: deflate
    makes them 4.5 times smaller.
    """
    sentences = _sentences(generator, 20_000)
    for number in range(count):
        chosen = generator.integers(100, len(sentences), 24)
        is_frequent = generator.random(24) < 0.7
        draws = generator.random(int(is_frequent.sum()))
        chosen[is_frequent] = (100**draws).astype(np.int64) - 1
        counts = (10 * generator.pareto(1.5, 16)).astype(np.int64)
        yield encode_example(
            {
                "id": number,
                "text": b" ".join(sentences[chosen]),
                "counts": counts,
                "scores": generator.standard_normal(16).round(2).astype(np.float32),
            }
        )


def _sentences(generator: np.random.Generator, count: int) -> np.ndarray:
    """Sentences of twelve words, the k-th of which is k times as rare as the first."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
    sizes = generator.integers(3, 11, 20_000)
    words = np.array([generator.choice(letters, int(size)).tobytes() for size in sizes], object)
    bounds = np.cumsum(1 / np.arange(3, len(words) + 3))
    ranks = np.searchsorted(bounds, bounds[-1] * generator.random((count, 12)))
    return np.array([b" ".join(row) + b"." for row in words[ranks]], object)


# By the file's name: records from a generator and their number.
MAKERS: dict[str, Callable[[np.random.Generator, int], Iterator[bytes]]] = {
    "tabular": _tabular,
    "rows": _tabular,
    "tokens": _tokens,
    "few-tokens": _tokens,
    "embeddings": _embeddings,
    "ragged": _ragged,
    "texts": _texts,
    "sequences": _sequences,
    **dict.fromkeys(COMPRESSED, _articles),
    **{f"random-{name}": _random(size) for name, size in RANDOM_SIZES.items()},
}


def images(count: int, photos: Path | None) -> Iterator[bytes]:
    """Examples of a JPEG of 500 x 375, a random cut of a photograph or else of a drawing, and a
    label.
    """
    generator = np.random.default_rng(1)
    sources = (
        _photographs(photos) if photos is not None else [_drawing(generator) for _ in range(16)]
    )
    for number in range(count):
        picture = _cut(sources[number % len(sources)], generator)
        with io.BytesIO() as file:
            picture.save(file, "JPEG", quality=_PICTURE_QUALITY)
            yield encode_example({"image": file.getvalue(), "label": number % 1000})


def _photographs(folder: Path) -> list[Image.Image]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise SystemExit(f"{folder}: expected a folder of .jpg files, got none")
    return [Image.open(path).convert("RGB") for path in paths]


def _cut(source: Image.Image, generator: np.random.Generator) -> Image.Image:
    """70 to 100 % of the width and height that a 4:3 picture has in it; half of them mirrored."""
    width, height = source.size
    scale = generator.uniform(0.7, 1.0) * min(width / _PICTURE_SIZE[0], height / _PICTURE_SIZE[1])
    wide, high = scale * _PICTURE_SIZE[0], scale * _PICTURE_SIZE[1]
    left, top = generator.uniform(0, width - wide), generator.uniform(0, height - high)
    picture = source.resize(
        _PICTURE_SIZE, Image.Resampling.LANCZOS, box=(left, top, left + wide, top + high)
    )
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if generator.integers(2) else picture


def _drawing(generator: np.random.Generator) -> Image.Image:
    """Ellipses over soft noise: as many bytes at this quality as a photograph."""
    coarse = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((1000, 750), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for _ in range(60):
        x, y = generator.uniform(0, 1000), generator.uniform(0, 750)
        radius = generator.uniform(5, 90)
        colour = tuple(int(value) for value in generator.integers(0, 256, 3))
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    grain = generator.normal(0, 10, (750, 1000, 3))
    return Image.fromarray(np.clip(np.asarray(picture) + grain, 0, 255).astype(np.uint8))


def write_tfds(directory: Path, count: int) -> None:
    """A TFDS directory as of a data set for detection: an image, its objects, a caption, who took
    it.
    """
    f = tfds.features
    features = {
        "image": f.Image((64, 64, 3), encoding_format="jpeg"),
        "objects": f.Sequence(
            {
                "bbox": f.BBoxFeature(),
                "label": f.ClassLabel(num_classes=80),
                "area": f.Scalar("int64"),
            }
        ),
        "caption": f.Text(),
        "meta": {
            "id": f.Scalar("int64"),
            "author": {"name": f.Text(), "score": f.Tensor((3,), "float32")},
        },
    }
    generator = np.random.default_rng(0)
    samples = {"train": (_detection(generator, number) for number in range(count))}
    tfds.write(
        directory,
        samples,
        features,
        name=directory.parent.name,
        version=directory.name,
        as_numpy_layout=True,
    )


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
        "meta": {
            "id": number,
            "author": {"name": f"author {number % 97}", "score": generator.random(3, np.float32)},
        },
    }
