"""Memory for batches, used again once nobody holds a batch any more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.native import optional_module

if TYPE_CHECKING:
    import torch

__all__ = ["empty_bytes", "empty_tensor"]

_Bytes: TypeAlias = "npt.NDArray[np.uint8]"

# The system keeps smaller memory itself, and hands it out again as it is.
_SMALL_BYTES = 1 << 16


def empty_bytes(size: int) -> _Bytes:
    """Writable memory, not cleared: uint8 [size].

    Fresh memory is cleared by the operating system page by page, and lies in no cache: for normalised images that takes
    a tenth of the time of decoding them, for columns of numbers as much as parsing. So the compiled core keeps up to
    128 MiB of what was given back, in each process. Safe from several threads.
    """
    native = optional_module("memory") if size >= _SMALL_BYTES else None
    if native is None:
        return np.empty(size, np.uint8)
    block: Any = native.Block(size)
    return np.frombuffer(block, np.uint8)


def empty_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of such memory."""
    import torch  # takes seconds, and whoever reads records only does without

    return torch.from_numpy(empty_bytes(math.prod(shape) * dtype.itemsize)).view(dtype).view(shape)
