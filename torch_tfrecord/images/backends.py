"""The decoders behind :func:`torch_tfrecord.images.codec.decode_image`: torchcodec, its twin, Pillow, and nvImageCodec.

All take bytes whose header was read and whose size was checked, the first two without EXIF segments, and give the same
uint8 (or uint16) [C, H, W]. They raise whatever their libraries raise; the caller turns that into ImageDecodeError.
NVIDIA's nvImageCodec decodes JPEG images, whole or by regions, with libjpeg-turbo: on the CPU, without a GPU.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageChops,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    WebPImagePlugin,
)

from torch_tfrecord.errors import ImageDecodeError
from torch_tfrecord.images.headers import ImageHeader, has_end_marker

__all__ = [
    "DECODERS",
    "NVIMGCODEC_PIP",
    "TORCHCODEC_PIP",
    "nvimgcodec",
    "region_with_nvimgcodec",
    "torchcodec_decoders",
]

_TORCHCODEC_MODES = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGB_ALPHA", "unchanged": "UNCHANGED"}
TORCHCODEC_PIP = 'pip install "torchcodec>=0.16"'  # the first version with image decoders
NVIMGCODEC_PIP = 'pip install "torch-tfrecord[nvimgcodec]"'
_NVIMGCODEC_MARGIN = 8
_local = threading.local()

# Pillow fills up the rows of these in Python, half a microsecond a pixel, where two bytes of a row suffice.
_MOST_RUN_LENGTH_PIXELS = 1 << 22

# One class per format, called directly: Image.open would also try MPO, and would warn or raise by its own, global,
# pixel limit where only the limit of this call should hold. (Its WebP plugin alone still has that limit as well.)
_PILLOW_PLUGINS: dict[str, type[ImageFile.ImageFile]] = {
    "bmp": BmpImagePlugin.BmpImageFile,
    "gif": GifImagePlugin.GifImageFile,
    "jpeg": JpegImagePlugin.JpegImageFile,
    "png": PngImagePlugin.PngImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
}


@functools.cache
def torchcodec_decoders() -> Any:
    """Return torchcodec's decoders, or None where they are missing; a failing import is tried once only."""
    decoders = _imported("torchcodec.decoders")
    return decoders if hasattr(decoders, "decode_jpeg") and hasattr(decoders, "decode_png") else None


@functools.cache
def nvimgcodec() -> Any:
    """Return the package nvidia.nvimgcodec, or None where it is missing; a failing import is tried once only."""
    package = _imported("nvidia.nvimgcodec")
    reads_regions = hasattr(getattr(package, "CodeStream", None), "get_sub_code_stream")
    return package if reads_regions and hasattr(package, "NVIMGCODEC_DEVICE_CPU_ONLY") else None


def _imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):  # older torchcodecs raise RuntimeError where FFmpeg is missing
        return None


def _decode_with_torchcodec(data: bytes | memoryview, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decode a JPEG or PNG image by torchcodec; ``data`` must hold no EXIF, which torchcodec would always apply."""
    decoders = torchcodec_decoders()
    # Read-only bytes are copied, since torch warns of them, and torchcodec would quiet that by touching global filters.
    is_writable = isinstance(data, memoryview) and not data.readonly
    source = torch.frombuffer(data if is_writable else bytearray(data), dtype=torch.uint8)
    image: torch.Tensor
    if header.format == "jpeg" and header.channels == 4 and not header.adobe:
        raise ImageDecodeError(
            "expected Adobe's marker in a CMYK JPEG image for backend='torchcodec', got none; "
            "backend='auto' and 'pillow' read it"
        )
    if header.format == "jpeg":
        # The stored CMYK channels are of no use to anyone; TensorFlow gives RGB as well.
        wanted = "RGB" if mode == "unchanged" and header.channels == 4 else _TORCHCODEC_MODES[mode]
        image = decoders.decode_jpeg(source, mode=wanted)
    elif header.format == "png":
        image = decoders.decode_png(source, mode=_TORCHCODEC_MODES[mode], output_dtype="auto")
        if image.dtype == torch.uint16 and mode != "unchanged":
            image = torch.from_numpy((image.numpy() >> 8).astype(np.uint8))
    else:
        raise ImageDecodeError(
            f"expected a JPEG or PNG image for backend='torchcodec', got {header.format.upper()}; "
            "backend='auto' and 'pillow' read it"
        )
    return image


def _decode_with_pillow(data: bytes | memoryview, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decode an image by Pillow, with the plugin of the header's format and no other."""
    picture = _open_pillow(data, header)
    if header.format == "png" and header.bits == 16:
        pixels = _read_png16(data, header)
        if mode == "unchanged":
            return torch.from_numpy(pixels).permute(2, 0, 1)
        pixels = _append_png16_alpha(pixels, picture.info.get("transparency"))
        converted = Image.fromarray((pixels >> 8).astype(np.uint8).squeeze(2 if pixels.shape[2] == 1 else ()))
    else:
        if mode == "L" and isinstance(picture, JpegImagePlugin.JpegImageFile):
            picture.draft("L", None)  # the stored luma, as libjpeg gives it to TensorFlow, and not a sum of RGB
        picture.load()
        converted = picture
    array = np.array(_convert(converted, mode, header))
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))


def _open_pillow(data: bytes | memoryview, header: ImageHeader) -> ImageFile.ImageFile:
    picture = _PILLOW_PLUGINS[header.format](io.BytesIO(data))
    # The size that was checked must be the size that is decoded: a GIF frame may reach beyond its screen.
    if picture.size != (header.width, header.height):
        raise ImageDecodeError(
            f"expected {header.height} x {header.width} pixels as in the header, got {picture.height} x {picture.width}"
        )
    is_run_length = any(tile[0] == "bmp_rle" for tile in picture.tile)
    if is_run_length and header.height * header.width > _MOST_RUN_LENGTH_PIXELS:
        raise ImageDecodeError(
            f"expected at most {_MOST_RUN_LENGTH_PIXELS} pixels in a run-length coded BMP image, got "
            f"{header.height} x {header.width}"
        )
    return picture


def _convert(picture: Image.Image, mode: str, header: ImageHeader) -> Image.Image:
    if mode != "unchanged":
        target = mode
    elif header.format == "gif":
        target = "RGB"
    elif picture.mode == "P":
        target = "RGBA" if "transparency" in picture.info else "RGB"
    else:
        target = {"1": "L", "L": "L", "LA": "LA", "RGBA": "RGBA"}.get(picture.mode, "RGB")
    if target != "RGBA":
        picture.info.pop("transparency", None)  # Pillow would warn that the conversion loses it
    if picture.mode == "CMYK":
        # Pillow takes every CMYK JPEG for Adobe's inverted kind; TensorFlow looks for the marker.
        inks = picture if header.adobe else ImageChops.invert(picture)
        picture = inks.convert("RGB")  # first, since Pillow knows no direct way to gray
    return picture if picture.mode == target else picture.convert(target)


def _read_png16(data: bytes | memoryview, header: ImageHeader) -> np.ndarray[Any, Any]:
    """Read a 16-bit PNG as uint16 [H, W, C], which Pillow itself does for one channel only.

    It opens the others as 8-bit with a raw mode that keeps each value's first byte. Raw modes of the same number of
    bits leave inflating and unfiltering as they are: the little-endian one keeps the second byte instead, and four
    8-bit channels keep both bytes of gray and alpha.
    """

    def read(raw_mode: str | None) -> np.ndarray[Any, Any]:
        picture = _open_pillow(data, header)
        if raw_mode is not None:
            picture.tile = [tile._replace(args=raw_mode) for tile in picture.tile]
        return np.array(picture)

    if header.channels == 1:
        return read(None).astype(np.uint16)[:, :, None]
    if header.channels == 2:
        both_bytes: np.ndarray[Any, Any] = read("RGBA").view(">u2").astype(np.uint16)
        return both_bytes
    name = "RGB" if header.channels == 3 else "RGBA"
    high, low = read(f"{name};16B").astype(np.uint16), read(f"{name};16L").astype(np.uint16)
    return high << 8 | low


def _append_png16_alpha(pixels: np.ndarray[Any, Any], transparent: Any) -> np.ndarray[Any, Any]:
    """Append the alpha that a tRNS chunk means: 0 where a pixel is the one transparent colour, at its full 16 bits."""
    if transparent is None:
        return pixels
    opaque = (pixels != np.asarray(transparent, dtype=np.uint16)).any(axis=2, keepdims=True)
    return np.concatenate([pixels, np.where(opaque, 0xFFFF, 0).astype(np.uint16)], axis=2)


def _decode_with_nvimgcodec(data: bytes | memoryview, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decode a whole JPEG image by nvImageCodec, which is told to leave EXIF alone."""
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
    first, end = max(0, left - _NVIMGCODEC_MARGIN), min(header.width, left + width + _NVIMGCODEC_MARGIN)
    if width >= _NVIMGCODEC_MARGIN:
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


DECODERS: dict[str, Callable[[bytes | memoryview, ImageHeader, str], torch.Tensor]] = {
    "torchcodec": _decode_with_torchcodec,
    "pillow": _decode_with_pillow,
    "nvimgcodec": _decode_with_nvimgcodec,
}
"""By the backend's name: (data, header, mode) to [C, H, W]."""
