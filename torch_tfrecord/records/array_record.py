"""ArrayRecord files, whose records are read by number, with the package `array-record` (extra
``arrayrecord``).

The package checks a hash of every chunk that it reads. Its `read(indices)` is not used: it spreads
the records over 64 threads of its own, which took 2 to 6 times as long as reading them one by one
in file order, and a child that was forked while another thread was in there can wait forever.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

from torch_tfrecord.errors import CorruptRecordError
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.descriptors import Descriptor, reserve_descriptor
from torch_tfrecord.files.per_process import compiled_copy, module_of_process
from torch_tfrecord.files.storage import LocalFile, is_remote, open_file
from torch_tfrecord.records.compression import open_stream
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.reader import RecordReader
from torch_tfrecord.shown import without_secrets

__all__ = [
    "ArrayRecordFile",
    "ArrayRecordIndex",
    "FileIndex",
    "array_record_indexes",
    "array_record_module",
    "has_ranges",
    "open_records",
    "read_record",
    "record_offset",
]

_NAME = "array_record.python.array_record_module"
# where the classes of all modules that were made with pybind11 are registered
_PYBIND = "__pybind11_internals"
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # for random access
_BUFFER_BYTES = 1 << 12  # 1 MiB takes 3 times as long for small records
_ERRORS = (RuntimeError, ValueError, IndexError)  # what the package raises, whatever is wrong


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

    def __len__(self) -> int:
        return self.num_records

    def check_fresh(self, source: LocalFile) -> None:
        """Raise IndexMismatchError unless the file is still the same."""
        RecordIndex.bare(self.file_size, "", self.mtime_ns, self.fingerprint).check_fresh(source)


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
    if is_remote(path):
        raise ValueError(
            f"{without_secrets(path)}: expected a local path, since array-record reads only local files; copy the "
            "directory to a disk"
        )
    source = LocalFile(path)
    return ArrayRecordIndex(
        len(ArrayRecordFile(path)), source.file_size, source.mtime_ns, source.fingerprint()
    )


class ArrayRecordFile:
    """Reads records of a local file by number. Safe from threads; not for use after a fork, and not
    pickled.

    The file is closed when others need its descriptor, and opened again by the next read.

    Args:
        path: The file.
        index: Checked whenever the file is opened; None if it is not known yet.
    """

    def __init__(self, path: str, index: ArrayRecordIndex | None = None) -> None:
        self.path = path
        self._place = os.path.abspath(path)  # the folder may be another one when it is opened again
        self._index = index
        self._lock = threading.Lock()  # a reader has a position
        self._held: Descriptor | None = None

    def __len__(self) -> int:
        return int(self._hold().holds.reader.num_records())

    def read(self, number: int) -> bytes:
        """One record.

        Raises:
            CorruptRecordError: It is damaged; names the file and the record.
            IndexMismatchError: The file has changed.
        """
        try:
            return self.read_many([number])[0]
        except CorruptRecordError as error:
            raise error.locate(position=number) from error.__cause__

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        """Several records, best in ascending order.

        Raises:
            CorruptRecordError: One of them is damaged; `read` finds out which.
            IndexMismatchError: The file has changed.
        """
        with self._lock:
            held = self._hold()
            seek, read = held.holds.reader.seek, held.holds.reader.read
            records = []
            try:
                for number in numbers:
                    seek(number)
                    records.append(read())
            except _ERRORS as error:
                self._held = None  # a reader that has failed is not used again
                raise _damaged("record", error, self.path) from error
            return records

    def _hold(self) -> Descriptor:
        """An open reader, which is not closed while its caller keeps this."""
        held = self._held
        if held is None:
            source = LocalFile(self._place)  # raises OSErrors that name the path
            if self._index is not None:
                self._index.check_fresh(source)
            del source  # its descriptor, before waiting for another
            held = reserve_descriptor(self)
            held.holds = _OpenReader(_reader(self._place, self.path))
            self._held = held
        held.is_used = True
        return held


class _OpenReader:
    """A reader that is closed with its last reference, but not in a forked child: a thread may have
    been in it.
    """

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self._pid = os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self._pid:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.reader))  # for ever


def _reader(place: str, path: str) -> Any:
    reader = array_record_module().ArrayRecordReader(
        place, _OPTIONS, file_reader_buffer_size=_BUFFER_BYTES
    )
    if not reader.ok():
        try:
            reader.read()
        except _ERRORS as error:
            raise _damaged("file", error, path) from error
    return reader


def _damaged(what: str, error: Exception, path: str) -> CorruptRecordError:
    reason = str(error).partition("\n")[0] or "no reason"
    return CorruptRecordError(
        f"expected an intact ArrayRecord {what}, got an error of array-record: {reason}", path=path
    )


# The compiled module for this process, also in a child that was forked after its parent had used it.
#
# A thread of the module (Riegeli's BackgroundCleaner) waits for a lock. A fork copies the lock, but
# not the thread: a child that reads by the parent's module follows a pointer into a stack that
# another thread may have by now, and crashes. (DataLoader's workers do, also with new readers.) A
# second copy of the module has its own.


def array_record_module() -> Any:
    """The module for this process.

    Raises:
        ImportError: The package is missing, or cannot be loaded twice.
    """
    return module_of_process(_NAME, _first, _own_copy)


def _first() -> Any:
    try:
        return importlib.import_module(_NAME)
    except ImportError as error:
        raise ImportError(
            "ArrayRecord files need the package array-record: pip install 'torch-tfrecord[arrayrecord]'"
        ) from error


def _own_copy() -> Any:
    hidden = {name: value for name, value in vars(builtins).items() if name.startswith(_PYBIND)}
    for name in hidden:  # else it refuses to register a class again
        delattr(builtins, name)
    try:
        return compiled_copy(_NAME)
    except ImportError as error:
        raise ImportError(
            "array-record cannot be used in a process that was forked after its parent had used it: set "
            'multiprocessing_context="forkserver" of the DataLoader'
        ) from error
    finally:
        vars(builtins).update(hidden)


# Records by number, of a data file in either format.

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
        A `ByteSource`, or an `ArrayRecordFile`.
    """
    if isinstance(records, ArrayRecordIndex):
        return ArrayRecordFile(path, records)
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
