"""ArrayRecord files, whose records are read by number, or as if they were a TFRecord file, with the
package `array-record` (extra ``arrayrecord``).

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
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from torch_tfrecord.errors import CorruptRecordError, needs_extra
from torch_tfrecord.files import Descriptor, FileSource, LocalFile, is_remote
from torch_tfrecord.per_process import compiled_copy, module_of_process
from torch_tfrecord.records.framing import ARRAY_RECORD_MAGIC, OVERHEAD_BYTES, frame
from torch_tfrecord.shown import without_secrets

__all__ = [
    "ArrayRecordFile",
    "ArrayRecordStream",
    "is_array_record",
]

_NAME = "array_record.python.array_record_module"
# where the classes of all modules that were made with pybind11 are registered
_PYBIND = "__pybind11_internals"
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # for random access
_BUFFER_BYTES = 1 << 12  # 1 MiB takes 3 times as long for small records
_ERRORS = (RuntimeError, ValueError, IndexError)  # the package raises these, whatever is wrong


def is_array_record(path: str) -> bool:
    """Whether a local file is one, by its first bytes."""
    return not is_remote(path) and LocalFile(path).read(8, 0) == ARRAY_RECORD_MAGIC


class ArrayRecordFile:
    """Reads records of a local file by number. Safe from threads; not for use after a fork, and not
    pickled.

    The file is closed when others need its descriptor, and opened again by the next read.

    Args:
        path: The file.
        check: Called whenever the file is opened, such as an index's `check_fresh`; None without one.

    Raises:
        ValueError: The path is remote.
    """

    def __init__(self, path: str, check: Callable[[LocalFile], None] | None = None) -> None:
        if is_remote(path):
            raise ValueError(
                f"{without_secrets(path)}: expected a local path, since array-record reads only local files; copy "
                "the files to a disk"
            )
        self.path = path
        self._place = os.path.abspath(path)  # the folder may be another one when it is opened again
        self._check = check
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
            if self._check is not None:
                self._check(source)
            del source  # its descriptor, before waiting for another
            held = Descriptor.reserve(self)
            held.holds = _OpenReader(_reader(self._place, self.path))
            self._held = held
        return held


class ArrayRecordStream(FileSource):
    """The records of a file as the bytes of a TFRecord file.

    Args:
        source: The file.

    Raises:
        ValueError: It is remote, or no file but a stream.
    """

    chunk_bytes = 1 << 19
    size = None

    def __init__(self, source: FileSource) -> None:
        self.path = source.path
        if source.size is None:
            raise ValueError(
                f"{without_secrets(self.path)}: expected the path of an ArrayRecord file, got a stream"
            )
        self._file = ArrayRecordFile(self.path)
        self._begins = array("q", [0])  # the records up to the last one that was read
        self._error: CorruptRecordError | None = None

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end, or before a damaged record."""
        begins, parts, self._error = self._begins, list[bytes](), None
        number, length = bisect_right(begins, offset) - 1, len(self._file)
        while number < length and begins[number] < offset + num_bytes:
            try:
                payload = self._file.read(number)
            except CorruptRecordError as error:
                if not parts:
                    raise
                self._error = error
                break
            if number + 1 == len(begins):
                begins.append(begins[number] + len(payload) + OVERHEAD_BYTES)
            if begins[number + 1] > offset:
                parts.append(frame(payload)[max(offset - begins[number], 0) :])
            number += 1
        return b"".join(parts)[:num_bytes]

    def check_end(self) -> None:
        """Raise the error of the record that ended the last read."""
        if self._error is not None:
            raise self._error


class _OpenReader:
    """A reader that is closed with its last reference, but not in a forked child: a thread may have
    been in it.
    """

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self._pid = os.getpid()

    def __del__(
        self,
        getpid: Callable[[], int] = os.getpid,
        keep: Any = ctypes.pythonapi.Py_IncRef,
        as_object: Any = ctypes.py_object,
    ) -> None:
        if getpid() != self._pid:
            keep(as_object(self.reader))  # for ever


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
    with needs_extra("reading ArrayRecord files", "arrayrecord", "array-record"):
        return importlib.import_module(_NAME)


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
