"""Statistics of actions and states over all steps of a dataset, in the format of Octo and OpenVLA; and
normalising by them, and back.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import IndexPolicy, PathLike, StorageOptions, one_of, true_or_false
from torch_tfrecord.errors import IndexMismatchError, ParseError, RemoteError
from torch_tfrecord.files import open_file
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records import SidecarFormat, SidecarKeeper
from torch_tfrecord.rlds.episode_columns import NumberColumn
from torch_tfrecord.rlds.episode_store import STEPS, Episode, EpisodeStore, EpisodeTransform
from torch_tfrecord.rlds.windows import (
    DROID_KEY,
    Keep,
    KeepKey,
    StepRanges,
    chosen_steps,
)
from torch_tfrecord.shown import shown_list, shown_value, without_secrets
from torch_tfrecord.tfds import DatasetInfo, Split, info_of, leaves_of

__all__ = ["NormalizationType", "Normalize", "dataset_statistics"]

_FORMAT = SidecarFormat(
    "torch_tfrecord.statistics",
    "3",
    "statistics",
    ("key",),
    {"action": "float64", "proprio": "float64", "counts": "int64"},
)
_MOST_KEPT_BYTES = 1 << 24  # enough for 170,000 dimensions
_PROPRIO = ("observation/proprio", "observation/state")
_NAMES = ("mean", "std", "max", "min", "q01", "q99")
_Arrays: TypeAlias = "dict[str, npt.NDArray[Any]]"


NormalizationType: TypeAlias = Literal["normal", "bounds", "bounds_q99"]
_Change: TypeAlias = Callable[[str, Any], torch.Tensor]
# The value that each maps to 0, and how far it is to 1; for bounds to -1 and 1.
_NEEDED = {"normal": ("mean", "std"), "bounds": ("min", "max"), "bounds_q99": ("q01", "q99")}


def dataset_statistics(
    directory: PathLike | DatasetInfo,
    split: Split = "train",
    *,
    action: str | Sequence[str] | None = None,
    proprio: str | Sequence[str] | None = None,
    keep: Keep | None = None,
    keep_key: KeepKey = DROID_KEY,
    episode_transform: EpisodeTransform | None = None,
    index: IndexPolicy = "auto",
    index_dir: PathLike | None = None,
    cache: bool = True,
    storage_options: StorageOptions = None,
) -> dict[str, object]:
    """Compute mean, std, max, min, q01 and q99 of each action and state dimension, and count steps
    and episodes.

    No image is read. All action and state values are kept in memory, 4 bytes each (float32), so
    that the quantiles are exact, with linear interpolation like ``numpy.quantile``. Mean and
    population std (NumPy's default) are computed in float64 after subtracting the first value, so
    that large offsets cost no precision.

    The result is cached where an index of a file in the directory would be, or in the
    user's cache directory if that is not writable. Its name is a hash of the files (names, sizes,
    times, and the content of their ends), features.json, the split, the kept steps and the
    arguments. A cached result that is damaged or has other counts is computed again. With
    `episode_transform` nothing is cached, as a function cannot be hashed.

    Args:
        directory: See `RLDSDataset`.
        split: See `RLDSDataset`.
        action: Name of the action feature in a step, "action" by default. Several names are
            concatenated in order; for a dict, its leaves in the order of their names.
        proprio: Name of the state feature, such as "observation/state"; by default
            "observation/state" or "observation/proprio", if there is one.
        keep: See `RLDSDataset`: only the kept steps count, and the episodes that have some.
        keep_key: See `RLDSDataset`.
        episode_transform: See `RLDSDataset`; `action` and `proprio` then refer to its output.
        index: See `RLDSDataset`.
        index_dir: See `RLDSDataset`; the result is cached there, too.
        cache: Use a cached result, and cache a new one.
        storage_options: See `load`.

    Returns:
        ``{"action": {"mean": [...], "std": ..., "max": ..., "min": ..., "q01": ..., "q99": ...},
        "proprio": {...}, "num_transitions": steps, "num_trajectories": episodes}``, with lists of
        floats; "proprio" only if there is one.

    Raises:
        KeyError: A name is not among the step features.
        ParseError: A feature does not have a fixed number of values per step, or a value is not
            finite.
        ValueError: The split has no steps.

    Example:
        >>> dataset_statistics("bridge/0.1.0")["action"]["q01"]  # doctest: +SKIP
        [-0.0287, -0.0417, -0.0263, -0.0801, -0.0921, -0.2068, 0.0]
    """
    found = info_of(directory, storage_options)
    store = EpisodeStore(
        found,
        split,
        decode_images=False,
        transform=episode_transform,
        index=index,
        index_dir=index_dir,
        episode_bytes=0,
    )
    there = [
        "/".join(leaf.names[1:]) for leaf in leaves_of(found.features) if leaf.names[0] == STEPS
    ]
    # A transform may rename columns: the first episode shows which there are.
    if episode_transform is not None:
        there = list(_paths(store.episode(0).steps))
    columns = {
        "action": _names(there, action, "action"),
        "proprio": _names(there, proprio, *_PROPRIO),
    }
    if not columns["action"]:
        raise KeyError(
            f"no feature 'action' in the steps; set action to one of {shown_list(sorted(there))}"
        )
    if episode_transform is None:
        # Only what is counted is read.
        store = store.only([f"{STEPS}/{name}" for names in columns.values() for name in names])
    firsts, stops = np.zeros_like(store.num_steps), store.num_steps
    ranges = chosen_steps(store, firsts, stops, keep, keep_key)
    is_kept = cache and episode_transform is None
    keeper = _Keeper("auto" if is_kept else "memory", index_dir)
    arrays = keeper.find(_Rows(store, columns, ranges))
    described = {
        name: dict(zip(_NAMES, values.tolist(), strict=True))
        for name in columns
        if (values := arrays[name].reshape(len(_NAMES), -1)).size
    }
    num_steps, num_episodes = arrays["counts"].tolist()
    return {**described, "num_transitions": num_steps, "num_trajectories": num_episodes}


def _names(there: Sequence[str], chosen: str | Sequence[str] | None, *usual: str) -> list[str]:
    """Paths of number features in the steps, by default the first of the usual ones that is there;
    a dict of features means its leaves.
    """

    def below(top: str) -> list[str]:
        return sorted(path for path in there if f"{path}/".startswith(f"{top}/"))

    if chosen is None:
        return next(filter(None, map(below, usual)), [])
    names: list[str] = []
    for top in [chosen] if isinstance(chosen, str) else chosen:
        if not below(top):
            raise KeyError(
                f"no feature {top!r} in the steps; there are {shown_list(sorted(there))}"
            )
        names += below(top)
    return names


def _paths(tree: Mapping[str, object]) -> Iterator[str]:
    """The paths of the columns of steps."""
    for name, item in tree.items():
        yield from (
            (f"{name}/{path}" for path in _paths(item)) if isinstance(item, Mapping) else (name,)
        )


class _Rows:
    """The steps that count.

    Args:
        store: The episodes.
        columns: The paths of the features of each column.
        ranges: The steps that count.

    Attributes:
        num_steps: int64 [episodes], how many of each episode.
        counts: int64, the number of steps and of episodes.
    """

    def __init__(
        self,
        store: EpisodeStore,
        columns: Mapping[str, Sequence[str]],
        ranges: StepRanges,
    ) -> None:
        self.store, self.columns, self.ranges = store, columns, ranges
        # Arrays of the ranges, as an array of steps for each episode takes a gigabyte for 10^7.
        self._borders = ranges.episodes.searchsorted(np.arange(len(store) + 1))
        self.num_steps = np.diff(np.append(0, ranges.ends)[self._borders])
        self.counts = np.array([len(ranges), np.count_nonzero(np.diff(self._borders))], np.int64)

    @cached_property
    def key(self) -> str:
        """A hash of everything the result depends on."""
        info = self.store.info
        source = open_file(info._features_path, info.access)
        key = hashlib.sha256(source.read(source.file_size, 0))
        for part in (_FORMAT.version, self.columns, *self.store.identity()):
            key.update(json.dumps(part).encode() + b"\n")
        for array in (self.ranges.episodes, self.ranges.firsts, self.ranges.stops):
            key.update(array.tobytes() + b"\n")
        return key.hexdigest()

    @property
    def path(self) -> str:
        """The name that the result is kept under."""
        return posixpath.join(self.store.info.directory, f"dataset_statistics_{self.key}")

    def of(self, episode: Episode, path: str) -> npt.NDArray[np.float32]:
        """[steps, dimensions] of one feature, of the steps that count."""
        column: Any = episode.steps
        for name in path.split("/"):
            column = column.get(name) if isinstance(column, Mapping) else None
        if not isinstance(column, NumberColumn):
            raise ParseError(
                f"feature {path!r}: expected a fixed number of numbers in each step, got "
                f"{'none' if column is None else type(column).__name__}",
                path=self.store.info._features_path,
            )
        rows = np.asarray(column.values, np.float32).reshape(episode.num_steps, -1)
        own = slice(*self._borders[episode.number : episode.number + 2])
        spans = zip(self.ranges.firsts[own], self.ranges.stops[own], strict=True)
        return np.concatenate([rows[first:stop] for first, stop in spans])


def _describe(values: npt.NDArray[np.float32], name: str, rows: _Rows) -> npt.NDArray[np.float64]:
    """Each statistic of all dimensions, in the order of `_NAMES`, one after the other."""
    described = []
    for number in range(values.shape[1]):
        # one at a time, as float64 doubles the memory
        column = values[:, number].astype(np.float64)
        # One NaN would make all statistics of the dimension NaN, without a word why.
        if not np.isfinite(column).all():
            at = int(np.flatnonzero(~np.isfinite(column))[0])
            episode = int(np.searchsorted(np.cumsum(rows.num_steps), at, side="right"))
            raise ParseError(
                f"{name}, dimension {number}: expected finite numbers, got {column[at]} in episode {episode}",
                path=rows.store.info.directory,
            )
        # So that an offset costs no digits.
        shifted = column - column[0]
        mean = shifted.mean()
        std = np.sqrt(np.square(shifted - mean).mean())
        described.append(
            [mean + column[0], std, column.max(), column.min(), *np.quantile(column, [0.01, 0.99])]
        )
    return np.array(described, np.float64).ravel(order="F")


class _Keeper(SidecarKeeper[_Rows, _Arrays]):
    _kind = "statistics"

    def _loaded(self, data: _Rows, place: str) -> _Arrays:
        try:
            found = _FORMAT.read(
                place, lambda _: _MOST_KEPT_BYTES, "what is kept", access=data.store.info.access
            )
        except RemoteError as error:
            raise OSError(errno.EIO, "cannot be read", place) from error
        values = [found.arrays[name] for name in data.columns]
        if (
            found.metadata["key"] != data.key
            or not np.array_equal(found.arrays["counts"], data.counts)
            or any(len(each) % len(_NAMES) for each in values)
            or not all(np.isfinite(each).all() for each in values)
        ):
            raise IndexMismatchError("expected statistics of these steps, got others", path=place)
        return found.arrays

    def _build(self, data: _Rows) -> _Arrays:
        """The statistics of each column, one after the other, and the counts: see `_FORMAT`."""
        total = int(data.counts[0])
        if not total:
            raise ValueError(
                f"{without_secrets(data.store.info.directory)}: the split has no steps"
            )
        values: dict[str, npt.NDArray[np.float32]] = {}
        done = 0
        # An episode without a kept step is not read.
        for number in ProgressBar(
            np.flatnonzero(data.num_steps).tolist(), "statistics", unit="episode", delay=1.0
        ):
            episode = data.store.episode(number)
            end = done + int(data.num_steps[number])
            for name, paths in data.columns.items():
                parts = [data.of(episode, path) for path in paths]
                if parts:
                    if name not in values:
                        width = sum(part.shape[1] for part in parts)
                        values[name] = np.empty((total, width), np.float32)
                    np.concatenate(parts, axis=1, out=values[name][done:end])
            done = end
        described = {name: _describe(each, name, data) for name, each in values.items()}
        empty = dict.fromkeys(data.columns, np.zeros(0))
        return {**empty, **described, "counts": data.counts}

    def _packed(self, data: _Rows, found: _Arrays) -> bytes:
        return _FORMAT.pack({"key": data.key}, found)


# Normalising by them.


class Normalize:
    """Normalise the actions and the state of an episode, a sample or a batch by a dataset's
    statistics.

    As `episode_transform` (after your own) it runs once for each episode, before windows are cut;
    it is also a `step_transform`, and works on batches, on any device. It returns a new dict. A
    dimension x becomes::

        "normal"        (x - mean) / (std + epsilon)
        "bounds"        2 * (x - min) / (max - min + epsilon) - 1
        "bounds_q99"    2 * (x - q01) / (q99 - q01 + epsilon) - 1

    Args:
        statistics: What `dataset_statistics` returns; or the same from a
            ``dataset_statistics.json`` of OpenVLA (of one dataset) or Octo (with "p01" and "p99").
            Without "proprio", states stay as they are.
        normalization: One of these. OpenVLA names all three so; Octo's "bounds" is "bounds_q99"
            with ``zero_unchanging=False``; openpi's quantiles are "bounds_q99" with ``epsilon=1e-6,
            clip=False, zero_unchanging=False``.
        mask: For each action dimension, whether to normalise it: False for a gripper that is 0 or
            1. None: "mask" of the statistics' "action", else all.
        epsilon: Added to the divisor.
        clip: Limit to [-1, 1], for bounds.
        zero_unchanging: Set dimensions whose min is their max to 0, for bounds (also those that
            `mask` excludes, as in OpenVLA).
        action: Path of the actions, a tensor [..., dimensions].
        proprio: Path of the state; None for "observation/proprio" or "observation/state", whichever
            is there.

    Raises:
        ValueError: `normalization` is unknown, the statistics lack what it needs, or `mask` has
            another length.
        KeyError: When called: there is no tensor at a path.

    Example:
        >>> statistics = {"action": {"mean": [1.0, 0.0], "std": [2.0, 1.0]}}
        >>> normalize = Normalize(statistics, "normal", mask=[True, False])
        >>> batch = normalize({"action": torch.tensor([[5.0, 1.0]])})
        >>> batch["action"], normalize.inverse(batch["action"])
        (tensor([[2., 1.]]), tensor([[5., 1.]]))
    """

    def __init__(
        self,
        statistics: Mapping[str, Any],
        normalization: NormalizationType = "normal",
        *,
        mask: Sequence[bool] | None = None,
        epsilon: float = 1e-8,
        clip: bool = True,
        zero_unchanging: bool = True,
        action: str = "action",
        proprio: str | None = None,
    ) -> None:
        one_of("normalization", normalization, *_NEEDED)
        if not isinstance(statistics, Mapping) or "action" not in statistics:
            raise ValueError(
                f"statistics must be a dict with 'action', got {shown_value(statistics)}"
            )
        self._action, self._proprio = action, _PROPRIO if proprio is None else (proprio,)
        self._normalization = normalization
        # The mean and std of "normal" promise no range.
        self._is_bounded = normalization != "normal"
        self._clip = true_or_false("clip", clip) and self._is_bounded
        finds_unchanging = true_or_false("zero_unchanging", zero_unchanging) and self._is_bounded
        # The first value, the width and the only value of each dimension; whether it is normalised,
        # and whether it has only one value.
        self._scales: dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        for name in ("action", "proprio"):
            if name not in statistics:
                continue
            own = statistics[name]
            low, high = (_listed(name, own, each) for each in _NEEDED[normalization])
            chosen = own.get("mask") if mask is None or name != "action" else mask
            # through NumPy: a mask may be an array, or consist of 0 and 1
            is_scaled = torch.from_numpy(
                np.array([True] * len(low) if chosen is None else chosen, bool)
            )
            if is_scaled.shape != low.shape:
                raise ValueError(
                    f"mask must have {len(low)} values, as {name!r} of the statistics, got {chosen}"
                )
            is_unchanging, only = torch.zeros_like(is_scaled), low
            if finds_unchanging:
                only = _listed(name, own, "min")
                is_unchanging = only == _listed(name, own, "max")
            width = (high - low if self._is_bounded else high) + epsilon
            # float64, so that nothing is lost before it is cast to the values' dtype
            self._scales[name] = torch.stack([low, width, only]), is_scaled, is_unchanging

    def __call__(self, values: Mapping[str, object]) -> dict[str, Any]:
        """Normalise an episode, a sample or a batch."""
        return self._map(values, self._forward)

    def inverse(self, values: object, name: Literal["action", "proprio"] = "action") -> Any:
        """Take back what the call does: for a tensor [..., dimensions] of actions (or "proprio"),
        or for a dict.

        A dimension that was set to 0 gets its only value.
        """
        if isinstance(values, Mapping):
            return self._map(values, self._backward)
        return self._backward(
            name, torch.as_tensor(values, device=getattr(values, "device", "cpu"))
        )

    def _map(self, values: Mapping[str, object], change: _Change) -> dict[str, object]:
        changed = _replace_at(values, self._action.split("/"), partial(change, "action"))
        if "proprio" not in self._scales:
            return changed
        for path in self._proprio:
            # The first usual name that is there; one of the user's own must be.
            with contextlib.suppress(KeyError):
                return _replace_at(changed, path.split("/"), partial(change, "proprio"))
        raise KeyError(
            f"no {' or '.join(map(repr, self._proprio))} to normalise; set proprio to the path of the state, "
            "or leave 'proprio' out of the statistics"
        )

    def _forward(self, name: str, values: Any) -> torch.Tensor:
        low, width, _, is_scaled, is_unchanging = self._on(name, values)
        scaled = 2 * (values - low) / width - 1 if self._is_bounded else (values - low) / width
        scaled = torch.where(is_scaled, scaled.clamp(-1, 1) if self._clip else scaled, values)
        return torch.where(is_unchanging, 0, scaled)

    def _backward(self, name: str, values: Any) -> torch.Tensor:
        low, width, only, is_scaled, is_unchanging = self._on(name, values)
        raw = (values + 1) / 2 * width + low if self._is_bounded else values * width + low
        return torch.where(is_unchanging, only, torch.where(is_scaled, raw, values))

    def _on(self, name: str, values: object) -> tuple[torch.Tensor, ...]:
        """The numbers on the device and in the dtype of the values."""
        rows, *flags = self._scales[name]
        if not isinstance(values, torch.Tensor) or values.shape[-1:] != rows.shape[1:]:
            shape = getattr(values, "shape", None)
            got = type(values).__name__ if shape is None else f"shape {list(shape)}"
            raise ValueError(
                f"{name}: expected a tensor [..., {rows.shape[1]}], as the statistics, got {got}"
            )
        dtype = values.dtype if values.is_floating_point() else torch.float32
        return *rows.to(values.device, dtype), *(flag.to(values.device) for flag in flags)

    def __repr__(self) -> str:
        return f"Normalize({self._normalization!r}, {', '.join(self._scales)})"


def _listed(name: str, statistics: Mapping[str, object], wanted: str) -> torch.Tensor:
    """One list of the statistics; quantiles also by the names that Octo gives them."""
    there = next((each for each in (wanted, wanted.replace("q", "p")) if each in statistics), None)
    if there is None:
        raise ValueError(
            f"statistics: {name!r} lacks {wanted!r}, there are {shown_list(list(statistics), repr)}"
        )
    # through NumPy: the values may be arrays, of any dtype
    return torch.from_numpy(np.array(statistics[there], np.float64))


def _replace_at(
    values: Mapping[str, object], path: Sequence[str], change: Callable[[Any], object]
) -> dict[str, object]:
    """A copy with another value at a path."""
    name, *rest = path
    if not isinstance(values, Mapping) or name not in values:
        raise KeyError(f"no {name!r} to normalise; there are {shown_list(list(values), repr)}")
    inner: Any = values[name]
    changed = _replace_at(inner, rest, change) if rest else change(inner)
    return {**values, name: changed}
