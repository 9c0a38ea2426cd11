"""The decoders of :func:`torch_tfrecord.media.codec.decode_image`: torchcodec and Pillow.

Both take bytes without EXIF segments, with a header that was read and a size that was checked, and
return the same uint8 (or uint16) [C, H, W]. They raise the errors of their libraries; the caller
turns these into ImageDecodeError.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
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

from torch_tfrecord.errors import ImageDecodeError, optional_import, warn_once
from torch_tfrecord.media.headers import ImageHeader

if TYPE_CHECKING:
    import torch

__all__ = [
    "DECODERS",
    "TORCHCODEC_PIP",
    "torchcodec_decoders",
]

_Pixels: TypeAlias = "npt.NDArray[np.uint8 | np.uint16]"  # [H, W] or [H, W, C]

_TORCHCODEC_MODES = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGB_ALPHA", "unchanged": "UNCHANGED"}
TORCHCODEC_PIP = 'pip install "torchcodec>=0.16"'  # the first version with image decoders

_ONE = 100_000  # gammas are whole numbers, of which this is 1
_NEAR_ONE = range(_ONE - 5000, _ONE + 5001)
_WEIGHTS, _SHIFT = (9797, 19234, 3737), 15  # red, green and blue, in units of 2^-15

# Pillow pads the rows of these in Python, at half a microsecond per pixel, although a row may take
# only two bytes.
_MOST_RUN_LENGTH_PIXELS = 1 << 22

# One class per format, called directly: Image.open would also try MPO, and would apply its own
# global pixel limit in addition to the limit of this call. (Its WebP plugin still does.)
_PILLOW_PLUGINS: dict[str, type[ImageFile.ImageFile]] = {
    "bmp": BmpImagePlugin.BmpImageFile,
    "gif": GifImagePlugin.GifImageFile,
    "jpeg": JpegImagePlugin.JpegImageFile,
    "png": PngImagePlugin.PngImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
}


@functools.cache
def torchcodec_decoders() -> ModuleType | None:
    """Return torchcodec's decoders, or None if they are missing; a failing import is tried only
    once.
    """
    # Older ones have none, and raise RuntimeError if FFmpeg is missing.
    with suppress(PackageNotFoundError):
        found = version("torchcodec")
        if tuple(map(int, re.findall(r"\d+", found)[:2])) < (0, 16):
            warn_once(
                f"torchcodec {found} does not decode images, 0.16 or newer does: Pillow decodes them in its place; "
                f"{TORCHCODEC_PIP}"
            )
            return None
    module = optional_import("torchcodec.decoders", "Pillow decodes images in its place")
    return module if hasattr(module, "decode_jpeg") and hasattr(module, "decode_png") else None


def _unsupported(wanted: str, got: str) -> ImageDecodeError:
    return ImageDecodeError(
        f"expected {wanted} for backend='torchcodec', got {got}; backend='auto' and 'pillow' read it"
    )


def _decode_with_torchcodec(
    data: bytes | memoryview, header: ImageHeader, mode: str
) -> torch.Tensor:
    """Decode a JPEG or PNG image with torchcodec; ``data`` must contain no EXIF, which torchcodec
    would always apply.
    """
    import torch

    decoders: Any = torchcodec_decoders()
    if header.format not in ("jpeg", "png"):
        raise _unsupported("a JPEG or PNG image", header.format.upper())
    is_cmyk = header.format == "jpeg" and header.channels == 4
    if is_cmyk and not header.adobe:
        raise _unsupported("Adobe's marker in a CMYK JPEG image", "none")
    # Copy read-only bytes: torch warns about them, and torchcodec would silence that through global
    # warning filters.
    is_writable = isinstance(data, memoryview) and not data.readonly
    source = torch.frombuffer(data if is_writable else bytearray(data), dtype=torch.uint8)
    image: torch.Tensor
    if header.format == "jpeg":
        # Nobody needs the stored CMYK channels; TensorFlow returns RGB, too.
        wanted = "RGB" if is_cmyk and mode == "unchanged" else mode
        image = decoders.decode_jpeg(source, mode=_TORCHCODEC_MODES[wanted])
        return image
    # libpng's way to gray is ours where the image says its gamma
    wanted = "RGB" if mode == "L" and needs_gamma(header.gamma) else mode
    image = decoders.decode_png(source, mode=_TORCHCODEC_MODES[wanted], output_dtype="auto")
    if image.dtype == torch.uint16 and mode != "unchanged":
        image = torch.from_numpy((image.numpy() >> 8).astype(np.uint8))
    if wanted != mode:
        gray = gray_of_colors(image.permute(1, 2, 0).numpy(), header.gamma)
        image = torch.from_numpy(gray)[None]
    return image


def _decode_with_pillow(data: bytes | memoryview, header: ImageHeader, mode: str) -> _Pixels:
    """Decode an image with Pillow, using only the plugin of the header's format; to check a JPEG, from
    all of its data the smallest picture.
    """
    picture: Any = _open_pillow(data, header)
    if mode == "check":
        picture.draft(None, (1, 1))
        mode = "unchanged"
    if header.format == "png" and header.bits == 16:
        array = _read_png16(data, header)
        if mode != "unchanged":
            pixels = _append_png16_alpha(array, picture.info.get("transparency"))
            high = (pixels >> 8).astype(np.uint8)
            stored = Image.fromarray(high[..., 0] if pixels.shape[2] == 1 else high)
            array = _convert_to_array(stored, mode, header)
    elif header.format == "gif":
        array = _read_gif(picture, mode, header)
    else:
        if mode == "L" and isinstance(picture, JpegImagePlugin.JpegImageFile):
            picture.draft("L", None)  # the stored luma, as in TensorFlow, not a weighted sum of RGB
        tile: Any = picture.tile[0] if picture.tile else None
        is_bytes = header.format == "bmp" and data[28:34] == b"\x08\0\0\0\0\0"  # 8 bits, plain
        # Pillow takes pixels for a palette
        if is_bytes and tile.offset + tile.args[1] * header.height > len(data):
            begin = int.from_bytes(data[10:14], "little")
            picture = Image.frombytes("L", picture.size, data[begin:], "raw", "L", *tile.args[1:])
        picture.load()
        if header.format == "bmp" and mode in ("RGBA", "unchanged"):
            _append_unnamed_alpha(picture, tile, data)
        array = _convert_to_array(picture, mode, header)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _read_gif(picture: ImageFile.ImageFile, mode: str, header: ImageHeader) -> _Pixels:
    """The first frame of a GIF: 0 where it paints nothing, as in TensorFlow; Pillow gives a colour
    of the palette.
    """
    left, top, right, bottom = picture.tile[0].extents or (0, 0, *picture.size)
    picture.load()
    unpainted = np.ones((header.height, header.width), dtype=np.bool_)
    unpainted[top:bottom, left:right] = False
    if "transparency" in picture.info:
        unpainted |= np.asarray(picture) == picture.info["transparency"]
    array = _convert_to_array(picture, mode, header)
    array[unpainted] = 0
    return array


def _append_unnamed_alpha(picture: Image.Image, tile: Any, data: bytes | memoryview) -> None:
    """Add the fourth byte of the pixels of a 32-bit BMP that names no alpha as alpha, as TensorFlow
    does.
    """
    raw_mode = tile.args[0] if tile is not None and tile.codec_name == "raw" else ""
    if len(raw_mode) == 4 and "X" in raw_mode:
        size = (picture.height, picture.width, 4)
        pixels = np.frombuffer(
            data, np.uint8, picture.height * picture.width * 4, tile.offset
        ).reshape(size)
        picture.putalpha(Image.fromarray(pixels[:: tile.args[-1], :, raw_mode.index("X")]))


def _open_pillow(data: bytes | memoryview, header: ImageHeader) -> ImageFile.ImageFile:
    picture = _PILLOW_PLUGINS[header.format](io.BytesIO(data))
    # The decoded size must be the one that was checked: a GIF frame may be larger than its screen.
    if picture.size != (header.width, header.height):
        raise ImageDecodeError(
            f"expected {header.height} x {header.width} pixels as in the header, got {picture.height} x {picture.width}"
        )
    is_run_length = any(tile[0] == "bmp_rle" for tile in picture.tile)
    if is_run_length and header.height * header.width > _MOST_RUN_LENGTH_PIXELS:
        raise ImageDecodeError(
            f"expected at most {_MOST_RUN_LENGTH_PIXELS} pixels in a run-length encoded BMP image, got "
            f"{header.height} x {header.width}"
        )
    return picture


def _convert_to_array(picture: Image.Image, mode: str, header: ImageHeader) -> _Pixels:
    """The pixels of a picture in the wanted mode, [H, W] or [H, W, C]."""
    is_gray = mode == "L" and needs_gamma(header.gamma)
    if mode != "unchanged":
        target = "RGB" if is_gray else mode
    elif header.format == "gif":
        target = "RGB"
    elif picture.mode == "P":
        target = "RGBA" if "transparency" in picture.info else "RGB"
    else:
        target = {"1": "L", "L": "L", "LA": "LA", "RGBA": "RGBA"}.get(picture.mode, "RGB")
    if target != "RGBA":
        picture.info.pop("transparency", None)  # Pillow would warn that the conversion loses it
    if picture.mode == "CMYK":
        # Pillow treats every CMYK JPEG as inverted, as Adobe writes it; TensorFlow checks for
        # Adobe's marker.
        inks = picture if header.adobe else ImageChops.invert(picture)
        picture = inks.convert("RGB")  # first, as Pillow has no direct conversion to gray
    array = np.array(picture if picture.mode == target else picture.convert(target))
    return gray_of_colors(array, header.gamma) if is_gray else array


def _read_png16(data: bytes | memoryview, header: ImageHeader) -> _Pixels:
    """Read a 16-bit PNG as uint16 [H, W, C], which Pillow supports only for one channel.

    Pillow opens the others as 8-bit, with a raw mode that keeps the first byte of each value.
    Another raw mode of the same bit depth does not change inflating and unfiltering: the
    little-endian one keeps the second byte instead, and four 8-bit channels keep both bytes of gray
    and alpha.
    """

    def read(raw_mode: str | None) -> _Pixels:
        picture = _open_pillow(data, header)
        if raw_mode is not None:
            picture.tile = [tile._replace(args=raw_mode) for tile in picture.tile]
        return np.array(picture)

    if header.channels == 1:
        return read(None).astype(np.uint16)[:, :, None]
    if header.channels == 2:
        return read("RGBA").view(">u2").astype(np.uint16)
    name = "RGB" if header.channels == 3 else "RGBA"
    high, low = read(f"{name};16B").astype(np.uint16), read(f"{name};16L").astype(np.uint16)
    return (high << 8 | low).astype(np.uint16, copy=False)


def _append_png16_alpha(pixels: _Pixels, transparent: npt.ArrayLike | None) -> _Pixels:
    """Append the alpha channel of a tRNS chunk: 0 for pixels equal to the transparent colour in all
    16 bits.
    """
    if transparent is None:
        return pixels
    opaque = (pixels != np.asarray(transparent, dtype=np.uint16)).any(axis=2, keepdims=True)
    return np.concatenate([pixels, np.where(opaque, 0xFFFF, 0).astype(np.uint16)], axis=2)


# Gray as libpng and so TensorFlow compute it from the colours of a PNG that says its gamma: the
# colours are made linear, weighted and stored with the same gamma again, each time in 8 bits.
# Without a gamma libpng weights the stored colours, as Pillow does.


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


DECODERS: dict[str, Callable[[bytes | memoryview, ImageHeader, str], torch.Tensor | _Pixels]] = {
    "torchcodec": _decode_with_torchcodec,
    "pillow": _decode_with_pillow,
}
"""Backend name -> function from (data, header, mode) to [C, H, W]."""
