"""The positions of one batch, with the epoch that they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex, overload

__all__ = [
    "EpochPosition",
    "PositionBatch",
    "epoch_of",
    "is_batch_of_positions",
    "list_of_positions",
]


class PositionBatch(list[int]):
    """A batch sampler's list of positions, with their epoch; pickles, so that workers get the
    epoch, too.

    Random draws of a dataset (a fused crop) are a function of the epoch, and one loader can
    prefetch batches of several epochs. If the epoch is unknown, as in a plain DataLoader, they are
    a function of a salt, a new one for each batch.

    Args:
        positions: From 0 to the number of records - 1.
        epoch: From 0.
        salt: From 0; decides the draws instead of the epoch.

    Example:
        >>> batch = PositionBatch([4, 2], epoch=1)
        >>> batch, batch.epoch
        ([4, 2], 1)
        >>> (batch[1:] + [5]).epoch  # Accelerate slices and extends batches
        1
    """

    def __init__(
        self, positions: Iterable[int] = (), epoch: int = 0, salt: int | None = None
    ) -> None:
        super().__init__(positions)
        self.epoch = epoch
        self.salt = salt

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> PositionBatch: ...

    def __getitem__(self, index: SupportsIndex | slice) -> int | PositionBatch:
        """A position, or some of them with the same epoch and salt."""
        if isinstance(index, slice):
            return PositionBatch(super().__getitem__(index), self.epoch, self.salt)
        return super().__getitem__(index)

    def __add__(self, others: list[int]) -> PositionBatch:  # type: ignore[override]
        """These and more positions, with the epoch and salt of these."""
        return PositionBatch(super().__add__(others), self.epoch, self.salt)


class EpochPosition(int):
    """A position with its epoch, yielded by a sampler whose positions a DataLoader batches.

    Example:
        >>> position = EpochPosition(4, 1)
        >>> position, position.epoch
        (4, 1)
    """

    epoch: int

    def __new__(cls, position: int, epoch: int) -> EpochPosition:
        """Make a position with its epoch."""
        self = super().__new__(cls, position)
        self.epoch = epoch
        return self

    def __reduce__(self) -> Any:
        return EpochPosition, (int(self), self.epoch)


def epoch_of(positions: Any) -> int | None:
    """The epoch of a batch of positions, or of the first of them; None if it is unknown."""
    epoch: int | None = getattr(positions, "epoch", None)
    return getattr(positions[0], "epoch", None) if epoch is None and len(positions) else epoch


def is_batch_of_positions(positions: object) -> bool:
    """Whether the argument holds several positions: a list, or a 1-D array or tensor."""
    return isinstance(positions, list) or getattr(positions, "ndim", 0) == 1


def list_of_positions(positions: Any) -> list[int]:
    """A batch of positions as a list; TypeError for booleans (a mask).

    Example:
        >>> import numpy as np
        >>> list_of_positions(np.array([3, 1]))
        [3, 1]
    """
    found: list[int] = positions if isinstance(positions, list) else positions.tolist()
    if any(isinstance(position, bool) for position in found):
        raise TypeError(
            "positions must be integers, got booleans: mask.nonzero() gives the positions of a mask"
        )
    return found
