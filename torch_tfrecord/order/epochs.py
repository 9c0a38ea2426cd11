"""The order of every epoch of a dataset, and the state from which a run resumes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sized
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from torch_tfrecord.arguments import Shuffle, at_least, integer
from torch_tfrecord.order.nested import Leaves
from torch_tfrecord.order.orders import (
    BLOCK_BYTES,
    BlockShuffle,
    Order,
    Permutation,
    Renumbered,
    Sequential,
    WeightedDraws,
    block_starts,
    cumulated,
)
from torch_tfrecord.shown import shown_value

if TYPE_CHECKING:
    from typing_extensions import NotRequired

__all__ = ["WINDOW_BLOCKS", "Epochs", "OrderOptions", "StateForm"]

WINDOW_BLOCKS = 64  # 256 MiB, which fit into the page cache until the window is read

_MOST_INFLATED_WINDOW = 1 << 26  # decompressed bytes that are mixed
_MOST = 1 << 62  # limit on the numbers in a state, so that sums stay below 2^63


class OrderOptions(TypedDict):
    """The keywords of `Epochs`."""

    shuffle: Shuffle
    seed: int
    weights: NotRequired[npt.ArrayLike | None]
    block_bytes: NotRequired[int]
    window_blocks: NotRequired[int]


class Epochs:
    """The order of each epoch of a dataset: a pure function of `identity` and the number of the
    epoch.

    Args:
        dataset: Anything with a length; for "blocks" a `TFRecordDataset`, or `Subset` or
            `ConcatDataset` of it.
        shuffle: True, False or "blocks".
        seed: An integer of any size.
        weights: One for each record, or None; draws with replacement.
        block_bytes, window_blocks: For "blocks"; see `BlockShuffle`.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: Shuffle,
        seed: int,
        weights: npt.ArrayLike | None = None,
        block_bytes: int = BLOCK_BYTES,
        window_blocks: int = WINDOW_BLOCKS,
    ) -> None:
        if shuffle not in (True, False, "blocks") or not isinstance(shuffle, (bool, str)):
            raise ValueError(f'shuffle must be True, False or "blocks", got {shuffle!r}')
        if isinstance(dataset, Sampler):
            raise TypeError(
                f"dataset must be a dataset, got a sampler, {type(dataset).__name__}; if Lightning passed it, set "
                "Trainer(use_distributed_sampler=False), since this sampler already splits records over the ranks"
            )
        self.num_records = len(dataset)
        self._shuffle = shuffle
        self._seed = integer("seed", seed)
        self._sums = None if weights is None else self._checked(weights)
        at_least(1, "window_blocks", window_blocks)
        at_least(1, "block_bytes", block_bytes)
        self._blocks = (
            find_blocks(dataset, block_bytes, window_blocks) if shuffle == "blocks" else None
        )
        self._last: tuple[int, Order] | None = None
        self._identity = self._make_identity()  # only once, since it reads every block or weight

    def order(self, epoch: int) -> Order:
        """The order of one epoch; the latest one is cached."""
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, self._make_order(epoch))
        return self._last[1]

    def _make_order(self, epoch: int) -> Order:
        if self._sums is not None:
            return WeightedDraws(self._sums, self._seed, epoch)
        if self._blocks is not None:
            return self._blocks.order(self.num_records, self._seed, epoch)
        return (
            Permutation(self.num_records, self._seed, epoch)
            if self._shuffle
            else Sequential(self.num_records)
        )

    def in_order(self) -> Epochs:
        """The same records, unshuffled in every epoch."""
        return Epochs(range(self.num_records), shuffle=False, seed=self._seed)

    def identity(self) -> dict[str, Any]:
        """All that decides the order, as JSON values."""
        return self._identity

    def _make_identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = {
            "num_records": self.num_records,
            "seed": self._seed,
            "shuffle": self._shuffle,
        }
        if self._blocks is not None:
            identity |= self._blocks.identity()
        if self._sums is not None:
            identity["weights"] = StateForm.digest(self._sums)
        return identity

    def _checked(self, weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
        if self._shuffle is not True:
            raise ValueError(f"with weights, shuffle must be True, got {self._shuffle!r}")
        sums = cumulated(weights)
        if len(sums) != self.num_records:
            raise ValueError(
                f"weights must have one number for each of {self.num_records} records, got {len(sums)}"
            )
        return sums


class Blocks(NamedTuple):
    """Blocks of neighbouring records.

    Attributes:
        starts: int64: first place of each block, with the samples in the order of the files.
        window_blocks: Blocks that are mixed.
        by_file: int64 [N]: the position at each of those places; None if position and place are the
            same.
    """

    starts: npt.NDArray[np.int64]
    window_blocks: int
    by_file: npt.NDArray[np.int64] | None = None

    def order(self, num_records: int, *seeds: int) -> Order:
        """The order of an epoch."""
        order = BlockShuffle(self.starts, num_records, *seeds, window_blocks=self.window_blocks)
        return order if self.by_file is None else Renumbered(order, self.by_file)

    def identity(self) -> dict[str, Any]:
        """All that decides the order, besides the seed and the number of records."""
        found = {"blocks": StateForm.digest(self.starts), "window_blocks": self.window_blocks}
        return found | ({} if self.by_file is None else {"by_file": StateForm.digest(self.by_file)})


def find_blocks(dataset: Any, block_bytes: int, window_blocks: int) -> Blocks:
    """The blocks of a dataset of TFRecord files or of nested datasets, as its method `block_starts`
    returns them.
    """
    compressed = [store for store in Leaves(dataset).stores if store.first_compressed]
    if compressed:  # a window and the next one are kept decompressed
        window_blocks = min(window_blocks, max(_MOST_INFLATED_WINDOW // block_bytes, 1))
    for store in compressed:
        store.has_warned = True
    if hasattr(dataset, "_block_starts"):
        return Blocks(np.asarray(dataset._block_starts(block_bytes), np.int64), window_blocks)
    places = Leaves(dataset).places()
    if places is None:
        raise ValueError(
            'shuffle="blocks" needs to know where each record is: expected a TFRecordDataset, '
            f"got {type(dataset).__name__} (or a Subset or ConcatDataset of TFRecordDatasets only)"
        )
    files, offsets = places
    by_file = np.lexsort((offsets, files))
    starts = block_starts(files[by_file], offsets[by_file], block_bytes)
    return Blocks(starts, window_blocks, by_file)


class StateForm:
    """The form of a state: JSON values by name, from which a run resumes.

    Args:
        identity: What decides the order; it must be the same where the state is loaded.
        numbers: From the name of each number to its limit, or None.
        others: Further keys that it must have; the caller checks their values.
    """

    VERSION = 1
    """Of what `state_dict` returns; raised when its keys or their meaning change."""

    def __init__(
        self,
        identity: Mapping[str, Any],
        numbers: Mapping[str, int | None],
        others: Collection[str] = (),
    ) -> None:
        self._identity, self._numbers = identity, numbers
        self._expected = {"version", *identity, *numbers, *others}

    def check(self, state: object) -> None:
        """ValueError, naming the key, unless a state has this version, this identity, and numbers
        from 0 to these limits.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"expected a state_dict, got {type(state).__name__}")
        version = state.get("version")
        if type(version) is not int or version != self.VERSION:
            raise ValueError(
                f"expected a state of version {self.VERSION}, got version {shown_value(version)}"
            )
        expected = self._expected
        found = [key for key in state if key != "run"]  # what a loader adds for `tfrecord replay`
        if {*found} != expected:
            missing = sorted(expected - set(found))
            further = [key for key in found if key not in expected]
            raise ValueError(
                f"expected a state with the keys {sorted(expected)}, got {shown_value(_sorted(found))} "
                f"({len(missing)} missing: {shown_value(missing)}, {len(further)} unknown: {shown_value(further)})"
            )
        for key, here in self._identity.items():
            if not _is_same(state[key], here):
                raise ValueError(
                    f"the state is of another order: {key} is {shown_value(state[key])} in the state, "
                    f"{shown_value(here)} here"
                )
        for key, limit in self._numbers.items():
            self.check_number(key, state[key], limit)

    @staticmethod
    def check_number(name: str, number: object, limit: int | None = None) -> None:
        """ValueError unless a number of a state is an integer from 0 to a limit."""
        if type(number) is not int or not 0 <= number <= (_MOST if limit is None else limit):
            allowed = "at least 0" if limit is None else f"from 0 to {limit}"
            allowed += (
                ", below 2^62" if limit is None and type(number) is int and number > 0 else ""
            )
            raise ValueError(
                f"{name} must be an integer {allowed} in the state, got {shown_value(number)}"
            )

    @staticmethod
    def digest(array: npt.NDArray[Any]) -> str:
        """A short digest of an array's contents, the same on every machine."""
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return hashlib.blake2b(little.tobytes(), digest_size=8).hexdigest()


def _is_same(found: object, here: object) -> bool:
    """Whether they are equal and of the same type, and so are the items of lists (1, 1.0 and True
    are equal).
    """
    if type(found) is not type(here):
        return False
    if isinstance(here, list) and isinstance(found, list):
        return len(found) == len(here) and all(map(_is_same, found, here))
    return bool(found == here)


def _sorted(keys: Any) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:  # of several types
        return list(keys)
