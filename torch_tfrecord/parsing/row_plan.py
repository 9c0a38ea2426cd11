"""One record to the values of its sample by one call of the compiled core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.parsing.column_plan import FREE_BYTES, ColumnPlan, Scan
from torch_tfrecord.parsing.columns import Reader, rows_of

__all__ = ["RowPlan"]

_START = np.zeros(1, np.int64)


class _Block(NamedTuple):
    """Columns that lie side by side, of one shape and dtype, and become tensors as they are."""

    begin: int
    end: int
    dtype: Any
    shape: tuple[int, ...]


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
        self._is_useful = self._part.is_compiled and len(plan.parts) == 1 and self._part.row_bytes <= FREE_BYTES
        if not self._is_useful:
            return
        users = [number for places in plan.places for number in places]
        plain = {
            places[0]: number
            for number, (reader, places) in enumerate(zip(readers, plan.places, strict=True))
            if getattr(reader, "is_plain", False) and users.count(places[0]) == 1
        }
        self._reader_of = plain
        self._blocks = self._join(sorted(plain))
        self._others = [number for number in range(len(readers)) if number not in plain.values()]
        made = [*(plain[place] for place in sorted(plain)), *self._others]
        order = sorted(range(len(made)), key=made.__getitem__)
        self._in_order: Callable[[list[Any]], Sequence[Any]] = itemgetter(*order) if len(order) > 1 else list

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
        scan = self._part.scan(record, _START, np.array([len(record)]))
        if scan is None:
            return None
        values: list[Any] = []
        for begin, end, dtype, shape in self._blocks:
            values += torch.from_numpy(scan.block[begin:end].view(dtype)).view(shape).unbind()
        if not self._others and not scan.lacking:
            return self._in_order(values)
        try:
            with self._budget():
                values += [self._value(number, scan, key) for number in self._others]
                found = list(self._in_order(values))
                for place in scan.lacking:
                    if place in self._reader_of:
                        number = self._reader_of[place]
                        found[number] = self._value(number, scan, key)
        except TFRecordError:
            return None
        return found

    def _value(self, number: int, scan: Scan, key: int) -> Any:
        reader: Any = self._readers[number]
        columns = [self._part.row_column(scan, place) for place in self._places[number]]
        keys = (np.array([key], np.uint64),) if getattr(reader, "keyed", False) else ()
        return rows_of(reader.read(columns, *keys))[0]

    def _join(self, places: Sequence[int]) -> list[_Block]:
        """The blocks of the columns at these places, ascending."""
        blocks: list[_Block] = []
        last = None
        for place in places:
            want, (begin, end) = self._part.wants[place], self._part.begins[place : place + 2]
            if (
                last is not None
                and place == last + 1
                and blocks[-1].shape[1:] == want.shape
                and blocks[-1].dtype is self._part.dtype_of(place)
            ):
                blocks[-1] = blocks[-1]._replace(end=end, shape=(blocks[-1].shape[0] + 1, *want.shape))
            else:
                blocks.append(_Block(begin, end, self._part.dtype_of(place), (1, *want.shape)))
            last = place
        return blocks
