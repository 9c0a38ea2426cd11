"""Samples of steps: the windows of the columns of their episodes, one sample or a batch as
columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from torch_tfrecord.arguments import Pad
from torch_tfrecord.batch_memory import (
    OBJECT_BYTES,
    TENSOR_BYTES,
    Ints,
    Keys,
    as_array,
    as_tensor,
    reserve,
)
from torch_tfrecord.columns import decode_text, stack
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.rlds.draws import Drawn, MaskedColumn
from torch_tfrecord.rlds.episode_columns import (
    Decoding,
    EpisodeColumn,
    each_leaf,
)
from torch_tfrecord.rlds.episode_index import Frames, read_frames
from torch_tfrecord.rlds.episode_store import Episode
from torch_tfrecord.rlds.windows import Windows
from torch_tfrecord.samples import is_ragged
from torch_tfrecord.torch_internals import as_kind_of

__all__ = ["DifferentNamesError", "StepBatch", "finish", "own", "step_columns"]

_Found: TypeAlias = Mapping[int, list[bytes]]
"""The frames of windows, by the number of their sample."""


class _Late(NamedTuple):
    """A column whose frames are still to be read."""

    windows: Mapping[int, tuple[Frames, int, int]]
    """By the number of their sample: see `read_frames`."""
    make: Callable[[_Found], object]


# Batches.


class DifferentNamesError(ValueError):
    """The episodes of a batch have different column names."""


def _together(trees: list[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Merge trees with the same names, joining the leaves with the same path."""
    # by their types, of which there are few: a batch has thousands of leaves
    if any(issubclass(kind, Mapping) for kind in set(map(type, trees))):
        names = _same_names(trees)
        return {name: _together([tree[name] for tree in trees], join) for name in names}
    return join(trees)


def _same_names(trees: Sequence[Any]) -> list[str]:
    """The names of mappings.

    Raises:
        DifferentNamesError: They differ, or not all are mappings.
    """
    are_trees = all(issubclass(kind, Mapping) for kind in set(map(type, trees)))
    if not are_trees or any(tree.keys() != trees[0].keys() for tree in trees[1:]):
        raise DifferentNamesError
    return [*trees[0]]


class StepBatch:
    """Takes windows of equal size from the columns of several episodes, each of another or of the
    same one.

    Args:
        episodes: The episode of each sample; columns are passed in the same order.
        keys: The random key of each, which determines its crops.
        decode_on: See `RLDSDataset`.
        begins: int64 [B]: the step that each window begins at. Those before the episode, and after
            it, are padding.
        size: Number of steps of each window.
        pad: Padding of missing steps: "repeat", "zero" or None.
        is_step: Whether the windows are of one step each, whose value is taken without the
            dimension of steps.

    Attributes:
        steps: int64 [B, size]: the steps, where padding repeats the nearest one.
        is_real: bool [B, size]: whether it is a step of the episode.
    """

    def __init__(
        self,
        episodes: Sequence[Episode],
        keys: Keys,
        decode_on: str,
        begins: Ints,
        size: int = 1,
        pad: Pad = None,
        *,
        is_step: bool = False,
    ) -> None:
        stops = np.array([one.num_steps for one in episodes])
        places = begins[:, None] + np.arange(size)
        self.steps = np.minimum(np.maximum(places, 0), stops[:, None] - 1)
        self.is_real = self.steps == places
        self._begins, self._size, self._pad, self._is_step = begins, size, pad, is_step
        self._keys = keys
        firsts, stops = np.maximum(begins, 0), np.minimum(begins + size, stops)
        self._spans = [*zip(firsts.tolist(), stops.tolist(), strict=True)]
        # Padding is made of frames that are there.
        self._decode_on = decode_on if self.is_real.all() else "cpu"

    def take(self, columns: Sequence[EpisodeColumn], *, is_goal: bool = False) -> object:
        """[B, steps, ...] for numbers; for all else what `finish` makes a column of. Masked pictures are
        read for goals alone.
        """
        numbers = self._numbers(columns)
        if numbers is not None:
            return torch.from_numpy(numbers[:, 0] if self._is_step else numbers)
        windows = {
            number: (column.values, *self._spans[number])
            for number, column in enumerate(columns)
            if isinstance(column.values, Frames)
            and (is_goal or not isinstance(column, MaskedColumn))
        }
        return _Late(windows, partial(self._decoded, columns))

    def _decoded(self, columns: Sequence[EpisodeColumn], frames: _Found) -> object:
        """[B, steps, ...] for images; else a list of B windows, each stacked if possible."""
        pictures = self._pictures(columns, frames)
        if pictures is not None:
            return (
                pictures[:, 0].as_subclass(tv_tensors.Image)
                if self._is_step
                else pictures.as_subclass(tv_tensors.Video)
            )
        return [self._window(number, column, frames) for number, column in enumerate(columns)]

    def _numbers(self, columns: Sequence[EpisodeColumn]) -> npt.NDArray[np.generic] | None:
        arrays: list[Any] = [getattr(column, "array", None) for column in columns]
        # Episodes may differ if a transform made the columns.
        if any(array is None for array in arrays):
            return None
        first, sizes = arrays[0], (len(arrays), self._size)
        # Before the memory is allocated: a window may be of a million steps.
        reserve(math.prod((*sizes, *first.shape[1:])) * first.itemsize)
        out = np.empty((*sizes, *first.shape[1:]), first.dtype)
        pieces = [
            # A slice copies nothing.
            array[begin:stop] if stop - begin == self._size else array[steps]
            for array, (begin, stop), steps in zip(arrays, self._spans, self.steps, strict=True)
        ]
        try:  # one call, which also checks that all have the same dtype and shape
            rows = out.reshape(math.prod(sizes), *first.shape[1:])
            np.concatenate(pieces, out=rows, casting="no")
        except (TypeError, ValueError):
            return None
        if self._pad == "zero":
            out[~self.is_real] = 0
        return out

    def _pictures(self, columns: Sequence[EpisodeColumn], frames: _Found) -> torch.Tensor | None:
        """uint8 [B, steps, C, H, W]; None if they are not plain images, or do not all have the
        expected size.
        """
        # One object for each feature of a dataset: by it columns of the same files are known.
        plans: list[Decoding | None] = [getattr(column, "decoding", None) for column in columns]
        image = None if plans[0] is None else plans[0].image
        if image is None:
            return None
        # Cameras of which one is drawn have plans of their own.
        different = {id(plan): plan for plan in plans}.values()
        if any(plan is None or plan.image != image for plan in different):
            return None
        shape = len(columns), self._size
        # Short lists are in memory, and an `episode_transform` may have put other columns there.
        # Nor are pictures read that are masked.
        there = [
            number in frames or not isinstance(column.values, Frames)
            for number, column in enumerate(columns)
        ]
        is_real = self.is_real & np.array(there)[:, None]
        places = np.flatnonzero(is_real)
        numbers = places // self._size
        read = dict.fromkeys(numbers.tolist())
        values = (self._stored(number, columns[number], frames) for number in read)
        try:
            stack = image._decoded(
                [*chain.from_iterable(values)],
                [plans[number].shape for number in numbers.tolist()],
                self._keys[numbers],
                places.tolist(),
                math.prod(shape),
                self._decode_on,
            )
        except TFRecordError:  # does not name the image: decode one by one
            return None
        if stack is None:
            return None
        # A view of [N, H, W, C] memory.
        batch = as_tensor(as_array(stack), stack.dtype, (*shape, *stack.shape[1:]))
        for number, place in np.argwhere(~is_real).tolist():
            nearest = self.steps[number, place] - self._begins[number]
            is_repeated = self._pad == "repeat" and there[number]
            batch[number, place] = batch[number, nearest] if is_repeated else 0
        return batch

    def _stored(self, number: int, column: EpisodeColumn, frames: _Found) -> Any:
        return frames[number] if number in frames else column.stored(*self._spans[number])

    def _window(self, number: int, column: EpisodeColumn, frames: _Found) -> object:
        """The values of a window: a tensor [steps, ...], a `tv_tensors.Video` for images, or a
        list.
        """
        first, key = self._spans[number][0], int(self._keys[number])
        is_list = getattr(column, "is_list", False)
        if not self._is_step:
            reserve(self._size * (OBJECT_BYTES if is_list else TENSOR_BYTES))
        # Padding is not read again.
        read = column.decoded(self._stored(number, column, frames), first, key)
        if self._is_step:
            return read[0]
        values = [read[step - first] for step in self.steps[number].tolist()]
        if self._pad == "zero":
            empty, is_real = _empty(values[0], is_list), self.is_real[number]
            values = [value if real else empty for value, real in zip(values, is_real, strict=True)]
        return values if is_list else _stack_alike(values)


def finish(tree: Any) -> Any:
    """The columns that `StepBatch.take` made, with the frames that they want, all in one read."""
    leaves: list[object] = []
    each_leaf(tree, leaves.append)
    wanted = [leaf.windows.values() for leaf in leaves if isinstance(leaf, _Late)]
    found = iter(read_frames([*chain.from_iterable(wanted)]))

    def made(leaf: object) -> object:
        if not isinstance(leaf, _Late):
            return leaf
        return leaf.make(dict(zip(leaf.windows, found, strict=False)))

    return each_leaf(tree, made)


def _empty(value: object, is_list: bool) -> object:
    """The padding value with pad="zero"."""
    if isinstance(value, torch.Tensor) and not is_list:
        # zeros are a plain tensor, also for a tv_tensor
        return as_kind_of(torch.zeros_like(value), value)
    return b"" if is_list and not isinstance(value, (str, type(None))) else type(value)()


def _stack_alike(values: list[Any]) -> object:
    """Stack tensors of equal shape, images to a `tv_tensors.Video`; return anything else as the
    list.
    """
    first = values[0] if values else None
    if (
        not isinstance(first, torch.Tensor)
        or is_ragged(first)
        or any(value.is_nested for value in values)
    ):
        return values
    stacked = stack([value.as_subclass(torch.Tensor) for value in values])
    if not isinstance(stacked, torch.Tensor):
        return values
    # Several steps of an image are a video for the transforms of torchvision.
    if isinstance(first, tv_tensors.Image):
        return stacked.as_subclass(tv_tensors.Video)
    return stacked.as_subclass(tv_tensors.Mask) if isinstance(first, tv_tensors.Mask) else stacked


_OBSERVATION, _ACTION = "observation", "action"
INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction")


def step_columns(
    windows: Windows,
    episodes: Sequence[Episode],
    steps: Ints,
    goals: Ints | None,
    drawn: Drawn | None,
    keys: Keys,
    decode_on: str,
) -> dict[str, object]:
    """The columns of the samples of these steps, each of one episode, with their goal steps, what is
    drawn for them, if anything is, and their random keys.
    """
    past, future, pad = windows
    declared = [episode.steps for episode in episodes]
    if drawn is not None:
        episodes = [
            episode._replace(steps=drawn.steps(episode.steps, number))
            for number, episode in enumerate(episodes)
        ]
    windows_of = partial(StepBatch, episodes, keys, decode_on)
    seen = windows_of(steps - (past - 1), past, pad)
    done = windows_of(steps, future, pad)
    one = windows_of(steps, is_step=True)
    ways = {_OBSERVATION: seen.take, _ACTION: done.take}
    trees = [episode.steps for episode in episodes]
    columns = {
        name: _together([tree[name] for tree in trees], ways.get(name, one.take))
        for name in _same_names(trees)
    }
    task: dict[str, Any] = {}
    if goals is not None:
        at_goal = windows_of(goals, is_step=True)
        observed = (episode.steps.get(_OBSERVATION, {}) for episode in episodes)
        parts = [one if isinstance(one, Mapping) else {_OBSERVATION: one} for one in observed]
        task = _together(parts, partial(at_goal.take, is_goal=True))
        task["timestep"] = goals.tolist()
    columns, task = finish({"": columns, "task": task}).values()
    if drawn is not None:
        drawn.mask(declared, columns)
    task["language_instruction"] = [*map(instruction, episodes, steps.tolist())]
    observation = columns.setdefault(_OBSERVATION, {})
    if isinstance(observation, dict):  # an `episode_transform` may have made a column of it
        observation["timestep"] = torch.from_numpy(seen.steps)
        observation["pad_mask"] = torch.from_numpy(seen.is_real)
    columns["action_pad_mask"] = torch.from_numpy(done.is_real)
    metadata = [episode.metadata for episode in episodes]
    # Lists, as a sample has these as int.
    return {
        **columns,
        "task": task,
        **_together(metadata, lambda values: [*map(own, values)]),
        "_len": [episode.num_steps for episode in episodes],
        "_traj_index": [episode.number for episode in episodes],
        "_frame_index": steps.tolist(),
    }


def own(value: object) -> object:
    """Copy metadata, so that a sample may modify it."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def instruction(episode: Episode, step: int) -> str:
    """The language instruction: the first of the usual names in the step, its observation, or the
    episode.
    """
    steps, metadata = episode.steps, episode.metadata
    places: tuple[Any, ...] = (steps, steps.get(_OBSERVATION), metadata, *metadata.values())
    for tree in places:
        for name in INSTRUCTIONS if isinstance(tree, Mapping) else ():
            value = tree.get(name)
            value = value.at(step) if isinstance(value, EpisodeColumn) else value
            if isinstance(value, (str, bytes)):
                return value if isinstance(value, str) else decode_text(value)
    return ""
