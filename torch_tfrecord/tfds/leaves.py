"""Read one leaf of the feature tree from records: a single element, a sequence, or ragged rows.

TFDS does not declare the storage form, so the keys in the record decide::

    k                                                        one list: an element, or those of a sequence
    k/ragged_flat_values, k/ragged_row_lengths_0, ...        nested sequences, outermost lengths first
    k/shape, k/value                                         tensors of two or more unknown sizes, and their shapes

Records in the same form are read together, others one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from torch_tfrecord.batch_memory import OBJECT_BYTES, TENSOR_BYTES, reserve
from torch_tfrecord.columns.containers import Nested, split_lists
from torch_tfrecord.columns.dtypes import BYTES_LIST, INT64_LIST, ListKind
from torch_tfrecord.columns.reading import Column, Want, read_each, reserve_for_values
from torch_tfrecord.columns.stacking import rows_of
from torch_tfrecord.errors import ImageDecodeError, LimitExceededError, ParseError
from torch_tfrecord.images.codec import image_size
from torch_tfrecord.tfds.elements import Element, EncodedTensor

__all__ = ["MAX_LENGTH", "BoxLeaf", "Leaf", "running_sum"]

_Ints: TypeAlias = "npt.NDArray[np.int64]"
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

        def want(suffix: str, kind: ListKind, what: str) -> Want:
            return Want(key, f"{key}/{suffix}", kind, what)

        ragged, shaped = [], []
        if len(lengths) > 1:
            ragged = [want("ragged_flat_values", element.kind, element.what)]
            for level in range(len(lengths) - 1):
                ragged.append(want(f"ragged_row_lengths_{level}", INT64_LIST, "sizes"))
        if isinstance(element, EncodedTensor):
            shaped = [want("shape", INT64_LIST, "sizes"), want("value", BYTES_LIST, element.what)]
        self.wants = (Want(key, key, element.kind, element.what), *ragged, *shaped)
        self._ragged_places = slice(1, 1 + len(ragged))
        self._shape_place = 1 + len(ragged) if shaped else None

    def read(self, columns: Sequence[Column]) -> object:
        """Read the batch's column.

        Raises:
            TFRecordError: The leaf is missing from a record, or has another type or shape; names
                the feature.
        """
        try:
            return self._column(columns)
        except (ParseError, ImageDecodeError, LimitExceededError) as error:
            if str(error.args[0]).startswith("feature "):
                raise
            raise self.wants[0].labelled(error) from (error.__cause__ or error)

    def _column(self, columns: Sequence[Column]) -> object:
        return self.read_own(columns)

    def read_own(self, columns: Sequence[Column]) -> object:
        """`read`, with errors that do not name the feature."""
        num_records = len(columns[0].offsets) - 1
        # The usual case of a sample has one form by definition.
        if num_records == 1:
            return self._together(
                columns, [0 if item.missing is None else int(item.missing[0]) for item in columns]
            )
        # Elements that are decoded one by one, in nested rows, are nested record by record.
        is_joint = self.element.is_joint or len(self.lengths) < 2
        # The usual case of a batch: all records have the plain list.
        if is_joint and num_records and columns[0].missing is None:
            return self._plain(columns[0])
        missing = np.zeros((len(columns), num_records), np.uint8)
        for place, column in enumerate(columns):
            if column.missing is not None:
                missing[place] = column.missing
        if self.lengths and len(columns) == 1:
            missing[missing == _LACKING] = _THERE  # as in TFDS, a missing sequence is empty
        if is_joint and num_records and (missing == missing[:, :1]).all():
            return self._together(columns, missing[:, 0].tolist())
        return read_each(
            # Records of different forms: each is a batch of one.
            lambda row: rows_of(self.read_own(_row(columns, row)))[0],
            range(num_records),
        )

    def _together(self, columns: Sequence[Column], missing: list[int]) -> object:
        """The column of records that store the leaf in the same form."""
        if missing[0] == _THERE:
            return self._plain(columns[0])
        if len(self.lengths) > 1 and missing[2] != _LACKING:
            return self._ragged(columns[self._ragged_places], missing[self._ragged_places])
        if self._shape_place is not None and missing[self._shape_place] != _LACKING:
            return self._shaped(columns[self._shape_place :], missing[self._shape_place :])
        # A missing optional sequence is empty; only an element has a default.
        if self._is_optional and not self.lengths:
            return [self._default] * (len(columns[0].offsets) - 1)
        if self.lengths and missing[0] == _LACKING:
            return self._plain(columns[0])
        raise self.wants[0].lacking()

    def _plain(self, column: Column) -> object:
        values = column.strings(bytes) if self.element.kind == BYTES_LIST else column.values
        counts = _counts(column)
        # Strings are reserved for by what decodes them.
        if isinstance(values, np.ndarray):
            reserve_for_values(self.wants[0], values.nbytes, column.offsets)
        if not self.lengths:
            return self._ones(values, counts, column)
        if len(self.lengths) == 1 and not self.element.is_joint:
            return read_each(lambda bounds: self._sequence(values[slice(*bounds)]), column.bounds())
        rows, totals = self._rows(values, counts)
        if len(self.lengths) > 1:
            return _nest(rows, self._static_lengths(totals))
        self._check_lengths(totals)
        return self._sequences(rows, totals)

    def _ones(self, values: Any, counts: _Ints, column: Column) -> object:
        """Elements without a sequence around them."""
        # Elements of an unknown size may differ: then each record is decoded on its own.
        if (counts == counts[0]).all():
            return self.element.each(values, len(counts))
        return [self.element.each(values[begin:end], 1)[0] for begin, end in column.bounds()]

    def _sequence(self, values: object) -> object:
        rows = self.element.many(values)
        self._check_lengths(np.array([len(rows)]))
        return rows

    def _sequences(self, rows: Any, totals: _Ints) -> object:
        """Elements of several records, each in its own sequence."""
        # Numbers of sequences of any length are jagged, as those of a VarLenFeature.
        if isinstance(rows, list) or (self.lengths[0] is None and rows.dim() == 1):
            return _nest(rows, [totals])
        if (totals == totals[0]).all():
            return rows.reshape(len(totals), totals[0], *rows.shape[1:])
        return list(torch.split(rows, totals.tolist()))

    def _rows(self, values: Any, counts: _Ints) -> tuple[Any, _Ints]:
        """All elements of the records, and the number in each."""
        count = self.element.count
        if count is None and not len(values):
            return self.element.none(), counts
        # The first bad record alone gives the error that a sample of it would.
        wrong = counts[counts % count != 0] if count else counts[:0]
        return self.element.many(values[: wrong[0]] if len(wrong) else values), counts // (
            count or 1
        )

    def _static_lengths(self, totals: _Ints) -> list[_Ints]:
        """Lengths (see `_nest`) of nested sequences stored in one list, which must match those of
        the tree.

        Args:
            totals: Number of elements in each record.
        """
        levels: list[_Ints] = []
        found = totals
        # From the innermost rows outwards.
        for length in reversed(self.lengths[1:]):
            if (found % length if length else found).any():
                raise ParseError(
                    f"expected rows of the lengths {self.lengths}, got {totals.max()} values"
                )
            found = found // length if length else np.zeros_like(found)
            levels.insert(0, np.full(found.sum(), length or 0))
        self._check_lengths(found)
        return [found, *levels]

    def _ragged(self, columns: Sequence[Column], missing: Sequence[int]) -> object:
        flat, *row_lengths = columns
        values = flat.strings(bytes) if self.element.kind == BYTES_LIST else flat.values
        rows, totals = self._rows(values, _counts(flat))
        # After the values, whose errors say more.
        for place, is_missing in enumerate(missing[1:], 2):
            if is_missing:
                raise self.wants[place].lacking()
        counts = [_counts(column) for column in row_lengths]
        for level, (column, found) in enumerate(
            zip(row_lengths, [*counts[1:], totals], strict=True)
        ):
            _check_row_lengths(level, column.values, column.offsets, found)
            self._check_lengths(column.values, level + 1)
        self._check_lengths(counts[0])
        return _nest(rows, [counts[0], *(column.values for column in row_lengths)])

    def _shaped(self, columns: Sequence[Column], missing: Sequence[int]) -> object:
        if missing[1]:
            raise self.wants[-1].lacking()
        sizes, values = columns
        found = zip(sizes.bounds(), values.bounds(), strict=True)
        strings = values.strings(bytes)
        return read_each(
            lambda own: self._decode_shaped(sizes.values[slice(*own[0])], strings[slice(*own[1])]),
            [*found],
        )

    def _decode_shaped(self, sizes: _Ints, values: list[bytes]) -> object:
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
        items = [
            element.decode_shaped(value, shape) for value, shape in zip(values, shapes, strict=True)
        ]
        if not self.lengths:
            return items[0]
        if len(self.lengths) > 1:
            raise ParseError("expected tensors of unknown shape in one sequence at most")
        self._check_lengths(np.array([len(items)]))
        return element.join(items)

    def _check_lengths(self, found: _Ints, depth: int = 0) -> None:
        expected = self.lengths[depth]
        wrong = found[found != expected] if expected is not None else found[:0]
        if len(wrong):
            raise ParseError(f"expected {expected} values in the sequence, got {wrong[0]}")


def _check_row_lengths(level: int, lengths: _Ints, bounds: _Ints, counts: _Ints) -> None:
    """Check that the row lengths of each record sum to its rows in the next level; errors describe
    one record.
    """
    # Clipped before summing: a sum that overflows might look right.
    sums = running_sum(np.minimum(lengths, MAX_LENGTH))[bounds]
    if (sums[1:] - sums[:-1] != counts).any() or (lengths < 0).any():
        found = sum(lengths.tolist())
        raise ParseError(
            f"expected row lengths of level {level} that sum to {counts.sum()}, got {found}"
        )


def _nest(rows: Any, lengths: Sequence[_Ints]) -> object:
    """Nest values into rows, from the number of outermost rows in each record and the lengths of
    all rows.
    """
    splits = [*map(running_sum, lengths)]
    if isinstance(rows, torch.Tensor):
        return Nested(rows.as_subclass(torch.Tensor), rows.dtype, tuple(splits))
    # A list for each row; a tensor needs none.
    reserve(sum(map(len, lengths)) * OBJECT_BYTES)
    return split_lists(rows, [split.tolist() for split in splits])


def _counts(column: Column) -> _Ints:
    """Number of values in each record."""
    found: _Ints = column.offsets[1:] - column.offsets[:-1]
    return found


def running_sum(lengths: _Ints) -> _Ints:
    """Row splits of rows with these lengths: where each begins and ends."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=ends[1:])
    return ends


def _row(columns: Sequence[Column], row: int) -> list[Column]:
    """The columns of a single record."""
    found = []
    for values, offsets, missing, buffer in columns:
        begin, end = offsets[row : row + 2].tolist()
        is_missing = None if missing is None else missing[row : row + 1]
        found.append(Column(values[begin:end], np.array([0, end - begin]), is_missing, buffer))
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

    def _column(self, columns: Sequence[Column]) -> object:
        boxes = self.read_own(columns if self._image is None else columns[:-1])
        # Nested rows of boxes have no class in torchvision.
        if self._format is None or len(self.lengths) > 1:
            return boxes
        rows = rows_of(boxes)
        sizes = (
            [None] * len(rows)
            if self._image is None
            else read_each(_size_of, _only_values(columns[-1]))
        )
        # Records with and without an image: each decides for itself.
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
    ) -> list[object]:
        """Boxes of several records, either all with known image sizes, or all relative without an
        image.
        """
        bbox_format = str(self._format)
        if sizes[0] is None and not bbox_format.startswith("REL_"):
            return [*rows]
        parts = [row.numpy().reshape(-1, 4) for row in rows]
        counts, boxes = [*map(len, parts)], np.concatenate(parts)
        # torchvision has x first.
        if bbox_format.endswith("YXYX"):
            boxes = boxes[:, [1, 0, 3, 2]]
        if bbox_format.startswith("REL_") and sizes[0] is not None:
            # (width, height, width, height)
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
    # A want of one value is dense: zeros stand for what is missing.
    missing = np.zeros(len(views)) if column.missing is None else column.missing
    return [
        None if is_missing else view
        for view, is_missing in zip(views, missing.tolist(), strict=True)
    ]
