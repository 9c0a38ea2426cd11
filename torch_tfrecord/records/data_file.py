"""Records by number, of a data file in either format: TFRecord or ArrayRecord."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.files import Access, LocalFile
from torch_tfrecord.records.array_record import ArrayRecordFile
from torch_tfrecord.records.index import RecordIndex

__all__ = [
    "ArrayRecordIndex",
    "FileIndex",
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
    _has_ranges: ClassVar[bool] = False

    @classmethod
    def of(cls, path: str) -> ArrayRecordIndex:
        """Open a file and read its number of records.

        Raises:
            CorruptRecordError: The file is damaged.
            ImportError: The package array-record is missing.
            OSError: The file cannot be opened.
            ValueError: The path is remote.
        """
        length = len(ArrayRecordFile(path))
        source = LocalFile(path)
        return cls(length, source.file_size, source.mtime_ns, source.fingerprint())

    def __len__(self) -> int:
        return self.num_records

    def _borders(self) -> npt.NDArray[np.int64]:
        """About where the records are: as if all had the same size."""
        count = self.num_records
        return np.arange(count + 1, dtype=np.int64) * self.file_size // max(count, 1)

    def _without_records(self) -> ArrayRecordIndex:
        return self

    def _open(self, path: str, access: Access) -> ArrayRecordFile:
        """See `RecordIndex._open`."""
        return ArrayRecordFile(path, self.check_fresh)

    def _read(self, file: ArrayRecordFile, number: int) -> bytes:
        """See `RecordIndex._read`."""
        return file.read(number)

    def _offset(self, number: int) -> None:
        """The first byte of a record, which the file alone knows."""

    def check_fresh(self, source: LocalFile) -> None:
        """Raise IndexMismatchError unless the file is still the same."""
        RecordIndex._bare(self.file_size, "", self.mtime_ns, self.fingerprint).check_fresh(source)


FileIndex: TypeAlias = "RecordIndex | ArrayRecordIndex"
"""The number of records of a file, and which file it is."""
