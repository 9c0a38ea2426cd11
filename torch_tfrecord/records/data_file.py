"""Records by number, of a data file in either format: TFRecord or ArrayRecord."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from torch_tfrecord.files import DEFAULT_ACCESS, Access, LocalFile, open_file
from torch_tfrecord.records.array_record import ArrayRecordFile
from torch_tfrecord.records.codecs import open_stream
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.reader import RecordReader

__all__ = [
    "ArrayRecordIndex",
    "FileIndex",
    "array_record_indexes",
    "has_ranges",
    "open_records",
    "read_record",
    "record_offset",
]


@dataclass(frozen=True)
class ArrayRecordIndex:
    """The number of records of an ArrayRecord file, and which file it is; the file itself knows
    where they are.

    Attributes:
        num_records: Number of records.
        file_size: See `RecordIndex`, as for all others.
        mtime_ns: Modification time.
        fingerprint: CRC-32C over the first and last 4 KiB.
    """

    num_records: int
    file_size: int
    mtime_ns: int
    fingerprint: int

    compression_type: ClassVar[str] = ""
    _damaged: ClassVar[None] = None

    def __len__(self) -> int:
        return self.num_records

    def _borders(self) -> npt.NDArray[np.int64]:
        """About where the records are: as if all had the same size."""
        count = self.num_records
        return np.arange(count + 1, dtype=np.int64) * self.file_size // max(count, 1)

    def _without_records(self) -> ArrayRecordIndex:
        return self

    def check_fresh(self, source: LocalFile) -> None:
        """Raise IndexMismatchError unless the file is still the same."""
        RecordIndex._bare(self.file_size, "", self.mtime_ns, self.fingerprint).check_fresh(source)


def array_record_indexes(paths: Sequence[str]) -> list[ArrayRecordIndex]:
    """Open each file and read its number of records.

    Raises:
        CorruptRecordError: A file is damaged.
        ImportError: The package array-record is missing.
        OSError: A file cannot be opened.
        ValueError: A path is remote.
    """
    return [_index(path) for path in paths]


def _index(path: str) -> ArrayRecordIndex:
    length = len(ArrayRecordFile(path))
    source = LocalFile(path)
    return ArrayRecordIndex(length, source.file_size, source.mtime_ns, source.fingerprint())


FileIndex: TypeAlias = "RecordIndex | ArrayRecordIndex"
"""The number of records of a file, and which file it is."""


def has_ranges(records: FileIndex) -> TypeGuard[RecordIndex]:
    """Whether parts of a record can be read, by offset: the file is an uncompressed TFRecord
    file.
    """
    return isinstance(records, RecordIndex) and not records.compression_type


def open_records(path: str, records: FileIndex, access: Access = DEFAULT_ACCESS) -> Any:
    """Open a data file for `read_record`, after a check that it is still the one that was indexed.

    Returns:
        A `FileSource`, or an `ArrayRecordFile`.
    """
    if isinstance(records, ArrayRecordIndex):
        return ArrayRecordFile(path, records.check_fresh)
    source = open_file(path, access)
    records.check_fresh(source)
    return open_stream(source, records.compression_type)[0]


def read_record(stream: Any, records: FileIndex, number: int) -> bytes:
    """Read a whole record and check it.

    Args:
        stream: From `open_records`.
        records: The index of the file.
        number: Number of the record.
    """
    if isinstance(records, ArrayRecordIndex):
        found: bytes = stream.read(number)
        return found
    return RecordReader().read(stream, int(records.offsets[number]), int(records.lengths[number]))


def record_offset(records: FileIndex, number: int) -> int | None:
    """First byte of a record; None in an ArrayRecord file."""
    return None if isinstance(records, ArrayRecordIndex) else int(records.offsets[number])
