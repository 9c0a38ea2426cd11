"""The manifest: one file for the indexes of all shards, of which a reader loads what it needs.

Its head has a row for each shard and for each block of records, under one checksum; the blocks
behind it have a checksum each. A data set opens from the head alone, and the blocks of the records
that it reads follow by ranges, so that 100,000 shards with 10^9 records need some tens of MiB.
Names are relative to the folder of the manifest: data are copied together with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.checksum import crc32c
from torch_tfrecord.files.file_source import FileSource
from torch_tfrecord.files.read import read_pieces
from torch_tfrecord.files.storage import open_file
from torch_tfrecord.records.framing import OVERHEAD_BYTES
from torch_tfrecord.records.index import COMPRESSION_TYPES, RecordIndex
from torch_tfrecord.records.length_blocks import BLOCK_RECORDS, pack_lengths, unpack_lengths
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.records.sidecar_file import SidecarFormat, pack, read_source, stored_number

__all__ = ["MANIFEST_SUFFIX", "Manifest", "ShardRow", "is_manifest", "manifest_parts", "shard_row"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

MANIFEST_SUFFIX = ".safetensors"  # of no data: whatever is in this form holds no records
_INDEX_SUFFIX = ".index.safetensors"
_ROWS = {
    "file_sizes": "int64",
    "stream_sizes": "int64",  # decompressed
    "num_records": "int64",
    "mtimes_ns": "int64",  # 0 where it is not known
    "fingerprints": "int64",  # -1 where it is not known
    "compression": "uint8",  # number in COMPRESSION_TYPES
}
_FORMAT = SidecarFormat(
    "torch_tfrecord.manifest",
    "1",
    "a manifest",
    ("num_files", "names_bytes", "etags_bytes"),
    {
        **{name: dtype for name, dtype in _ROWS.items() if dtype == "int64"},
        "block_offsets": "int64",  # of its first record, in the stream
        "block_bytes": "uint32",
        "block_crcs": "uint32",
        "compression": "uint8",
        "names": "uint8",  # zlib; each ends with a zero byte
        "etags": "uint8",
        "blocks": "uint8",  # of each shard in order; see `length_blocks`
    },
    is_lazy=True,
    first_read_bytes=1 << 20,
)
_MOST_HEAD_BYTES = 1 << 32
_MOST_TEXT_BYTES = 1 << 12  # of a name, on average: as long as a path can be
_FAR = 1 << 62
_UNKNOWN = -1


class ShardRow(NamedTuple):
    """What a manifest says of one shard.

    Attributes:
        facts: Its index, without records.
        num_records: How many there are.
        stream_size: Bytes of the records, decompressed.
        offsets: Of the first record of each block.
        blocks: See `length_blocks`.
        crcs: CRC-32C of each block.
    """

    facts: RecordIndex
    num_records: int
    stream_size: int
    offsets: Sequence[int]
    blocks: Sequence[bytes]
    crcs: Sequence[int]


def is_manifest(path: str) -> bool:
    """Whether a path is that of a manifest; an index has an ending of its own."""
    return path.endswith(MANIFEST_SUFFIX) and not path.endswith(_INDEX_SUFFIX)


def shard_row(index: RecordIndex) -> ShardRow:
    """The row of a shard."""
    firsts = range(0, len(index), BLOCK_RECORDS)
    blocks = [pack_lengths(index.lengths[first : first + BLOCK_RECORDS]) for first in firsts]
    stream_size = int(index.offsets[-1] + index.lengths[-1] + OVERHEAD_BYTES) if len(index) else 0
    crcs = [crc32c(block) for block in blocks]
    return ShardRow(
        index.without_records(),
        len(index),
        stream_size,
        index.offsets[firsts].tolist(),
        blocks,
        crcs,
    )


def manifest_parts(names: Sequence[str], rows: Sequence[ShardRow]) -> Iterable[bytes]:
    """The bytes of a manifest, in pieces.

    Args:
        names: Of each shard, relative to the manifest's folder, with ``/``; or with a
            ``scheme://``.
        rows: Of each shard, in the same order.
    """
    columns: dict[str, Sequence[Any]] = {
        "file_sizes": [row.facts.file_size for row in rows],
        "stream_sizes": [row.stream_size for row in rows],
        "num_records": [row.num_records for row in rows],
        "mtimes_ns": [row.facts.mtime_ns for row in rows],
        "fingerprints": [
            _UNKNOWN if row.facts.fingerprint is None else row.facts.fingerprint for row in rows
        ],
        "compression": [COMPRESSION_TYPES.index(row.facts.compression_type) for row in rows],
        "block_offsets": [offset for row in rows for offset in row.offsets],
        "block_bytes": [len(block) for row in rows for block in row.blocks],
        "block_crcs": [crc for row in rows for crc in row.crcs],
    }
    arrays = {name: np.array(values, _FORMAT.arrays[name]) for name, values in columns.items()}
    has_etags = any(row.facts.etag for row in rows)
    texts = {
        "names": _joined(names),
        "etags": _joined([row.facts.etag or "" for row in rows]) if has_etags else b"",
    }
    packed = {name: np.frombuffer(zlib.compress(text), np.uint8) for name, text in texts.items()}
    metadata = {
        "num_files": str(len(rows)),
        **{f"{name}_bytes": str(len(text)) for name, text in texts.items()},
    }
    yield pack(
        _FORMAT, metadata, {**arrays, **packed}, int(arrays["block_bytes"].sum(dtype=np.int64))
    )
    for row in rows:
        yield from row.blocks


def _joined(texts: Sequence[str]) -> bytes:
    return b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for text in texts)


class Manifest:
    """A manifest that is open: its head is in memory, its blocks are read when they are asked for.

    Pickles as its path: who unpickles it reads the head again, and holds it against the checksum of
    before. May be used after a fork, whose processes share the head, and from threads.

    Args:
        path: The file.
        access: How a remote one is reached.

    Attributes:
        path, access: The same.

    Raises:
        IndexMismatchError: damaged, of another format or version, or not consistent in itself.
        OSError: it cannot be opened or read.
    """

    def __init__(self, path: str, access: Access = DEFAULT_ACCESS) -> None:
        self.path, self.access = path, access
        self._head: _Head | None = _Head(open_file(path, access))
        self._checksum = self._head.checksum

    @property
    def head(self) -> _Head:
        """The rows, read again where this was unpickled.

        Raises:
            IndexMismatchError: it is not what was opened first.
        """
        head = self._head
        if head is None:
            head = _Head(open_file(self.path, self.access))
            if head.checksum != self._checksum:
                text = f"expected the manifest with checksum {self._checksum} that was opened, got {head.checksum}"
                raise IndexMismatchError(text, path=self.path)
            self._head = head
        return head

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_head": None}

    def __len__(self) -> int:
        return len(self.head.num_records)

    def names(self) -> list[str]:
        """The shards' names, as `manifest_parts` was given them."""
        return self.head.names()

    def facts(self, shard: int) -> RecordIndex:
        """What holds a shard's file against the manifest: its index without records."""
        head = self.head
        fingerprint = head.fingerprints.item(shard)
        return RecordIndex.bare(
            head.file_sizes.item(shard),
            COMPRESSION_TYPES[head.compression.item(shard)],
            head.mtimes_ns.item(shard),
            None if fingerprint == _UNKNOWN else fingerprint,
            (head.etags[shard] or None) if head.etags else None,
        )

    def row(self, shard: int) -> ShardRow:
        """All that is said of a shard, for another manifest; its blocks are checked."""
        head = self.head
        first, last = head.first_blocks[shard : shard + 2].tolist()
        blocks = head.read_blocks(np.arange(first, last))
        return ShardRow(
            self.facts(shard),
            head.num_records.item(shard),
            head.stream_sizes.item(shard),
            head.block_offsets[first:last].tolist(),
            blocks,
            head.block_crcs[first:last].tolist(),
        )

    def borders(self, blocks: _Integers) -> _Integers:
        """Where the records of blocks lie, by ascending numbers of the blocks.

        Returns:
            int64 [M, BLOCK_RECORDS + 1]: of each the offsets of its records, then the end of the
            last.

        Raises:
            IndexMismatchError: a block is damaged, or its records do not lie one behind the other.
        """
        return self.head.borders(blocks)


class _Head:
    """What is read of a manifest when it is opened; see `_ROWS` for its columns."""

    file_sizes: _Integers
    stream_sizes: _Integers
    num_records: _Integers
    mtimes_ns: _Integers
    fingerprints: _Integers
    block_offsets: _Integers
    compression: npt.NDArray[np.uint8]
    block_bytes: npt.NDArray[np.uint32]
    block_crcs: npt.NDArray[np.uint32]

    def __init__(self, source: FileSource) -> None:
        self._source = source
        found = read_source(source, _FORMAT, lambda _: _MOST_HEAD_BYTES, "any manifest")
        self.checksum = found.checksum
        self._metadata = found.metadata
        self._packed_names = found.arrays["names"]
        try:
            for name in ("block_offsets", "block_bytes", "block_crcs", *_ROWS):
                setattr(self, name, found.arrays[name])
            num_files = stored_number(found.metadata["num_files"], "num_files")
            self._check_rows(num_files)
            counts = (self.num_records + (BLOCK_RECORDS - 1)) // BLOCK_RECORDS
            self.first_blocks = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
            self._check_blocks(found.arrays, source.file_size - found.starts["blocks"])
            self._block_begins = found.starts["blocks"] + (
                np.cumsum(self.block_bytes, dtype=np.int64) - self.block_bytes
            )
            self.etags = (
                self._texts(found.arrays["etags"], "etags_bytes")
                if found.metadata["etags_bytes"] != "0"
                else []
            )
        except IndexMismatchError as error:
            error.locate(path=source.path)
            raise

    def _check_rows(self, num_files: int) -> None:
        lengths = {len(getattr(self, name)) for name in _ROWS}
        if lengths != {num_files}:
            raise IndexMismatchError(
                f"expected {num_files} rows in each column, got {sorted(lengths)}"
            )
        sizes = (self.file_sizes, self.stream_sizes, self.num_records, self.mtimes_ns)
        is_bad = np.zeros(num_files, bool)
        for column in sizes:
            is_bad |= (column < 0) | (column >= _FAR)
        is_bad |= (self.num_records > self.stream_sizes // OVERHEAD_BYTES) | (
            self.compression >= len(COMPRESSION_TYPES)
        )
        is_bad |= (self.fingerprints < _UNKNOWN) | (self.fingerprints >= 1 << 32)
        is_bad |= (self.compression == 0) & (self.file_sizes != self.stream_sizes)
        is_bad |= (self.num_records == 0) & (self.stream_sizes > 0)
        if is_bad.any():
            raise IndexMismatchError(
                f"expected numbers of a TFRecord file, got others in row {int(is_bad.argmax())}"
            )

    def _check_blocks(self, arrays: Mapping[str, npt.NDArray[Any]], lazy_bytes: int) -> None:
        num_blocks = int(self.first_blocks[-1])
        lengths = {len(arrays[name]) for name in ("block_offsets", "block_bytes", "block_crcs")}
        if lengths != {num_blocks}:
            raise IndexMismatchError(
                f"expected {num_blocks} blocks, by the numbers of records, got {sorted(lengths)}"
            )
        block_bytes = int(self.block_bytes.sum(dtype=np.int64))
        if block_bytes != lazy_bytes:
            raise IndexMismatchError(f"expected {block_bytes} bytes of blocks, got {lazy_bytes}")

    def names(self) -> list[str]:
        return self._texts(self._packed_names, "names_bytes")

    def _texts(self, packed: npt.NDArray[Any], field: str) -> list[str]:
        size = stored_number(self._metadata[field], field)
        try:
            if not 0 <= size <= len(self.num_records) * _MOST_TEXT_BYTES:
                raise ValueError(f"{size} bytes")
            inflater = zlib.decompressobj()
            text = inflater.decompress(packed.tobytes(), size + 1)
            texts = text.decode("utf-8", "surrogateescape").split("\0", len(self.num_records))
            if (
                len(text) != size
                or not inflater.eof
                or len(texts) != len(self.num_records) + 1
                or texts.pop()
            ):
                raise ValueError(f"{len(text)} bytes of others")
        except (ValueError, zlib.error) as error:
            text_ = f"expected a text for each of {len(self.num_records)} shards, got {error}"
            raise IndexMismatchError(text_, path=self._source.path) from error
        return texts

    def read_blocks(self, blocks: _Integers) -> list[bytes]:
        """The bytes of blocks, by ascending numbers, each held against its checksum."""
        begins, sizes = self._block_begins[blocks], self.block_bytes[blocks].astype(np.int64)
        files = np.zeros(len(blocks), np.int64)
        buffer, places = read_pieces(lambda _: self._source, files, begins, sizes)
        found = PackedRecords(buffer, places, sizes).tolist()
        for number, block in zip(blocks.tolist(), found, strict=True):
            if crc32c(block) != self.block_crcs.item(number):
                text = f"expected block {number} with checksum {self.block_crcs[number]:08x}, got {crc32c(block):08x}"
                raise IndexMismatchError(f"{text}: it is damaged", path=self._source.path)
        return found

    def borders(self, blocks: _Integers) -> _Integers:
        found = np.empty((len(blocks), BLOCK_RECORDS + 1), np.int64)
        shards = np.searchsorted(self.first_blocks, blocks, side="right") - 1
        numbers = zip(
            blocks.tolist(), shards.tolist(), self.read_blocks(blocks), found, strict=True
        )
        for number, shard, block, borders in numbers:
            self._fill(borders, number, shard, block)
        return found

    def _fill(self, borders: _Integers, number: int, shard: int, block: bytes) -> None:
        first_block, next_first = self.first_blocks[shard : shard + 2].tolist()
        size = self.stream_sizes.item(shard)
        is_last = number + 1 == next_first
        count = (
            self.num_records.item(shard) - (number - first_block) * BLOCK_RECORDS
            if is_last
            else BLOCK_RECORDS
        )
        begin = self.block_offsets.item(number)
        end = size if is_last else self.block_offsets.item(number + 1)
        try:
            lengths = unpack_lengths(block, count)
        except ValueError as error:
            raise IndexMismatchError(
                f"block {number}: expected {error}", path=self._source.path
            ) from error
        borders[0] = begin
        borders[1:] = end
        inside = borders[1 : count + 1]
        np.cumsum(lengths, out=inside)
        inside += np.arange(1, count + 1) * OVERHEAD_BYTES + begin
        # With a length below 2^62 behind an end below it no sum overflows unseen.
        is_whole = (
            begin >= 0
            and (number > first_block or begin == 0)
            and inside.item(count - 1) == end <= size
        )
        if (
            not is_whole
            or lengths.min() < 0
            or lengths.max() > size
            or inside.min() < 0
            or inside.max() > size
        ):
            text = f"block {number}: expected records one behind the other from byte {begin} to byte {end}"
            raise IndexMismatchError(f"{text}, got others", path=self._source.path)
