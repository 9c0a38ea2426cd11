"""Several encoded images of one size, decoded straight into the memory of one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import numpy as np
import torch

from torch_tfrecord.batch_memory import empty_tensor
from torch_tfrecord.images.codec import DEFAULT_MAX_PIXELS, decode_opened, open_image
from torch_tfrecord.images.headers import ImageHeader
from torch_tfrecord.native import optional_module

__all__ = ["decode_stack"]

_CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}


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
    first = _open(values[0])[1]
    size = (first.height, first.width)
    native = None if mode == "RGBA" else optional_module("jpeg")
    is_read = np.zeros(len(values), np.bool_) if native is None else native.find_plain(list(values), *size)
    # Reading a header costs more than all else but decoding, so only those of images in doubt are read: for all errors
    # and sizes to be known before memory is taken.
    opened: dict[int, tuple[bytes | memoryview, ImageHeader]] = {}
    for number in np.flatnonzero(~is_read).tolist():
        opened[number] = _, header = _open(values[number])
        if (header.height, header.width) != size:
            return None
    out = empty_tensor((num_rows, *size, _CHANNELS[mode]), torch.uint8)
    if native is not None:
        plain = list(compress(values, is_read.tolist()))
        is_read[is_read] = native.read_images(plain, np.asarray(rows, np.int64)[is_read], out.numpy())
    for number in np.flatnonzero(~is_read).tolist():
        encoded, header = opened.get(number) or _open(values[number])
        out[rows[number]] = decode_opened(encoded, header, mode).permute(1, 2, 0)
    return out.permute(0, 3, 1, 2)


def _open(data: bytes) -> tuple[bytes | memoryview, ImageHeader]:
    return open_image(data, DEFAULT_MAX_PIXELS)
