"""Decode images into existing memory: only a region, or several images of equal size.

Uses libjpeg-turbo if its headers were found when the package was built. Rows above a region are
skipped, rows below it never read. The pixels are equal to those of the whole image, also the chroma
at the region's edges, as a slightly larger region is decoded. Both release the GIL.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import as_array, as_tensor, empty_tensor
from torch_tfrecord.errors import ImageDecodeError, ParseError, warn_once
from torch_tfrecord.media.codec import (
    CHANNELS,
    DEFAULT_MAX_PIXELS,
    EncodedImage,
    decode_by_header,
    open_image,
    turn_upright,
)
from torch_tfrecord.media.device_crops import leave, num_left
from torch_tfrecord.media.headers import ImageHeader
from torch_tfrecord.native import native_module, optional_module

__all__ = [
    "Pixels",
    "Region",
    "StoredImage",
    "check_image_shape",
    "decode_region",
    "decode_stack",
    "view_pixels",
]

Pixels: TypeAlias = "npt.NDArray[np.uint8]"
"""[H, W, C]."""


class Region(NamedTuple):
    """A rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def decode_region(data: bytes | memoryview, mode: str, region: Region) -> Pixels | None:
    """Decode a region as uint8 [height, width, C], with C 1 for mode "L" and 3 for "RGB".

    Returns:
        The pixels; or None if the image must be decoded whole: another
        format or mode, progressive, CMYK, truncated, damaged, or no library for regions. Decoding
        it whole then finds any error.
    """
    if optional_module("jpeg") is None or mode not in ("RGB", "L") or 0 in region[2:]:
        return None
    out = np.empty((1, *region[2:], CHANNELS[mode]), np.uint8)
    return out[0] if _decode([data], out, region)[0] else None


def _decode(
    images: Sequence[bytes | memoryview],
    out: Pixels,
    region: Region,
    rows: npt.NDArray[np.int64] | None = None,
    decode_on: str = "cpu",
) -> npt.NDArray[np.bool_]:
    """Decode a region of each image to its row of ``out`` [N, H, W, C]; which of them could be."""
    native, plan = optional_module("jpeg"), [*region, *region[2:], 0, 0, 0, 0]
    job = native.CropJob(  # type: ignore[union-attr]
        None,
        images,
        out.reshape(-1),
        out.shape,
        plans=np.array([plan] * len(images)),
        rows=rows,
        max_pixels=sys.maxsize,
        num_left=num_left(decode_on, len(images), out),
    )
    native_module("jobs").run([job])  # type: ignore[union-attr]
    if decode_on != "cpu":
        leave(job, lambda: images, out, rows=rows)
    if job.problem:
        warn_once(
            f"the compiled decoder of JPEG images fails ({job.problem}): another one decodes whole images, which takes "
            "longer. Is libjpeg the one that the package was built with? `tfrecord doctor` tries it."
        )
    is_read: npt.NDArray[np.bool_] = job.sizes[:, 0] > 0
    return is_read


def decode_stack(
    values: Sequence[bytes],
    mode: str,
    rows: Sequence[int],
    num_rows: int,
    decode_on: str = "cpu",
) -> torch.Tensor | None:
    """Decode images to rows of one tensor, with the pixels of `decode_image`.

    If the package was built with libjpeg-turbo, it decodes all JPEG images without the GIL; other
    images are decoded and copied one by one.

    Args:
        values: Encoded images.
        mode: "RGB", "L" or "RGBA".
        rows: The row of each image.
        num_rows: Number of rows; those without an image are not initialised.
        decode_on: See `Image`.

    Returns:
        uint8 [num_rows, C, H, W] in [num_rows, H, W, C] memory; None if there are no images, or
        their sizes differ.

    Raises:
        ImageDecodeError: See `decode_image`; not necessarily for the first bad image.
        LimitExceededError: See `reserve`.
    """
    if not values:
        return None
    _, first = open_image(values[0], DEFAULT_MAX_PIXELS)
    size = (first.height, first.width)
    native = None if mode == "RGBA" else optional_module("jpeg")
    is_read = (
        np.zeros(len(values), np.bool_)
        if native is None
        else native.find_plain(list(values), *size)
    )
    # Reading a header costs more than anything but decoding, so only those of doubtful images are
    # read, to find all errors and sizes before allocating memory.
    opened: dict[int, tuple[bytes | memoryview, ImageHeader]] = {}
    for number in np.flatnonzero(~is_read).tolist():
        opened[number] = _, header = open_image(values[number], DEFAULT_MAX_PIXELS)
        if (header.height, header.width) != size:
            return None
    out = empty_tensor((num_rows, *size, CHANNELS[mode]), torch.uint8)
    if native is not None and True in is_read:
        plain = list(compress(values, is_read.tolist()))
        places = np.asarray(rows, np.int64)[is_read]
        is_read[is_read] = _decode(plain, as_array(out), Region(0, 0, *size), places, decode_on)
    for number in np.flatnonzero(~is_read).tolist():
        encoded, header = opened.get(number) or open_image(values[number], DEFAULT_MAX_PIXELS)
        out[rows[number]] = decode_by_header(encoded, header, mode).permute(1, 2, 0)
    return as_tensor(as_array(out).transpose(0, 3, 1, 2), out.dtype)


class StoredImage:
    """An encoded image of known size; decodes regions.

    Args:
        data: The encoded image; not copied.
        mode: "RGB", "L" or "RGBA".
        shape: Expected (height, width, channels); see :func:`check_image_shape`.
        apply_orientation: Apply the EXIF orientation; size and regions then refer to the upright
            image.
        max_pixels: Maximum height times width.

    Raises:
        ImageDecodeError, ParseError: See `open_image` and `check_image_shape`.
    """

    def __init__(
        self,
        data: EncodedImage,
        mode: str,
        *,
        shape: tuple[object, ...] = (),
        apply_orientation: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> None:
        self.encoded, self._header = open_image(data, max_pixels)
        self._mode, self._orientation = mode, self._header.orientation if apply_orientation else 1
        self.height, self.width = self._header.height, self._header.width
        if self._orientation >= 5:
            self.height, self.width = self.width, self.height
        self.channels, self.is_turned = CHANNELS[mode], self._orientation != 1
        check_image_shape(shape, (self.height, self.width, self.channels))

    def pixels(self, region: Region) -> Pixels:
        """Decode a region as uint8 [height, width, C].

        Raises:
            ImageDecodeError: The image cannot be decoded, or its size differs from its header.
        """
        if self._orientation == 1:
            pixels = decode_region(self.encoded, self._mode, region)
            if pixels is not None:
                return pixels
        image = decode_by_header(self.encoded, self._header, self._mode)
        whole = view_pixels(turn_upright(image, self._orientation))
        if whole.shape[:2] != (self.height, self.width):
            raise ImageDecodeError(
                f"expected an image of {self.height} x {self.width} pixels, got {whole.shape[:2]}"
            )
        top, left, height, width = region
        return whole[top : top + height, left : left + width]


def check_image_shape(expected: tuple[object, ...], stored: tuple[int, ...]) -> None:
    """Check (height, width, channels) against a spec; None matches any size, and an empty shape any
    image.

    Raises:
        ParseError: The shapes differ.
    """
    if any(wanted not in (None, size) for wanted, size in zip(expected, stored, strict=False)):
        raise ParseError(f"expected an image of (height, width, channels) {expected}, got {stored}")


def view_pixels(image: torch.Tensor) -> Pixels:
    """View [C, H, W] as [H, W, C]."""
    pixels: Pixels = image.permute(1, 2, 0).numpy()
    return pixels
