"""Remote files read from front to back: what comes next, also of the next files, is under way
before it is needed.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch_tfrecord.files.access import Access
from torch_tfrecord.files.cached_ranges import Started, start
from torch_tfrecord.files.engine import Transfer
from torch_tfrecord.files.file_source import FileSource
from torch_tfrecord.files.remote_file import RemoteFile
from torch_tfrecord.files.storage import is_remote, open_file
from torch_tfrecord.files.store import RemoteInfo
from torch_tfrecord.files.transfers import FileRange, start_info

__all__ = ["AheadFile", "FilesAhead", "read_ahead"]

_MOST_BYTES = 1 << 26  # under way, or waiting to be read
_FIRST_BYTES = 1 << 22
_SMALL_PIECE, _LARGE_PIECE = 1 << 20, 1 << 22
_PIECES = 32  # that the window has, where they are not smaller or larger than these
_MOST_FILES = 64  # opened ahead: many small ones fit in the window


class _Piece(NamedTuple):
    """A range that was asked for."""

    begin: int
    end: int
    transfer: Started


class AheadFile(FileSource):
    """A remote file whose next pieces are asked for while others are read. Safe from threads.

    Args:
        file: The file.
        ahead: Says how much; None for a file that is not open yet, of which nothing is read.
    """

    chunk_bytes = 1 << 20  # its pieces come while the one before is used
    max_gap_bytes = RemoteFile.max_gap_bytes

    def __init__(self, file: RemoteFile, ahead: FilesAhead | None = None) -> None:
        self.path, self.file = file.path, file
        self.size = self.file_size = file.file_size
        self.mtime_ns, self.etag = file.mtime_ns, file.etag
        self.ahead = ahead
        self._pieces: deque[_Piece] = deque()  # one behind the other
        self._arrived: dict[int, memoryview] = {}  # by first byte
        self._offset = 0  # of the last read
        self._end = 0  # of the pieces
        self._lock = threading.Lock()

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end of the file."""
        return b"".join(self._parts(num_bytes, offset))

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a writable buffer of bytes from `offset` on; how many came, fewer only at the end of
        the file.
        """
        done = 0
        for part in self._parts(len(buffer), offset):
            buffer[done : done + len(part)] = part
            done += len(part)
        return done

    def fingerprint(self) -> int:
        """See `file_source.fingerprint`."""
        return self.file.fingerprint()

    def forget(self, begin: int, end: int) -> bool:
        """See `FileSource`."""
        found = self.file.forget(begin, end)
        if found:
            with self._lock:
                self._pieces.clear()
                self._arrived.clear()
                self._end = begin
        return found

    def extend(self, num_bytes: int, piece_bytes: int) -> int:
        """Ask for pieces up to so many bytes behind the last read; how many bytes are asked for
        now.
        """
        end = min(self._offset + num_bytes, self.file_size)
        while self._end < end:
            piece_end = min(self._end + piece_bytes, self.file_size)
            transfer = start([FileRange(self.file.part, self._end, piece_end)], self.file.access)
            self._pieces.append(_Piece(self._end, piece_end, transfer))
            self._end = piece_end
        return max(0, self._end - self._offset)

    def _parts(self, num_bytes: int, offset: int) -> list[memoryview]:
        end = min(offset + num_bytes, self.file_size)
        if end <= offset:
            return []
        with self._lock:
            self._go_to(offset, end - offset)
            if self.ahead is not None:
                self.ahead.top_up()
            # what is left of it where nothing is asked for ahead
            self.extend(end - offset, end - offset)
            parts = []
            for piece in self._pieces:
                if piece.begin >= end:
                    break
                data = self._data(piece)
                parts.append(data[max(offset - piece.begin, 0) : end - piece.begin])
            return parts

    def _go_to(self, offset: int, num_bytes: int) -> None:
        """Drop what lies before an offset; where nothing leads there, all."""
        if offset > self._end or offset < (self._pieces[0].begin if self._pieces else self._end):
            self._pieces.clear()
            self._arrived.clear()
            self._end = offset
            if self.ahead is not None and offset:
                self.ahead.shrink()
        self._offset = offset
        while self._pieces and self._pieces[0].end <= offset:
            self._arrived.pop(self._pieces.popleft().begin, None)
            if self.ahead is not None:
                self.ahead.grow()

    def _data(self, piece: _Piece) -> memoryview:
        data = self._arrived.get(piece.begin)
        if data is None:
            (answer,) = piece.transfer.answers()
            data = self._arrived[piece.begin] = memoryview(answer)
        return data


class FilesAhead:
    """Opens the files of a stream in their order, the next ones ahead of their turn.

    The window grows with what is read, so that who reads little asks for little.

    Args:
        paths: In the order in which they will most likely be opened.
        access: How they are reached.
        infos: What storages say of them, where that is known.
    """

    def __init__(
        self, paths: Iterable[str], access: Access, infos: Mapping[str, RemoteInfo] | None = None
    ) -> None:
        self._paths: Iterable[str] | None = paths  # gone through when a remote file is opened
        self._access, self._infos = access, infos or {}
        self._left: deque[str] = deque()
        self._asked: dict[str, Transfer | RemoteInfo] = {}  # in order
        self._ready: dict[str, AheadFile] = {}  # opened ahead of their turn, in order
        self._open: weakref.WeakSet[AheadFile] = weakref.WeakSet()
        self._window = _FIRST_BYTES
        self._lock = threading.RLock()

    def open(self, path: str) -> FileSource:
        """Open a file, in its turn."""
        if not is_remote(path):
            return open_file(path)
        with self._lock:
            if self._paths is not None:
                self._left, self._paths = deque(filter(is_remote, self._paths)), None
            return self.adopt(
                self._ready_file(path)
                or AheadFile(RemoteFile(path, self._access, self._info(path)))
            )

    def _ready_file(self, path: str) -> AheadFile | None:
        """The file if it is open already; those before it will not be opened."""
        if path in self._ready:
            while next(iter(self._ready)) != path:
                del self._ready[next(iter(self._ready))]
        elif path in self._asked or path in self._left:
            self._ready.clear()
        return self._ready.pop(path, None)

    def _info(self, path: str) -> RemoteInfo | None:
        """What its storage says of a file, where that was asked; those before it will not be
        opened.
        """
        if path in self._asked:
            while next(iter(self._asked)) != path:
                del self._asked[next(iter(self._asked))]
        elif path in self._left:
            self._asked.clear()
            while self._left.popleft() != path:
                pass
        found = self._asked.pop(path, None) or self._infos.get(path)
        return found.answers()[0] if isinstance(found, Transfer) else found

    def adopt(self, file: AheadFile) -> AheadFile:
        """Say of a file how much of it is read ahead."""
        file.ahead = self
        self._open.add(file)
        return file

    def _ask(self) -> None:
        path = self._left.popleft()
        self._asked[path] = self._infos.get(path) or start_info(path, self._access)

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
            piece_bytes = max(_SMALL_PIECE, min(_LARGE_PIECE, self._window // _PIECES))
            left = self._window
            for file in opened:
                left -= file.extend(self._window // len(opened), piece_bytes)
            for file in self._ready.values():
                left -= file.extend(max(left, 0), piece_bytes)
            while (
                left > 0
                and len(self._ready) < _MOST_FILES
                and (following := self._next()) is not None
            ):
                left -= following.extend(left, piece_bytes)

    def _next(self) -> AheadFile | None:
        """The next file, opened ahead; None where its storage has not told its size yet."""
        while self._left and len(self._asked) < _PIECES:
            self._ask()
        path = next(iter(self._asked), None)
        if path is None:
            return None
        asked = self._asked[path]
        if isinstance(asked, Transfer) and not asked.is_good:
            return None
        info = asked.answers()[0] if isinstance(asked, Transfer) else asked
        del self._asked[path]
        with contextlib.suppress(OSError):  # it is said in the file's turn
            self._ready[path] = AheadFile(RemoteFile(path, self._access, info))
        return self._ready.get(path)


def read_ahead(file: FileSource) -> FileSource:
    """The same file, to be read from front to back."""
    if not isinstance(file, RemoteFile):
        return file
    return FilesAhead([], file.access).adopt(AheadFile(file))
