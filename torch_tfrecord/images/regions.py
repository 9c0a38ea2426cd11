"""JPEG images decoded to memory that is there: regions without the rest, or several images of one size.

By libjpeg-turbo where its headers were found when the package was built, regions else by nvImageCodec where that is
installed. Rows above a region are passed over, rows below it never read. The pixels are those of the whole image:
chroma at the region's edges too, since a little more than the region is decoded. Both release the interpreter's lock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_tfrecord.batch_memory import empty_tensor
from torch_tfrecord.images.backends import nvimgcodec, region_with_nvimgcodec
from torch_tfrecord.images.codec import CHANNELS, DEFAULT_MAX_PIXELS, decode_opened, open_image
from torch_tfrecord.images.headers import ImageHeader, has_end_marker
from torch_tfrecord.native import optional_module

__all__ = ["Region", "Scratch", "decode_region", "decode_stack", "region_decoder"]


class Region(NamedTuple):
    """A rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Scratch:
    """Memory that is used again for each image of a batch: fresh pages cost a twentieth of decoding."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def array(self, *shape: int) -> np.ndarray[Any, Any]:
        """uint8 of a shape, not cleared; what was handed out before is overwritten."""
        count = math.prod(shape)
        if count > len(self._bytes):
            self._bytes = np.empty(count, np.uint8)
        return self._bytes[:count].reshape(shape)


def region_decoder() -> str | None:
    """Who decodes regions here: "libjpeg", "nvimgcodec", or None."""
    if optional_module("jpeg") is not None:
        return "libjpeg"
    return "nvimgcodec" if nvimgcodec() is not None else None


def decode_region(
    data: bytes | memoryview, header: ImageHeader, mode: str, region: Region, scratch: Scratch
) -> np.ndarray[Any, Any] | None:
    """Decode a region as uint8 [height, width, C], C 1 for mode "L" and 3 for "RGB".

    Returns:
        The pixels, perhaps in ``scratch``; or None where the image must be decoded whole: another format or mode,
        progressive, CMYK, cut, damaged, or nobody is here who decodes regions. Decoding it whole then finds the error.
    """
    if header.format != "jpeg" or header.channels not in (1, 3) or header.bits != 8 or mode not in ("RGB", "L"):
        return None
    native = optional_module("jpeg")
    if not has_end_marker(data, header) or (native is None and nvimgcodec() is None):
        return None
    try:
        if native is None:
            return region_with_nvimgcodec(data, header, mode, region)
        out = scratch.array(region.height, region.width, 1 if mode == "L" else 3)
        is_read = native.read_region(data, header.height, header.width, region.top, region.left, out)
    except Exception:  # whatever it is: whole decoding finds the words for it
        return None
    return out if is_read else None


def decode_stack(values: Sequence[bytes], mode: str, rows: Sequence[int], num_rows: int) -> torch.Tensor | None:
    """Decode images to rows of one tensor, each with the pixels of `decode_image`.

    JPEG images are decoded by libjpeg-turbo, all of them without the interpreter's lock, where it was there when the
    package was built; of other kinds each is decoded and copied.

    Args:
        values: Encoded images.
        mode: "RGB", "L" or "RGBA".
        rows: For each image its row.
        num_rows: How many rows; those without an image are not cleared.

    Returns:
        uint8 [num_rows, C, H, W] in [num_rows, H, W, C] memory; None where there are no images, or of several sizes.

    Raises:
        ImageDecodeError: As `decode_image`, not necessarily for the first bad image.
        LimitExceededError: As `reserve`.
    """
    if not values:
        return None
    _, first = open_image(values[0], DEFAULT_MAX_PIXELS)
    size = (first.height, first.width)
    native = None if mode == "RGBA" else optional_module("jpeg")
    is_read = np.zeros(len(values), np.bool_) if native is None else native.find_plain(list(values), *size)
    # Reading a header costs more than all else but decoding, so only those of images in doubt are read: for all errors
    # and sizes to be known before memory is taken.
    opened: dict[int, tuple[bytes | memoryview, ImageHeader]] = {}
    for number in np.flatnonzero(~is_read).tolist():
        opened[number] = _, header = open_image(values[number], DEFAULT_MAX_PIXELS)
        if (header.height, header.width) != size:
            return None
    out = empty_tensor((num_rows, *size, CHANNELS[mode]), torch.uint8)
    if native is not None:
        plain = list(compress(values, is_read.tolist()))
        is_read[is_read] = native.read_images(plain, np.asarray(rows, np.int64)[is_read], out.numpy())
    for number in np.flatnonzero(~is_read).tolist():
        encoded, header = opened.get(number) or open_image(values[number], DEFAULT_MAX_PIXELS)
        out[rows[number]] = decode_opened(encoded, header, mode).permute(1, 2, 0)
    return out.permute(0, 3, 1, 2)
