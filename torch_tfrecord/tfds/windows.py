"""Windows of steps: which steps of an episode a sample holds, and windows of several samples as
batch columns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from torch_tfrecord.arguments import Pad, at_least, one_of
from torch_tfrecord.batch_memory import OBJECT_BYTES, TENSOR_BYTES, reserve
from torch_tfrecord.columns.stacking import as_kind_of, is_ragged, stack
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.images.regions import decode_stack
from torch_tfrecord.tfds.episode_columns import (
    Column,
    EncodedColumn,
    ListColumn,
    NumberColumn,
    own_tensor,
    read_encoded,
)

__all__ = [
    "DifferentNamesError",
    "Span",
    "StepBatch",
    "Windows",
    "laid_out",
    "shared_names",
    "together",
    "window",
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

    def mask(self) -> npt.NDArray[np.bool_]:
        """bool [size]: True for a step of the episode, False for padding."""
        mask = np.ones(self.size, np.bool_)
        mask[: self.before] = False
        mask[self.size - self.behind :] = False
        return mask

    def repeated(self) -> npt.NDArray[np.int64]:
        """int64 [size]: the step at each place; padding repeats the nearest step."""
        places = np.arange(self.first - self.before, self.stop + self.behind)
        return np.minimum(np.maximum(places, self.first), self.stop - 1)


def laid_out(spans: Sequence[Span]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """`Span.repeated` and `Span.mask` of spans of equal size: int64 and bool, each [N, steps].

    Example:
        >>> laid_out([Span(4, 6, before=1)])
        (array([[4, 4, 5]]), array([[False,  True,  True]]))
    """
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

    def take(self, columns: Sequence[Column]) -> Any:
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

    def at(self, columns: Sequence[Column]) -> Any:
        """[B, ...] for numbers and images, from the first step of each window; else a list."""
        batch = self._numbers(columns)
        if batch is not None:
            return batch[:, 0]
        pictures = self._pictures(columns)
        if pictures is not None:
            return tv_tensors.Image(pictures[:, 0])
        return self._each(columns, lambda column, span: column.at(span.first))

    def _each(self, columns: Sequence[Column], read: Callable[[Column, Span], Any]) -> list[Any]:
        values: list[Any] = [None] * len(columns)
        for number in self._order:
            values[number] = read(columns[number], self._spans[number])
        return values

    def _numbers(self, columns: Sequence[Column]) -> torch.Tensor | None:
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

    def _pictures(self, columns: Sequence[Column]) -> torch.Tensor | None:
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
        values = read_encoded([alike[number] for number in self._order], spans)
        try:
            stack = decode_stack(values, plan.mode, self._rows, len(columns) * self._size)
        except TFRecordError:  # does not name the image: decode one by one
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


def window(column: Column, span: Span, pad: Pad) -> Any:
    """The values of a window: a tensor [steps, ...], a `tv_tensors.Video` for images, or a list."""
    if isinstance(column, NumberColumn):
        return _numbers(column.values, span, pad)
    is_list = isinstance(column, ListColumn)
    reserve(span.size * (OBJECT_BYTES if is_list else TENSOR_BYTES))
    values: list[Any] = column.read(span.first, span.stop)
    if span.before or span.behind:
        is_zero = pad == "zero"
        front = _empty(column, values[0]) if is_zero else values[0]
        values = [front] * span.before + values + [front if is_zero else values[-1]] * span.behind
    return values if is_list else _stacked(values)


def _numbers(values: npt.NDArray[np.generic] | torch.Tensor, span: Span, pad: Pad) -> torch.Tensor:
    reserve(span.size * math.prod(values.shape[1:]) * values.itemsize)
    if not span.before and not span.behind:
        return own_tensor(values[span.first : span.stop])
    padded = torch.as_tensor(values[span.repeated()])  # indexing copies
    if pad == "zero":
        padded[~torch.from_numpy(span.mask())] = 0
    return padded


def _empty(column: Column, value: Any) -> Any:
    """The padding value with pad="zero"."""
    if isinstance(column, ListColumn):
        return column.empty
    if not isinstance(value, torch.Tensor):
        return type(value)()
    # zeros are a plain tensor, also for a tv_tensor
    return as_kind_of(torch.zeros_like(value), value)


def _stacked(values: list[Any]) -> Any:
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
