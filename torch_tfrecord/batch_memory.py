"""Memory for batches of images, used again once nobody holds a batch any more."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import torch

__all__ = ["BatchMemory"]

_KEPT_BLOCKS = 4


class BatchMemory:
    """Hands out the memory of batches, and takes it back when their last tensor is gone.

    Fresh memory is cleared by the operating system page by page: for normalised images that takes a tenth of the time
    of decoding them. A few blocks of the size asked for last are kept. Safe from several threads.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray[Any, Any]] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor, not cleared."""
        size = math.prod(shape) * dtype.itemsize
        block = self._take(size)
        # The tensor holds `lent` and nothing else does: where that ends, no tensor looks at the block any more.
        lent = block[:]
        weakref.finalize(lent, self._give_back, block).atexit = False
        return torch.from_numpy(lent).view(dtype).view(shape)

    def _take(self, size: int) -> np.ndarray[Any, Any]:
        while self._free:
            try:
                block = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if len(block) == size:
                return block
        return np.empty(size, np.uint8)

    def _give_back(self, block: np.ndarray[Any, Any]) -> None:
        if len(self._free) < _KEPT_BLOCKS:
            self._free.append(block)
