"""Regions of JPEG images decoded without the rest: by libjpeg-turbo where its headers were found when the package was
built, else by nvImageCodec where that is installed.

Rows above a region are passed over, rows below it never read. The pixels are those of the whole image: chroma at the
region's edges too, since a little more than the region is decoded. Both release the interpreter's lock.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from torch_tfrecord.images.headers import ImageHeader, has_end_marker
from torch_tfrecord.images.nvimgcodec import nvimgcodec, region_with_nvimgcodec
from torch_tfrecord.native import optional_module

__all__ = ["Region", "Scratch", "decode_region", "region_decoder"]


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
