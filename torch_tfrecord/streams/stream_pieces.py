"""The unread rest of an epoch: pieces of files, how they are divided among consumers, and their
records, in groups with the file and offset of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from torch_tfrecord.records import Block, PackedRecords

__all__ = [
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
    picked: Sequence[int] | None = None

    def numbers(self, begin: int, end: int) -> _Integers:
        """The numbers of its records from one number up to another."""
        begin = max(begin, self.first)
        if self.picked is not None:
            picked = np.asarray(self.picked, np.int64)
            return picked[(picked >= begin) & (picked < end)]
        return np.arange(begin + (self.part - begin) % self.parts, end, self.parts)

    def split(self, part: int, parts: int) -> Piece:
        """One of `parts` parts, which together have every record exactly once."""
        if self.picked is not None:
            return self._replace(picked=self.picked[part::parts])
        return self._replace(part=self.part + self.parts * part, parts=self.parts * parts)


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


def picked_pieces(records: Iterable[Sequence[int]]) -> list[Piece]:
    """Pieces for single records, given as (file, number): one for each file."""
    by_file: dict[int, list[int]] = {}
    for file, number in records:
        by_file.setdefault(file, []).append(number)
    return [Piece(file, picked=sorted(numbers)) for file, numbers in sorted(by_file.items())]


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

    def part(self, rows: slice | _Integers) -> RecordGroup:
        """Some of the records, not copied."""
        found = self.records
        records = PackedRecords(found.buffer, found.starts[rows], found.lengths[rows])
        return RecordGroup(records, self.files[rows], self.offsets[rows], self.numbers[rows])

    def place(self, row: int) -> tuple[int, int, int]:
        """Number of the file, offset and number in the file of a record."""
        return int(self.files[row]), int(self.offsets[row]), int(self.numbers[row])

    @classmethod
    def of(
        cls, payloads: Sequence[bytes | memoryview], *places: Sequence[int] | _Integers
    ) -> RecordGroup:
        """Payloads, joined to one buffer, and the places of their records."""
        lengths = np.array([*map(len, payloads)], dtype=np.int64)
        packed = PackedRecords(b"".join(payloads), np.cumsum(lengths) - lengths, lengths)
        return cls(packed, *(np.asarray(column, dtype=np.int64) for column in places))

    @classmethod
    def join(cls, groups: Sequence[RecordGroup]) -> RecordGroup:
        """Several groups, of at least one record each, as one; copies them into one buffer unless
        there is only one.
        """
        if len(groups) == 1:
            return groups[0]
        payloads = [payload for group in groups for payload in group.records]
        places = zip(*(group[1:] for group in groups), strict=True)
        return cls.of(payloads, *map(np.concatenate, places))


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
                lengths = group.records.lengths[: size - count]
                taken, total = len(lengths), num_bytes + int(lengths.sum())
                is_whole = count + taken == size
                if total > most_bytes:
                    ends = num_bytes + np.cumsum(lengths)
                    counts = count + 1 + np.arange(taken)
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
    if piece.picked is not None and not piece.picked:
        return
    # Nothing after it is read.
    last = None if piece.picked is None else piece.picked[-1]
    end = 0
    for block in read(piece.file):
        end = block.position + len(block.offsets)
        numbers = piece.numbers(block.position, end)
        if block.records is not None and len(numbers):
            # Without a copy: the payloads stay in the block.
            files, every = np.full(end - block.position, piece.file), np.arange(block.position, end)
            group = RecordGroup(block.records, files, block.offsets, every)
            yield group.part(numbers - block.position)
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
