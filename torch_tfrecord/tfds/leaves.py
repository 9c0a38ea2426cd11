"""One leaf of the feature tree, read from a record: an element alone, in a sequence, or in ragged rows.

Where the values lie is decided by the keys that are in the record, since TFDS itself does not tell::

    k                                                        one list: an element, or those of a sequence
    k/ragged_flat_values, k/ragged_row_lengths_0, ...        sequences in sequences, outermost lengths first
    k/shape, k/value                                         tensors of two or more unknown sizes, and their shapes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from torch_tfrecord.errors import ImageDecodeError, LimitExceededError, ParseError
from torch_tfrecord.features.specs import mark_ragged
from torch_tfrecord.images.codec import image_size
from torch_tfrecord.parsing.wants import Want
from torch_tfrecord.protobuf.example import to_array
from torch_tfrecord.tfds.elements import Element, EncodedTensor
from torch_tfrecord.values.containers import Nested, offsets_of, split_lists, wrap_nested
from torch_tfrecord.values.dtypes import BYTES_LIST, INT64_LIST

__all__ = ["BoxLeaf", "Leaf"]


class Leaf:
    """Reads one leaf.

    Args:
        key: Its key in the record: the names from the root, joined by "/".
        element: What one value is.
        lengths: One for each sequence around it, outermost first: a fixed length, or None.
        is_optional: Whether a record may lack it.
        default: The value where an optional one is lacking.
    """

    def __init__(
        self,
        key: str,
        element: Element,
        lengths: tuple[int | None, ...] = (),
        *,
        is_optional: bool = False,
        default: Any = None,
    ) -> None:
        self.key, self.element, self.lengths = key, element, lengths
        self._is_optional, self._default = is_optional, default
        self._list = Want(key, key, element.kind, element.what)
        self._flat = Want(key, f"{key}/ragged_flat_values", element.kind, element.what)
        levels = range(len(lengths) - 1)
        self._row_lengths = [Want(key, f"{key}/ragged_row_lengths_{level}", INT64_LIST, "sizes") for level in levels]
        self._shapes = Want(key, f"{key}/shape", INT64_LIST, "sizes")
        self._values = Want(key, f"{key}/value", BYTES_LIST, element.what)

    @property
    def keys(self) -> list[str]:
        """All keys of a record that may hold it."""
        lookups = (self._list, self._flat, *self._row_lengths, self._shapes, self._values)
        return [lookup.key for lookup in lookups]

    def sample(self, record: Mapping[str, Any]) -> Any:
        """The value of a record, which is the map of key to Feature message.

        Raises:
            TFRecordError: The record lacks it, or holds something else; names the feature.
        """
        try:
            return self._read(record)
        except (ParseError, ImageDecodeError, LimitExceededError) as error:
            if str(error.args[0]).startswith("feature "):
                raise
            raise self._list.labelled(error) from (error.__cause__ or error)

    def _read(self, record: Mapping[str, Any]) -> Any:
        found = self._list.find(record)
        if found is not None:
            return self._plain(self._values_of(found))
        if len(self.lengths) > 1 and self._row_lengths[0].key in record:
            return self._ragged(record)
        if self._shapes.key in record:
            return self._shaped(record)
        if self._is_optional and not self.lengths:
            return self._default
        if self.lengths and self.key not in record:
            return self._plain(self._values_of(None))  # as TFDS: a sequence that is missing is empty
        raise self._list.missing(record)

    def _values_of(self, found: Any) -> Any:
        if self.element.kind is BYTES_LIST:
            return [] if found is None else list(found.value)
        if found is None:
            return np.zeros(0, np.int64 if self.element.kind is INT64_LIST else np.float32)
        return to_array(found)

    def _plain(self, values: Any) -> Any:
        if not self.lengths:
            return self.element.one(values)
        rows = self._many(values)
        if len(self.lengths) > 1:
            return self._nest_static(rows)
        self._check_length(len(rows), self.lengths[0])
        if self.lengths[0] is None and isinstance(rows, torch.Tensor) and rows.dim() == 1:
            return mark_ragged(rows)
        return rows

    def _many(self, values: Any) -> Any:
        if self.element.count is None and not len(values):
            return self._no_rows()
        return self.element.many(values)

    def _no_rows(self) -> Any:
        shape = getattr(self.element, "shape", ())
        dtype = getattr(self.element, "dtype", None)
        return [] if dtype is None else torch.empty(0, *(size or 0 for size in shape), dtype=dtype)

    def _nest_static(self, rows: Any) -> Any:
        """Sequences in sequences in one list: the lengths must be those of the tree."""
        splits: list[list[int]] = []
        total = len(rows)
        for length in reversed(self.lengths[1:]):
            if (not length or total % length) and total:
                raise ParseError(f"expected rows of the lengths {self.lengths}, got {len(rows)} values")
            total = total // length if length else 0
            splits.insert(0, [length or 0] * total)
        self._check_length(total, self.lengths[0])
        return self._nest(rows, splits)

    def _ragged(self, record: Mapping[str, Any]) -> Any:
        rows = self._many(self._values_of(self._flat.find(record)))
        row_lengths = [to_array(lookup.require(record)).tolist() for lookup in self._row_lengths]
        counts = [len(lengths) for lengths in row_lengths[1:]] + [len(rows)]
        for level, (lengths, count) in enumerate(zip(row_lengths, counts, strict=True)):
            if min(lengths, default=0) < 0 or sum(lengths) != count:
                raise ParseError(f"expected row lengths of level {level} that sum to {count}, got {sum(lengths)}")
            for length in lengths if self.lengths[level + 1] is not None else ():
                self._check_length(length, self.lengths[level + 1])
        self._check_length(len(row_lengths[0]), self.lengths[0])
        return self._nest(rows, row_lengths)

    def _nest(self, rows: Any, row_lengths: Sequence[Sequence[int]]) -> Any:
        splits = [offsets_of(lengths) for lengths in row_lengths]
        if isinstance(rows, torch.Tensor):
            return wrap_nested(Nested(rows.as_subclass(torch.Tensor), tuple(splits)))
        return split_lists(rows, [split.tolist() for split in splits])

    def _shaped(self, record: Mapping[str, Any]) -> Any:
        element = self.element
        if not isinstance(element, EncodedTensor):
            raise ParseError(f"expected a list under {self.key!r}, got a shape and a value")
        values = list(self._values.require(record).value)
        rank = len(element.shape)
        sizes = to_array(self._shapes.require(record)).reshape(-1)
        if len(sizes) != rank * len(values) or (not self.lengths and len(values) != 1) or (sizes < 0).any():
            raise ParseError(f"expected {rank} sizes for each value, got {len(sizes)} for {len(values)} values")
        shapes = [tuple(map(int, shape)) for shape in sizes.reshape(len(values), rank)]
        items = [element.decode_shaped(value, shape) for value, shape in zip(values, shapes, strict=True)]
        if not self.lengths:
            return items[0]
        if len(self.lengths) > 1:
            raise ParseError("expected tensors of unknown shape in one sequence at most")
        self._check_length(len(items), self.lengths[0])
        return element.join(items)

    def _check_length(self, found: int, expected: int | None) -> None:
        if expected is not None and found != expected:
            raise ParseError(f"expected {expected} values in the sequence, got {found}")


class BoxLeaf(Leaf):
    """Reads boxes as `tv_tensors.BoundingBoxes`, in pixels of an image of the same record.

    The image's size is read from its header: the image need not be asked for, and is not decoded. Without an image
    relative boxes are in a canvas of (1, 1), and others the plain four numbers.

    Args:
        key: As of `Leaf`.
        element: As of `Leaf`.
        lengths: As of `Leaf`.
        bbox_format: TFDS's name; None where it is not known.
        image_key: Of the image; None where there is none.
    """

    def __init__(
        self,
        key: str,
        element: Element,
        lengths: tuple[int | None, ...],
        bbox_format: str | None,
        image_key: str | None,
    ) -> None:
        super().__init__(key, element, lengths)
        self._format = bbox_format
        self._image = None if image_key is None else Want(key, image_key, BYTES_LIST, "Image")

    @property
    def keys(self) -> list[str]:
        """Also the image's."""
        return super().keys if self._image is None else [*super().keys, self._image.key]

    def _read(self, record: Mapping[str, Any]) -> Any:
        boxes = super()._read(record)
        if self._format is None or boxes.is_nested or len(self.lengths) > 1:
            return boxes
        relative = self._format.startswith("REL_")
        size = self._canvas(record)
        if size is None and not relative:
            return boxes
        height, width = size or (1, 1)
        if self._format.endswith("YXYX"):
            boxes = boxes[..., [1, 0, 3, 2]]
        if relative and size is not None:
            boxes = boxes * torch.tensor([width, height, width, height], dtype=boxes.dtype)
        kind = "XYWH" if self._format == "XYWH" else "XYXY"
        return tv_tensors.BoundingBoxes(boxes, format=kind, canvas_size=(height, width))

    def _canvas(self, record: Mapping[str, Any]) -> tuple[int, int] | None:
        found = None if self._image is None else self._image.find(record)
        if found is None or len(found.value) != 1:
            return None
        return image_size(found.value[0])
