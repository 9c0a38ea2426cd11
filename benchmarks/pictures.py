"""The JPEGs of the image corpus: about 500 x 375, quality 93, cut out of a folder of photographs, or drawn."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

__all__ = ["encoded_pictures"]

_SIZE = (500, 375)
_QUALITY = 93


def encoded_pictures(count: int, photos: Path | None) -> Iterator[bytes]:
    """JPEG files, each a random cut of a photograph or of a drawing, the same each time."""
    generator = np.random.default_rng(1)
    sources = _photographs(photos) if photos is not None else [_drawing(generator) for _ in range(16)]
    for number in range(count):
        picture = _cut(sources[number % len(sources)], generator)
        with io.BytesIO() as file:
            picture.save(file, "JPEG", quality=_QUALITY)
            yield file.getvalue()


def _photographs(folder: Path) -> list[Image.Image]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise SystemExit(f"{folder}: expected a folder of .jpg files, got none")
    return [Image.open(path).convert("RGB") for path in paths]


def _cut(source: Image.Image, generator: np.random.Generator) -> Image.Image:
    """70 to 100 % of the width and height that a 4:3 picture has in it; half of them mirrored."""
    width, height = source.size
    scale = generator.uniform(0.7, 1.0) * min(width / _SIZE[0], height / _SIZE[1])
    wide, high = scale * _SIZE[0], scale * _SIZE[1]
    left, top = generator.uniform(0, width - wide), generator.uniform(0, height - high)
    picture = source.resize(_SIZE, Image.Resampling.LANCZOS, box=(left, top, left + wide, top + high))
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
