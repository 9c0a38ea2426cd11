"""Encoded pictures for tests, of every kind that is read."""

import io
import struct
import zlib

import numpy as np
from PIL import Image as PillowImage
from PIL import ImageDraw

from torch_tfrecord import Image


def draw(height, width, seed=0):
    """As photographs are: smooth light, a few edges, a little noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width] / max(height, width)
    waves = [rng.uniform(1, 6, 4) for _ in range(3)]
    pixels = np.stack(
        [np.sin(a * rows + b) + np.cos(c * columns * rows + d) for a, b, c, d in waves], -1
    )
    pixels = 128 + 60 * pixels + rng.normal(0, 3, (height, width, 3))
    picture = PillowImage.fromarray(pixels.clip(0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    for _ in range(6):
        x, y, size = rng.integers(0, width), rng.integers(0, height), rng.integers(3, 40)
        pen.ellipse((x, y, x + size, y + size // 2), fill=tuple(map(int, rng.integers(0, 256, 3))))
    return picture


def encode(picture, kind="jpeg", **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation):
    tags = PillowImage.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def png_that_claims(size):
    """A small PNG whose header says that it is `size` x `size`."""
    claim = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", claim), (b"IDAT", zlib.compress(bytes(999))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


PHOTO = draw(75, 101)
JPEG_KINDS = {
    "4:2:0": encode(PHOTO, quality=93),
    "4:2:2": encode(PHOTO, subsampling=1),
    "4:4:4": encode(PHOTO, subsampling=0, quality=60),
    "4:1:1": encode(PHOTO, subsampling="4:1:1"),
    "RGB": encode(PHOTO, keep_rgb=True),
    "gray": encode(PHOTO.convert("L")),
    "restarts": encode(PHOTO, restart_marker_blocks=3),
    "EXIF": encode(PHOTO, exif=exif(6)),
    "long header": encode(PHOTO, comment=b"\xff\xd9" * 4000),
}
WHOLE_KINDS = {
    "progressive": encode(PHOTO, progressive=True),
    "CMYK": encode(PHOTO.convert("CMYK")),
    "PNG": encode(PHOTO, "png"),
    "PNG with alpha": encode(PHOTO.convert("RGBA"), "png"),
    "WebP": encode(PHOTO, "webp"),
    "GIF": encode(PHOTO, "gif"),
}
EVERY_KIND = {**JPEG_KINDS, **WHOLE_KINDS}


def decode_stack(values, mode, rows, num_rows):
    """Images of one size as rows of one tensor, as a batch has them."""
    shapes, keys = [()] * len(values), [0] * len(values)
    return Image(mode)._decoded(values, shapes, keys, rows, num_rows)
