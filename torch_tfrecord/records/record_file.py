"""TFRecord files being written, with their indexes: one alone, or a set that appears together.

Those of a storage are first written to a file of this machine without a name, then uploaded.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from torch_tfrecord.batch_memory import Buffer, Ints
from torch_tfrecord.errors import name_path
from torch_tfrecord.extensions import attached
from torch_tfrecord.files import (
    Access,
    AtomicFile,
    FileSource,
    HiddenFolder,
    RemoteInfo,
    is_remote,
)
from torch_tfrecord.records.codecs import Packing, codecs
from torch_tfrecord.records.framing import OVERHEAD_BYTES, encode_footer, encode_header
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.sidecar import (
    SIDECAR_FOLDER,
    in_sidecar_folder,
    remove_own,
    remove_sidecar,
    sidecar_folder,
    sidecar_path,
    visible_sidecar_path,
)

__all__ = ["FileSet", "RecordFile", "split_records", "upload_record_files"]

_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class RecordFile:
    """One file being written: frames and compresses records, and knows where they are.

    Args:
        path: The final path, with its scheme if it has one, or a name for errors where it is not
            known yet.
        packing: How it is compressed.
        write_index: Also write the index beside the file.

    Attributes:
        path: The same.
        data: Takes the bytes.
        index: The index of a prepared local file; None where none is wanted.
        num_bytes: Bytes of all records, framed, before compression.
    """

    def __init__(self, path: str, packing: Packing, write_index: bool) -> None:
        self.path, self._type = path, packing.compression_type
        self.data = _storages().new_file(path) if is_remote(path) else AtomicFile(path)
        self.index: AtomicFile | None = None
        self._packer = codecs().packer(packing) if self._type else None
        self._lengths: array[int] | None = array("q") if write_index else None
        self.num_bytes = 0
        if write_index and isinstance(self.data, AtomicFile) and not self.data.is_regular:
            self.discard()
            raise ValueError(f"write_index needs a regular file, got the device or pipe {path}")

    def write(self, record: Buffer, *, is_framed: bool = False) -> None:
        """Append one record, a payload or framed."""
        length = len(record) - OVERHEAD_BYTES * is_framed
        # In three parts: joining them would copy each payload.
        parts = (record,) if is_framed else (encode_header(length), record, encode_footer(record))
        for part in parts if self._packer is None else self._packer.pack(parts, length):
            self.data.write(part)
        # Before compression: how well records compress must not move the borders of shards.
        self.num_bytes += length + OVERHEAD_BYTES
        if self._lengths is not None:
            self._lengths.append(length)

    def write_framed(self, records: memoryview, lengths: Ints) -> None:
        """Append records that are framed already, one after the other.

        Args:
            records: Their bytes.
            lengths: Those of their payloads.
        """
        if self._packer is not None:
            for record, _ in split_records(records, lengths):
                self.write(record, is_framed=True)
            return
        self.data.write(records)
        self.num_bytes += len(records)
        if self._lengths is not None:
            self._lengths.frombytes(lengths.tobytes())

    def flush(self, *, is_end: bool = False) -> None:
        """Hand what was written to the operating system, so that it can be read (and decompressed)
        so far.
        """
        if self._packer is not None:
            self.data.write(self._packer.flush(is_end=is_end))
        self.data.flush()

    def prepare(self) -> None:
        """All of a local file, the index too, is on the disk, and of another one in its temporary
        file; nothing has its name yet.
        """
        self.flush(is_end=True)
        if isinstance(self.data, AtomicFile):
            status = self.data.prepare()
            content = self._index(status.st_size, status.st_mtime_ns)
            if content is not None:
                # In the data's own folder until `publish`, so that a failure before leaves no
                # folder for indexes that come after.
                place = Path(self.path).parent / Path(sidecar_path(self.path)).name
                self.index = AtomicFile(str(place))
                self.index.write(content)
                self.index.prepare()

    def _index(self, size: int, mtime_ns: int, etag: str | None = None) -> bytes | None:
        """The index of the whole file, of which all is flushed; None where none is wanted."""
        if self._lengths is None:
            return None
        lengths = np.array(self._lengths, dtype=np.int64)
        offsets = np.cumsum(lengths + OVERHEAD_BYTES) - lengths - OVERHEAD_BYTES
        # From the file itself, which may be compressed, not from what was written.
        found = FileSource.fingerprint_of(self.data.read, size)
        points = None if self._packer is None else self._packer.points(size)
        facts = size, self._type, mtime_ns, found, etag
        return RecordIndex(offsets, lengths, *facts, points).to_bytes()

    def publish(self, access: Access) -> None:
        """Give the prepared file, then its index, its name.

        Raises:
            OSError: what was there is there still, or the new file, whole; nothing where nothing
                was.
        """
        path, data = self.path, self.data
        if not isinstance(data, AtomicFile):
            return upload_record_files([self], [path], access)
        if self.index is None:
            data.publish()
        else:
            place, index = sidecar_path(path), self.index
            # Asked before: afterwards nobody knows whether something was replaced.
            is_new = not os.path.exists(path)
            with sidecar_folder(place):  # what is in its way is met before the data have their name
                data.publish()
                try:
                    in_sidecar_folder(place, lambda: index.publish(place))
                except BaseException:
                    # Data that replaced others stay: what was there is gone, and the new file is
                    # whole.
                    if is_new:
                        os.unlink(path)
                    raise
        if data.is_regular:
            self.remove_old_indexes(path)

    def remove_old_indexes(self, path: str) -> None:
        """Those of a local file that stood there before."""
        # A stale index would be noticed, but built again by each reader who cannot write here.
        if self.index is None:
            remove_sidecar(path)
        else:
            remove_own(visible_sidecar_path(path))

    def discard(self) -> None:
        """Leave nothing behind."""
        self.data.discard()
        if self.index is not None:
            self.index.discard()


def split_records(records: memoryview, lengths: Ints) -> Iterator[tuple[memoryview, int]]:
    """Each of some framed records, and the length of its payload."""
    end = 0
    for length in lengths.tolist():
        begin, end = end, end + length + OVERHEAD_BYTES
        yield records[begin:end], length


def upload_record_files(files: Sequence[RecordFile], paths: Sequence[str], access: Access) -> None:
    """Write prepared files of a storage under their names, then their indexes.

    Raises:
        OSError, RemoteError: See `_Storages.upload`. Where an index could not be written, the data are
            there.
    """
    storages = _storages()
    data = [file.data for file in files if not isinstance(file.data, AtomicFile)]
    indexes: list[_NewFile] = []
    try:
        infos = storages.upload(data, paths, access)
        for file, own, path, info in zip(files, data, paths, infos, strict=True):
            content = file._index(own.size, info.mtime_ns, info.etag)
            if content is not None:
                indexes.append(storages.new_file(sidecar_path(path)))
                indexes[-1].write(content)
        storages.upload(indexes, [index.path for index in indexes], access)
    finally:
        for one in indexes:
            one.discard()
    for own in data:
        own.discard()


class _NewFile(Protocol):
    """A file of a storage that is being written."""

    path: str
    size: int

    def write(self, data: Buffer) -> None: ...
    def flush(self) -> None: ...
    def read(self, num_bytes: int, offset: int) -> bytes: ...
    def discard(self) -> None: ...


class _Storages(Protocol):
    """The extension `remote`."""

    def new_file(self, path: str) -> _NewFile: ...

    def upload(
        self, files: Sequence[_NewFile], paths: Sequence[str], access: Access
    ) -> list[RemoteInfo]:
        """Write files under their names; the storage's answer about each.

        Raises:
            OSError, RemoteError: One could not be written. Those that replace nothing are removed
                again; a file that was replaced before the error stays the new one.
        """


def _storages() -> _Storages:
    return attached("remote", "STORAGES")


class FileSet:
    """Files of one folder, and indexes in its hidden folder, that are published together.

    No system call renames many files, so all are complete, in a hidden folder, before the first is
    renamed, and the files that they replace are kept there until the last one is. After a failure
    the old files are put back. Only ``kill -9`` between two renames leaves some files old and some
    new, each of them whole; the next writer of the set removes the hidden folder.

    Args:
        base: Prefix of its names, such as ``out/train`` for ``out/train-00003-of-00010.tfrecord``.
        suffix: Suffix of its names.
    """

    def __init__(self, base: str, suffix: str) -> None:
        self._path = Path(f"{base}-*{suffix}")
        self._hidden, self._count = HiddenFolder(self._path), 0
        self._hidden.clear()
        self._files: list[RecordFile] = []

    def add(self, file: RecordFile) -> None:
        """Close and keep a prepared file, and its index, for `publish`."""
        self._files.append(file)
        for part in (file.data, file.index):
            if isinstance(part, AtomicFile):
                self._put(part)

    def _put(self, file: AtomicFile) -> None:
        with name_path(self._path):
            folder = self._hidden.make()
        file.put(folder / f"{self._count}.new")
        self._count += 1

    def publish(self, paths: Sequence[str], beside: Sequence[AtomicFile]) -> None:
        """Give all files their names.

        Args:
            paths: The path of each added file.
            beside: Prepared files of the same folder that appear with them.

        Raises:
            OSError: A file could not get its name, which the error gives; the old files are back in
                place.
        """
        names: list[str] = []
        for added, path in zip(self._files, paths, strict=True):
            name = os.path.basename(path)
            names += [name] if added.index is None else [name, sidecar_path(name)]
        for file in beside:
            self._put(file)
            names.append(os.path.basename(file.path))
        folder, parent = self._hidden.make(), self._path.parent
        moves = [
            _Move(parent / name, folder / f"{number}.new", folder / f"{number}.old")
            for number, name in enumerate(names)
        ]
        with contextlib.ExitStack() as folders:
            for move in moves:
                if move.is_index:  # find obstacles before any file is renamed
                    folders.enter_context(sidecar_folder(str(move.path)))
            # The new files are on the disk under hidden names before anything visible changes.
            self._hidden.sync()
            try:
                # All old files have a second name before the first new one appears.
                for step in (_Move.keep_old, _Move.publish_new):
                    for move in moves:
                        with name_path(move.path):
                            step(move)
                self._hidden.sync(*{move.final.parent for move in moves})
            except BaseException:
                try:
                    for move in moves:
                        move.take_back()
                except OSError:
                    self._hidden.keep()  # it has old files, which stay there
                raise
        self.discard()

    def discard(self) -> None:
        """Remove everything that was not published; does nothing in a forked child."""
        self._hidden.discard()


class _Move:
    """The renames of one file of a set.

    Args:
        path: Its name.
        new: Where it is now.
        old: Where the file that it replaces is kept.
    """

    def __init__(self, path: Path, new: Path, old: Path) -> None:
        self.path, self._new, self._old = path, new, old
        self.is_index = path.parent.name == SIDECAR_FOLDER
        # Symbolic links to data are kept.
        self.final = path if self.is_index else Path(os.path.realpath(path))
        self._replaces = os.path.lexists(self.final)

    def keep_old(self) -> None:
        """Give the file that is replaced a second name; without hard links, rename it."""
        if not self._replaces:
            return
        try:
            os.link(self.final, self._old)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            self.final.replace(self._old)

    def publish_new(self) -> None:
        """Give the new file its name."""
        move = functools.partial(os.replace, self._new, self.final)
        in_sidecar_folder(str(self.final), move) if self.is_index else move()

    def take_back(self) -> None:
        """Make everything as it was."""
        if os.path.lexists(self._old):
            # Renaming one name of a file to its other does nothing, and may be impossible here.
            if not (self.final.exists() and self.final.samefile(self._old)):
                self._old.replace(self.final)
        elif not self._replaces and not self._new.exists():
            self.final.unlink(missing_ok=True)
