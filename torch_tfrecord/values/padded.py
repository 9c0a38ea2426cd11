"""Rows of unequal length side by side, each filled up at its end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import empty_bytes
from torch_tfrecord.native import optional_module

__all__ = ["pad_rows"]


def pad_rows(values: torch.Tensor, offsets: torch.Tensor, longest: int, fill: torch.Tensor) -> torch.Tensor:
    """Rows that lie one behind the other as a dense tensor [B, longest, *inner].

    The memory is the caller's to reserve. Bits stay as they are.

    Args:
        values: [N, *inner], any dtype, on the CPU.
        offsets: int64 [B + 1]: row i is ``values[offsets[i]:offsets[i + 1]]``; from 0 to N, ascending.
        longest: At least the length of the longest row.
        fill: What stands behind each row: one value of the dtype.

    Example:
        >>> pad_rows(torch.tensor([4, 5, 6]), torch.tensor([0, 1, 3]), 2, torch.tensor(-1)).tolist()
        [[4, -1], [5, 6]]
    """
    shape = (len(offsets) - 1, longest, *values.shape[1:])
    if not math.prod(shape):
        return values.new_empty(shape)
    itemsize = math.prod(shape[2:]) * values.dtype.itemsize
    out = empty_bytes(shape[0] * longest * itemsize)
    _fill(_bytes(values), offsets.numpy(), itemsize, _bytes(fill), out.reshape(shape[0], longest * itemsize))
    return torch.from_numpy(out).view(values.dtype).view(shape)


def _bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    array: npt.NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
    return array


def _fill(values: Any, offsets: Any, itemsize: int, fill: Any, out: Any) -> None:
    native = optional_module("memory")
    if native is not None:
        return native.pad(values, offsets, itemsize, fill, out)  # type: ignore[no-any-return]
    kept = np.arange(0, out.shape[1], itemsize) < itemsize * np.diff(offsets)[:, None]
    out.reshape(-1, len(fill))[:] = fill
    out.reshape(-1, itemsize)[kept.reshape(-1)] = values.reshape(-1, itemsize)
    return None
