"""The reader of an Image: encoded bytes to a tv_tensors.Image, one or a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchvision import tv_tensors

from torch_tfrecord.batch_memory import empty_tensor
from torch_tfrecord.errors import ImageDecodeError, LimitExceededError
from torch_tfrecord.features.specs import Image
from torch_tfrecord.images.codec import DEFAULT_MAX_PIXELS, decode_image
from torch_tfrecord.images.regions import decode_stack
from torch_tfrecord.images.samples import CroppedImages, Normalization, check_image_shape
from torch_tfrecord.parsing.columns import Column, labelled
from torch_tfrecord.parsing.value_columns import OneValue

__all__ = ["ImageReader"]


class ImageReader(OneValue):
    """Reads an Image. With a random crop it takes the records' random keys: see `Reader`."""

    keyed = False

    def __init__(self, name: str, spec: Image) -> None:
        super().__init__(name, spec, spec.shape or ())
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
        """The batch's column: one tensor [N, C, H, W], or a list where sizes differ."""
        return labelled(self._want, self.from_values, columns[0].views(), self._shapes(columns), keys)

    def from_values(
        self, values: Sequence[Any], shapes: Sequence[tuple[Any, ...]], keys: Sequence[int] | None = None
    ) -> Any:
        """The column of several encoded images; arguments as of `OneValue`, and the records' keys."""
        if self._cropped is None:
            whole = self._stack(values, shapes)
            return super().from_values(values, shapes) if whole is None else whole
        return tv_tensors.Image(self._cropped.batch(values, shapes, [0] * len(values) if keys is None else keys))

    def _stack(self, values: Sequence[Any], shapes: Sequence[tuple[Any, ...]]) -> tv_tensors.Image | None:
        """Images of one size, decoded together; None where they are not, or something is wrong with one of them."""
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

    def _convert(self, data: memoryview, shape: tuple[Any, ...]) -> Any:
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
