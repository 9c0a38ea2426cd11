"""One record to the values of its sample by one call of the compiled core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.parsing.column_plan import FREE_BYTES, ColumnPlan, Scan
from torch_tfrecord.parsing.columns import Reader, read_columns, rows_of

__all__ = ["RowPlan"]

_START = np.zeros(1, np.int64)


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
        self._is_useful = self._part.is_compiled and len(plan.parts) == 1 and self._part.begins[-1] <= FREE_BYTES
        users = [place for places in plan.places for place in places]
        plain = {
            places[0]: number
            for number, (reader, places) in enumerate(zip(readers, plan.places, strict=True))
            if self._is_useful and getattr(reader, "is_plain", False) and users.count(places[0]) == 1
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
        scan = self._part.scan(record, _START, np.array([len(record)]))
        if scan is None:
            return None
        values: list[Any] = []
        for begin, end, dtype, shape in self._blocks:
            block = torch.from_numpy(scan.block[begin:end].view(dtype))
            values += (block if len(shape) == 1 else block.view(shape)).unbind()
        if not self._others and not scan.lacking:
            found: Sequence[Any] = self._in_order(values)
            return found
        try:
            with self._budget():
                return self._completed(values, scan, key)
        except TFRecordError:
            return None

    def _completed(self, values: list[Any], scan: Scan, key: int) -> list[Any]:
        found = list(self._in_order(values + [self._value(number, scan, key) for number in self._others]))
        for number in (self._plain[place] for place in scan.lacking if place in self._plain):
            found[number] = self._value(number, scan, key)
        return found

    def _value(self, number: int, scan: Scan, key: int) -> Any:
        columns = [self._part.row_column(scan, place) for place in self._places[number]]
        return rows_of(read_columns(self._readers[number], columns, key))[0]

    def _block(self, places: Sequence[int]) -> tuple[int, int, Any, tuple[int, ...]]:
        """Of neighbours first byte, end, dtype and shape."""
        first = self._part.slots[places[0]]
        begins = self._part.begins
        return begins[places[0]], begins[places[-1] + 1], first.dtype, (len(places), *first.want.shape)


def _runs(slots: Sequence[Any], places: Sequence[int]) -> list[list[int]]:
    """Places, ascending, of which neighbours are of one shape and dtype."""
    numbered = enumerate(places)
    runs = groupby(numbered, key=lambda item: (item[1] - item[0], slots[item[1]].order[:4]))
    return [[place for _, place in run] for _, run in runs]
