"""Opening files and reading ranges of them: local files by pread, those with a ``scheme://`` by the
extension `remote`.

Local files are never memory-mapped: a file that is cut while mapped kills the process with SIGBUS,
which Python cannot catch. Reads name their offset, so there is no file position to share between
threads or after a fork.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

from crc32c import crc32c

from torch_tfrecord.errors import CorruptRecordError, name_path
from torch_tfrecord.extensions import attached
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.descriptors import Descriptor, open_descriptor, open_if_free
from torch_tfrecord.native import native_module

__all__ = [
    "FileSource",
    "LocalFile",
    "RangeReader",
    "RemoteInfo",
    "SourceRange",
    "is_remote",
    "local_path",
    "open_file",
    "open_files",
    "open_in_turn",
    "truncated",
]

# Linux transfers at most this much in one call.
_MAX_READ_BYTES = 0x7FFF_F000
_FINGERPRINT_BYTES = 4096


def is_remote(path: str) -> bool:
    """Whether a path names something that fsspec reads: ``s3://...``, ``gs://...``,
    ``memory://...``.
    """
    return "://" in path and not path.startswith("file://")


def local_path(path: str | os.PathLike[str]) -> str:
    """A path as str; ``file://`` is taken off, and ``~`` is the user's folder."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path must be str or os.PathLike[str], got {type(path).__name__}")
    return os.path.expanduser(text.removeprefix("file://"))


class FileSource:
    """Bytes read by offset: a file, or a stream of unknown size.

    Attributes:
        path: For errors.
        size: Bytes; of a file those that it had when it was opened, and None for a stream whose end
            was not reached.
        file_size: The same, of a file.
        mtime_ns: Modification time in nanoseconds; 0 where it is not known.
        etag: The version that a storage names; None where it names none, and of local files.
        max_record_bytes: The longest payload that is accepted where the size is unknown.
        chunk_bytes: Recommended size of one read.
        max_gap_bytes: Two ranges with at most so many bytes between them are read by one call.
        together: Reads ranges of many files by one call, which takes no longer than one range; None
            where each file is read by itself.
        keep_from: A reader may come back to this offset: a stream that cannot go back keeps its
            bytes.
        kept_before: So many bytes before the last offset may be wanted again, too.
        is_inflated: Whether offsets are those in a decompressed stream.
    """

    path: str
    size: int | None
    file_size: int
    mtime_ns: int
    etag: str | None = None
    max_record_bytes: int | None = None
    chunk_bytes: int
    max_gap_bytes: int = 0
    together: RangeReader | None = None
    keep_from: int | None = None
    kept_before: int = 0
    is_inflated: bool = False

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end."""
        raise NotImplementedError

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a writable buffer of bytes from `offset` on; how many came, fewer only at the end of
        the file.
        """
        data = self.read(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def read_ranges(self, ranges: Iterable[tuple[int, int, int]], buffer: memoryview) -> None:
        """Fill a writable buffer with several ranges.

        Args:
            ranges: First byte, end, and place in the buffer; ascending.
            buffer: Receives them.

        Raises:
            CorruptRecordError: The file ends inside one.
        """
        for begin, end, start in ranges:
            got = self.read_into(buffer[start : start + end - begin], begin)
            if begin + got < end:
                raise truncated(self.path, end, begin + got)

    def check_end(self) -> None:
        """Raise if a stream is truncated or damaged; a file simply ends."""

    def forget(self, begin: int, end: int) -> bool:
        """Drop what a cache has of a range whose bytes are wrong; whether it had any: then read
        it again.
        """
        return False

    def ahead(self, last: int | None = None) -> FileSource:
        """The same file, to be read from front to back up to the byte `last`: of a remote one the
        next bytes are on their way before they are needed.
        """
        return self

    def fingerprint(self) -> int:
        """See `fingerprint_of`."""
        return self.fingerprint_of(self.read, self.file_size)

    @staticmethod
    def fingerprint_of(read: Callable[[int, int], bytes], file_size: int) -> int:
        """CRC-32C over the first and the last 4 KiB of a file, which differs between files of equal
        size and time.
        """
        most = _FINGERPRINT_BYTES
        first = crc32c(read(most, 0))
        return int(crc32c(read(most, max(file_size - most, 0)), first))


class SourceRange(NamedTuple):
    """A range of a file, the number that the caller knows the file by, and where in a buffer its
    bytes go.
    """

    file: FileSource
    number: int
    begin: int
    end: int
    start: int


class RangeReader(Protocol):
    """Reads ranges of many files at once."""

    def read(self, ranges: Sequence[SourceRange], buffer: memoryview) -> None:
        """Read ranges to their places in a writable buffer of bytes."""


def truncated(path: str, expected: int, got: int) -> CorruptRecordError:
    """The error of a file that ends too early."""
    return CorruptRecordError(f"truncated file: expected {expected} bytes, got {got}", path=path)


class LocalFile(FileSource):
    """A regular file of this machine, closed when the last reference goes, or others need the
    descriptor: see `hold`.

    Raises:
        OSError: as `open` does, always with the path; also for what is no regular file, without
            waiting on a FIFO.
    """

    chunk_bytes = 1 << 19  # measured: larger chunks leave the processor's cache
    max_gap_bytes = 1 << 12  # copying 4 KiB costs as much as a call

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
            with name_path(self.path):
                held = self._held = self._same(open_descriptor(self._place, self))
        held.is_used = True
        return held

    def hold_if_free(self) -> Descriptor | None:
        """As `hold`, for callers that hold some already; None where too many are open."""
        held = self._held
        if held is None:
            # Never waits: a caller that holds one and waits for another may wait for itself.
            held = open_if_free(self._place, self)
            if held is None:
                return None
            self._held = self._same(held)
        held.is_used = True
        return held

    def _same(self, held: Descriptor) -> Descriptor:
        """The file that was opened again, if it is that of before."""
        status = os.fstat(held.number)
        is_same = (status.st_dev, status.st_ino) == self._identity
        # Some network file systems give a file another number each time.
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


class RemoteInfo(NamedTuple):
    """A storage's answer about a file that it has not read.

    Attributes:
        size: Bytes; None where the storage does not say.
        etag: Its version, as the storage calls it; None where it has none.
        mtime_ns: When it was last changed, nanoseconds since the epoch; 0 where that is not known.
        is_folder: Whether it is a folder.
    """

    size: int | None
    etag: str | None = None
    mtime_ns: int = 0
    is_folder: bool = False


class _Storages(Protocol):
    """Files of storages; `remote` attaches it as ``STORAGES``."""

    def open(
        self,
        paths: Sequence[str],
        access: Access,
        known: Mapping[str, RemoteInfo],
        *,
        is_current: bool,
    ) -> list[FileSource]:
        """Open files; of those that are not known the storages are asked, all at once: see
        `open_file`.
        """

    def open_in_turn(
        self, paths: Iterable[str], access: Access, known: Mapping[str, RemoteInfo]
    ) -> Callable[[str], FileSource]:
        """See `files.open_in_turn`."""


def _storages() -> _Storages:
    """The storages of the extension `remote`.

    Raises:
        ImportError: The extension is not installed.
    """
    return cast("_Storages", attached("remote", "STORAGES"))


def open_file(
    path: str,
    access: Access = DEFAULT_ACCESS,
    info: RemoteInfo | None = None,
    *,
    is_current: bool = True,
) -> FileSource:
    """Open a local or remote file for reading ranges of it.

    Args:
        path: Local, or with a ``scheme://``.
        access: How a remote file is reached.
        info: Its storage's answer about it, where that is known.
        is_current: Whether `info` is of now. Older facts are used only where a read notices that
            the file has changed since.
    """
    if not is_remote(path):
        return LocalFile(path)
    known = {} if info is None else {path: info}
    (file,) = _storages().open([path], access, known, is_current=is_current)
    return file


def open_files(
    paths: Sequence[str],
    access: Access = DEFAULT_ACCESS,
    known: Mapping[str, RemoteInfo] | None = None,
) -> list[FileSource]:
    """Open several files; storages are asked at once for all of theirs that are not known."""
    remote = [*filter(is_remote, paths)]
    found = iter(_storages().open(remote, access, known or {}, is_current=True) if remote else ())
    return [next(found) if is_remote(path) else LocalFile(path) for path in paths]


def open_in_turn(
    paths: Iterable[str], access: Access, known: Mapping[str, RemoteInfo] | None = None
) -> Callable[[str], FileSource]:
    """A function that opens the files of a stream, each to be read from front to back; remote ones are read
    ahead, as far as the next files.

    Args:
        paths: In the order in which they will most likely be opened.
        access: How they are reached.
        known: Answers of storages about them, where these are known.
    """
    open_remote: Callable[[str], FileSource] | None = None

    def open_next(path: str) -> FileSource:
        nonlocal open_remote
        if not is_remote(path):
            return LocalFile(path)
        if open_remote is None:
            open_remote = _storages().open_in_turn(filter(is_remote, paths), access, known or {})
        return open_remote(path)

    return open_next
