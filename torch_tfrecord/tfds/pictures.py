"""Decode the images and audio of TFDS features, and convert bounding boxes to torchvision's
form.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

import torch_tfrecord.tfds.features as f
from torch_tfrecord.columns.media_decoders import decode_sound
from torch_tfrecord.columns.reading import Column, Want, read_each
from torch_tfrecord.columns.stacking import rows_of
from torch_tfrecord.columns.wav import read_wav
from torch_tfrecord.errors import ParseError
from torch_tfrecord.images.codec import decode_image, image_size
from torch_tfrecord.tfds.elements import BytesElement, Element
from torch_tfrecord.tfds.feature_base import Shape, fits
from torch_tfrecord.tfds.leaves import Leaf

__all__ = ["PIXEL_MODES", "BoxLeaf", "PictureElement", "sound_element"]

PIXEL_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Number of channels -> mode of `decode_image`, for uint8 images."""


class PictureElement(BytesElement):
    """An image: uint8, uint16, or float32 stored in the four bytes of RGBA pixels.

    Args:
        feature: Gives shape and dtype; a `LabeledImage` has class numbers as pixels.
        as_numpy_layout: Return plain tensors [H, W, C] instead of `tv_tensors.Image` or `Mask` [C,
            H, W].
        is_video: Join several images to a `tv_tensors.Video`.
    """

    def __init__(
        self, feature: f.Image | f.LabeledImage, as_numpy_layout: bool, is_video: bool = False
    ) -> None:
        super().__init__(what="Image")
        self.shape, self.dtype = feature.shape, getattr(torch, feature.dtype)
        self._is_numpy_layout = as_numpy_layout
        self._one = tv_tensors.Mask if isinstance(feature, f.LabeledImage) else tv_tensors.Image
        self._many = tv_tensors.Video if is_video else self._one

    def decode(self, data: bytes) -> torch.Tensor:
        """Decode one image."""
        pixels = self._pixels(data)
        channels, height, width = pixels.shape
        stored = (height, width, channels)
        if not fits(stored, self.shape):
            raise ParseError(
                f"expected an image of (height, width, channels) {self.shape}, got {stored}"
            )
        return pixels.permute(1, 2, 0).contiguous() if self._is_numpy_layout else self._one(pixels)

    def _pixels(self, data: bytes) -> torch.Tensor:
        channels = self.shape[-1]
        if self.dtype == torch.float32:
            rgba = decode_image(data, "RGBA").permute(1, 2, 0).contiguous()
            return rgba.view(torch.float32).permute(2, 0, 1)
        if self.dtype == torch.uint8 and channels in PIXEL_MODES:
            return decode_image(data, PIXEL_MODES[channels])
        pixels = decode_image(data, "unchanged").numpy()
        if self.dtype == torch.uint16:
            # as libpng expands 8 bits to 16
            pixels = pixels if pixels.dtype == np.uint16 else pixels.astype(np.uint16) * 257
        else:
            pixels = pixels if pixels.dtype == np.uint8 else (pixels >> 8).astype(np.uint8)
        return torch.from_numpy(_with_channels(pixels, channels))

    def join(self, items: list[Any]) -> Any:
        """Stack images of equal size; return an empty tensor if there are none."""
        stacked = super().join([item.as_subclass(torch.Tensor) for item in items])
        if not isinstance(stacked, torch.Tensor):
            return items
        return stacked if self._is_numpy_layout else self._many(stacked)

    def none(self) -> torch.Tensor:
        """Return an empty tensor in the layout of the images."""
        pixels = torch.empty(0, *(size or 0 for size in self.shape), dtype=self.dtype)
        return pixels if self._is_numpy_layout else pixels.permute(0, 3, 1, 2)


def _with_channels(pixels: npt.NDArray[Any], channels: int | None) -> npt.NDArray[Any]:
    """Convert the number of channels as TensorFlow does: repeat gray, drop alpha, or add an opaque
    alpha.
    """
    found = len(pixels)
    if channels is None or channels == found:
        return pixels
    color = pixels[:1] if found in (1, 2) else pixels[:3]
    opaque = np.full_like(pixels[:1], np.iinfo(pixels.dtype).max)
    if channels in (1, 2) and len(color) == 3:
        raise ParseError(f"expected {channels} channels, got a colour image")
    color = np.repeat(color, 3, axis=0) if channels >= 3 and len(color) == 1 else color
    return np.concatenate([color, opaque]) if channels in (2, 4) else np.ascontiguousarray(color)


def sound_element(feature: f.Audio, dtype: torch.dtype) -> BytesElement:
    """The element of an audio file: decoded to integers [T] or [T, channels], as stored, or of 16
    bits.
    """
    return BytesElement(functools.partial(_decode_sound, shape=feature.shape, dtype=dtype), "Audio")


def _decode_sound(data: bytes, *, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    view = memoryview(data)
    numbers = (read_wav(view) or decode_sound(view)).integers()
    channels, wanted = numbers.shape[1], shape[1] if len(shape) > 1 else 1
    if channels != wanted:
        raise ParseError(f"expected audio of {wanted} channels, got {channels}")
    tensor = torch.from_numpy(np.array(numbers))
    return (tensor if len(shape) > 1 else tensor[:, 0]).to(dtype)


class BoxLeaf(Leaf):
    """Reads boxes as `tv_tensors.BoundingBoxes`, in pixels of an image in the same record.

    Only the image's header is read, for its size: you need not choose the image, and it is not
    decoded. Without an image, relative boxes get a canvas of (1, 1), and others stay four plain
    numbers.

    Args:
        key, element, lengths: See `Leaf`.
        bbox_format: Name of the format in TFDS; None if unknown.
        image: How to find the image in the record; None if there is no image.
    """

    def __init__(
        self,
        key: str,
        element: Element,
        lengths: tuple[int | None, ...],
        bbox_format: str | None,
        image: Want | None,
    ) -> None:
        super().__init__(key, element, lengths)
        self._format, self._image = bbox_format, image
        self.wants = self.wants if image is None else (*self.wants, image)

    def _column(self, columns: Sequence[Column]) -> Any:
        boxes = self.read_own(columns if self._image is None else columns[:-1])
        if self._format is None or len(self.lengths) > 1:
            return boxes
        rows = rows_of(boxes)
        sizes = (
            [None] * len(rows)
            if self._image is None
            else read_each(_size_of, _only_values(columns[-1]))
        )
        if None in sizes and any(sizes):
            return [
                self._in_pixels([row], [size])[0] for row, size in zip(rows, sizes, strict=True)
            ]
        return (
            boxes
            if None in sizes and not self._format.startswith("REL_")
            else self._in_pixels(rows, sizes)
        )

    def _in_pixels(
        self, rows: Sequence[torch.Tensor], sizes: Sequence[tuple[int, int] | None]
    ) -> list[Any]:
        """Boxes of several records, either all with known image sizes, or all relative without an
        image.
        """
        bbox_format = str(self._format)
        if sizes[0] is None and not bbox_format.startswith("REL_"):
            return [*rows]
        parts = [row.numpy().reshape(-1, 4) for row in rows]
        counts, boxes = [*map(len, parts)], np.concatenate(parts)
        if bbox_format.endswith("YXYX"):
            boxes = boxes[:, [1, 0, 3, 2]]
        if bbox_format.startswith("REL_") and sizes[0] is not None:
            scales = np.array([size[::-1] * 2 for size in sizes if size is not None], boxes.dtype)
            boxes = boxes * scales.repeat(counts, axis=0)
        kind = "XYWH" if bbox_format == "XYWH" else "XYXY"
        found = zip(torch.split(torch.from_numpy(boxes), counts), sizes, strict=True)
        return [
            tv_tensors.BoundingBoxes(part, format=kind, canvas_size=size or (1, 1))
            for part, size in found
        ]


def _size_of(encoded: memoryview | None) -> tuple[int, int] | None:
    return None if encoded is None else image_size(encoded)


def _only_values(column: Column) -> list[memoryview | None]:
    """The string of each record; None if it has none or several."""
    views: list[memoryview | None] = [*column.views()]
    if len(column.offsets):
        return [views[begin] if end - begin == 1 else None for begin, end in column.bounds()]
    missing = np.zeros(len(views)) if column.missing is None else column.missing
    return [
        None if is_missing else view
        for view, is_missing in zip(views, missing.tolist(), strict=True)
    ]
