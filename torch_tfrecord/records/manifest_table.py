"""Where every record lies, by a manifest: its blocks are read as they are needed, and the last used
stay in memory.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.files.per_process import ProcessCache
from torch_tfrecord.files.ranges import block_around
from torch_tfrecord.records.framing import OVERHEAD_BYTES
from torch_tfrecord.records.length_blocks import BLOCK_RECORDS
from torch_tfrecord.records.manifest import Manifest
from torch_tfrecord.records.record_table import RecordPlaces, RecordTable

__all__ = ["ManifestTable", "is_range", "manifest_table"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

_READ_WHOLE_BLOCKS = 512  # at most a million records: 8 MiB, and look-ups by the compiled core
_KEPT_BLOCKS = 2048  # 32 MiB in each process
_BLOCKS_AT_ONCE = 256


def is_range(rows: _Integers, count: int) -> bool:
    """Whether these are all numbers from 0 to below a count, in order."""
    return len(rows) == count and bool((rows == np.arange(count)).all())


def manifest_table(manifest: Manifest, rows: _Integers) -> RecordTable:
    """The table of some shards of a manifest, by the numbers of their rows; read whole where they
    are few.
    """
    head = manifest.head
    counts = head.first_blocks[rows + 1] - head.first_blocks[rows]
    if counts.sum() > _READ_WHOLE_BLOCKS or not len(rows):
        return ManifestTable(manifest, rows)
    blocks = np.concatenate([np.arange(*head.first_blocks[row : row + 2]) for row in rows.tolist()])
    by_number = np.argsort(blocks)
    borders = np.empty((len(blocks), BLOCK_RECORDS + 1), np.int64)
    borders[by_number] = manifest.borders(blocks[by_number])
    parts, first = [], 0
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        offsets = borders[first : first + count, :BLOCK_RECORDS].reshape(-1)[
            : head.num_records[row]
        ]
        parts.append(np.append(offsets, head.stream_sizes[row]))
        first += count
    return RecordTable.of_borders(parts)


class ManifestTable(RecordTable):
    """A `RecordTable` that holds a few MiB, however many records there are; it pickles without
    them.

    Args:
        manifest: Where the records lie.
        rows: int64 [F]: of each file its row there.
    """

    def __init__(self, manifest: Manifest, rows: _Integers) -> None:
        head = manifest.head
        self._manifest, self._rows = manifest, rows
        self._ends = np.cumsum(head.num_records[rows])
        self._first_blocks = head.first_blocks[rows]
        self._kept: ProcessCache[_KeptBlocks] = ProcessCache(1)

    def __getstate__(self) -> tuple[Manifest, _Integers | None]:
        return self._manifest, None if is_range(self._rows, len(self._manifest)) else self._rows

    def __setstate__(self, state: tuple[Manifest, _Integers | None]) -> None:
        manifest, rows = state
        ManifestTable.__init__(self, manifest, np.arange(len(manifest)) if rows is None else rows)

    @property
    def file_bytes(self) -> _Integers:
        """Bytes of each file, decompressed."""
        return self._manifest.head.stream_sizes[self._rows]

    def find(self, positions: _Integers) -> RecordPlaces:
        """The places of records, by positions from 0 to len - 1, in any order.

        Raises:
            IndexMismatchError: the manifest is damaged, or was changed.
        """
        files = np.searchsorted(self._ends, positions, side="right")
        numbers = positions - np.where(files > 0, self._ends[files - 1], 0)
        offsets, ends = self._borders_at(
            self._first_blocks[files] + numbers // BLOCK_RECORDS, numbers % BLOCK_RECORDS
        )
        return RecordPlaces(files, offsets, ends - offsets - OVERHEAD_BYTES)

    def find_one(self, position: int) -> tuple[int, int, int, int]:
        """Number of the file, number in that file, offset and length of one record."""
        file = bisect_right(self._ends, position)
        number = position - (self._ends.item(file - 1) if file else 0)
        block, place = divmod(number, BLOCK_RECORDS)
        block += self._first_blocks.item(file)
        found = self._kept.find(0, self._new_blocks).find_one(block, place)
        if found is None:
            offsets, ends = self._borders_at(np.array([block]), np.array([place]))
            found = offsets.item(), ends.item()
        return file, number, found[0], found[1] - found[0] - OVERHEAD_BYTES

    def block_extent(self, file: int, offset: int, block_bytes: int) -> tuple[int, int]:
        """See `RecordTable.block_extent`; of the file's records only those near the offset are
        looked up.
        """
        head, row = self._manifest.head, self._rows.item(file)
        first, last = head.first_blocks[row : row + 2].tolist()
        low = offset // block_bytes * block_bytes
        # The manifest's blocks from that of the offset or a record before it on to that of the end.
        offsets = head.block_offsets[first:last]
        begin = int(np.searchsorted(offsets, min(low, offset), side="right")) - 1
        end = int(np.searchsorted(offsets, low + block_bytes, side="right"))
        numbers = np.arange(
            begin * BLOCK_RECORDS, min(end * BLOCK_RECORDS, head.num_records.item(row))
        )
        begins, ends = self._borders_at(first + numbers // BLOCK_RECORDS, numbers % BLOCK_RECORDS)
        return block_around(np.append(begins, ends[-1:]), offset, block_bytes)

    def _borders_at(self, blocks: _Integers, places: _Integers) -> tuple[_Integers, _Integers]:
        """The offsets of records, by their blocks and numbers there, and those of what follows
        them.
        """
        kept = self._kept.find(0, self._new_blocks)
        offsets, ends, is_missing = kept.find(blocks, places)
        if is_missing.any():
            missing = np.flatnonzero(is_missing)
            needed, number_of = np.unique(blocks[missing], return_inverse=True)
            for first in range(0, len(needed), _BLOCKS_AT_ONCE):
                part = needed[first : first + _BLOCKS_AT_ONCE]
                borders = self._manifest.borders(part)  # not locked: it may take a request
                kept.keep(part, borders)
                is_here = (number_of >= first) & (number_of < first + len(part))
                rows, chosen = number_of[is_here] - first, missing[is_here]
                at = places[chosen]
                offsets[chosen], ends[chosen] = borders[rows, at], borders[rows, at + 1]
        return offsets, ends

    def _new_blocks(self, _: int) -> _KeptBlocks:
        return _KeptBlocks(len(self._manifest.head.block_bytes))


class _KeptBlocks:
    """The last blocks that a process has read, the first read dropped first; safe from threads."""

    def __init__(self, num_blocks: int) -> None:
        self._slots = np.full(num_blocks, -1, np.int32)  # of each block where it is kept
        size = min(_KEPT_BLOCKS, num_blocks)
        # memory is taken as it is written to
        self._borders = np.empty((size, BLOCK_RECORDS + 1), np.int64)
        self._blocks = np.full(size, -1, np.int64)  # of each slot
        self._next_slot = 0
        self._lock = threading.Lock()

    def find(
        self, blocks: _Integers, places: _Integers
    ) -> tuple[_Integers, _Integers, npt.NDArray[np.bool_]]:
        """Offsets and ends of records, as far as their blocks are here, and which are missing."""
        with self._lock:
            slots = self._slots[blocks]
            return self._borders[slots, places], self._borders[slots, places + 1], slots < 0

    def find_one(self, block: int, place: int) -> tuple[int, int] | None:
        """Of one record; None where its block is not here."""
        with self._lock:
            slot = self._slots.item(block)
            return (
                None
                if slot < 0
                else (self._borders.item(slot, place), self._borders.item(slot, place + 1))
            )

    def keep(self, blocks: _Integers, borders: _Integers) -> None:
        """Take blocks, by distinct numbers, as many as there is room for."""
        with self._lock:
            is_new = self._slots[blocks] < 0  # another thread may have been first
            blocks, borders = (
                blocks[is_new][: len(self._blocks)],
                borders[is_new][: len(self._blocks)],
            )
            slots = np.arange(self._next_slot, self._next_slot + len(blocks)) % len(self._blocks)
            self._next_slot = (self._next_slot + len(blocks)) % len(self._blocks)
            dropped = self._blocks[slots]
            self._slots[dropped[dropped >= 0]] = -1
            self._borders[slots], self._blocks[slots], self._slots[blocks] = borders, blocks, slots
