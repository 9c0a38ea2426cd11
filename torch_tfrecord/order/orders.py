"""Orders of an epoch; the position at each place can be computed by itself."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import Ints
from torch_tfrecord.native import native_module
from torch_tfrecord.random_stream import RandomStream

__all__ = [
    "BLOCK_BYTES",
    "BlockShuffle",
    "Permutation",
    "WeightedDraws",
    "balanced_weights",
    "block_starts",
    "cumulated",
]

_Floats: TypeAlias = "npt.NDArray[np.float64]"

BLOCK_BYTES = 4 << 20
"""The size of a block: a hard disk seeks in a fraction of the time that it takes to read these."""

# The next four decide the order for a seed, so they must never change.
_TABLE_POSITIONS = 1 << 16  # up to here a table, of at most 128 KiB
_ROUNDS = 8
_FIRST_FACTOR = 0xFF51AFD7ED558CCD  # from MurmurHash3's 64-bit finaliser (Appleby, 2011)
_SECOND_FACTOR = 0xC4CEB9FE1A85EC53

_UINT64 = (1 << 64) - 1


class Permutation:
    """The positions 0 to n - 1 in an order that is a pure function of n and the seeds; memory is
    O(1) for any n.

    Up to 65,536 positions it is a table, sorted by a random number for each position: all orders
    are equally likely. Above, it is a keyed bijection: a Feistel network (Luby and Rackoff, 1988)
    of 8 rounds over the two halves of a position's bits. Results of n and above are fed in again
    until they are below n (cycle walking; Black and Rogaway, 2002): at most two passes on average.

    Args:
        num_positions: n, 0 <= n <= 2^63.
        seeds: Integers of any size.

    Raises:
        ValueError: The number of positions is out of range.
        IndexError: The place in ``permutation[place]`` is not from 0 to n - 1.

    Example:
        >>> order = Permutation(5, 0, 0)
        >>> [order[place] for place in range(5)]
        [2, 3, 0, 1, 4]
        >>> Permutation(10**18, 0)[0]
        798343845182963474
    """

    def __init__(self, num_positions: int, *seeds: int) -> None:
        if not 0 <= num_positions <= 1 << 63:
            raise ValueError(f"num_positions must be from 0 to 2^63, got {num_positions}")
        self.num_positions = num_positions
        stream = RandomStream(*seeds)
        self._table: npt.NDArray[np.uint16] | None = None
        if num_positions <= _TABLE_POSITIONS:
            self._table = np.argsort(stream.next_numbers(num_positions), kind="stable").astype(
                np.uint16
            )
        num_bits = max(num_positions - 1, 1).bit_length()
        self._low_bits = num_bits - num_bits // 2
        self._high_bits = num_bits // 2
        self._keys = stream.next_numbers(_ROUNDS)

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < self.num_positions:
            raise IndexError(f"place {place} is out of range for {self.num_positions} positions")
        if self._table is not None:
            return int(self._table[place])
        position = self._walk(place)
        while position >= self.num_positions:
            position = self._walk(position)
        return position

    def positions(self, places: Ints) -> Ints:
        """The positions at these places, which must be from 0 to n - 1 (not checked): int64, of the
        same shape.
        """
        if self._table is not None:
            return self._table[places].astype(np.int64)
        found = self._walked(places.astype(np.uint64).reshape(-1))
        outside = np.flatnonzero(found >= self.num_positions)
        while outside.size:
            found[outside] = again = self._walked(found[outside])
            outside = outside[again >= self.num_positions]
        return found.view(np.int64).reshape(places.shape)

    def _walked(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        native = native_module("memory")
        if native is None:
            return np.array([*map(self._walk, values.tolist())], np.uint64)
        native.permute(values, self._keys, self._high_bits, self._low_bits)
        return values

    def _walk(self, value: int) -> int:
        """One pass of the network, a bijection of the numbers with as many bits as n - 1."""
        low, high = value & (1 << self._low_bits) - 1, value >> self._low_bits
        for number, key in enumerate(self._keys.tolist()):
            if number % 2:
                low ^= _scramble(high, key) >> 64 - self._low_bits
            else:
                high ^= _scramble(low, key) >> 64 - self._high_bits
        return high << self._low_bits | low


def _scramble(half: int, key: int) -> int:
    z = (half ^ key) * _FIRST_FACTOR & _UINT64
    return (z ^ z >> 32) * _SECOND_FACTOR & _UINT64


def cumulated(weights: npt.ArrayLike) -> _Floats:
    """The cumulative sums of the weights, for `WeightedDraws`.

    Raises:
        ValueError: The weights are not 1-D, one is negative or not finite, or none is above 0.
    """
    array = np.asarray(weights, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"weights must have one dimension, got shape {list(array.shape)}")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if wrong.size:
        raise ValueError(
            f"weights must be finite and at least 0, got {array[wrong[0]]} at position {wrong[0]}"
        )
    if array.size and not array.any():
        raise ValueError("weights must not all be 0")
    # adds one by one, the same on every machine; sum() may add in another order
    return np.cumsum(array)


class WeightedDraws:
    """N draws with replacement from N positions; a pure function of the weights and the seeds.

    Args:
        sums: float64 [N], from `cumulated`.
        seeds: Integers of any size.

    Example:
        >>> WeightedDraws(cumulated([1, 0, 3]), 0).positions(np.arange(3)).tolist()
        [0, 2, 2]
    """

    def __init__(self, sums: _Floats, *seeds: int) -> None:
        self._sums = sums
        self._stream = RandomStream(*seeds)
        # Rounding may bring a draw up to the whole sum; it then means the last position with a
        # weight above 0.
        self._last = int(np.searchsorted(sums, sums[-1])) if sums.size else 0

    def positions(self, places: Ints) -> Ints:
        """The positions drawn at these places: int64, of the same shape."""
        uniform = (self._stream.numbers_at(places.astype(np.uint64)) >> np.uint64(11)) * 2.0**-53
        drawn = np.searchsorted(self._sums, uniform * self._sums[-1], side="right")
        return np.minimum(drawn, self._last).astype(np.int64)


def balanced_weights(labels: npt.ArrayLike) -> _Floats:
    """Return weights that make `RecordSampler` draw every label equally often: 1 / the number of
    records with it.

    Args:
        labels: [N]: one label for each record, of any type that NumPy can sort.

    Returns:
        float64 [N], for ``RecordSampler(ds, weights=...)``.

    Example:
        >>> balanced_weights(["cat", "dog", "cat", "cat"]).round(3).tolist()
        [0.333, 1.0, 0.333, 0.333]
    """
    array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"labels must have one dimension, got shape {list(array.shape)}")
    _, classes, counts = np.unique(array, return_inverse=True, return_counts=True)
    return 1.0 / counts[classes]


def block_starts(files: Ints, offsets: Ints, block_bytes: int) -> Ints:
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
        by_file: int64 [N]: the position to use for each of these; None for the same.

    Example:
        >>> order = BlockShuffle(np.array([0, 3, 6, 9]), 12, 1, window_blocks=2)
        >>> order.positions(np.arange(12)).tolist()
        [5, 8, 3, 7, 4, 6, 11, 10, 9, 1, 0, 2]
    """

    def __init__(
        self,
        starts: Ints,
        num_positions: int,
        *seeds: int,
        window_blocks: int,
        by_file: Ints | None = None,
    ) -> None:
        order = Permutation(len(starts), *seeds, 0).positions(np.arange(len(starts)))
        last_blocks = np.arange(window_blocks - 1, len(starts) + window_blocks - 1, window_blocks)
        last_blocks = np.minimum(last_blocks, len(starts) - 1)
        self._seeds, self._by_file = seeds, by_file
        sizes = np.diff(starts, append=num_positions)[order]
        self._starts = starts[order]
        self._ends = np.cumsum(sizes)
        self._skipped = self._starts - (
            self._ends - sizes
        )  # position minus place, constant within a block
        self._window_ends = self._ends[last_blocks]
        self._last_window: tuple[int, Permutation] | None = None

    def positions(self, places: Ints) -> Ints:
        """The positions at these places, which must be from 0 to len - 1 (not checked): int64, of
        the same shape.
        """
        windows = np.searchsorted(self._window_ends, places, side="right")
        found = np.empty_like(places)
        for window in np.unique(windows).tolist():
            here = windows == window
            begin = int(self._window_ends[window - 1]) if window else 0
            last = self._last_window
            if last is None or last[0] != window:
                size = int(self._window_ends[window]) - begin
                last = self._last_window = window, Permutation(size, *self._seeds, window + 1)
            mixed = begin + last[1].positions(places[here] - begin)
            found[here] = mixed + self._skipped[np.searchsorted(self._ends, mixed, side="right")]
        return found if self._by_file is None else self._by_file[found]
