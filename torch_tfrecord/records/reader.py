"""Read the records of a file: all in order, or any of them by its index entry."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, BinaryIO, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import OnError, one_of
from torch_tfrecord.batch_memory import scratch_bytes
from torch_tfrecord.errors import (
    CorruptRecordError,
    IndexMismatchError,
    LimitExceededError,
    TFRecordError,
)
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.ahead_file import read_ahead
from torch_tfrecord.files.compression import (
    ByteSource,
    check_compression_type,
    offset_note,
    open_stream,
)
from torch_tfrecord.files.read_plan import ReadPlan, plan_reads
from torch_tfrecord.files.remote_file import RemoteFile, read_remote_ranges
from torch_tfrecord.files.storage import FileSource, LocalFile, PipeSource, local_path, open_file
from torch_tfrecord.records.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    check_payload,
    payload_length,
)
from torch_tfrecord.records.local_reads import read_local_batch
from torch_tfrecord.records.packed_records import PackedRecords, first_bad_record
from torch_tfrecord.records.scan import Block, RecordScanner, SkippedBytes
from torch_tfrecord.shown import printable

__all__ = ["RecordReader", "check_on_error", "read_blocks", "read_records"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

RangeReader: TypeAlias = (
    "Callable[[Sequence[tuple[RemoteFile, slice]], ReadPlan, memoryview], None]"
)

_FAR = 1 << 62  # past the end of any stream
# One read of a batch fetches at most this much plus one record.
_WINDOW_BYTES = 1 << 24
# From this length on, header, payload and footer are read separately: three calls cost less than
# copying the payload.
_SEPARATE_READS_BYTES = 1 << 15


def read_records(
    path: str | os.PathLike[str] | BinaryIO,
    *,
    compression_type: str | None = "auto",
    verify_crc: bool = True,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[bytes]:
    """Read all records of a file, in order.

    Args:
        path: A local path, a URL (``s3://...``), or a binary file object, which is read forward.
        compression_type: "auto" (detected from the first bytes), None or "" (none), "GZIP", "ZLIB"
            or "SNAPPY", in any case. Snappy needs the extra `snappy`.
        verify_crc: Check the payload checksums. Lengths and their checksums are always checked.
        on_error: "raise", or "skip" to skip damaged records and report them in one warning at the
            end.
        storage_options: As for `TFRecordDataset`.

    Yields:
        The payload of each record. Records before any damage are yielded before the error is
        raised.

    Raises:
        CorruptRecordError: A checksum is wrong, or the file ends inside a record.
        CompressionError: The compression is not the declared one, or is damaged or truncated.
        LimitExceededError: A compressed record has an implausible length.
        OSError: The file cannot be opened or read; names the path.
        ValueError: `compression_type` or `on_error` is unknown.

    Example:
        >>> for record in read_records("train.tfrecord.gz"):  # doctest: +SKIP
        ...     print(len(record))
    """
    compression = check_compression_type(compression_type)
    check_on_error(on_error)
    if not isinstance(path, (str, os.PathLike)) and not callable(getattr(path, "read", None)):
        raise TypeError(f"path must be a path or a binary file object, got {type(path).__name__}")
    access = Access(storage_options)
    blocks = read_blocks(
        path,
        compression,
        verify_crc=verify_crc,
        on_error=on_error,
        reuse_buffer=True,
        access=access,
    )
    return chain.from_iterable(block.payloads or () for block in blocks)


def check_on_error(on_error: OnError) -> None:
    """Raise ValueError unless "raise" or "skip"."""
    one_of("on_error", on_error, *get_args(OnError))


def read_blocks(
    path: str | os.PathLike[str] | BinaryIO,
    compression_type: str,
    *,
    verify_crc: bool,
    on_error: OnError,
    reuse_buffer: bool = False,
    access: Access = DEFAULT_ACCESS,
    open_source: Callable[[str], FileSource] | None = None,
    report: Callable[[str, SkippedBytes], None] | None = None,
) -> Iterator[Block]:
    """`read_records` block by block, with offsets; opens the file at the first block.

    Args:
        path, compression_type, verify_crc, on_error: See `read_records`.
        reuse_buffer: See `RecordScanner`.
        access: How a remote file is reached.
        open_source: Opens the path, in place of that.
        report: Takes what was skipped of a file, in place of a warning.
    """
    file: ByteSource
    if not isinstance(path, (str, os.PathLike)):
        file = PipeSource(path)
    else:
        name = local_path(path)
        file = read_ahead(open_file(name, access)) if open_source is None else open_source(name)
    skipped = SkippedBytes() if on_error == "skip" else None
    stream, _ = open_stream(file, compression_type)
    yield from RecordScanner(
        stream, verify_crc=verify_crc, reuse_buffer=reuse_buffer, skipped=skipped
    )
    if skipped is not None and skipped.ranges:
        (_report if report is None else report)(file.path, skipped)


def _report(path: str, skipped: SkippedBytes) -> None:
    total = sum(end - begin for begin, end in skipped.ranges)
    ranges = ", ".join(f"[{begin}, {end})" for begin, end in skipped.ranges[:10])
    more = f" and {len(skipped.ranges) - 10} more" if len(skipped.ranges) > 10 else ""
    warnings.warn(
        f"{printable(path)}: skipped {total} damaged bytes (at least {skipped.num_records} records) "
        f"in {len(skipped.ranges)} places: {ranges}{more}; "
        f"the first: {skipped.errors[0]}",
        stacklevel=3,
    )


class RecordReader:
    """Reads records of a stream at offsets from an index. Has no file position; safe from threads.

    Args:
        verify_crc: Also check the payload's checksum; the header is always checked.
    """

    def __init__(self, verify_crc: bool = True) -> None:
        self._verify = verify_crc

    def read(self, source: ByteSource, offset: int, length: int) -> bytes:
        """The payload of the record at `offset`, which must have `length` bytes.

        Raises:
            CorruptRecordError: A checksum is wrong, or the file ends inside the record.
            IndexMismatchError: The record at that offset has another length.
        """
        if isinstance(source, LocalFile):
            payload = source.read_record(offset, length, verify_crc=self._verify)
            if payload is not None:
                return payload
        try:
            try:
                return self._read(source, offset, length)
            except (CorruptRecordError, IndexMismatchError):
                if not _is_worth_reading_again(source, offset, length):
                    raise
                return self._read(source, offset, length)
        except TFRecordError as error:
            error.args = (f"{error.args[0]}{offset_note(source)}",)
            error.locate(path=source.path, offset=offset)
            raise

    def read_batch(
        self,
        source_of: Callable[[int], ByteSource],
        files: _Integers,
        offsets: _Integers,
        lengths: _Integers,
        *,
        is_remote: bool = False,
        read_blocks: RangeReader | None = None,
    ) -> PackedRecords:
        """Read records of several files, in the requested order; a record may be requested more
        than once.

        Records close together are read in one call, sorted by file and offset. Ranges of remote
        files are requested all at once.

        Args:
            source_of: The stream of a file, by number.
            files: int64 [N]: file number of each record.
            offsets: int64 [N]: first byte of its length field.
            lengths: int64 [N]: its payload length, below 2^62.
            is_remote: Whether files are known to be remote; of what is not said, the way of local
                ones is tried first.
            read_blocks: Reads ranges of remote files, in place of `read_remote_ranges`, and has
                what is between them.

        Raises:
            TFRecordError: At least one record is bad; `read` gives the error of each.
        """
        records = None
        if not is_remote:
            records = read_local_batch(
                source_of,
                files,
                offsets,
                lengths,
                window_bytes=_WINDOW_BYTES,
                verify_crc=self._verify,
            )
        if records is not None:
            return records
        # Hold only these numbers of each file, not the open file: a batch may come from thousands.
        numbers, file_of = _distinct(files)
        facts = np.array([_facts(source_of(file)) for file in numbers], dtype=np.int64).reshape(
            -1, 2
        )
        _check_inside(facts[:, 0][file_of], offsets, lengths)
        gap = int(facts[:, 1].min(initial=_FAR))
        if gap < 0:
            return self._read_singly(source_of, files, offsets, lengths)
        gap = gap if read_blocks is None else 0
        plan = plan_reads(
            files, offsets, lengths + OVERHEAD_BYTES, max_gap_bytes=gap, window_bytes=_WINDOW_BYTES
        )
        read = read_remote_ranges if read_blocks is None else read_blocks
        return self._read_plan(plan, read, source_of, files, offsets, lengths)

    def _read_plan(
        self,
        plan: ReadPlan,
        read_remote: RangeReader,
        source_of: Callable[[int], Any],
        files: _Integers,
        offsets: _Integers,
        lengths: _Integers,
        *,
        is_second: bool = False,
    ) -> PackedRecords:
        buffer = scratch_bytes(plan.num_bytes)
        borders = np.flatnonzero(np.diff(plan.files, prepend=-1, append=-1)).tolist()
        remote: list[tuple[RemoteFile, slice]] = []
        for first, last in pairwise(borders):
            source = source_of(int(plan.files[first]))
            part = slice(first, last)
            if isinstance(source, RemoteFile):
                remote.append((source, part))
            else:
                source.read_ranges(
                    plan.begins[part], plan.sizes[part], buffer.data, plan.starts[part]
                )
        read_remote(remote, plan, buffer.data)
        records = PackedRecords(buffer, plan.places + HEADER_BYTES, lengths)
        bad = first_bad_record(records.buffer, plan.places, lengths, verify_crc=self._verify)
        if bad is not None and not is_second and _forget(remote, plan):
            return self._read_plan(
                plan, read_remote_ranges, source_of, files, offsets, lengths, is_second=True
            )
        if bad is not None:
            place, length = int(plan.places[bad]), int(lengths[bad])
            record = bytes(records.buffer[place : place + length + OVERHEAD_BYTES])
            try:
                self._check(
                    record[:HEADER_BYTES],
                    record[HEADER_BYTES:-FOOTER_BYTES],
                    record[-FOOTER_BYTES:],
                    length,
                )
            except TFRecordError as error:
                raise error.locate(
                    path=source_of(int(files[bad])).path, offset=int(offsets[bad])
                ) from None
        return records

    def _read_singly(
        self,
        source_of: Callable[[int], ByteSource],
        files: _Integers,
        offsets: _Integers,
        lengths: _Integers,
    ) -> PackedRecords:
        """For streams of unknown size: read one record at a time, in file order, so that none goes
        back.
        """
        payloads = [b""] * len(files)
        for number in np.lexsort((offsets, files)).tolist():
            payloads[number] = self.read(
                source_of(int(files[number])), int(offsets[number]), int(lengths[number])
            )
        starts = np.cumsum(lengths) - lengths
        return PackedRecords(b"".join(payloads), starts, lengths)

    def _read(self, source: ByteSource, offset: int, length: int) -> bytes:
        if source.size is None and length >= _SEPARATE_READS_BYTES:
            # A wrong index must not make us allocate memory for a length that does not exist.
            self._check_length(source.read(HEADER_BYTES, offset), length, source.max_record_bytes)
        # A request costs more than a copy.
        if (
            length < _SEPARATE_READS_BYTES
            or source.size is None
            or not isinstance(source, LocalFile)
        ):
            record = source.read(length + OVERHEAD_BYTES, offset)
            header, payload, footer = (
                record[:HEADER_BYTES],
                record[HEADER_BYTES:-FOOTER_BYTES],
                record[-FOOTER_BYTES:],
            )
            got = len(record)
        else:
            header = source.read(HEADER_BYTES, offset)
            payload = source.read(length, offset + HEADER_BYTES)
            footer = source.read(FOOTER_BYTES, offset + HEADER_BYTES + length)
            got = len(header) + len(payload) + len(footer)
        if got < length + OVERHEAD_BYTES:
            if source.size is None:
                self._check_length(header, length)
            source.check_end()
            raise CorruptRecordError(
                f"truncated record: expected {length + OVERHEAD_BYTES} bytes, got {got}"
            )
        self._check(header, payload, footer, length)
        return payload

    def _check(self, header: bytes, payload: bytes, footer: bytes, length: int) -> None:
        self._check_length(header, length)
        if self._verify:
            check_payload(payload, footer)

    def _check_length(self, header: bytes, length: int, limit: int | None = None) -> None:
        if len(header) < HEADER_BYTES:
            return  # truncated: the caller has a better error
        stored_length = payload_length(header)
        if stored_length != length:
            raise IndexMismatchError(
                f"expected a record of {length} bytes (by the index), got one of {stored_length}"
            )
        if limit is not None and length > limit:
            raise LimitExceededError(
                f"expected a record of at most {limit} bytes in a stream, got a length of {length}"
            )


def _is_worth_reading_again(source: ByteSource, offset: int, length: int) -> bool:
    """Whether a cache held some of a record that is damaged, and has dropped it."""
    return isinstance(source, FileSource) and source.forget(
        offset, offset + length + OVERHEAD_BYTES
    )


def _forget(remote: Sequence[tuple[RemoteFile, slice]], plan: ReadPlan) -> bool:
    """The same for all that was read of remote files."""
    ranges = [
        (file, *pair)
        for file, part in remote
        for pair in zip(plan.begins[part], plan.sizes[part], strict=True)
    ]
    # all of them
    return True in [file.forget(int(begin), int(begin + size)) for file, begin, size in ranges]


def _facts(source: ByteSource) -> tuple[int, int]:
    """Size of a stream, and the gap that a read may bridge; -1 if ranges cannot be read."""
    return _FAR if source.size is None else source.size, source.max_gap_bytes if isinstance(
        source, FileSource
    ) else -1


def _distinct(files: _Integers) -> tuple[list[int], _Integers]:
    """The distinct file numbers, ascending, and for each record the place of its file among
    them.
    """
    # the common case, and a cheap check
    if len(files) and files[0] == files[-1] and (files == files[0]).all():
        return [int(files[0])], np.zeros(len(files), dtype=np.int64)
    numbers, file_of = np.unique(files, return_inverse=True)
    return numbers.tolist(), file_of


def _check_inside(limits: _Integers, offsets: _Integers, lengths: _Integers) -> None:
    """Check each record against the size of its file before allocating anything."""
    is_outside = (offsets < 0) | (lengths < 0) | (lengths > limits - offsets - OVERHEAD_BYTES)
    if is_outside.any():
        first = int(is_outside.argmax())
        raise CorruptRecordError(
            f"expected a record within a file of {limits[first]} bytes, got one of {lengths[first]} bytes",
            offset=int(offsets[first]),
        )
