"""A dataset opened from a manifest alone: its shards, and where their records lie."""

from __future__ import annotations

import errno
import os
import threading
import warnings
from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import IndexPolicy
from torch_tfrecord.errors import IndexMismatchError, outer_level
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.engine import each_at_once
from torch_tfrecord.files.per_process import PerProcess
from torch_tfrecord.files.ranges import block_around
from torch_tfrecord.files.storage import is_remote, open_file
from torch_tfrecord.files.store import RemoteInfo
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records.framing import OVERHEAD_BYTES
from torch_tfrecord.records.index import COMPRESSION_TYPES, RecordIndex
from torch_tfrecord.records.manifest import BLOCK_RECORDS, Manifest, manifest_path, shard_paths
from torch_tfrecord.records.paths import Paths, found_files, named_manifest
from torch_tfrecord.records.record_table import RecordPlaces, RecordTable

__all__ = ["ManifestShards", "ManifestTable", "open_shards"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

_READ_WHOLE_RECORDS = 1 << 20  # takes 8 MiB, and the compiled core looks them up
_KEPT_BLOCKS = 2048  # takes 32 MiB in each process
_BLOCKS_AT_ONCE = 256


class ManifestShards:
    """The shards of a data set by a manifest; pickles small, and reads its rows again where it is
    needed.

    Args:
        manifest: The manifest.
        rows: int64 [F]: of each file its row.
        files: Their paths, as `shard_paths` makes them.
        infos: What storages said of the files; what they did not say is seen when a file is opened.
        compression_type: How all files must be compressed; "auto" is any way.

    Attributes:
        files: The same.
        table: Where the records lie.
        first_compressed: The first file that is compressed, or None.

    Raises:
        IndexMismatchError: a shard is not what the manifest says (names the first), or the manifest
            is damaged.
        FileNotFoundError: a local shard is missing.
    """

    def __init__(
        self,
        manifest: Manifest,
        rows: _Integers,
        files: list[str],
        infos: Mapping[str, RemoteInfo] | None = None,
        compression_type: str = "auto",
    ) -> None:
        self._manifest, self._rows, self.files = manifest, rows, files
        if infos:
            self._check_remote_files(infos)
        is_local = not is_remote(manifest.path) and not is_remote(files[0])
        mtimes = self._check_local_files() if is_local else manifest.mtimes_ns[rows]
        self._mtimes = mtimes if (mtimes != manifest.mtimes_ns[rows]).any() else None
        self.table = _open_table(manifest, rows)
        kinds = manifest.compression[rows]
        self.first_compressed = files[int(kinds.argmax())] if kinds.any() else None
        if compression_type != "auto":
            is_other = kinds != COMPRESSION_TYPES.index(compression_type)
            if is_other.any():
                first = int(is_other.argmax())
                got = repr(COMPRESSION_TYPES[kinds[first]])
                raise self._stale(first, f"compression {compression_type!r}", got)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, file: int) -> RecordIndex:
        """What a file is held against when it is opened; without records."""
        facts = self._manifest.facts(self._rows.item(file))
        if self._mtimes is not None:
            object.__setattr__(facts, "mtime_ns", self._mtimes.item(file))
        return facts

    def __getstate__(self) -> dict[str, object]:
        is_all = _is_range(self._rows, len(self._manifest))
        return {**self.__dict__, "files": None, "_rows": None if is_all else self._rows}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        paths = shard_paths(self._manifest.path, self._manifest.names())
        if state["_rows"] is None:
            self._rows, self.files = np.arange(len(paths)), paths
        else:
            self.files = [paths[row] for row in self._rows.tolist()]

    def _check_local_files(self) -> _Integers:
        """Hold names, sizes and times against the manifest, and the bytes of files with another
        time; returns when each was changed last, int64 [F] nanoseconds.
        """
        states = np.array(list(map(_state, self.files)), np.int64).reshape(-1, 2)
        sizes, mtimes = states[:, 0], states[:, 1]
        if (sizes < 0).any():
            first = int((sizes < 0).argmax())
            text = f"{int((sizes < 0).sum())} of {len(self)} shards of the manifest are missing"
            raise FileNotFoundError(errno.ENOENT, text, self.files[first])
        expected = self._manifest.file_sizes[self._rows]
        if (sizes != expected).any():
            first = int((sizes != expected).argmax())
            raise self._stale(first, f"{expected[first]} bytes", f"{sizes[first]}")
        # Copying a folder changes the times: then the bytes at both ends decide.
        changed = np.flatnonzero(mtimes != self._manifest.mtimes_ns[self._rows]).tolist()
        if changed:
            bar = each_at_once(self._check_fingerprint, changed)
            for _ in ProgressBar(bar, "checking", total=len(changed), unit="file", delay=1.0):
                pass
        return mtimes

    def _check_fingerprint(self, file: int) -> None:
        expected = self._manifest.fingerprints.item(self._rows.item(file))
        got = open_file(self.files[file]).fingerprint()
        if got != expected:
            raise self._stale(file, f"fingerprint {expected:#010x}", f"{got:#010x}")

    def _check_remote_files(self, infos: Mapping[str, RemoteInfo]) -> None:
        etags = self._manifest.etags
        for file, row in enumerate(self._rows.tolist()):
            info = infos.get(self.files[file])
            if info is None:
                continue
            size, etag = self._manifest.file_sizes.item(row), etags[row] if etags else ""
            if info.size not in (None, size):
                raise self._stale(file, f"{size} bytes", f"{info.size}")
            if info.etag and etag and info.etag != etag:
                raise self._stale(file, f"ETag {etag}", info.etag)

    def _stale(self, file: int, expected: str, got: str) -> IndexMismatchError:
        return _stale(self._manifest, self.files[file], expected, got)


def open_shards(
    paths: Paths,
    policy: IndexPolicy,
    index_dir: str | os.PathLike[str] | None = None,
    compression_type: str = "auto",
    access: Access = DEFAULT_ACCESS,
) -> tuple[list[str], Mapping[str, RemoteInfo], ManifestShards | None]:
    """The files of a dataset, what storages said about them, and their shards in the manifest that
    was named or found.

    Args:
        paths: See `find_files`.
        policy: With "memory" only the names of a manifest are used.
        index_dir: Where to look for it, instead of beside the files.
        compression_type: As declared; "auto" is any.
        access: How to reach remote files.

    Raises:
        IndexMismatchError: The manifest that was named is stale or damaged.
        OSError, ValueError, TypeError: See `find_files`.
    """
    named = named_manifest(paths)
    if named is not None and policy != "memory":
        shards = _open_manifest(Manifest(named, access), compression_type)
        return shards.files, {}, shards
    files, infos = found_files(paths, access)
    if policy == "memory":
        return files, infos, None
    place = manifest_path(files, None if index_dir is None else os.fspath(index_dir))
    return files, infos, _find_manifest(place, access, files, infos, compression_type)


def _open_manifest(manifest: Manifest, compression_type: str) -> ManifestShards:
    """The shards of a manifest that a user named.

    Raises:
        IndexMismatchError, OSError: as of `ManifestShards`; nothing else names the files.
    """
    paths = shard_paths(manifest.path, manifest.names())
    if not paths:
        raise IndexMismatchError(
            "expected a manifest of at least one shard, got an empty one", path=manifest.path
        )
    keys = list(map(os.fsencode, paths))
    order = sorted(range(len(paths)), key=keys.__getitem__)
    if any(keys[one] == keys[other] for one, other in pairwise(order)):
        raise IndexMismatchError(
            "expected a manifest that names each file once, got one that does not",
            path=manifest.path,
        )
    rows, files = np.array(order, np.int64), [paths[row] for row in order]
    return ManifestShards(manifest, rows, files, None, compression_type)


def _find_manifest(
    path: str,
    access: Access,
    files: list[str],
    infos: Mapping[str, RemoteInfo],
    compression_type: str,
) -> ManifestShards | None:
    """The shards of the manifest beside sorted files; None if there is none that can be used.

    If it names these files but they have changed, it is not used, with a warning.
    """
    try:
        manifest = Manifest(path, access)
        rows = _rows(manifest, files)
        if rows is None:
            return None
        return ManifestShards(manifest, rows, files, infos, compression_type)
    except IndexMismatchError as error:
        text = f"{error}: it is not used; build it again with `tfrecord index --manifest`"
        warnings.warn(text, stacklevel=outer_level())
        return None
    except OSError:
        return None


def _rows(manifest: Manifest, files: list[str]) -> _Integers | None:
    """The row of each file; None if the manifest has none of them."""
    paths = shard_paths(manifest.path, manifest.names())
    if paths == files:
        return np.arange(len(files))
    row_of = {path: row for row, path in enumerate(paths)}
    rows = np.array([row_of.get(file, -1) for file in files], np.int64)
    missing = rows < 0
    if missing.all():
        return None
    if missing.any():
        first = int(missing.argmax())
        raise _stale(
            manifest,
            files[first],
            f"all {len(files)} files in it",
            f"{int(missing.sum())} that it does not name",
        )
    return rows


def _stale(manifest: Manifest, file: str, expected: str, got: str) -> IndexMismatchError:
    text = f"the manifest at {manifest.path} is not of this file as it is now: expected {expected}"
    return IndexMismatchError(f"{text}, got {got}", path=file)


def _state(file: str) -> tuple[int, int]:
    """Size and time of a file; a size of -1 if it is missing."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return -1, 0
    return status.st_size, status.st_mtime_ns


# Where the records lie.


def _is_range(rows: _Integers, count: int) -> bool:
    """Whether these are all numbers below a count, in order."""
    return len(rows) == count and bool((rows == np.arange(count)).all())


def _open_table(manifest: Manifest, rows: _Integers) -> RecordTable:
    """The table of some shards of a manifest; read whole if they are few."""
    if not len(rows) or manifest.num_records[rows].sum() > _READ_WHOLE_RECORDS:
        return ManifestTable(manifest, rows)
    return RecordTable.of_borders(manifest.offsets(rows))


class ManifestTable(RecordTable):
    """A `RecordTable` that holds a few MiB, however many records there are; it pickles without
    them.

    Args:
        manifest: Where the records lie.
        rows: int64 [F]: row of each file in it; None for all.
    """

    def __init__(self, manifest: Manifest, rows: _Integers | None) -> None:
        rows = np.arange(len(manifest)) if rows is None else rows
        self._manifest, self._rows = manifest, rows
        self._ends = np.cumsum(manifest.num_records[rows])
        self._starts = manifest.stream_starts[rows]
        # From a position in the table to the number of the record in the manifest.
        self._shifts = manifest.first_records[rows + 1] - self._ends
        self._kept = PerProcess(_KeptBlocks)

    def __reduce__(self) -> tuple[type[ManifestTable], tuple[Manifest, _Integers | None]]:
        is_all = _is_range(self._rows, len(self._manifest))
        return ManifestTable, (self._manifest, None if is_all else self._rows)

    @property
    def file_bytes(self) -> _Integers:
        """Bytes of each file, decompressed."""
        return self._manifest.stream_sizes[self._rows]

    def find(self, positions: _Integers) -> RecordPlaces:
        """The places of records, by positions from 0 to len - 1, in any order.

        Raises:
            IndexMismatchError: The manifest is damaged, or has changed.
        """
        files = np.searchsorted(self._ends, positions, side="right")
        begins, ends = self._borders_at(positions + self._shifts[files])
        return RecordPlaces(files, begins - self._starts[files], ends - begins - OVERHEAD_BYTES)

    def find_one(self, position: int) -> tuple[int, int, int, int]:
        """Number of the file, number in that file, offset and length of one record."""
        file = bisect_right(self._ends, position)
        record = position + self._shifts.item(file)
        found = self._kept.get().find_one(record)
        begin, end = found or [border.item() for border in self._borders_at(np.array([record]))]
        number = position - (self._ends.item(file - 1) if file else 0)
        return file, number, begin - self._starts.item(file), end - begin - OVERHEAD_BYTES

    def block_extent(self, file: int, offset: int, block_bytes: int) -> tuple[int, int]:
        """See `RecordTable.block_extent`; only the file's records near the offset are looked up."""
        manifest, row, start = self._manifest, self._rows.item(file), self._starts.item(file)
        low = start + offset // block_bytes * block_bytes
        begin = int(np.searchsorted(manifest.block_offsets, low, side="right")) - 1
        end = int(np.searchsorted(manifest.block_offsets, low + block_bytes, side="right"))
        first, last = manifest.first_records[row : row + 2].tolist()
        records = np.arange(max(begin * BLOCK_RECORDS, first), min(end * BLOCK_RECORDS, last))
        begins, ends = self._borders_at(records)
        return block_around(np.append(begins, ends[-1:]) - start, offset, block_bytes)

    def _borders_at(self, records: _Integers) -> tuple[_Integers, _Integers]:
        """Where records begin and end, by their numbers in the manifest, in the streams of all its
        shards one after another.
        """
        kept = self._kept.get()
        begins, ends, is_missing = kept.find(records)
        missing = np.flatnonzero(is_missing)
        if not len(missing):
            return begins, ends
        needed, number_of = np.unique(records[missing] // BLOCK_RECORDS, return_inverse=True)
        for first in range(0, len(needed), _BLOCKS_AT_ONCE):
            blocks = needed[first : first + _BLOCKS_AT_ONCE]
            borders = self._manifest.read_borders(blocks)  # not locked: it may take a request
            kept.keep(blocks, borders)
            is_here = (number_of >= first) & (number_of < first + len(blocks))
            rows, chosen = number_of[is_here] - first, missing[is_here]
            places = records[chosen] % BLOCK_RECORDS
            begins[chosen], ends[chosen] = borders[rows, places], borders[rows, places + 1]
        return begins, ends


class _KeptBlocks:
    """Blocks that a process has read, each in the one slot that its number chooses; thread-safe."""

    def __init__(self) -> None:
        # Memory is taken as it is written to.
        self._borders = np.empty((_KEPT_BLOCKS, BLOCK_RECORDS + 1), np.int64)
        self._blocks = np.full(_KEPT_BLOCKS, -1, np.int64)
        self._lock = threading.Lock()

    def find(self, records: _Integers) -> tuple[_Integers, _Integers, npt.NDArray[np.bool_]]:
        """Begins and ends of records if their blocks are here, and which are missing."""
        blocks, places = np.divmod(records, BLOCK_RECORDS)
        slots = blocks % len(self._blocks)
        with self._lock:
            is_missing = self._blocks[slots] != blocks
            return self._borders[slots, places], self._borders[slots, places + 1], is_missing

    def find_one(self, record: int) -> tuple[int, int] | None:
        """Begin and end of one record; None if its block is not here."""
        block, place = divmod(record, BLOCK_RECORDS)
        slot = block % len(self._blocks)
        with self._lock:
            if self._blocks.item(slot) != block:
                return None
            return self._borders.item(slot, place), self._borders.item(slot, place + 1)

    def keep(self, blocks: _Integers, borders: _Integers) -> None:
        """Keep blocks in place of those that have their slots; of two for one slot, one."""
        slots, first = np.unique(blocks % len(self._blocks), return_index=True)
        with self._lock:
            self._blocks[slots], self._borders[slots] = blocks[first], borders[first]
