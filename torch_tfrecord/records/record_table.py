"""Where every record of a data set lies: the indexes of its files, joined for look-ups of many
positions at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.files.ranges import block_around
from torch_tfrecord.native import native_module
from torch_tfrecord.order.orders import block_starts
from torch_tfrecord.records.framing import OVERHEAD_BYTES
from torch_tfrecord.records.index import RecordIndex

__all__ = ["RecordPlaces", "RecordTable"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

_POSITIONS_AT_ONCE = 1 << 20  # looked up together where all are gone through: some tens of MiB


class RecordPlaces(NamedTuple):
    """Of N records: number of the file, offset of the length field, and payload length; int64 [N]
    each.
    """

    files: _Integers
    offsets: _Integers
    lengths: _Integers


class RecordTable:
    """Finds records by their position in the whole data set, in 8 bytes a record.

    Records lie one behind the other (`RecordIndex` holds that), so that a length is the difference
    of two offsets.

    Args:
        indexes: One for each file, in order; gone through once, and not kept.
    """

    def __init__(self, indexes: Iterable[RecordIndex]) -> None:
        self._set_up([_borders(index) for index in indexes])

    @classmethod
    def of_borders(cls, borders: Sequence[_Integers]) -> RecordTable:
        """Of each file the offsets of its records, then that of its end."""
        table = cls.__new__(cls)
        table._set_up(borders)
        return table

    def _set_up(self, borders: Sequence[_Integers]) -> None:
        # Record i of file f is entry i + f.
        self._ends = np.cumsum([len(of_file) - 1 for of_file in borders], dtype=np.int64)
        self._ends_list: list[int] = self._ends.tolist()  # faster for one record
        self._borders = np.concatenate(borders) if borders else np.empty(0, np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def file_bytes(self) -> _Integers:
        """Bytes of each file, decompressed."""
        found: _Integers = self._borders[self._ends + np.arange(len(self._ends))]
        return found

    def find(self, positions: _Integers) -> RecordPlaces:
        """The places of records, by positions from 0 to len - 1, in any order."""
        native = native_module("frames")
        if native is not None:
            places = np.empty((3, len(positions)), np.int64)
            if native.find(np.ascontiguousarray(positions), self._ends, self._borders, places):
                return RecordPlaces(*places)
        files = np.searchsorted(self._ends, positions, side="right")
        entries = positions + files
        offsets = self._borders[entries]
        entries += 1
        lengths = self._borders[entries]
        lengths -= offsets
        lengths -= OVERHEAD_BYTES
        return RecordPlaces(files, offsets, lengths)

    def find_one(self, position: int) -> tuple[int, int, int, int]:
        """Number of the file, number in that file, offset and length of one record."""
        ends, entry = self._ends_list, self._borders.item
        file = bisect_right(ends, position)
        offset = entry(position + file)
        number = position - (ends[file - 1] if file else 0)
        return file, number, offset, entry(position + file + 1) - offset - OVERHEAD_BYTES

    def block_extent(self, file: int, offset: int, block_bytes: int) -> tuple[int, int]:
        """Where the first of the records begins that begin in the same `block_bytes` bytes of a
        file as one at an offset, and where the last of them ends.
        """
        first = (self._ends_list[file - 1] if file else 0) + file
        return block_around(
            self._borders[first : self._ends_list[file] + file + 1], offset, block_bytes
        )

    def block_starts(self, positions: range | _Integers, block_bytes: int) -> _Integers:
        """Of a sequence of positions, the first place in it of each block; see
        `block_shuffle.block_starts`.
        """
        found = []
        for begin in range(0, len(positions), _POSITIONS_AT_ONCE):
            # with the one before, to compare with
            part = positions[max(begin - 1, 0) : begin + _POSITIONS_AT_ONCE]
            numbers = (
                np.arange(part.start, part.stop, part.step) if isinstance(part, range) else part
            )
            files, offsets, _ = self.find(numbers)
            starts = block_starts(files, offsets, block_bytes)
            found.append(starts[1:] + (begin - 1) if begin else starts)
        return np.concatenate(found) if found else np.empty(0, np.int64)


def _borders(index: RecordIndex) -> _Integers:
    end = index.offsets[-1] + index.lengths[-1] + OVERHEAD_BYTES if len(index) else 0
    return np.append(index.offsets, end)
