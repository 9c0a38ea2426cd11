"""The Image spec, which decodes encoded bytes to tv_tensors.Image, and its reader."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torchvision import tv_tensors

from torch_tfrecord.batch_memory import empty_tensor
from torch_tfrecord.errors import ImageDecodeError, LimitExceededError
from torch_tfrecord.features.columns import Column, Reader, labelled
from torch_tfrecord.features.feature import Feature
from torch_tfrecord.features.one_value import OneValueReader, OneValueSpec, Shape
from torch_tfrecord.features.spec_checks import shape_with_names
from torch_tfrecord.features.steps import StepReader
from torch_tfrecord.images.codec import DEFAULT_MAX_PIXELS, decode_image
from torch_tfrecord.images.crops import Crop
from torch_tfrecord.images.regions import decode_stack
from torch_tfrecord.images.samples import CroppedImages, Normalization, check_image_shape

__all__ = ["Image", "ImageReader"]

_CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4, "unchanged": None}


@dataclass(frozen=True, repr=False)
class Image(OneValueSpec, Feature):
    """An encoded image (JPEG, PNG, GIF, BMP, WebP), decoded to a ``torchvision.tv_tensors.Image``.

    A sample is uint8 [C, H, W], values 0 to 255; a batch is one image tensor [B, C, H, W] if all sizes are equal, else
    a list. With ``crop``, all images have the crop's size, and a batch is decoded straight into its tensor, decoding
    only the region that the crop needs: see docs/images.md.

    Args:
        mode: "RGB", "L" (gray), "RGBA" or "unchanged" (the stored channels).
        key: Name of the feature in the record, if it differs from the output's name.
        shape: Expected shape of the decoded image before any crop, as (height, width, channels); an entry is an int,
            None (not checked) or the key of another feature of the record that holds one integer. A mismatch raises
            ParseError.
        apply_orientation: Rotate and flip the image according to its EXIF orientation; TensorFlow does not.
        crop: A :class:`RandomResizedCrop` or :class:`ResizedCenterCrop`; not for mode "unchanged".
        normalize: (mean, std), one number per channel, for values from 0 to 1: returns float32 like torchvision's
            ``ToDtype(torch.float32, scale=True)`` and ``Normalize(mean, std)``. Not for mode "unchanged".
        max_pixels: Maximum height times width, of the stored image and of the size a crop resizes it to; more raises
            ImageDecodeError before memory is allocated. None means 178,956,970, or a quarter of that for whole images
            with ``normalize``, as a float32 takes four bytes.

    Raises:
        TypeError: An entry of ``shape``, ``crop`` or ``max_pixels`` has the wrong type.
        ValueError: The mode is unknown, the shape does not have three entries, ``normalize`` does not fit the mode, or
            ``max_pixels`` is below 1 or below the crop's size.

    Example:
        >>> Image(key="image/encoded", shape=("image/height", "image/width", 3))
        Image(key='image/encoded', shape=('image/height', 'image/width', 3))
    """

    mode: str = "RGB"
    shape: tuple[int | str | None, ...] | None = field(default=None, kw_only=True)
    apply_orientation: bool = field(default=False, kw_only=True)
    crop: Crop | None = field(default=None, kw_only=True)
    normalize: tuple[Sequence[float], Sequence[float]] | None = field(default=None, kw_only=True)
    max_pixels: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.mode not in _CHANNELS:
            raise ValueError(f"mode must be one of {', '.join(map(repr, _CHANNELS))}, got {self.mode!r}")
        if self.crop is not None and not isinstance(self.crop, Crop):
            raise TypeError(f"crop must be a RandomResizedCrop or ResizedCenterCrop, got {type(self.crop).__name__}")
        channels = _CHANNELS[self.mode]
        if channels is None and (self.crop is not None or self.normalize is not None):
            raise ValueError("crop and normalize need one number of channels: mode must not be 'unchanged'")
        if channels is not None and self.normalize is not None:
            object.__setattr__(self, "normalize", _mean_and_std(self.normalize, channels))
        if self.shape is not None:
            shape = shape_with_names(self.shape, "an int, None or the key of a feature", unknown=None)
            if len(shape) != 3:
                raise ValueError(f"shape must be (height, width, channels), got {shape!r}")
            object.__setattr__(self, "shape", shape)
        if self.max_pixels is not None:
            _check_max_pixels(self.max_pixels, self.crop)

    def reader(self, name: str, *, pads: bool = False) -> ImageReader:
        """Build the reader for Examples."""
        return ImageReader(name, self)

    def context_reader(self, name: str) -> Reader:
        """Build the reader for a context; random crops are not supported."""
        self._check_no_draw(name)
        return self.reader(name)

    def step_reader(self, name: str, *, pads: bool = False) -> StepReader:
        """Build the reader for a feature list; random crops are not supported."""
        self._check_no_draw(name)
        return super().step_reader(name, pads=pads)

    def _check_no_draw(self, name: str) -> None:
        if self.crop is not None and self.crop.is_random:
            raise ValueError(
                f"crop of {name!r}: images of a SequenceExample have no random crop (all steps would need the same "
                "one); crop them in the transform"
            )


def _check_max_pixels(max_pixels: object, crop: Crop | None) -> None:
    if isinstance(max_pixels, bool) or not isinstance(max_pixels, int):
        raise TypeError(f"max_pixels must be an int or None, got {max_pixels!r}")
    least = 1 if crop is None else crop.size[0] * crop.size[1]
    if max_pixels < least:
        what = "1" if crop is None else f"the crop's {crop.size[0]} x {crop.size[1]} = {least} pixels"
        raise ValueError(f"max_pixels must be at least {what}, got {max_pixels}")


def _mean_and_std(value: object, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Check (mean, std): one number per channel, and no std of 0."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"normalize must be (mean, std), got {value!r}")
    mean, std = (tuple(map(float, numbers)) for numbers in value)
    if len(mean) != channels or len(std) != channels:
        raise ValueError(f"normalize must have {channels} means and {channels} deviations, got {value!r}")
    if not all(map(math.isfinite, mean + std)) or 0 in std:
        raise ValueError(f"normalize must have finite means and deviations other than 0, got {value!r}")
    return mean, std


class ImageReader(OneValueReader):
    """Reads an Image. With a random crop, it takes the records' random keys: see `Reader`."""

    keyed = False

    def __init__(self, name: str, spec: Image) -> None:
        super().__init__(name, spec, self._read_one, spec.shape or ())
        self._mode, self._apply_orientation = spec.mode, spec.apply_orientation
        self._normalization = None if spec.normalize is None else Normalization(*spec.normalize)
        self._max_pixels = _max_pixels(spec)
        self._cropped: CroppedImages | None = None
        if spec.crop is not None:
            self.keyed = spec.crop.is_random
            self._cropped = CroppedImages(
                spec.mode,
                spec.crop,
                self._normalization,
                apply_orientation=spec.apply_orientation,
                max_pixels=self._max_pixels,
            )

    def read(self, columns: Sequence[Column], keys: Sequence[int] | None = None) -> Any:
        """The batch's column: one tensor [N, C, H, W], or a list if sizes differ."""
        return labelled(self._want, self.from_values, columns[0].views(), self._shapes(columns), keys)

    def from_values(self, values: Sequence[Any], shapes: Sequence[Shape], keys: Sequence[int] | None = None) -> Any:
        """The column of several encoded images; arguments as in `OneValueReader`, and the records' keys."""
        if self._cropped is None:
            whole = self._stack(values, shapes)
            return super().from_values(values, shapes) if whole is None else whole
        return tv_tensors.Image(self._cropped.batch(values, shapes, [0] * len(values) if keys is None else keys))

    def _stack(self, values: Sequence[Any], shapes: Sequence[Shape]) -> tv_tensors.Image | None:
        """Decode images of equal size together; None if sizes differ, or an image cannot be decoded."""
        is_plain = self._normalization is None and not self._apply_orientation and self._mode in ("RGB", "L")
        if len(values) < 2 or not is_plain or self._max_pixels != DEFAULT_MAX_PIXELS:
            return None
        try:
            pixels = decode_stack([*map(bytes, values)], self._mode, range(len(values)), len(values))
        except (ImageDecodeError, LimitExceededError):
            return None
        if pixels is None:
            return None
        _, channels, height, width = pixels.shape
        for shape in shapes:
            check_image_shape(shape, (height, width, channels))
        return tv_tensors.Image(pixels)

    def _read_one(self, data: memoryview, shape: Shape) -> Any:
        pixels = decode_image(data, self._mode, apply_orientation=self._apply_orientation, max_pixels=self._max_pixels)
        channels, height, width = pixels.shape
        check_image_shape(shape, (height, width, channels))
        if self._normalization is not None:
            pixels = self._normalization.write(
                pixels.permute(1, 2, 0).numpy(), empty_tensor(tuple(pixels.shape), torch.float32)
            )
        return tv_tensors.Image(pixels)


def _max_pixels(spec: Image) -> int:
    if spec.max_pixels is not None:
        return spec.max_pixels
    return DEFAULT_MAX_PIXELS // 4 if spec.normalize is not None and spec.crop is None else DEFAULT_MAX_PIXELS
