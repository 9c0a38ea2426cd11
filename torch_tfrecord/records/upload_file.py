"""Files being written to a storage: first to a file of this machine without a name, then all of it
at once.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

from torch_tfrecord.files.access import Access
from torch_tfrecord.files.descriptors import opened
from torch_tfrecord.files.store import RemoteInfo
from torch_tfrecord.files.transfers import infos_if_there
from torch_tfrecord.files.uploads import Upload, remove, upload
from torch_tfrecord.records.record_file import RecordFile
from torch_tfrecord.records.sidecar import sidecar_path
from torch_tfrecord.shown import without_secrets

__all__ = ["RemoteRecordFile", "UploadFile", "upload_all", "upload_bytes", "upload_record_files"]


class UploadFile:
    """A file being written: until it is uploaded it takes room in the folder for temporary files,
    ``TMPDIR``.

    Args:
        path: The final path, with its scheme.

    Raises:
        OSError: There can be no temporary file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: IO[bytes] = opened(lambda _: tempfile.TemporaryFile(), without_secrets(path))  # noqa: SIM115
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        with self._located():
            self._file.write(data)
        self.size += len(data)

    def flush(self) -> None:
        """Hand all bytes to the operating system; the storage gets them at the end."""
        with self._located():
            self._file.flush()

    @contextlib.contextmanager
    def _located(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # not of the storage
            text = f"{error.strerror} (its temporary file in {tempfile.gettempdir()})"
            raise OSError(error.errno, text, without_secrets(self.path)) from error

    def read(self, num_bytes: int, offset: int) -> bytes:
        """What was handed to the operating system; fewer bytes only at its end."""
        return os.pread(self._file.fileno(), num_bytes, offset)

    def as_upload(self, path: str) -> Upload:
        """All of it, under a name."""
        self.flush()
        return Upload(path, self._file, self.size)

    def discard(self) -> None:
        """Leave nothing behind; safe to call at any time."""
        with contextlib.suppress(OSError):
            self._file.close()


def upload_all(
    files: Sequence[UploadFile], paths: Sequence[str], access: Access
) -> list[RemoteInfo]:
    """Write files under their names; what the storage says of each.

    Raises:
        OSError, RemoteError: One could not be written. Those that replace nothing are removed
            again; a file that was replaced before the error stays the new one.
    """
    before = infos_if_there(paths, access)
    try:
        return upload(
            [file.as_upload(path) for file, path in zip(files, paths, strict=True)], access
        )
    except BaseException:
        with contextlib.suppress(Exception):  # of an error that is being raised
            remove(
                [
                    path
                    for path, info in zip(paths, before, strict=True)
                    if info is None or info.is_folder
                ],
                access,
            )
        raise


def upload_bytes(path: str, data: bytes, access: Access) -> RemoteInfo:
    """Write a small file to a storage; it appears whole, or not at all.

    Raises:
        OSError, RemoteError: It is as it was before.
    """
    file = UploadFile(path)
    try:
        file.write(data)
        return upload([file.as_upload(path)], access)[0]
    finally:
        file.discard()


class RemoteRecordFile(RecordFile[UploadFile]):
    """A file of a storage; see `RecordFile`.

    Args:
        path: The final path, with its scheme, or a name for errors where it is not known yet.
    """

    def __init__(
        self, path: str, compression_type: str, level: int | None, write_index: bool
    ) -> None:
        super().__init__(UploadFile(path), compression_type, level, write_index)

    def prepare(self) -> None:
        """Everything is in the temporary file."""
        self._finish_stream()
        self._file.flush()

    @property
    def file(self) -> UploadFile:
        """What is uploaded."""
        return self._file

    def index_file(self, path: str, info: RemoteInfo) -> UploadFile | None:
        """The index of what was uploaded; None where none is wanted."""
        if self._lengths is None:
            return None
        found = UploadFile(sidecar_path(path))
        found.write(
            self._index(self._lengths, self._file.size, info.mtime_ns, info.etag).to_bytes()
        )
        return found


def upload_record_files(
    files: Sequence[RemoteRecordFile], paths: Sequence[str], access: Access
) -> None:
    """Write prepared files under their names, then their indexes.

    Raises:
        OSError, RemoteError: As of `upload_all`. Where an index could not be written, the data are
            there.
    """
    infos = upload_all([file.file for file in files], paths, access)
    found = (
        file.index_file(path, info) for file, path, info in zip(files, paths, infos, strict=True)
    )
    indexes = [index for index in found if index is not None]
    try:
        upload_all(indexes, [index.path for index in indexes], access)
    finally:
        for index in indexes:
            index.discard()
    for file in files:
        file.discard()
