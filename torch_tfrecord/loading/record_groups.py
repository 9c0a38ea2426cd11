"""Records in a stream: groups of them in one buffer, with the file and offset of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import scratch_bytes
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.records.packed_records import PackedRecords

__all__ = ["GroupCutter", "PartSizes", "RecordGroup", "StreamRecord", "grouped", "regroup"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"


# One record: payload, number of its file, offset of its length field, and its number in the file. A
# plain tuple, since making a named one takes longer than everything else that a stream does with a
# small record.
StreamRecord: TypeAlias = "tuple[bytes, int, int, int]"


# How many records are parsed together: each part is twice as large as the one before, so that the
# first sample does not wait long, and the rest take half the time or less. A limit in bytes bounds
# the memory of what is parsed.
_FEWEST_TOGETHER = 16
_MOST_TOGETHER = 1024
_MOST_BYTES = 1 << 20
_MOST_BATCH_BYTES = 1 << 26


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
            low, high = int(records.starts.min()), int((records.starts + records.lengths).max())
            parts.append(np.frombuffer(records.buffer, np.uint8)[low:high])
            starts.append(records.starts + (end - low))
            end += high - low
        lengths = [group.records.lengths for group in groups]
        joined = np.concatenate(parts, out=scratch_bytes(end))
        packed = PackedRecords(joined, np.concatenate(starts), np.concatenate(lengths))
        return cls(
            packed,
            *(
                np.concatenate(column)
                for column in zip(*(group[1:] for group in groups), strict=True)
            ),
        )


def grouped(records: Iterator[StreamRecord], size: int) -> Iterator[RecordGroup]:
    """Groups of up to `size` records; the records before an error are yielded before it is
    raised.
    """
    while True:
        taken: list[StreamRecord] = []
        try:
            taken.extend(islice(records, size))
        except TFRecordError:
            if taken:
                yield RecordGroup.of(taken)
            raise
        if not taken:
            return
        yield RecordGroup.of(taken)


def regroup(
    groups: Iterator[RecordGroup],
    size: int,
    *,
    drop_last: bool,
    before_error: Callable[[RecordGroup], object],
) -> Iterator[RecordGroup]:
    """The same records in groups of `size`; the last may have fewer, or is dropped with
    `drop_last`.

    Args:
        groups: In order; empty ones are skipped.
        size: At least 1.
        drop_last: Drop a last group that is not full.
        before_error: If `groups` raises a TFRecordError, called with the records of the group that
            was not full yet.
    """
    waiting: list[RecordGroup] = []
    missing = size
    try:
        for group in groups:
            while len(group.numbers) >= missing:
                yield RecordGroup.join([*waiting, group.part(slice(missing))])
                group = group.part(slice(missing, None))
                waiting, missing = [], size
            if len(group.numbers):
                waiting.append(group)
                missing -= len(group.numbers)
    except TFRecordError:
        if waiting:
            before_error(RecordGroup.join(waiting))
        raise
    if waiting and not drop_last:
        yield RecordGroup.join(waiting)


class PartSizes:
    """How many records of a stream are parsed together: a batch's worth, once the samples are made
    into batches.

    Such a batch takes the columns as they are, instead of copying rows from several parts.
    """

    def __init__(self) -> None:
        self._usual = _FEWEST_TOGETHER
        self._batch = 0, 0  # samples of the last batch, and how many were taken up to its end

    def learn(self, begin: int, num_samples: int, num_rows: int) -> None:
        """Note that a batch of `num_samples` ended `num_rows` rows after the beginning of a
        part.
        """
        self._batch = num_samples, begin + num_rows

    def after(self, num_taken: int) -> tuple[int, int, bool]:
        """The arguments for `GroupCutter.cut` after so many records were taken."""
        size, end = self._batch
        if 0 <= num_taken - end < size:  # else the samples are no longer made into batches
            return (
                size * max(1, _FEWEST_TOGETHER // size) + end - num_taken,
                _MOST_BATCH_BYTES,
                True,
            )
        size, self._usual = self._usual, min(2 * self._usual, _MOST_TOGETHER)
        return size, _MOST_BYTES, False


class GroupCutter:
    """Cuts groups to other sizes.

    Args:
        groups: In order.
    """

    def __init__(self, groups: Iterator[RecordGroup]) -> None:
        self._groups = groups
        self._left: RecordGroup | None = None
        self._error: Exception | None = None

    def cut(self, size: int, most_bytes: int, joins: bool) -> RecordGroup | None:
        """The next records; None at the end. An error of `groups` is raised after the records
        before it.

        Args:
            size: The most records.
            most_bytes: Stop once they have this many bytes.
            joins: Join several groups if one is too small.
        """
        parts: list[RecordGroup] = []
        while size > 0 and most_bytes > 0 and (joins or not parts):
            part = self._part(size, most_bytes, is_first=not parts)
            if part is None:
                break
            parts.append(part)
            size -= len(part.numbers)
            most_bytes -= int(part.records.lengths.sum())
        return RecordGroup.join(parts) if parts else None

    def _part(self, size: int, most_bytes: int, *, is_first: bool) -> RecordGroup | None:
        """Records of one group, at least one."""
        try:
            group = self._next()
        except Exception as error:
            if is_first:
                raise
            self._error = error
            return None
        if group is None:
            return None
        ends = np.cumsum(group.records.lengths[:size])
        high = max(1, int(np.searchsorted(ends, most_bytes, side="right")))
        self._left = group.part(slice(high, None))
        return group.part(slice(high))

    def _next(self) -> RecordGroup | None:
        if self._error is not None:
            raise self._error
        group, self._left = self._left, None
        return group if group is not None and len(group.numbers) else next(self._groups, None)
