"""The output of a side, in a few numbers that can be compared: are two sides doing the same
work?
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["MARK", "Columns", "Outputs", "differences"]

Columns = Mapping[str, "np.ndarray | Sequence[Any]"]

# By how much the mean and deviation of random crops may differ between sides, in units of the
# deviation.
_TOLERANCE = 0.05
MARK = 1024


class Outputs:
    """Sums up an epoch of batches.

    A row (one record's values of all columns) is hashed to 64 bits. "ordered" has a digest of the
    rows so far, at each `MARK` rows and at the end; "unordered" is the sum of all mixed hashes, the
    same in any order.

    Args:
        random_columns: Left out of the hashes; their mean and standard deviation are kept instead.
    """

    def __init__(self, random_columns: Sequence[str] = ()) -> None:
        self._random = random_columns
        self._layout: dict[str, str] = {}
        self._digest = hashlib.blake2b(digest_size=16)
        self._marks: dict[str, str] = {}
        self._sum = 0
        self.count = 0
        self._moments: dict[str, list[float]] = {name: [0.0, 0.0, 0.0] for name in random_columns}

    def add(self, columns: Columns) -> None:
        """Take in a batch: arrays [B, ...], or lists of B bytes-like values."""
        rows: np.ndarray | None = None
        for name in sorted(columns):
            column = columns[name]
            self._layout[name] = _layout(column)
            if name in self._random:
                self._add_moments(name, np.asarray(column))
                continue
            hashes = _row_hashes(column, zlib.crc32(name.encode()))
            rows = hashes if rows is None else _mix(rows) + hashes
        if rows is not None:
            self.count += len(rows)
            self._digest.update(rows.tobytes())
            if self.count % MARK == 0:
                self._marks[str(self.count)] = self._digest.hexdigest()
            self._sum = (self._sum + int(_mix(rows).sum(dtype=np.uint64))) % (1 << 64)

    def summary(self) -> dict[str, Any]:
        """JSON: count, layout, ordered, unordered, statistics."""
        statistics = {}
        for name, (number, total, squares) in self._moments.items():
            mean = total / number
            statistics[name] = {"mean": mean, "std": float(np.sqrt(squares / number - mean**2))}
        return {
            "count": self.count,
            "layout": self._layout,
            "ordered": {**self._marks, str(self.count): self._digest.hexdigest()},
            "unordered": f"{self._sum:016x}",
            "statistics": statistics,
        }

    def _add_moments(self, name: str, column: np.ndarray) -> None:
        values = column.astype(np.float32, copy=False)
        moments = self._moments[name]
        moments[0] += values.size
        moments[1] += float(values.sum(dtype=np.float64))
        moments[2] += float(np.square(values).sum(dtype=np.float64))


def differences(ours: dict[str, Any], theirs: dict[str, Any], *, ordered: bool) -> list[str]:
    """In what two summaries differ; nothing if the sides do the same work.

    `ordered` is False where one of them shuffles, or its workers take turns. Where it is True one
    may have been cut off early; then they are compared up to there.
    """
    found = (
        [f"layout: {ours['layout']} and {theirs['layout']}"]
        if ours["layout"] != theirs["layout"]
        else []
    )
    if ordered:
        last = max(set(ours["ordered"]) & set(theirs["ordered"]), key=int, default=None)
        if last is None or ours["ordered"][last] != theirs["ordered"][last]:
            found.append(
                f"the first {last} rows"
                if last
                else f"count: {ours['count']} and {theirs['count']}"
            )
    else:
        found += [
            f"{key}: {ours[key]} and {theirs[key]}"
            for key in ("count", "unordered")
            if ours[key] != theirs[key]
        ]
    for name, mine in ours["statistics"].items():
        other = theirs["statistics"][name]
        for key in ("mean", "std"):
            if abs(mine[key] - other[key]) > _TOLERANCE * mine["std"]:
                found.append(f"{key} of {name}: {mine[key]:.4f} and {other[key]:.4f}")
    return found


def _layout(column: np.ndarray | Sequence[Any]) -> str:
    return f"{column.dtype}{list(column.shape[1:])}" if isinstance(column, np.ndarray) else "bytes"


def _row_hashes(column: np.ndarray | Sequence[Any], seed: int) -> np.ndarray:
    """A 64-bit hash of each row."""
    if not isinstance(column, np.ndarray):
        digests = (hashlib.blake2b(value, digest_size=8).digest() for value in column)
        return np.frombuffer(b"".join(digests), dtype=np.uint64)
    flat = np.ascontiguousarray(column).reshape(len(column), -1)
    words = flat.view(f"u{flat.dtype.itemsize}").astype(np.uint64)
    factors = _mix(np.arange(seed, seed + words.shape[1], dtype=np.uint64)) | np.uint64(1)
    return (words * factors).sum(axis=1, dtype=np.uint64)


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: no sum of rows can be mistaken for another."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
