"""Memory for batches: used again once nobody holds a batch any more, and counted, so that none needs too much.

A few bytes of a record may stand for gigabytes: a size in an image's header, a shape, a row's number, the longest of
many rows that are padded. Each value has a limit of its own; what those of a batch need together has a `BatchBudget`.
Whoever parses a batch opens one, and all that allocates for values asks it first.
"""

from __future__ import annotations

import math
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import at_least
from torch_tfrecord.errors import LimitExceededError
from torch_tfrecord.native import optional_module
from torch_tfrecord.shared_memory import worker_memory

if TYPE_CHECKING:
    import torch

__all__ = [
    "MAX_BATCH_BYTES",
    "BatchBudget",
    "check_max_batch_bytes",
    "empty_bytes",
    "empty_tensor",
    "reserve",
    "scratch_bytes",
]

MAX_BATCH_BYTES = 4 << 30
"""What a batch may need where nobody says."""

_Bytes: TypeAlias = "npt.NDArray[np.uint8]"

# The system keeps smaller memory itself, and hands it out again as it is.
_SMALL_BYTES = 1 << 16


class BatchBudget:
    """The bytes that the values of a batch may need, counted by `reserve` inside of ``with``, in this thread.

    Inside of another one, which counts for all, it counts nothing. Each ``with`` begins at 0.

    Args:
        max_batch_bytes: How many.

    Example:
        >>> with BatchBudget(100):
        ...     reserve(60)
    """

    __slots__ = ("_token", "max_batch_bytes", "num_bytes")

    def __init__(self, max_batch_bytes: int) -> None:
        self.max_batch_bytes = max_batch_bytes
        self.num_bytes = 0
        self._token: Token[BatchBudget | None] | None = None

    def __enter__(self) -> None:
        if _BUDGET.get() is None:
            self._token = _BUDGET.set(self)

    def __exit__(self, *error: object) -> None:
        if self._token is not None:
            _BUDGET.reset(self._token)


_BUDGET: ContextVar[BatchBudget | None] = ContextVar("torch_tfrecord_batch_budget", default=None)


def check_max_batch_bytes(value: object) -> int:
    """The argument of that name.

    Raises:
        ValueError: It is no integer of at least 1.
    """
    return at_least(1, "max_batch_bytes", value)


def reserve(num_bytes: int) -> None:
    """Say that values of a batch are about to need so many more bytes; nothing where there is no budget.

    Raises:
        LimitExceededError: The batch would need more than its budget.
    """
    budget = _BUDGET.get()
    if budget is None:
        return
    needed = budget.num_bytes + num_bytes
    if needed > budget.max_batch_bytes:
        raise LimitExceededError(
            f"expected a batch of at most {budget.max_batch_bytes} bytes (max_batch_bytes), got one that needs {needed}"
        )
    budget.num_bytes = needed


def empty_bytes(size: int) -> _Bytes:
    """Writable memory, not cleared: uint8 [size].

    Fresh memory is cleared by the operating system page by page, and lies in no cache: for normalised images that takes
    a tenth of the time of decoding them, for columns of numbers as much as parsing. So the compiled core keeps up to
    128 MiB of what was given back, in each process. In a DataLoader worker it is memory that the trainer can read, too:
    see `shared_memory`. Safe from several threads.
    """
    worker = worker_memory() if size >= _SMALL_BYTES else None
    piece = None if worker is None else worker.piece(size)
    return scratch_bytes(size) if piece is None else np.frombuffer(piece, np.uint8)


def scratch_bytes(size: int) -> _Bytes:
    """As `empty_bytes`, of this process alone: for what leaves no worker, as the bytes of records."""
    native = optional_module("memory") if size >= _SMALL_BYTES else None
    return np.empty(size, np.uint8) if native is None else np.frombuffer(native.Block(size), np.uint8)


def empty_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of such memory.

    Raises:
        LimitExceededError: As `reserve`.
    """
    import torch  # takes seconds, and whoever reads records only does without

    num_bytes = math.prod(shape) * dtype.itemsize
    reserve(num_bytes)
    return torch.from_numpy(empty_bytes(num_bytes)).view(dtype).view(shape)
