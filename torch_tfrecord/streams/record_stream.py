"""One consumer's records of an epoch: the pieces of files that are left, how they are divided among
consumers, and their records, interleaved, shuffled by a buffer, resumable.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from torch.utils.data import get_worker_info

from torch_tfrecord.batch_memory import Ints, scratch_bytes
from torch_tfrecord.order import Rank
from torch_tfrecord.per_process import num_processors
from torch_tfrecord.random_stream import RandomStream
from torch_tfrecord.records import Block, PackedRecords

__all__ = ["Piece", "RecordGroup", "RecordStream", "deal_out"]


_Made = TypeVar("_Made")
_Wanted: TypeAlias = Callable[[], tuple[int, int]]


class _ReadBlocks(Protocol):
    """Reads a file block by block, by its number; the other arguments are those of `RecordScanner`."""

    def __call__(
        self, file: int, /, wanted: _Wanted | None, is_ahead: bool = ...
    ) -> Iterator[Block]: ...


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

    def numbers(self, begin: int, end: int) -> Ints:
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
        pieces: The rest of all files.
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
    files: Ints
    offsets: Ints
    numbers: Ints

    def part(self, rows: slice | Ints) -> RecordGroup:
        """Some of the records, not copied."""
        found = self.records
        records = PackedRecords(found.buffer, found.starts[rows], found.lengths[rows])
        return RecordGroup(records, self.files[rows], self.offsets[rows], self.numbers[rows])

    def place(self, row: int) -> tuple[int, int, int]:
        """Number of the file, offset and number in the file of a record."""
        return int(self.files[row]), int(self.offsets[row]), int(self.numbers[row])

    @classmethod
    def of(
        cls, payloads: Sequence[bytes | memoryview], *places: Sequence[int] | Ints
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
    groups: Iterable[RecordGroup], sizes: Iterator[int], most_bytes: float, wanted: list[int]
) -> Iterator[RecordGroup]:
    """The same records in parts of some sizes; the last may have fewer, and so may those of large
    records (see `fitting`). The records before an error are yielded before it is raised.

    Before a group is taken, `wanted` receives how many records the next part lacks, and how many it
    has in all.
    """
    waiting: list[RecordGroup] = []
    count, num_bytes, size = 0, 0, next(sizes)
    wanted[:] = size, size
    failure: Exception | None = None
    try:
        for group in groups:
            mean = int(group.records.lengths.mean())
            while len(group.numbers):
                taken = group.part(slice(size - count))
                group = group.part(slice(size - count, None))
                waiting.append(taken)
                count += len(taken.numbers)
                num_bytes += int(taken.records.lengths.sum())
                if count == size or num_bytes > 16 * most_bytes:
                    yield RecordGroup.join(waiting)
                    waiting, count, num_bytes = [], 0, 0
                    size = fitting(next(sizes), mean, most_bytes)
            wanted[:] = size - count, size
    except Exception as error:
        failure = error
    if waiting:
        yield RecordGroup.join(waiting)
    if failure is not None:
        raise failure


def fitting(size: int, mean: int, most_bytes: float) -> int:
    """How many records of so many bytes to take together in place of `size`: half as long as that
    is enough bytes, so that batches of a power of two rarely come from two parts. Few records may
    have 4 times the bytes, as an image batch would otherwise come from several parts.
    """
    while size > 1 and (half := size // 2) * mean > most_bytes * (
        1 if half >= _MANY_RECORDS else 4
    ):
        size = half
    return size


# Not methods: a stream that refers to itself would keep files open after it is dropped.


def read_groups(
    read: _ReadBlocks, piece: Piece, wanted: Sequence[int] | None = None
) -> Iterator[RecordGroup]:
    """The records of a piece, block by block; for `wanted` see `cut_groups`."""
    if piece.picked is not None and not piece.picked:
        return
    # Nothing after it is read.
    last = None if piece.picked is None else piece.picked[-1]
    end = 0
    parts = None if wanted is None else lambda: (wanted[0] * piece.parts, wanted[1] * piece.parts)
    for block in read(piece.file, parts):
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


def read_records(read: _ReadBlocks, piece: Piece) -> Iterator[StreamRecord]:
    """The records of a piece, as separate objects: a shuffle buffer must not keep whole blocks alive
    for a few records.
    """
    for group in read_groups(read, piece):
        yield from zip(*(column.tolist() for column in group), strict=True)


def one_ahead(items: Iterator[_Made]) -> Iterator[_Made]:
    """The same, but for the first each when the next was made; those before an error come before it."""
    yield from islice(items, 1)  # the consumer may want no more
    waiting: list[_Made] = []
    failure: Exception | None = None
    try:
        for item in items:
            yield from waiting
            waiting = [item]
    except Exception as error:
        failure = error
    yield from waiting
    if failure is not None:
        raise failure


# All of a consumer.

# How many records are parsed together: the first sample does not wait long, and later parts take
# half the time or less; powers of two, so that batches of as many rarely come from two parts.
_PART_SIZES = (16, 16, 32, 64, 128, 256, 512)
_MOST_TOGETHER = 1024
# A part of more bytes than this ends at a power of two of records: it stays in the processor's
# cache until it is parsed.
_MOST_BYTES = 1 << 20


class _Slot:
    """An open piece: its number, the number of the first record not taken from it, and the records
    from there on.
    """

    __slots__ = ("number", "piece", "records")

    def __init__(self, piece: int, number: int, records: Iterator[StreamRecord]) -> None:
        self.piece, self.number, self.records = piece, number, records


class RecordStream:
    """The records of some pieces of files in order, and how many of them the consumer has taken.

    `cycle_length` slots are visited round-robin, as in tf.data's ``interleave(cycle_length,
    block_length)``. An empty slot opens the next piece at its turn, then up to `block_length`
    records are taken. If the piece ends, its slot becomes empty and the turn ends: the next piece
    opens at that slot's next turn. Taking exactly `block_length` records does not yet reach the
    end. Then a shuffle buffer of `buffer_size` records mixes them: a random record in it is yielded
    and replaced by the next one.

    Args:
        pieces: In order.
        read: From a file's number to its blocks of records; for `wanted` see `RecordScanner`.
        order: "cycle_length" and "block_length", at least 1; "shuffle_buffer_size", the records in the
            shuffle buffer, 0 for none.
        random: Draws from the buffer.
        origin: What the pieces are of, as JSON values by name.

    Attributes:
        origin: As given.
        is_plain: Whether nothing is mixed, so that records come in groups, not one by one.
        is_ahead: Whether threads of the core read and parse ahead.
        num_taken: How many records of the part given last the consumer has taken; it counts them
            here.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        read: _ReadBlocks,
        order: Mapping[str, Any],
        random: RandomStream,
        origin: Mapping[str, Any],
    ) -> None:
        self._pieces, self._read = pieces, read
        cycle_length, self._block_length = order["cycle_length"], order["block_length"]
        self._buffer_size = buffer_size = order["shuffle_buffer_size"]
        self._random, self.origin = random, origin
        self.is_plain = cycle_length == 1 and not buffer_size
        # Not where many files are open at once, nor in workers, which take all processors.
        share = num_processors() // Rank.num_on_host()
        self.is_ahead = self.is_plain and get_worker_info() is None and share > 1
        self._next_piece = 0
        self._slots: list[_Slot | None] = [None] * cycle_length
        self._slot = 0  # the slot whose turn it is
        self._turn = 0  # records taken in this turn
        self._buffer: list[StreamRecord] = []
        self._num_draws = 0
        # Records that were mixed, but not taken, before the stream went on from a place.
        self._ahead: deque[StreamRecord] = deque()
        self._part: RecordGroup | None = None
        self.num_taken = 0

    # Where it is.

    def place(self) -> dict[str, Any]:
        """The place right after the record taken last, as JSON values by name: where reading goes
        on, and which records have been read but not taken.
        """
        self._note_taken()
        ahead = [record[1::2] for record in self._ahead]
        if self._part is not None and not self.is_plain:
            rest = self._part.part(slice(self.num_taken, None))
            ahead = [*zip(rest.files.tolist(), rest.numbers.tolist(), strict=True), *ahead]
        return {
            "next_piece": self._next_piece,
            "slot": self._slot,
            "turn": self._turn,
            "draws": self._num_draws,
            "slots": [slot and [slot.piece, slot.number] for slot in self._slots],
            "waiting": [[file, number] for _, file, _, number in self._buffer],
            "ahead": [*map(list, ahead)],
        }

    def _note_taken(self) -> None:
        """Note the record taken last from a plain stream, which has one slot, and reads ahead."""
        if self.is_plain and self._part is not None and self.num_taken:
            file, _, number = self._part.place(self.num_taken - 1)
            piece = max(self._next_piece - 1, 0)
            while (each := self._pieces[piece]).file != file or not each.numbers(
                number, number + 1
            ).size:
                piece += 1
            self._next_piece, self._slots = piece + 1, [self._open(piece, number + 1)]

    def go_to(self, place: Mapping[str, Any]) -> None:
        """Continue from the place of another stream of the same pieces; call it before anything is
        taken.
        """
        self._next_piece, self._slot, self._turn = place["next_piece"], place["slot"], place["turn"]
        self._slots = [slot and self._open(*slot) for slot in place["slots"]]
        self._num_draws = place["draws"]
        # The buffer's next draw is the one that the interrupted stream would have made.
        self._random.skip(self._num_draws)
        # Their files are read once more.
        wanted = [*place["waiting"], *place["ahead"]]
        found = {
            record[1::2]: record
            for piece in picked_pieces(wanted)
            for record in read_records(self._read, piece)
        }
        again = [found[file, number] for file, number in wanted]
        self._buffer = again[: len(place["waiting"])]
        self._ahead = deque(again[len(place["waiting"]) :])

    def left(self, place: Mapping[str, Any]) -> list[Piece]:
        """The pieces left at a place: records that were read, the rest of the open pieces, and the
        unopened ones.
        """
        # The records are single ones of files that may be read to their end.
        read = picked_pieces([*place["waiting"], *place["ahead"]])
        begun = [self._pieces[slot[0]]._replace(first=slot[1]) for slot in place["slots"] if slot]
        return [*read, *begun, *self._pieces[place["next_piece"] :]]

    # One by one.

    def records(self) -> Iterator[StreamRecord]:
        """All records."""
        while self._ahead:
            yield self._ahead.popleft()
        yield from self._mix(self._interleave()) if self._buffer_size else self._interleave()

    def _open(self, piece: int, first: int) -> _Slot:
        return _Slot(
            piece, first, read_records(self._read, self._pieces[piece]._replace(first=first))
        )

    def _interleave(self) -> Iterator[StreamRecord]:
        slots, pieces = self._slots, self._pieces
        # with one slot, turns do not matter
        block_length = self._block_length if len(slots) > 1 else sys.maxsize
        while self._next_piece < len(pieces) or any(slots):
            number = self._slot
            slot = slots[number]
            if slot is None and self._next_piece < len(pieces):
                slot = self._open(self._next_piece, pieces[self._next_piece].first)
                slots[number] = slot
                self._next_piece += 1
            if slot is not None:
                for record in islice(slot.records, block_length - self._turn):
                    self._turn += 1
                    slot.number = record[3] + 1
                    yield record
                # The piece has ended within the turn.
                if self._turn < block_length:
                    slots[number] = None
            self._turn, self._slot = 0, (number + 1) % len(slots)

    def _mix(self, records: Iterable[StreamRecord]) -> Iterator[StreamRecord]:
        # Locals: this runs for each record.
        buffer, size, below = self._buffer, self._buffer_size, self._random.below
        for record in records:
            if len(buffer) < size:
                buffer.append(record)
                continue
            chosen = below(size)
            self._num_draws += 1
            given, buffer[chosen] = buffer[chosen], record
            yield given
        while buffer:
            chosen = below(len(buffer))
            self._num_draws += 1
            # The last one takes its place: removing from the middle would move all after it.
            buffer[chosen], buffer[-1] = buffer[-1], buffer[chosen]
            yield buffer.pop()

    # In parts.

    def parts(
        self, make: Callable[[RecordGroup], _Made], size: int | None = None
    ) -> Iterator[_Made]:
        """All records, so many at a time: those before an error come before it is raised.

        The consumer counts in `num_taken`, which decides `place`.

        Args:
            make: What to give of a part; where `is_ahead`, it is made before the part before is given.
            size: Records in a part, which the consumer takes at once; None for few at first, then
                more, as far as they are small.
        """
        growing = chain(_PART_SIZES, repeat(_MOST_TOGETHER))
        sizes = growing if size is None else repeat(size)
        most_bytes = _MOST_BYTES if size is None else math.inf
        parts = self._plain_parts if self.is_plain else self._mixed_parts
        found = ((part, make(part)) for part in parts(sizes, most_bytes))
        for part, made in one_ahead(found) if self.is_ahead else found:
            # All of the last part were taken, or one of them failed.
            self._note_taken()
            self._part, self.num_taken = part, 0
            yield made

    def _plain_parts(self, sizes: Iterator[int], most_bytes: float) -> Iterator[RecordGroup]:
        wanted: list[int] = []
        read = partial(self._read, is_ahead=self.is_ahead)
        groups = (read_groups(read, piece, wanted) for piece in self.left(self.place()))
        return cut_groups(chain.from_iterable(groups), sizes, most_bytes, wanted)

    def _mixed_parts(self, sizes: Iterator[int], most_bytes: float) -> Iterator[RecordGroup]:
        records = self.records()
        failure: Exception | None = None
        mean = 0
        for size in sizes:
            part: list[StreamRecord] = []
            num_bytes = 0
            try:
                for record in islice(records, fitting(size, mean, most_bytes)):
                    part.append(record)
                    num_bytes += len(record[0])
                    if num_bytes > 16 * most_bytes:
                        break
            except Exception as error:  # raised after the records before it
                failure = error
            if part:
                mean = num_bytes // len(part)
                yield RecordGroup.of(*zip(*part, strict=True))
            if failure is not None:
                raise failure
            if not part:
                return
