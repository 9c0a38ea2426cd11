"""The unread rest of an epoch: pieces of files, how they are divided among consumers, and their
records, in groups with the file and offset of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import scratch_bytes
from torch_tfrecord.records import Block, PackedRecords
from torch_tfrecord.shown import shown_value

__all__ = [
    "MOST_RECORDS",
    "Piece",
    "RecordGroup",
    "StreamRecord",
    "cut_groups",
    "deal_out",
    "is_full",
    "picked_pieces",
    "read_groups",
    "read_records",
]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

_Count = TypeVar("_Count", int, _Integers)

# More records than an image batch usually has.
_MANY_RECORDS = 256

MOST_RECORDS = 1 << 40
"""Limit on the records of one file: their numbers are below it, in the states of streams, too."""


class Piece(NamedTuple):
    """Records of one file: those from `first` on whose number modulo `parts` is `part`; or only
    those in `picked`.

    Attributes:
        file: Number of the file.
        part, parts: 0 <= part < parts.
        first: Records with a lower number are not part of it.
        picked: None, or the numbers of the records in ascending order; then part and parts are 0
            and 1.
    """

    file: int
    part: int = 0
    parts: int = 1
    first: int = 0
    picked: tuple[int, ...] | None = None

    def has(self, file: int, number: int) -> bool:
        """Whether a record is part of it."""
        if file != self.file or number < self.first:
            return False
        if self.picked is not None:
            return number in self.picked
        return number % self.parts == self.part

    def split(self, part: int, parts: int) -> Piece:
        """One of `parts` parts, which together have every record exactly once."""
        if self.picked is not None:
            return self._replace(picked=self.picked[part::parts])
        return self._replace(part=self.part + self.parts * part, parts=self.parts * parts)

    def as_json(self) -> list[object]:
        """The piece as JSON values."""
        return [
            self.file,
            self.part,
            self.parts,
            self.first,
            None if self.picked is None else list(self.picked),
        ]

    @classmethod
    def from_json(cls, values: Sequence[Any], num_files: int) -> Piece:
        """The inverse of `as_json`; ValueError for anything else."""
        try:
            file, part, parts, first, picked = values
            numbers = [file, part, parts, first, *(() if picked is None else picked)]
            is_good = (
                all(type(number) is int and 0 <= number <= MOST_RECORDS for number in numbers)
                and file < num_files
                and part < parts
            )
            if picked is not None:
                picked = tuple(picked)
                # not &=, which would also compare what are no numbers
                is_good = is_good and (part, parts) == (0, 1) and [*picked] == sorted({*picked})
        except (TypeError, ValueError):
            is_good = False
        if not is_good:
            raise ValueError(
                f"pieces: expected a piece of one of {num_files} files in the state, got {shown_value(values)}"
            )
        return cls(file, part, parts, first, picked)


def deal_out(pieces: Sequence[Piece], consumer: int, num_consumers: int) -> list[Piece]:
    """One consumer's pieces, so that every record of every piece goes to exactly one of them.

    Whole pieces are dealt out round-robin, the same number to each consumer; leftover pieces (all
    of them, if there are fewer pieces than consumers) are split by record, each among the consumers
    that share it.

    Args:
        pieces: What is left of all files.
        consumer: Number of this consumer, 0 <= consumer < num_consumers.
        num_consumers: Ranks times workers.

    Example:
        >>> deal_out([Piece(7), Piece(8), Piece(9, 1, 2, first=6)], 1, 2)
        [Piece(file=8, part=0, parts=1, first=0, picked=None), Piece(file=9, part=3, parts=4,
        first=6, picked=None)]
    """
    left_over = len(pieces) % num_consumers
    num_whole = len(pieces) - left_over
    own = [*pieces[consumer:num_whole:num_consumers]]
    if left_over:
        group = consumer % left_over
        parts = len(range(group, num_consumers, left_over))
        own.append(pieces[num_whole + group].split(consumer // left_over, parts))
    return own


def picked_pieces(records: Iterable[tuple[int, int]]) -> list[Piece]:
    """Pieces for single records, given as (file, number): one for each file."""
    by_file: dict[int, list[int]] = {}
    for file, number in records:
        by_file.setdefault(file, []).append(number)
    return [Piece(file, picked=tuple(sorted(numbers))) for file, numbers in sorted(by_file.items())]


# Their records.

# One record: payload, number of its file, offset of its length field, and its number in the file. A
# plain tuple, since making a named one takes longer than everything else that a stream does with a
# small record.
StreamRecord: TypeAlias = "tuple[bytes, int, int, int]"


class RecordGroup(NamedTuple):
    """Several records: their payloads, and for each the number of its file, its offset, and its
    number in the file.
    """

    records: PackedRecords
    files: _Integers
    offsets: _Integers
    numbers: _Integers

    def part(self, rows: slice) -> RecordGroup:
        """Some of the records, not copied."""
        return RecordGroup(
            self.records[rows], self.files[rows], self.offsets[rows], self.numbers[rows]
        )

    def place(self, row: int) -> tuple[int, int, int]:
        """Number of the file, offset and number in the file of a record."""
        return int(self.files[row]), int(self.offsets[row]), int(self.numbers[row])

    @classmethod
    def of(cls, records: Sequence[StreamRecord]) -> RecordGroup:
        """Single records as a group; copies them into one buffer."""
        payloads, *places = zip(*records, strict=True)
        lengths = np.array([*map(len, payloads)], dtype=np.int64)
        packed = PackedRecords(b"".join(payloads), np.cumsum(lengths) - lengths, lengths)
        return cls(packed, *(np.array(column, dtype=np.int64) for column in places))

    @classmethod
    def join(cls, groups: Sequence[RecordGroup]) -> RecordGroup:
        """Several groups, of at least one record each, as one; copies them into one buffer unless
        there is only one.
        """
        if len(groups) == 1:
            return groups[0]
        parts, starts, end = [], [], 0
        for group in groups:
            records = group.records
            # Only the bytes that the rows need, with the headers between them.
            low, high = int(records.starts.min()), int((records.starts + records.lengths).max())
            parts.append(np.frombuffer(records.buffer, np.uint8)[low:high])
            starts.append(records.starts + (end - low))
            end += high - low
        lengths = np.concatenate([group.records.lengths for group in groups])
        joined = np.concatenate(parts, out=scratch_bytes(end))
        packed = PackedRecords(joined, np.concatenate(starts), lengths)
        places = zip(*(group[1:] for group in groups), strict=True)
        return cls(packed, *map(np.concatenate, places))


def cut_groups(
    groups: Iterable[RecordGroup], sizes: Iterator[int], most_bytes: float
) -> Iterator[RecordGroup]:
    """The same records in parts of some sizes; the last may have fewer, and so may those of large
    records (see `is_full`). The records before an error are yielded before it is raised.
    """
    waiting: list[RecordGroup] = []
    count, num_bytes, size = 0, 0, next(sizes)
    failure: Exception | None = None
    try:
        for group in groups:
            while len(group.numbers):
                taken, total = min(len(group.numbers), size - count), 0
                is_whole = taken == size - count
                if most_bytes < math.inf:
                    lengths = group.records.lengths[:taken]
                    total = num_bytes + int(lengths.sum())
                if total > most_bytes:
                    ends = num_bytes + np.cumsum(lengths)
                    counts = np.arange(count + 1, count + 1 + taken)
                    stops = np.flatnonzero(is_full(counts, ends, size, most_bytes))
                    is_whole = len(stops) > 0
                    taken = int(stops[0]) + 1 if is_whole else taken
                waiting.append(group.part(slice(taken)))
                group = group.part(slice(taken, None))
                count, num_bytes = count + taken, total
                if is_whole:
                    yield RecordGroup.join(waiting)
                    waiting, count, num_bytes, size = [], 0, 0, next(sizes)
    except Exception as error:
        failure = error
    if waiting:
        yield RecordGroup.join(waiting)
    if failure is not None:
        raise failure


def is_full(count: _Count, num_bytes: _Count, size: int, most_bytes: float) -> _Count:
    """Whether a part is whole: it has `size` records, or enough bytes and a power of two of
    records, so that batches of as many rarely come from two parts, or far too many bytes. Few
    records may have 4 times the bytes, as an image batch would otherwise come from several parts.
    """
    is_aligned = (count & (count - 1)) == 0
    is_enough = (num_bytes > 4 * most_bytes) | ((num_bytes > most_bytes) & (count >= _MANY_RECORDS))
    found: _Count = (count == size) | (is_aligned & is_enough) | (num_bytes > 16 * most_bytes)
    return found


# Not methods: a stream that refers to itself would keep files open after it is dropped.


def read_groups(read: Callable[[int], Iterator[Block]], piece: Piece) -> Iterator[RecordGroup]:
    """The records of a piece, block by block."""
    # nothing after it is read
    last = None if piece.picked is None else max(piece.picked, default=-1)
    if last == -1:
        return
    end = 0
    for block in read(piece.file):
        end = block.position + len(block.offsets)
        if block.records is None:
            continue
        # Without a copy: the payloads stay in the block.
        rows = _rows(piece, block)
        records = PackedRecords(
            block.records.buffer, block.records.starts[rows], block.records.lengths[rows]
        )
        numbers = np.arange(block.position, block.position + len(block.records))[rows]
        if len(numbers):
            yield RecordGroup(
                records, np.full(len(numbers), piece.file), block.offsets[rows], numbers
            )
        if last is not None and end > last:
            return
    if end < piece.first:
        raise ValueError(
            f"the file has changed: file {piece.file} has fewer than {piece.first} records"
        )
    if last is not None:
        raise ValueError(f"the file has changed: file {piece.file} no longer has record {last}")


def read_records(read: Callable[[int], Iterator[Block]], piece: Piece) -> Iterator[StreamRecord]:
    """The records of a piece, as separate objects: a shuffle buffer must not keep whole blocks alive
    for a few records.
    """
    for group in read_groups(read, piece):
        yield from zip(*(column.tolist() for column in group), strict=True)


def _rows(piece: Piece, block: Block) -> slice | _Integers:
    """Which rows of a block belong to a piece: a slice or an array."""
    end = block.position + len(block.offsets)
    low = max(piece.first, block.position)
    if piece.picked is not None:
        picked = np.array(piece.picked, dtype=np.int64)
        return picked[(picked >= low) & (picked < end)] - block.position
    return slice(
        min(low + (piece.part - low) % piece.parts, end) - block.position, None, piece.parts
    )
