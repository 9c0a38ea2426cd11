"""Blocks of remote files in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch_tfrecord.files import SourceRange
from torch_tfrecord.per_process import PerProcess
from torch_tfrecord.remote.remote_file import PendingRange, RemoteFile

__all__ = ["BlockMemory"]

# two windows of a block shuffle: in one are the records, the next is on its way
_MOST_BLOCK_BYTES = 1 << 29


class BlockMemory:
    """Blocks of remote files in memory, for orders that read nearly in sequence: each block is
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
        self._extent_of, self._block_bytes, self._most_bytes = extent_of, block_bytes, most_bytes
        self._kept = PerProcess(_Blocks)

    def read(self, ranges: Sequence[SourceRange], buffer: memoryview) -> None:
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

    def _block(self, file: RemoteFile, number: int, offset: int) -> PendingRange:
        """The block of a byte; asked for where it is not here."""
        kept = self._kept.get()
        key = number, offset // self._block_bytes, file.num_forgotten
        with kept.lock:
            block = kept.blocks.pop(key, None)
            if block is None or block.has_failed or not block.begin <= offset < block.end:
                kept.num_bytes -= 0 if block is None else block.end - block.begin
                block = PendingRange(file, *self._extent_of(number, offset, self._block_bytes))
                kept.num_bytes += block.end - block.begin
            kept.blocks[key] = block
            while kept.num_bytes > self._most_bytes and len(kept.blocks) > 1:
                _, dropped = kept.blocks.popitem(last=False)
                kept.num_bytes -= dropped.end - dropped.begin
            return block


class _Blocks:
    """Those of one process, the one used last behind the others."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks: OrderedDict[tuple[int, int, int], PendingRange] = OrderedDict()
        self.num_bytes = 0
