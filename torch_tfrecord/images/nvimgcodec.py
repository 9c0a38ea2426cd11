"""NVIDIA's nvImageCodec as a decoder of JPEG images, whole or by regions, on the CPU: an optional backend.

It decodes with libjpeg-turbo, to the same pixels as the other backends, and needs no GPU for that.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from typing import Any

import numpy as np
import torch

from torch_tfrecord.errors import ImageDecodeError
from torch_tfrecord.images.headers import ImageHeader, has_end_marker

__all__ = ["NVIMGCODEC_PIP", "decode_with_nvimgcodec", "nvimgcodec", "region_with_nvimgcodec"]

NVIMGCODEC_PIP = 'pip install "torch-tfrecord[nvimgcodec]"'

_MARGIN = 8
_local = threading.local()


@functools.cache
def nvimgcodec() -> Any:
    """Return the package nvidia.nvimgcodec, or None where it is missing; a failing import is tried once only."""
    try:
        package = importlib.import_module("nvidia.nvimgcodec")
    except (ImportError, OSError, RuntimeError):
        return None
    reads_regions = hasattr(getattr(package, "CodeStream", None), "get_sub_code_stream")
    return package if reads_regions and hasattr(package, "NVIMGCODEC_DEVICE_CPU_ONLY") else None


def decode_with_nvimgcodec(data: bytes | memoryview, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decode a whole JPEG image; see :func:`torch_tfrecord.images.backends.decode_with_torchcodec`."""
    if header.format != "jpeg" or header.channels not in (1, 3):
        kind = f"{header.format.upper()} of {header.channels} channels" if header.channels else header.format.upper()
        raise ImageDecodeError(
            f"expected a JPEG image of 1 or 3 channels for backend='nvimgcodec', got {kind}; "
            "backend='auto' and 'pillow' read it"
        )
    is_gray = mode == "L" or (mode == "unchanged" and header.channels == 1)
    pixels = region_with_nvimgcodec(data, header, "L" if is_gray else "RGB", None)
    if pixels is None:
        raise ValueError("nvImageCodec reads no such image, or it is cut")
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)  # its memory is nvImageCodec's own
    return torch.cat([image, torch.full_like(image[:1], 255)]) if mode == "RGBA" else image


def region_with_nvimgcodec(
    data: bytes | memoryview, header: ImageHeader, mode: str, region: tuple[int, int, int, int] | None
) -> np.ndarray[Any, Any] | None:
    """Decode a region (top, left, height, width) of a JPEG image, None meaning all of it.

    Returns:
        uint8 [height, width, C], C 1 for mode "L" and 3 for "RGB"; None where that cannot be, or the file is cut.
    """
    if not has_end_marker(data, header):  # what is cut, it may fill with gray
        return None
    package = nvimgcodec()
    stream = package.CodeStream(np.frombuffer(data, np.uint8))
    top, left, height, width = region or (0, 0, header.height, header.width)
    # It does not smooth the chroma of a single column: a few more are read.
    first, end = max(0, left - _MARGIN), min(header.width, left + width + _MARGIN)
    if width >= _MARGIN:
        first, end = left, left + width
    if region is not None:
        stream = stream.get_sub_code_stream(region=package.Region(top, first, top + height, end))
    image = _decoder(package).decode(stream, params=_params(mode))
    if image is None:
        return None
    pixels = np.asarray(image)
    if pixels.shape != (height, end - first, 1 if mode == "L" else 3) or pixels.dtype != np.uint8:
        return None
    return pixels[:, left - first : left - first + width]


def _decoder(package: Any) -> Any:
    # One for each thread, made anew in a forked process: a decoder has locks and a thread of its own.
    if getattr(_local, "process", None) != os.getpid():
        _local.decoder = package.Decoder(
            device_id=package.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=1,
            backends=[package.Backend(package.CPU_ONLY)],
            options=":fancy_upsampling=1",
        )
        _local.process = os.getpid()
    return _local.decoder


@functools.cache
def _params(mode: str) -> Any:
    package = nvimgcodec()
    color = package.ColorSpec.GRAY if mode == "L" else package.ColorSpec.SRGB
    return package.DecodeParams(color_spec=color, apply_exif_orientation=False, allow_any_depth=False)
