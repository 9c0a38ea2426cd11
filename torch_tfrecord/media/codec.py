"""Decode images to tensors, encode tensors as images, and crop or pad like TensorFlow.

Pixels are equal to those of ``tf.io.decode_image`` and
``tf.io.decode_jpeg(dct_method="INTEGER_ACCURATE")``, but channels first. TensorFlow's *default*
JPEG decoding uses a faster, less exact transform and differs by up to 5 of 255. Nothing here reads
or sets a global of Pillow, libjpeg or ``warnings``; all functions are thread-safe.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from torch_tfrecord.arguments import at_least, one_of
from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.errors import ImageDecodeError
from torch_tfrecord.media.backends import (
    DECODERS,
    TORCHCODEC_PIP,
    torchcodec_decoders,
)
from torch_tfrecord.media.headers import ImageHeader, check_scans, detect_format, read_header

if TYPE_CHECKING:
    import torch

__all__ = [
    "CHANNELS",
    "DEFAULT_MAX_PIXELS",
    "EncodedImage",
    "check_image",
    "decode_by_header",
    "decode_image",
    "encode_image",
    "image_format",
    "image_size",
    "open_image",
    "resize_with_crop_or_pad",
    "turn_upright",
]

EncodedImage: TypeAlias = "bytes | bytearray | memoryview | torch.Tensor | npt.NDArray[np.generic]"

DEFAULT_MAX_PIXELS = 178_956_970
"""Half a gibibyte of 24-bit pixels: Pillow's own limit for a decompression bomb."""

CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}
"""Number of channels, for the modes that fix it."""

_ENCODE_CHANNELS = {
    "bmp": (1, 3),
    "gif": (1, 3),
    "jpeg": (1, 3),
    "png": (1, 2, 3, 4),
    "webp": (3, 4),
}

_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # gray, gray and alpha, RGB, RGBA
_SUB = 1  # the filter: each byte less that of the pixel to its left

# The axes of [..., H, W] to flip for EXIF orientations 1 to 4; for 5 to 8, rows and columns are
# swapped first.
_FLIPS = ((), (-1,), (-2, -1), (-2,))


def decode_image(
    data: EncodedImage,
    mode: str = "RGB",
    *,
    backend: str = "auto",
    apply_orientation: bool = False,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> torch.Tensor:
    """Decode a JPEG, PNG, GIF, BMP or WebP image, detected by its first bytes.

    Args:
        data: The encoded image, bytes or a 1-D uint8 tensor or array; not modified, and copied only
            if the decoder needs it.
        mode: ``"RGB"`` (gray is repeated, alpha dropped), ``"L"`` (gray; for a JPEG the stored
            luma, for a PNG by the gamma that it says, exactly as in TensorFlow, else within 1 of
            it), ``"RGBA"`` (alpha 255 if the image has none), or ``"unchanged"``: the stored 1 to 4
            channels (palette: RGB, or RGBA if the palette has transparent colours; CMYK and GIF:
            RGB; 32-bit BMP: RGBA), and uint16 for a 16-bit PNG. The other modes convert such a PNG
            to 8 bits by ``value >> 8``.
        backend: ``"pillow"`` (all formats), ``"torchcodec"`` (JPEG and PNG), or ``"auto"``:
            torchcodec for JPEG if torchcodec 0.16 or newer is installed (same pixels, faster), else
            Pillow.
        apply_orientation: Rotate and flip the image according to its EXIF orientation. TensorFlow
            never does.
        max_pixels: Maximum height times width, checked in the header before memory is allocated.

    Returns:
        uint8 (or uint16, see ``mode``) [C, H, W], values 0 to 255 (65535), writable, owning its
        memory. Usually a view of [H, W, C] memory ("channels last"), which torchvision resizes
        fastest. For an animation, the first frame; 0 where that of a GIF paints nothing.

    Raises:
        ImageDecodeError: The data is not an image, is truncated or damaged, exceeds ``max_pixels``,
            is a JPEG of more than 100 scans (or of more than 16 scans and 2^31 pixels over all
            scans), or is not supported by the chosen backend. Truncation is always detected; a
            changed byte inside compressed JPEG, GIF, WebP or BMP pixels may go unnoticed (the
            record's CRC detects it).
        ImportError: ``backend="torchcodec"`` is not installed.
        ValueError: The ``mode`` or ``backend`` is unknown.

    Source: ``tf.io.decode_image`` and ``tf.io.decode_jpeg`` of TensorFlow 2.21.

    Example:
        >>> decode_image(encode_image(torch.zeros(3, 4, 6, dtype=torch.uint8), "png")).shape
        torch.Size([3, 4, 6])
    """
    one_of("mode", mode, *CHANNELS, "unchanged")
    one_of("backend", backend, "auto", *DECODERS)
    at_least(1, "max_pixels", max_pixels)
    encoded, header = open_image(data, max_pixels)
    if backend == "torchcodec" and torchcodec_decoders() is None:
        raise ImportError(f"backend='torchcodec' needs torchcodec 0.16 or newer: {TORCHCODEC_PIP}")
    reserve(header.height * header.width * (CHANNELS.get(mode) or max(header.channels, 1)))
    image = decode_by_header(encoded, header, mode, backend)
    return turn_upright(image, header.orientation) if apply_orientation else image


def open_image(data: EncodedImage, max_pixels: int) -> tuple[bytes | memoryview, ImageHeader]:
    """Read the header of an encoded image, without copying the bytes.

    Raises:
        ImageDecodeError: The data is not an image, its structure is truncated or damaged, or it has
            more than ``max_pixels`` pixels or more scans than any encoder writes.
    """
    encoded = _as_buffer(data)
    header = read_header(encoded)
    if header.height * header.width > max_pixels:
        raise ImageDecodeError(
            f"expected at most {max_pixels} pixels (max_pixels), got an image of {header.height} x {header.width} = "
            f"{header.height * header.width} pixels"
        )
    check_scans(encoded, header)
    return encoded, header


def check_image(data: bytes, *, decodes: bool = True) -> ImageHeader:
    """Check that an image is whole, by its structure and, unless it is decoded later, by Pillow, without
    torch; its header.

    Raises:
        ImageDecodeError: As by `decode_image`.
    """
    encoded, header = open_image(data, DEFAULT_MAX_PIXELS)
    if decodes:
        _decoded(encoded, header, "check", "pillow")
    return header


def decode_by_header(
    encoded: bytes | memoryview, header: ImageHeader, mode: str, backend: str = "auto"
) -> torch.Tensor:
    """Decode an image with a known header, without applying EXIF orientation; see
    :func:`decode_image`.
    """
    import torch

    pixels = _decoded(encoded, header, mode, backend)
    return torch.from_numpy(pixels) if isinstance(pixels, np.ndarray) else pixels


def _decoded(
    encoded: bytes | memoryview, header: ImageHeader, mode: str, backend: str
) -> torch.Tensor | npt.NDArray[np.generic]:
    if backend == "auto":
        usable = (
            header.format == "jpeg"
            and (header.channels != 4 or header.adobe)
            and torchcodec_decoders() is not None
        )
        backend = "torchcodec" if usable else "pillow"
    if header.exif:
        # Without EXIF segments, no decoder can rotate the image (torchcodec always would) or fail
        # on them, and without a PNG's compressed text, none inflates it.
        starts = [0, *(end for _, end in header.exif)]
        ends = [*(start for start, _ in header.exif), None]
        encoded = b"".join(map(encoded.__getitem__, map(slice, starts, ends)))
    try:
        return DECODERS[backend](encoded, header, mode)
    except ImageDecodeError:
        raise
    # decoders raise OSError, SyntaxError, ValueError, struct.error, MemoryError, ...
    except Exception as exc:
        raise ImageDecodeError(
            f"expected a whole {header.format.upper()} image of {header.height} x {header.width} pixels, got "
            f"{len(encoded)} bytes that {backend} cannot decode ({type(exc).__name__})"
        ) from exc


def image_format(data: EncodedImage) -> str | None:
    """Detect the format of an encoded image from its first bytes.

    Args:
        data: The encoded image, or its first 18 bytes.

    Returns:
        ``"jpeg"``, ``"png"``, ``"gif"``, ``"bmp"``, ``"webp"``, or None for anything else. The rest
        of the image is not checked.

    Example:
        >>> image_format(b"GIF89a")
        'gif'
    """
    return detect_format(bytes(_as_buffer(data)[:18]))


def image_size(data: EncodedImage) -> tuple[int, int]:
    """Read an image's (height, width) in pixels from its header, without decoding it.

    The size is the stored one, ignoring EXIF orientation, as in :func:`decode_image`.

    Raises:
        ImageDecodeError: The data is not an image, or its structure is truncated or damaged.
            Compressed JPEG pixels are not checked.

    Example:
        >>> image_size(encode_image(torch.zeros(3, 4, 6, dtype=torch.uint8), "png"))
        (4, 6)
    """
    header = read_header(_as_buffer(data))
    return header.height, header.width


def encode_image(
    image: torch.Tensor | npt.NDArray[np.generic] | Image.Image,
    format: str = "jpeg",
    quality: int = 95,
) -> bytes:
    """Encode one image; the bytes are deterministic for a given version of Pillow.

    Args:
        image: uint8 [C, H, W], values 0 to 255, a tensor (also a ``tv_tensors.Image``) or array. C
            is 1 or 3; for PNG also 2 (gray and alpha) or 4, for WebP 3 or 4. PNG also takes uint16.
            Or a PIL image, of a mode with those channels ("L", "RGB", "LA", "RGBA").
        format: ``"jpeg"`` (``"jpg"``), ``"png"``, ``"webp"``, ``"bmp"`` or ``"gif"``. PNG and BMP
            are lossless, and so is GIF for one channel (three are reduced to 256 colours); JPEG and
            WebP are lossy.
        quality: 1 to 100, for JPEG and WebP.

    Returns:
        The bytes of the image file.

    Raises:
        TypeError: ``image`` is neither a tensor nor an array nor a PIL image.
        ValueError: The shape, dtype, format or quality is not supported, or the sides are too long
            for the format.

    Source: ``tf.io.encode_jpeg`` (same default quality, 95) and ``tf.io.encode_png``, which take
    [H, W, C].

    Example:
        >>> encode_image(torch.zeros(3, 4, 6, dtype=torch.uint8), "png")[1:4]
        b'PNG'
    """
    format = "jpeg" if format == "jpg" else format
    one_of("format", format, *_ENCODE_CHANNELS)
    if at_least(1, "quality", quality) > 100:
        raise ValueError(f"expected quality from 1 to 100, got {quality}")
    pixels = _check_pixels(image, format)
    if pixels.dtype == np.uint16 and len(pixels) > 1:
        return _encode_deep_png(pixels.transpose(1, 2, 0))
    picture = Image.fromarray(
        pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))
    )
    options = {"quality": quality} if format in ("jpeg", "webp") else {}
    buffer = io.BytesIO()
    try:
        picture.save(buffer, format.upper(), **options)
    # the array was checked: only limits of the format are left
    except (OSError, ValueError) as exc:
        raise ValueError(
            f"expected sides that {format} can hold, got {picture.height} x {picture.width}"
        ) from exc
    return buffer.getvalue()


def resize_with_crop_or_pad(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Center-crop or zero-pad each side to exactly height x width, without scaling.

    With ``d = abs(target - size)``, cropping and padding start at ``d // 2``: an odd pixel is cut
    or added at the right or bottom. torchvision's ``center_crop`` rounds half to even instead (7 to
    4 starts at 2 there, at 1 here).

    Args:
        image: [..., H, W], any dtype; a ``tv_tensors.Image``, ``Video`` or ``Mask`` keeps its type.
        height: Rows of the result, at least 1.
        width: Columns of the result, at least 1.

    Returns:
        [..., height, width], same dtype and device. Shares memory with ``image`` if nothing is
        padded.

    Raises:
        TypeError: ``image`` is not a tensor, or has no pixels (boxes, key points).
        ValueError: ``image`` has fewer than two dimensions, or a target size is below 1.

    Source: ``tf.image.resize_with_crop_or_pad``, which takes [..., H, W, C].

    Example:
        >>> resize_with_crop_or_pad(torch.tensor([[1, 2, 3, 4, 5, 6, 7]]), 1, 4)
        tensor([[2, 3, 4, 5]])
    """
    height, width = at_least(1, "height", height), at_least(1, "width", width)
    import torch

    from torch_tfrecord.torch_internals import as_kind_of, tv_classes

    if not isinstance(image, torch.Tensor) or (
        isinstance(image, tv_classes("TVTensor"))
        and not isinstance(image, tv_classes("Image", "Video", "Mask"))
    ):
        raise TypeError(f"expected image as a tensor of pixels, got {type(image).__name__}")
    if image.ndim < 2:
        raise ValueError(f"expected image of shape [..., H, W], got {list(image.shape)}")
    result, margins = image.as_subclass(torch.Tensor), list[int]()
    for axis, target in ((-1, width), (-2, height)):
        missing = target - result.shape[axis]
        margins += [max(missing, 0) // 2, (max(missing, 0) + 1) // 2]
        if missing < 0:
            result = result.narrow(axis, -missing // 2, target)
    if any(margins):
        result = torch.nn.functional.pad(result, margins)
    return as_kind_of(result, image)


def _as_buffer(data: EncodedImage) -> bytes | memoryview:
    if isinstance(data, bytes):
        return data
    array = _as_array(data)
    if isinstance(array, np.ndarray):
        if array.ndim != 1 or array.dtype != np.uint8:
            raise ValueError(
                f"expected data as a 1-D uint8 tensor or array, got {array.dtype} of shape {list(array.shape)}"
            )
        return memoryview(np.ascontiguousarray(array).data)
    if isinstance(data, bytearray | memoryview):
        view = memoryview(data)
        return view.cast("B") if view.c_contiguous else bytes(view)
    raise TypeError(
        f"expected data as bytes, bytearray, memoryview or a 1-D uint8 tensor or array, got {type(data).__name__}"
    )


def _as_array(value: Any) -> object:
    """A tensor as an array, without an import of torch; anything else as it is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def turn_upright(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """Rotate and flip a decoded image [C, H, W] according to its EXIF orientation, 1 to 8."""
    if orientation == 1:
        return image
    array = image.numpy()
    if orientation >= 5:
        array = array.swapaxes(-2, -1)
    import torch

    # With NumPy, as some versions of torch cannot flip uint16; the copy removes negative strides.
    return torch.from_numpy(np.flip(array, _FLIPS[(orientation - 1) % 4]).copy())


def _check_pixels(
    image: torch.Tensor | npt.NDArray[np.generic] | Image.Image, format: str
) -> npt.NDArray[np.generic]:
    pixels = _as_array(image)
    if isinstance(image, Image.Image):
        if image.mode not in ("L", "LA", "RGB", "RGBA"):
            raise ValueError(
                f"expected a PIL image of mode L, LA, RGB or RGBA, got {image.mode}: convert('RGB') it"
            )
        pixels = np.atleast_3d(np.asarray(image)).transpose(2, 0, 1)
    if not isinstance(pixels, np.ndarray):
        raise TypeError(
            f"expected image as a tensor, an array or a PIL image, got {type(image).__name__}"
        )
    channels = _ENCODE_CHANNELS[format]
    dtypes = (np.uint8, np.uint16) if format == "png" else (np.uint8,)
    if (
        pixels.dtype not in dtypes
        or pixels.ndim != 3
        or 0 in pixels.shape
        or len(pixels) not in channels
    ):
        is_last = pixels.ndim == 3 and pixels.shape[-1] in channels
        hint = "; permute(2, 0, 1) puts the channels of [H, W, C] first" if is_last else ""
        raise ValueError(
            f"expected image as {' or '.join(np.dtype(dtype).name for dtype in dtypes)} [C, H, W] with C of "
            f"{', '.join(map(str, channels))} for {format}, got {pixels.dtype} {list(pixels.shape)}{hint}"
        )
    return pixels


def _encode_deep_png(pixels: npt.NDArray[np.uint16]) -> bytes:
    """Encode uint16 [H, W, C], C 1 to 4.

    Pillow does not write 16 bits of several channels.

    Source: the PNG specification (W3C), third edition.
    """
    height, width, channels = pixels.shape
    stored = np.ascontiguousarray(pixels, ">u2").view(np.uint8).reshape(height, -1)
    rows = np.empty((height, 1 + stored.shape[1]), np.uint8)
    rows[:, 0], rows[:, 1:], left = _SUB, stored, 2 * channels
    rows[:, 1 + left :] -= stored[:, :-left]
    header = struct.pack(">IIBBBBB", width, height, 16, _COLOR_TYPES[channels], 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")):
        checksum = zlib.crc32(kind + body)
        data += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)
    return data
