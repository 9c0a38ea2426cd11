"""The positions of one batch, with the epoch that they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex, overload

__all__ = ["PositionBatch"]


class PositionBatch(list[int]):
    """What a batch sampler yields: a list of positions that knows its epoch; pickles, so that workers see it too.

    Random draws of a dataset (a fused crop) are a function of the epoch: several epochs can be under way in one loader.

    Args:
        positions: From 0 to the number of records - 1.
        epoch: From 0.

    Example:
        >>> batch = PositionBatch([4, 2], epoch=1)
        >>> batch, batch.epoch
        ([4, 2], 1)
        >>> (batch[1:] + [5]).epoch  # Accelerate cuts and fills batches
        1
    """

    def __init__(self, positions: Iterable[int] = (), epoch: int = 0) -> None:
        super().__init__(positions)
        self.epoch = epoch

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> PositionBatch: ...

    def __getitem__(self, index: SupportsIndex | slice) -> int | PositionBatch:
        """A position, or some of them, of the same epoch."""
        if isinstance(index, slice):
            return PositionBatch(super().__getitem__(index), self.epoch)
        return super().__getitem__(index)

    def __add__(self, others: list[int]) -> PositionBatch:  # type: ignore[override]
        """More positions, in the epoch of these."""
        return PositionBatch(super().__add__(others), self.epoch)
