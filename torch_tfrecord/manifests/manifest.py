"""The manifest: one file for the indexes of all shards, of which a reader loads what it needs.

It is a sidecar of three parts: a row for each shard, a row for each block of records, and the
lengths of all records, shard after shard. The sidecar's checksum covers the rows; the lengths
stay in the file and are read block by block, each under a checksum of its own. A dataset opens
from the rows alone, so that 100,000 shards with 10^9 records need some tens of MiB.

Names are relative to the folder of the manifest: data are copied together with it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from torch_tfrecord.batch_memory import Array, Ints
from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.files import Access, is_remote, read_pieces
from torch_tfrecord.records import (
    OVERHEAD_BYTES,
    IndexKeeper,
    RecordIndex,
    SidecarFormat,
)
from torch_tfrecord.shown import without_secrets

__all__ = [
    "BLOCK_RECORDS",
    "KINDS",
    "SUFFIX",
    "Manifest",
    "ShardRow",
    "manifest_path",
    "pack_manifest",
    "relative_names",
    "shard_paths",
    "shard_row",
]


KINDS = ("", "GZIP", "ZLIB", "SNAPPY")  # kinds of compression, by their numbers in a manifest
SUFFIX = ".safetensors"
BLOCK_RECORDS = 2048  # whose lengths are read and checked together
_NAME = "manifest.safetensors"
_SHARD_ROWS = {
    "file_sizes": "int64",
    "stream_sizes": "int64",  # decompressed
    "num_records": "int64",
    "mtimes_ns": "int64",  # 0 if unknown
    "fingerprints": "int64",  # -1 if unknown
    "compression": "uint8",  # number in KINDS
}
_BLOCK_ROWS = ("block_offsets", "block_crcs")
_FORMAT = SidecarFormat(
    "torch_tfrecord.manifest",
    "2",
    "a manifest",
    ("names_bytes", "etags_bytes"),
    # The texts are compressed by zlib; each ends with a zero byte. What is read when a manifest is
    # opened is side by side: one request, where the first read has it all.
    {
        # Bytes of all records before each block, in the streams of all shards one after another.
        "block_offsets": "int64",
        **_SHARD_ROWS,
        "block_crcs": "uint32",
        "names": "uint8",
        "etags": "uint8",
        "lengths": "uint32 uint64",
    },
    lazy="lengths",
    first_read_bytes=1 << 20,
)
_MOST_HEAD_BYTES = 1 << 32
_MOST_TEXT_BYTES = 1 << 12  # a name's, on average: as long as a path can be
_FAR = 1 << 62
_UNKNOWN = -1


class ShardRow(NamedTuple):
    """The facts that a manifest has of one shard.

    Attributes:
        facts: Its index, without records.
        lengths: uint32, or int64 if one is too long for that, [N]: the payload lengths.
    """

    facts: RecordIndex
    lengths: npt.NDArray[np.integer[Any]]


def shard_row(index: RecordIndex) -> ShardRow:
    """The row of a shard."""
    return ShardRow(index._without_records(), _shorten(index.lengths))


def _shorten(lengths: Ints) -> npt.NDArray[np.integer[Any]]:
    return lengths.astype(np.uint32) if lengths.max(initial=0) < 1 << 32 else lengths


def pack_manifest(names: Sequence[str], rows: Sequence[ShardRow]) -> bytes:
    """The bytes of a manifest.

    Args:
        names: Name of each shard, relative to the manifest's folder, with ``/``; or with a
            ``scheme://``.
        rows: Row of each shard, in the same order.
    """
    facts = [row.facts for row in rows]
    lengths = np.concatenate([np.empty(0, np.uint32), *(row.lengths for row in rows)])
    if lengths.dtype != np.uint32:
        lengths = lengths.view(np.uint64)
    firsts = range(0, len(lengths), BLOCK_RECORDS)
    blocks = [lengths[first : first + BLOCK_RECORDS] for first in firsts]
    block_bytes = [int(block.sum(dtype=np.int64)) + len(block) * OVERHEAD_BYTES for block in blocks]
    columns = {
        "file_sizes": [index.file_size for index in facts],
        "stream_sizes": [
            int(row.lengths.sum(dtype=np.int64)) + len(row.lengths) * OVERHEAD_BYTES for row in rows
        ],
        "num_records": [len(row.lengths) for row in rows],
        "mtimes_ns": [index.mtime_ns for index in facts],
        "fingerprints": [
            _UNKNOWN if index.fingerprint is None else index.fingerprint for index in facts
        ],
        "compression": [KINDS.index(index.compression_type) for index in facts],
        "block_offsets": np.cumsum(block_bytes) - block_bytes,
        "block_crcs": [crc32c(block.data) for block in blocks],
    }
    texts = {
        "names": _join(names),
        "etags": _join([index.etag or "" for index in facts])
        if any(index.etag for index in facts)
        else b"",
    }
    return _FORMAT.pack(
        {f"{name}_bytes": str(len(text)) for name, text in texts.items()},
        {
            **{name: np.array(values, _FORMAT.arrays[name]) for name, values in columns.items()},
            **{name: np.frombuffer(zlib.compress(text), np.uint8) for name, text in texts.items()},
            "lengths": lengths,
        },
    )


def _join(texts: Sequence[str]) -> bytes:
    return b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for text in texts)


class Manifest:
    """An open manifest: its rows are in memory (see `_SHARD_ROWS`), its lengths are read on demand.

    Pickles as its path: unpickling reads the rows again and compares the checksum. Can be used
    after a fork, where the processes share the rows, and from threads.

    Args:
        path: The file.
        access: How to reach a remote file.
        checksum: The checksum that it must have; None for any.

    Attributes:
        path, access: The same.
        first_records: int64 [F + 1]: number of the first record of each shard, then of all.
        stream_starts: int64 [F + 1]: bytes of all records before each shard, then of all.
        etags: The shards' ETags, "" if unknown; empty if all are.

    Raises:
        IndexMismatchError: It is damaged, has another format, version or checksum, or contradicts
            itself.
        OSError: It cannot be opened or read.
    """

    file_sizes: Ints
    stream_sizes: Ints
    num_records: Ints
    mtimes_ns: Ints
    fingerprints: Ints
    block_offsets: Ints
    compression: npt.NDArray[np.uint8]
    block_crcs: npt.NDArray[np.uint32]
    first_records: Ints
    stream_starts: Ints

    def __init__(
        self, path: str, access: Access = Access.DEFAULT, checksum: str | None = None
    ) -> None:
        self.path, self.access = path, access
        found = _FORMAT.read(path, lambda _: _MOST_HEAD_BYTES, "any manifest", access)
        if checksum not in (None, found.checksum):
            text = f"expected the manifest with checksum {checksum} that was opened"
            raise IndexMismatchError(f"{text}, got {found.checksum}", path=path)
        self._found = found
        for name in (*_SHARD_ROWS, *_BLOCK_ROWS):
            setattr(self, name, found.arrays[name])
        try:
            self._check_shards()
            self.first_records = np.append(0, np.cumsum(self.num_records))
            self.stream_starts = np.append(0, np.cumsum(self.stream_sizes))
            self._check_blocks()
            self.etags = self._texts("etags") if found.metadata["etags_bytes"] != "0" else []
        except IndexMismatchError as error:
            error.locate(path=path)
            raise

    def __reduce__(self) -> tuple[type[Manifest], tuple[str, Access, str]]:
        return Manifest, (self.path, self.access, self._found.checksum)

    def __len__(self) -> int:
        return len(self.num_records)

    def _check_shards(self) -> None:
        counts = {len(getattr(self, name)) for name in _SHARD_ROWS}
        if len(counts) > 1:
            raise IndexMismatchError(
                f"expected a row for each shard in each column, got {sorted(counts)}"
            )
        is_bad = (self.num_records > self.stream_sizes // OVERHEAD_BYTES) | (
            self.compression >= len(KINDS)
        )
        for column in (self.file_sizes, self.stream_sizes, self.num_records, self.mtimes_ns):
            is_bad |= (column < 0) | (column >= _FAR)
        is_bad |= (self.fingerprints < _UNKNOWN) | (self.fingerprints >= 1 << 32)
        is_bad |= (self.compression == 0) & (self.file_sizes != self.stream_sizes)
        is_bad |= (self.num_records == 0) & (self.stream_sizes > 0)
        # Summed as floats, which do not overflow.
        is_bad |= np.cumsum(self.stream_sizes, dtype=np.float64) >= _FAR
        if is_bad.any():
            raise IndexMismatchError(
                f"expected numbers of a TFRecord file, got others in row {int(is_bad.argmax())}"
            )

    def _check_blocks(self) -> None:
        num_records, got = int(self.first_records[-1]), self._found.places["lengths"].length
        if got != num_records:
            raise IndexMismatchError(f"expected {num_records} lengths, got {got}")
        expected = -(-num_records // BLOCK_RECORDS)
        counts = {len(getattr(self, name)) for name in _BLOCK_ROWS}
        if counts != {expected}:
            raise IndexMismatchError(
                f"expected {expected} blocks, by the numbers of records, got {sorted(counts)}"
            )

    def paths(self) -> list[str]:
        """The shards' paths, in its order; see `shard_paths`."""
        return shard_paths(self.path, self._texts("names"))

    def _texts(self, name: str) -> list[str]:
        count = len(self)
        try:
            size = int(self._found.metadata[f"{name}_bytes"])
            if not 0 <= size <= count * _MOST_TEXT_BYTES:
                raise ValueError(f"{size} bytes")
            inflater = zlib.decompressobj()
            text = inflater.decompress(self._found.arrays[name].tobytes(), size + 1)
            texts = text.decode("utf-8", "surrogateescape").split("\0", count)
            if len(text) != size or not inflater.eof or len(texts) != count + 1 or texts.pop():
                raise ValueError(f"{len(text)} bytes of others")
        except (ValueError, zlib.error) as error:
            problem = f"expected a text for each of {count} shards, got {error}"
            raise IndexMismatchError(problem, path=self.path) from error
        return texts

    def facts(self, shard: int) -> RecordIndex:
        """The index of a shard without records, to compare with its file."""
        fingerprint = self.fingerprints.item(shard)
        return RecordIndex._bare(
            self.file_sizes.item(shard),
            KINDS[self.compression.item(shard)],
            self.mtimes_ns.item(shard),
            None if fingerprint == _UNKNOWN else fingerprint,
            (self.etags[shard] or None) if self.etags else None,
        )

    def row(self, shard: int) -> ShardRow:
        """Everything about a shard, for another manifest; its lengths are checked."""
        first, end = self.first_records[shard : shard + 2].tolist()
        blocks = np.arange(first // BLOCK_RECORDS, -(-end // BLOCK_RECORDS))
        sizes = np.diff(self.read_borders(blocks)).ravel()[first % BLOCK_RECORDS :][: end - first]
        return ShardRow(self.facts(shard), _shorten(sizes - OVERHEAD_BYTES))

    def read_borders(self, blocks: Ints) -> Ints:
        """Where the records of some blocks are.

        Args:
            blocks: int64 [M]: numbers of the blocks, ascending.

        Returns:
            int64 [M, BLOCK_RECORDS + 1]: the offset of each record and the end of the last, in the
            streams of all shards one after another. What is missing in the last block repeats its
            end.

        Raises:
            IndexMismatchError: A block is damaged, or its records do not follow each other.
        """
        dtype, total, begin = self._found.places["lengths"]
        firsts = blocks * BLOCK_RECORDS
        counts = np.minimum(total - firsts, BLOCK_RECORDS)
        begins, sizes = begin + firsts * dtype.itemsize, counts * dtype.itemsize
        files = np.zeros(len(blocks), np.int64)
        buffer, places = read_pieces(lambda _: self._found.source, files, begins, sizes)
        found = np.empty((len(blocks), BLOCK_RECORDS + 1), np.int64)
        each = zip(blocks.tolist(), counts.tolist(), places.tolist(), found, strict=True)
        for number, count, place, borders in each:
            lengths = np.frombuffer(buffer, dtype, count, place)
            self._fill(borders, number, lengths)
        return found

    def _fill(self, borders: Ints, number: int, lengths: Array) -> None:
        got, expected = crc32c(lengths.data), self.block_crcs.item(number)
        if got != expected:
            text = f"expected block {number} with checksum {expected:08x}, got {got:08x}"
            raise IndexMismatchError(f"{text}: it is damaged", path=self.path)
        total = int(self.stream_starts[-1])
        is_last = number + 1 == len(self.block_offsets)
        begin = self.block_offsets.item(number)
        end = total if is_last else self.block_offsets.item(number + 1)
        first, count = number * BLOCK_RECORDS, len(lengths)
        borders[0], borders[1:] = begin, end
        inside = borders[1 : count + 1]
        np.cumsum(lengths, out=inside, dtype=np.int64)
        inside += np.arange(1, count + 1) * OVERHEAD_BYTES + begin
        # Each shard that begins here must begin where the ones before it end.
        low = np.searchsorted(self.first_records, first)
        high = np.searchsorted(self.first_records, first + count, side="right")
        starts = borders[self.first_records[low:high] - first]
        # No sum overflows unseen: all lengths are compared first, and then all sums.
        is_whole = lengths.max() <= total and inside.min() > 0 and inside.max() <= total
        if (
            not is_whole
            or not 0 <= begin < end == inside.item(count - 1)
            or (number == 0 and begin > 0)
            or (starts != self.stream_starts[low:high]).any()
        ):
            text = f"block {number}: expected records one behind the other from byte {begin} to byte {end}"
            raise IndexMismatchError(f"{text}, got others", path=self.path)


# Names.


def manifest_path(files: Sequence[str], index_dir: str | None = None) -> str:
    """Where the manifest of sorted files is kept: in the hidden folder beside them, or in another
    folder.
    """
    if index_dir is not None:
        return os.path.join(index_dir, _NAME)
    begin = os.path.commonprefix([files[0], files[-1]])  # noqa: RUF071  # cut at a slash
    return os.path.join(os.path.dirname(IndexKeeper.place(_folder(begin))), _NAME)


def shard_paths(path: str, names: Sequence[str]) -> list[str]:
    """The paths of a manifest's shards, by their names in it.

    Raises:
        IndexMismatchError: a name leads out of the storage of a manifest that is elsewhere, or is
            none.
    """
    joined = cache(lambda folder: _joined(folder, path))  # there are few folders
    found = []
    for name in names:
        folder, slash, last = name.rpartition("/")
        if last in ("", ".", ".."):
            raise IndexMismatchError(
                "expected a manifest that names files, got a name that is none", path=path
            )
        found.append(joined(folder + slash) + last)
    return found


def _folder(path: str) -> str:
    return path[: path.rfind("/") + 1]


def _joined(folder: str, path: str) -> str:
    """A folder relative to that of a manifest, as its path is written; with its slash, "" for the
    current one.
    """
    # The server of a manifest must not choose other files of this machine, nor another bucket.
    problem = IndexMismatchError(
        f"expected names relative to the manifest's folder, got {folder[:80]!r}", path=path
    )
    if "://" in folder and not is_remote(path):
        return folder
    if folder.startswith(("/", "file:")) or "://" in folder:
        raise problem
    base = _folder(path)
    while folder.startswith("../") and base.split("/")[-2:-1] not in ([], [""], ["."], [".."]):
        base, folder = _folder(base[:-1]), folder[3:]
    if ".." in folder.lstrip("./").split("/") or (
        is_remote(path) and (folder.startswith("..") or base.count("/") < 3)
    ):
        raise problem
    return base + folder


def relative_names(files: Sequence[str], path: str) -> list[str]:
    """The names of a manifest's shards: `shard_paths`, turned around.

    Raises:
        ValueError: the manifest would be in another storage than they, or a name may contain a
            secret.
    """
    for file in files:
        if file != without_secrets(file):
            raise ValueError(
                f"a manifest tells its names to whoever has it: {without_secrets(file)} would tell a user or a query; "
                "give them as storage_options"
            )
    relative = cache(lambda folder: _relative(folder, path))
    return [relative(folder := _folder(file)) + file[len(folder) :] for file in files]


def _relative(folder: str, path: str) -> str:
    base = _folder(path)
    if is_remote(folder) and not is_remote(path):
        return folder
    if is_remote(path) and folder.split("/", 3)[:3] != base.split("/", 3)[:3]:
        text = f"out must be in the storage of the data, {folder}, or a local path, got {path!r}"
        raise ValueError(without_secrets(text))
    relative = os.path.relpath(folder or os.curdir, base or os.curdir)
    return "" if relative == os.curdir else f"{relative}/"
