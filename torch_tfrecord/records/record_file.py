"""TFRecord files being written, with their indexes."""

from __future__ import annotations

import os
import zlib
from array import array
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from torch_tfrecord.files.atomic import AtomicFile
from torch_tfrecord.files.file_source import fingerprint
from torch_tfrecord.records.compression import compressor
from torch_tfrecord.records.file_set import FileSet
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

__all__ = ["LocalRecordFile", "RecordFile"]

_File = TypeVar("_File", bound="WritableFile")


class WritableFile(Protocol):
    """What records are written to."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""

    def flush(self) -> None:
        """Hand all bytes to the operating system."""

    def read(self, num_bytes: int, offset: int) -> bytes:
        """What was handed to it."""

    def discard(self) -> None:
        """Leave nothing behind."""


class RecordFile(Generic[_File]):
    """One file being written: frames and compresses records, and knows where they lie.

    Args:
        file: Takes the bytes.
        compression_type: "", "GZIP" or "ZLIB".
        level: Of the compression; None for zlib's default.
        write_index: Also write the index beside the file.

    Attributes:
        num_bytes: Bytes of all records, framed, before compression.
    """

    def __init__(
        self, file: _File, compression_type: str, level: int | None, write_index: bool
    ) -> None:
        self._file = file
        self._compression_type = compression_type
        self._deflater = compressor(compression_type, level) if compression_type else None
        self._lengths: array[int] | None = array("q") if write_index else None
        self.num_bytes = 0

    def write(self, payload: bytes | bytearray | memoryview) -> None:
        """Append one record."""
        header, footer = encode_header(len(payload)), encode_footer(payload)
        for part in (header, payload, footer):
            self._file.write(part if self._deflater is None else self._deflater.compress(part))
        self.num_bytes += len(payload) + OVERHEAD_BYTES
        if self._lengths is not None:
            self._lengths.append(len(payload))

    def flush(self) -> None:
        """Hand what was written to the operating system, so that it can be read (and decompressed)
        so far.
        """
        if self._deflater is not None:
            self._file.write(self._deflater.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def _finish_stream(self) -> None:
        if self._deflater is not None:
            self._file.write(self._deflater.flush())

    def _index(
        self, payload_lengths: array[int], size: int, mtime_ns: int = 0, etag: str | None = None
    ) -> RecordIndex:
        """The index of the whole file, of which all is flushed."""
        lengths = np.array(payload_lengths, dtype=np.int64)
        ends = np.cumsum(lengths + OVERHEAD_BYTES)
        found = fingerprint(self._file.read, size)
        offsets = ends - lengths - OVERHEAD_BYTES
        return RecordIndex(offsets, lengths, size, self._compression_type, mtime_ns, found, etag)

    def discard(self) -> None:
        """Leave nothing behind."""
        self._file.discard()


class LocalRecordFile(RecordFile[AtomicFile]):
    """A file of this machine; see `RecordFile`.

    Args:
        path: The final path.
    """

    def __init__(
        self, path: str, compression_type: str, level: int | None, write_index: bool
    ) -> None:
        super().__init__(AtomicFile(path), compression_type, level, write_index)
        self._index_file: AtomicFile | None = None
        if write_index and not self._file.is_regular:
            self._file.discard()
            raise ValueError(f"write_index needs a regular file, got the device or pipe {path}")

    def prepare(self) -> None:
        """Everything, the index too, is on the disk; nothing has its name yet."""
        self._finish_stream()
        status = self._file.prepare()
        if self._lengths is not None:
            # In the data's own folder until `publish`, so that a failure before leaves no folder
            # for indexes behind.
            place = Path(self._file.path).parent / Path(sidecar_path(self._file.path)).name
            self._index_file = AtomicFile(str(place))
            self._index_file.write(
                self._index(self._lengths, status.st_size, status.st_mtime_ns).to_bytes()
            )
            self._index_file.prepare()

    def publish(self) -> None:
        """Give the prepared file, then its index, its name.

        Raises:
            OSError: what was there is there still, or the new file, whole; nothing where nothing
                was.
        """
        path = self._file.path
        if self._index_file is None:
            self._file.publish()
        else:
            self._publish_with_index(self._index_file, path)
        if self._file.is_regular:
            self.remove_old_indexes(path)

    def _publish_with_index(self, index: AtomicFile, path: str) -> None:
        place = sidecar_path(path)
        is_new = not os.path.exists(path)
        with sidecar_folder(place):  # what stands in its way is met before the data have their name
            self._file.publish()
            try:
                in_sidecar_folder(place, lambda: index.publish(place))
            except BaseException:
                if is_new:
                    os.unlink(path)
                raise

    def remove_old_indexes(self, path: str) -> None:
        """Those of a file that stood there before."""
        if self._index_file is None:
            remove_sidecar(path)
        else:
            remove_own(old_sidecar_path(path))

    def add_to(self, files: FileSet) -> None:
        """Hand the prepared file, then its index, to a set of files."""
        files.add(self._file)
        if self._index_file is not None:
            files.add(self._index_file)

    def names(self, name: str) -> list[str]:
        """Names of what `add_to` added, where the file's is `name`."""
        return [name] if self._index_file is None else [name, sidecar_path(name)]

    def discard(self) -> None:
        """Leave nothing behind."""
        super().discard()
        if self._index_file is not None:
            self._index_file.discard()
