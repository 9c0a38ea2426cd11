"""A shuffle that reads nearly in sequence: blocks of neighbouring records in random order, mixed within windows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torch_tfrecord.order.permutation import Permutation

__all__ = ["BlockShuffle", "block_starts"]

_Positions = npt.NDArray[np.int64]


def block_starts(files: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], block_bytes: int) -> _Positions:
    """The first position of each block: records of one file that begin in the same `block_bytes` bytes of it.

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
    """All positions in an order that is a pure function of the blocks and the seeds; memory is O(number of blocks).

    The blocks are put in random order. Each `window_blocks` of them that follow each other are a window, and the
    positions of a window are put in random order: records that are neighbours on disk are read within one window.

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

    def __init__(self, starts: _Positions, num_positions: int, *seeds: int, window_blocks: int) -> None:
        order = Permutation(len(starts), *seeds, 0).positions(np.arange(len(starts)))
        last_blocks = np.arange(window_blocks - 1, len(starts) + window_blocks - 1, window_blocks)
        self._set_up(starts, num_positions, seeds, order, np.minimum(last_blocks, len(starts) - 1))

    def _set_up(
        self, starts: _Positions, num_positions: int, seeds: tuple[int, ...], order: _Positions, last_blocks: _Positions
    ) -> None:
        """Take the blocks in an order, and the number in it of each window's last block."""
        self._seeds = seeds
        sizes = np.diff(starts, append=num_positions)[order]
        self._starts = starts[order]
        self._ends = np.cumsum(sizes)
        self._skipped = self._starts - (self._ends - sizes)  # position less place, the same within a block
        self._window_ends = self._ends[last_blocks]
        self._last_window: tuple[int, Permutation] | None = None

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def positions(self, places: _Positions) -> _Positions:
        """The positions that stand at these places, all from 0 to len - 1 (not checked): int64, of the same shape."""
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
