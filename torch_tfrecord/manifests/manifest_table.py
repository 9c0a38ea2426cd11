"""Opening a data set from its manifest alone: its files are those of the manifest, and its records
are looked up in it block by block.
"""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import Ints
from torch_tfrecord.errors import IndexMismatchError, warn
from torch_tfrecord.files import Access, RemoteInfo, is_remote, open_file
from torch_tfrecord.manifests.manifest import BLOCK_RECORDS, KINDS, Manifest, manifest_path
from torch_tfrecord.per_process import PerProcess, each_at_once
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records import OVERHEAD_BYTES, IndexKeeper, RecordIndex, RecordTable

__all__ = ["ManifestTable"]


_KEPT_BLOCKS = 2048  # takes 32 MiB in each process
_BLOCKS_AT_ONCE = 256


class ManifestTable(RecordTable):
    """The files of a data set and their records by a manifest, in a few MiB, however many records
    there are. Pickles small: where it is needed the rows are read again.

    Args:
        manifest: The manifest.
        rows: int64 [F]: each file's row.
        files: Their paths, as `Manifest.paths` makes them.
        infos: What storages said of the files; what they did not say is seen when a file is opened.
        compression_type: How all files must be compressed; "auto" is any way.

    Raises:
        IndexMismatchError: A shard is not what the manifest says (names the first).
        FileNotFoundError: A local shard is missing.
    """

    def __init__(
        self,
        manifest: Manifest,
        rows: Ints,
        files: list[str],
        infos: Mapping[str, RemoteInfo],
        compression_type: str,
    ) -> None:
        self._manifest, self._rows, self.files = manifest, rows, files
        self._check_remote_files(infos)
        is_local = not is_remote(manifest.path) and not is_remote(files[0])
        self._is_copy = is_local and self._check_local_files()
        kinds = manifest.compression[rows]
        if compression_type != "auto":
            expected = np.full_like(kinds, KINDS.index(compression_type))
            self._check(expected, kinds, "compression {}", lambda kind: repr(KINDS[kind]))
        self.first_compressed = files[int(kinds.argmax())] if kinds.any() else None
        self._set_up()

    def _set_up(self) -> None:
        manifest, rows = self._manifest, self._rows
        self.damaged = ()
        self._ends = np.cumsum(manifest.num_records[rows])
        self._starts = manifest.stream_starts[rows]
        # From a position in the table to the number of the record in the manifest.
        self._shifts = manifest.first_records[rows + 1] - self._ends
        # A fork may copy the lock while another thread holds it.
        self._kept = PerProcess(_KeptBlocks)

    def __getstate__(self) -> dict[str, object]:
        is_all = np.array_equal(self._rows, np.arange(len(self._manifest)))
        # Workers get no list of 100,000 paths: they read the names from the manifest again.
        return {
            "_manifest": self._manifest,
            "_rows": None if is_all else self._rows,
            "_is_copy": self._is_copy,
            "first_compressed": self.first_compressed,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        paths = self._manifest.paths()
        if state["_rows"] is None:
            self._rows = np.arange(len(paths))
        self.files = [paths[row] for row in self._rows.tolist()]
        self._set_up()

    @staticmethod
    def files_of(path: str, access: Access) -> list[str]:
        """The files that a manifest names, in its order."""
        return Manifest(path, access).paths()

    @classmethod
    def open_named(cls, path: str, compression_type: str, access: Access) -> ManifestTable:
        """The table of a manifest that a user named.

        Raises:
            IndexMismatchError, OSError: See the class; nothing else names the files.
        """
        manifest = Manifest(path, access)
        paths = manifest.paths()
        if not paths:
            raise IndexMismatchError(
                "expected a manifest of at least one shard, got an empty one", path=path
            )
        # In the order in which a pattern would list them, so that positions mean the same records.
        keys = list(map(os.fsencode, paths))
        order = sorted(range(len(paths)), key=keys.__getitem__)
        if any(keys[one] == keys[other] for one, other in pairwise(order)):
            raise IndexMismatchError(
                "expected a manifest that names each file once, got one that does not", path=path
            )
        files = [paths[row] for row in order]
        return cls(manifest, np.array(order, np.int64), files, {}, compression_type)

    @classmethod
    def open_beside(
        cls,
        files: list[str],
        infos: Mapping[str, RemoteInfo],
        index_dir: str | None,
        compression_type: str,
        access: Access,
    ) -> ManifestTable | None:
        """The table of sorted files by the manifest beside them, or in a folder of indexes; None
        if there is none that can be used.

        If it names these files but they have changed, it is not used, with a warning.
        """
        try:
            manifest = Manifest(manifest_path(files, index_dir), access)
            rows = _rows(manifest, files)
            return None if rows is None else cls(manifest, rows, files, infos, compression_type)
        except IndexMismatchError as error:
            warn(f"{error}: it is not used; build it again with `tfrecord index --manifest`")
        # Most folders have no manifest, which is no reason to say anything.
        except OSError:
            pass
        return None

    def facts(self, file: int) -> RecordIndex:
        """See `RecordTable`."""
        facts = self._manifest.facts(self._rows.item(file))
        facts = facts._with_facts(_kept_at=IndexKeeper.place(self.files[file]))
        # A copy has other times: its bytes were compared.
        return facts._with_facts(mtime_ns=0) if self._is_copy else facts

    @property
    def file_bytes(self) -> Ints:
        """See `RecordTable`."""
        return self._manifest.stream_sizes[self._rows]

    def find(self, positions: Ints) -> tuple[Ints, Ints, Ints]:
        """See `RecordTable`.

        Raises:
            IndexMismatchError: The manifest is damaged, or has changed.
        """
        files = np.searchsorted(self._ends, positions, side="right")
        begins, ends = self._borders_at(positions + self._shifts[files])
        return files, begins - self._starts[files], ends - begins - OVERHEAD_BYTES

    def find_one(self, position: int) -> tuple[int, int, int, int]:
        """See `RecordTable`."""
        file = bisect_right(self._ends, position)
        record = position + self._shifts.item(file)
        # One record in plain integers: arrays of one element take ten times as long.
        found = self._kept.get().find_one(record)
        begin, end = found or [border.item() for border in self._borders_at(np.array([record]))]
        number = position - (self._ends.item(file - 1) if file else 0)
        return file, number, begin - self._starts.item(file), end - begin - OVERHEAD_BYTES

    def _near(self, file: int, offset: int, block_bytes: int) -> Ints:
        manifest, row, start = self._manifest, self._rows.item(file), self._starts.item(file)
        # A file may have 10^8 records: only the manifest's blocks that reach into these bytes are
        # read.
        low = start + offset // block_bytes * block_bytes
        begin = int(np.searchsorted(manifest.block_offsets, low, side="right")) - 1
        end = int(np.searchsorted(manifest.block_offsets, low + block_bytes, side="right"))
        first, last = manifest.first_records[row : row + 2].tolist()
        records = np.arange(max(begin * BLOCK_RECORDS, first), min(end * BLOCK_RECORDS, last))
        begins, ends = self._borders_at(records)
        return np.append(begins, ends[-1:]) - start

    def _borders_at(self, records: Ints) -> tuple[Ints, Ints]:
        """Where records begin and end, by their numbers in the manifest, in the streams of all its
        shards one after another.
        """
        kept = self._kept.get()
        begins, ends, is_missing = kept.find(records)
        missing = np.flatnonzero(is_missing)
        if not len(missing):
            return begins, ends
        needed, number_of = np.unique(records[missing] // BLOCK_RECORDS, return_inverse=True)
        # In turns, so that many positions take a few MiB however many blocks they touch.
        for first in range(0, len(needed), _BLOCKS_AT_ONCE):
            blocks = needed[first : first + _BLOCKS_AT_ONCE]
            borders = self._manifest.read_borders(blocks)  # not locked: it may take a request
            kept.keep(blocks, borders)
            is_here = (number_of >= first) & (number_of < first + len(blocks))
            rows, chosen = number_of[is_here] - first, missing[is_here]
            places = records[chosen] % BLOCK_RECORDS
            begins[chosen], ends[chosen] = borders[rows, places], borders[rows, places + 1]
        return begins, ends

    def _check_local_files(self) -> bool:
        """Compare names, sizes and times with the manifest, and the bytes of files with another
        time; returns whether there are such, as in a copy.
        """
        sizes, mtimes = np.array(list(map(_state, self.files)), np.int64).reshape(-1, 2).T
        missing = np.flatnonzero(sizes < 0)
        if len(missing):
            raise FileNotFoundError(
                errno.ENOENT,
                f"{len(missing)} of {len(self.files)} shards of the manifest are missing",
                self.files[missing[0]],
            )
        self._check(self._manifest.file_sizes[self._rows], sizes, "{} bytes")
        # Copying a folder changes the times: then the bytes at both ends decide.
        changed = np.flatnonzero(mtimes != self._manifest.mtimes_ns[self._rows])
        if len(changed):
            expected = self._manifest.fingerprints[self._rows]
            got = expected.copy()
            bar = each_at_once(
                lambda file: open_file(file).fingerprint(), [self.files[file] for file in changed]
            )
            got[changed] = [
                *ProgressBar(bar, "checking", total=len(changed), unit="file", delay=1.0)
            ]
            self._check(expected, got, "fingerprint {}", "{:#010x}".format)
        return bool(len(changed))

    def _check_remote_files(self, infos: Mapping[str, RemoteInfo]) -> None:
        etags = self._manifest.etags
        for file, row in enumerate(self._rows.tolist() if infos else ()):
            info = infos.get(self.files[file])
            if info is None:
                continue
            size, etag = self._manifest.file_sizes.item(row), etags[row] if etags else ""
            if info.size not in (None, size):
                raise _stale(self._manifest, self.files[file], f"{size} bytes", f"{info.size}")
            if info.etag and etag and info.etag != etag:
                raise _stale(self._manifest, self.files[file], f"ETag {etag}", info.etag)

    def _check(
        self,
        expected: npt.NDArray[np.integer[Any]],
        got: npt.NDArray[np.integer[Any]],
        text: str,
        shown: Callable[[int], str] = str,
    ) -> None:
        """Raise the error of the first file of which something else is expected."""
        other = np.flatnonzero(got != expected)
        if len(other):
            file = int(other[0])
            wanted, found = (shown(numbers.item(file)) for numbers in (expected, got))
            raise _stale(self._manifest, self.files[file], text.format(wanted), found)


class _KeptBlocks:
    """Blocks that a process has read, each in the one slot that its number chooses; thread-safe."""

    def __init__(self) -> None:
        # Memory is taken as it is written to.
        self._borders = np.empty((_KEPT_BLOCKS, BLOCK_RECORDS + 1), np.int64)
        self._blocks = np.full(_KEPT_BLOCKS, -1, np.int64)
        self._lock = threading.Lock()

    def find(self, records: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        """Begins and ends of records if their blocks are here, and which are missing."""
        blocks, places = np.divmod(records, BLOCK_RECORDS)
        # One slot a block needs no list of what was used last, and forgets at random, as shuffled
        # reads ask.
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

    def keep(self, blocks: Ints, borders: Ints) -> None:
        """Keep blocks in place of those that have their slots; of two for one slot, one."""
        slots, first = np.unique(blocks % len(self._blocks), return_index=True)
        with self._lock:
            self._blocks[slots], self._borders[slots] = blocks[first], borders[first]


def _rows(manifest: Manifest, files: list[str]) -> Ints | None:
    """The row of each file; None if the manifest has none of them."""
    paths = manifest.paths()
    if paths == files:
        return np.arange(len(files))
    # Some of the shards: a validation set, or the share of one rank.
    row_of = {path: row for row, path in enumerate(paths)}
    rows = np.array([row_of.get(file, -1) for file in files], np.int64)
    missing = np.flatnonzero(rows < 0)
    if len(missing) == len(files):
        return None
    if len(missing):
        expected = f"all {len(files)} files in it"
        got = f"{len(missing)} that it does not name"
        raise _stale(manifest, files[missing[0]], expected, got)
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
