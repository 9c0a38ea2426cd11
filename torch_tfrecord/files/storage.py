"""Opening files and reading ranges of them: local files by pread, everything with a ``scheme://``
by its storage.

Local files are never memory-mapped: a file that is cut while mapped kills the process with SIGBUS,
which Python cannot catch. Reads name their offset, so there is no file position to share between
threads or after a fork.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence

from torch_tfrecord.errors import CorruptRecordError
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.descriptors import Descriptor, named, open_descriptor, open_if_free
from torch_tfrecord.files.file_source import FileSource
from torch_tfrecord.files.remote_file import RemoteFile
from torch_tfrecord.files.store import RemoteInfo
from torch_tfrecord.files.transfers import infos
from torch_tfrecord.native import native_module

__all__ = [
    "LocalFile",
    "is_remote",
    "local_path",
    "open_file",
    "open_files",
]

# Linux transfers at most this much in one call.
_MAX_READ_BYTES = 0x7FFF_F000


def is_remote(path: str) -> bool:
    """Whether a path names something that fsspec reads: ``s3://...``, ``gs://...``,
    ``memory://...``.
    """
    return "://" in path and not path.startswith("file://")


def local_path(path: str | os.PathLike[str]) -> str:
    """A path as str; ``file://`` is taken off."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path must be str or os.PathLike[str], got {type(path).__name__}")
    return text.removeprefix("file://")


class LocalFile(FileSource):
    """A regular file of this machine, closed when the last reference goes, or others need the
    descriptor: see `hold`.

    Raises:
        OSError: as `open` does, always with the path; also for what is no regular file, without
            waiting on a FIFO.
    """

    chunk_bytes = 1 << 19  # measured: larger chunks leave the processor's cache
    max_gap_bytes = 1 << 12  # copying so much costs as much as a call

    def __init__(self, path: str) -> None:
        self.path = path
        self._place = os.path.abspath(path)  # the folder may be another one when it is opened again
        self._held: Descriptor | None = None
        held = open_descriptor(path, self)
        status = os.fstat(held.number)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(
                errno.EINVAL, "expected a regular file, got a pipe, socket or device", path
            )
        self.size = self.file_size = status.st_size
        self.mtime_ns = status.st_mtime_ns
        self._identity = status.st_dev, status.st_ino
        self._held = held

    def hold(self) -> Descriptor:
        """The open file, for one read: it is not closed while its caller keeps this."""
        held = self._held
        if held is None:
            with named(self.path):
                held = self._held = self._same(open_descriptor(self._place, self))
        held.is_used = True
        return held

    def hold_if_free(self) -> Descriptor | None:
        """As `hold`, for whoever holds some already; None where too many are open."""
        held = self._held
        if held is None:
            held = open_if_free(self._place, self)
            if held is None:
                return None
            self._held = self._same(held)
        held.is_used = True
        return held

    def _same(self, held: Descriptor) -> Descriptor:
        """What was opened again, if it is the file of before."""
        status = os.fstat(held.number)
        is_same = (status.st_dev, status.st_ino) == self._identity
        # Some network file systems number a file anew each time.
        if not is_same and (status.st_size, status.st_mtime_ns) != (self.file_size, self.mtime_ns):
            raise CorruptRecordError(
                "expected the file that was opened, got another one in its place", path=self.path
            )
        return held

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end of the file."""
        left = self.file_size - offset
        wanted = num_bytes if num_bytes < left else left  # pread allocates what it is asked for
        if wanted <= 0:
            return b""
        fd = (held := self.hold()).number
        try:
            data = os.pread(fd, wanted if wanted < _MAX_READ_BYTES else _MAX_READ_BYTES, offset)
            while len(data) < wanted:  # a signal or a full cache may cut a read short anywhere
                piece = os.pread(fd, min(wanted - len(data), _MAX_READ_BYTES), offset + len(data))
                if not piece:
                    break
                data += piece
        except OSError as error:
            error.filename = self.path
            raise
        finally:
            del held
        return data

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a writable buffer of bytes from `offset` on; how many came, fewer only at the end of
        the file.
        """
        wanted, done = min(len(buffer), self.file_size - offset), 0
        held = self.hold()
        try:
            while done < wanted:
                got = os.preadv(
                    held.number, [buffer[done : min(wanted, done + _MAX_READ_BYTES)]], offset + done
                )
                if not got:
                    break
                done += got
        except OSError as error:
            error.filename = self.path
            raise
        finally:
            del held
        return done

    def read_record(self, offset: int, length: int, *, verify_crc: bool) -> bytes | None:
        """Payload of the record at `offset`, where there is a good one of that length; None in any
        doubt.

        A short cut: who gets None reads again, and finds what is wrong.
        """
        native = native_module("frames")
        if native is None or offset < 0 or length > self.file_size - offset:
            return None
        held = self._held or self.hold()
        held.is_used = True
        payload: bytes | None = native.read_record(held.number, offset, length, verify_crc)
        return payload


def open_file(
    path: str, access: Access = DEFAULT_ACCESS, info: RemoteInfo | None = None
) -> FileSource:
    """Open a local or remote file for reading ranges of it; `info` is what its storage says, where
    that is known.
    """
    return RemoteFile(path, access, info) if is_remote(path) else LocalFile(path)


def open_files(
    paths: Sequence[str],
    access: Access = DEFAULT_ACCESS,
    known: Mapping[str, RemoteInfo] | None = None,
) -> list[FileSource]:
    """Open several files; storages are asked at once for all of theirs that are not known."""
    remote = [path for path in paths if is_remote(path)]
    found = {path: known[path] for path in remote if path in known} if known else {}
    asked = [path for path in remote if path not in found]
    if asked:
        found.update(zip(asked, infos(asked, access), strict=True))
    return [
        RemoteFile(path, access, found[path]) if path in found else LocalFile(path)
        for path in paths
    ]
