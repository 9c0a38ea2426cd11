"""Positions drawn with replacement, each with a probability of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from torch_tfrecord.order.random_stream import RandomStream

__all__ = ["WeightedDraws", "balanced_weights", "cumulated"]

_Positions = npt.NDArray[np.int64]


def cumulated(weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The sums of the weights up to each position, which `WeightedDraws` takes.

    Raises:
        ValueError: Not one dimension, a weight that is negative or not finite, or no weight above 0.
    """
    array = np.asarray(weights, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"weights must have one dimension, got shape {list(array.shape)}")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if wrong.size:
        raise ValueError(f"weights must be finite and at least 0, got {array[wrong[0]]} at position {wrong[0]}")
    if array.size and not array.any():
        raise ValueError("weights must not all be 0")
    return np.cumsum(array)  # one after another, on every machine alike; sum() would add in another order


class WeightedDraws:
    """As many draws with replacement as there are positions; a pure function of the weights and the seeds.

    Args:
        sums: float64 [N], from `cumulated`.
        seeds: Integers of any size.

    Example:
        >>> WeightedDraws(cumulated([1, 0, 3]), 0).positions(np.arange(3)).tolist()
        [0, 2, 2]
    """

    def __init__(self, sums: npt.NDArray[np.float64], *seeds: int) -> None:
        self._sums = sums
        self._stream = RandomStream(*seeds)
        # Rounding may bring a draw up to the whole sum: it goes to the last position that has a weight.
        self._last = int(np.searchsorted(sums, sums[-1])) if sums.size else 0

    def __len__(self) -> int:
        return len(self._sums)

    def positions(self, places: _Positions) -> _Positions:
        """The positions drawn at these places: int64, of the same shape."""
        uniform = (self._stream.numbers_at(places.astype(np.uint64)) >> np.uint64(11)) * 2.0**-53
        drawn = np.searchsorted(self._sums, uniform * self._sums[-1], side="right")
        positions: _Positions = np.minimum(drawn, self._last).astype(np.int64)
        return positions


def balanced_weights(labels: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Weights with which every label is drawn as often as any other: 1 / how many records have the label.

    Args:
        labels: [N]: one label for each record, of any type that NumPy can sort.

    Returns:
        float64 [N], for ``RecordSampler(ds, weights=...)``.

    Example:
        >>> balanced_weights(["cat", "dog", "cat", "cat"]).round(3).tolist()
        [0.333, 1.0, 0.333, 0.333]
    """
    array: npt.NDArray[Any] = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"labels must have one dimension, got shape {list(array.shape)}")
    _, classes, counts = np.unique(array, return_inverse=True, return_counts=True)
    weights: npt.NDArray[np.float64] = 1.0 / counts[classes]
    return weights
