"""Walk all records of a stream from start to end, block by block: the core of reading, indexing and
verifying.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from torch_tfrecord.batch_memory import NO_INTS, Ints, scratch_bytes
from torch_tfrecord.errors import CorruptRecordError, LimitExceededError, TFRecordError
from torch_tfrecord.files import FileSource, LocalFile
from torch_tfrecord.native import native_module
from torch_tfrecord.records.codecs import Gap
from torch_tfrecord.records.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    checksum_error,
    find_headers,
    guess_content,
    is_header,
)
from torch_tfrecord.records.packed_records import PackedRecords, walk

__all__ = ["Block", "RecordScanner", "SkippedBytes", "offset_note"]

_Bytes: TypeAlias = "npt.NDArray[np.uint8]"

# Bytes used to guess the type of a file that is not a TFRecord file.
_GUESS_BYTES = 64
# Maximum records or bytes per call of the compiled core: a few milliseconds of work.
_QUICK_RECORDS = 1 << 14
_QUICK_BYTES = 1 << 24
# If only the headers of long records are needed, this much is read for each.
_PEEK_BYTES = 1 << 12
# After damage, this many bytes are walked first, then twice as many, as more damage may follow.
_FIRST_STEP_BYTES = 1 << 9
_PIECE_BYTES = 1 << 21  # searched for headers at a time, and summed at a time
_STEP_BYTES = 1 << 12  # a checksum is kept for each so many
_ONES = (1 << 32) - 1


class Block(NamedTuple):
    """Consecutive records.

    Attributes:
        position: Number of the first record in its file.
        offsets: int64 [N]: first byte of each record's length field, in the (decompressed) stream.
        lengths: int64 [N]: payload length of each.
        records: The payloads, or None if they were not requested.
    """

    position: int
    offsets: Ints
    lengths: Ints
    records: PackedRecords | None

    @property
    def payloads(self) -> list[bytes] | None:
        """Each payload as bytes, copied on each call."""
        return None if self.records is None else self.records.tolist()


@dataclass
class SkippedBytes:
    """The bytes that a scan skipped: half-open ranges of the (decompressed) stream, the first error in each
    and its kind; and what of a compressed file could not be decompressed.
    """

    ranges: list[tuple[int, int]] = field(default_factory=list)
    errors: list[TFRecordError] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    num_records: int = 0  # a lower bound: the number of records after a damaged header is unknown

    def __bool__(self) -> bool:
        return bool(self.ranges or self.gaps)

    def add(self, begin: int, end: int, error: TFRecordError, kind: str) -> None:
        """Add a skipped range, merged with the last one if adjacent."""
        self.num_records += end > begin
        if self.ranges and self.ranges[-1][1] == begin:
            self.ranges[-1] = (self.ranges[-1][0], end)
        else:
            self.ranges.append((begin, end))
            self.errors.append(error)
            self.kinds.append(kind)

    @property
    def first(self) -> TFRecordError | None:
        """The first error; that of a record, where there is one."""
        return next(iter([*self.errors, *(gap.error for gap in self.gaps)]), None)

    def texts(self) -> Iterator[tuple[str, str]]:
        """The name of the error, and its text, of each place."""
        for (begin, end), error in zip(self.ranges, self.errors, strict=True):
            text = f"{error} (skipped {end - begin} damaged bytes: [{begin}, {end}))"
            yield type(error).__name__, text
        for gap in self.gaps:
            text = f"{gap.error} (skipped compressed bytes [{gap.begin}, {gap.end}))"
            yield type(gap.error).__name__, text


class RecordScanner:
    """Iterates over the blocks of a stream of records.

    Records before any damage come first. Errors have path, record number and byte offset. To
    continue an interrupted iteration, iterate again.

    Args:
        source: The (decompressed) stream.
        verify_crc: Check the payload checksums. Headers are always checked.
        keep_payloads: Return the payloads; without them (and without `verify_crc`), large ones are
            not even read.
        skipped: If given, damage does not raise: damaged records are skipped and added here.
        begin: Offset and number of the first record.
        wanted: How many records the caller waits for, and how many each later time: most blocks end
            where it needs no more, so that it need not join them.
        is_ahead: A thread of the core reads the next block of a local file, while the caller uses one.

    Raises:
        CorruptRecordError: A checksum is wrong, or the stream ends inside a record.
        CompressionError: The stream's compression is damaged or truncated.
        LimitExceededError: A record in a stream of unknown size has an implausible length.
    """

    def __init__(
        self,
        source: FileSource,
        *,
        verify_crc: bool = True,
        keep_payloads: bool = True,
        skipped: SkippedBytes | None = None,
        begin: tuple[int, int] = (0, 0),
        wanted: Callable[[], tuple[int, int]] | None = None,
        is_ahead: bool = False,
    ) -> None:
        self._source, self._is_ahead = source, is_ahead
        self._verify = verify_crc
        self._keep = keep_payloads
        self._skipped = skipped
        self._usual = max(source.chunk_bytes, OVERHEAD_BYTES)  # there is no record in less
        self._wanted = wanted
        self._mean = 0  # bytes of a record, in the last block
        self._held = memoryview(b"")  # the last bytes read
        self._held_begin = 0  # offset of these bytes
        self._search: _RecordSearch | None = None  # for the next record after damage
        self._offset, self._position = begin  # the next record's
        self._again = -1  # offset of what was last read a second time

    def __iter__(self) -> Iterator[Block]:
        wanted = step = ahead = self._usual
        while True:
            if step == self._usual:
                yield from self._quick_blocks()
            chunk = self._read(wanted, self._offset, ahead)
            at_end = len(chunk) < wanted
            found = walk(chunk, verify_crc=self._verify)
            if len(found.starts):
                records = PackedRecords(chunk, found.starts, found.lengths) if self._keep else None
                yield self._block(
                    found.starts + (self._offset - HEADER_BYTES), found.lengths, records
                )
            left = len(chunk) - found.used
            problem: TFRecordError | None = found.problem
            step, ahead = min(2 * step, self._usual), self._usual
            length, wanted = found.next_length, step
            if problem is None and length is not None:
                problem = self._check_next(length, left, at_end)
                if problem is None and self._is_passed(length):
                    problem = self._pass(length)
                    if problem is None:
                        place, lengths = np.array([[self._offset], [length]], dtype=np.int64)
                        yield self._block(place, lengths, None)
                        # only the next header
                        if length > 4 * _PEEK_BYTES and not self._verify:
                            wanted, ahead = _PEEK_BYTES, 0
                elif problem is None:
                    wanted = max(wanted, length + OVERHEAD_BYTES)
            elif problem is None and at_end:
                problem = self._check_end(left)
                if problem is None:
                    return
            if problem is not None:
                if self._is_worth_reading_again(
                    max(len(chunk) - found.used, OVERHEAD_BYTES + (length or 0))
                ):
                    continue
                problem = self._complete(
                    problem, bytes(chunk[found.used : found.used + _GUESS_BYTES])
                )
                if self._skipped is None:
                    try:
                        raise problem
                    finally:  # the traceback keeps this frame, and so the bytes
                        del problem, found, chunk
                if not self._skip(problem, self._skipped):
                    return
                wanted = step = min(_FIRST_STEP_BYTES, self._usual)

    def _quick_blocks(self) -> Iterator[Block]:
        """Blocks of good records of a local file, in few calls of the compiled core: each reads,
        and checks what is still in the processor's cache.
        """
        jobs, source = native_module("jobs"), self._source
        if jobs is None or not (self._keep or self._verify) or not isinstance(source, LocalFile):
            return
        self._held = memoryview(b"")
        buffer, found, job = self._reading(source, 0)
        started = None
        while jobs.run([job]) if started is None else started.finish():
            starts, lengths = found[:, : job.num_found].copy()
            del job  # it keeps the file open
            records = PackedRecords(buffer, starts, lengths) if self._keep else None
            # Not after the first, as the caller may want no more.
            is_ahead = self._is_ahead and self._position > 0
            own = None if self._keep else starts  # not one more array
            offsets = np.add(starts, self._offset - HEADER_BYTES, out=own)
            block = self._block(offsets, lengths, records)
            started = None
            if is_ahead:
                with suppress(OSError, TFRecordError):  # raised in its turn
                    buffer, found, job = self._reading(source, len(starts))
                    started = jobs.Started(job)
            yield block
            if started is None:
                buffer, found, job = self._reading(source, 0)

    def _reading(self, source: LocalFile, taken: int) -> tuple[_Bytes, Ints, Any]:
        """The buffer of the next block, the places of its records, and the job that finds them.

        Args:
            source: The stream.
            taken: So many of the records that are wanted come before.
        """
        native, none = native_module("frames"), NO_INTS
        count, size = self._room(taken) if self._keep else (_QUICK_RECORDS, _QUICK_BYTES)
        size = min(size, source.file_size - self._offset)
        buffer = scratch_bytes(size if self._keep else min(size, self._usual))
        found = np.empty((2, count), np.int64)
        ranges = np.array([[0], [self._offset], [size], [0]], np.int64)
        held = source.hold()
        sources = [(held.number, source.file_size)]
        job = native.ReadJob(  # type: ignore[union-attr]
            sources, 0, ranges, 0, 1, buffer, none, none, self._verify, found
        )
        return buffer, found, job

    def _room(self, taken: int) -> tuple[int, int]:
        """The records and bytes of the next block: whole parts of those that are wanted, or what is
        usually read.
        """
        if self._wanted is None or not self._mean:
            return _QUICK_RECORDS, max(self._usual, 4 * self._mean)
        left, size = self._wanted()
        left = (left - taken - 1) % size + 1
        count = left + size * (self._usual // (size * self._mean))
        # Where lengths differ, most blocks of so many are a little longer or shorter.
        return count, max(self._usual, count * self._mean * 17 // 16)

    def _read(self, num_bytes: int, offset: int, ahead: int = 0) -> memoryview:
        """`FileSource.read` with a buffer: bytes in it are not read again, and up to `ahead` bytes
        are read ahead.
        """
        at = offset - self._held_begin
        if at < 0 or at + num_bytes > len(self._held):
            if self._skipped is not None:
                self._source.keep_from = offset  # a search after damage reads these bytes, too
            self._held = self._source.view(max(num_bytes, ahead), offset)
            self._held_begin, at = offset, 0
        return self._held[at : at + num_bytes]

    def _block(self, offsets: Ints, lengths: Ints, records: PackedRecords | None) -> Block:
        """Return the next block, and advance the scan past it."""
        block = Block(self._position, offsets, lengths, records)
        self._mean = int(lengths.mean()) + OVERHEAD_BYTES + 1
        self._offset = int(offsets[-1] + lengths[-1]) + OVERHEAD_BYTES
        self._position += len(offsets)
        return block

    # Long records that are not kept are read in pieces, or not at all.

    def _is_passed(self, length: int) -> bool:
        is_long = length + OVERHEAD_BYTES > self._usual
        return not self._keep and self._source.size is not None and (is_long or not self._verify)

    def _pass(self, length: int) -> TFRecordError | None:
        """The error of the record at the current offset, if any."""
        if not self._verify:
            return None
        crc, at = 0, self._offset + HEADER_BYTES
        end = at + length
        while at < end:
            wanted = min(end - at, self._usual)
            piece = self._read(wanted, at)
            crc, at = crc32c(piece, crc), at + len(piece)
            if len(piece) < wanted:
                return self._check_end(at - self._offset)
        footer = self._source.read(FOOTER_BYTES, end)
        if len(footer) < FOOTER_BYTES:
            return self._check_end(end - self._offset + len(footer))
        return checksum_error(crc, footer, length)

    # The end of a scan.

    def _is_worth_reading_again(self, num_bytes: int) -> bool:
        """Whether the next record was damaged in a cache, which has dropped it; asked once for
        each.
        """
        if self._again == self._offset:
            return False
        self._again = self._offset
        if not self._source.forget(self._offset, self._offset + num_bytes):
            return False
        self._held = memoryview(b"")
        return True

    def _check_next(self, length: int, left: int, at_end: bool) -> TFRecordError | None:
        """Check the length of an incomplete record against what is left, before allocating anything
        for it.
        """
        size, limit = self._source.size, self._source.max_record_bytes
        if size is not None and length + OVERHEAD_BYTES > size - self._offset:
            return _truncated(length, size - self._offset)
        if size is None and limit is not None and length > limit:
            return LimitExceededError(
                f"expected a record of at most {limit} bytes in a stream, got a length of {length}"
            )
        if at_end:
            return self._check_end(left) or _truncated(length, left)
        return self._search.error(self._offset, length) if self._search and self._verify else None

    def _check_end(self, left: int) -> TFRecordError | None:
        """The error of a stream that ends `left` bytes after its last record; None if there is no
        error.
        """
        try:
            self._source.check_end()
        except TFRecordError as error:
            return error
        size = self._source.size
        if size is not None and self._offset + left < size:  # truncated since it was opened
            return CorruptRecordError(
                f"truncated file: expected {size} bytes, got {self._offset + left}"
            )
        return (
            CorruptRecordError(f"truncated header: {left} of {HEADER_BYTES} bytes")
            if 0 < left < HEADER_BYTES
            else None
        )

    def _complete(self, error: TFRecordError, first_bytes: bytes | None = None) -> TFRecordError:
        """Add path, record and offset to an error; `first_bytes` are those found in place of a
        header.
        """
        text = str(error.args[0])
        damaged_header = first_bytes is not None and not is_header(first_bytes)
        if self._offset == 0 and damaged_header and isinstance(error, CorruptRecordError):
            content = guess_content(first_bytes or b"")
            text += " (Is this even a TFRecord file?" + (
                f" It looks like {content}.)" if content else ")"
            )
        error.args = (text + offset_note(self._source),)
        return error.locate(path=self._source.path, offset=self._offset, position=self._position)

    # Continue after damage.

    def _skip(self, error: TFRecordError, skipped: SkippedBytes) -> bool:
        """Continue after damage; False if nothing readable follows."""
        begin = self._offset
        if self._search is None:
            self._search = _RecordSearch(self._source)
        self._offset, kind = self._search.find(begin)
        self._position += 1
        skipped.add(begin, self._offset, error, kind)
        return self._offset > begin


def _truncated(length: int, left: int) -> CorruptRecordError:
    needed = length + OVERHEAD_BYTES
    return CorruptRecordError(
        f"truncated record: expected {needed} bytes (payload {length}), got {left} up to the end"
    )


def offset_note(source: FileSource) -> str:
    """A note for errors about a stream whose offsets differ from those of the file."""
    return " (offset in the decompressed stream)" if source.is_inflated else ""


# Find the next record after a damaged one.


class _RecordSearch:
    """Finds the next record after each damaged one; searches must go forward in the stream.

    A record is where both checksums fit. Each byte is searched for headers once. Headers may claim
    the same bytes again and again: the checksum of a long payload comes from those of all that is
    before its two ends, so that each byte is summed a few times, whatever a file claims.
    """

    def __init__(self, source: FileSource) -> None:
        self._source = source
        # The bytes searched last, the headers in them, and how many of these are passed.
        self._held, self._begin, self._end = b"", 0, 0
        self._places: list[int] = []
        self._passed = 0
        self._at_end = False
        # Checksums of what is between `_first` and each step after it.
        self._first, self._sums = 0, array("I", [0])
        self._claimed = 0  # where the last of the damaged records ends by its header
        source.kept_before = _STEP_BYTES

    def find(self, begin: int) -> tuple[int, str]:
        """Offset of the next record after a damaged one at `begin`, or the end of the stream if
        there is none; and what is wrong.

        Where the header's checksum fits, the damaged record ends where the header says, if another
        header or the end of the stream is there. Records before that are part of its payload,
        unless they lead, one directly after the other, up to that end or past it: then bytes are
        missing. Where the header's checksum does not fit, but the payload's does, that is the end.
        Else the next record is the next place where both checksums fit.
        """
        self._source.keep_from = begin
        header = self._read(HEADER_BYTES, begin)
        is_good = is_header(header)
        end = begin + OVERHEAD_BYTES + int.from_bytes(header[:8], "little")
        is_border = len(header) == HEADER_BYTES and self._is_border(begin, end)
        if is_good:
            self._claimed = max(self._claimed, end)
        elif is_border and self._is_payload(begin, end):
            return end, "header CRC"
        found = self._next_record(begin, end if is_good and is_border else None)
        if found is None:
            is_cut = is_good or len(header) < HEADER_BYTES
            return self._end, "cut" if is_cut else "trailing bytes"
        return found, "payload CRC" if is_good else "header CRC"

    def error(self, place: int, length: int) -> CorruptRecordError | None:
        """The error of a damaged record among bytes that damaged ones before it claim, too, as to
        read them for each would take quadratic time; None for others.
        """
        if place >= self._claimed:
            return None
        self._source.keep_from = place
        crc = self._crc(place + HEADER_BYTES, length)
        footer = self._read(FOOTER_BYTES, place + HEADER_BYTES + length)
        if crc is None or len(footer) < FOOTER_BYTES:
            return CorruptRecordError(
                f"truncated record: expected {length + OVERHEAD_BYTES} bytes, got the end"
            )
        return checksum_error(crc, footer, length)

    def _is_possible(self, begin: int, end: int) -> bool:
        """Whether the stream may have so much, as far as that is known."""
        size, limit = self._source.size, self._source.max_record_bytes
        return end <= size if size is not None else limit is None or end - begin <= limit

    def _is_border(self, begin: int, place: int) -> bool:
        """Whether a record begins at a place, or the stream ends there."""
        if not self._is_possible(begin, place):
            return False
        found = self._read(HEADER_BYTES, place)
        return is_header(found) or (not found and len(self._read(1, place - 1)) == 1)

    def _next_record(self, begin: int, limit: int | None) -> int | None:
        """The next record after a place, at most the limit, unless what is before leads there;
        None if there is none.
        """
        while True:
            while self._passed < len(self._places):
                place = self._places[self._passed]
                if limit is not None and place >= limit:
                    return limit
                self._passed += 1
                if place <= begin or (behind := self._record_end(place)) is None:
                    continue
                while limit is not None and behind < limit:
                    following = self._record_end(behind)
                    if following is None:  # inside the payload
                        return limit
                    behind = following
                return place
            if limit is not None and self._end >= limit:
                return limit
            if self._at_end:
                return None
            self._search_more(begin)

    def _search_more(self, begin: int) -> None:
        """Search the next piece for headers."""
        self._begin = max(self._end - HEADER_BYTES + 1, begin)  # one may be across the border
        self._source.keep_from = self._begin
        self._held = self._source.read(_PIECE_BYTES, self._begin)
        self._end = self._begin + len(self._held)
        self._at_end = len(self._held) < _PIECE_BYTES
        self._places = [self._begin + at for at in find_headers(self._held)]
        self._passed = 0

    def _read(self, num_bytes: int, offset: int) -> bytes:
        if self._begin <= offset and offset + num_bytes <= self._end:
            return self._held[offset - self._begin : offset + num_bytes - self._begin]
        return self._source.read(num_bytes, offset)

    def _record_end(self, place: int) -> int | None:
        """Where the record ends that begins at a place; None if there is no good one."""
        header = self._read(HEADER_BYTES, place)
        end = place + OVERHEAD_BYTES + int.from_bytes(header[:8], "little")
        return end if is_header(header) and self._is_payload(place, end) else None

    def _is_payload(self, place: int, end: int) -> bool:
        """Whether the checksum fits of the payload of a record from a place to an end."""
        begin, footer = place + HEADER_BYTES, end - FOOTER_BYTES
        crc = self._crc(begin, footer - begin) if self._is_possible(place, end) else None
        stored = b"" if crc is None else self._read(FOOTER_BYTES, footer)
        return len(stored) == FOOTER_BYTES and not checksum_error(crc or 0, stored, 0)

    def _crc(self, begin: int, num_bytes: int) -> int | None:
        """The CRC-32C of a part of the stream; None if the stream ends before."""
        if num_bytes <= 2 * _STEP_BYTES:
            part = self._read(num_bytes, begin)
            return crc32c(part) if len(part) == num_bytes else None
        if not 0 <= begin - self._first < _STEP_BYTES * len(self._sums):
            self._first, self._sums = begin, array("I", [0])
        before, last = self._sum(begin), self._sum(begin + num_bytes)
        return None if before is None or last is None else _shifted(before, num_bytes) ^ last

    def _sum(self, end: int) -> int | None:
        """The CRC-32C of all from `_first` on; None if the stream ends before."""
        number, rest = divmod(end - self._first, _STEP_BYTES)
        while len(self._sums) <= number:
            at = self._first + _STEP_BYTES * (len(self._sums) - 1)
            piece = memoryview(self._source.read(_PIECE_BYTES, at))
            if len(piece) < _STEP_BYTES:
                return None
            for low in range(0, len(piece) - _STEP_BYTES + 1, _STEP_BYTES):
                self._sums.append(crc32c(piece[low : low + _STEP_BYTES], self._sums[-1]))
        part = self._read(rest, self._first + number * _STEP_BYTES)
        return crc32c(part, self._sums[number]) if len(part) == rest else None


def _shifted(crc: int, num_bytes: int) -> int:
    """The part that a CRC-32C adds to that of `num_bytes` more: ``crc(ab) == _shifted(crc(a), len(b)) ^
    crc(b)``.

    Source: `crc32_combine` of zlib.
    """
    for power in range(num_bytes.bit_length()):
        if num_bytes >> power & 1:
            crc = _times(_shifts(power), crc)
    return crc


@cache
def _shifts(power: int) -> list[int]:
    """The value of each bit of a CRC-32C after 2^power zeros."""
    if power:
        return [_times(_shifts(power - 1), shifted) for shifted in _shifts(power - 1)]
    # One zero byte: `crc32c` takes and gives the complement.
    return [crc32c(b"\0", _ONES ^ 1 << bit) ^ _ONES for bit in range(32)]


def _times(shifts: list[int], crc: int) -> int:
    found = 0
    for bit, shifted in enumerate(shifts):
        found ^= shifted * (crc >> bit & 1)
    return found
