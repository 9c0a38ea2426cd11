"""Several encoded images of one size, decoded straight into the memory of one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_tfrecord.batch_memory import empty_tensor
from torch_tfrecord.image_headers import ImageHeader, has_end_marker
from torch_tfrecord.images import DEFAULT_MAX_PIXELS, decode_opened, open_image
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
    """
    opened = [open_image(data, DEFAULT_MAX_PIXELS) for data in values]
    sizes = {(header.height, header.width) for _, header in opened}
    if len(sizes) != 1:
        return None
    out = empty_tensor((num_rows, *sizes.pop(), _CHANNELS[mode]), torch.uint8)
    is_read = _read_plain(opened, mode, np.asarray(rows, np.int64), out.numpy())
    for (encoded, header), row, done in zip(opened, rows, is_read, strict=True):
        if not done:
            out[row] = decode_opened(encoded, header, mode).permute(1, 2, 0)
    return out.permute(0, 3, 1, 2)


def _read_plain(opened: Sequence[tuple[Any, ImageHeader]], mode: str, rows: Any, out: Any) -> Any:
    """Decode the plain JPEG images, and tell for each whether it was."""
    native = optional_module("jpeg")
    if native is None or mode == "RGBA":
        return [False] * len(opened)
    is_plain = np.array([_is_plain(data, header) for data, header in opened], np.bool_)
    images = [data for (data, _), chosen in zip(opened, is_plain, strict=True) if chosen]
    is_plain[is_plain] = native.read_images(images, rows[is_plain], out)
    return is_plain


def _is_plain(data: Any, header: ImageHeader) -> bool:
    is_usual = header.format == "jpeg" and header.channels in (1, 3) and header.bits == 8
    return is_usual and type(data) is bytes and has_end_marker(data, header)
