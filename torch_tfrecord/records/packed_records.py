"""The records in one buffer: find where they start, check their checksums, and hold their payloads
for parsers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import Buffer, Ints
from torch_tfrecord.errors import CorruptRecordError
from torch_tfrecord.native import native_module
from torch_tfrecord.records.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    check_payload,
    payload_length,
)

if TYPE_CHECKING:
    from torch_tfrecord.native.jobs import Job, Started

__all__ = ["PackedRecords", "are_good", "walk"]


class Walk(NamedTuple):
    """The complete, undamaged records at the start of a buffer, and why the walk stopped.

    Attributes:
        starts: int64 [N]: first byte of each payload in the buffer.
        lengths: int64 [N]: size of each payload in bytes.
        used: Bytes that these records take.
        next_length: Payload length of the incomplete record after them; None if its header is bad
            or incomplete, too.
        problem: The error of the record after them; None if the walk stopped at the end of the
            buffer.
    """

    starts: Ints
    lengths: Ints
    used: int
    next_length: int | None
    problem: CorruptRecordError | None


def walk(buffer: Buffer, *, verify_crc: bool) -> Walk:
    """Walk the records of a bytes-like buffer that starts with a header.

    Args:
        buffer: Bytes-like.
        verify_crc: Check the payload checksums; those of the lengths are always checked.
    """
    native = native_module("frames")
    if native is None:
        return _walk(bytes(buffer), verify_crc)
    # As many as empty records would fit: one call, without growing.
    found = np.empty((2, len(buffer) // OVERHEAD_BYTES), dtype=np.int64)
    count, used = native.walk(buffer, found, verify_crc)
    # The core says where, the fallback how: all errors are worded in one place.
    after = _walk(bytes(buffer[used : used + HEADER_BYTES]), verify_crc)
    if after.next_length is not None:
        end = used + after.next_length + OVERHEAD_BYTES
        if end <= len(buffer):
            after = _walk(bytes(buffer[used:end]), verify_crc)
    starts, lengths = found[:, :count].copy()
    return Walk(starts, lengths, used, after.next_length, after.problem)


def _walk(buffer: bytes, verify: bool) -> Walk:
    """The Python fallback."""
    starts: list[int] = []
    lengths: list[int] = []
    at, size = 0, len(buffer)
    next_length = problem = None
    try:
        while at <= size - HEADER_BYTES:
            start = at + HEADER_BYTES
            length = payload_length(buffer[at:start])
            end = start + length
            if end + FOOTER_BYTES > size:
                next_length = length
                break
            if verify:
                check_payload(buffer[start:end], buffer[end : end + FOOTER_BYTES])
            starts.append(start)
            lengths.append(length)
            at = end + FOOTER_BYTES
    except CorruptRecordError as error:
        problem = error.with_traceback(None)  # which would keep the buffer
    return Walk(
        np.array(starts, dtype=np.int64),
        np.array(lengths, dtype=np.int64),
        at,
        next_length,
        problem,
    )


def are_good(records: PackedRecords, *, verify_crc: bool) -> bool:
    """Whether headers and checksums are right around each of the payloads."""
    native, lengths = native_module("frames"), records.lengths
    if native is not None:
        none = np.empty((4, 0), np.int64)
        job = native.ReadJob([], 0, none, 0, 0, records.buffer, records.starts, lengths, verify_crc)
        return native_module("jobs").run([job]) == 1  # type: ignore[union-attr]
    places = zip((records.starts - HEADER_BYTES).tolist(), lengths.tolist(), strict=True)
    return all(
        _walk(bytes(records.buffer[at : at + length + OVERHEAD_BYTES]), verify_crc).lengths.tolist()
        == [length]
        for at, length in places
    )


class _Work(Protocol):
    """A parser's work on some records."""

    def finish(self) -> Sequence[object]:
        """Their columns."""


class PackedRecords(Sequence[memoryview]):
    """The payloads of several records: record i is `buffer[starts[i] : starts[i] + lengths[i]]`.

    Args:
        buffer: Bytes-like; bytes between the payloads (headers, footers) are ignored. Not copied.
        starts: int64 [N], in any order.
        lengths: int64 [N].
        job: Fills the buffer, if that is still to be done: when it is first used, or by a caller that
            runs it together with jobs of its own.
        again: Where the job fails, reads the same records in another way, or raises the error.

    Attributes:
        memory: The buffer, perhaps not filled yet.
        begun: What a parser has begun to make of them; None for nothing.

    Example:
        >>> records = PackedRecords(b"..ab...c", np.array([7, 2]), np.array([1, 2]))
        >>> records.tolist()
        [b'c', b'ab']
    """

    def __init__(
        self,
        buffer: Buffer | npt.NDArray[np.uint8],
        starts: Ints,
        lengths: Ints,
        job: Job | None = None,
        again: Callable[[], PackedRecords] | None = None,
    ) -> None:
        self.memory = memoryview(buffer).cast("B")  # type: ignore[arg-type]  # NumPy declares the buffer protocol from Python 3.12 on
        self.starts = starts
        self.lengths = lengths
        self.job, self._again = job, again
        self.begun: tuple[object, Sequence[_Work], Started] | None = None

    @property
    def buffer(self) -> memoryview:
        """The bytes in which the payloads are."""
        self.read()
        return self.memory

    def read(self) -> None:
        """Fill the buffer, unless it is.

        Raises:
            TFRecordError: See `again`.
        """
        if self.job is not None and self._again is not None:
            if native_module("jobs").run([self.job]) != 1:  # type: ignore[union-attr]
                for start, payload in zip(self.starts.tolist(), self._again(), strict=True):
                    self.memory[start : start + len(payload)] = payload
            self.job = None

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, number: int) -> memoryview: ...

    @overload
    def __getitem__(self, number: slice) -> PackedRecords: ...

    def __getitem__(self, number: int | slice) -> memoryview | PackedRecords:
        """The payload of a record, without copying; for a slice, the PackedRecords of those."""
        if isinstance(number, slice):
            return PackedRecords(self.buffer, self.starts[number], self.lengths[number])
        start = int(self.starts[number])
        return self.buffer[start : start + int(self.lengths[number])]

    def __iter__(self) -> Iterator[memoryview]:
        buffer = self.buffer
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield buffer[start : start + length]

    def tolist(self) -> list[bytes]:
        """Each payload as bytes; not copied if the buffer is exactly one payload.

        Raises:
            ValueError: A payload is not inside the buffer.
        """
        # A record read alone is handed on as it is: copying a picture takes time.
        whole = self.buffer.obj
        if (
            len(self) == 1
            and type(whole) is bytes
            and self.starts[0] == 0
            and self.lengths[0] == len(whole)
        ):
            return [whole]
        native = native_module("frames")
        if native is not None:
            return native.slices(self.buffer, self.starts, self.lengths)
        size = len(self.buffer)
        # A slice would silently be shorter.
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            if start < 0 or length < 0 or length > size - start:
                raise ValueError(
                    f"expected parts of a buffer of {size} bytes, got {length} bytes from {start}"
                )
        return list(map(bytes, self))
