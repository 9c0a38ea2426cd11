"""Regions and crops of encoded images, decoded into the memory of a batch.

Baseline JPEG images are decoded by jobs of the core, which need no GIL: rows above a region are
skipped, rows below it never read, and the result is resized, mirrored, normalised and written to its
row. The pixels are those of the whole image, also the chroma at the region's edges, as a slightly
larger region is decoded. What a job leaves is decoded whole, here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import Ints, empty_bytes, reserve
from torch_tfrecord.errors import ImageDecodeError, ParseError, warn_once
from torch_tfrecord.media.codec import (
    CHANNELS,
    DEFAULT_MAX_PIXELS,
    EncodedImage,
    decode_by_header,
    image_size,
    open_image,
    turn_upright,
)
from torch_tfrecord.media.crops import CropPlan
from torch_tfrecord.native import native_module, optional_module

if TYPE_CHECKING:
    from torch_tfrecord.native.jpeg import CropJob

__all__ = [
    "Pixels",
    "Region",
    "StoredImage",
    "Table",
    "batch_tensor",
    "check_image_shape",
    "crop_job",
    "empty_batch",
    "image_sizes",
    "normalization",
    "place_pixels",
    "resizes_in_core",
    "run_job",
    "same_size",
    "value_table",
    "view_pixels",
]

Pixels: TypeAlias = "npt.NDArray[np.uint8]"
"""[H, W, C]."""
Region: TypeAlias = tuple[int, int, int, int]
"""A rectangle of an image, in pixels: top, left, height and width."""
Rows: TypeAlias = "npt.NDArray[Any]"
Table: TypeAlias = "npt.NDArray[np.float32]"
"""[C, 256]: what becomes of each channel and value of uint8 images, by an elementwise transform."""


def value_table(transform: Callable[[torch.Tensor], torch.Tensor], channels: int) -> Table:
    """The table of an elementwise transform of uint8 images.

    Args:
        transform: Maps an image [C, H, W] to one with the same number of channels.
        channels: C.

    Raises:
        ValueError: The transform does not return float32 [C, H, W].
    """
    every_value = torch.arange(256, dtype=torch.uint8, device="cpu").repeat(channels, 1, 1)
    result = transform(every_value)
    if result.dtype != torch.float32 or result.shape != every_value.shape:
        raise ValueError(
            f"expected float32 {list(every_value.shape)}, got {result.dtype} {list(result.shape)}"
        )
    return result.reshape(channels, 256).numpy()


def normalization(mean: Sequence[float], std: Sequence[float]) -> Table:
    """The table of torchvision's ``ToDtype(torch.float32, scale=True)`` and ``Normalize(mean,
    std)``, bit for bit.

    Args:
        mean, std: One number per channel, for values from 0 to 1.
    """

    from torchvision.transforms.v2 import functional

    def normalize(image: torch.Tensor) -> torch.Tensor:
        image = functional.to_dtype_image(image, torch.float32, scale=True)
        return functional.normalize_image(image, list(mean), list(std))

    return value_table(normalize, len(mean))


def empty_batch(number: int, size: tuple[int, int], channels: int, table: Table | None) -> Rows:
    """Allocate memory for `place_pixels`: uint8 [N, H, W, C], or with a table float32
    [N, C, H, W].
    """
    shape = (number, *size, channels) if table is None else (number, channels, *size)
    dtype = np.dtype(np.uint8 if table is None else np.float32)
    reserve(num_bytes := math.prod(shape) * dtype.itemsize)
    return empty_bytes(num_bytes).view(dtype).reshape(shape)


def batch_tensor(out: Rows) -> torch.Tensor:
    """An `empty_batch` as [N, C, H, W]."""
    # Transposed here, since each call of torch's gives Python's lock away.
    return torch.from_numpy(out if out.dtype == np.float32 else out.transpose(0, 3, 1, 2))


def place_pixels(
    pixels: Pixels,
    row: Rows,
    table: Table | None,
    *,
    across: bool = False,
    down: bool = False,
) -> None:
    """Copy uint8 [H, W, C], mirrored ``across`` and ``down``, to a row of an `empty_batch`."""
    pixels = pixels[:: -1 if down else 1, :: -1 if across else 1]
    if table is None:
        row[:] = pixels
        return
    for channel, values in enumerate(table):  # six times as fast as an index for all of them
        np.take(values, pixels[..., channel], out=row[channel], mode="clip")


def crop_job(
    images: Any,
    out: Rows,
    table: Table | None = None,
    *,
    buffer: Any = None,
    interpolation: str | None = None,
    max_pixels: int = sys.maxsize,
    **options: Any,
) -> CropJob | None:
    """A job of the core that crops images to an `empty_batch`, resized by ``interpolation`` unless that
    is None; None without the core, or for what it does not have. See `CropJob`.
    """
    native, (count, *sizes) = optional_module("jpeg"), out.shape
    height, width, channels = sizes if table is None else (*sizes[1:], sizes[0])
    if native is None or channels == CHANNELS["RGBA"] or not count:
        return None
    return native.CropJob(
        buffer,
        images,
        out.reshape(-1).view(np.uint8),
        (count, height, width, channels),
        table=table,
        max_pixels=max_pixels,
        resizes=interpolation is not None,
        bicubic=interpolation == "bicubic",
        **options,
    )


def run_job(job: CropJob | None) -> list[list[int]] | None:
    """Run a job of the core, if there is one: the height and width of each image, 0 for those that it has
    left.
    """
    if job is None:
        return None
    native_module("jobs").run([job])  # type: ignore[union-attr]
    if job.problem:
        warn_once(
            f"the compiled decoder of JPEG images fails ({job.problem}): another one decodes whole images, which takes "
            "longer. Is libjpeg the one that the package was built with? `tfrecord doctor` tries it."
        )
    return job.sizes.tolist()


def resizes_in_core(interpolation: object) -> bool:
    """Whether torch resizes uint8 with antialias by the kernel that the core has, too; on other
    processors torchvision resizes float32, which rounds differently, and so do we.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    return interpolation in ("bilinear", "bicubic") and capability in ("AVX2", "AVX512")


def decode_region(data: bytes | memoryview, mode: str, region: Region) -> Pixels | None:
    """Decode a region as uint8 [height, width, C], with C 1 for mode "L" and 3 for "RGB".

    Returns:
        The pixels; or None if the image must be decoded whole: another
        format or mode, progressive, CMYK, truncated, damaged, or no library for regions. Decoding
        it whole then finds any error.
    """
    if mode not in ("RGB", "L") or 0 in region[2:]:
        return None
    out = np.empty((1, *region[2:], CHANNELS[mode]), np.uint8)
    sizes = run_job(crop_job([data], out, plans=np.array([CropPlan(*region, *region[2:])])))
    return out[0] if sizes and sizes[0][0] else None


def image_sizes(images: Sequence[Any], max_pixels: int | None = None) -> Ints:
    """The stored (height, width) of images: int64 [N, 2].

    Args:
        images: The encoded images.
        max_pixels: The most of an image that is to be decoded: all are then checked as by `open_image`, else as by
            `image_size`.

    Raises:
        ImageDecodeError: The first bad image's.
    """
    # Reading a header in Python costs more than anything but decoding, so only those of doubtful images are.
    native, sizes = optional_module("jpeg"), np.zeros((len(images), 2), np.int64)
    if native is not None:
        sizes = native.plain_sizes(images, sys.maxsize if max_pixels is None else max_pixels)
    for number in np.flatnonzero(sizes[:, 0] == 0).tolist():
        sizes[number] = (
            image_size(images[number])
            if max_pixels is None
            else open_image(images[number], max_pixels)[1][1:3]
        )
    return sizes


def same_size(images: Sequence[Any], max_pixels: int) -> tuple[int, int] | None:
    """The stored height and width of images; None if there are none, or their sizes differ.

    Raises:
        ImageDecodeError: See `open_image`; not necessarily for the first bad image.
    """
    if not images:
        return None
    # All errors and sizes are found before memory is allocated.
    sizes = image_sizes(images, max_pixels)
    size: tuple[int, int] = tuple(sizes[0].tolist())
    return size if (sizes == size).all() else None


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
        if self._orientation == 1 and self._header.format == "jpeg":
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
    return image.permute(1, 2, 0).numpy()
