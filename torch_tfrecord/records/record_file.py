"""One TFRecord file being written, with its index."""

from __future__ import annotations

import contextlib
import os
import zlib
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from torch_tfrecord.records.atomic import AtomicFile
from torch_tfrecord.records.compression import compressor
from torch_tfrecord.records.framing import OVERHEAD_BYTES, encode_footer, encode_header
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.sidecar import (
    in_sidecar_folder,
    old_sidecar_path,
    remove_own,
    remove_sidecar,
    sidecar_folder,
    sidecar_path,
)
from torch_tfrecord.records.storage import fingerprint

__all__ = ["RecordFile", "remove_files"]


class RecordFile:
    """One file being written: frames and compresses records, and knows where they lie.

    Args:
        path: The final path.
        compression_type: "", "GZIP" or "ZLIB".
        level: Of the compression; None for zlib's default.
        write_index: Also write the index beside the file.
        named: See `AtomicFile`.

    Attributes:
        num_bytes: Bytes of all records, framed, before compression.
    """

    def __init__(self, path: str, compression_type: str, level: int | None, write_index: bool, named: bool) -> None:
        self._file = AtomicFile(path, named=named)
        self._named = named
        self._compression_type = compression_type
        self._deflater = compressor(compression_type, level) if compression_type else None
        self._lengths: array[int] | None = None
        self._index_file: AtomicFile | None = None
        self.num_bytes = 0
        if write_index:
            if not self._file.is_regular:
                self._file.discard()
                raise ValueError(f"write_index needs a regular file, got the device or pipe {path}")
            self._lengths = array("q")

    def write(self, payload: bytes | bytearray | memoryview) -> None:
        """Append one record."""
        header, footer = encode_header(len(payload)), encode_footer(payload)
        for part in (header, payload, footer):
            self._file.write(part if self._deflater is None else self._deflater.compress(part))
        self.num_bytes += len(payload) + OVERHEAD_BYTES
        if self._lengths is not None:
            self._lengths.append(len(payload))

    def flush(self) -> None:
        """Hand what was written to the operating system, so that it can be read (and decompressed) so far."""
        if self._deflater is not None:
            self._file.write(self._deflater.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def prepare(self) -> None:
        """Everything, the index too, is on the disk; nothing has its name yet."""
        if self._deflater is not None:
            self._file.write(self._deflater.flush())
        status = self._file.prepare()
        if self._lengths is not None:
            index = self._index(self._lengths, status)
            # In the data's own folder until `publish`, so that a failure before leaves no folder for indexes behind.
            place = Path(self._file.path).parent / Path(sidecar_path(self._file.path)).name
            self._index_file = AtomicFile(str(place), named=self._named)
            self._index_file.write(index.to_bytes())
            self._index_file.prepare()
            self._index_file.release()
        self._file.release()

    def _index(self, lengths: array[int], status: os.stat_result) -> RecordIndex:
        sizes = np.array(lengths, dtype=np.int64) + OVERHEAD_BYTES
        offsets = np.cumsum(sizes) - sizes
        content = fingerprint(lambda num_bytes, offset: os.pread(self._file.fd, num_bytes, offset), status.st_size)
        return RecordIndex(
            offsets, sizes - OVERHEAD_BYTES, status.st_size, self._compression_type, status.st_mtime_ns, content
        )

    def publish(self, path: str | None = None) -> None:
        """Give the prepared file, then its index, its name; another final path may be given only now."""
        final = path or self._file.path
        if self._index_file is None:
            self._file.publish(path)
            if self._file.is_regular:
                remove_sidecar(final)  # of a file that stood here before
        else:
            self._publish_with_index(self._index_file, final)

    def _publish_with_index(self, index: AtomicFile, path: str) -> None:
        place = sidecar_path(path)
        with sidecar_folder(place):  # what stands in its way is met before the data have their name
            self._file.publish(path)
            try:
                in_sidecar_folder(place, lambda: index.publish(place))
            except BaseException:
                os.unlink(path)
                raise
        remove_own(old_sidecar_path(path))  # of a file that stood here before

    def discard(self) -> None:
        """Leave nothing behind."""
        self._file.discard()
        if self._index_file is not None:
            self._index_file.discard()


def remove_files(paths: Iterable[str]) -> None:
    """Take published files back, with their indexes: half a set would pass for data."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)
        remove_sidecar(path)
