"""Seeded random numbers, and keys for random draws, that stay the same on every machine and in
every release.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["RandomStream", "draw_salt", "record_keys", "salted_keys", "shuffled", "to_64_bits"]

_UINT64 = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB

_T = TypeVar("_T")
_Numbers: TypeAlias = "npt.NDArray[np.uint64]"


class RandomStream:
    """A seeded stream of 64-bit random numbers: SplitMix64 (Steele, Lea and Flood, 2014).

    Our own code, since the generators of Python, NumPy and torch may change between releases, and a
    seed must give one order forever. No global random state is read or written.

    Args:
        seeds: Integers of any size; a different tuple gives an unrelated stream.
    """

    def __init__(self, *seeds: int) -> None:
        self._state = 0
        for seed in seeds:
            self._state = self._next() ^ to_64_bits(seed)
            self._state = self._next()

    def _next(self) -> int:
        self._state = (self._state + _STEP) & _UINT64
        return _mixed(self._state)

    def next_numbers(self, count: int) -> _Numbers:
        """The next `count` numbers of the stream, computed at once."""
        numbers = self.numbers_at(np.arange(count, dtype=np.uint64))
        self.skip(count)
        return numbers

    def numbers_at(self, places: _Numbers) -> _Numbers:
        """The numbers at these places of the stream, where 0 is the next number; does not advance
        the stream.
        """
        return _mixed_all(places * np.uint64(_STEP) + np.uint64((self._state + _STEP) & _UINT64))

    def number_at(self, place: int) -> int:
        """One of `numbers_at`, for a place of any size."""
        return _mixed((self._state + (place + 1) * _STEP) & _UINT64)

    def skip(self, count: int) -> None:
        """Skip the next `count` numbers."""
        self._state = (self._state + count * _STEP) & _UINT64

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1, 1 <= limit; the bias is below limit / 2^64."""
        return self._next() * limit >> 64


def _mixed(z: int) -> int:
    z = (z ^ z >> 30) * _FIRST_FACTOR & _UINT64
    z = (z ^ z >> 27) * _SECOND_FACTOR & _UINT64
    return z ^ z >> 31


def _mixed_all(z: _Numbers) -> _Numbers:
    z = (z ^ z >> np.uint64(30)) * np.uint64(_FIRST_FACTOR)
    z = (z ^ z >> np.uint64(27)) * np.uint64(_SECOND_FACTOR)
    return z ^ z >> np.uint64(31)


def draw_salt() -> int:
    """A 63-bit number from torch's default generator: the only place that uses global random
    state.
    """
    import torch  # here, since the order of records needs none

    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


def to_64_bits(seed: int) -> int:
    """A seed of any size as `RandomStream` takes it up."""
    if 0 <= seed <= _UINT64:
        return seed
    # Negative and longer seeds are folded so that similar ones do not collide.
    return int.from_bytes(hashlib.blake2b(b"%d" % seed, digest_size=8).digest(), "little")


def shuffled(items: Sequence[_T], *seeds: int) -> list[_T]:
    """The items in an order that is a pure function of the seeds (Fisher-Yates).

    Example:
        >>> shuffled(range(5), 0, 0)
        [1, 3, 0, 4, 2]
    """
    order = list(items)
    random = RandomStream(*seeds)
    for last in range(len(order) - 1, 0, -1):
        chosen = random.below(last + 1)
        order[last], order[chosen] = order[chosen], order[last]
    return order


def record_keys(positions: npt.NDArray[np.int64], *seeds: int) -> _Numbers:
    """The key of each position: number `position` of a SplitMix64 stream that the seeds choose.

    It does not matter which worker or thread reads a record, and in which batch.

    Args:
        positions: int64 [N], from 0.
        seeds: The epoch, and whatever else the stream depends on.

    Example:
        >>> record_keys(np.array([3, 0]), 0) == record_keys(np.array([0, 3]), 0)[::-1]
        array([ True,  True])
    """
    first = np.uint64(RandomStream(*seeds).below(1 << 64))
    return _mixed_all(positions.astype(np.uint64) * np.uint64(_STEP) + first)


def salted_keys(count: int, salt: int) -> _Numbers:
    """The keys of a batch of unknown epoch, by place in it: a record that is in it twice gets two
    different draws.
    """
    # a number of seeds that keys of records never have
    return record_keys(np.arange(count), salt, 0, 0)
