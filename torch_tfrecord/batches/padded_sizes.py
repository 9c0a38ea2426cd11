"""To which sizes a batch is padded, and what it needs then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.errors import LimitExceededError

__all__ = ["Sizes", "check_shapes", "lengths_of", "padded_size", "reserve_padded", "sizes_of"]

Sizes: TypeAlias = "npt.NDArray[np.int64]"
"""The shapes of a batch's samples: [B, rank]."""


def check_shapes(shapes: Any) -> None:
    """Check the argument padded_shapes, as far as it can be without samples.

    Raises:
        TypeError: It holds anything but ints and None, in tuples, lists and mappings.
        ValueError: A size below -1.
    """
    if isinstance(shapes, Mapping):
        shapes = list(shapes.values())
    if isinstance(shapes, (list, tuple)):
        for item in shapes:
            check_shapes(item)
    elif shapes is not None and (isinstance(shapes, bool) or not isinstance(shapes, int)):
        raise TypeError(f"padded_shapes holds ints, None and -1, in tuples and mappings, got {type(shapes).__name__}")
    elif shapes is not None and shapes < -1:
        raise ValueError(f"a size in padded_shapes must be at least 0, or None or -1 for the maximum, got {shapes}")


def sizes_of(shapes: Sequence[tuple[int, ...]], name: str) -> Sizes:
    """The shapes of samples, of which there is at least one.

    Raises:
        ValueError: Shapes of different rank.
    """
    rank = len(shapes[0])
    if len(set(map(len, shapes))) > 1:
        number = next(number for number, shape in enumerate(shapes) if len(shape) != rank)
        raise ValueError(
            f"{name or 'samples'}: expected tensors of one rank, got shape {list(shapes[0])} in sample 0, "
            f"{list(shapes[number])} in sample {number}"
        )
    return np.array(shapes, np.int64).reshape(len(shapes), rank)


def padded_size(sizes: Sizes, shape: Any, name: str) -> tuple[int, ...]:
    """The size of one sample in the batch; shape is the entry of padded_shapes.

    Raises:
        ValueError: A shape of another rank or nested in another way, or a sample that is larger.
    """
    wanted = _wanted(shape, sizes.shape[1], name)
    largest: list[int] = sizes.max(axis=0).tolist()
    padded = tuple(most if size is None else size for size, most in zip(wanted, largest, strict=True))
    if any(most > allowed for most, allowed in zip(largest, padded, strict=True)):
        number = int((sizes > np.minimum(padded, largest)).any(axis=1).argmax())
        raise ValueError(
            f"{name or 'samples'}: sample {number}: Attempted to pad to a smaller size than the input element. "
            f"Its shape is {sizes[number].tolist()}, padded_shapes asks for {list(wanted)}"
        )
    return padded


def _wanted(shape: Any, rank: int, name: str) -> tuple[int | None, ...]:
    """A shape as asked for, with None for the maximum in the batch."""
    if shape is None:
        return (None,) * rank
    entries = (shape,) if isinstance(shape, int) else shape
    if isinstance(entries, Mapping) or any(isinstance(entry, (Mapping, list, tuple)) for entry in entries):
        raise ValueError(f"padded_shapes{name}: expected a shape, nested as the samples, got {shape!r}")
    wanted = tuple(None if entry == -1 else entry for entry in entries)
    if len(wanted) != rank:
        raise ValueError(
            f"{name or 'samples'}: The padded shape {wanted!r} is not compatible with the shape {(None,) * rank!r} of "
            "the corresponding input component"
        )
    return wanted


def reserve_padded(sizes: Sizes, size: tuple[int, ...], itemsize: int, name: str) -> None:
    """Ask for a column, whose values have all the same size then.

    Raises:
        LimitExceededError: As `reserve`; its position is the number of the largest sample.
    """
    try:
        reserve(len(sizes) * math.prod(size) * itemsize)
    except LimitExceededError as error:
        largest = max(range(len(sizes)), key=lambda number: math.prod(sizes[number].tolist()))
        raise LimitExceededError(f"{name or 'samples'}: {error.args[0]}", position=largest) from None


def lengths_of(sizes: Sizes) -> torch.Tensor | None:
    """The sizes as PaddedCollate returns them: [B] of one dimension, [B, R] of R, None of none."""
    rank = sizes.shape[1]
    return torch.from_numpy(sizes[:, 0].copy() if rank == 1 else sizes) if rank else None
