"""Walking all records of a stream from front to back, block by block: the core of reading, indexing and verifying.

Small records are found inside large chunks, large ones (from 64 KiB) are read one by one straight into their own bytes,
every other group of them by a helper thread, since reading and checksumming release the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from torch_tfrecord.checksum import masked_crc32c
from torch_tfrecord.compression import ByteSource, offset_note
from torch_tfrecord.errors import CorruptRecordError, LimitExceededError, TFRecordError
from torch_tfrecord.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    HeaderMemo,
    complete_records,
    first_bad_payload,
    guess_content,
    is_header,
    payload_error,
)
from torch_tfrecord.resync import end_of_stream, find_record, whole_record_at

__all__ = ["Block", "RecordScanner", "SkippedBytes"]

# From this length on a record is read by its own call: copying it out of a chunk would cost more than the call.
_LARGE_RECORD_BYTES = 1 << 16
# Large records are read in groups of about this many bytes, two at a time: measured, below 1 MiB the hand-over to the
# helper thread eats the gain, above 4 MiB the groups leave the processor's cache.
_GROUP_BYTES = 1 << 21

# Bytes looked at to tell what a file is that is no TFRecord file.
_GUESS_BYTES = 64


class Block(NamedTuple):
    """Neighbouring records.

    Attributes:
        position: Number of the first record in its file.
        offsets: First byte of each record's length field, in the (decompressed) stream.
        lengths: Payload length of each.
        payloads: The payloads, or None where they were not asked for.
    """

    position: int
    offsets: list[int]
    lengths: list[int]
    payloads: list[bytes] | None


# Offset, payload length and footer of a large record that was not read yet.
_Span: TypeAlias = tuple[int, int, bytes]
# The payloads in front of any damage (None for those not kept), and the damage.
_Loaded: TypeAlias = "tuple[list[bytes | None], TFRecordError | None]"


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
        use_helper: Let a second thread read half of the large records; of no use where all processors are busy.
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
        use_helper: bool = True,
        skipped: SkippedBytes | None = None,
    ) -> None:
        self._use_helper = use_helper
        self._source = source
        self._verify = verify_crc
        self._keep = keep_payloads
        self._skipped = skipped
        self._memo = HeaderMemo()
        self._offset = 0  # of the next record
        self._position = 0  # its number
        self._helper: ThreadPoolExecutor | None = None
        self._helper_pid = -1

    @property
    def end(self) -> int:
        """Offset behind the last record handed out or skipped."""
        return self._offset

    def __iter__(self) -> Iterator[Block]:
        try:
            yield from self._blocks()
        finally:
            if self._helper is not None and self._helper_pid == os.getpid():
                self._helper.shutdown(wait=True)
            self._helper = None

    def _blocks(self) -> Iterator[Block]:
        usual = max(self._source.chunk_bytes, OVERHEAD_BYTES)  # less could never hold a record
        wanted = usual
        while True:
            chunk = self._source.read(wanted, self._offset)
            at_end = len(chunk) < wanted
            wanted = usual
            block, used, next_length, problem = self._small_records(chunk)
            if block.offsets:
                yield self._advance(block)
            left = len(chunk) - used
            if problem is None and next_length is not None:
                problem = self._check_next(next_length, left, at_end)
                if problem is None and self._reads_large(next_length):
                    yield from self._large_records()
                elif problem is None:
                    wanted = max(wanted, next_length + OVERHEAD_BYTES)
            elif problem is None and at_end:
                problem = self._check_end(left)
                if problem is None:
                    return
            if problem is not None:
                problem = self._complete(problem, chunk[used : used + _GUESS_BYTES])
                if self._skipped is None:
                    raise problem
                if not self._skip(problem, self._skipped):
                    return

    def _small_records(self, chunk: bytes) -> tuple[Block, int, int | None, TFRecordError | None]:
        """The complete, undamaged records at the front of a chunk, how many bytes they fill, and what follows."""
        starts, ends, used, next_length, error = complete_records(chunk, self._memo)
        problem: TFRecordError | None = error
        payloads: list[bytes] | None = None
        if self._keep or self._verify:
            payloads = [chunk[start:end] for start, end in zip(starts, ends, strict=True)]
        bad = first_bad_payload(chunk, ends, payloads) if self._verify and payloads else None
        if bad is not None and payloads is not None:
            problem = payload_error(payloads[bad], chunk[ends[bad] : ends[bad] + FOOTER_BYTES])
            used = starts[bad] - HEADER_BYTES
            starts, ends, payloads = starts[:bad], ends[:bad], payloads[:bad]
        base = self._offset - HEADER_BYTES
        offsets = [base + start for start in starts]
        lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        return Block(self._position, offsets, lengths, payloads if self._keep else None), used, next_length, problem

    # Large records: each read by its own call.

    def _reads_large(self, length: int) -> bool:
        return length >= _LARGE_RECORD_BYTES and self._source.size is not None and self._skipped is None

    def _large_records(self) -> Iterator[Block]:
        """Groups of large records from the current offset on, until a small one or any doubt comes."""
        _keep_freed_memory()
        for group, (payloads, problem) in self._loaded_groups():
            good = group[: len(payloads)]
            if good:
                kept = [payload for payload in payloads if payload is not None] if self._keep else None
                yield self._advance(Block(self._position, [span[0] for span in good], [span[1] for span in good], kept))
            if problem is not None:
                raise self._complete(problem)

    def _advance(self, block: Block) -> Block:
        self._offset = block.offsets[-1] + block.lengths[-1] + OVERHEAD_BYTES
        self._position += len(block.offsets)
        return block

    def _loaded_groups(self) -> Iterator[tuple[list[_Span], _Loaded]]:
        """Groups in order; of each two the helper thread loads the first one while this thread loads the second."""
        use_helper = self._use_helper and self._reads_payloads()
        while group := self._large_group(self._offset):
            if not use_helper:
                yield group, self._load(group)
                continue
            loading = self._start_load(group)
            own = self._large_group(_end(group))
            own_loaded = self._load(own)
            yield group, loading.result()
            if own:
                yield own, own_loaded

    def _reads_payloads(self) -> bool:
        return self._keep or self._verify

    def _large_group(self, offset: int) -> list[_Span]:
        """A run of large records, from the bytes between the payloads alone: a footer and the next header."""
        group: list[_Span] = []
        read, memo, size = self._source.read, self._memo, self._source.size or 0
        total = 0
        header = read(HEADER_BYTES, offset)
        while total < _GROUP_BYTES and len(header) == HEADER_BYTES:
            try:
                length = memo[header]
            except CorruptRecordError:
                break  # found again, and explained, by the walk over chunks
            end = offset + length + OVERHEAD_BYTES
            if length < _LARGE_RECORD_BYTES or end > size:
                break
            between = read(FOOTER_BYTES + HEADER_BYTES, end - FOOTER_BYTES)
            group.append((offset, length, between[:FOOTER_BYTES]))
            total += length
            offset, header = end, between[FOOTER_BYTES:]
        return group

    def _start_load(self, group: list[_Span]) -> Future[_Loaded]:
        if self._helper is None or self._helper_pid != os.getpid():  # threads do not survive a fork
            self._helper, self._helper_pid = ThreadPoolExecutor(1, "tfrecord-scan"), os.getpid()
        return self._helper.submit(self._load, group)

    def _load(self, group: list[_Span]) -> _Loaded:
        """The payloads in front of any damage (None for those not kept), and the damage."""
        if not self._reads_payloads():
            return [None] * len(group), None
        payloads: list[bytes | None] = []
        read, keep, verify = self._source.read, self._keep, self._verify
        for offset, length, footer in group:
            payload = read(length, offset + HEADER_BYTES)
            if len(payload) < length or len(footer) < FOOTER_BYTES:
                return payloads, _truncated(length, HEADER_BYTES + len(payload) + len(footer))
            if verify and masked_crc32c(payload) != int.from_bytes(footer, "little"):
                return payloads, payload_error(payload, footer)
            payloads.append(payload if keep else None)
        return payloads, None

    # What ends a scan.

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
        if is_header(self._source.read(HEADER_BYTES, begin)):
            length = whole_record_at(self._source, begin)
            self._offset = end_of_stream(self._source, begin) if length is None else begin + length + OVERHEAD_BYTES
        else:
            self._offset = find_record(self._source, begin)
        self._position += 1
        skipped.add(begin, self._offset, error)
        return self._offset > begin


def _end(group: list[_Span]) -> int:
    offset, length, _ = group[-1]
    return offset + length + OVERHEAD_BYTES


def _keep_freed_memory() -> None:
    """Let the C library keep the memory of one group for the next.

    glibc gives freed memory back to the kernel at once until a larger block was freed; getting it again for every
    group, page by page, took three times as long as reading (measured). Elsewhere this does nothing.
    """
    bytearray(4 * _GROUP_BYTES)


def _truncated(length: int, left: int) -> CorruptRecordError:
    needed = length + OVERHEAD_BYTES
    return CorruptRecordError(f"truncated record: expected {needed} bytes (payload {length}), got {left} up to the end")
