"""Read the records of a file: all in order, or any of them by its index entry."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import BinaryIO, TypeAlias, cast, get_args

import numpy as np

from torch_tfrecord.arguments import OnError, Paths, StorageOptions, check_compression_type, one_of
from torch_tfrecord.batch_memory import Ints
from torch_tfrecord.errors import (
    CorruptRecordError,
    IndexMismatchError,
    LimitExceededError,
    TFRecordError,
    os_error,
    warn,
)
from torch_tfrecord.files import (
    Access,
    FileSource,
    LocalFile,
    SequentialSource,
    open_file,
    read_pieces,
)
from torch_tfrecord.records.codecs import open_stream
from torch_tfrecord.records.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    check_payload,
    find_headers,
    is_header,
    payload_length,
)
from torch_tfrecord.records.packed_records import PackedRecords, are_good
from torch_tfrecord.records.paths import found_files
from torch_tfrecord.records.scan import Block, RecordScanner, SkippedBytes, offset_note
from torch_tfrecord.shown import printable

__all__ = ["RecordReader", "read_blocks", "read_records"]

_ReadTogether: TypeAlias = (
    "Callable[[Sequence[tuple[FileSource, int, int, int, int]], memoryview], None]"
)

# From this length on, the header of a record of a stream is read first.
_LONG_BYTES = 1 << 15


def read_records(
    paths: Paths | BinaryIO,
    *,
    compression_type: str | None = "auto",
    verify_crc: bool = True,
    on_error: OnError = "raise",
    storage_options: StorageOptions = None,
) -> Iterator[bytes]:
    """Read all records of a file, or of several, in order.

    Args:
        paths: A path or what else `find_files` takes; or a binary file object, which is read
            forward.
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
        OSError: A file is not there, or cannot be read; names the path.
        ValueError: `compression_type` or `on_error` is unknown.

    Example:
        >>> for record in read_records("train.tfrecord.gz"):  # doctest: +SKIP
        ...     print(len(record))
    """
    compression = check_compression_type(compression_type)
    one_of("on_error", on_error, *get_args(OnError))
    access = Access(storage_options)
    files: Iterable[FileSource]
    if callable(getattr(paths, "read", None)):
        files = [_PipeSource(cast("BinaryIO", paths))]
    else:
        found, _ = found_files(cast("Paths", paths), access)
        files = (open_file(path, access).ahead() for path in found)
    read = partial(read_blocks, verify_crc=verify_crc, on_error=on_error)
    return chain.from_iterable(
        block.payloads or () for file in files for block in read(file, compression)
    )


def read_blocks(
    file: FileSource,
    compression_type: str,
    *,
    verify_crc: bool,
    on_error: OnError,
    report: Callable[[str, SkippedBytes], None] | None = None,
    wanted: Callable[[], tuple[int, int]] | None = None,
    is_ahead: bool = False,
) -> Iterator[Block]:
    """`read_records` of one file, block by block, with offsets.

    Args:
        file: The file, as it is read from its beginning to its end.
        compression_type, verify_crc, on_error: See `read_records`.
        report: Takes what was skipped, in place of a warning.
        wanted, is_ahead: See `RecordScanner`.
    """
    skipped = SkippedBytes() if on_error == "skip" else None
    stream, _ = open_stream(file, compression_type, gaps=None if skipped is None else skipped.gaps)
    if is_ahead and stream.is_inflated:
        stream.ahead()
    try:
        yield from RecordScanner(
            stream, verify_crc=verify_crc, skipped=skipped, wanted=wanted, is_ahead=is_ahead
        )
    finally:
        stream.stop()
    if skipped:
        (_report if report is None else report)(file.path, skipped)


def _report(path: str, skipped: SkippedBytes) -> None:
    total = sum(end - begin for begin, end in skipped.ranges)
    ranges = ", ".join(f"[{begin}, {end})" for begin, end in skipped.ranges[:10])
    more = f" and {len(skipped.ranges) - 10} more" if len(skipped.ranges) > 10 else ""
    gaps = f" and {len(skipped.gaps)} of the compressed file" if skipped.gaps else ""
    warn(
        f"{printable(path)}: skipped {total} damaged bytes (at least {skipped.num_records} records) "
        f"in {len(skipped.ranges)} places: {ranges}{more}{gaps}; "
        f"the first: {skipped.first}"
    )


class _PipeSource(SequentialSource):
    """A binary file object that can only be read forward, such as ``sys.stdin.buffer``."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(str(getattr(file, "name", "<stream>")))
        self._file = file

    def _more(self) -> bytes:
        data = self._file.read(self.chunk_bytes)
        if data is None:  # the end of the file is b""
            raise BlockingIOError(
                errno.EAGAIN, "expected a blocking file object, got no data yet", self.path
            )
        return data

    def _restart(self) -> None:
        raise os_error(errno.ESPIPE, self.path)


class RecordReader:
    """Reads records of a stream at offsets from an index. Has no file position; safe from threads.

    Args:
        verify_crc: Also check the payload's checksum; the header is always checked.
    """

    def __init__(self, verify_crc: bool = True) -> None:
        self._verify = verify_crc

    def read(self, source: FileSource, offset: int, length: int) -> bytes:
        """The payload of the record at `offset`, which must have `length` bytes.

        Raises:
            CorruptRecordError: A checksum is wrong, or the file ends inside the record.
            IndexMismatchError: The record at that offset has another length.
        """
        # Local files: one call of the compiled core, which gives up on anything unusual.
        if isinstance(source, LocalFile):
            payload = source.read_record(offset, length, verify_crc=self._verify)
            if payload is not None:
                return payload
        try:
            try:
                return self._read(source, offset, length)
            except (CorruptRecordError, IndexMismatchError):
                end = offset + length + OVERHEAD_BYTES
                # a cache may have had damaged bytes
                if not source.forget(offset, end):
                    raise
                return self._read(source, offset, length)
        except TFRecordError as error:
            error.args = (f"{error.args[0]}{offset_note(source)}",)
            error.locate(path=source.path, offset=offset)
            raise

    def next(
        self, source: FileSource, begin: int, window: int, most: int
    ) -> tuple[int, bytes] | None:
        """Offset and payload of the first good record from a byte of a file on; None if that takes
        too many bytes.

        Args:
            source: A file of known size.
            begin: The byte, anywhere in a record.
            window: So many bytes are searched first, then twice as many.
            most: The most bytes to search, and of a payload.
        """
        content = b""
        while True:
            content += source.read(window - len(content), begin + len(content))
            for at in find_headers(content):
                offset, length = begin + at, payload_length(content[at : at + HEADER_BYTES])
                with suppress(TFRecordError):  # it is no header, or damaged
                    if length <= most and offset + length + OVERHEAD_BYTES <= source.file_size:
                        return offset, self.read(source, offset, length)
            if window >= most or len(content) < window:
                return None
            window = min(2 * window, most)

    def length(self, source: FileSource, offset: int) -> int | None:
        """The payload length that the header at an offset says; None if there is no header."""
        header = source.read(HEADER_BYTES, offset)
        return payload_length(header) if is_header(header) else None

    def _read(self, source: FileSource, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0:
            raise CorruptRecordError(f"expected a record in the file, got one of {length} bytes")
        if source.size is None and length >= _LONG_BYTES:
            # A wrong index must not make us allocate memory for a length that does not exist.
            _check_length(source.read(HEADER_BYTES, offset), length, source.max_record_bytes)
        record = source.read(length + OVERHEAD_BYTES, offset)
        header, payload, footer = (
            record[:HEADER_BYTES],
            record[HEADER_BYTES:-FOOTER_BYTES],
            record[-FOOTER_BYTES:],
        )
        if len(record) < length + OVERHEAD_BYTES:
            if source.size is None:
                _check_length(header, length)
            source.check_end()
            raise CorruptRecordError(
                f"truncated record: expected {length + OVERHEAD_BYTES} bytes, got {len(record)}"
            )
        _check_length(header, length)
        if self._verify:
            check_payload(payload, footer)
        return payload

    def read_batch(
        self,
        source_of: Callable[[int], FileSource],
        files: Ints,
        offsets: Ints,
        lengths: Ints,
        blocks: _ReadTogether | None = None,
    ) -> PackedRecords:
        """Read records of several files, in the requested order; a record may be requested more
        than once.

        Args:
            source_of: The stream of a file, by number.
            files: int64 [N]: file number of each record.
            offsets: int64 [N]: first byte of its length field.
            lengths: int64 [N]: its payload length, below 2^62.
            blocks: See `read_pieces`.

        Raises:
            TFRecordError: At least one record is bad; `read` gives the error of each.
        """

        def again() -> PackedRecords:
            buffer, places = read_pieces(
                source_of, files, offsets, lengths + OVERHEAD_BYTES, blocks
            )
            records = PackedRecords(buffer, places + HEADER_BYTES, lengths)
            if are_good(records, verify_crc=self._verify):
                return records
            # One at a time, in file order, so that no stream goes back: one of them raises its error,
            # unless a cache had damaged bytes, which it has dropped by now.
            payloads = [b""] * len(files)
            for number in np.lexsort((offsets, files)).tolist():
                payloads[number] = self.read(
                    source_of(int(files[number])), int(offsets[number]), int(lengths[number])
                )
            starts = np.cumsum(lengths) - lengths
            return PackedRecords(b"".join(payloads), starts, lengths)

        # The core reads, checks and packs a local batch at once, when its bytes are first used; it
        # gives up where it finds anything wrong, and the code above says what.
        found = LocalFile.read_records(source_of, files, offsets, lengths, verify_crc=self._verify)
        return again() if found is None else PackedRecords(*found[:2], lengths, found[2], again)


def _check_length(header: bytes, length: int, limit: int | None = None) -> None:
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
