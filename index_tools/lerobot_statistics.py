"""The statistics of a LeRobot dataset: of each episode, and of all together.

They follow ``lerobot/datasets/compute_stats.py`` of LeRobot 0.6: which frames of an episode count,
which of their pixels, quantiles from 5,000 bins, and how episodes are put together. Means and
deviations of pixels are exact here; LeRobot adds up millions of float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["STATISTICS", "PixelStatistics", "merge_statistics", "number_statistics"]

_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
STATISTICS = ("min", "max", "mean", "std", "count", *_QUANTILES)
_NUM_BINS = 5000
_MARGIN = np.float32(1e-10)
_FEWEST, _MOST, _POWER = 100, 10_000, 0.75  # frames of an episode that count
_LARGE_SIDE, _SMALL_SIDE = 300, 150
_LEVELS = 256


def number_statistics(values: npt.NDArray[Any]) -> dict[str, list[Any]]:
    """The statistics of numbers [T, ...] over all but the last dimension; [T] counts as [T, 1].

    Not finite values give statistics that are not finite.
    """
    rows = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
    rows = rows.astype(np.result_type(rows.dtype, np.float32), copy=False)
    with np.errstate(all="ignore"):
        mean = rows.mean(axis=0)
        deviation = np.sqrt(np.maximum(0, (rows**2).mean(axis=0) - mean**2))
        found = {"min": rows.min(axis=0), "max": rows.max(axis=0), "mean": mean, "std": deviation}
        quantiles = [
            _quantiles(column, None) if len(rows) > 1 else [column[0]] * len(_QUANTILES)
            for column in rows.T
        ]
    found |= {
        name: np.array(column)
        for name, column in zip(_QUANTILES, zip(*quantiles, strict=True), strict=True)
    }
    return {
        **{name: item.astype(np.float64).tolist() for name, item in found.items()},
        "count": [len(values)],
    }


def _quantiles(values: npt.NDArray[Any], weights: npt.NDArray[Any] | None) -> list[float]:
    low, high = values.min(), values.max()
    margin = values.dtype.type(_MARGIN)
    edges = np.linspace(low - margin, high + margin, _NUM_BINS + 1)
    below = np.cumsum(np.histogram(values, edges, weights=weights)[0])
    total = len(values) if weights is None else int(weights.sum())
    return [_quantile(below, edges, share * total) for share in _QUANTILES.values()]


def _quantile(below: npt.NDArray[Any], edges: npt.NDArray[Any], target: float) -> float:
    """Interpolated within the bin that reaches the target."""
    number = int(np.searchsorted(below, target))
    if number == 0:
        return float(edges[0])
    if number >= len(below):
        return float(edges[-1])
    share = (target - below[number - 1]) / (below[number] - below[number - 1])
    return float(edges[number] + share * (edges[number + 1] - edges[number]))


class PixelStatistics:
    """The statistics of the frames of one camera in one episode, in shares of 255.

    Args:
        num_frames: Number of frames of the episode. Of those in `numbers`, every one must be given
            to `add`.

    Attributes:
        numbers: The frames that count.
    """

    def __init__(self, num_frames: int) -> None:
        count = max(min(_FEWEST, num_frames), min(int(num_frames**_POWER), _MOST))
        self.numbers = set(np.round(np.linspace(0, num_frames - 1, count)).astype(int).tolist())
        self._count = count
        self._counts = np.zeros((3, _LEVELS), np.int64)

    def add(self, frame: npt.NDArray[np.uint8]) -> None:
        """Count the pixels of a frame [H, W, 3]; of large ones, those of every few rows and
        columns.
        """
        height, width = frame.shape[:2]
        if max(height, width) >= _LARGE_SIDE:
            step = (width if width > height else height) // _SMALL_SIDE
            frame = np.ascontiguousarray(frame[::step, ::step])
        self._counts += np.array(Image.fromarray(frame).histogram(), np.int64).reshape(3, _LEVELS)

    def result(self) -> dict[str, list[Any]]:
        """The statistics, each number as [[[...]], [[...]], [[...]]]."""
        channels = [_level_statistics(counts) for counts in self._counts]
        found: dict[str, list[Any]] = {
            name: [[[channel[name] / 255]] for channel in channels]
            for name in STATISTICS
            if name != "count"
        }
        return found | {"count": [self._count]}


def _level_statistics(counts: npt.NDArray[np.int64]) -> dict[str, float]:
    levels = np.flatnonzero(counts)
    weights = counts[levels]
    mean = float(np.average(levels, weights=weights))
    deviation = float(np.sqrt(np.average((levels - mean) ** 2, weights=weights)))
    found = {"min": float(levels[0]), "max": float(levels[-1]), "mean": mean, "std": deviation}
    return found | dict(
        zip(_QUANTILES, _quantiles(levels.astype(np.float32), weights), strict=True)
    )


def merge_statistics(
    episodes: Mapping[str, Sequence[Any] | npt.NDArray[Any]],
) -> dict[str, list[Any]]:
    """The statistics of all episodes together: quantiles are means of the episodes' quantiles, as
    in LeRobot.

    Args:
        episodes: Statistic -> its value of each episode.
    """
    counts = np.asarray(episodes["count"], np.int64).reshape(-1)
    columns = {
        name: np.asarray(episodes[name], np.float64) for name in STATISTICS if name != "count"
    }

    def average(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.average(values, axis=0, weights=counts)

    mean = average(columns["mean"])
    merged = {name: average(column) for name, column in columns.items()} | {
        "min": columns["min"].min(axis=0),
        "max": columns["max"].max(axis=0),
        "std": np.sqrt(average(columns["std"] ** 2 + (columns["mean"] - mean) ** 2)),
        "count": counts.sum(keepdims=True),
    }
    return {name: merged[name].tolist() for name in STATISTICS}
