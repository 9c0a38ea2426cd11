"""Several records in one buffer: what readers hand to parsers, so that no record becomes an object of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_tfrecord.native import native_module

__all__ = ["PackedRecords"]


class PackedRecords(Sequence[memoryview]):
    """The payloads of several records: record i is `buffer[starts[i] : starts[i] + lengths[i]]`.

    Args:
        buffer: Bytes-like; whatever lies between the payloads (headers, footers) is of no matter. Not copied.
        starts: int64 [N], in any order.
        lengths: int64 [N].

    Example:
        >>> records = PackedRecords(b"..ab...c", np.array([7, 2]), np.array([1, 2]))
        >>> records.tolist()
        [b'c', b'ab']
    """

    def __init__(self, buffer: Any, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        self.buffer = memoryview(buffer).cast("B")
        self.starts = starts
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: Any) -> Any:
        """The payload of a record, not copied; for a slice the PackedRecords of those."""
        if isinstance(number, slice):
            return PackedRecords(self.buffer, self.starts[number], self.lengths[number])
        start = int(self.starts[number])
        return self.buffer[start : start + int(self.lengths[number])]

    def __iter__(self) -> Iterator[memoryview]:
        buffer = self.buffer
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield buffer[start : start + length]

    def tolist(self) -> list[bytes]:
        """Each payload as bytes; not copied where the buffer is nothing but one payload.

        Raises:
            ValueError: a start and length that are not inside the buffer.
        """
        whole = self.buffer.obj
        if len(self) == 1 and type(whole) is bytes and self.starts[0] == 0 and self.lengths[0] == len(whole):
            return [whole]
        native = native_module("frames")
        if native is None:
            places = zip(self.starts.tolist(), self.lengths.tolist(), strict=True)
            return [_part(self.buffer, start, length) for start, length in places]
        parts: list[bytes] = native.slices(self.buffer, self.starts, self.lengths)
        return parts


def _part(buffer: memoryview, start: int, length: int) -> bytes:
    if start < 0 or length < 0 or length > len(buffer) - start:
        raise ValueError(f"expected parts of a buffer of {len(buffer)} bytes, got {length} bytes from {start}")
    return bytes(buffer[start : start + length])
