"""The positions of one batch, with the epoch that they belong to."""

from __future__ import annotations

from collections.abc import Iterable

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
    """

    def __init__(self, positions: Iterable[int] = (), epoch: int = 0) -> None:
        super().__init__(positions)
        self.epoch = epoch
