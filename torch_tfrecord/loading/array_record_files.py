"""The ArrayRecord files of a map-style dataset, with the methods of `RecordFiles`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.files.per_process import ProcessCache
from torch_tfrecord.records.array_record import ArrayRecordFile, ArrayRecordIndex
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.records.record_table import RecordTable
from torch_tfrecord.samples import RecordPlace

__all__ = ["ArrayRecordFiles"]

_MOST_FILES = 256  # of which no more are open than `descriptors` allows


class ArrayRecordFiles(ProcessCache[ArrayRecordFile]):
    """Reads records by their position over all files; see `RecordFiles`.

    Args:
        paths: The files.
        indexes: One for each file, checked against it when it is opened.

    Attributes:
        table: Where the records are, roughly: as if all of a file had the same size.
    """

    paths: list[str] | None = None
    first_compressed: str | None = None
    slow_file: str | None = None
    has_warned = False
    is_remote = False

    def __init__(self, paths: Sequence[str], indexes: Sequence[ArrayRecordIndex]) -> None:
        self._paths, self._indexes = paths, indexes
        self._begins = np.cumsum([0, *map(len, indexes)], dtype=np.int64)
        self._begins_list: list[int] = self._begins.tolist()  # faster for one record
        self.table = RecordTable.of_borders([_borders(index) for index in indexes])
        self.extent = len(paths), len(self.table), int(self.table.file_bytes.sum())
        super().__init__(_MOST_FILES)

    def warn(self) -> None:
        """Random access is fast here."""

    def read_by_blocks(self, block_bytes: int | None) -> None:
        """Local files need no blocks."""

    def read(self, position: int) -> bytes:
        """The payload of one record.

        Raises:
            TFRecordError: It cannot be read; the message names the record.
        """
        file, number = self._find(position)
        try:
            return self.find(file, self._open).read(number)
        except TFRecordError as error:
            raise error.locate(path=self._paths[file], position=number) from error.__cause__

    def read_batch(self, positions: npt.NDArray[np.int64]) -> PackedRecords:
        """The payloads of several records, in file order.

        Raises:
            TFRecordError: One of them cannot be read; `read` finds out which.
        """
        order = np.argsort(positions, kind="stable")
        wanted = positions[order]
        files = np.searchsorted(self._begins, wanted, side="right") - 1
        numbers = wanted - self._begins[files]
        payloads: list[bytes] = []
        for first, last in pairwise(np.flatnonzero(np.diff(files, prepend=-1, append=-1)).tolist()):
            source = self.find(int(files[first]), self._open)
            payloads += source.read_many(numbers[first:last].tolist())
        sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
        starts, lengths = np.empty((2, len(payloads)), np.int64)
        starts[order], lengths[order] = np.cumsum(sizes) - sizes, sizes
        return PackedRecords(b"".join(payloads), starts, lengths)

    def place(self, position: int) -> RecordPlace:
        """Where a record is; no byte offset is known."""
        file, number = self._find(position)
        return RecordPlace(self._paths[file], None, number)

    def _find(self, position: int) -> tuple[int, int]:
        file = bisect_right(self._begins_list, position) - 1
        return file, position - self._begins_list[file]

    def _open(self, file: int) -> ArrayRecordFile:
        return ArrayRecordFile(self._paths[file], self._indexes[file])


def _borders(index: ArrayRecordIndex) -> npt.NDArray[np.int64]:
    return np.arange(len(index) + 1, dtype=np.int64) * index.file_size // max(len(index), 1)
