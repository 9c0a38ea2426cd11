"""Windows of several episodes as the columns of one batch: numbers and pictures in one piece of memory, else lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from torch_tfrecord.image_stacks import decode_stack
from torch_tfrecord.tfds.episode_columns import EncodedColumn, NumberColumn
from torch_tfrecord.tfds.windows import Span

__all__ = ["DifferentNamesError", "StepBatch", "shared_names", "together"]


class DifferentNamesError(ValueError):
    """The episodes of a batch have no columns in common."""


def together(trees: Sequence[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Trees with the same names as one, each leaf made of all their leaves.

    Raises:
        DifferentNamesError: The names differ.

    Example:
        >>> together([{"x": 1}, {"x": 2}], sum)
        {'x': 3}
    """
    if any(isinstance(tree, Mapping) for tree in trees):
        return {name: together(parts, join) for name, parts in shared_names(trees)}
    return join(list(trees))


def shared_names(trees: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Each name, and what all mappings have by it.

    Raises:
        DifferentNamesError: The names differ.
    """
    names = trees[0].keys() if isinstance(trees[0], Mapping) else ()
    if any(not isinstance(tree, Mapping) or tree.keys() != names for tree in trees):
        raise DifferentNamesError
    for name in names:
        yield name, [tree[name] for tree in trees]


class StepBatch:
    """Takes windows of equal size out of several episodes' columns.

    Args:
        spans: The window of each sample; columns are given in the same order.
        order: The samples' numbers in the order in which frames are best read.
        pad: What stands for missing steps: "repeat", "zero" or None.
    """

    def __init__(self, spans: Sequence[Span], order: Sequence[int], pad: str | None) -> None:
        self._spans = spans
        self._order = order
        self._pad = pad
        self._size = spans[0].before + spans[0].stop - spans[0].first + spans[0].behind

    def take(self, columns: list[Any]) -> Any:
        """[B, steps, ...] of a number or picture, as `Column.take` of each stacked; else a list of what that gives."""
        batch = self._numbers(columns)
        if batch is None:
            pictures = self._pictures(columns)
            batch = None if pictures is None else tv_tensors.Video(pictures)
        return self._each(columns, lambda column, span: column.take(span, self._pad)) if batch is None else batch

    def at(self, columns: list[Any]) -> Any:
        """[B, ...] of a number or picture, as `Column.at` of each window's first step stacked; else a list."""
        batch = self._numbers(columns)
        if batch is not None:
            return batch[:, 0]
        pictures = self._pictures(columns)
        if pictures is not None:
            return tv_tensors.Image(pictures[:, 0])
        return self._each(columns, lambda column, span: column.at(span.first))

    def _each(self, columns: list[Any], read: Callable[[Any, Span], Any]) -> list[Any]:
        values: list[Any] = [None] * len(columns)
        for number in self._order:
            values[number] = read(columns[number], self._spans[number])
        return values

    def _numbers(self, columns: list[Any]) -> torch.Tensor | None:
        arrays = [column.array if isinstance(column, NumberColumn) else None for column in columns]
        first = arrays[0]
        if first is None:
            return None
        kind = (first.dtype, first.shape[1:])
        if any(array is None or (array.dtype, array.shape[1:]) != kind for array in arrays):
            return None
        out = np.empty((len(arrays), self._size, *first.shape[1:]), first.dtype)
        for row, array, span in zip(out, arrays, self._spans, strict=True):
            self._fill(row, array, span)
        return torch.from_numpy(out)

    def _fill(self, row: Any, array: Any, span: Span) -> None:
        end = span.before + span.stop - span.first
        row[span.before : end] = array[span.first : span.stop]
        if span.before:
            row[: span.before] = array[span.first] if self._pad == "repeat" else 0
        if span.behind:
            row[end:] = array[span.stop - 1] if self._pad == "repeat" else 0

    def _pictures(self, columns: list[Any]) -> torch.Tensor | None:
        """uint8 [B, steps, C, H, W]; None where they are no plain pictures, or not all of the size expected."""
        plan = columns[0].pictures if isinstance(columns[0], EncodedColumn) else None
        if plan is None or any(not isinstance(item, EncodedColumn) or item.pictures is not plan for item in columns):
            return None
        values: list[bytes] = []
        rows: list[int] = []
        for number in self._order:
            span = self._spans[number]
            values += columns[number].encoded(span.first, span.stop)
            start = number * self._size + span.before
            rows += range(start, start + span.stop - span.first)
        stack = decode_stack(values, plan.mode, rows, len(columns) * self._size)
        if stack is None or not plan.fits(stack.shape[2:]):
            return None
        # A view, though of [N, H, W, C] memory.
        batch: torch.Tensor = stack.view(len(columns), self._size, *stack.shape[1:])
        for row, span in zip(batch, self._spans, strict=True):
            if span.before or span.behind:
                self._pad_pictures(row, span)
        return batch

    def _pad_pictures(self, row: torch.Tensor, span: Span) -> None:
        end = self._size - span.behind
        row[: span.before] = row[span.before] if self._pad == "repeat" else 0
        row[end:] = row[end - 1] if self._pad == "repeat" else 0
