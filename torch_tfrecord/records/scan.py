"""Walking all records of a stream from front to back, block by block: the core of reading, indexing and verifying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import CorruptRecordError, LimitExceededError, TFRecordError
from torch_tfrecord.native import native_module
from torch_tfrecord.records.checksum import crc32c
from torch_tfrecord.records.compression import ByteSource, offset_note
from torch_tfrecord.records.file_source import FileSource
from torch_tfrecord.records.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    checksum_error,
    guess_content,
    is_header,
)
from torch_tfrecord.records.packed_records import PackedRecords, walk
from torch_tfrecord.records.resync import RecordSearch, behind_record
from torch_tfrecord.records.storage import LocalFile

__all__ = ["Block", "RecordScanner", "SkippedBytes"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

# Bytes looked at to tell what a file is that is no TFRecord file.
_GUESS_BYTES = 64
# So many records, or bytes, are looked at by one call of the compiled core: a few milliseconds of work.
_QUICK_RECORDS = 1 << 14
_QUICK_BYTES = 1 << 24
# Where only the headers of long records are wanted, this much is read for each.
_PEEK_BYTES = 1 << 12
# Behind damage so many bytes are walked first, then twice as many: more damage may follow.
_FIRST_STEP_BYTES = 1 << 9


class Block(NamedTuple):
    """Neighbouring records.

    Attributes:
        position: Number of the first record in its file.
        offsets: int64 [N]: first byte of each record's length field, in the (decompressed) stream.
        lengths: int64 [N]: payload length of each.
        records: The payloads, or None where they were not asked for.
    """

    position: int
    offsets: _Integers
    lengths: _Integers
    records: PackedRecords | None

    @property
    def payloads(self) -> list[bytes] | None:
        """Each payload as bytes, made anew each time."""
        return None if self.records is None else self.records.tolist()


@dataclass
class SkippedBytes:
    """What a scan over damage left out: half-open ranges of the (decompressed) stream, and the first error of each."""

    ranges: list[tuple[int, int]] = field(default_factory=list)
    errors: list[TFRecordError] = field(default_factory=list)
    num_records: int = 0  # at least: how many lay behind a damaged header is not known

    def add(self, begin: int, end: int, error: TFRecordError) -> None:
        """Note a skipped range; one that continues the last is joined to it."""
        self.num_records += end > begin
        if self.ranges and self.ranges[-1][1] == begin:
            self.ranges[-1] = (self.ranges[-1][0], end)
        else:
            self.ranges.append((begin, end))
            self.errors.append(error)


class RecordScanner:
    """Iterates over the blocks of a stream of records.

    Records in front of any damage come out first. Errors carry path, record number and byte offset. An iteration that
    was broken off can be continued by iterating again.

    Args:
        source: The (decompressed) stream.
        verify_crc: Check the payloads' checksums. Headers are always checked.
        keep_payloads: Hand the payloads out; without them (and without `verify_crc`) large ones are not even read.
        reuse_buffer: The records of a block are good until the next block only, which saves memory traffic.
        skipped: Where given, damage does not raise: damaged records are left out and noted here.

    Raises:
        CorruptRecordError: a wrong checksum, or a stream that ends inside a record.
        CompressionError: the stream's compression is damaged or cut.
        LimitExceededError: a record of a stream of unknown size that is longer than any honest one.
    """

    def __init__(
        self,
        source: ByteSource,
        *,
        verify_crc: bool = True,
        keep_payloads: bool = True,
        reuse_buffer: bool = False,
        skipped: SkippedBytes | None = None,
    ) -> None:
        self._source = source
        self._verify = verify_crc
        self._keep = keep_payloads
        self._reads_payloads = keep_payloads or verify_crc
        self._skipped = skipped
        self._usual = max(source.chunk_bytes, OVERHEAD_BYTES)  # less could never hold a record
        self._read_into = getattr(source, "read_into", None) if reuse_buffer or not keep_payloads else None
        self._buffer = bytearray()
        self._held = memoryview(b"")  # what was read last
        self._held_begin = 0  # its offset
        self._search: RecordSearch | None = None  # for what comes behind damage
        self._offset = 0  # of the next record
        self._position = 0  # its number
        self._again = -1  # offset of what was read again last

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
                yield self._block(found.starts + (self._offset - HEADER_BYTES), found.lengths, records)
            left = len(chunk) - found.used
            problem: TFRecordError | None = found.problem
            step, ahead = min(2 * step, self._usual), self._usual
            length, wanted = found.next_length, step
            if problem is None and length is not None:
                problem = self._check_next(length, left, at_end)
                if problem is None and self._is_large(length):
                    payload, problem = self._large_payload(length)
                    if problem is None:
                        lengths = np.array([length], dtype=np.int64)
                        records = PackedRecords(payload, np.zeros(1, np.int64), lengths) if self._keep else None
                        yield self._block(np.array([self._offset], dtype=np.int64), lengths, records)
                        if length > 4 * _PEEK_BYTES and not self._reads_payloads:  # no more than the next header
                            wanted, ahead = _PEEK_BYTES, 0
                elif problem is None:
                    wanted = max(wanted, length + OVERHEAD_BYTES)
            elif problem is None and at_end:
                problem = self._check_end(left)
                if problem is None:
                    return
            if problem is not None:
                if self._is_worth_reading_again(max(len(chunk) - found.used, OVERHEAD_BYTES + (length or 0))):
                    continue
                problem = self._complete(problem, bytes(chunk[found.used : found.used + _GUESS_BYTES]))
                if self._skipped is None:
                    raise problem
                if not self._skip(problem, self._skipped):
                    return
                wanted = step = min(_FIRST_STEP_BYTES, self._usual)

    def _quick_blocks(self) -> Iterator[Block]:
        """Blocks of good records of a local file whose payloads are only checked: by few calls of the compiled core."""
        native = native_module("frames")
        if native is None or self._keep or not self._verify or not isinstance(self._source, LocalFile):
            return
        if len(self._buffer) < self._usual:
            self._buffer = bytearray(self._usual)
        self._held = memoryview(b"")
        offsets, lengths = np.empty((2, _QUICK_RECORDS), np.int64)
        while True:
            end = min(self._source.file_size, self._offset + _QUICK_BYTES)
            held = self._source.hold()
            found = native.scan(held.number, self._offset, end, self._buffer, offsets, lengths)
            del held  # not while the records are used
            if not found:
                return
            yield self._block(offsets[:found].copy(), lengths[:found].copy(), None)

    def _read(self, num_bytes: int, offset: int, ahead: int = 0) -> memoryview:
        """As `ByteSource.read`; what is held already is not read again, and up to `ahead` bytes are held."""
        at = offset - self._held_begin
        if at < 0 or at + num_bytes > len(self._held):
            self._hold(max(num_bytes, ahead), offset)
            at = 0
        return self._held[at : at + num_bytes]

    def _hold(self, num_bytes: int, offset: int) -> None:
        """Read so many bytes; where the buffer is reused, what it holds already is moved in it and not read again."""
        if self._read_into is None:
            self._held, self._held_begin = memoryview(self._source.read(num_bytes, offset)), offset
            return
        kept = self._held[offset - self._held_begin :] if offset >= self._held_begin else self._held[:0]
        have = min(len(kept), num_bytes)
        if len(self._buffer) < num_bytes:
            self._buffer, self._held, kept, have = bytearray(num_bytes), memoryview(b""), self._held[:0], 0
        content = memoryview(self._buffer)
        content[:have] = kept[:have]
        self._held, self._held_begin = content[:have], offset  # what is true if reading fails
        have += self._read_into(content[have:num_bytes], offset + have)
        self._held = content[:have]

    def _block(self, offsets: _Integers, lengths: _Integers, records: PackedRecords | None) -> Block:
        """The next block, behind which the scan goes on."""
        block = Block(self._position, offsets, lengths, records)
        self._offset = int(offsets[-1] + lengths[-1]) + OVERHEAD_BYTES
        self._position += len(offsets)
        return block

    # Records longer than a chunk: each is read alone, and where it is not kept in pieces or not at all.

    def _is_large(self, length: int) -> bool:
        if self._source.size is None:
            return False
        return not self._reads_payloads or length + OVERHEAD_BYTES > self._usual

    def _large_payload(self, length: int) -> tuple[bytes, TFRecordError | None]:
        """The payload at the current offset, where it is kept; or what is wrong with the record."""
        if not self._reads_payloads:
            return b"", None
        begin, crc, got, payload = self._offset + HEADER_BYTES, 0, 0, b""
        step = length if self._keep else self._usual
        for at in range(0, length, step):
            wanted = min(step, length - at)
            if self._keep:
                payload = self._source.read(wanted, begin)
            piece = payload if self._keep else self._read(wanted, begin + at)
            crc = crc32c(piece, crc) if self._verify else 0
            got += len(piece)
            if len(piece) < wanted:
                return b"", self._check_end(HEADER_BYTES + got)
        footer = self._source.read(FOOTER_BYTES, begin + length)
        if len(footer) < FOOTER_BYTES:
            return b"", self._check_end(HEADER_BYTES + got + len(footer))
        return payload, checksum_error(crc, footer, length) if self._verify else None

    # What ends a scan.

    def _is_worth_reading_again(self, num_bytes: int) -> bool:
        """Whether the next record was damaged in a cache, which has dropped it; asked once for each."""
        if self._again == self._offset or not isinstance(self._source, FileSource):
            return False
        self._again = self._offset
        if not self._source.forget(self._offset, self._offset + num_bytes):
            return False
        self._held = memoryview(b"")
        return True

    def _check_next(self, length: int, left: int, at_end: bool) -> TFRecordError | None:
        """Hold the length of an incomplete record against what is left, before anything is allocated for it."""
        size, limit = self._source.size, self._source.max_record_bytes
        if size is not None and length + OVERHEAD_BYTES > size - self._offset:
            return _truncated(length, size - self._offset)
        if size is None and limit is not None and length > limit:
            return LimitExceededError(
                f"expected a record of at most {limit} bytes in a stream, got a length of {length}"
            )
        if at_end:
            return self._check_end(left) or _truncated(length, left)
        return None

    def _check_end(self, left: int) -> TFRecordError | None:
        """The error of a stream that ends with `left` bytes behind its last record; None where all is well."""
        try:
            self._source.check_end()
        except TFRecordError as error:
            return error
        size = self._source.size
        if size is not None and self._offset + left < size:  # cut since it was opened
            return CorruptRecordError(f"truncated file: expected {size} bytes, got {self._offset + left}")
        return (
            CorruptRecordError(f"truncated header: {left} of {HEADER_BYTES} bytes") if 0 < left < HEADER_BYTES else None
        )

    def _complete(self, error: TFRecordError, first_bytes: bytes | None = None) -> TFRecordError:
        """Add to an error what only the scan knows; `first_bytes` stand where a header is expected."""
        text = str(error.args[0])
        damaged_header = first_bytes is not None and not is_header(first_bytes[:HEADER_BYTES])
        if self._offset == 0 and damaged_header and isinstance(error, CorruptRecordError):
            content = guess_content(first_bytes or b"")
            text += " (Is this even a TFRecord file?" + (f" It looks like {content}.)" if content else ")")
        error.args = (text + offset_note(self._source),)
        return error.locate(path=self._source.path, offset=self._offset, position=self._position)

    # Going on behind damage.

    def _skip(self, error: TFRecordError, skipped: SkippedBytes) -> bool:
        """Go on behind damage; False where nothing readable follows.

        A record whose header is good is left out alone; one that is cut takes the rest with it, since anything in there
        that looks like a record belongs to its payload. Behind a damaged header the next record is searched for.
        """
        begin = self._offset
        end = behind_record(self._source, begin)
        if end is None:
            self._search = self._search or RecordSearch(self._source)
            end = self._search.find(begin)
        self._offset = end
        self._position += 1
        skipped.add(begin, self._offset, error)
        return self._offset > begin


def _truncated(length: int, left: int) -> CorruptRecordError:
    needed = length + OVERHEAD_BYTES
    return CorruptRecordError(f"truncated record: expected {needed} bytes (payload {length}), got {left} up to the end")
