"""Read RLDS and Open X-Embodiment episodes: windows of steps by position, or whole episodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import index as as_integer
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch.utils.data import Dataset

from torch_tfrecord.arguments import IndexPolicy, Pad, check_callable, integer
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, BatchBudget, check_max_batch_bytes
from torch_tfrecord.batches.collate import collate
from torch_tfrecord.batches.column_batch import ColumnBatch
from torch_tfrecord.batches.sample_block import take_apart
from torch_tfrecord.batches.transport import register_in_worker
from torch_tfrecord.errors import LimitExceededError, TFRecordError
from torch_tfrecord.order.leaves import defines_last
from torch_tfrecord.order.position_batch import is_batch_of_positions, list_of_positions
from torch_tfrecord.samples import Places, SampleList, transform_each, transform_one
from torch_tfrecord.shown import shown_features, shown_files, shown_transform
from torch_tfrecord.tfds.dataset_info import DatasetInfo
from torch_tfrecord.tfds.episode_columns import each_leaf
from torch_tfrecord.tfds.episode_store import STEPS, DecodeImages, Episode, EpisodeStore, EpisodeTransform
from torch_tfrecord.tfds.parser import Chosen
from torch_tfrecord.tfds.splits import Split
from torch_tfrecord.tfds.windows import (
    DifferentNamesError,
    Span,
    StepBatch,
    Windows,
    laid_out,
    shared_names,
    together,
    window,
)
from torch_tfrecord.values.dtypes import decode_text

__all__ = ["INSTRUCTIONS", "RLDSDataset", "RLDSEpisodes", "instruction"]

_OBSERVATION, _ACTION = "observation", "action"
INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction")
# The episodes of a batch are held in memory together up to this many bytes: records that are read whole may be large.
_MOST_HELD_BYTES = 256 << 20

_Same = TypeVar("_Same", bound="_EpisodeDataset")


class _EpisodeDataset(Dataset[Any]):
    """The shared base of `RLDSDataset` and `RLDSEpisodes`: a range of positions over the episodes of a split."""

    _unit = "episodes"

    def __init__(self, store: EpisodeStore, num_positions: int, max_batch_bytes: int) -> None:
        self._store = store
        self._max_batch_bytes = max_batch_bytes
        self.info = store.info
        self.num_steps = store.num_steps
        self._positions = range(num_positions)

    def __len__(self) -> int:
        return len(self._positions)

    def _part(self: _Same, positions: slice) -> _Same:
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        part._positions = self._positions[positions]
        return part

    def _absolute(self, position: int) -> int:
        try:
            return self._positions[as_integer(position)]
        except IndexError:
            raise IndexError(f"position {position} is out of range for {len(self)} {self._unit}") from None

    def _of_episode(self, number: int, make: Callable[[Episode], dict[str, Any]]) -> dict[str, Any]:
        """Build a sample from one episode, by its number, within the memory budget of a batch."""
        try:
            with BatchBudget(self._max_batch_bytes):
                return make(self._store.episode(number))
        except LimitExceededError as error:
            raise error if error.path else self._store.record(number).locate(error) from error.__cause__

    def _shown(self, what: str, windows: str, **transforms: object) -> str:
        files, features = shown_files(self._store.files), shown_features(self._store.features)
        shown = "".join(shown_transform(name, transform) for name, transform in transforms.items())
        return f"{what} of {self.info.name}/{self.info.version}, {windows}{files}{features}{shown}"


class RLDSDataset(_EpisodeDataset):
    """A dataset of steps, each with a window of past observations and a horizon of future actions.

    Each position is one step; episodes follow in file order. A sample reads and decodes only the frames of its window,
    and checks each against a checksum. The first use reads every file once to build an index, which is stored next to
    the data. Use it like any map-style dataset: with DataLoader, `RecordSampler`, `Mixture` or Subset. It pickles
    without open files, and is safe after fork and spawn, and from threads.

    The sample at step t of an episode with T steps::

        observation      the dataset's own names, each [window_size, ...]: steps t - window_size + 1 to t; images are
                         a tv_tensors.Video [window_size, C, H, W]
            timestep     int64 [window_size]: step numbers
            pad_mask     bool [window_size]: True for a step of the episode, False for padding
        action           [action_horizon, ...]: steps t to t + action_horizon - 1; a dict if the dataset has one
        action_pad_mask  bool [action_horizon]
        task             {"language_instruction": str}, "" if there is none
        reward, is_first, ...   the other features of step t
        episode_metadata ...    the other features of the episode
        dataset_name     str
        _len, _traj_index, _frame_index    int: T, the number of the episode in this split, t

    Args:
        directory: See `tfds.info`; or a `DatasetInfo`.
        split: See `tfds.load`; slices count episodes: ``"train[:90%]"``.
        window_size: Number of observations per sample: the current step and those before it.
        action_horizon: Number of actions per sample: the current step and those after it (the term in Octo; OpenVLA's
            ``future_action_window_size`` is one less).
        pad: Padding at the ends of an episode: "repeat" the first observation and the last action, "zero", or None:
            steps whose window or horizon does not fit are excluded.
        decode_images: False returns images as encoded bytes; or pass the names of those to decode, such as ["image"].
        features: Paths to read, such as ["steps/observation/image", "steps/action"]; None for all.
        step_transform: Called with each sample.
        episode_transform: Called with each episode when it is read: a dict of the step columns and the metadata.
            Numbers are tensors [T, ...], text is lists of str, images are objects of length T that are not read yet.
            You may rename, change or drop columns, but each must keep one value per step. Must be a pure function:
            its result is cached for further samples of the episode.
        index: See `TFRecordDataset`.
        index_dir: See `TFRecordDataset`.
        cache_bytes: Memory limit, in each process, for the columns of recently read episodes. Frames are not cached.
        max_batch_bytes: See `TFRecordDataset`; counts the windows and frames of the samples.
        storage_options: See `load`.

    Attributes:
        info: The `DatasetInfo` of the directory.
        num_steps: int64 [episodes]: steps of each episode.

    Raises:
        FileNotFoundError, IndexMismatchError, ParseError, ValueError: See `tfds.load`; also if the dataset has no
            steps, or the features of an episode have different numbers of steps.

    Example:
        >>> ds = RLDSDataset("bridge/0.1.0", "train", window_size=2, action_horizon=4)  # doctest: +SKIP
        >>> ds[0]["observation"]["image"].shape, ds[0]["action"].shape  # doctest: +SKIP
        (torch.Size([2, 3, 256, 256]), torch.Size([4, 7]))
    """

    _unit = "steps"

    def __init__(
        self,
        directory: str | os.PathLike[str] | DatasetInfo,
        split: Split = "train",
        *,
        window_size: int = 1,
        action_horizon: int = 1,
        pad: Pad = "repeat",
        decode_images: DecodeImages = True,
        features: Chosen = None,
        step_transform: Callable[[dict[str, Any]], Any] | None = None,
        episode_transform: EpisodeTransform | None = None,
        index: IndexPolicy = "auto",
        index_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int = 32 << 20,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_callable("step_transform", step_transform)
        check_callable("episode_transform", episode_transform)
        integer("cache_bytes", cache_bytes)
        check_max_batch_bytes(max_batch_bytes)
        self._windows = Windows(window_size, action_horizon, pad)
        store = EpisodeStore(
            directory,
            split,
            features=features,
            decode_images=decode_images,
            transform=episode_transform,
            index=index,
            index_dir=index_dir,
            cache_bytes=cache_bytes,
            storage_options=storage_options,
        )
        self._step_transform = step_transform
        counts = self._windows.num_positions(store.num_steps)
        self._ends = np.cumsum(counts)
        self._begins = self._ends - counts
        super().__init__(store, int(self._ends[-1]) if len(self._ends) else 0, max_batch_bytes)

    @overload
    def __getitem__(self, position: slice) -> RLDSDataset: ...

    @overload
    def __getitem__(self, position: Any) -> Any: ...

    def __getitem__(self, position: Any) -> Any:
        """Return the sample at a position (negative counts from the end), or for a slice a dataset of those positions.

        For a list of positions, or a 1-D integer array or tensor, return the batch that `collate` makes of the samples.
        """
        if isinstance(position, slice):
            return self._part(position)
        if is_batch_of_positions(position):
            return collate(self.__getitems__(list_of_positions(position)))
        register_in_worker()
        sample = self._one(position)
        if self._step_transform is None:
            return sample
        return transform_one(self._step_transform, sample, self._places([position]), 0)

    def __getitems__(self, positions: Sequence[int]) -> Sequence[Any]:
        """Return the samples at several positions, in that order; DataLoader calls this for each batch.

        Reads in file order and returns columns, which `collate` passes on without stacking again. To any other code,
        the result is a sequence of samples, each equal to `ds[position]`.
        """
        if not defines_last(self, "__getitems__"):  # a subclass overrides __getitem__
            return [self[position] for position in positions]
        return self._transform_samples(self._load_samples(positions))

    def _load_samples(self, positions: Sequence[int]) -> Sequence[Any]:
        """`__getitems__` without the step_transform: reads, verifies and decodes. Safe from several threads."""
        places = self._locate_all(positions)
        if not places:
            return []
        try:
            with BatchBudget(self._max_batch_bytes):
                return ColumnBatch(self._columns(places), len(places), self._places(positions))
        except (TFRecordError, DifferentNamesError, _TooLargeError):
            # One by one, to raise the error of the first bad position.
            with BatchBudget(self._max_batch_bytes):
                return SampleList([self._one(position) for position in positions], self._places(positions))

    def _load_batches(self, batches: Sequence[Sequence[int]]) -> list[Sequence[Any]]:
        """`_load_samples` for several batches."""
        return [self._load_samples(positions) for positions in batches]

    @property
    def _has_user_transform(self) -> bool:
        """Whether there is a step_transform, which may have side effects, such as draws from the global RNG."""
        return self._step_transform is not None

    def _transform_samples(self, samples: Sequence[Any]) -> Sequence[Any]:
        """Apply the step_transform to each sample from `_load_samples`."""
        transform = self._step_transform
        return samples if transform is None else transform_each(transform, samples)

    def locate(self, position: int) -> tuple[int, int]:
        """Return (episode number, step number) of a position."""
        return self._locate_all([position])[0]

    def _places(self, positions: Sequence[int]) -> Places:
        def place(number: int) -> str:
            episode, step = self.locate(positions[number])
            return f"{self._store.place(episode)}, episode {episode}, step {step}"

        return place

    def _locate_all(self, positions: Sequence[int]) -> list[tuple[int, int]]:
        absolute = np.array([self._absolute(position) for position in positions], np.int64)
        numbers = self._ends.searchsorted(absolute, side="right")
        steps = (absolute - self._begins[numbers]).tolist()
        return list(zip(numbers.tolist(), map(self._windows.step, steps), strict=True))

    def _one(self, position: int) -> dict[str, Any]:
        number, step = self.locate(position)
        return self._of_episode(number, lambda episode: self._sample(episode, step))

    def _sample(self, episode: Episode, step: int) -> dict[str, Any]:
        """The row of `_columns` for one step, computed faster."""
        pad = self._windows.pad
        seen, done = self._windows.observations(step), self._windows.actions(step, episode.num_steps)
        sample: dict[str, Any] = {}
        for name, columns in episode.steps.items():
            if name == _OBSERVATION:
                sample[name] = each_leaf(columns, lambda column: window(column, seen, pad))
            elif name == _ACTION:
                sample[name] = each_leaf(columns, lambda column: window(column, done, pad))
            else:
                sample[name] = each_leaf(columns, lambda column: column.at(step))
        observation = sample.setdefault(_OBSERVATION, {})
        if isinstance(observation, dict):
            observation["timestep"] = torch.from_numpy(seen.repeated())
            observation["pad_mask"] = torch.from_numpy(seen.mask())
        sample["action_pad_mask"] = torch.from_numpy(done.mask())
        sample["task"] = {"language_instruction": instruction(episode, step)}
        sample.update(each_leaf(episode.metadata, _own))
        sample["dataset_name"] = self.info.name
        sample["_len"], sample["_traj_index"], sample["_frame_index"] = episode.num_steps, episode.number, step
        return sample

    def _columns(self, places: list[tuple[int, int]]) -> dict[str, Any]:
        """The columns of the samples at these (episode, step) places."""
        held = self._held({number for number, _ in places})
        episodes, steps = [held[number] for number, _ in places], [step for _, step in places]
        seen = [self._windows.observations(step) for step in steps]
        done = [self._windows.actions(step, item.num_steps) for item, step in zip(episodes, steps, strict=True)]
        order = sorted(range(len(places)), key=places.__getitem__)
        take_seen, take_done, take_one = (
            StepBatch(spans, order, self._windows.pad)
            for spans in (seen, done, [Span(step, step + 1) for step in steps])
        )
        columns: dict[str, Any] = {}
        for name, trees in shared_names([episode.steps for episode in episodes]):
            way = {_OBSERVATION: take_seen.take, _ACTION: take_done.take}.get(name, take_one.at)
            columns[name] = together(trees, way)
        observation = columns.setdefault(_OBSERVATION, {})
        if isinstance(observation, dict):
            observation["timestep"], observation["pad_mask"] = map(torch.from_numpy, laid_out(seen))
        columns["action_pad_mask"] = torch.from_numpy(laid_out(done)[1])
        texts = [instruction(episode, step) for episode, step in zip(episodes, steps, strict=True)]
        columns["task"] = {"language_instruction": texts}
        for name, trees in shared_names([episode.metadata for episode in episodes]):
            columns[name] = together(trees, lambda values: [*map(_own, values)])
        columns["dataset_name"] = [self.info.name] * len(places)
        # Lists, as a sample has these as int.
        columns["_len"] = [episode.num_steps for episode in episodes]
        columns["_traj_index"], columns["_frame_index"] = [episode.number for episode in episodes], steps
        return columns

    def _held(self, numbers: set[int]) -> dict[int, Episode]:
        """The episodes by number, read in order."""
        found: dict[int, Episode] = {}
        num_bytes = 0
        for number in sorted(numbers):
            found[number] = self._store.episode(number)
            num_bytes += found[number].num_bytes
            if num_bytes > _MOST_HELD_BYTES:
                raise _TooLargeError
        return found

    def __repr__(self) -> str:
        transforms = {"step_transform": self._step_transform, "episode_transform": self._store.episode_transform}
        what = f"{len(self)} positions in {len(self.num_steps)} episodes"
        return f"RLDSDataset({self._shown(what, f'{self._windows}, ', **transforms)})"


class RLDSEpisodes(_EpisodeDataset):
    """A dataset of whole episodes: ``{"steps": {"action": [T, ...], ...}, "episode_metadata": ...}``.

    Args:
        directory: See `RLDSDataset`.
        split: See `RLDSDataset`.
        decode_images: See `RLDSDataset`. The images of all steps are decoded to a `tv_tensors.Video` [T, C, H, W]; with
            False, they are a list of T bytes.
        features: See `RLDSDataset`.
        transform: Called with each episode.
        index: See `TFRecordDataset`.
        index_dir: See `TFRecordDataset`.
        max_batch_bytes: See `TFRecordDataset`; applies to one episode.
        storage_options: See `load`.

    Attributes:
        info: The `DatasetInfo` of the directory.
        num_steps: int64 [episodes]: steps of each episode.

    Example:
        >>> episodes = RLDSEpisodes("bridge/0.1.0", "train", decode_images=False)  # doctest: +SKIP
        >>> episodes[0]["steps"]["action"].shape  # doctest: +SKIP
        torch.Size([38, 7])
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | DatasetInfo,
        split: Split = "train",
        *,
        decode_images: DecodeImages = True,
        features: Chosen = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        index: IndexPolicy = "auto",
        index_dir: str | os.PathLike[str] | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_callable("transform", transform)
        check_max_batch_bytes(max_batch_bytes)
        store = EpisodeStore(
            directory,
            split,
            features=features,
            decode_images=decode_images,
            index=index,
            index_dir=index_dir,
            cache_bytes=0,
            storage_options=storage_options,
        )
        self._transform = transform
        super().__init__(store, len(store), max_batch_bytes)

    @overload
    def __getitem__(self, position: slice) -> RLDSEpisodes: ...

    @overload
    def __getitem__(self, position: int) -> Any: ...

    def __getitem__(self, position: int | slice) -> Any:
        """Return the episode at a position (negative counts from the end), or for a slice a dataset of them."""
        if isinstance(position, slice):
            return self._part(position)
        register_in_worker()
        number = self._absolute(position)
        item = self._of_episode(number, self._whole)
        return item if self._transform is None else transform_one(self._transform, item, self._store.place, number)

    def _whole(self, episode: Episode) -> dict[str, Any]:
        batch = StepBatch([Span(0, episode.num_steps)], [0], None)
        steps = each_leaf(episode.steps, lambda column: take_apart(batch.take([column]), 1)[0])
        metadata = each_leaf(episode.metadata, _own)
        return {STEPS: steps, **metadata, "_len": episode.num_steps, "_traj_index": episode.number}

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Return the episodes at several positions, in that order."""
        return [self[position] for position in positions]

    def __repr__(self) -> str:
        return f"RLDSEpisodes({self._shown(f'{len(self)} episodes', '', transform=self._transform)})"


class _TooLargeError(Exception):
    """The episodes of a batch do not fit into memory together."""


def _own(value: Any) -> Any:
    """Copy metadata, so that a sample may modify it."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def instruction(episode: Episode, step: int) -> str:
    """The language instruction: the first of the usual names in the step, its observation, or the episode."""
    for tree in _text_places(episode):
        for name in INSTRUCTIONS if isinstance(tree, Mapping) else ():
            value = tree.get(name)
            value = value.at(step) if hasattr(value, "at") else value
            if isinstance(value, (str, bytes)):
                return value if isinstance(value, str) else decode_text(value)
    return ""


def _text_places(episode: Episode) -> Iterator[Any]:
    yield episode.steps
    yield episode.steps.get(_OBSERVATION)
    yield episode.metadata
    yield from episode.metadata.values()
