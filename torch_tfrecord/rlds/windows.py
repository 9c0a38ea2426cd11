"""Which steps of an episode make a sample: windows around a step, goals drawn from the later steps, and
filters of steps: for each episode, by a key made of its metadata, the ranges of steps to keep.

The JSON files of filters are those of openpi (``filter_dict_path`` of its DROID loader) and NVIDIA
Cosmos (``filter_dict_path`` of its DROID dataset): ``{"<key>": [[0, 100], [200, 300]]}`` keeps steps
0 to 99 and 200 to 299.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from string import Formatter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from torch_tfrecord.arguments import Pad, PathLike, at_least, integer
from torch_tfrecord.batch_memory import Ints, Keys
from torch_tfrecord.columns import decode_text
from torch_tfrecord.errors import ParseError
from torch_tfrecord.files import local_path
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.rlds.episode_store import STEPS, EpisodeStore
from torch_tfrecord.shown import shown_list, shown_value
from torch_tfrecord.tfds import leaves_of

__all__ = [
    "DROID_KEY",
    "Keep",
    "KeepKey",
    "Ranges",
    "StepRanges",
    "UniformGoals",
    "Windows",
    "chosen_steps",
]


class Windows(NamedTuple):
    """The windows around a step: `window_size` steps up to and including it, and `action_horizon`
    steps from it on.

    A window never crosses an episode border. At the ends of an episode it is padded; with
    `pad=None`, such steps are excluded.

    Attributes:
        window_size: Number of observations per sample: the current step and those before it.
        action_horizon: Number of actions per sample: the current step and those after it.
        pad: "repeat" (the first observation, the last action), "zero", or None.
    """

    window_size: int
    action_horizon: int
    pad: Pad

    def ends(self, num_steps: Ints) -> tuple[Ints, Ints]:
        """The first step that has a sample, and the step after the last, of episodes of these
        lengths: int64 of the same shape; an end before its beginning where none has.
        """
        if self.pad is not None:
            return np.zeros_like(num_steps), num_steps
        firsts = np.full_like(num_steps, self.window_size - 1)
        return firsts, num_steps - self.action_horizon + 1


@dataclass(frozen=True)
class UniformGoals:
    """Draw each sample's goal uniformly from the steps that follow in its episode, as Octo and
    OpenVLA do.

    A draw is a pure function of the seed, the epoch and the step: the same for any number of
    workers and ranks, another one in the next epoch. See `RLDSDataset.set_epoch`.

    Args:
        min_distance: Steps from the current step to the first possible goal: 0 as in Octo, or 1 as
            in OpenVLA. Near the end of an episode the goal is its last step.
        max_distance: Steps to the last possible goal, if the episode is that long (Octo's
            ``max_goal_distance`` is one more); None for the end of the episode.
        seed: Decides the draws; an integer of any size.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: A distance is negative, or `max_distance` is below `min_distance`.

    Example:
        >>> ds = RLDSDataset("bridge/0.1.0", goals=UniformGoals(max_distance=20))  # doctest: +SKIP
        >>> ds[0]["task"]["image_0"].shape, ds[0]["task"]["timestep"]  # doctest: +SKIP
        (torch.Size([3, 256, 256]), 17)
    """

    min_distance: int = 0
    max_distance: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        integer("seed", self.seed)
        at_least(0, "min_distance", self.min_distance)
        if self.max_distance is not None:
            at_least(self.min_distance, "max_distance", self.max_distance)

    def draw(
        self,
        steps: Ints,
        num_steps: Ints,
        keys: Keys,
    ) -> Ints:
        """The goals of steps, each of an episode of some number of steps, by the random numbers of
        their keys.
        """
        first = np.minimum(steps + self.min_distance, num_steps - 1)
        stop = num_steps
        if self.max_distance is not None:
            stop = np.minimum(steps + self.max_distance + 1, num_steps)
        # At the end of an episode the goal is its last step.
        span = np.maximum(stop - first, 1)
        # The 53 bits of a float64's fraction.
        chances = (keys >> np.uint64(11)) * 2.0**-53  # from 0 to below 1
        return first + np.minimum((chances * span).astype(np.int64), span - 1)


Ranges: TypeAlias = Sequence[tuple[int, int]]
"""Ranges of steps of an episode: the first one, and the one after the last."""


class StepRanges:
    """Ranges of steps, one after another, whose steps are the positions of a dataset.

    Args:
        episodes: int64 [N], the episode of each range, ascending.
        firsts: int64 [N], the first step of each range.
        stops: int64 [N], the step after each range; not after the first step for an empty one.

    Attributes:
        episodes, firsts, stops: The same.
        ends: int64 [N], the number of positions up to the end of each range.

    Example:
        >>> ranges = StepRanges(np.array([0, 2]), np.array([5, 0]), np.array([7, 3]))
        >>> len(ranges), ranges.find(np.array([1, 2]))
        (5, (array([0, 2]), array([6, 0])))
    """

    def __init__(self, episodes: Ints, firsts: Ints, stops: Ints) -> None:
        self.episodes, self.firsts, self.stops = episodes, firsts, stops
        counts = np.maximum(stops - firsts, 0)
        self.ends = np.cumsum(counts)
        self._offsets = firsts - self.ends + counts  # from a position to its step

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def find(self, positions: Ints) -> tuple[Ints, Ints]:
        """The episodes and the steps at these positions."""
        numbers = self.ends.searchsorted(positions, side="right")
        return self.episodes[numbers], positions + self._offsets[numbers]


Keep: TypeAlias = "PathLike | Mapping[str, Sequence[Sequence[int]]]"
KeepKey: TypeAlias = "str | Callable[[dict[str, Any]], str | None]"

DROID_KEY = "{episode_metadata/recording_folderpath}--{episode_metadata/file_path}"
"""How openpi and Cosmos make the key of an episode of DROID."""
_NUMBER = "_traj_index"


def chosen_steps(
    store: EpisodeStore, firsts: Ints, stops: Ints, keep: Keep | None, keep_key: KeepKey
) -> StepRanges:
    """The steps of each episode that can have a sample, and are in one of its kept ranges.

    Args:
        store: The episodes.
        firsts: int64 [episodes], the first step of each episode that can have a sample.
        stops: int64 [episodes], the step after the last one.
        keep: See `RLDSDataset`: ranges [first step, end) in any order; they may overlap, and go past
            the episode. None for all.
        keep_key: See `RLDSDataset`.

    Raises:
        ParseError, ValueError, KeyError: See `_find_kept_ranges`.
    """
    if keep is None:
        return StepRanges(np.arange(len(store)), firsts, stops)
    parts: list[tuple[int, int, int]] = []
    # One tuple for each range, until they are an array.
    kept = _find_kept_ranges(store, keep, keep_key)
    for number, (first, stop, ranges) in enumerate(
        zip(firsts.tolist(), stops.tolist(), kept, strict=True)
    ):
        for begin, end in sorted(ranges):
            # Sorted by their begin, so that what overlaps counts once.
            begin, end = max(begin, first), min(end, stop)
            if begin < end:
                parts.append((number, begin, end))
                first = end
    rows = np.array(parts, np.int64).reshape(-1, 3)
    return StepRanges(rows[:, 0], rows[:, 1], rows[:, 2])


def _find_kept_ranges(store: EpisodeStore, keep: Keep, keep_key: KeepKey) -> Iterator[Ranges]:
    """Yield the ranges to keep of each episode; none for an episode whose key is not there.

    Args:
        store: The episodes.
        keep: A JSON file, or its content.
        keep_key: See `RLDSDataset`.

    Raises:
        ParseError: The file does not contain ranges.
        ValueError: The mapping does not; or no episode has one of its keys.
        KeyError: `keep_key` names a feature that is not in the episodes' metadata.
    """
    path = local_path(keep) if isinstance(keep, (str, os.PathLike)) else None

    def wrong(what: str) -> Exception:
        return ValueError(f"keep: {what}") if path is None else ParseError(what, path=path)

    ranges: object = keep if path is None else store.info._json(path)
    if not isinstance(ranges, Mapping):
        raise wrong(
            f"expected a dict of ranges for each episode's key, got {type(ranges).__name__}"
        )
    # A file of another dataset would leave out everything without a word.
    is_known = not ranges
    for key in _keys(store, keep_key):
        found = None if key is None else ranges.get(key)
        is_known |= found is not None
        try:
            yield [
                (integer("first", first), integer("end", end))
                for first, end in (() if found is None else found)
            ]
        except (TypeError, ValueError):
            raise wrong(
                f"{shown_value(key)}: expected a list of [first step, end], got {shown_value(found, 80)}"
            ) from None
    if not is_known:
        some = shown_list([*map(shown_value, list(ranges)[:2])])
        raise wrong(
            f"no episode of this split has one of the {len(ranges)} keys, such as {some}; keep_key={keep_key!r} says "
            "how keys are made"
        )


# Keys.


def _keys(store: EpisodeStore, keep_key: KeepKey) -> Iterator[str | None]:
    """The keys of all episodes, in order."""
    leaves = leaves_of(store.info.features)
    names = {leaf.path: leaf.names for leaf in leaves if leaf.names[0] != STEPS}
    there = [_NUMBER, *names]
    wanted = {*(there if callable(keep_key) else _names_in(keep_key, there))} - {_NUMBER}
    # A key of the number alone reads nothing.
    part = store.only([*wanted]).episodes(range(len(store))) if wanted else None
    for number in ProgressBar(range(len(store)), "episode keys", unit="episode", delay=1.0):
        metadata: Any = next(part).metadata if part else {}
        key: object
        if callable(keep_key):
            key = keep_key(metadata | {_NUMBER: number})
        else:
            values = {path: _shown(reduce(getitem, names[path], metadata)) for path in wanted}
            key = keep_key.format_map(values | {_NUMBER: number})
        if not isinstance(key, (str, type(None))):
            raise TypeError(f"keep_key must return a str or None, got {type(key).__name__}")
        yield key


def _shown(value: Any) -> object:
    """A value of the metadata, as text has it."""
    if isinstance(value, bytes):
        return decode_text(value)
    return value.item() if isinstance(value, torch.Tensor) and not value.dim() else value


def _names_in(keep_key: object, there: Sequence[str]) -> list[str]:
    """The features' paths in a text for keys."""
    if not isinstance(keep_key, str):
        raise TypeError(f"keep_key must be text or a function, got {shown_value(keep_key)}")
    try:
        names = [name for _, name, _, _ in Formatter().parse(keep_key) if name is not None]
    except ValueError as error:
        raise ValueError(
            f"keep_key must be text with features in braces, got {keep_key!r}: {error}"
        ) from None
    for name in names:
        # An attribute or index in the braces is no feature either.
        if name not in there:
            raise KeyError(
                f"keep_key: no feature {name!r} in the episodes' metadata; there are {shown_list(sorted(there))}"
            )
    return names
