"""Samples of steps: the windows of the columns of their episodes, one sample or a batch as
columns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from torch_tfrecord.arguments import Pad
from torch_tfrecord.batch_memory import OBJECT_BYTES, TENSOR_BYTES, as_array, as_tensor, reserve
from torch_tfrecord.columns import decode_text, stack
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.media import decode_stack
from torch_tfrecord.rlds.episode_columns import (
    EpisodeColumn,
    NumberColumn,
    ValueColumn,
    read_encoded,
)
from torch_tfrecord.rlds.episode_store import Episode
from torch_tfrecord.rlds.windows import Span, Windows, lay_out
from torch_tfrecord.samples import is_ragged
from torch_tfrecord.torch_internals import as_kind_of

__all__ = [
    "DifferentNamesError",
    "StepBatch",
    "own",
    "shared_names",
    "step_columns",
    "together",
    "window",
]

_T = TypeVar("_T")

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
    # by their types, of which there are few: a batch has thousands of leaves
    if any(map(_is_tree, set(map(type, trees)))):
        return {name: together(parts, join) for name, parts in shared_names(trees)}
    return join(list(trees))


def _is_tree(kind: type) -> bool:
    return kind is dict or issubclass(kind, Mapping)


def shared_names(trees: Sequence[Mapping[str, _T]]) -> Iterator[tuple[str, list[_T]]]:
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
        is_step: Whether the windows are of one step each, whose value is taken without the
            dimension of steps.
        decode_on: See `RLDSDataset`.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        order: Sequence[int],
        pad: Pad,
        *,
        is_step: bool = False,
        decode_on: str = "cpu",
    ) -> None:
        self._spans, self._order, self._pad = spans, order, pad
        self._size, self._is_step = spans[0].size, is_step
        # Padding is made of frames that are there.
        self._decode_on = "cpu" if any(span.before or span.behind for span in spans) else decode_on

    def take(self, columns: Sequence[EpisodeColumn]) -> object:
        """[B, steps, ...] for numbers and images; else a list of B windows, each stacked if
        possible.
        """
        numbers = self._numbers(columns)
        if numbers is not None:
            return torch.from_numpy(numbers[:, 0] if self._is_step else numbers)
        pictures = self._pictures(columns)
        if pictures is not None:
            return tv_tensors.Image(pictures[:, 0]) if self._is_step else tv_tensors.Video(pictures)
        values: list[object] = [None] * len(columns)
        for number in self._order:
            column, span = columns[number], self._spans[number]
            values[number] = (
                column.at(span.first) if self._is_step else window(column, span, self._pad)
            )
        return values

    def _numbers(self, columns: Sequence[EpisodeColumn]) -> npt.NDArray[np.generic] | None:
        first = columns[0].array if isinstance(columns[0], NumberColumn) else None
        if first is None:
            return None
        arrays = [
            item.array
            for item in columns
            if isinstance(item, NumberColumn) and item.array is not None
        ]
        # Episodes may differ if a transform made the columns.
        if len(arrays) < len(columns):
            return None
        # Before the memory is allocated: a window may be of a million steps.
        reserve(len(arrays) * self._size * math.prod(first.shape[1:]) * first.itemsize)
        out = np.empty((len(arrays), self._size, *first.shape[1:]), first.dtype)
        pieces: list[npt.NDArray[np.generic]] = []
        for array, (begin, stop, before, behind) in zip(arrays, self._spans, strict=True):
            real = array[begin:stop]
            if before or behind:
                pieces += [real[:1].repeat(before, 0), real, real[-1:].repeat(behind, 0)]
            else:
                pieces.append(real)
        try:  # one call, which also checks that all have the same dtype and shape
            np.concatenate(
                pieces, out=out.reshape(len(arrays) * self._size, *first.shape[1:]), casting="no"
            )
        except (TypeError, ValueError):
            return None
        if self._pad == "zero":
            self._pad_rows(out)
        return out

    def _pictures(self, columns: Sequence[EpisodeColumn]) -> torch.Tensor | None:
        """uint8 [B, steps, C, H, W]; None if they are not plain images, or do not all have the
        expected size.
        """
        # The plan is one object for each feature of a dataset: by it columns of the same files are
        # known.
        plan = columns[0].pictures if isinstance(columns[0], ValueColumn) else None
        alike = [
            item for item in columns if isinstance(item, ValueColumn) and item.pictures is plan
        ]
        if plan is None or len(alike) < len(columns):
            return None
        spans = [self._spans[number] for number in self._order]
        try:
            values = read_encoded([alike[number] for number in self._order], spans)
            stack = decode_stack(
                values, plan.mode, self._rows, len(columns) * self._size, self._decode_on
            )
        except (OSError, TFRecordError):  # does not name the image: read and decode one by one
            return None
        if stack is None or not plan.fits(stack.shape[2:]):
            return None
        # A view of [N, H, W, C] memory.
        shape = len(columns), self._size, *stack.shape[1:]
        batch = as_tensor(as_array(stack), stack.dtype, shape)
        self._pad_rows(batch)
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

    def _pad_rows(self, batch: Any) -> None:
        """Fill the padding of an array or tensor [B, steps, ...]."""
        for number, (_, _, before, behind) in enumerate(self._spans):
            end = self._size - behind
            if before:
                batch[number, :before] = batch[number, before] if self._pad == "repeat" else 0
            if behind:
                batch[number, end:] = batch[number, end - 1] if self._pad == "repeat" else 0


# One window.


def window(column: EpisodeColumn, span: Span, pad: Pad) -> object:
    """The values of a window: a tensor [steps, ...], a `tv_tensors.Video` for images, or a list."""
    if isinstance(column, NumberColumn):
        return _numbers(column.values, span, pad)
    is_list = getattr(column, "is_list", False)
    reserve(span.size * (OBJECT_BYTES if is_list else TENSOR_BYTES))
    # Padding is not read again.
    values: list[object] = column.read(span.first, span.stop)
    if span.before or span.behind:
        is_zero = pad == "zero"
        front = _empty(values[0], is_list) if is_zero else values[0]
        values = [front] * span.before + values + [front if is_zero else values[-1]] * span.behind
    return values if is_list else _stack_alike(values)


def _numbers(values: npt.NDArray[np.generic] | torch.Tensor, span: Span, pad: Pad) -> torch.Tensor:
    reserve(span.size * math.prod(values.shape[1:]) * values.itemsize)
    [steps], [is_real] = lay_out([span])
    padded = torch.as_tensor(values[steps])  # indexing copies
    if pad == "zero":
        padded[~torch.from_numpy(is_real)] = 0
    return padded


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
        return tv_tensors.Video(stacked)
    return tv_tensors.Mask(stacked) if isinstance(first, tv_tensors.Mask) else stacked


_OBSERVATION, _ACTION = "observation", "action"
INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction")


def step_columns(
    windows: Windows,
    episodes: Sequence[Episode],
    steps: list[int],
    goals: list[int] | None,
    decode_on: str = "cpu",
) -> dict[str, object]:
    """The columns of the samples of these steps, each of one episode, with their goal steps if
    there are any.
    """
    numbers = [item.number for item in episodes]
    lengths = [item.num_steps for item in episodes]
    seen = [windows.observations(step) for step in steps]
    done = [*map(windows.actions, steps, lengths)]

    def in_file_order(at: Sequence[int]) -> list[int]:
        return sorted(range(len(at)), key=[*zip(numbers, at, strict=True)].__getitem__)

    def one(at: Sequence[int]) -> Callable[[Sequence[EpisodeColumn]], object]:
        spans = [Span(step, step + 1) for step in at]
        return StepBatch(spans, in_file_order(at), None, is_step=True, decode_on=decode_on).take

    order, take_one = in_file_order(steps), one(steps)
    ways = {
        _OBSERVATION: StepBatch(seen, order, windows.pad, decode_on=decode_on).take,
        _ACTION: StepBatch(done, order, windows.pad, decode_on=decode_on).take,
    }
    columns = {
        name: together(trees, ways.get(name, take_one))
        for name, trees in shared_names([episode.steps for episode in episodes])
    }
    task: dict[str, object] = {}
    if goals is not None:
        task = together([*map(_seen_at_goal, episodes)], one(goals)) | {"timestep": goals}
    task["language_instruction"] = [*map(instruction, episodes, steps)]
    _add_masks(columns, lay_out(seen), lay_out(done))
    metadata = {
        name: together(trees, lambda values: [*map(own, values)])
        for name, trees in shared_names([episode.metadata for episode in episodes])
    }
    # Lists, as a sample has these as int.
    return {
        **columns,
        "task": task,
        **metadata,
        "_len": lengths,
        "_traj_index": numbers,
        "_frame_index": steps,
    }


_Layout: TypeAlias = "tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]"


def _add_masks(columns: dict[str, object], seen: _Layout, done: _Layout) -> None:
    """Add the step numbers of observations, and which observations and actions are padding."""
    observation = columns.setdefault(_OBSERVATION, {})
    if isinstance(observation, dict):  # an `episode_transform` may have made a column of it
        observation["timestep"], observation["pad_mask"] = map(torch.from_numpy, seen)
    columns["action_pad_mask"] = torch.from_numpy(done[1])


def _seen_at_goal(episode: Episode) -> Mapping[str, object]:
    observation = episode.steps.get(_OBSERVATION, {})
    return observation if isinstance(observation, Mapping) else {_OBSERVATION: observation}


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
