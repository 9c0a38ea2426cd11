"""Samples of steps: the windows of the columns of their episodes, one sample or a batch as
columns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from torch_tfrecord.arguments import Pad
from torch_tfrecord.batch_memory import OBJECT_BYTES, TENSOR_BYTES, reserve
from torch_tfrecord.columns.dtypes import decode_text
from torch_tfrecord.columns.stacking import as_kind_of, is_ragged, stack
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.images.regions import decode_stack
from torch_tfrecord.tfds.episode_columns import (
    EncodedColumn,
    EpisodeColumn,
    ListColumn,
    NumberColumn,
    each_leaf,
    own_tensor,
    read_encoded,
)
from torch_tfrecord.tfds.episode_store import Episode
from torch_tfrecord.tfds.windows import Span, Windows, lay_out

__all__ = [
    "DifferentNamesError",
    "StepBatch",
    "StepSamples",
    "own",
    "shared_names",
    "together",
    "window",
]

# Batches.


class DifferentNamesError(ValueError):
    """The episodes of a batch have different column names."""


def together(trees: Sequence[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Merge trees with the same names, joining the leaves with the same path.

    Raises:
        DifferentNamesError: The names differ.

    Example:
        >>> together([{"x": 1}, {"x": 2}], sum)
        {'x': 3}
    """
    if any(map(_is_tree, set(map(type, trees)))):
        return {name: together(parts, join) for name, parts in shared_names(trees)}
    return join(list(trees))


def _is_tree(kind: type) -> bool:
    return kind is dict or issubclass(kind, Mapping)


def shared_names(trees: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each name with its values in all mappings.

    Raises:
        DifferentNamesError: The names differ.
    """
    if not all(map(_is_tree, set(map(type, trees)))):
        raise DifferentNamesError
    names = trees[0].keys()
    if any(tree.keys() != names for tree in trees[1:]):
        raise DifferentNamesError
    for name in names:
        yield name, [tree[name] for tree in trees]


class StepBatch:
    """Takes windows of equal size from the columns of several episodes.

    Args:
        spans: The window of each sample; columns are passed in the same order.
        order: Sample numbers in the best order for reading frames.
        pad: Padding of missing steps: "repeat", "zero" or None.
    """

    def __init__(self, spans: Sequence[Span], order: Sequence[int], pad: Pad) -> None:
        self._spans = spans
        self._order = order
        self._pad = pad
        self._size = spans[0].size

    def take(self, columns: Sequence[EpisodeColumn]) -> object:
        """[B, steps, ...] for numbers and images; else a list of B windows, each stacked if
        possible.
        """
        batch = self._numbers(columns)
        if batch is None:
            pictures = self._pictures(columns)
            batch = None if pictures is None else tv_tensors.Video(pictures)
        return (
            self._each(columns, lambda column, span: window(column, span, self._pad))
            if batch is None
            else batch
        )

    def at(self, columns: Sequence[EpisodeColumn]) -> object:
        """[B, ...] for numbers and images, from the first step of each window; else a list."""
        batch = self._numbers(columns)
        if batch is not None:
            return batch[:, 0]
        pictures = self._pictures(columns)
        if pictures is not None:
            return tv_tensors.Image(pictures[:, 0])
        return self._each(columns, lambda column, span: column.at(span.first))

    def _each(
        self, columns: Sequence[EpisodeColumn], read: Callable[[EpisodeColumn, Span], object]
    ) -> list[object]:
        values: list[object] = [None] * len(columns)
        for number in self._order:
            values[number] = read(columns[number], self._spans[number])
        return values

    def _numbers(self, columns: Sequence[EpisodeColumn]) -> torch.Tensor | None:
        first = columns[0].array if isinstance(columns[0], NumberColumn) else None
        if first is None:
            return None
        arrays = [
            item.array
            for item in columns
            if isinstance(item, NumberColumn) and item.array is not None
        ]
        if len(arrays) < len(columns):
            return None
        reserve(len(arrays) * self._size * math.prod(first.shape[1:]) * first.itemsize)
        out = np.empty((len(arrays), self._size, *first.shape[1:]), first.dtype)
        pieces: list[npt.NDArray[np.generic]] = []
        for array, (begin, stop, before, behind) in zip(arrays, self._spans, strict=True):
            if before or behind:
                pieces += self._padded(array, begin, stop, before, behind)
            else:
                pieces.append(array[begin:stop])
        try:  # one call, which also checks that all have the same dtype and shape
            np.concatenate(
                pieces, out=out.reshape(len(arrays) * self._size, *first.shape[1:]), casting="no"
            )
        except (TypeError, ValueError):
            return None
        return torch.from_numpy(out)

    def _padded(
        self, array: npt.NDArray[np.generic], begin: int, stop: int, before: int, behind: int
    ) -> list[npt.NDArray[np.generic]]:
        real = array[begin:stop]
        if self._pad == "repeat":
            return [array[begin : begin + 1]] * before + [real] + [array[stop - 1 : stop]] * behind
        zeros = np.zeros((max(before, behind), *array.shape[1:]), array.dtype)
        return [zeros[:before], real, zeros[:behind]]

    def _pictures(self, columns: Sequence[EpisodeColumn]) -> torch.Tensor | None:
        """uint8 [B, steps, C, H, W]; None if they are not plain images, or do not all have the
        expected size.
        """
        plan = columns[0].pictures if isinstance(columns[0], EncodedColumn) else None
        alike = [
            item for item in columns if isinstance(item, EncodedColumn) and item.pictures is plan
        ]
        if plan is None or len(alike) < len(columns):
            return None
        spans = [self._spans[number] for number in self._order]
        try:
            values = read_encoded([alike[number] for number in self._order], spans)
            stack = decode_stack(values, plan.mode, self._rows, len(columns) * self._size)
        except (OSError, TFRecordError):  # does not name the image: read and decode one by one
            return None
        if stack is None or not plan.fits(stack.shape[2:]):
            return None
        # A view of [N, H, W, C] memory.
        batch: torch.Tensor = stack.view(len(columns), self._size, *stack.shape[1:])
        for number, span in enumerate(self._spans):
            if span.before or span.behind:
                self._pad_pictures(batch[number], span)
        return batch

    @functools.cached_property
    def _rows(self) -> list[int]:
        """The place among all steps of each step that is read, in reading order."""
        rows: list[int] = []
        for number in self._order:
            first, stop, before, _ = self._spans[number]
            start = number * self._size + before
            rows += range(start, start + stop - first)
        return rows

    def _pad_pictures(self, row: torch.Tensor, span: Span) -> None:
        end = self._size - span.behind
        row[: span.before] = row[span.before] if self._pad == "repeat" else 0
        row[end:] = row[end - 1] if self._pad == "repeat" else 0


# One window.


def window(column: EpisodeColumn, span: Span, pad: Pad) -> object:
    """The values of a window: a tensor [steps, ...], a `tv_tensors.Video` for images, or a list."""
    if isinstance(column, NumberColumn):
        return _numbers(column.values, span, pad)
    is_list = isinstance(column, ListColumn)
    reserve(span.size * (OBJECT_BYTES if is_list else TENSOR_BYTES))
    values: list[object] = column.read(span.first, span.stop)
    if span.before or span.behind:
        is_zero = pad == "zero"
        front = _empty(column, values[0]) if is_zero else values[0]
        values = [front] * span.before + values + [front if is_zero else values[-1]] * span.behind
    return values if is_list else _stack_alike(values)


def _numbers(values: npt.NDArray[np.generic] | torch.Tensor, span: Span, pad: Pad) -> torch.Tensor:
    reserve(span.size * math.prod(values.shape[1:]) * values.itemsize)
    if not span.before and not span.behind:
        return own_tensor(values[span.first : span.stop])
    steps, is_real = span.lay_out()
    padded = torch.as_tensor(values[steps])  # indexing copies
    if pad == "zero":
        padded[~torch.from_numpy(is_real)] = 0
    return padded


def _empty(column: EpisodeColumn, value: object) -> object:
    """The padding value with pad="zero"."""
    if isinstance(column, ListColumn):
        return column.empty
    if not isinstance(value, torch.Tensor):
        return type(value)()
    # zeros are a plain tensor, also for a tv_tensor
    return as_kind_of(torch.zeros_like(value), value)


def _stack_alike(values: list[Any]) -> Any:
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
    if isinstance(first, tv_tensors.Image):
        return tv_tensors.Video(stacked)
    return tv_tensors.Mask(stacked) if isinstance(first, tv_tensors.Mask) else stacked


_OBSERVATION, _ACTION = "observation", "action"
INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction")


class StepSamples:
    """Builds samples from episodes.

    Args:
        windows: The windows around each step.
        dataset_name: Stands in each sample.
    """

    def __init__(self, windows: Windows, dataset_name: str) -> None:
        self._windows = windows
        self._dataset_name = dataset_name

    def one(self, episode: Episode, step: int, goal: int | None) -> dict[str, Any]:
        """The sample of a step, and the observation at its goal step if there is one: a row of
        `batch`, in half the time.
        """
        pad = self._windows.pad
        seen = self._windows.observations(step)
        done = self._windows.actions(step, episode.num_steps)
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
            observation["timestep"], observation["pad_mask"] = map(torch.from_numpy, seen.lay_out())
        sample["action_pad_mask"] = torch.from_numpy(done.lay_out()[1])
        sample["task"] = task = {}
        if goal is not None:
            task.update(each_leaf(_seen_at_goal(episode), lambda column: column.at(goal)))
            task["timestep"] = goal
        task["language_instruction"] = instruction(episode, step)
        sample.update(each_leaf(episode.metadata, own))
        sample["dataset_name"] = self._dataset_name
        sample |= {"_len": episode.num_steps, "_traj_index": episode.number, "_frame_index": step}
        return sample

    def batch(
        self, episodes: Sequence[Episode], steps: list[int], goals: list[int] | None
    ) -> dict[str, object]:
        """The columns of the samples of these steps, each of one episode, with their goal steps if
        there are any.
        """
        places = [(episode.number, step) for episode, step in zip(episodes, steps, strict=True)]
        seen = [self._windows.observations(step) for step in steps]
        done = [
            self._windows.actions(step, item.num_steps)
            for item, step in zip(episodes, steps, strict=True)
        ]
        order = sorted(range(len(places)), key=places.__getitem__)
        take_seen, take_done, take_one = (
            StepBatch(spans, order, self._windows.pad)
            for spans in (seen, done, [Span(step, step + 1) for step in steps])
        )
        columns: dict[str, object] = {}
        for name, trees in shared_names([episode.steps for episode in episodes]):
            way = {_OBSERVATION: take_seen.take, _ACTION: take_done.take}.get(name, take_one.at)
            columns[name] = together(trees, way)
        observation = columns.setdefault(_OBSERVATION, {})
        if isinstance(observation, dict):
            observation["timestep"], observation["pad_mask"] = map(torch.from_numpy, lay_out(seen))
        columns["action_pad_mask"] = torch.from_numpy(lay_out(done)[1])
        texts = [instruction(episode, step) for episode, step in zip(episodes, steps, strict=True)]
        columns["task"] = _at_goals(episodes, goals) | {"language_instruction": texts}
        for name, trees in shared_names([episode.metadata for episode in episodes]):
            columns[name] = together(trees, lambda values: [*map(own, values)])
        columns["dataset_name"] = [self._dataset_name] * len(places)
        # Lists, as a sample has these as int.
        columns["_len"] = [episode.num_steps for episode in episodes]
        columns["_traj_index"], columns["_frame_index"] = (
            [episode.number for episode in episodes],
            steps,
        )
        return columns


def _seen_at_goal(episode: Episode) -> Any:
    observation = episode.steps.get(_OBSERVATION, {})
    return observation if isinstance(observation, Mapping) else {_OBSERVATION: observation}


def _at_goals(episodes: Sequence[Episode], goals: list[int] | None) -> dict[str, object]:
    """The observations at the goal steps, as columns."""
    if goals is None:
        return {}
    order = sorted(range(len(goals)), key=lambda number: (episodes[number].number, goals[number]))
    batch = StepBatch([Span(goal, goal + 1) for goal in goals], order, None)
    task: dict[str, object] = together([*map(_seen_at_goal, episodes)], batch.at)
    return task | {"timestep": goals}


def own(value: object) -> object:
    """Copy metadata, so that a sample may modify it."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def instruction(episode: Episode, step: int) -> str:
    """The language instruction: the first of the usual names in the step, its observation, or the
    episode.
    """
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
