"""Records of one file: all of them in order, or any of them by its place in the index."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import BinaryIO

from torch_tfrecord.checksum import masked_crc32c
from torch_tfrecord.compression import ByteSource, check_compression_type, offset_note, open_stream
from torch_tfrecord.errors import CorruptRecordError, IndexMismatchError, LimitExceededError, TFRecordError
from torch_tfrecord.framing import FOOTER_BYTES, HEADER_BYTES, OVERHEAD_BYTES, HeaderMemo, check_payload
from torch_tfrecord.scan import Block, RecordScanner, SkippedBytes
from torch_tfrecord.storage import PipeSource, local_path, open_file

__all__ = ["RecordReader", "check_on_corrupt", "read_blocks", "read_records"]

# From this length on header, payload and footer are read apart: three calls cost less than copying the payload.
_SEPARATE_READS_BYTES = 1 << 15


def read_records(
    path: str | os.PathLike[str] | BinaryIO,
    *,
    compression_type: str | None = "auto",
    verify_crc: bool = True,
    on_corrupt: str = "raise",
) -> Iterator[bytes]:
    """All records of a file, in order.

    Args:
        path: A local path, one that fsspec reads (``s3://...``), or a binary file object that is read forward.
        compression_type: "auto" (detected from the first bytes), None or "" (none), "GZIP", "ZLIB", in any case.
        verify_crc: Check the payloads' checksums. Lengths and their checksums are always checked.
        on_corrupt: "raise", or "skip" to leave damaged records out and report them in one warning at the end.

    Yields:
        The payload of each record. Those in front of any damage come out before the error is raised.

    Raises:
        CorruptRecordError: a checksum differs, or the file ends inside a record.
        CompressionError: the file is compressed differently than declared, damaged, or cut.
        LimitExceededError: a compressed record of a length that no honest file has.
        OSError: the file cannot be opened or read; the path is named.
        ValueError: an unknown `compression_type` or `on_corrupt`.

    Example:
        >>> for record in read_records("train.tfrecord.gz"):  # doctest: +SKIP
        ...     print(len(record))
    """
    compression = check_compression_type(compression_type)
    check_on_corrupt(on_corrupt)
    if not isinstance(path, (str, os.PathLike)) and not callable(getattr(path, "read", None)):
        raise TypeError(f"path must be a path or a binary file object, got {type(path).__name__}")
    return (
        payload
        for block in read_blocks(path, compression, verify_crc=verify_crc, on_corrupt=on_corrupt)
        for payload in block.payloads or ()
    )


def check_on_corrupt(on_corrupt: str) -> None:
    """ValueError unless "raise" or "skip"."""
    if on_corrupt not in ("raise", "skip"):
        raise ValueError(f"on_corrupt must be 'raise' or 'skip', got {on_corrupt!r}")


def read_blocks(
    path: str | os.PathLike[str] | BinaryIO,
    compression_type: str,
    *,
    verify_crc: bool,
    on_corrupt: str,
    use_helper: bool = True,
) -> Iterator[Block]:
    """`read_records` block by block, with the offsets; the file is opened at the first block."""
    file = open_file(local_path(path)) if isinstance(path, (str, os.PathLike)) else PipeSource(path)
    skipped = SkippedBytes() if on_corrupt == "skip" else None
    stream, _ = open_stream(file, compression_type)
    yield from RecordScanner(stream, verify_crc=verify_crc, use_helper=use_helper, skipped=skipped)
    if skipped is not None and skipped.ranges:
        _report(file.path, skipped)


def _report(path: str, skipped: SkippedBytes) -> None:
    total = sum(end - begin for begin, end in skipped.ranges)
    ranges = ", ".join(f"[{begin}, {end})" for begin, end in skipped.ranges[:10])
    more = f" and {len(skipped.ranges) - 10} more" if len(skipped.ranges) > 10 else ""
    warnings.warn(
        f"{path}: skipped {total} damaged bytes (at least {skipped.num_records} records) "
        f"in {len(skipped.ranges)} places: {ranges}{more}; "
        f"the first: {skipped.errors[0]}",
        stacklevel=3,
    )


class RecordReader:
    """Reads single records of a stream at offsets that an index names. Keeps no position; safe from threads.

    Args:
        verify_crc: Check the payload's checksum, too; the header is always checked.
    """

    def __init__(self, verify_crc: bool = True) -> None:
        self._verify = verify_crc
        self._memo = HeaderMemo()

    def read(self, source: ByteSource, offset: int, length: int) -> bytes:
        """Payload of the record at `offset`, which must be `length` bytes long.

        Raises:
            CorruptRecordError: a checksum differs, or the file ends inside the record.
            IndexMismatchError: there is another length at that offset.
        """
        try:
            return self._read(source, offset, length)
        except TFRecordError as error:
            error.args = (f"{error.args[0]}{offset_note(source)}",)
            error.locate(path=source.path, offset=offset)
            raise

    def _read(self, source: ByteSource, offset: int, length: int) -> bytes:
        if source.size is None:  # an index that lies must not make us take memory for a length that is not there
            self._check_length(source.read(HEADER_BYTES, offset), length, source.max_record_bytes)
        if length < _SEPARATE_READS_BYTES or source.size is None:
            record = source.read(length + OVERHEAD_BYTES, offset)
            header, payload, footer = record[:HEADER_BYTES], record[HEADER_BYTES:-FOOTER_BYTES], record[-FOOTER_BYTES:]
            got = len(record)
        else:
            header = source.read(HEADER_BYTES, offset)
            payload = source.read(length, offset + HEADER_BYTES)
            footer = source.read(FOOTER_BYTES, offset + HEADER_BYTES + length)
            got = len(header) + len(payload) + len(footer)
        if got < length + OVERHEAD_BYTES:
            source.check_end()
            raise CorruptRecordError(f"truncated record: expected {length + OVERHEAD_BYTES} bytes, got {got}")
        self._check_length(header, length)
        if self._verify and masked_crc32c(payload) != int.from_bytes(footer, "little"):
            check_payload(payload, footer)  # raises, and says both checksums
        return payload

    def _check_length(self, header: bytes, length: int, limit: int | None = None) -> None:
        if len(header) < HEADER_BYTES:
            return  # cut: the caller says more about it
        stored_length = self._memo[header]
        if stored_length != length:
            raise IndexMismatchError(f"expected a record of {length} bytes (by the index), got one of {stored_length}")
        if limit is not None and length > limit:
            raise LimitExceededError(
                f"expected a record of at most {limit} bytes in a stream, got a length of {length}"
            )
