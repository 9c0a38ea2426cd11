"""One consumer's records of an epoch, from pieces of files: interleaved, shuffled by a buffer,
resumable.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, TypeAlias

from torch_tfrecord.random_stream import RandomStream
from torch_tfrecord.records import Block
from torch_tfrecord.shown import shown_value
from torch_tfrecord.streams.stream_pieces import (
    MOST_RECORDS,
    Piece,
    RecordGroup,
    StreamRecord,
    cut_groups,
    is_full,
    picked_pieces,
    read_groups,
    read_records,
)

__all__ = ["Place", "RecordStream"]

Place: TypeAlias = Mapping[str, Any]
"""Where a stream is, as JSON values, by name."""

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
        read: From a file's number to its blocks of records.
        cycle_length, block_length: At least 1.
        buffer_size: Records in the shuffle buffer; 0 for none.
        random: Draws from the buffer.

    Attributes:
        is_plain: Whether nothing is mixed, so that records come in groups, not one by one.
        part, num_taken: The records given last, and how many of them the consumer has taken; it
            counts them here.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        read: Callable[[int], Iterator[Block]],
        *,
        cycle_length: int,
        block_length: int,
        buffer_size: int,
        random: RandomStream,
    ) -> None:
        self._pieces, self._read = pieces, read
        self._records_of: Callable[[Piece], Iterator[StreamRecord]] = partial(read_records, read)
        self._block_length, self._buffer_size = block_length, buffer_size
        self._random = random
        self.is_plain = cycle_length == 1 and not buffer_size
        self._next_piece = 0
        self._slots: list[_Slot | None] = [None] * cycle_length
        self._slot = 0  # the slot whose turn it is
        self._turn = 0  # records taken in this turn
        self._buffer: list[StreamRecord] = []
        self._num_draws = 0
        self.part: RecordGroup | None = None
        self._taken: tuple[int, int] | None = None  # file and number
        self.num_taken = 0
        # While this stream has read a part ahead of the consumer: a copy from before that part,
        # which follows the consumer when someone asks for the place.
        self._behind: RecordStream | None = None
        self._behind_records: Iterator[StreamRecord] = iter(())
        self._num_behind = 0

    # Where it is.

    def place(self) -> Place:
        """The place right after the record taken last, as JSON values."""
        if self._behind is not None:
            missing = self.num_taken - self._num_behind
            self._num_behind += sum(1 for _ in islice(self._behind_records, missing))
            return self._behind.place()
        self._note_taken()
        if self._taken is not None:
            pieces = range(max(self._next_piece - 1, 0), len(self._pieces))
            piece = next(each for each in pieces if self._pieces[each].has(*self._taken))
            self._next_piece, self._slots = piece + 1, [self._open(piece, self._taken[1] + 1)]
        return {
            "next_piece": self._next_piece,
            "slot": self._slot,
            "turn": self._turn,
            "draws": self._num_draws,
            "slots": [slot and [slot.piece, slot.number] for slot in self._slots],
            "waiting": [[file, number] for _, file, _, number in self._buffer],
        }

    def _note_taken(self) -> None:
        """Note the record taken last from a plain stream, which reads ahead of its place."""
        if self.is_plain and self.part is not None and self.num_taken:
            row = self.num_taken - 1
            self._taken = int(self.part.files[row]), int(self.part.numbers[row])

    def check(self, place: Place, num_files: int) -> None:
        """ValueError unless this is a valid place in a stream of these pieces."""
        slots, waiting, num_pieces, next_piece = (
            place["slots"],
            place["waiting"],
            len(self._pieces),
            place["next_piece"],
        )
        num_slots = len(self._slots)
        most_taken = self._block_length if num_slots > 1 else MOST_RECORDS
        is_good = {
            "next_piece": next_piece <= num_pieces,
            "slots": isinstance(slots, list)
            and len(slots) == num_slots
            and self._are_open(slots, next_piece),
            "slot": place["slot"] < num_slots,
            "turn": place["turn"] <= most_taken,
            "waiting": _are_pairs(waiting, num_files)
            and len(waiting) <= self._buffer_size
            and _are_distinct(waiting),
            "draws": self._buffer_size > 0 or not place["draws"],
        }
        wrong = next((field for field, good in is_good.items() if not good), None)
        if wrong is not None:
            raise ValueError(
                f"expected a place of a stream of {num_pieces} pieces in the state ({num_slots} slots, "
                f"{self._buffer_size} waiting at most), got {wrong}={shown_value(place[wrong])}"
            )

    def _are_open(self, slots: Sequence[Sequence[int] | None], next_piece: int) -> bool:
        """Whether each is None or (number of an opened piece, number of its next record)."""
        pairs = [slot for slot in slots if slot is not None]
        return (
            _are_pairs(pairs, min(next_piece, len(self._pieces)))
            and _are_distinct([pair[:1] for pair in pairs])
            and all(number >= self._pieces[piece].first for piece, number in pairs)
        )

    def go_to(self, place: Place) -> None:
        """Continue from the place of another stream of the same pieces; call it before anything is
        taken.
        """
        self._next_piece, self._slot, self._turn = place["next_piece"], place["slot"], place["turn"]
        self._slots = [slot and self._open(*slot) for slot in place["slots"]]
        self._num_draws = place["draws"]
        # The buffer's next draw is the one that the interrupted stream would have made.
        self._random.skip(self._num_draws)
        self._buffer = self._again(place["waiting"])

    def left(self, place: Place) -> list[Piece]:
        """The pieces left at a place: records in the buffer, the rest of the open pieces, and the
        unopened ones.
        """
        # The buffer's records are single ones of files that may be read to their end.
        waiting = picked_pieces((file, number) for file, number in place["waiting"])
        begun = [self._pieces[slot[0]]._replace(first=slot[1]) for slot in place["slots"] if slot]
        return [*waiting, *begun, *self._pieces[place["next_piece"] :]]

    def _again(self, waiting: Sequence[Sequence[int]]) -> list[StreamRecord]:
        """The records of a saved shuffle buffer, read again."""
        found: dict[tuple[int, int], StreamRecord] = {}
        for piece in picked_pieces((file, number) for file, number in waiting):
            for record in self._records_of(piece):
                found[record[1], record[3]] = record
        missing = [(file, number) for file, number in waiting if (file, number) not in found]
        if missing:
            raise ValueError(
                f"the file has changed: file {missing[0][0]} no longer has record {missing[0][1]}"
            )
        return [found[file, number] for file, number in waiting]

    # One by one.

    def records(self) -> Iterator[StreamRecord]:
        """All records."""
        return self._mix(self._interleave()) if self._buffer_size else self._interleave()

    def _open(self, piece: int, first: int) -> _Slot:
        return _Slot(piece, first, self._records_of(self._pieces[piece]._replace(first=first)))

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

    def parts(self, size: int | None = None) -> Iterator[RecordGroup]:
        """All records, so many at a time: those before an error come before it is raised.

        The consumer counts in `num_taken`, which decides `place`.

        Args:
            size: Records in a part, which the consumer takes at once; None for few at first, then
                more, as far as they are small.
        """
        growing = chain(_PART_SIZES, repeat(_MOST_TOGETHER))
        sizes = growing if size is None else repeat(size)
        most_bytes = _MOST_BYTES if size is None else math.inf
        if self.is_plain:
            found = cut_groups(self._groups(), sizes, most_bytes)
        else:
            found = self._mixed_parts(sizes, most_bytes, follows=size is None)
        for part in found:
            # Of the last part all were taken, or one of them failed.
            self._note_taken()
            self.part, self.num_taken = part, 0
            yield part

    def _groups(self) -> Iterator[RecordGroup]:
        """All records of a plain stream, as they were read."""
        rest = range(self._next_piece, len(self._pieces))
        begun = [(slot.piece, slot.number) for slot in self._slots if slot is not None]
        for piece, first in [*begun, *((each, self._pieces[each].first) for each in rest)]:
            yield from read_groups(self._read, self._pieces[piece]._replace(first=first))

    def _mixed_parts(
        self, sizes: Iterator[int], most_bytes: float, *, follows: bool
    ) -> Iterator[RecordGroup]:
        read: dict[int, list[StreamRecord]] = {}  # for a part, by file
        records = self._interleave()
        if follows:
            records = _note(records, read)
        if self._buffer_size:
            records = self._mix(records)
        failure: Exception | None = None
        while failure is None:
            if follows:
                read.clear()
                self._behind, self._num_behind = self._copy(read), 0
                self._behind_records = self._behind.records()
            part: list[StreamRecord] = []
            num_bytes, size = 0, next(sizes)
            try:
                for record in islice(records, size):
                    part.append(record)
                    num_bytes += len(record[0])
                    if num_bytes > most_bytes and is_full(len(part), num_bytes, size, most_bytes):
                        break
            except Exception as error:  # raised after the records before it
                failure = error
            if part:
                yield RecordGroup.of(part)
            self._behind = None
            if not part:
                break
        if failure is not None:
            raise failure

    def _copy(self, read: Mapping[int, Sequence[StreamRecord]]) -> RecordStream:
        """A stream at the same place, which takes records that were read from there on."""
        other = copy.copy(self)
        other._random, other._buffer = copy.copy(self._random), self._buffer.copy()
        other._records_of = partial(_read_before, read)
        other._slots = [slot and other._open(slot.piece, slot.number) for slot in self._slots]
        other._behind = None
        return other


def _read_before(
    read: Mapping[int, Sequence[StreamRecord]], piece: Piece
) -> Iterator[StreamRecord]:
    for record in read.get(piece.file, ()):
        if piece.has(record[1], record[3]):
            yield record


def _note(
    records: Iterable[StreamRecord], read: dict[int, list[StreamRecord]]
) -> Iterator[StreamRecord]:
    for record in records:
        read.setdefault(record[1], []).append(record)
        yield record


def _are_pairs(pairs: Any, limit: int) -> bool:
    """Whether each is a pair (number below a limit, number)."""
    return isinstance(pairs, list) and all(
        isinstance(pair, (list, tuple))
        and [*map(type, pair)] == [int, int]
        and 0 <= pair[0] < limit
        and 0 <= pair[1] <= MOST_RECORDS
        for pair in pairs
    )


def _are_distinct(items: Sequence[Sequence[int]]) -> bool:
    return len(set(map(tuple, items))) == len(items)
