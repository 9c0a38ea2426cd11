"""Windows of several episodes as the columns of one batch: numbers and pictures in one piece of memory, else lists."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from torch_tfrecord.arguments import Pad
from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.images.regions import decode_stack
from torch_tfrecord.tfds.episode_columns import EncodedColumn, NumberColumn, read_encoded
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
    if any(issubclass(kind, Mapping) for kind in set(map(type, trees))):
        return {name: together(parts, join) for name, parts in shared_names(trees)}
    return join(list(trees))


def shared_names(trees: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Each name, and what all mappings have by it.

    Raises:
        DifferentNamesError: The names differ.
    """
    if not all(issubclass(kind, Mapping) for kind in set(map(type, trees))):
        raise DifferentNamesError
    names = trees[0].keys()
    if any(tree.keys() != names for tree in trees):
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

    def __init__(self, spans: Sequence[Span], order: Sequence[int], pad: Pad) -> None:
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
        first = columns[0].array if isinstance(columns[0], NumberColumn) else None
        if first is None:
            return None
        arrays = [item.array for item in columns if isinstance(item, NumberColumn) and item.array is not None]
        if len(arrays) < len(columns):
            return None
        reserve(len(arrays) * self._size * math.prod(first.shape[1:]) * first.itemsize)
        out = np.empty((len(arrays), self._size, *first.shape[1:]), first.dtype)
        pieces: list[Any] = []
        for array, (begin, stop, before, behind) in zip(arrays, self._spans, strict=True):
            if before or behind:
                pieces += self._padded(array, begin, stop, before, behind)
            else:
                pieces.append(array[begin:stop])
        try:  # one call: it says whether all are of one dtype and shape
            np.concatenate(pieces, out=out.reshape(len(arrays) * self._size, *first.shape[1:]), casting="no")
        except (TypeError, ValueError):
            return None
        return torch.from_numpy(out)

    def _padded(self, array: Any, begin: int, stop: int, before: int, behind: int) -> list[Any]:
        real = array[begin:stop]
        if self._pad == "repeat":
            return [array[begin : begin + 1]] * before + [real] + [array[stop - 1 : stop]] * behind
        zeros = np.zeros((max(before, behind), *array.shape[1:]), array.dtype)
        return [zeros[:before], real, zeros[:behind]]

    def _pictures(self, columns: list[Any]) -> torch.Tensor | None:
        """uint8 [B, steps, C, H, W]; None where they are no plain pictures, or not all of the size expected."""
        plan = columns[0].pictures if isinstance(columns[0], EncodedColumn) else None
        if plan is None or any(not isinstance(item, EncodedColumn) or item.pictures is not plan for item in columns):
            return None
        spans = [self._spans[number] for number in self._order]
        values = read_encoded([columns[number] for number in self._order], spans)
        stack = decode_stack(values, plan.mode, self._rows, len(columns) * self._size)
        if stack is None or not plan.fits(stack.shape[2:]):
            return None
        # A view, though of [N, H, W, C] memory.
        batch: torch.Tensor = stack.view(len(columns), self._size, *stack.shape[1:])
        for number, span in enumerate(self._spans):
            if span.before or span.behind:
                self._pad_pictures(batch[number], span)
        return batch

    @functools.cached_property
    def _rows(self) -> list[int]:
        """Of each step that is read, in that order, its place among all steps."""
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
