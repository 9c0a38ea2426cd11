"""The epoch of a dataset's random draws, where a batch of positions does not bring its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import at_least
from torch_tfrecord.order.position_batch import epoch_of
from torch_tfrecord.order.random_stream import record_keys, salted_keys

__all__ = ["DrawEpoch"]

_UNKNOWN = -1


class DrawEpoch:
    """The epoch that a dataset's `set_epoch` chooses.

    It is in shared memory, so that persistent workers, which hold a copy of the dataset, see the
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
        return int(self._number) != _UNKNOWN

    @property
    def number(self) -> int:
        """The epoch; 0 if none was chosen."""
        return max(int(self._number), 0)

    def choose(self, epoch: int) -> None:
        """Choose the epoch, from 0."""
        self._number.fill_(at_least(0, "epoch", epoch))

    def keys(
        self, positions: Sequence[int], records: npt.NDArray[np.int64], *seeds: int
    ) -> npt.NDArray[np.uint64]:
        """Keys for the random draws of a batch: by its own epoch or salt if it has one.

        Args:
            positions: The batch, which must be `salted`.
            records: int64 [N]: what the keys stand for, such as numbers of records.
            seeds: What else decides the draws of an epoch.
        """
        salt, epoch = getattr(positions, "salt", None), epoch_of(positions)
        epoch = int(self._number) if epoch is None else epoch
        if salt is not None or epoch == _UNKNOWN:
            return salted_keys(len(records), salt or 0)
        return record_keys(records, epoch, *seeds)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()  # plain pickling and copying lose the sharing

    def _share(self) -> None:
        if self._is_used:
            self._number.share_memory_()
