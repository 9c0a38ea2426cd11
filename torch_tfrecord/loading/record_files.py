"""The files of a map-style dataset: where each of their records lies, and reading them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_tfrecord.callers import outer_level
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.loading.sample_maker import RecordPlace
from torch_tfrecord.order.block_shuffle import Lanes, plan_lanes
from torch_tfrecord.printable import printable
from torch_tfrecord.records.compression import ByteSource, open_stream
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.records.reader import RecordReader
from torch_tfrecord.records.record_table import RecordTable
from torch_tfrecord.records.storage import SourceCache, open_file

__all__ = ["RecordFiles"]


class RecordFiles:
    """Reads records by their position among those of all files. One object for a dataset and its slices.

    Pickles without open files; may be used after fork and spawn, and from threads.

    Args:
        paths: The files.
        indexes: One for each file, in order; gone through once, their records are not kept.
        verify_crc: Check the payloads' checksums.

    Attributes:
        table: Where the records lie.
    """

    def __init__(self, paths: Sequence[str], indexes: Iterable[RecordIndex], verify_crc: bool) -> None:
        self._paths = paths
        facts: list[RecordIndex] = []  # an index goes into the table and is dropped: 16 bytes for each of its records
        self.table = RecordTable(_noting(indexes, facts))
        self._reader = RecordReader(verify_crc)
        self._opener = _FileOpener(paths, facts, self.lanes.kept_bytes)
        self.sources = self._new_sources()

    @property
    def extent(self) -> tuple[int, int, int]:
        """Files, records and decompressed bytes."""
        return len(self._paths), len(self.table), self.table.num_bytes

    @property
    def lanes(self) -> Lanes:
        """How they are read side by side where they are compressed."""
        return plan_lanes(*self.extent)

    @property
    def first_compressed(self) -> str | None:
        """The first file that is compressed."""
        return self._opener.first_compressed

    def warn(self) -> None:
        """Say, once, that random access is slow, where a file is compressed."""
        self._opener.warn()

    def keep_quiet(self) -> None:
        """Say no more that random access is slow: whoever calls this has said it, or reads in order."""
        self._opener.has_warned = True

    def read(self, position: int) -> bytes:
        """The payload of one record.

        Raises:
            TFRecordError: It cannot be read; names it.
        """
        file, number, offset, length = self.table.find_one(position)
        try:
            return self._reader.read(self.sources.get(file), offset, length)
        except TFRecordError as error:
            error.locate(path=self._paths[file], position=number)
            raise

    def read_batch(self, positions: npt.NDArray[np.int64]) -> PackedRecords:
        """The payloads of several records, by few calls.

        Raises:
            TFRecordError: One of them cannot be read; `read` says which.
        """
        return self._reader.read_batch(self.sources.get, *self.table.find(positions))

    def place(self, position: int) -> RecordPlace:
        """Where a record is."""
        file, number, offset, _ = self.table.find_one(position)
        return RecordPlace(self._paths[file], offset, number)

    def _new_sources(self) -> SourceCache:
        # Each compressed file that is open keeps some MiB.
        return SourceCache(self._opener, None if self.first_compressed is None else 2 * self.lanes.number)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "sources": None}  # open files stay in their process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.sources = self._new_sources()


def _noting(indexes: Iterable[RecordIndex], facts: list[RecordIndex]) -> Iterator[RecordIndex]:
    for index in indexes:
        facts.append(index.without_records())
        yield index


class _FileOpener:
    """Opens files by number. Apart from RecordFiles, which would else refer to itself and keep files open when dropped.

    Args:
        paths: The files.
        indexes: One for each file, which must still be of that file; their records are of no matter.
        kept_bytes: See `InflatedSource`.

    Attributes:
        first_compressed: The first file that is compressed, or None.
        has_warned: Whether it was said that random access is slow there.
    """

    def __init__(self, paths: Sequence[str], indexes: Sequence[RecordIndex], kept_bytes: int) -> None:
        self._paths = paths
        self._indexes = indexes
        self._kept_bytes = kept_bytes
        compressed = (path for path, index in zip(paths, indexes, strict=True) if index.compression_type)
        self.first_compressed = next(compressed, None)
        self.has_warned = False

    def __call__(self, file: int) -> ByteSource:
        source = open_file(self._paths[file])
        index = self._indexes[file]
        index.check_fresh(source)
        # A thread of a loader has no line of the user's above it; whoever starts those warns.
        if index.compression_type and threading.current_thread() is threading.main_thread():
            self.warn()
        return open_stream(source, index.compression_type, self._kept_bytes)[0]

    def warn(self) -> None:
        """See `RecordFiles.warn`."""
        if self.first_compressed is not None and not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"{printable(self.first_compressed)}: random access in a compressed file decompresses from its "
                "beginning up to the record: slow unless read in order. Use make_dataloader or "
                'RecordSampler(shuffle="blocks"), whose shuffle goes through each file once, stream with '
                "TFRecordIterableDataset, or write it uncompressed.",
                stacklevel=outer_level(),
            )
