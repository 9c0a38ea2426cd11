"""Files of storages: ranges of them, of many files at once; what comes next, also of the next files,
under way before it is needed; and whole blocks in memory.
"""

from __future__ import annotations

import errno
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from crc32c import crc32c

from torch_tfrecord.errors import os_error
from torch_tfrecord.files import Access, FileSource, RemoteInfo
from torch_tfrecord.per_process import PerProcess, ProcessCache
from torch_tfrecord.remote.disk_cache import DiskCache
from torch_tfrecord.remote.store import FileRange, RemotePart, Store
from torch_tfrecord.remote.transfers import (
    LARGEST_PIECE,
    Job,
    Started,
    Transfer,
    is_known,
)
from torch_tfrecord.shown import without_secrets

__all__ = ["BlockMemory", "FilesAhead", "RemoteFile", "begin_opening"]

# Two ranges with at most so many bytes between them become one: a request takes as much processor
# time as the bytes.
_GAP_BYTES = 1 << 18
_FINGERPRINT_BYTES = 4096

_MOST_BYTES = 1 << 26  # under way, or waiting to be read
_FIRST_BYTES = 1 << 22
_SMALL_PIECE, _LARGE_PIECE = 1 << 20, 1 << 22
_PIECES = 32  # that the window has, where they are not smaller or larger than these
_MOST_FILES = 64  # opened ahead: many small ones fit in the window
# two windows of a block shuffle: in one are the records, the next is on its way
_MOST_BLOCK_BYTES = 1 << 29


_Range: TypeAlias = "tuple[FileSource, int, int, int, int]"


def _read_together(ranges: Sequence[_Range], buffer: memoryview) -> None:
    """Ranges of any files, by requests at once; see `FileSource.together`."""
    parts, starts, access = list[FileRange](), list[int](), Access.DEFAULT
    for file, _, begin, end, start in ranges:
        if isinstance(file, RemoteFile):
            parts.append(FileRange(file.part, begin, end))
            starts.append(start)
            access = file.access
    Started(parts, access, (starts, buffer)).answers()


class RemoteFile(FileSource):
    """A file of a storage, as it was when it was opened: what changes afterwards is an error, if
    there are ETags.

    Args:
        path: With its scheme.
        access: How it is reached.
        info: The storage's answer about it.

    Attributes:
        num_forgotten: How often the cache dropped something damaged: what was read before may be
            wrong.

    Raises:
        OSError: it cannot be opened; always with the path.
        RemoteError: the storage does not answer as it should.
    """

    chunk_bytes = 8 << 20  # a request costs tens of milliseconds
    max_gap_bytes = _GAP_BYTES

    def __init__(self, path: str, access: Access, info: RemoteInfo) -> None:
        self.path, self.access, self._info = path, access, info
        if info.is_folder:
            raise os_error(errno.EISDIR, path)
        if info.size is None:
            text = "expected a file whose size the storage tells, got none"
            raise OSError(errno.ESPIPE, text, without_secrets(path))
        self.size = self.file_size = info.size
        self.mtime_ns, self.etag = info.mtime_ns, info.etag
        self.part = RemotePart(path, info.size, info.etag, info.mtime_ns)
        self.together, self.num_forgotten = _read_together, 0
        if access.cache is not None:
            self.max_gap_bytes = 0  # the bytes between two pieces may be there already

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end of the file."""
        end = min(offset + num_bytes, self.file_size)
        if end <= offset:
            return b""
        (data,) = Started([FileRange(self.part, offset, end)], self.access).answers()
        return bytes(data)

    def forget(self, begin: int, end: int) -> bool:
        """Drop what the cache has of a range whose records are damaged; see `FileSource`."""
        wanted = FileRange(self.part, max(begin, 0), min(end, self.file_size))
        cache = self.access.cache
        # A file without a version was never kept.
        found = isinstance(cache, DiskCache) and is_known(wanted) and cache.forget([wanted])
        self.num_forgotten += found
        return found

    def ahead(self, last: int | None = None) -> FileSource:
        """See `FileSource`."""
        file = AheadFile(self.path, self.access, self._info)
        file.last = self.file_size if last is None else last
        return FilesAhead([], self.access, {}).adopt(file)

    def fingerprint(self) -> int:
        """See the function `fingerprint`; both parts are read at once."""
        size, most = self.file_size, _FINGERPRINT_BYTES
        ranges = [
            FileRange(self.part, 0, min(most, size)),
            FileRange(self.part, max(size - most, 0), size),
        ]
        # Not out of the cache: it shows changes that a storage's time may not.
        first, last = Started(ranges if size else [], self.access.without_cache()).answers() or (
            b"",
            b"",
        )
        return int(crc32c(last, crc32c(first)))


def begin_opening(
    kind: type[RemoteFile], path: str, access: Access, info: RemoteInfo | None = None
) -> Transfer:
    """Begin to open a file, for which its storage is asked where its answer is not known."""

    def call(store: Store, name: str) -> RemoteFile:
        return kind(path, access, info or store.info(name))

    return Transfer([Job(path, "its size", 0, call)], access)


class AheadFile(RemoteFile):
    """A remote file whose next pieces are asked for while others are read. Safe from threads.

    Args:
        path, access, info: As of `RemoteFile`.

    Attributes:
        files: Says how much; None for a file that is not open yet, of which nothing is read.
        last: Where reading ends: nothing after it is asked for.
    """

    chunk_bytes = 1 << 20  # its pieces come while the one before is used

    def __init__(self, path: str, access: Access, info: RemoteInfo) -> None:
        super().__init__(path, access, info)
        self.files: FilesAhead | None = None
        self._pieces: deque[_PendingRange] = deque()  # in their order
        self._offset = 0  # the last read's
        self._end = 0  # the pieces'
        self.last = self.file_size  # up to which it is read
        self._lock = threading.Lock()

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end of the file."""
        return b"".join(self._parts(num_bytes, offset))

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """See `FileSource`."""
        done = 0
        for part in self._parts(len(buffer), offset):
            buffer[done : done + len(part)] = part
            done += len(part)
        return done

    def forget(self, begin: int, end: int) -> bool:
        """See `FileSource`."""
        found = super().forget(begin, end)
        if found:
            with self._lock:
                self._pieces.clear()
                self._end = begin
        return found

    def extend(self, num_bytes: int, piece_bytes: int) -> int:
        """Ask for pieces up to so many bytes after the last read; how many bytes are asked for
        now.
        """
        end = min(self._offset + num_bytes, self.last)
        while self._end < end:
            piece = _PendingRange(self, self._end, min(self._end + piece_bytes, self.last))
            self._pieces.append(piece)
            self._end = piece.end
        return max(0, self._end - self._offset)

    def _parts(self, num_bytes: int, offset: int) -> list[memoryview]:
        end = min(offset + num_bytes, self.file_size)
        if end <= offset:
            return []
        with self._lock:
            self._go_to(offset)
            if self.files is not None:
                self.files.top_up()
            # what is left of it where nothing is asked for ahead
            self.extend(end - offset, end - offset)
            return [
                piece.data()[max(offset - piece.begin, 0) : end - piece.begin]
                for piece in self._pieces
                if piece.begin < end
            ]

    def _go_to(self, offset: int) -> None:
        """Drop the bytes before an offset; all of them where reading jumps."""
        if offset > self._end or offset < (self._pieces[0].begin if self._pieces else self._end):
            self._pieces.clear()
            self._end = offset
            if self.files is not None and offset:
                self.files.shrink()
        self._offset = offset
        while self._pieces and self._pieces[0].end <= offset:
            self._pieces.popleft()
            if self.files is not None:
                self.files.grow()


class FilesAhead:
    """Opens the files of a stream in their order, the next ones ahead of their turn.

    The window grows with what is read, so that who reads little asks for little.

    Args:
        paths, access, infos: See `Access.open_in_turn`; all of them remote.
    """

    def __init__(
        self, paths: Iterable[str], access: Access, infos: Mapping[str, RemoteInfo]
    ) -> None:
        self._access, self._infos, self._left = access, infos, deque(paths)
        self._next: dict[str, Transfer] = {}  # those that are being opened, or are open, in order
        self._open: weakref.WeakSet[AheadFile] = weakref.WeakSet()
        self._window = _FIRST_BYTES
        self._lock = threading.RLock()

    def __call__(self, path: str) -> FileSource:
        """Open a file, in its turn; those before it will not be opened."""
        with self._lock:
            if path not in self._next and path in self._left:
                self._next.clear()
                while self._left.popleft() != path:
                    pass
            while path in self._next and (first := next(iter(self._next))) != path:
                del self._next[first]
            return self.adopt((self._next.pop(path, None) or self._begin(path)).answers()[0])

    def _begin(self, path: str) -> Transfer:
        return begin_opening(AheadFile, path, self._access, self._infos.get(path))

    def adopt(self, file: AheadFile) -> AheadFile:
        """Say of a file how much of it is read ahead."""
        file.files = self
        self._open.add(file)
        return file

    def grow(self) -> None:
        """A piece was read to its end."""
        self._window = min(max(2 * self._window, _FIRST_BYTES), _MOST_BYTES)

    def shrink(self) -> None:
        """A file is read by jumps."""
        self._window = 0

    def top_up(self) -> None:
        """Ask for what comes next."""
        with self._lock:
            opened = list(self._open)
            # Many pieces keep many connections busy; small ones cost more requests than they win.
            piece_bytes = max(_SMALL_PIECE, min(_LARGE_PIECE, self._window // _PIECES))
            left = self._window
            for file in opened:
                left -= file.extend(self._window // len(opened), piece_bytes)
            while left > 0 and self._left and len(self._next) < _MOST_FILES:
                path = self._left.popleft()
                self._next[path] = self._begin(path)
            for following in [*self._next.values()]:
                if left <= 0 or not following.is_good:  # an error is raised in the file's turn
                    break
                left -= following.answers()[0].extend(left, piece_bytes)


class _PendingRange(Started):
    """A range of a remote file that was asked for, ahead of its use: nobody waits for it yet. Safe
    from threads.

    Attributes:
        begin, end: Its first byte, and the one after its last.
    """

    piece_bytes = LARGEST_PIECE

    def __init__(self, file: RemoteFile, begin: int, end: int) -> None:
        super().__init__([FileRange(file.part, begin, end)], file.access)
        self.begin, self.end = begin, end
        self._data: memoryview | None = None

    def __len__(self) -> int:
        return self.end - self.begin

    def data(self) -> memoryview:
        """Its bytes; waits for them."""
        data = self._data
        if data is None:  # each of several threads that wait gets them
            data = self._data = memoryview(self.answers()[0])
        return data


class BlockMemory:
    """Reads from blocks of remote files in memory, for orders that read nearly in sequence: each block is
    fetched once, as a whole.

    Safe from threads, which wait for the same request where they want the same block. Empty after a
    fork, and in a pickled copy.

    Args:
        extent_of: Begin and end of the block around a byte of a file: called with the number of the
            file, the byte and `block_bytes`.
        block_bytes: As of the order's blocks, so that no other block's bytes are fetched.
        most_bytes: That are kept; those used last.
    """

    def __init__(
        self,
        extent_of: Callable[[int, int, int], tuple[int, int]],
        block_bytes: int,
        most_bytes: int = _MOST_BLOCK_BYTES,
    ) -> None:
        self._extent_of, self._block_bytes = extent_of, block_bytes
        self._blocks: ProcessCache[_PendingRange] = ProcessCache(most_bytes, len)
        self._turn = PerProcess(threading.Lock)

    def __call__(self, ranges: Sequence[_Range], buffer: memoryview) -> None:
        """Read ranges to their places in a buffer."""
        wanted = []
        for file, number, begin, end, start in ranges:
            at = begin
            while at < end and isinstance(file, RemoteFile):
                block = self._block(file, number, at)
                part_end = min(end, block.end)
                wanted.append((block, at, part_end, start + at - begin))
                at = part_end
        for block, begin, end, start in wanted:  # all of them are under way
            data = block.data()
            buffer[start : start + end - begin] = data[begin - block.begin : end - block.begin]

    def _block(self, file: RemoteFile, number: int, offset: int) -> _PendingRange:
        """The block of a byte; asked for where it is not here."""
        key = number, offset // self._block_bytes, file.num_forgotten

        def begin(_: object) -> _PendingRange:
            return _PendingRange(file, *self._extent_of(number, offset, self._block_bytes))

        with self._turn.get():
            block = self._blocks.find(key, begin)
            if block.has_failed or not block.begin <= offset < block.end:
                self._blocks.drop(key)
                block = self._blocks.find(key, begin)
            return block
