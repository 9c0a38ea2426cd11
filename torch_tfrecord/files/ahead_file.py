"""Remote files read from front to back: what comes next, also of the next files, is under way
before it is needed.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping

from torch_tfrecord.files.access import Access
from torch_tfrecord.files.read import PendingRange
from torch_tfrecord.files.storage import FileSource, RemoteFile, is_remote, open_file
from torch_tfrecord.remote import RemoteInfo, Transfer, start_info

__all__ = ["AheadFile", "FilesAhead", "read_ahead"]

_MOST_BYTES = 1 << 26  # under way, or waiting to be read
_FIRST_BYTES = 1 << 22
_SMALL_PIECE, _LARGE_PIECE = 1 << 20, 1 << 22
_PIECES = 32  # that the window has, where they are not smaller or larger than these
_MOST_FILES = 64  # opened ahead: many small ones fit in the window


class AheadFile(RemoteFile):
    """A remote file whose next pieces are asked for while others are read. Safe from threads.

    Args:
        path, access, info: As of `RemoteFile`.

    Attributes:
        ahead: Says how much; None for a file that is not open yet, of which nothing is read.
        last: Where reading ends: nothing behind it is asked for.
    """

    chunk_bytes = 1 << 20  # its pieces come while the one before is used

    def __init__(self, path: str, access: Access, info: RemoteInfo | None = None) -> None:
        super().__init__(path, access, info)
        self.ahead: FilesAhead | None = None
        self._pieces: deque[PendingRange] = deque()  # one behind the other
        self._offset = 0  # of the last read
        self._end = 0  # of the pieces
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
        """Ask for pieces up to so many bytes behind the last read; how many bytes are asked for
        now.
        """
        end = min(self._offset + num_bytes, self.last)
        while self._end < end:
            piece = PendingRange(self, self._end, min(self._end + piece_bytes, self.last))
            self._pieces.append(piece)
            self._end = piece.end
        return max(0, self._end - self._offset)

    def _parts(self, num_bytes: int, offset: int) -> list[memoryview]:
        end = min(offset + num_bytes, self.file_size)
        if end <= offset:
            return []
        with self._lock:
            self._go_to(offset)
            if self.ahead is not None:
                self.ahead.top_up()
            # what is left of it where nothing is asked for ahead
            self.extend(end - offset, end - offset)
            return [
                piece.data()[max(offset - piece.begin, 0) : end - piece.begin]
                for piece in self._pieces
                if piece.begin < end
            ]

    def _go_to(self, offset: int) -> None:
        """Drop what lies before an offset; where nothing leads there, all."""
        if offset > self._end or offset < (self._pieces[0].begin if self._pieces else self._end):
            self._pieces.clear()
            self._end = offset
            if self.ahead is not None and offset:
                self.ahead.shrink()
        self._offset = offset
        while self._pieces and self._pieces[0].end <= offset:
            self._pieces.popleft()
            if self.ahead is not None:
                self.ahead.grow()


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
        # those whose size was asked for, in order; then open
        self._next: dict[str, Transfer | RemoteInfo | AheadFile] = {}
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
            return self.adopt(self._open_file(path, self._take(path)))

    def _take(self, path: str) -> Transfer | RemoteInfo | AheadFile | None:
        """What is known of a file; those before it will not be opened."""
        if path in self._next:
            while next(iter(self._next)) != path:
                del self._next[next(iter(self._next))]
            return self._next.pop(path)
        if path in self._left:
            self._next.clear()
            while self._left.popleft() != path:
                pass
        return self._infos.get(path)

    def _open_file(self, path: str, known: Transfer | RemoteInfo | AheadFile | None) -> AheadFile:
        if isinstance(known, AheadFile):
            return known
        info = known.answers()[0] if isinstance(known, Transfer) else known
        return AheadFile(path, self._access, info)

    def adopt(self, file: AheadFile) -> AheadFile:
        """Say of a file how much of it is read ahead."""
        file.ahead = self
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
            if left > 0:
                self._ask()
            for path in [*self._next][:_MOST_FILES]:
                following = self._open_ahead(path) if left > 0 else None
                if following is None:
                    break
                left -= following.extend(left, piece_bytes)

    def _ask(self) -> None:
        """Ask for the sizes of the next files."""
        waiting = sum(not isinstance(known, AheadFile) for known in self._next.values())
        for _ in range(min(_PIECES - waiting, len(self._left))):
            path = self._left.popleft()
            self._next[path] = self._infos.get(path) or start_info(path, self._access)

    def _open_ahead(self, path: str) -> AheadFile | None:
        """A next file, open; None where its storage has not told its size yet."""
        known = self._next[path]
        if isinstance(known, Transfer) and not known.is_good:
            return None
        try:
            found = self._next[path] = self._open_file(path, known)
        except OSError:  # it is said in the file's turn
            del self._next[path]
            return None
        return found


def read_ahead(file: FileSource, last: int | None = None) -> FileSource:
    """The same file, to be read from front to back; nothing behind its byte `last`."""
    if not isinstance(file, RemoteFile):
        return file
    info = RemoteInfo(file.file_size, file.etag, file.mtime_ns)
    ahead = AheadFile(file.path, file.access, info)
    ahead.last = file.file_size if last is None else last
    return FilesAhead([], file.access).adopt(ahead)
