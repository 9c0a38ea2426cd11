"""The positions of one batch, with the epoch that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import at_least
from torch_tfrecord.random_stream import record_keys, salted_keys

__all__ = [
    "DrawEpoch",
    "EpochPosition",
    "PositionBatch",
    "epoch_of",
    "seed_of",
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
        seed: With the epoch decides the draws; an integer of any size.

    Example:
        >>> batch = PositionBatch([4, 2], epoch=1)
        >>> batch, batch.epoch
        ([4, 2], 1)
        >>> (batch[1:] + [5]).epoch  # Accelerate slices and extends batches
        1
    """

    def __init__(
        self,
        positions: Iterable[int] = (),
        epoch: int = 0,
        salt: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(positions)
        self.epoch, self.salt, self.seed = epoch, salt, seed

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> PositionBatch: ...

    def __getitem__(self, index: SupportsIndex | slice) -> int | PositionBatch:
        """A position, or some of them with the same epoch, salt and seed."""
        if isinstance(index, slice):
            return PositionBatch(super().__getitem__(index), self.epoch, self.salt, self.seed)
        return super().__getitem__(index)

    def __add__(self, others: list[int]) -> PositionBatch:  # type: ignore[override]
        """These and more positions, with the epoch, salt and seed of these."""
        return PositionBatch(super().__add__(others), self.epoch, self.salt, self.seed)


class EpochPosition(int):
    """A position with its epoch and seed, yielded by a sampler whose positions a DataLoader batches.

    Example:
        >>> position = EpochPosition(4, 1)
        >>> position, position.epoch
        (4, 1)
    """

    epoch: int
    seed: int

    def __new__(cls, position: int, epoch: int, seed: int = 0) -> EpochPosition:
        """Make a position with its epoch."""
        self = super().__new__(cls, position)
        self.epoch, self.seed = epoch, seed
        return self

    def __reduce__(self) -> Any:
        return EpochPosition, (int(self), self.epoch, self.seed)


def epoch_of(positions: Any) -> int | None:
    """The epoch of a batch of positions, or of the first of them; None if it is unknown."""
    return _known("epoch", positions)


def seed_of(positions: Any) -> int:
    """The seed of a batch of positions, or of the first of them; 0 if it is unknown."""
    return _known("seed", positions) or 0


def _known(name: str, positions: Any) -> int | None:
    found: int | None = getattr(positions, name, None)
    return getattr(positions[0], name, None) if found is None and len(positions) else found


_UNKNOWN = -1


class DrawEpoch:
    """The epoch that a dataset's `set_epoch` chooses.

    It is in shared memory, so that persistent workers, which have a copy of the dataset, see the
    choice.

    Args:
        is_used: False for a dataset that draws nothing: no memory is shared.
    """

    def __init__(self, is_used: bool = True) -> None:
        self._is_used = is_used
        self._number = torch.tensor(_UNKNOWN)
        self._share()

    @property
    def is_known(self) -> bool:
        """Whether an epoch was chosen."""
        return int(self._shared) != _UNKNOWN

    @property
    def number(self) -> int:
        """The epoch; 0 if none was chosen."""
        return max(int(self._shared), 0)

    def choose(self, epoch: int) -> None:
        """Choose the epoch, from 0."""
        self._number.fill_(at_least(0, "epoch", epoch))

    def keys(
        self, positions: Sequence[int], records: npt.NDArray[np.int64], *seeds: int
    ) -> npt.NDArray[np.uint64]:
        """Keys for the random draws of a batch: by its own epoch or salt if it has one.

        Args:
            positions: The batch, which must be `salted`.
            records: int64 [N]: what the keys are of, such as numbers of records.
            seeds: What else decides the draws of an epoch.
        """
        salt, epoch = getattr(positions, "salt", None), epoch_of(positions)
        epoch = int(self._shared) if epoch is None else epoch
        if salt is not None or epoch == _UNKNOWN:
            return salted_keys(len(records), salt or 0)
        seed = seed_of(positions)
        return record_keys(records, epoch, *seeds, *([seed] if seed else []))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()  # plain pickling and copying lose the sharing

    def _share(self) -> None:
        if self._is_used:
            self._number.share_memory_()
        # Read for each position of a mixture: a tensor would let go of the GIL each time.
        self._shared = self._number.numpy()
