"""Blocks of remote files in memory, for orders that read nearly in sequence: each block is fetched
once, as a whole.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence

from torch_tfrecord.files.cached_ranges import begin_range
from torch_tfrecord.files.read_plan import ReadPlan
from torch_tfrecord.files.remote_file import RemoteFile
from torch_tfrecord.files.transfers import FileRange
from torch_tfrecord.records.record_table import RecordTable

__all__ = ["BlockMemory"]

# two windows of a block shuffle: in one are the records, the next is on its way
_MOST_BYTES = 1 << 29


class BlockMemory:
    """Reads ranges of remote files by way of whole blocks: the records that begin in the same bytes
    of a file.

    Safe from threads, which wait for the same request where they want the same block. Empty after a
    fork, and in a pickled copy.

    Args:
        table: Where the records lie.
        block_bytes: As of the order's blocks, so that no other block's bytes are fetched.
        most_bytes: That are kept; those used last.
    """

    def __init__(self, table: RecordTable, block_bytes: int, most_bytes: int = _MOST_BYTES) -> None:
        self._table, self._block_bytes, self._most_bytes = table, block_bytes, most_bytes
        self._state = _State()

    def read(
        self, parts: Sequence[tuple[RemoteFile, slice]], plan: ReadPlan, buffer: memoryview
    ) -> None:
        """As `read_remote_ranges`."""
        wanted: list[tuple[_Block, int, int, int]] = []
        for file, part in parts:
            number = int(plan.files[part.start])
            ranges = (
                plan.begins[part].tolist(),
                plan.sizes[part].tolist(),
                plan.starts[part].tolist(),
            )
            for begin, size, start in zip(*ranges, strict=True):
                wanted += self._blocks(file, number, begin, begin + size, start)
        for block, begin, end, start in wanted:  # all of them are under way
            buffer[start : start + end - begin] = block.data()[
                begin - block.begin : end - block.begin
            ]

    def _blocks(
        self, file: RemoteFile, number: int, begin: int, end: int, start: int
    ) -> list[tuple[_Block, int, int, int]]:
        """The blocks of a range, each with the part that lies in it and where that goes."""
        found = []
        while begin < end:
            block = self._block(file, number, begin)
            part_end = min(end, block.end)
            found.append((block, begin, part_end, start))
            start += part_end - begin
            begin = part_end
        return found

    def _block(self, file: RemoteFile, number: int, offset: int) -> _Block:
        """The block that a record at an offset belongs to; asked for where it is not here."""
        state = self._state
        if state.pid != os.getpid():
            state = self._state = _State()
        key = number, offset // self._block_bytes, file.num_forgotten
        with state.lock:
            block = state.blocks.get(key)
            if block is None or block.has_failed or not block.begin <= offset < block.end:
                block = _Block(file, *self._table.block_extent(number, offset, self._block_bytes))
                self._add(state, key, block)
            state.blocks.move_to_end(key)
            return block

    def _add(self, state: _State, key: tuple[int, int, int], block: _Block) -> None:
        before = state.blocks.pop(key, None)
        state.num_bytes += block.end - block.begin - (before.end - before.begin if before else 0)
        state.blocks[key] = block
        while state.num_bytes > self._most_bytes and len(state.blocks) > 1:
            _, dropped = state.blocks.popitem(last=False)
            state.num_bytes -= dropped.end - dropped.begin

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_state": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._state = _State()


class _State:
    """What belongs to one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.blocks: OrderedDict[tuple[int, int, int], _Block] = OrderedDict()
        self.num_bytes = 0


class _Block:
    """One block, under way or here."""

    def __init__(self, file: RemoteFile, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self.has_failed = False
        self._lock = threading.Lock()
        self._transfer = begin_range(FileRange(file.part, begin, end), file.access)
        self._data: memoryview | None = None

    def data(self) -> memoryview:
        """Its bytes; waits for them."""
        with self._lock:
            if self._data is None:
                try:
                    answers = self._transfer.answers()
                except BaseException:
                    self.has_failed = True
                    raise
                self._data = memoryview(answers[0] if len(answers) == 1 else b"".join(answers))
            return self._data
