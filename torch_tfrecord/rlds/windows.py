"""Which steps of an episode make a sample: windows around a step, goals drawn from the later steps, and
filters of steps: for each episode, by a key made of its metadata, the ranges of steps to keep.

The JSON files of filters are those of openpi (``filter_dict_path`` of its DROID loader) and NVIDIA
Cosmos (``filter_dict_path`` of its DROID dataset): ``{"<key>": [[0, 100], [200, 300]]}`` keeps steps
0 to 99 and 200 to 299.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import getitem
from string import Formatter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import Pad, at_least, integer, one_of
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
    "Span",
    "StepRanges",
    "UniformGoals",
    "Windows",
    "cut_ranges",
    "find_kept_ranges",
    "lay_out",
]


class Span(NamedTuple):
    """A half-open range of steps of one episode, and the number of padding steps before and after
    it.
    """

    first: int
    stop: int
    before: int = 0
    behind: int = 0

    @property
    def size(self) -> int:
        """Number of steps with the padding."""
        return self.before + self.stop - self.first + self.behind


def lay_out(spans: Sequence[Span]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The step at each place of spans of equal size, where padding repeats the nearest step, and
    whether it is a step of the episode: int64 and bool, each [N, steps].

    Example:
        >>> lay_out([Span(4, 6, before=1)])
        (array([[4, 4, 5]]), array([[False,  True,  True]]))
    """
    # Faster than `np.array`, which looks at each tuple as a sequence.
    rows = np.fromiter(chain.from_iterable(spans), np.int64, 4 * len(spans)).reshape(-1, 4)
    first, stop, before, _ = rows.T[:, :, None]
    places = np.arange(spans[0].size) + (first - before)
    steps: npt.NDArray[np.int64] = np.minimum(np.maximum(places, first), stop - 1)
    return steps, steps == places


@dataclass(frozen=True)
class Windows:
    """The windows around a step: `window_size` steps up to and including it, and `action_horizon`
    steps from it on.

    A window never crosses an episode border. At the ends of an episode it is padded; with
    `pad=None`, such steps are excluded.

    Args:
        window_size: Number of observations per sample: the current step and those before it.
        action_horizon: Number of actions per sample: the current step and those after it.
        pad: "repeat" (the first observation, the last action), "zero", or None.

    Raises:
        TypeError: A size is not an integer.
        ValueError: A size is below 1, or `pad` is unknown.

    Example:
        >>> windows = Windows(window_size=3, action_horizon=4)
        >>> windows.observations(1), windows.actions(8, num_steps=10)
        (Span(first=0, stop=2, before=1, behind=0), Span(first=8, stop=10, before=0, behind=2))
    """

    window_size: int = 1
    action_horizon: int = 1
    pad: Pad = "repeat"

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("window_size", "action_horizon"):
            value = getattr(self, name)
            # NumPy integers become int, so that equal windows are equal text.
            object.__setattr__(self, name, at_least(1, name, value))
        one_of("pad", self.pad, "repeat", "zero", None)

    def num_positions(self, num_steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Number of positions in episodes of these lengths, int64 of the same shape."""
        if self.pad is not None:
            return num_steps
        return np.maximum(num_steps - (self.window_size + self.action_horizon - 2), 0)

    def step(self, number: int) -> int:
        """The step at a position within an episode."""
        return number if self.pad is not None else number + self.window_size - 1

    def observations(self, step: int) -> Span:
        """The observation steps of the sample at a step."""
        first = step - self.window_size + 1
        return Span(max(first, 0), step + 1, before=max(-first, 0))

    def actions(self, step: int, num_steps: int) -> Span:
        """The action steps of the sample at a step."""
        stop = step + self.action_horizon
        return Span(step, min(stop, num_steps), behind=max(stop - num_steps, 0))


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
        steps: npt.NDArray[np.int64],
        num_steps: npt.NDArray[np.int64],
        keys: npt.NDArray[np.uint64],
    ) -> npt.NDArray[np.int64]:
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
        goals: npt.NDArray[np.int64] = first + np.minimum(
            (chances * span).astype(np.int64), span - 1
        )
        return goals


Ranges: TypeAlias = Sequence[tuple[int, int]]
"""Ranges of steps of an episode: the first one, and the one behind the last."""

_Integers = npt.NDArray[np.int64]


class StepRanges:
    """Ranges of steps, one after another, whose steps are the positions of a dataset.

    Args:
        episodes: int64 [N], the episode of each range, ascending.
        firsts: int64 [N], the first step of each range.
        stops: int64 [N], the step after each range; not after the first step for an empty one.

    Example:
        >>> ranges = StepRanges(np.array([0, 2]), np.array([5, 0]), np.array([7, 3]))
        >>> len(ranges), ranges.find(np.array([1, 2]))
        (5, ([0, 2], [6, 0]))
    """

    def __init__(self, episodes: _Integers, firsts: _Integers, stops: _Integers) -> None:
        counts = np.maximum(stops - firsts, 0)
        self._episodes = episodes  # ascending
        self._ends = np.cumsum(counts)
        self._begins = self._ends - counts
        self._offsets = firsts - self._begins  # from a position to its step

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def find(self, positions: _Integers) -> tuple[list[int], list[int]]:
        """The episodes and the steps at these positions."""
        numbers = self._ends.searchsorted(positions, side="right")
        return self._episodes[numbers].tolist(), (positions + self._offsets[numbers]).tolist()


def cut_ranges(firsts: _Integers, stops: _Integers, kept: Iterable[Ranges]) -> StepRanges:
    """The steps of each episode that are in one of the kept ranges of that episode.

    Args:
        firsts: int64 [episodes], the first step of each episode that can have a sample.
        stops: int64 [episodes], the step after the last one.
        kept: For each episode its ranges [first step, end), in any order; they may overlap, and go
            past the episode.
    """
    parts: list[tuple[int, int, int]] = []
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


Keep: TypeAlias = "str | os.PathLike[str] | Mapping[str, Sequence[Sequence[int]]]"
KeepKey: TypeAlias = "str | Callable[[dict[str, Any]], str | None]"

DROID_KEY = "{episode_metadata/recording_folderpath}--{episode_metadata/file_path}"
"""How openpi and Cosmos make the key of an episode of DROID."""
_NUMBER = "_traj_index"


def find_kept_ranges(store: EpisodeStore, keep: Keep, keep_key: KeepKey) -> Iterator[Ranges]:
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
    is_known = not ranges or not len(store)
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
    places = leaves_of(store.info.features)
    there = [_NUMBER, *(leaf.path for leaf in places if leaf.names[0] != STEPS)]
    make: Any = keep_key
    if not callable(keep_key):
        make, there = (
            functools.partial(_KeyText().vformat, keep_key, ()),
            _names_in(keep_key, there),
        )
    wanted = [name for name in there if name != _NUMBER]
    # A key of the number alone reads nothing.
    part = store.only(wanted) if wanted else None
    for number in ProgressBar(range(len(store)), "episode keys", unit="episode", delay=1.0):
        key = make((part.episode(number).metadata if part else {}) | {_NUMBER: number})
        if not isinstance(key, (str, type(None))):
            raise TypeError(f"keep_key must return a str or None, got {type(key).__name__}")
        yield key


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


class _KeyText(Formatter):
    """Makes a key from text with features' paths in braces."""

    def get_field(self, path: str, args: Sequence[Any], metadata: Mapping[str, Any]) -> Any:
        """The value at a path, and what the base class asks for."""
        value: Any = functools.reduce(getitem, path.split("/"), metadata)
        if isinstance(value, bytes):
            value = decode_text(value)
        elif isinstance(value, torch.Tensor) and not value.dim():
            value = value.item()
        return value, path
