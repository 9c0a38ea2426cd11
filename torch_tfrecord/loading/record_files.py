"""The files of a map-style dataset: where each record is, and how to read it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Sized
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from torch_tfrecord.batch_memory import Ints
from torch_tfrecord.errors import TFRecordError, warn
from torch_tfrecord.extensions import attached
from torch_tfrecord.files import (
    Access,
    FileSource,
    is_remote,
)
from torch_tfrecord.per_process import ProcessCache, each_at_once
from torch_tfrecord.phases import Phase
from torch_tfrecord.records import (
    PackedRecords,
    RecordReader,
    RecordTable,
)
from torch_tfrecord.samples import RecordPlace
from torch_tfrecord.shown import printable

__all__ = [
    "RecordFiles",
    "SingleRecords",
]

_MOST_OPEN = 256


_ReadTogether: TypeAlias = (
    "Callable[[Sequence[tuple[FileSource, int, int, int, int]], memoryview], None]"
)


class _InflatedFiles(Protocol):
    """Compressed files that are read at random, and what is kept of them, decompressed."""

    most_bytes: int

    def open(
        self, file: FileSource, compression_type: str, size: int, points: Sized | None, number: int
    ) -> FileSource:
        """The decompressed content of a file, of so many bytes, which can be entered at points."""


class _Reader(Protocol):
    """An ArrayRecord file, whose records are read by number."""

    def read(self, number: int) -> bytes: ...
    def read_many(self, numbers: Sequence[int]) -> list[bytes]: ...


class RecordFiles:
    """Reads records by their position over all files, and keeps files open between reads: see also
    `ArrayRecordFiles`.

    A dataset and its slices share one object. Pickles without open files; may be used after fork
    and spawn, and from threads.

    Args:
        table: Where the records are; each file is compared with what it says of it when it is
            opened.
        verify_crc: Check the payloads' checksums.
        access: How remote files are reached.

    Attributes:
        table, access, verify_crc: The same.
        extent: Files, records and decompressed bytes.
        first_compressed: The first file that is compressed, or None.
        slow_file: The same, but None if all decompressed data is kept, so that any order
            decompresses each byte once.
        has_warned: Whether the user was warned that random access is slow; also set to suppress the
            warning.
        is_remote: Whether some files are remote.
        are_array_records: Whether they are ArrayRecord files, which say less of their records.
    """

    are_array_records = False

    def __init__(
        self, table: RecordTable, verify_crc: bool = True, access: Access = Access.DEFAULT
    ) -> None:
        self.table, self.verify_crc, self.access = table, verify_crc, access
        self._reader = RecordReader(verify_crc)
        self.is_remote = any(map(is_remote, table.files))
        self._blocks: _ReadTogether | None = None
        self.extent = len(table.files), len(table), int(table.file_bytes.sum())
        self.first_compressed = table.first_compressed
        self._inflated: _InflatedFiles | None = None
        self.slow_file: str | None = None
        if self.first_compressed is not None:
            self._inflated = attached("compression", "CODECS").inflated_files()
            if self.extent[2] > self._inflated.most_bytes:
                self.slow_file = self.first_compressed
        self.has_warned = False
        self._sources: ProcessCache[FileSource] = ProcessCache(_MOST_OPEN)

    @staticmethod
    def of(
        table: RecordTable, verify_crc: bool = True, access: Access = Access.DEFAULT
    ) -> RecordFiles:
        """The reader of the files of a table, by the kind of its first one."""
        is_array = bool(table.files) and table.facts(0)._is_array_record
        return ArrayRecordFiles(table) if is_array else RecordFiles(table, verify_crc, access)

    def warn(self) -> None:
        """Warn once that random access is slow, if there is a `slow_file`."""
        if self.slow_file and not self.has_warned:
            self.has_warned = True
            warn(
                f"{printable(self.slow_file)}: random access in a compressed file decompresses from the "
                "last seek point up to the record, a millisecond or more for each. Use make_dataloader or "
                'RecordSampler(shuffle="blocks"), whose shuffle decompresses nearly all once, stream with '
                "TFRecordIterableDataset, or write the data uncompressed."
            )

    def read(self, position: int) -> bytes:
        """The payload of one record.

        Raises:
            TFRecordError: It cannot be read; the message names the record.
        """
        file, number, offset, length = self.table.find_one(position)
        try:
            return self._reader.read(self._source(file), offset, length)
        except TFRecordError as error:
            error.locate(path=self.table.files[file], position=number)
            raise

    def read_batch(self, positions: Ints) -> PackedRecords:
        """The payloads of several records, in few calls.

        Raises:
            TFRecordError: One of them cannot be read; `read` finds out which.
        """
        with Phase("read"):
            files, offsets, lengths = self.table.find(positions)
            # Local files open in microseconds.
            if self.is_remote:
                self._open_together(files)
            return self._reader.read_batch(self._source, files, offsets, lengths, self._blocks)

    def read_by_blocks(self, block_bytes: int | None) -> None:
        """Fetch remote files by whole blocks from now on, since all of a block is read soon; None:
        no longer.
        """
        is_of_use = self.is_remote and self.first_compressed is None
        self._blocks = (
            None
            if block_bytes is None or not is_of_use
            else attached("remote", "STORAGES").by_blocks(self.table.block_extent, block_bytes)
        )

    def place(self, position: int) -> RecordPlace:
        """Where a record is."""
        file, number, offset, _ = self.table.find_one(position)
        return RecordPlace(self.table.files[file], offset, number)

    def _source(self, file: int) -> FileSource:
        return self._sources.find(file, self._open)

    def _open_together(self, files: Ints) -> None:
        """Open all files that are not, at once: each may take a request or two."""
        closed = [file for file in np.unique(files).tolist() if file not in self._sources]
        if len(closed) > 1:
            for _ in each_at_once(self._source, closed):
                pass

    def _open(self, file: int) -> FileSource:
        path, index = self.table.files[file], self.table.facts(file)
        source = index._open(path, self.access)
        # In a loader's thread no line of the user's code is on the stack; the loader warns when it
        # starts them.
        if self._inflated is None or not index.compression_type:
            return source  # its first bytes were checked when the index was accepted
        if threading.current_thread() is threading.main_thread():
            self.warn()
        size, points = int(self.table.file_bytes[file]), index._seek_points(self.access)
        return self._inflated.open(source, index.compression_type, size, points, file)


class ArrayRecordFiles(RecordFiles):
    """The same of ArrayRecord files; their table knows about where the records are."""

    are_array_records = True

    def __init__(self, table: RecordTable) -> None:
        super().__init__(table)
        self._readers: ProcessCache[_Reader] = ProcessCache(_MOST_OPEN)

    def read(self, position: int) -> bytes:
        """The payload of one record; see `RecordFiles`."""
        file, number, _, _ = self.table.find_one(position)
        try:
            return self._readers.find(file, self._open_reader).read(number)
        except TFRecordError as error:
            raise error.locate(path=self.table.files[file], position=number) from error.__cause__

    def read_batch(self, positions: Ints) -> PackedRecords:
        """The payloads of several records, in file order; see `RecordFiles`."""
        with Phase("read"):
            # Neighbours of a file share chunks, which are decompressed once.
            order = np.argsort(positions, kind="stable")
            wanted = positions[order]
            files = self.table.find(wanted)[0]
            numbers = self.table.numbers(wanted, files)
            payloads: list[bytes] = []
            for first, last in pairwise(
                np.flatnonzero(np.diff(files, prepend=-1, append=-1)).tolist()
            ):
                reader = self._readers.find(int(files[first]), self._open_reader)
                payloads += reader.read_many(numbers[first:last].tolist())
            sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
            starts, lengths = np.empty((2, len(payloads)), np.int64)
            starts[order], lengths[order] = np.cumsum(sizes) - sizes, sizes
            return PackedRecords(b"".join(payloads), starts, lengths)

    def place(self, position: int) -> RecordPlace:
        """Where a record is; no byte offset is known."""
        file, number, _, _ = self.table.find_one(position)
        return RecordPlace(self.table.files[file], None, number)

    def _open_reader(self, file: int) -> _Reader:
        found = self.table.facts(file)._open_records(self.table.files[file], self.access)
        return cast("_Reader", found)


class SingleRecords(Sequence[bytes]):
    """Records that are read one by one, each when it is asked for.

    Args:
        files: Read them.
        positions: Their positions over all files.
    """

    def __init__(self, files: RecordFiles, positions: Ints) -> None:
        self._files, self._positions = files, positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, number: Any) -> Any:
        return self._files.read(int(self._positions[number]))
