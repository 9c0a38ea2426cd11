"""What Pillow does not do with PNG files: write 16 bits of several channels, and gray as libpng and so
TensorFlow compute it from the colours of a file that says its gamma.

For gray the colours are made linear, weighted and stored with the same gamma again, each time in 8
bits. Without a gamma libpng weights the stored colours, as Pillow does.
"""

from __future__ import annotations

import functools
import struct
import zlib

import numpy as np
import numpy.typing as npt

__all__ = ["encode_deep_png", "gray_of_colors", "needs_gamma"]

_ONE = 100_000  # gammas are whole numbers, of which this is 1
_NEAR_ONE = range(_ONE - 5000, _ONE + 5001)
_WEIGHTS, _SHIFT = (9797, 19234, 3737), 15  # of red, green and blue, in units of 2^-15

_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # gray, gray and alpha, RGB, RGBA
_SUB = 1  # the filter: each byte less that of the pixel to its left


def needs_gamma(gamma: int) -> bool:
    """Whether a PNG's gamma changes its gray: not if there is none (0), or one of about 1."""
    return gamma != 0 and (_reciprocal(gamma) not in _NEAR_ONE or gamma not in _NEAR_ONE)


def gray_of_colors(pixels: npt.NDArray[np.uint8], gamma: int) -> npt.NDArray[np.uint8]:
    """Convert colours to gray.

    Args:
        pixels: uint8 [H, W, 3].
        gamma: The exponent with which they are stored, times 100,000.

    Returns:
        uint8 [H, W].

    Source: ``png_do_rgb_to_gray`` and ``png_build_8bit_table`` of libpng 1.6.
    """
    linear, stored = _table(_reciprocal(gamma)), _table(_reciprocal(_reciprocal(gamma)))
    red, green, blue = (pixels[..., channel] for channel in range(3))
    sums = sum(
        (linear * weight)[plane] for weight, plane in zip(_WEIGHTS, (red, green, blue), strict=True)
    )
    gray = stored[(sums + (1 << _SHIFT - 1)) >> _SHIFT].astype(np.uint8)
    return np.where((red == green) & (red == blue), red, gray)  # what is gray is stored already


@functools.lru_cache(maxsize=8)
def _table(exponent: int) -> npt.NDArray[np.int32]:
    """Each value of 0 to 255 to the power of exponent / 100,000."""
    values = np.arange(256)
    if exponent not in _NEAR_ONE:
        values = np.floor(255 * (values / 255) ** (exponent / _ONE) + 0.5)
        values[[0, 255]] = 0, 255
    return values.astype(np.int32)


def _reciprocal(gamma: int) -> int:
    return int(_ONE * _ONE / gamma + 0.5)


def encode_deep_png(pixels: npt.NDArray[np.uint16]) -> bytes:
    """Encode uint16 [H, W, C], C 1 to 4.

    Source: the PNG specification (W3C), third edition.

    Example:
        >>> encode_deep_png(np.zeros((2, 3, 3), np.uint16))[1:4]
        b'PNG'
    """
    height, width, channels = pixels.shape
    stored = np.ascontiguousarray(pixels, ">u2").view(np.uint8).reshape(height, -1)
    rows = np.empty((height, 1 + stored.shape[1]), np.uint8)
    rows[:, 0], rows[:, 1:], left = _SUB, stored, 2 * channels
    rows[:, 1 + left :] -= stored[:, :-left]
    header = struct.pack(">IIBBBBB", width, height, 16, _COLOR_TYPES[channels], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
