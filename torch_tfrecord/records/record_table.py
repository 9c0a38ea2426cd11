"""Where every record of a data set is, for look-ups of many positions at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from torch_tfrecord.arguments import Paths
from torch_tfrecord.batch_memory import NO_INTS, Ints
from torch_tfrecord.extensions import attached, is_there
from torch_tfrecord.files import Access, RemoteInfo
from torch_tfrecord.native import native_module
from torch_tfrecord.order import block_starts
from torch_tfrecord.records.array_record import is_array_record
from torch_tfrecord.records.framing import OVERHEAD_BYTES
from torch_tfrecord.records.index import COMPRESSION_TYPES, RecordIndex
from torch_tfrecord.records.index_keeper import IndexKeeper
from torch_tfrecord.records.paths import found_files, named_manifest

__all__ = ["RecordTable"]


_POSITIONS_AT_ONCE = 1 << 20  # looked up together where all are gone through: some tens of MiB


class RecordTable:
    """The files of a data set, and where every record is in them, in 8 bytes a record; positions
    count the records of all files.

    Each record begins where the one before it ends (`RecordIndex` checks that), so that a length
    is the difference of two offsets.

    Args:
        files: The paths.
        indexes: One for each file, in order; gone through once, and not kept.

    Attributes:
        files: The paths.
        first_compressed: The first file that is compressed, or None.
        damaged: Positions that are no records, but what is between two.
    """

    files: list[str]
    first_compressed: str | None
    damaged: Sequence[int]
    _ends: Ints  # the position after the last record of each file

    def __init__(self, files: Sequence[str], indexes: Iterable[RecordIndex]) -> None:
        self.files, self._facts = [*files], list[RecordIndex]()
        damaged: list[int] = []
        borders, begin = [NO_INTS], 0
        for index in indexes:
            borders.append(index._borders())
            self._facts.append(index._without_records())
            damaged += [begin + number for number in index._damaged or ()]
            begin += len(index)
        self.damaged = damaged
        kinds = zip(files, self._facts, strict=True)
        self.first_compressed = next(
            (path for path, facts in kinds if facts.compression_type in COMPRESSION_TYPES[1:]), None
        )
        # Record i of file f is entry i + f.
        self._ends = np.cumsum([len(of_file) - 1 for of_file in borders[1:]], dtype=np.int64)
        self._ends_list: list[int] = self._ends.tolist()  # faster for one record
        self._borders = np.concatenate(borders)

    @staticmethod
    def open(paths: Paths, keeper: IndexKeeper) -> RecordTable:
        """The table of a data set, by the manifest that is named or beside the files, or by the
        files' indexes, which are built where they are missing.

        Args:
            paths: See `find_files`.
            keeper: Finds or builds the indexes; with the policy "memory" only the names of a manifest
                are used.

        Raises:
            IndexMismatchError: A manifest that was named is stale or damaged; or see
                `IndexKeeper.each`.
            TFRecordError, OSError, ValueError, TypeError: See there, and `find_files`.
        """
        kind, access = keeper.compression_type, keeper.access.without_cache()
        is_looked_for = keeper.policy != "memory"
        named = named_manifest(paths)
        if named is not None and is_looked_for:
            return _manifests().open_named(named, kind, access)
        files, infos = found_files(paths, access)
        if is_looked_for and is_there("manifests"):
            found = _manifests().open_beside(files, infos, keeper.index_dir, kind, access)
            if found is not None:
                return found
        if kind in ("auto", "") and is_array_record(files[0]):
            return RecordTable(files, map(RecordIndex._of_array_record, files))
        keeper.access = keeper.access.for_files(files)  # where all are local, no cache is made
        return RecordTable(files, keeper.each(files, infos))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def file_bytes(self) -> Ints:
        """Bytes of each file, decompressed: int64 [F]."""
        return self._borders[self._ends + np.arange(len(self._ends))]

    def facts(self, file: int) -> RecordIndex:
        """The index of a file without the records, with which it is compared when it is opened."""
        return self._facts[file]

    def find(self, positions: Ints) -> tuple[Ints, Ints, Ints]:
        """Where N records are, by positions from 0 to len - 1, in any order.

        Returns:
            Number of the file, offset of the length field, and payload length; int64 [N] each.
        """
        native = native_module("frames")
        if native is not None:
            places = np.empty((3, len(positions)), np.int64)
            if native.find(np.ascontiguousarray(positions), self._ends, self._borders, places):
                return places[0], places[1], places[2]
        # In NumPy, where there is no compiled core or a position is out of range: that raises here.
        files = np.searchsorted(self._ends, positions, side="right")
        entries = positions + files
        offsets = self._borders[entries]
        # In place: each array of a long batch costs as much as the look-up.
        entries += 1
        lengths = self._borders[entries]
        lengths -= offsets
        lengths -= OVERHEAD_BYTES
        return files, offsets, lengths

    def find_one(self, position: int) -> tuple[int, int, int, int]:
        """Number of the file, number in that file, offset and length of one record."""
        ends, entry = self._ends_list, self._borders.item
        file = bisect_right(ends, position)
        offset = entry(position + file)
        number = position - (ends[file - 1] if file else 0)
        return file, number, offset, entry(position + file + 1) - offset - OVERHEAD_BYTES

    def numbers(self, positions: Ints, files: Ints) -> Ints:
        """The number in its file of each record, by its position and its file."""
        return positions - np.insert(self._ends, 0, 0)[files]

    def block_extent(self, file: int, offset: int, block_bytes: int) -> tuple[int, int]:
        """Where the first of the records begins that begin in the same `block_bytes` bytes of a
        file as the one at an offset, and where the last of them ends.
        """
        borders, begin = self._near(file, offset, block_bytes), offset // block_bytes * block_bytes
        first, end = np.searchsorted(borders, (begin, begin + block_bytes)).tolist()
        if borders[first] > offset:  # in the midst of a record that begins in a block before
            first -= 1
        return int(borders[first]), int(borders[min(end, len(borders) - 1)])

    def _near(self, file: int, offset: int, block_bytes: int) -> Ints:
        """Where some neighbouring records of a file begin, those in the block of an offset among
        them, and where the last of them ends.
        """
        first = (self._ends_list[file - 1] if file else 0) + file
        return self._borders[first : self._ends_list[file] + file + 1]

    def block_starts(self, positions: range | Ints, block_bytes: int) -> Ints:
        """Where each block begins in a sequence of positions; see `order.block_starts`."""
        found = [NO_INTS]
        for begin in range(0, len(positions), _POSITIONS_AT_ONCE):
            # with the one before, to compare with
            part = positions[max(begin - 1, 0) : begin + _POSITIONS_AT_ONCE]
            numbers = (
                np.arange(part.start, part.stop, part.step) if isinstance(part, range) else part
            )
            files, offsets, _ = self.find(numbers)
            starts = block_starts(files, offsets, block_bytes)
            found.append(starts[1:] + (begin - 1) if begin else starts)
        return np.concatenate(found)


class _Manifests(Protocol):
    """The object that the extension `manifests` attaches: files in place of the indexes of many."""

    def open_named(self, path: str, compression_type: str, access: Access) -> RecordTable:
        """The table of a manifest that a user named.

        Raises:
            IndexMismatchError: It is damaged, or its files are not those of now.
            OSError: It, or one of its local files, is not there.
        """

    def open_beside(
        self,
        files: list[str],
        infos: Mapping[str, RemoteInfo],
        index_dir: str | None,
        compression_type: str,
        access: Access,
    ) -> RecordTable | None:
        """The table of sorted files by the manifest beside them; None if there is none to use.

        Args:
            files: The files.
            infos: What storages said of them.
            index_dir: Where to look, instead of beside them.
            compression_type: How all must be compressed; "auto" is any way.
            access: How the manifest is reached.
        """


def _manifests() -> _Manifests:
    """The manifests of the extension.

    Raises:
        ImportError: It is not installed.
    """
    return attached("manifests", "ManifestTable")
