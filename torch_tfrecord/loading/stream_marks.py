"""Where a stream was behind each record that was read ahead of the one who takes them."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.loading.record_groups import StreamRecord

__all__ = ["AheadMarks", "GroupMarks", "Mark"]

SlotPlace: TypeAlias = "tuple[int, int] | None"
"""Of an open slot the number of its piece, and from which record on nothing is taken of it."""


class GroupMarks:
    """Which record of the groups of a stream is where, from the one taken last on."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int, npt.NDArray[np.int64]]] = deque()  # end, piece, numbers of a group
        self._num_read = 0

    def add(self, piece: int, numbers: npt.NDArray[np.int64], num_taken: int) -> None:
        """A group was read, when so many records were taken."""
        self._forget_before(num_taken)
        self._num_read += len(numbers)
        self._marks.append((self._num_read, piece, numbers))

    def _forget_before(self, num_taken: int) -> None:
        while self._marks and self._marks[0][0] < num_taken:
            self._marks.popleft()

    def last(self, num_taken: int) -> tuple[int, int]:
        """Number of the piece of the record taken last, at least the first one, and its number in the file."""
        self._forget_before(num_taken)
        end, piece, numbers = self._marks[0]
        return piece, int(numbers[len(numbers) - 1 - (end - num_taken)])


class Mark(NamedTuple):
    """Where a mixed stream is behind a record."""

    next_piece: int
    slot: int
    turn: int
    slots: tuple[SlotPlace, ...]
    num_draws: int
    drawn: int
    """The record's place in the buffer; -1 without one."""
    was_replaced: bool
    """Whether another record came there; else the buffer became shorter."""

    def place(self, buffer: list[StreamRecord]) -> dict[str, Any]:
        """As JSON knows it, with the records that wait then."""
        return {
            "next_piece": self.next_piece,
            "slot": self.slot,
            "turn": self.turn,
            "draws": self.num_draws,
            "slots": [slot and list(slot) for slot in self.slots],
            "waiting": [[file, number] for _, file, _, number in buffer],
        }


class AheadMarks:
    """The records of a mixed stream that were read ahead, and where it was behind each.

    Args:
        begin: Where it is before the first.
        num_waiting: Records in the buffer then.
        num_taken: Records that were taken before.
    """

    def __init__(self, begin: Mark, num_waiting: int, num_taken: int) -> None:
        self._marks = [begin]
        self._num_waiting, self._num_taken = num_waiting, num_taken
        self.records: list[StreamRecord] = []

    def add(self, record: StreamRecord, mark: Mark) -> None:
        """The next record was read."""
        self.records.append(record)
        self._marks.append(mark)

    def place(self, num_taken: int, buffer: list[StreamRecord]) -> dict[str, Any]:
        """Where the stream was when so many records were taken; the buffer is as it is now."""
        count = num_taken - self._num_taken
        waiting = buffer.copy()
        for number in range(len(self.records), count, -1):
            _put_back(waiting, self.records[number - 1], self._marks[number])
        if not count:
            del waiting[self._num_waiting :]  # it was filled since
        return self._marks[count].place(waiting)


def _put_back(waiting: list[StreamRecord], record: StreamRecord, mark: Mark) -> None:
    if mark.drawn < 0:
        return
    if mark.was_replaced:
        waiting[mark.drawn] = record
    else:
        waiting.append(record)
        waiting[mark.drawn], waiting[-1] = waiting[-1], waiting[mark.drawn]
