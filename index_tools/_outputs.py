"""The outputs of the verbs that write: their options, and shards that appear together or not at
all.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from index_tools._terminal import byte_size, integer
from torch_tfrecord import CorruptRecordError, ShardedTFRecordWriter
from torch_tfrecord.arguments import shard_name
from torch_tfrecord.batch_memory import Ints
from torch_tfrecord.files import Access, AtomicFile, FileSource, LocalFile, is_remote
from torch_tfrecord.records import (
    RecordScanner,
    open_stream,
    without_companions,
)
from torch_tfrecord.remote import RemoteNames

__all__ = [
    "FileWriter",
    "Output",
    "add_output",
    "check_outputs",
    "create_folders",
]

_SUFFIXES = {"GZIP": ".tfrecord.gz", "ZLIB": ".tfrecord.zlib"}
# Large enough that the cost of opening a shard does not matter, small enough to copy and to shuffle
# by file.
_DEFAULT_SHARD_BYTES = 100_000_000
_MOST_UNNAMED = 200


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options of a set of shards; `Output` takes them as keywords."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--num-shards", type=integer(1), metavar="N", help="write this many shards")
    size.add_argument(
        "--max-shard-bytes",
        type=byte_size,
        default=_DEFAULT_SHARD_BYTES,
        metavar="SIZE",
        help="maximum size of a shard, such as 1GiB (default: 100MB)",
    )
    parser.add_argument(
        "--compression",
        dest="compression_type",
        type=str.upper,
        choices=("NONE", "GZIP", "ZLIB"),
        help="of the shards (default: that of the input if it is TFRecord, else none)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="write over a set of as many shards (with --num-shards)",
    )


@dataclass(frozen=True)
class Output:
    """A set of shards to write, or one file, as the options of a verb say it.

    Attributes:
        prefix: Path and first part of the names.
        num_shards: How many shards; None for as many as their size makes.
        max_shard_bytes: The most bytes of a shard, without `num_shards`.
        compression_type: "NONE", "GZIP" or "ZLIB"; None for no compression.
        force: Write over a set of as many shards, or over the file.
        file: The name of the one file; None for shards.
    """

    prefix: str
    num_shards: int | None = None
    max_shard_bytes: int = _DEFAULT_SHARD_BYTES
    compression_type: str | None = None
    force: bool = False
    file: str | None = None

    @classmethod
    def named(cls, name: str, **options: Any) -> Output:
        """One file, if a name ends in ``.tfrecord`` (``.gz``, ``.zlib``) and no number or size of
        shards is asked for; else shards.

        Raises:
            ValueError: The name says another compression than the options, or is that of a storage.
        """
        if is_remote(name):
            raise ValueError(f"{name}: expected a path of this machine: copy what is written there")
        kind = next((kind for kind, end in _SUFFIXES.items() if name.endswith(end)), "NONE")
        suffix = _SUFFIXES.get(kind, ".tfrecord")
        if not name.endswith(suffix):
            return cls(name, **options)
        if options["compression_type"] not in (None, kind):
            raise ValueError(
                f"{name}: the name says {kind}, got --compression {options['compression_type']}"
            )
        output = cls(name.removesuffix(suffix), **options | {"compression_type": kind})
        is_one = not output.num_shards and output.max_shard_bytes == _DEFAULT_SHARD_BYTES
        return replace(output, num_shards=1, file=name) if is_one else output

    @property
    def suffix(self) -> str:
        """The last part of the shards' names."""
        return _SUFFIXES.get(self.compression_type or "", ".tfrecord")

    def check(self) -> None:
        """Refuse to write beside another set of shards, as two under one prefix look like a damaged
        one, or over a set, but with `force` over one of as many shards.

        Raises:
            ValueError: There is one, or the prefix has no name.
        """
        prefix = self.prefix
        if self.file:
            check_outputs([self.file], self.force)
            return
        if not os.path.basename(prefix):
            raise ValueError(
                f"OUTPUT_PREFIX must end in a name for the shards, such as {prefix}train, got {prefix!r}"
            )
        replaced = f"-of-{self.num_shards or 0:05d}{self.suffix}" if self.force else None
        for path in without_companions(sorted(glob.glob(f"{glob.escape(prefix)}-*-of-*"))):
            if not (replaced and path.endswith(replaced)):
                raise ValueError(
                    f"a set of shards exists: {path}; remove it, or choose another OUTPUT_PREFIX (--force with "
                    "--num-shards writes over a set of as many shards)"
                )

    def shards(self, sizes: Ints) -> dict[str, int]:
        """The names of the shards, and how many records each has, of records of these bytes in their
        order.

        Raises:
            ValueError: See `check`.
        """
        self.check()
        count, ends, cuts = len(sizes), np.append(0, np.cumsum(sizes)), [0]
        if self.num_shards:
            cuts = [count * number // self.num_shards for number in range(self.num_shards + 1)]
        while cuts[-1] < count or len(cuts) == 1:
            most = ends[cuts[-1]] + self.max_shard_bytes
            fitting = int(np.searchsorted(ends, most, side="right")) - 1
            cuts.append(min(max(fitting, cuts[-1] + 1), count))
        return {
            shard_name(self.prefix, number, len(cuts) - 1, self.suffix): end - begin
            for number, (begin, end) in enumerate(pairwise(cuts))
        }

    def writer(self, beside: Sequence[AtomicFile] = ()) -> ShardedTFRecordWriter:
        """Open the shards, with their indexes.

        Args:
            beside: Prepared files of the same folder, which appear with the shards.
        """
        writer = ShardedTFRecordWriter(
            self.prefix,
            num_shards=self.num_shards,
            max_shard_bytes=None if self.num_shards else self.max_shard_bytes,
            suffix=self.suffix,
            write_index=True,
        )
        writer.beside, writer.paths = beside, [self.file] if self.file else []
        return writer


def check_outputs(paths: Iterable[str], force: bool, inputs: Iterable[str] = ()) -> None:
    """Refuse to write over an input, and over what is there, but with `force` over a file.

    Raises:
        ValueError: See above.
    """
    read = {*map(os.path.realpath, inputs)}
    for path in paths:
        if os.path.realpath(path) in read:
            raise ValueError(f"{path}: expected an output that is no input")
        if is_remote(path):
            is_free = force or not RemoteNames(Access.DEFAULT).exists(path)
        else:  # a device or a folder stays in any case
            is_free = not os.path.lexists(path) or (force and os.path.isfile(path))
        if not is_free:
            raise ValueError(f"{path}: it is there; --force writes over a file")


@contextlib.contextmanager
def create_folders(path: str) -> Iterator[None]:
    """Create the folders of a file; after a failure remove those that were created. A storage has
    none.
    """
    target = Path("" if is_remote(path) else os.path.dirname(path))
    missing = [one for one in (target, *target.parents) if not one.exists()]
    target.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        # innermost first
        for one in missing:
            with contextlib.suppress(OSError):  # not empty: something else was put there
                one.rmdir()
        raise


class FileWriter(ShardedTFRecordWriter):
    """Writes files of one folder, with their indexes, that appear together; each is read back, and
    compared with what was written to it, before any has its name.

    Args:
        first: The name of one of them, which says how all are compressed.
        count: How many there will be.
    """

    def __init__(self, first: str, count: int) -> None:
        suffix = os.path.splitext(first)[1]
        super().__init__(first, max_shard_bytes=1, suffix=suffix, write_index=True)
        # Without a name they vanish even with a killed process, but need a descriptor each.
        self._only_last_is_open = count > _MOST_UNNAMED

    def fill(self, path: str, records: Iterable[bytes | memoryview]) -> tuple[int, int]:
        """Write the next file; its records, and their bytes with the frames.

        Raises:
            CorruptRecordError: It has other records.
        """
        if self.paths:
            if self._only_last_is_open:
                self._finish(self._shards[-1])
            self._add_shard()
        self.paths.append(path)
        file, written = self._shards[-1], 0
        for record in records:
            file.write(record)
            written += _digest(record)
        file.prepare()
        stream, _ = open_stream(_PreparedFile(path, file.data.read), "auto")
        blocks = RecordScanner(stream)
        held = sum(_digest(record) for block in blocks for record in block.records or ())
        if held != written:
            text = (
                f"expected the {written >> 128} records that were read, got {held >> 128} or others"
            )
            raise CorruptRecordError(text, path=path)
        return held >> 128, file.num_bytes

    def _finish(self, shard: Any) -> None:
        if self._files is not None:  # it is prepared, and a file of this machine
            self._files.add(shard)


class _PreparedFile(FileSource):
    """A file that has no name yet, to read back; of unknown size."""

    size: int | None = None
    chunk_bytes = LocalFile.chunk_bytes

    def __init__(self, path: str, read: Callable[[int, int], bytes]) -> None:
        self.path, self._read = path, read

    def read(self, num_bytes: int, offset: int) -> bytes:
        return self._read(num_bytes, offset)


def _digest(record: bytes | memoryview) -> int:
    """A number whose sum over records has their number, their bytes, and the sum of their checksums,
    in any order.
    """
    return 1 << 128 | len(record) << 64 | crc32c(record)
