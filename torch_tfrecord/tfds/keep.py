"""Filters of steps: for each episode, by a key made of its metadata, the ranges of steps to keep.

The JSON files are those of openpi (``filter_dict_path`` of its DROID loader) and NVIDIA Cosmos
(``filter_dict_path`` of its DROID dataset): ``{"<key>": [[0, 100], [200, 300]]}`` keeps steps 0 to
99 and 200 to 299.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import getitem
from string import Formatter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import integer
from torch_tfrecord.columns.dtypes import decode_text
from torch_tfrecord.errors import ParseError
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.shown import shown_list, shown_value
from torch_tfrecord.tfds.episode_store import STEPS, EpisodeStore
from torch_tfrecord.tfds.files import read_json
from torch_tfrecord.tfds.parser import list_leaves

__all__ = [
    "DROID_KEY",
    "Keep",
    "KeepKey",
    "Ranges",
    "StepRanges",
    "cut_ranges",
    "find_kept_ranges",
]

Ranges: TypeAlias = Sequence[tuple[int, int]]
"""Ranges of steps of an episode: the first one, and the one behind the last."""

_Integers = npt.NDArray[np.int64]


class StepRanges:
    """Ranges of steps, one after another, whose steps are the positions of a dataset.

    Args:
        episodes: int64 [N], the episode of each range, ascending.
        firsts: int64 [N], the first step of each range.
        stops: int64 [N], the step behind each range; not after the first step for an empty one.

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

    def steps_of(self, episode: int) -> _Integers:
        """The steps of one episode, int64 [N]."""
        begin, end = self._episodes.searchsorted([episode, episode + 1]).tolist()
        parts = zip(
            self._begins[begin:end], self._ends[begin:end], self._offsets[begin:end], strict=True
        )
        steps = [np.arange(first, stop, dtype=np.int64) + offset for first, stop, offset in parts]
        return np.concatenate(steps) if steps else np.empty(0, np.int64)


def cut_ranges(firsts: _Integers, stops: _Integers, kept: Iterable[Ranges]) -> StepRanges:
    """The steps of each episode that are in one of the kept ranges of that episode.

    Args:
        firsts: int64 [episodes], the first step of each episode that can have a sample.
        stops: int64 [episodes], the step behind the last one.
        kept: For each episode its ranges [first step, end), in any order; they may overlap, and go
            past the episode.
    """
    parts: list[tuple[int, int, int]] = []
    for number, (first, stop, ranges) in enumerate(
        zip(firsts.tolist(), stops.tolist(), kept, strict=True)
    ):
        for begin, end in sorted(ranges):
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
        keep: A JSON file, or what it holds.
        keep_key: See `RLDSDataset`.

    Raises:
        ParseError: The file does not hold ranges.
        ValueError: The mapping does not; or no episode has one of its keys.
        KeyError: `keep_key` names a feature that is not in the episodes' metadata.
    """
    path = os.fspath(keep) if isinstance(keep, (str, os.PathLike)) else None
    ranges: object = keep if path is None else read_json(path, store.info.access)
    if not isinstance(ranges, Mapping):
        raise _wrong(
            path, f"expected a dict of ranges for each episode's key, got {type(ranges).__name__}"
        )
    is_known = not ranges or not len(store)
    for key in _keys(store, keep_key):
        found = None if key is None else ranges.get(key)
        is_known |= found is not None
        yield () if found is None else _check_ranges(found, key, path)
    if not is_known:
        some = shown_list([*map(shown_value, list(ranges)[:2])])
        raise _wrong(
            path,
            f"no episode of this split has one of the {len(ranges)} keys, such as {some}; keep_key={keep_key!r} says "
            "how keys are made",
        )


def _check_ranges(ranges: Any, key: str | None, path: str | None) -> Ranges:
    try:
        return [(integer("first", first), integer("end", end)) for first, end in ranges]
    except (TypeError, ValueError):
        what = f"{shown_value(key)}: expected a list of [first step, end], got {shown_value(ranges, 80)}"
        raise _wrong(path, what) from None


def _wrong(path: str | None, what: str) -> Exception:
    return ValueError(f"keep: {what}") if path is None else ParseError(what, path=path)


# Keys.


def _keys(store: EpisodeStore, keep_key: KeepKey) -> Iterator[str | None]:
    """The keys of all episodes, in order."""
    there = [leaf.path for leaf in list_leaves(store.info.features) if leaf.names[0] != STEPS]
    make = keep_key if callable(keep_key) else _Template(keep_key, [*there, _NUMBER])
    wanted = make.names if isinstance(make, _Template) else there
    wanted = [name for name in wanted if name != _NUMBER]
    part = store.only(wanted) if wanted else None
    for number in ProgressBar(range(len(store)), "episode keys", unit="episode", delay=1.0):
        key = make((part.episode(number).metadata if part else {}) | {_NUMBER: number})
        if not isinstance(key, (str, type(None))):
            raise TypeError(f"keep_key must return a str or None, got {type(key).__name__}")
        yield key


class _Template:
    """Makes a key from text with features' paths in braces.

    Args:
        template: Text as for `str.format`, without attributes and indexes.
        there: The paths that may stand in it.
    """

    def __init__(self, template: str, there: Sequence[str]) -> None:
        if not isinstance(template, str):
            raise TypeError(f"keep_key must be text or a function, got {shown_value(template)}")
        try:
            self._parts = [
                (text, name, spec) for text, name, spec, _ in Formatter().parse(template)
            ]
        except ValueError as error:
            raise ValueError(
                f"keep_key must be text with features in braces, got {template!r}: {error}"
            ) from None
        self.names = [name for _, name, _ in self._parts if name is not None]
        for name in self.names:
            if name not in there:
                raise KeyError(
                    f"keep_key: no feature {name!r} in the episodes' metadata; there are {shown_list(sorted(there))}"
                )

    def __call__(self, metadata: Mapping[str, object]) -> str:
        values = (
            ("" if name is None else format(_plain(metadata, name), spec or ""))
            for _, name, spec in self._parts
        )
        return "".join(
            text + value for (text, _, _), value in zip(self._parts, values, strict=True)
        )


def _plain(metadata: Mapping[str, Any], path: str) -> Any:
    value: Any = functools.reduce(getitem, path.split("/"), metadata)
    if isinstance(value, bytes):
        return decode_text(value)
    return value.item() if isinstance(value, torch.Tensor) and not value.dim() else value
