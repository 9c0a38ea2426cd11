"""Files written to storages: each appears whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from torch_tfrecord.files import Access, RemoteInfo, open_path
from torch_tfrecord.remote.requests import Job, Transfer
from torch_tfrecord.remote.store import Store, StoreError
from torch_tfrecord.remote.transfers import infos_if_there, remove
from torch_tfrecord.shown import without_secrets

__all__ = ["Upload", "UploadFile", "upload", "upload_bytes", "upload_files", "upload_folder"]

_UPLOADS_AT_ONCE = 4  # files, each in several parts at once


class Upload(NamedTuple):
    """One file to write.

    Attributes:
        path: Where to, with its scheme.
        file: A binary file of this machine; all of it is written.
        size: Its bytes.
    """

    path: str
    file: IO[bytes]
    size: int


def upload(uploads: Sequence[Upload], access: Access) -> list[RemoteInfo]:
    """Write files, a few of them at once; what the storage says of each then.

    Raises:
        OSError, RemoteError: One could not be written, and is as it was before; others may have
            been written.
    """
    found: list[RemoteInfo] = []
    for first in range(0, len(uploads), _UPLOADS_AT_ONCE):
        group = _Uploads()
        try:
            jobs = [group.job(item) for item in uploads[first : first + _UPLOADS_AT_ONCE]]
            found += Transfer(jobs, access).answers()
        finally:
            group.end()
    return found


class _Uploads:
    """Uploads at once. After the error of one the others end before anybody looks what is there."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_running, self._is_ended = 0, False

    def job(self, item: Upload) -> Job:
        """The request of one of them."""

        def call(store: Store, name: str) -> RemoteInfo:
            with self._changed:
                if self._is_ended:
                    raise StoreError("another one failed", is_passing=False)
                self._num_running += 1
            try:
                item.file.seek(0)  # a second attempt starts again
                return store.upload(name, item.file, item.size)
            finally:
                with self._changed:
                    self._num_running -= 1
                    self._changed.notify_all()

        return Job(item.path, f"its {item.size} bytes", 0, call)

    def end(self) -> None:
        """Wait for those that run; none begins any more."""
        with self._changed:
            self._is_ended = True
            self._changed.wait_for(lambda: not self._num_running)


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
        self._file: IO[bytes] = open_path(lambda _: tempfile.TemporaryFile(), without_secrets(path))  # noqa: SIM115
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
        """Bytes that were handed to the operating system; fewer only at their end."""
        return os.pread(self._file.fileno(), num_bytes, offset)

    def as_upload(self, path: str) -> Upload:
        """All of it, under a name."""
        self.flush()
        return Upload(path, self._file, self.size)

    def discard(self) -> None:
        """Remove it; safe to call at any time."""
        with contextlib.suppress(OSError):
            self._file.close()


def upload_files(
    files: Sequence[UploadFile], paths: Sequence[str], access: Access
) -> list[RemoteInfo]:
    """Write files under their names; the storage's answer about each.

    Raises:
        OSError, RemoteError: One could not be written. Those that replace nothing are removed
            again; a file that was replaced before the error stays the new one.
    """
    # Only what replaces nothing can be taken back: a storage keeps no old version.
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


def upload_folder(folder: Path, target: str, last: str, access: Access) -> None:
    """Write all files of a folder to one of a storage, the one named `last` after the others.

    Raises:
        OSError, RemoteError: One could not be written; all of them are removed again.
    """
    paths = sorted(folder.iterdir(), key=lambda path: (path.name == last, path.name))
    with contextlib.ExitStack() as opened:
        uploads = [
            Upload(
                f"{target}/{path.name}",
                opened.enter_context(path.open("rb")),
                path.stat().st_size,
            )
            for path in paths
        ]
        try:
            upload(uploads[:-1], access)
            upload(uploads[-1:], access)
        except BaseException:
            with contextlib.suppress(Exception):  # of an error that is being raised
                remove([item.path for item in uploads], access)
            raise
