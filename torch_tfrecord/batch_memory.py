"""Memory for batches: reused once nothing refers to a batch any more, and limited, so that no batch
needs too much.

A few bytes of a record may stand for gigabytes: a size in an image's header, a shape, a row's
number, the longest of many rows that are padded. Each value has its own limit; a `BatchBudget`
limits the sum of a batch's values. Code that parses a batch opens one, and code that allocates for
values calls `reserve` first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import at_least
from torch_tfrecord.errors import LimitExceededError
from torch_tfrecord.native import optional_module
from torch_tfrecord.shared_memory import worker_memory

if TYPE_CHECKING:
    import torch

__all__ = [
    "BORN_IN",
    "MAX_BATCH_BYTES",
    "NO_INTS",
    "OBJECT_BYTES",
    "ON_DEVICE",
    "SMALL_BYTES",
    "TENSOR_BYTES",
    "Array",
    "BatchBudget",
    "Buffer",
    "DeviceWork",
    "Ints",
    "Keys",
    "array_dtype",
    "as_array",
    "as_tensor",
    "check_max_batch_bytes",
    "empty_bytes",
    "empty_tensor",
    "pad_rows",
    "reserve",
    "scratch_bytes",
    "splits_of",
]

MAX_BATCH_BYTES = 4 << 30
"""Default limit on the bytes of a batch."""

TENSOR_BYTES, OBJECT_BYTES = 1 << 10, 1 << 6
"""What Python needs for a tensor, and for another value, besides its bytes, as measured: millions may have none."""

Array: TypeAlias = npt.NDArray[Any]
"""An array of any dtype."""
Ints: TypeAlias = "npt.NDArray[np.int64]"
NO_INTS: Ints = np.empty(0, np.int64)
Keys: TypeAlias = "npt.NDArray[np.uint64]"
"""The random keys of N records, for specs that draw at random."""
Buffer: TypeAlias = bytes | bytearray | memoryview
"""The bytes of a record, or of part of a file."""
_Bytes: TypeAlias = "npt.NDArray[np.uint8]"

# NumPy's arrays have it before 2.0.
_MOST_DIMENSIONS = 32

SMALL_BYTES = 1 << 16
"""The system's allocator already reuses smaller memory without clearing it."""
# To copy smaller columns into one block is faster than a block for each kind of them.
_BORN_BYTES = 1 << 12


class BatchBudget:
    """Limit on the bytes of a batch's values, counted by `reserve` inside ``with``, in this thread.

    Inside another budget, which counts everything, it does nothing. Each ``with`` begins at 0.

    Args:
        max_batch_bytes: The limit.

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
        # the outermost of nested ones counts: a part of a batch shares the batch's limit
        if _BUDGET.get() is None:
            self._token = _BUDGET.set(self)

    def __exit__(self, *error: object) -> None:
        if self._token is not None:
            _BUDGET.reset(self._token)


_BUDGET: ContextVar[BatchBudget | None] = ContextVar("torch_tfrecord_batch_budget", default=None)


def check_max_batch_bytes(value: object) -> int:
    """The argument `max_batch_bytes` as int.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is smaller than 1.
    """
    return at_least(1, "max_batch_bytes", value)


def reserve(num_bytes: int) -> None:
    """Count bytes that a batch's values are about to need; does nothing without a budget.

    Raises:
        LimitExceededError: The batch would need more than its budget.
    """
    budget = _BUDGET.get()
    if budget is None:
        return
    # compared before it is counted: what was refused is not allocated either
    needed = budget.num_bytes + num_bytes
    if needed > budget.max_batch_bytes:
        raise LimitExceededError(
            f"expected a batch of at most {budget.max_batch_bytes} bytes (max_batch_bytes), got one that needs {needed}"
        )
    budget.num_bytes = needed


BORN_IN: ContextVar[Callable[[int], _Bytes] | None] = ContextVar(
    "torch_tfrecord_born_in", default=None
)
"""What allocates memory for batches in this thread, but for small sizes: uint8 [size], not cleared."""


class DeviceWork(Protocol):
    """Rows of a column that a device makes, once the column's memory is copied there."""

    out: Array
    """The column's memory, in which these rows are undefined; a batch has it whole or not at all."""

    def __len__(self) -> int:
        """How many rows."""

    def on(self, memory: torch.Tensor) -> None:
        """Make the rows in that memory's copy, uint8 [bytes], in the current stream.

        Raises:
            Exception: The device cannot: then the batch is made again without it.
        """


class DeviceRows(Protocol):
    """Takes up what is left to the device of the batches that a thread makes."""

    def share(self, count: int, decode_on: str) -> int:
        """How many of so many rows to leave, by "auto" or "device"."""

    def leave(self, work: DeviceWork | None, num_made: int, seconds: float) -> None:
        """Take up the work on some rows, beside others that this thread made in so many seconds."""


ON_DEVICE: ContextVar[DeviceRows | None] = ContextVar("torch_tfrecord_on_device", default=None)
"""None where batches stay on the host."""


def empty_bytes(size: int) -> _Bytes:
    """Writable memory, not cleared: uint8 [size].

    The operating system clears fresh memory page by page, and it is not in any cache: for
    normalised images that takes a tenth of the time of decoding, for columns of numbers as long as
    parsing. So the compiled core keeps up to 384 MiB of freed memory in each process. In a
    DataLoader worker it is memory that the main process can read, too: see `shared_memory`. Safe
    from several threads.
    """
    born_in = BORN_IN.get() if size >= _BORN_BYTES else None
    if born_in is not None:
        return born_in(size)
    worker = worker_memory() if size >= SMALL_BYTES else None
    piece = None if worker is None else worker.piece(size)
    return scratch_bytes(size) if piece is None else np.frombuffer(piece, np.uint8)


def scratch_bytes(size: int) -> _Bytes:
    """Like `empty_bytes`, but private to this process: for what never leaves a worker, such as the
    bytes of records.
    """
    native = optional_module("memory") if size >= SMALL_BYTES else None
    return (
        np.empty(size, np.uint8) if native is None else np.frombuffer(native.Block(size), np.uint8)
    )


def empty_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor in memory from `empty_bytes`.

    Raises:
        LimitExceededError: As for `reserve`.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    reserve(num_bytes)
    return as_tensor(empty_bytes(num_bytes).view(array_dtype(dtype)), dtype, shape)


@functools.cache
def array_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's dtype for a tensor's memory, with integers where it has no such numbers (bfloat16)."""
    name = str(dtype).removeprefix("torch.")
    # Not by its name alone: other packages teach NumPy "bfloat16", which torch does not take.
    return np.dtype(getattr(np, "bool_" if name == "bool" else name, f"i{dtype.itemsize}"))


def as_array(tensor: torch.Tensor) -> Array:
    """The memory of a dense tensor on the CPU, of `array_dtype`."""
    import torch  # takes seconds, and reading records does not need it

    plain = tensor if type(tensor) is torch.Tensor else tensor.as_subclass(torch.Tensor)
    try:
        return plain.numpy()
    except TypeError:
        return plain.view(getattr(torch, array_dtype(tensor.dtype).name)).numpy()


def as_tensor(
    array: Array, dtype: torch.dtype, shape: tuple[int, ...] | None = None
) -> torch.Tensor:
    """A tensor of an array's memory, which is of `array_dtype`; in another shape, if one is given.

    torch's own methods, but not ``from_numpy``, let go of the GIL, and beside a thread that computes
    in Python each may then wait for 5 ms: so the array takes the shape.
    """
    import torch

    if not array.size:  # NumPy's empty arrays have no sizes beyond 2**63 bytes, and other strides
        return torch.empty(array.shape if shape is None else shape, dtype=dtype, device="cpu")
    if shape is not None and len(shape) > _MOST_DIMENSIONS:
        tensor = torch.from_numpy(array).reshape(shape)
    else:
        tensor = torch.from_numpy(array if shape is None else array.reshape(shape))
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def splits_of(lengths: npt.ArrayLike) -> Ints:
    """The row splits of rows with these lengths: int64 [N + 1], from 0."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def pad_rows(values: Array, offsets: Ints, longest: int, fill: Array) -> Array:
    """Pad concatenated rows to a dense array [B, longest, *inner].

    The caller must reserve the memory. Values are copied bit for bit.

    Args:
        values: [N, *inner], any dtype.
        offsets: int64 [B + 1]: row i is ``values[offsets[i]:offsets[i + 1]]``; ascending from 0 to
            N.
        longest: At least the length of the longest row.
        fill: The padding value, one element of the same dtype.

    Example:
        >>> pad_rows(np.array([4, 5, 6]), np.array([0, 1, 3]), 2, np.array([-1])).tolist()
        [[4, -1], [5, 6]]
    """
    shape = (len(offsets) - 1, longest, *values.shape[1:])
    itemsize = math.prod(shape[2:]) * values.itemsize
    out = empty_bytes(shape[0] * longest * itemsize)
    # Rows of no bytes have no places that could be filled.
    if len(out):
        _fill(_as_bytes(values), offsets, itemsize, _as_bytes(fill), out.reshape(shape[0], -1))
    return out.view(values.dtype).reshape(shape)


def _as_bytes(array: Array) -> _Bytes:
    return array.reshape(-1).view(np.uint8)


def _fill(values: _Bytes, offsets: Ints, itemsize: int, fill: _Bytes, out: _Bytes) -> None:
    native = optional_module("memory")
    if native is not None:
        return native.pad(values, offsets, itemsize, fill, out)
    # Which places of the padded rows have values: one mask for all rows.
    kept = np.arange(0, out.shape[1], itemsize) < itemsize * np.diff(offsets)[:, None]
    out.reshape(-1, len(fill))[:] = fill
    out.reshape(-1, itemsize)[kept.reshape(-1)] = values.reshape(-1, itemsize)
    return None
