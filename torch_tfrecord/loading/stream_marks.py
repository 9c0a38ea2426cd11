"""The place of a stream after each record that was read ahead of the consumer."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.loading.record_groups import StreamRecord

__all__ = ["AheadMarks", "GroupMarks", "Mark"]

SlotPlace: TypeAlias = "tuple[int, int] | None"
"""An open slot: the number of its piece, and of the first record not taken from it."""


class GroupMarks:
    """The piece and number of each record in a stream's groups, from the one taken last on."""

    def __init__(self) -> None:
        # end, piece, numbers of a group
        self._marks: deque[tuple[int, int, npt.NDArray[np.int64]]] = deque()
        self._num_read = 0

    def add(self, piece: int, numbers: npt.NDArray[np.int64], num_taken: int) -> None:
        """Note that a group was read after `num_taken` records were taken."""
        self._forget_before(num_taken)
        self._num_read += len(numbers)
        self._marks.append((self._num_read, piece, numbers))

    def _forget_before(self, num_taken: int) -> None:
        while self._marks and self._marks[0][0] < num_taken:
            self._marks.popleft()

    def last(self, num_taken: int) -> tuple[int, int]:
        """The record taken last: the number of its piece, and its number in the file; one must have
        been taken.
        """
        self._forget_before(num_taken)
        end, piece, numbers = self._marks[0]
        return piece, int(numbers[len(numbers) - 1 - (end - num_taken)])


class Mark(NamedTuple):
    """The place of a mixed stream after a record."""

    next_piece: int
    slot: int
    turn: int
    slots: tuple[SlotPlace, ...]
    num_draws: int
    drawn: int
    """The record's place in the buffer; -1 without one."""
    was_replaced: bool
    """Whether another record took its place in the buffer; else the buffer became shorter."""

    def place(self, buffer: list[StreamRecord]) -> dict[str, Any]:
        """The place as JSON values, with the records in the buffer."""
        return {
            "next_piece": self.next_piece,
            "slot": self.slot,
            "turn": self.turn,
            "draws": self.num_draws,
            "slots": [slot and list(slot) for slot in self.slots],
            "waiting": [[file, number] for _, file, _, number in buffer],
        }


class AheadMarks:
    """The records of a mixed stream that were read ahead, and the stream's place after each.

    Args:
        begin: The place before the first.
        num_waiting: Records in the buffer at that place.
        num_taken: Records taken before.
    """

    def __init__(self, begin: Mark, num_waiting: int, num_taken: int) -> None:
        self._marks = [begin]
        self._num_waiting, self._num_taken = num_waiting, num_taken
        self.records: list[StreamRecord] = []

    def add(self, record: StreamRecord, mark: Mark) -> None:
        """Note that the next record was read."""
        self.records.append(record)
        self._marks.append(mark)

    def place(self, num_taken: int, buffer: list[StreamRecord]) -> dict[str, Any]:
        """The place when `num_taken` records were taken; `buffer` is the buffer of now."""
        count = num_taken - self._num_taken
        waiting = buffer.copy()
        for number in range(len(self.records), count, -1):
            _put_back(waiting, self.records[number - 1], self._marks[number])
        if not count:
            del waiting[self._num_waiting :]  # records that came in since
        return self._marks[count].place(waiting)


def _put_back(waiting: list[StreamRecord], record: StreamRecord, mark: Mark) -> None:
    if mark.drawn < 0:
        return
    if mark.was_replaced:
        waiting[mark.drawn] = record
    else:
        waiting.append(record)
        waiting[mark.drawn], waiting[-1] = waiting[-1], waiting[mark.drawn]
