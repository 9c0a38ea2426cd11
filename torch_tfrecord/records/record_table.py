"""Where every record of a data set lies, for look-ups of many positions at once: from the indexes
of its files, or block by block from a manifest.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.manifests import BLOCK_RECORDS, Manifest
from torch_tfrecord.native import native_module
from torch_tfrecord.order import block_starts
from torch_tfrecord.per_process import PerProcess
from torch_tfrecord.records.framing import OVERHEAD_BYTES
from torch_tfrecord.records.index import RecordIndex

__all__ = ["ManifestTable", "RecordPlaces", "RecordTable", "is_range", "open_table"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

_READ_WHOLE_RECORDS = 1 << 20  # takes 8 MiB, and the compiled core looks them up
_KEPT_BLOCKS = 2048  # takes 32 MiB in each process
_BLOCKS_AT_ONCE = 256
_POSITIONS_AT_ONCE = 1 << 20  # looked up together where all are gone through: some tens of MiB


class RecordPlaces(NamedTuple):
    """Where N records lie: number of the file, offset of the length field, and payload length;
    int64 [N] each.
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
        """Make the table from the offsets of each file's records, each with its end last."""
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
        # In NumPy, where there is no compiled core or a position is out of range: that raises here.
        files = np.searchsorted(self._ends, positions, side="right")
        entries = positions + files
        offsets = self._borders[entries]
        # In place: each array of a long batch costs as much as the look-up.
        entries += 1
        lengths = self._borders[entries]
        lengths -= offsets
        lengths -= OVERHEAD_BYTES
        return RecordPlaces(files, offsets, lengths)

    def numbers(self, positions: _Integers, files: _Integers) -> _Integers:
        """The number in its file of each record, by its position and its file."""
        return positions - np.insert(self._ends, 0, 0)[files]

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
        """Where each block begins in a sequence of positions; see
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


# From a manifest.


def is_range(rows: _Integers, count: int) -> bool:
    """Whether these are all numbers below a count, in order."""
    return len(rows) == count and bool((rows == np.arange(count)).all())


def open_table(manifest: Manifest, rows: _Integers) -> RecordTable:
    """The table of some shards of a manifest; read whole if they are few."""
    if not len(rows) or manifest.num_records[rows].sum() > _READ_WHOLE_RECORDS:
        return ManifestTable(manifest, rows)
    return RecordTable.of_borders(manifest.offsets(rows))


class ManifestTable(RecordTable):
    """A `RecordTable` that holds a few MiB, however many records there are; it pickles without
    them.

    Args:
        manifest: Where the records lie.
        rows: int64 [F]: row of each file in it; None for all.
    """

    def __init__(self, manifest: Manifest, rows: _Integers | None) -> None:
        rows = np.arange(len(manifest)) if rows is None else rows
        self._manifest, self._rows = manifest, rows
        self._ends = np.cumsum(manifest.num_records[rows])
        self._starts = manifest.stream_starts[rows]
        # From a position in the table to the number of the record in the manifest.
        self._shifts = manifest.first_records[rows + 1] - self._ends
        # A fork may copy the lock while another thread holds it.
        self._kept = PerProcess(_KeptBlocks)

    def __reduce__(self) -> tuple[type[ManifestTable], tuple[Manifest, _Integers | None]]:
        is_all = is_range(self._rows, len(self._manifest))
        return ManifestTable, (self._manifest, None if is_all else self._rows)

    @property
    def file_bytes(self) -> _Integers:
        """Bytes of each file, decompressed."""
        return self._manifest.stream_sizes[self._rows]

    def find(self, positions: _Integers) -> RecordPlaces:
        """The places of records, by positions from 0 to len - 1, in any order.

        Raises:
            IndexMismatchError: The manifest is damaged, or has changed.
        """
        files = np.searchsorted(self._ends, positions, side="right")
        begins, ends = self._borders_at(positions + self._shifts[files])
        return RecordPlaces(files, begins - self._starts[files], ends - begins - OVERHEAD_BYTES)

    def find_one(self, position: int) -> tuple[int, int, int, int]:
        """Number of the file, number in that file, offset and length of one record."""
        file = bisect_right(self._ends, position)
        record = position + self._shifts.item(file)
        # One record in plain integers: arrays of one element take ten times as long.
        found = self._kept.get().find_one(record)
        begin, end = found or [border.item() for border in self._borders_at(np.array([record]))]
        number = position - (self._ends.item(file - 1) if file else 0)
        return file, number, begin - self._starts.item(file), end - begin - OVERHEAD_BYTES

    def block_extent(self, file: int, offset: int, block_bytes: int) -> tuple[int, int]:
        """See `RecordTable.block_extent`; only the file's records near the offset are looked up."""
        manifest, row, start = self._manifest, self._rows.item(file), self._starts.item(file)
        # A file may have 10^8 records: only the manifest's blocks that reach into these bytes are
        # read.
        low = start + offset // block_bytes * block_bytes
        begin = int(np.searchsorted(manifest.block_offsets, low, side="right")) - 1
        end = int(np.searchsorted(manifest.block_offsets, low + block_bytes, side="right"))
        first, last = manifest.first_records[row : row + 2].tolist()
        records = np.arange(max(begin * BLOCK_RECORDS, first), min(end * BLOCK_RECORDS, last))
        begins, ends = self._borders_at(records)
        return block_around(np.append(begins, ends[-1:]) - start, offset, block_bytes)

    def _borders_at(self, records: _Integers) -> tuple[_Integers, _Integers]:
        """Where records begin and end, by their numbers in the manifest, in the streams of all its
        shards one after another.
        """
        kept = self._kept.get()
        begins, ends, is_missing = kept.find(records)
        missing = np.flatnonzero(is_missing)
        if not len(missing):
            return begins, ends
        needed, number_of = np.unique(records[missing] // BLOCK_RECORDS, return_inverse=True)
        # In turns, so that many positions take a few MiB however many blocks they touch.
        for first in range(0, len(needed), _BLOCKS_AT_ONCE):
            blocks = needed[first : first + _BLOCKS_AT_ONCE]
            borders = self._manifest.read_borders(blocks)  # not locked: it may take a request
            kept.keep(blocks, borders)
            is_here = (number_of >= first) & (number_of < first + len(blocks))
            rows, chosen = number_of[is_here] - first, missing[is_here]
            places = records[chosen] % BLOCK_RECORDS
            begins[chosen], ends[chosen] = borders[rows, places], borders[rows, places + 1]
        return begins, ends


class _KeptBlocks:
    """Blocks that a process has read, each in the one slot that its number chooses; thread-safe."""

    def __init__(self) -> None:
        # Memory is taken as it is written to.
        self._borders = np.empty((_KEPT_BLOCKS, BLOCK_RECORDS + 1), np.int64)
        self._blocks = np.full(_KEPT_BLOCKS, -1, np.int64)
        self._lock = threading.Lock()

    def find(self, records: _Integers) -> tuple[_Integers, _Integers, npt.NDArray[np.bool_]]:
        """Begins and ends of records if their blocks are here, and which are missing."""
        blocks, places = np.divmod(records, BLOCK_RECORDS)
        # One slot a block needs no list of what was used last, and forgets at random, as shuffled
        # reads ask.
        slots = blocks % len(self._blocks)
        with self._lock:
            is_missing = self._blocks[slots] != blocks
            return self._borders[slots, places], self._borders[slots, places + 1], is_missing

    def find_one(self, record: int) -> tuple[int, int] | None:
        """Begin and end of one record; None if its block is not here."""
        block, place = divmod(record, BLOCK_RECORDS)
        slot = block % len(self._blocks)
        with self._lock:
            if self._blocks.item(slot) != block:
                return None
            return self._borders.item(slot, place), self._borders.item(slot, place + 1)

    def keep(self, blocks: _Integers, borders: _Integers) -> None:
        """Keep blocks in place of those that have their slots; of two for one slot, one."""
        slots, first = np.unique(blocks % len(self._blocks), return_index=True)
        with self._lock:
            self._blocks[slots], self._borders[slots] = blocks[first], borders[first]


def block_around(borders: _Integers, offset: int, block_bytes: int) -> tuple[int, int]:
    """Where the first of the records begins that begin in the same `block_bytes` bytes of a file as
    the one at an offset, and where the last of them ends.

    Args:
        borders: int64 [M + 1]: the first byte of some neighbouring records, that of the block among
            them, and the end of the last.
        offset: A byte of one of them.
        block_bytes: Blocks begin at multiples of this.
    """
    number = offset // block_bytes
    begin, end = np.searchsorted(
        borders, (number * block_bytes, (number + 1) * block_bytes)
    ).tolist()
    if borders[begin] > offset:  # in the midst of a record that begins in a block before
        begin -= 1
    return int(borders[begin]), int(borders[min(end, len(borders) - 1)])
