"""Boxes as torchvision's transforms take them: in pixels of an image of the same record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from torch_tfrecord.features.columns import Column, Want, read_each
from torch_tfrecord.images.codec import image_size
from torch_tfrecord.tfds.elements import Element
from torch_tfrecord.tfds.leaves import Leaf
from torch_tfrecord.values.stacking import rows_of

__all__ = ["BoxLeaf"]


class BoxLeaf(Leaf):
    """Reads boxes as `tv_tensors.BoundingBoxes`, in pixels of an image of the same record.

    The image's size is read from its header: the image need not be asked for, and is not decoded. Without an image
    relative boxes are in a canvas of (1, 1), and others the plain four numbers.

    Args:
        key: As of `Leaf`.
        element: As of `Leaf`.
        lengths: As of `Leaf`.
        bbox_format: TFDS's name; None where it is not known.
        image: What is wanted of the image: any number of values, or one; None where there is none.
    """

    def __init__(
        self, key: str, element: Element, lengths: tuple[int | None, ...], bbox_format: str | None, image: Want | None
    ) -> None:
        super().__init__(key, element, lengths)
        self._format, self._image = bbox_format, image
        self.wants = self.wants if image is None else (*self.wants, image)

    def _column(self, columns: Sequence[Column]) -> Any:
        boxes = self.read_own(columns if self._image is None else columns[:-1])
        if self._format is None or len(self.lengths) > 1:
            return boxes
        rows = rows_of(boxes)
        sizes = [None] * len(rows) if self._image is None else read_each(_size_of, _only_values(columns[-1]))
        if None in sizes and any(sizes):
            return [self._in_pixels([row], [size])[0] for row, size in zip(rows, sizes, strict=True)]
        return boxes if None in sizes and not self._format.startswith("REL_") else self._in_pixels(rows, sizes)

    def _in_pixels(self, rows: Sequence[torch.Tensor], sizes: Sequence[tuple[int, int] | None]) -> list[Any]:
        """Boxes of several records: of images whose sizes are all known, or relative ones of none."""
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
        return [tv_tensors.BoundingBoxes(part, format=kind, canvas_size=size or (1, 1)) for part, size in found]


def _size_of(encoded: memoryview | None) -> tuple[int, int] | None:
    return None if encoded is None else image_size(encoded)


def _only_values(column: Column) -> list[memoryview | None]:
    """Each record's string; None where it has none or several."""
    views: list[memoryview | None] = [*column.views()]
    if len(column.offsets):
        return [views[begin] if end - begin == 1 else None for begin, end in column.bounds()]
    missing = np.zeros(len(views)) if column.missing is None else column.missing
    return [None if is_missing else view for view, is_missing in zip(views, missing.tolist(), strict=True)]
