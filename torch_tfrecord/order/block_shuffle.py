"""Shuffles that read nearly in sequence: blocks of neighbouring records in random order, mixed
within windows.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.order.orders import Permutation

__all__ = ["BlockShuffle", "FileShuffle", "Lanes", "block_starts", "plan_lanes"]

_Positions = npt.NDArray[np.int64]

WINDOW_BYTES = 32 << 20  # decompressed; a process that reads holds two windows, at most four
_MOST_LANES = 64  # files read side by side, since each needs its own decompressor
_RECORDS_A_RUN = 4


def block_starts(
    files: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], block_bytes: int
) -> _Positions:
    """The first position of each block: records of one file that begin in the same `block_bytes`
    bytes of it.

    Args:
        files: int64 [N]: number of each record's file.
        offsets: int64 [N]: first byte of each record in its file.
        block_bytes: Bytes of a block; at least 1. A longer record is a block of its own.

    Returns:
        int64 [number of blocks], ascending, the first one 0; empty for N = 0.

    Example:
        >>> block_starts(np.array([0, 0, 0, 1]), np.array([0, 40, 120, 0]), 100).tolist()
        [0, 2, 3]
    """
    blocks = offsets // block_bytes
    new = np.ones(len(files), bool)
    new[1:] = (files[1:] != files[:-1]) | (blocks[1:] != blocks[:-1])
    return np.flatnonzero(new).astype(np.int64)


class BlockShuffle:
    """All positions in an order that is a pure function of the blocks and the seeds; memory is
    O(number of blocks).

    The blocks are shuffled. Every `window_blocks` consecutive ones form a window, and the positions
    of a window are shuffled: records that are neighbours on disk are read within one window.

    Args:
        starts: int64: first position of each block, ascending, the first one 0; see `block_starts`.
        num_positions: End of the last block.
        seeds: Integers of any size.
        window_blocks: Blocks in a window; at least 1.

    Example:
        >>> order = BlockShuffle(np.array([0, 3, 6, 9]), 12, 1, window_blocks=2)
        >>> order.positions(np.arange(12)).tolist()
        [5, 8, 3, 7, 4, 6, 11, 10, 9, 1, 0, 2]
    """

    def __init__(
        self, starts: _Positions, num_positions: int, *seeds: int, window_blocks: int
    ) -> None:
        order = Permutation(len(starts), *seeds, 0).positions(np.arange(len(starts)))
        last_blocks = np.arange(window_blocks - 1, len(starts) + window_blocks - 1, window_blocks)
        self._set_up(starts, num_positions, seeds, order, np.minimum(last_blocks, len(starts) - 1))

    def _set_up(
        self,
        starts: _Positions,
        num_positions: int,
        seeds: tuple[int, ...],
        order: _Positions,
        last_blocks: _Positions,
    ) -> None:
        """Set the order of the blocks, and the number of each window's last block in that order."""
        self._seeds = seeds
        sizes = np.diff(starts, append=num_positions)[order]
        self._starts = starts[order]
        self._ends = np.cumsum(sizes)
        self._skipped = self._starts - (
            self._ends - sizes
        )  # position minus place, constant within a block
        self._window_ends = self._ends[last_blocks]
        self._last_window: tuple[int, Permutation] | None = None

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def positions(self, places: _Positions) -> _Positions:
        """The positions at these places, which must be from 0 to len - 1 (not checked): int64, of
        the same shape.
        """
        windows = np.searchsorted(self._window_ends, places, side="right")
        found = np.empty_like(places)
        for window in np.unique(windows).tolist():
            here = windows == window
            found[here] = self._in_window(window, places[here])
        return found

    def _in_window(self, window: int, places: _Positions) -> _Positions:
        begin = int(self._window_ends[window - 1]) if window else 0
        mixed = begin + self._permutation(window, begin).positions(places - begin)
        blocks = np.searchsorted(self._ends, mixed, side="right")
        positions: _Positions = mixed + self._skipped[blocks]
        return positions

    def _permutation(self, window: int, begin: int) -> Permutation:
        last = self._last_window
        if last is None or last[0] != window:
            size = int(self._window_ends[window]) - begin
            last = self._last_window = (window, Permutation(size, *self._seeds, window + 1))
        return last[1]


class Lanes(NamedTuple):
    """How compressed files are read side by side.

    Attributes:
        number: How many files at a time.
        run_bytes: Decompressed bytes of each file in one window.
        kept_bytes: Decompressed bytes that a reader keeps of each file: this window and the next.
    """

    number: int
    run_bytes: int
    kept_bytes: int


def plan_lanes(
    num_files: int, num_records: int, num_bytes: int, window_bytes: int | None = None
) -> Lanes:
    """The lanes for these numbers of files, records and decompressed bytes; windows never exceed
    `WINDOW_BYTES`.

    Example:
        >>> plan_lanes(65, 10**6, 10**8, 10**6)  # two rounds, of 33 files and of 32
        Lanes(number=33, run_bytes=30303, kept_bytes=60606)
    """
    window_bytes = WINDOW_BYTES if window_bytes is None else min(window_bytes, WINDOW_BYTES)
    most = max(
        1, min(_MOST_LANES, window_bytes * num_records // max(num_bytes * _RECORDS_A_RUN, 1))
    )
    rounds = max(-(-num_files // most), 1)
    number = max(-(-num_files // rounds), 1)
    if num_bytes <= window_bytes:  # a run is a whole file
        return Lanes(number, num_bytes + 1, num_bytes)
    run_bytes = max(window_bytes // number, 1)
    return Lanes(number, run_bytes, 2 * run_bytes)


class FileShuffle(BlockShuffle):
    """All positions in an order that is a pure function of the blocks and the seeds, and reads each
    file once.

    The files are shuffled, and `num_lanes` of them are read side by side: a window is the next
    block of each, and the positions of a window are shuffled. When a file ends, the next one takes
    its place.

    Args:
        starts: int64: first position of each block, ascending, the first one 0; see `block_starts`.
        num_positions: End of the last block.
        seeds: Integers of any size.
        files: int64: number of each block's file; the blocks of a file are consecutive.
        num_lanes: At least 1.

    Example:
        >>> order = FileShuffle(np.array([0, 3, 6, 9]), 12, 1, files=np.array([0, 0, 1, 2]), num_lanes=2)
        >>> order.positions(np.arange(12)).tolist()
        [11, 8, 9, 7, 10, 6, 2, 1, 0, 5, 4, 3]
    """

    def __init__(
        self, starts: _Positions, num_positions: int, *seeds: int, files: _Positions, num_lanes: int
    ) -> None:
        windows = _windows(files, num_lanes, seeds)
        last_blocks = np.cumsum(np.bincount(windows)) - 1 if len(windows) else windows
        self._set_up(starts, num_positions, seeds, np.argsort(windows, kind="stable"), last_blocks)


def _windows(files: _Positions, num_lanes: int, seeds: tuple[int, ...]) -> _Positions:
    """Number of each block's window."""
    firsts = np.flatnonzero(np.diff(files, prepend=-1))  # of each file
    counts = np.diff(firsts, append=len(files))
    begins = np.zeros(len(counts), np.int64)
    free_from = [0] * num_lanes
    for file in Permutation(len(counts), *seeds, 0).positions(np.arange(len(counts))).tolist():
        begins[file] = free_from[0]
        heapq.heapreplace(free_from, free_from[0] + int(counts[file]))
    moved: npt.NDArray[np.int64] = np.repeat(begins - firsts, counts) + np.arange(len(files))
    return moved
