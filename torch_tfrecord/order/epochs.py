"""The order of every epoch of a dataset, and the state that says where in it a training is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sized
from operator import index as as_integer
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import at_least
from torch_tfrecord.order.block_shuffle import BlockShuffle
from torch_tfrecord.order.permutation import Permutation
from torch_tfrecord.order.shares import Order, Sequential
from torch_tfrecord.order.weighted_draws import WeightedDraws, cumulated

__all__ = ["STATE_VERSION", "Epochs", "check_state", "digest", "find_blocks"]

STATE_VERSION = 1
"""Of what `state_dict` gives; raised when its keys or their meaning change."""


class Epochs:
    """The order of each epoch of a dataset: a pure function of what `identity` holds, and the number of the epoch.

    Args:
        dataset: Anything with a length; for "blocks" a `TFRecordDataset`.
        shuffle: True, False or "blocks".
        seed: An integer of any size.
        weights: One for each record, or None; draws with replacement.
        block_bytes, window_blocks: For "blocks"; see `BlockShuffle`.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: bool | str,
        seed: int,
        weights: npt.ArrayLike | None,
        block_bytes: int,
        window_blocks: int,
    ) -> None:
        if shuffle not in (True, False, "blocks") or not isinstance(shuffle, (bool, str)):
            raise ValueError(f'shuffle must be True, False or "blocks", got {shuffle!r}')
        self.num_records = len(dataset)
        self._shuffle = shuffle
        self._seed = as_integer(seed)
        self._sums = None if weights is None else self._checked(weights)
        self._window_blocks = at_least(1, "window_blocks", window_blocks)
        at_least(1, "block_bytes", block_bytes)
        self._blocks = find_blocks(dataset, block_bytes) if shuffle == "blocks" else None
        self._last: tuple[int, Order] | None = None
        self._identity = self._make_identity()  # once: it looks at every block or weight

    def order(self, epoch: int) -> Order:
        """The order of one epoch; the last one is kept."""
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, self._make_order(epoch))
        return self._last[1]

    def _make_order(self, epoch: int) -> Order:
        if self._sums is not None:
            return WeightedDraws(self._sums, self._seed, epoch)
        if self._blocks is not None:
            return BlockShuffle(self._blocks, self.num_records, self._seed, epoch, window_blocks=self._window_blocks)
        return Permutation(self.num_records, self._seed, epoch) if self._shuffle else Sequential(self.num_records)

    def in_order(self) -> Epochs:
        """The same records, in the order of the files in every epoch."""
        records = range(self.num_records)
        return Epochs(records, shuffle=False, seed=self._seed, weights=None, block_bytes=1, window_blocks=1)

    def identity(self) -> dict[str, Any]:
        """What decides the order, as JSON knows it."""
        return self._identity

    def _make_identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = {"num_records": self.num_records, "seed": self._seed, "shuffle": self._shuffle}
        if self._blocks is not None:
            identity |= {"window_blocks": self._window_blocks, "blocks": digest(self._blocks)}
        if self._sums is not None:
            identity["weights"] = digest(self._sums)
        return identity

    def _checked(self, weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
        if self._shuffle is not True:
            raise ValueError(f"weights draw at random: shuffle must be True, got {self._shuffle!r}")
        sums = cumulated(weights)
        if len(sums) != self.num_records:
            raise ValueError(f"weights must be one for each of {self.num_records} records, got {len(sums)}")
        return sums


def find_blocks(dataset: Any, block_bytes: int) -> npt.NDArray[np.int64]:
    """First position of each block of neighbouring records, of a dataset that knows: its method `block_starts`."""
    if not hasattr(dataset, "block_starts"):
        raise ValueError(
            'shuffle="blocks" needs to know where each record lies: expected a TFRecordDataset, '
            f"got {type(dataset).__name__}"
        )
    return np.asarray(dataset.block_starts(block_bytes), dtype=np.int64)


def check_state(state: Mapping[str, Any], identity: Mapping[str, Any], numbers: Mapping[str, int | None]) -> None:
    """ValueError unless a state has this version, this identity, and these numbers from 0 to the limits given."""
    if not isinstance(state, Mapping):
        raise TypeError(f"expected a state_dict, got {type(state).__name__}")
    if state.get("version") != STATE_VERSION:
        raise ValueError(f"expected a state of version {STATE_VERSION}, got version {state.get('version')!r}")
    expected = {"version", *identity, *numbers}
    if set(state) != expected:
        raise ValueError(f"expected a state with the keys {sorted(expected)}, got {sorted(state)}")
    for key, here in identity.items():
        if state[key] != here or type(state[key]) is not type(here):
            raise ValueError(f"the state is of another order: {key} is {state[key]!r} in the state, {here!r} here")
    for key, limit in numbers.items():
        number = state[key]
        if type(number) is not int or number < 0 or (limit is not None and number > limit):
            allowed = "at least 0" if limit is None else f"from 0 to {limit}"
            raise ValueError(f"{key} must be an integer {allowed} in the state, got {number!r}")


def digest(array: npt.NDArray[Any]) -> str:
    """A short name for the contents of an array, the same on every machine."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return hashlib.blake2b(little.tobytes(), digest_size=8).hexdigest()
