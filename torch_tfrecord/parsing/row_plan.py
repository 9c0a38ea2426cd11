"""One record to the values of its sample by one call of the compiled core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch

from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.features.columns import Reader, read_columns
from torch_tfrecord.parsing.column_plan import ColumnPlan
from torch_tfrecord.values.stacking import rows_of

__all__ = ["RowPlan"]

_Found: TypeAlias = "tuple[Any, list[Any], bytes | None]"  # of the core's `parse_one`


class RowPlan:
    """Reads the row of a batch of one.

    Numbers that need no cast lie in blocks of one shape, which torch takes apart at once: that costs less than a tensor
    for each. What else there is, and what the record lacks, is read as the columns of a batch are.

    Args:
        readers: The readers, in the order of the outputs.
        budget: Makes the budget of a sample.
    """

    def __init__(self, readers: Sequence[Reader], budget: Callable[[], AbstractContextManager[None]]) -> None:
        plan = ColumnPlan(readers)
        self._readers, self._budget, self._places = readers, budget, plan.places
        self._part = plan.parts[0]
        self._is_useful = self._part.core is not None and len(plan.parts) == 1
        if not self._is_useful:
            return
        users = [place for places in plan.places for place in places]
        plain = {
            places[0]: number
            for number, (reader, places) in enumerate(zip(readers, plan.places, strict=True))
            if getattr(reader, "is_plain", False) and reader.wants[0].num_values and users.count(places[0]) == 1
        }
        self._plain, self._blocks = plain, [*map(self._block, _runs(self._part.slots, sorted(plain)))]
        self._others = [number for number in range(len(readers)) if number not in plain.values()]
        found = [*(plain[place] for place in sorted(plain)), *self._others]
        order = sorted(range(len(found)), key=found.__getitem__)
        self._in_order: Callable[[list[Any]], Any] = list if order == sorted(order) else itemgetter(*order)

    def read(self, record: Any, key: int) -> Sequence[Any] | None:
        """The values of a record, in the order of the readers.

        Args:
            record: The record's bytes.
            key: As of ``ExampleParser.single``.

        Returns:
            None where there is no core, or the record is not plain or does not fit: whoever reads it by protobuf's
            messages finds the values or words the error.
        """
        if not self._is_useful or not isinstance(record, (bytes, bytearray, memoryview)):
            return None
        if type(record) is not bytes:
            record = bytes(record)  # a view may be of other items, or change meanwhile
        found: _Found | None = self._part.core.parse_one(record)
        if found is None:
            return None
        values: list[Any] = []
        for begin, count, dtype, shape in self._blocks:
            block = torch.frombuffer(found[0], dtype=dtype, count=count, offset=begin)
            values += (block if len(shape) == 1 else block.view(shape)).unbind()
        if not self._others and found[2] is None:
            ordered: Sequence[Any] = self._in_order(values)
            return ordered
        try:
            with self._budget():
                values += [self._value(number, found, record, key) for number in self._others]
                return self._completed(self._in_order(values), found, record, key)
        except TFRecordError:
            return None

    def _completed(self, values: Sequence[Any], found: _Found, record: Any, key: int) -> Sequence[Any]:
        """The values, with the defaults of plain features that the record lacks."""
        if found[2] is None:
            return values
        completed = list(values)
        for place, number in self._plain.items():
            if found[2][place]:
                completed[number] = self._value(number, found, record, key)
        return completed

    def _value(self, number: int, found: _Found, record: Any, key: int) -> Any:
        columns = [self._part.row_column(found, place, record) for place in self._places[number]]
        return rows_of(read_columns(self._readers[number], columns, key))[0]

    def _block(self, places: Sequence[int]) -> tuple[int, int, torch.dtype, tuple[int, ...]]:
        """Of neighbours first byte, number of values, dtype and shape."""
        first, begins = self._part.slots[places[0]], self._part.begins
        count = (begins[places[-1] + 1] - begins[places[0]]) // first.dtype.itemsize
        dtype = torch.float32 if first.dtype == np.float32 else torch.int64
        return begins[places[0]], count, dtype, (len(places), *first.want.shape)


def _runs(slots: Sequence[Any], places: Sequence[int]) -> list[list[int]]:
    """Places, ascending, of which neighbours are of one shape and dtype."""
    numbered = enumerate(places)
    runs = groupby(numbered, key=lambda item: (item[1] - item[0], slots[item[1]].order[:4]))
    return [[place for _, place in run] for _, run in runs]
