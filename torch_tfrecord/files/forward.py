"""Streams that can only be read forward, read by offset."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch_tfrecord.files.storage import FileSource

__all__ = ["SequentialSource"]

# A record of a stream may be this long, as its length cannot be checked against the file's size.
_MAX_RECORD_BYTES = 1 << 29


class SequentialSource(FileSource, ABC):
    """Something that can only be read forward, read by offset.

    Keeps bytes from the last requested offset on; an earlier offset starts over, if possible.
    Memory is bounded by the bytes that really exist, whatever is requested. Safe to call from
    threads.

    Attributes:
        most_bytes: About how many bytes it may keep.
    """

    def __init__(self, path: str, most_record_bytes: int = 0, begin: int = 0) -> None:
        self.path = path
        self.size = None
        self.max_record_bytes = max(_MAX_RECORD_BYTES, most_record_bytes)
        self.chunk_bytes = 1 << 19
        self._lock = threading.Lock()
        self.most_bytes = 1 << 20
        self._kept = bytearray()
        self._begin = self._offset = begin  # offset of the first kept byte

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end of the readable stream."""
        with self._lock:
            begin = self._advance(num_bytes, offset)
            with memoryview(self._kept) as kept:
                return bytes(kept[begin : begin + num_bytes])

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a writable buffer of bytes from `offset` on; how many came, as of `read`."""
        with self._lock:
            begin = self._advance(len(buffer), offset)
            with memoryview(self._kept) as kept:
                got = min(len(buffer), max(len(kept) - begin, 0))
                buffer[:got] = kept[begin : begin + got]
                return got

    def copy_ranges(self, ranges: Sequence[tuple[int, int, int]], buffer: memoryview) -> bool:
        """Fill a writable buffer with ascending ranges, all of which are kept at once: first byte,
        end, and place in the buffer; whether all came.
        """
        begin, end = ranges[0][0], ranges[-1][1]
        with self._lock:
            first = self._advance(end - begin, begin) - begin
            with memoryview(self._kept) as kept:
                if first + end > len(kept):
                    return False
                for begin, end, start in ranges:
                    buffer[start : start + end - begin] = kept[first + begin : first + end]
                return True

    def _advance(self, num_bytes: int, offset: int) -> int:
        """Read up to a range; return where it begins among the kept bytes."""
        if offset < self._offset:
            self._restart()
            self._kept, self._offset = bytearray(), self._begin
        while self._offset + len(self._kept) < offset + num_bytes and (piece := self._more()):
            self._kept += piece
            self._drop(offset)
        self._drop(offset)
        return max(offset - self._offset, 0)

    def _drop(self, offset: int) -> None:
        """Drop bytes before an offset, unless they are to be kept."""
        if self.keep_from is not None:
            offset = min(offset, self.keep_from)
        excess = min(offset - self.kept_before - self._offset, len(self._kept))
        if excess > 0:
            del self._kept[:excess]  # cheap: only moves the start of the bytearray
            self._offset += excess

    @abstractmethod
    def _more(self) -> bytes:
        """The next piece of the stream, of bounded size; empty at the end."""

    @abstractmethod
    def _restart(self) -> None:
        """Go back to the beginning."""
