"""Turn encoded images into training inputs: cropped, resized, optionally flipped and normalised,
one or a batch.

The crop is drawn from the size in the header, only its region is decoded if possible, resized once
in uint8, and written straight to its row of the batch. A sample is the row of a batch of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from torch_tfrecord.batch_memory import empty_tensor
from torch_tfrecord.errors import ImageDecodeError, ParseError
from torch_tfrecord.images.codec import (
    CHANNELS,
    DEFAULT_MAX_PIXELS,
    EncodedImage,
    decode_opened,
    open_image,
    turn_upright,
)
from torch_tfrecord.images.crops import Crop
from torch_tfrecord.images.regions import Region, Scratch, decode_region
from torch_tfrecord.native import optional_module

__all__ = [
    "CroppedImages",
    "Normalization",
    "StoredImage",
    "ValueTable",
    "check_image_shape",
    "empty_batch",
    "place_pixels",
]

_Pixels: TypeAlias = "npt.NDArray[np.uint8]"  # [H, W, C]


class ValueTable:
    """A lookup table of an elementwise transform of uint8 images: a float32 for each channel and
    value.

    Args:
        transform: Maps an image [C, H, W] to one with the same number of channels.
        channels: C.

    Raises:
        ValueError: The transform does not return float32 [C, H, W].
    """

    def __init__(self, transform: Callable[[torch.Tensor], torch.Tensor], channels: int) -> None:
        every_value = torch.arange(256, dtype=torch.uint8, device="cpu").repeat(channels, 1, 1)
        result = transform(every_value)
        if result.dtype != torch.float32 or result.shape != every_value.shape:
            raise ValueError(
                f"expected float32 {list(every_value.shape)}, got {result.dtype} {list(result.shape)}"
            )
        self._table = result.reshape(channels, 256).numpy()

    def write(self, pixels: _Pixels, out: torch.Tensor, *, flip: bool = False) -> torch.Tensor:
        """Write uint8 [H, W, C], mirrored if ``flip``, to contiguous float32 [C, H, W]."""
        native = optional_module("pixels")
        if native is None:
            out.numpy()[:] = self._table[
                np.arange(len(out)), pixels[:, :: -1 if flip else 1]
            ].transpose(2, 0, 1)
        else:
            native.place_normalized(np.ascontiguousarray(pixels), flip, self._table, out.numpy())
        return out


class Normalization(ValueTable):
    """torchvision's ``ToDtype(torch.float32, scale=True)`` and ``Normalize(mean, std)``, bit for
    bit.

    Args:
        mean, std: One number per channel, for values from 0 to 1.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        def normalized(image: torch.Tensor) -> torch.Tensor:
            image = functional.to_dtype_image(image, torch.float32, scale=True)
            result: torch.Tensor = functional.normalize_image(image, list(mean), list(std))
            return result

        super().__init__(normalized, len(mean))


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
        self._encoded, self._header = open_image(data, max_pixels)
        self._mode, self._orientation = mode, self._header.orientation if apply_orientation else 1
        self.height, self.width = self._header.height, self._header.width
        if self._orientation >= 5:
            self.height, self.width = self.width, self.height
        check_image_shape(shape, (self.height, self.width, CHANNELS[mode]))

    def pixels(self, region: Region, scratch: Scratch) -> _Pixels:
        """Decode a region as uint8 [height, width, C], possibly in ``scratch``.

        Raises:
            ImageDecodeError: The image cannot be decoded, or its size differs from its header.
        """
        if self._orientation == 1:
            pixels = decode_region(self._encoded, self._header, self._mode, region, scratch)
            if pixels is not None:
                return pixels
        image = decode_opened(self._encoded, self._header, self._mode)
        whole = _pixels(image if self._orientation == 1 else turn_upright(image, self._orientation))
        if whole.shape[:2] != (self.height, self.width):
            raise ImageDecodeError(
                f"expected an image of {self.height} x {self.width} pixels, got {whole.shape[:2]}"
            )
        return whole[
            region.top : region.top + region.height, region.left : region.left + region.width
        ]


class CroppedImages:
    """Decodes and crops images to one size. Safe from several threads.

    Args:
        mode: "RGB", "L" or "RGBA".
        crop: The crop of each image.
        normalization: None for uint8.
        apply_orientation: Apply the EXIF orientation of each image before it is cropped.
        max_pixels: Maximum height times width, of an image and of its resized form.
    """

    def __init__(
        self,
        mode: str,
        crop: Crop,
        normalization: Normalization | None = None,
        *,
        apply_orientation: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> None:
        self._mode, self._crop, self._normalization = mode, crop, normalization
        self._apply_orientation, self._max_pixels = apply_orientation, max_pixels

    def batch(
        self,
        values: Sequence[EncodedImage],
        shapes: Sequence[tuple[object, ...]],
        keys: Sequence[int],
    ) -> torch.Tensor:
        """Decode several images.

        Args:
            values: Encoded images, bytes or memoryviews; not kept.
            shapes: Expected (height, width, channels) of each before cropping; see
                :func:`check_image_shape`.
            keys: The random key of each, which determines its crop.

        Returns:
            uint8 [B, C, H, W] in [B, H, W, C] memory ("channels last"), or float32 [B, C, H, W],
            contiguous.
        """
        out = empty_batch(len(values), self._crop.size, CHANNELS[self._mode], self._normalization)
        scratch = Scratch()
        for row, data, shape, key in zip(out.unbind(), values, shapes, keys, strict=True):
            self._write(data, shape, int(key), row, scratch)
        return out

    def _write(
        self,
        data: EncodedImage,
        shape: tuple[object, ...],
        key: int,
        row: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        image = StoredImage(
            data,
            self._mode,
            shape=shape,
            apply_orientation=self._apply_orientation,
            max_pixels=self._max_pixels,
        )
        plan = self._crop.plan(image.height, image.width, key)
        pixels = image.pixels(Region(plan.top, plan.left, plan.height, plan.width), scratch)
        pixels = _resize(pixels, plan.resized, self._crop, self._max_pixels)
        if plan.resized != self._crop.size:
            (height, width), top, left = self._crop.size, plan.window_top, plan.window_left
            pixels = pixels[top : top + height, left : left + width]
        place_pixels(pixels, row, self._normalization, flip=plan.flip)


def check_image_shape(expected: tuple[object, ...], stored: tuple[int, ...]) -> None:
    """Check (height, width, channels) against a spec; None matches any size, and an empty shape any
    image.

    Raises:
        ParseError: The shapes differ.
    """
    if any(wanted not in (None, size) for wanted, size in zip(expected, stored, strict=False)):
        raise ParseError(f"expected an image of (height, width, channels) {expected}, got {stored}")


def empty_batch(
    number: int, size: tuple[int, int], channels: int, table: ValueTable | None
) -> torch.Tensor:
    """Allocate memory for `place_pixels`: [B, C, H, W], float32, or uint8 in [B, H, W, C]
    memory.
    """
    if table is None:
        return empty_tensor((number, *size, channels), torch.uint8).permute(0, 3, 1, 2)
    return empty_tensor((number, channels, *size), torch.float32)


def place_pixels(
    pixels: _Pixels, row: torch.Tensor, table: ValueTable | None = None, *, flip: bool
) -> None:
    """Copy uint8 [H, W, C], mirrored if ``flip``, to a row of an `empty_batch`."""
    native = optional_module("pixels")
    if table is not None:
        table.write(pixels, row, flip=flip)
    elif native is None:
        _pixels(row)[:] = pixels[:, :: -1 if flip else 1]
    else:
        native.place(np.ascontiguousarray(pixels), flip, _pixels(row))


def _pixels(image: torch.Tensor) -> _Pixels:
    """View [C, H, W] as [H, W, C]."""
    pixels: _Pixels = image.permute(1, 2, 0).numpy()
    return pixels


def _resize(pixels: _Pixels, size: tuple[int, int], crop: Crop, max_pixels: int) -> _Pixels:
    """Resize [H, W, C] as torchvision's resize does."""
    height, width, channels = pixels.shape
    if (height, width) == size:
        return pixels
    if size[0] * size[1] > max_pixels:
        raise ImageDecodeError(
            f"expected at most {max_pixels} pixels after resizing, got {height} x {width} resized to "
            f"{size[0]} x {size[1]}"
        )
    image = torch.from_numpy(np.ascontiguousarray(pixels))  # resizing is fastest on this layout
    if not (crop.antialias and crop.interpolation in ("bilinear", "bicubic") and _resizes_uint8()):
        mode = InterpolationMode(crop.interpolation)
        slow = functional.resize_image(
            image.permute(2, 0, 1), [*size], interpolation=mode, antialias=crop.antialias
        )
        return _pixels(slow)
    # What torchvision's resize calls. The first stride is explicit, else torch takes the batch of
    # one for contiguous.
    image = image.as_strided(
        (1, channels, height, width), (height * width * channels, 1, width * channels, channels)
    )
    resized = torch.nn.functional.interpolate(
        image, size=size, mode=crop.interpolation, align_corners=False, antialias=True
    )
    return _pixels(resized[0])


def _resizes_uint8() -> bool:
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
