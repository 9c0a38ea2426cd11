"""Read one leaf of the feature tree from records: a single element, a sequence, or ragged rows.

TFDS does not declare the storage form, so the keys in the record decide::

    k                                                        one list: an element, or those of a sequence
    k/ragged_flat_values, k/ragged_row_lengths_0, ...        nested sequences, outermost lengths first
    k/shape, k/value                                         tensors of two or more unknown sizes, and their shapes

Records in the same form are read together, others one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from torch_tfrecord.batch_memory import OBJECT_BYTES, TENSOR_BYTES, Ints, reserve, splits_of
from torch_tfrecord.columns import Column, Want, nest_rows, reserve_for_values, rows_of
from torch_tfrecord.errors import ImageDecodeError, LimitExceededError, ParseError, read_each
from torch_tfrecord.media import image_size
from torch_tfrecord.tfds.elements import Element, EncodedTensor

__all__ = ["MAX_LENGTH", "BoxLeaf", "Leaf"]

_THERE, _LACKING = 0, 1  # the values of Column.missing
MAX_LENGTH = 1 << 33
"""More than a record can hold, since protobuf limits messages to 2 GiB."""


class Leaf:
    """A `Reader` of one leaf; its column is a tensor if `collate` would stack the records' values
    to one.

    Args:
        key: Its key in the record: the names from the root, joined by "/".
        element: How to decode one value.
        lengths: One entry per sequence around it, outermost first: a fixed length, or None.
        is_optional: Whether a record may lack it.
        default: The value for a missing optional leaf.

    Attributes:
        wants: All keys of a record that may hold it.
    """

    def __init__(
        self,
        key: str,
        element: Element,
        lengths: tuple[int | None, ...] = (),
        *,
        is_optional: bool = False,
        default: object = None,
    ) -> None:
        self.key, self.element, self.lengths = key, element, lengths
        self._is_optional, self._default = is_optional, default

        values, sizes = (element.stored, element.what), (torch.int64, "sizes")
        lists = {"": values}
        if len(lengths) > 1:
            lists["/ragged_flat_values"] = values
            lists |= {f"/ragged_row_lengths_{level}": sizes for level in range(len(lengths) - 1)}
        self._ragged_places = slice(1, len(lists))
        self._shape_place = len(lists) if isinstance(element, EncodedTensor) else None
        if self._shape_place is not None:
            lists |= {"/shape": sizes, "/value": values}
        self.wants = tuple(Want(key, key + suffix, *of) for suffix, of in lists.items())

    def read(self, columns: Sequence[Column]) -> object:
        """Read the batch's column.

        Raises:
            TFRecordError: The leaf is missing from a record, or has another type or shape; names
                the feature.
        """
        try:
            return self.read_own(columns)
        except (ParseError, ImageDecodeError, LimitExceededError) as error:
            if str(error.args[0]).startswith("feature "):
                raise
            raise self.wants[0].labelled(error) from (error.__cause__ or error)

    def read_own(self, columns: Sequence[Column]) -> object:
        """`read`, with errors that do not name the feature."""
        num_records = len(columns[0].offsets) - 1
        # Elements that are decoded one by one, in nested rows, are nested record by record.
        is_joint = self.element.is_joint or len(self.lengths) < 2 or num_records == 1
        # The usual case of a batch: all records have the plain list.
        if is_joint and num_records and columns[0].missing is None:
            return self._plain(columns)
        states = [
            [_THERE] * num_records if column.missing is None else column.missing.tolist()
            for column in columns
        ]
        forms = [self._form(*state) for state in zip(*states, strict=True)]
        if is_joint and len({*forms}) == 1:
            return forms[0](columns)
        return read_each(
            # Records of different forms: each is a batch of one.
            lambda row: rows_of(forms[row]([column.part(row, row + 1) for column in columns]))[0],
            range(num_records),
        )

    def _form(self, *missing: int) -> Callable[[Sequence[Column]], object]:
        """How to read a record, by which of its keys are missing."""
        if missing[0] == _THERE:
            return self._plain
        if len(self.lengths) > 1 and missing[2] != _LACKING:
            return self._ragged
        if self._shape_place is not None and missing[self._shape_place] != _LACKING:
            return self._shaped
        # As in TFDS, a missing sequence is empty; only an element has a default.
        if self._is_optional and not self.lengths:
            return self._defaults
        if self.lengths and missing[0] == _LACKING:
            return self._plain
        raise self.wants[0].lacking()

    def _defaults(self, columns: Sequence[Column]) -> object:
        return [self._default] * (len(columns[0].offsets) - 1)

    def _values(self, column: Column) -> Any:
        return column.strings(bytes) if self.element.stored is bytes else column.values

    def _plain(self, columns: Sequence[Column]) -> object:
        column, element = columns[0], self.element
        values, counts = self._values(column), _counts(column)
        # Strings are reserved for by what decodes them.
        if isinstance(values, np.ndarray):
            reserve_for_values(self.wants[0], values.nbytes, column.offsets)
        if not self.lengths:
            # Elements of an unknown size may differ: then each record is decoded on its own.
            if (counts == counts[0]).all():
                return element.each(values, len(counts))
            return [element.each(values[begin:end], 1)[0] for begin, end in column.bounds()]
        if len(self.lengths) == 1 and not element.is_joint:
            return read_each(lambda ends: self._sequence(values[slice(*ends)]), column.bounds())
        rows, totals = self._rows(values, counts)
        return self._nested(rows, self._static_lengths(totals))

    def _sequence(self, values: object) -> object:
        rows = self.element.many(values)
        self._check_lengths(np.array([len(rows)]))
        return rows

    def _rows(self, values: Any, counts: Ints) -> tuple[Any, Ints]:
        """All elements of the records, and the number in each."""
        count = self.element.count or 1
        # The first bad record alone gives the error that a sample of it would.
        wrong = counts[counts % count != 0]
        return self.element.many(values[: wrong[0]] if len(wrong) else values), counts // count

    def _static_lengths(self, totals: Ints) -> list[Ints]:
        """Lengths (see `_nest`) of nested sequences stored in one list, which must match those of
        the tree.

        Args:
            totals: Number of elements in each record.
        """
        levels: list[Ints] = []
        found = totals
        # From the innermost rows outwards.
        for length in reversed(self.lengths[1:]):
            if (found % length if length else found).any():
                raise ParseError(
                    f"expected rows of the lengths {self.lengths}, got {totals.max()} values"
                )
            found = found // (length or 1)
            levels.insert(0, np.full(found.sum(), length or 0))
        return [found, *levels]

    def _ragged(self, columns: Sequence[Column]) -> object:
        flat, *row_lengths = columns[self._ragged_places]
        rows, totals = self._rows(self._values(flat), _counts(flat))
        # After the values, whose errors say more.
        for want, column in zip(self.wants[2:], row_lengths, strict=False):
            if column.missing is not None and column.missing.any():
                raise want.lacking()
        counts = [*map(_counts, row_lengths), totals]
        for level, column in enumerate(row_lengths):
            _check_row_lengths(level, column, counts[level + 1])
            self._check_lengths(column.values, level + 1)
        return self._nested(rows, [counts[0], *(column.values for column in row_lengths)])

    def _nested(self, rows: Any, levels: Sequence[Ints]) -> object:
        """Nest elements into rows.

        Args:
            rows: The elements of all records.
            levels: The number of outermost rows in each record, and the lengths of all rows of
                each level.
        """
        self._check_lengths(levels[0])
        is_tensor = isinstance(rows, torch.Tensor)
        # Numbers of sequences of any length are jagged, as those of a VarLenFeature.
        if is_tensor and len(levels) == 1 and (self.lengths[0] is not None or rows.dim() > 1):
            sizes = levels[0]
            if (sizes == sizes[0]).all():
                return rows.reshape(len(sizes), sizes[0], *rows.shape[1:])
            return list(torch.split(rows, sizes.tolist()))
        splits = [*map(splits_of, levels)]
        if is_tensor:
            return nest_rows(rows.as_subclass(torch.Tensor), rows.dtype, splits)
        # A list for each row; a tensor needs none.
        reserve(sum(map(len, levels)) * OBJECT_BYTES)
        return nest_rows(rows, None, splits)

    def _shaped(self, columns: Sequence[Column]) -> object:
        sizes, values = columns[self._shape_place :][:2]
        if values.missing is not None and values.missing.any():
            raise self.wants[-1].lacking()
        strings = values.strings(bytes)
        return read_each(
            lambda own: self._decode_shaped(sizes.values[slice(*own[0])], strings[slice(*own[1])]),
            zip(sizes.bounds(), values.bounds(), strict=True),
        )

    def _decode_shaped(self, sizes: Ints, values: list[bytes]) -> object:
        element: Any = self.element
        rank = len(element.shape)
        if (
            len(sizes) != rank * len(values)
            or (not self.lengths and len(values) != 1)
            or (sizes < 0).any()
        ):
            raise ParseError(
                f"expected {rank} sizes for each value, got {len(sizes)} for {len(values)} values"
            )
        # Before the loop: tensors of nothing take next to nothing in the record.
        reserve(len(values) * TENSOR_BYTES)
        shapes = map(tuple, sizes.reshape(len(values), rank).tolist())
        items = [element.decode(value, shape) for value, shape in zip(values, shapes, strict=True)]
        if not self.lengths:
            return items[0]
        if len(self.lengths) > 1:
            raise ParseError("expected tensors of unknown shape in one sequence at most")
        self._check_lengths(np.array([len(items)]))
        return element.join(items)

    def _check_lengths(self, found: Ints, depth: int = 0) -> None:
        expected = self.lengths[depth]
        wrong = found[found != expected] if expected is not None else found[:0]
        if len(wrong):
            raise ParseError(f"expected {expected} values in the sequence, got {wrong[0]}")


def _check_row_lengths(level: int, column: Column, counts: Ints) -> None:
    """Check that the row lengths of each record sum to its rows in the next level; errors describe
    one record.
    """
    lengths = column.values
    # Clipped before summing: a sum that overflows might look right.
    sums = splits_of(np.minimum(lengths, MAX_LENGTH))[column.offsets]
    if (np.diff(sums) != counts).any() or (lengths < 0).any():
        raise ParseError(
            f"expected row lengths of level {level} that sum to {counts.sum()}, got {sum(lengths.tolist())}"
        )


def _counts(column: Column) -> Ints:
    """Number of values in each record."""
    found: Ints = column.offsets[1:] - column.offsets[:-1]
    return found


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

    def read_own(self, columns: Sequence[Column]) -> object:
        """`read`, with errors that do not name the feature."""
        boxes, bbox_format = super().read_own(columns), self._format
        # Nested rows of boxes have no class in torchvision.
        if bbox_format is None or len(self.lengths) > 1:
            return boxes
        rows = rows_of(boxes)
        sizes = [None] * len(rows) if self._image is None else _image_sizes(columns[-1])
        is_relative = bbox_format.startswith("REL_")
        if not is_relative and not any(sizes):
            return boxes
        parts = [row.numpy().reshape(-1, 4) for row in rows]
        counts, numbers = [*map(len, parts)], np.concatenate(parts)
        # torchvision has x first.
        if bbox_format.endswith("YXYX"):
            numbers = numbers[:, [1, 0, 3, 2]]
        if is_relative:
            # (width, height, width, height)
            scales = np.array([(size or (1, 1))[::-1] * 2 for size in sizes], numbers.dtype)
            numbers = numbers * scales.repeat(counts, axis=0)
        kind = "XYWH" if bbox_format == "XYWH" else "XYXY"
        found = zip(torch.split(torch.from_numpy(numbers), counts), rows, sizes, strict=True)
        return [
            tv_tensors.BoundingBoxes(part, format=kind, canvas_size=size or (1, 1))
            if size or is_relative
            else row
            for part, row, size in found
        ]


def _image_sizes(column: Column) -> list[tuple[int, int] | None]:
    """(height, width) of each record's image; None if it has none or several."""
    views = column.views()
    # A want of one value is dense: zeros stand for what is missing.
    ends = column.offsets if len(column.offsets) else np.arange(len(views) + 1)
    missing = np.zeros(len(ends)) if column.missing is None else column.missing
    return [
        None if is_missing or end - begin != 1 else image_size(views[begin])
        for (begin, end), is_missing in zip(pairwise(ends.tolist()), missing.tolist(), strict=False)
    ]
