"""One consumer's records of an epoch, from pieces of files: interleaved, shuffled by a buffer,
resumable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from torch_tfrecord.loading.record_groups import GroupCutter, PartSizes, RecordGroup, StreamRecord
from torch_tfrecord.loading.stream_marks import AheadMarks, GroupMarks, Mark
from torch_tfrecord.loading.stream_pieces import MOST_RECORDS, Piece, picked_pieces
from torch_tfrecord.order.random_stream import RandomStream
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.records.scan import Block
from torch_tfrecord.shown import shown_value

__all__ = ["RecordStream"]


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
        num_taken: How many records of `groups` or `parts` were taken; the consumer counts them
            here.
        sizes: How many records come in each of `parts`.
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
        self._block_length, self._buffer_size = block_length, buffer_size
        self._random = random
        # If nothing is mixed, records come in groups, not one by one.
        self.is_plain = cycle_length == 1 and not buffer_size
        self._next_piece = 0
        self._slots: list[Iterator[StreamRecord] | None] = [None] * cycle_length
        # For each open slot: its piece, and the number of the first record not taken from it.
        self._slot_places: list[tuple[int, int] | None] = [None] * cycle_length
        self._slot = 0  # the slot whose turn it is
        self._turn = 0  # records taken in this turn
        self._buffer: list[StreamRecord] = []
        self._num_draws = 0
        self._drawn, self._was_replaced = -1, False  # the last draw
        self._marks = GroupMarks()
        self._ahead: AheadMarks | None = None
        self.num_taken = 0
        self.sizes = PartSizes()

    # Where it is.

    def place(self) -> dict[str, Any]:
        """The place right after the record taken last, as JSON values."""
        if self._ahead is not None:
            return self._ahead.place(self.num_taken, self._buffer)
        place = self._mark().place(self._buffer)
        if self.is_plain and self.num_taken:
            piece, number = self._marks.last(self.num_taken)
            place.update(next_piece=piece + 1, slots=[[piece, number + 1]])
        return place

    def _mark(self) -> Mark:
        slots, draw = tuple(self._slot_places), (self._num_draws, self._drawn, self._was_replaced)
        return Mark(self._next_piece, self._slot, self._turn, slots, *draw)

    def check(self, place: Mapping[str, Any], num_files: int) -> None:
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

    def _are_open(self, slots: list[Any], next_piece: int) -> bool:
        """Whether each is None or (number of an opened piece, number of its next record)."""
        pairs = [slot for slot in slots if slot is not None]
        return (
            _are_pairs(pairs, min(next_piece, len(self._pieces)))
            and _are_distinct([pair[:1] for pair in pairs])
            and all(number >= self._pieces[piece].first for piece, number in pairs)
        )

    def go_to(self, place: Mapping[str, Any]) -> None:
        """Continue from the place of another stream of the same pieces; call it before anything is
        taken.
        """
        self._next_piece, self._slot, self._turn = place["next_piece"], place["slot"], place["turn"]
        self._slot_places = [slot and tuple(slot) for slot in place["slots"]]
        self._slots = [slot and self._open(*slot) for slot in self._slot_places]
        self._num_draws = place["draws"]
        self._random.skip(self._num_draws)
        self._buffer = self._again(place["waiting"])

    def left(self, place: Mapping[str, Any]) -> list[Piece]:
        """The pieces left at a place: records in the buffer, the rest of the open pieces, and the
        unopened ones.
        """
        waiting = picked_pieces((file, number) for file, number in place["waiting"])
        begun = [self._pieces[slot[0]]._replace(first=slot[1]) for slot in place["slots"] if slot]
        return [*waiting, *begun, *self._pieces[place["next_piece"] :]]

    def _again(self, waiting: Sequence[Sequence[int]]) -> list[StreamRecord]:
        """The records of a saved shuffle buffer, read again."""
        found: dict[tuple[int, int], StreamRecord] = {}
        for piece in picked_pieces((file, number) for file, number in waiting):
            for record in _records(self._read, piece):
                found[record[1], record[3]] = record
        missing = [(file, number) for file, number in waiting if (file, number) not in found]
        if missing:
            raise ValueError(
                f"the file has changed: file {missing[0][0]} no longer has record {missing[0][1]}"
            )
        return [found[file, number] for file, number in waiting]

    # In groups.

    def groups(self) -> Iterator[RecordGroup]:
        """All records of a stream without mixing; the consumer counts in `num_taken`."""
        place = self._slot_places[0]
        if place is not None:
            yield from self._marked(*place)
        for number in range(self._next_piece, len(self._pieces)):
            yield from self._marked(number, self._pieces[number].first)

    def _marked(self, number: int, first: int) -> Iterator[RecordGroup]:
        for group in _groups(self._read, self._pieces[number]._replace(first=first)):
            self._marks.add(number, group.numbers, self.num_taken)
            yield group

    # One by one.

    def records(self) -> Iterator[StreamRecord]:
        """All records."""
        return self._mixed() if self._buffer_size else self._interleaved()

    def _open(self, number: int, first: int) -> Iterator[StreamRecord]:
        return _records(self._read, self._pieces[number]._replace(first=first))

    def _interleaved(self) -> Iterator[StreamRecord]:
        slots, places = self._slots, self._slot_places
        num_open = sum(slot is not None for slot in slots)
        # with one slot, turns do not matter
        block_length = self._block_length if len(slots) > 1 else sys.maxsize
        while self._next_piece < len(self._pieces) or num_open:
            number = self._slot
            slot, place = slots[number], places[number]
            if slot is None and self._next_piece < len(self._pieces):
                place = places[number] = self._next_piece, self._pieces[self._next_piece].first
                slot = slots[number] = self._open(*place)
                self._next_piece += 1
                num_open += 1
            if slot is not None and place is not None:
                for record in islice(slot, block_length - self._turn):
                    self._turn += 1
                    places[number] = place[0], record[3] + 1
                    yield record
                if self._turn < block_length:
                    slots[number] = places[number] = None
                    num_open -= 1
            self._turn, self._slot = 0, (number + 1) % len(slots)

    def _mixed(self) -> Iterator[StreamRecord]:
        buffer, size, below = self._buffer, self._buffer_size, self._random.below
        for record in self._interleaved():
            if len(buffer) < size:
                buffer.append(record)
                continue
            chosen = below(size)
            self._num_draws += 1
            self._drawn, self._was_replaced = chosen, True
            given, buffer[chosen] = buffer[chosen], record
            yield given
        while buffer:
            chosen = below(len(buffer))
            self._num_draws += 1
            self._drawn, self._was_replaced = chosen, False
            buffer[chosen], buffer[-1] = buffer[-1], buffer[chosen]
            yield buffer.pop()

    # In parts, whose samples are yielded one by one.

    def parts(self) -> Iterator[RecordGroup]:
        """All records, several at a time; the consumer counts in `num_taken`, which decides
        `place`.
        """
        if not self.is_plain:
            yield from self._parts_ahead()
            return
        groups = GroupCutter(self.groups())
        while (group := groups.cut(*self.sizes.after(self.num_taken))) is not None:
            yield group

    def _parts_ahead(self) -> Iterator[RecordGroup]:
        records = self.records()
        while True:
            self._ahead = ahead = AheadMarks(self._mark(), len(self._buffer), self.num_taken)
            error = self._read_ahead(records, ahead, *self.sizes.after(self.num_taken)[:2])
            if ahead.records:
                yield RecordGroup.of(ahead.records)
            self._ahead = None
            if error is not None:
                raise error
            if not ahead.records:
                return

    def _read_ahead(
        self, records: Iterator[StreamRecord], ahead: AheadMarks, size: int, most_bytes: int
    ) -> Exception | None:
        """Read the next part; an error is returned, to be raised after the records before it."""
        num_bytes = 0
        try:
            for record in islice(records, size):
                ahead.add(record, self._mark())
                num_bytes += len(record[0])
                if num_bytes > most_bytes:
                    break
        except Exception as error:
            return error
        return None


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


# Not methods: a stream that refers to itself would keep files open after it is dropped.


def _groups(read: Callable[[int], Iterator[Block]], piece: Piece) -> Iterator[RecordGroup]:
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


def _records(read: Callable[[int], Iterator[Block]], piece: Piece) -> Iterator[StreamRecord]:
    # As separate objects: a shuffle buffer must not keep whole blocks alive for a few records.
    for group in _groups(read, piece):
        columns = (group.records, group.files, group.offsets, group.numbers)
        yield from zip(*(column.tolist() for column in columns), strict=True)


def _rows(piece: Piece, block: Block) -> Any:
    """Which rows of a block belong to a piece: a slice or an array."""
    end = block.position + len(block.offsets)
    low = max(piece.first, block.position)
    if piece.picked is not None:
        picked = np.array(piece.picked, dtype=np.int64)
        return picked[(picked >= low) & (picked < end)] - block.position
    return slice(
        min(low + (piece.part - low) % piece.parts, end) - block.position, None, piece.parts
    )
