"""From a row's value to the list of values that a spec reads back, widened and checked: the way
back of readers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torch_tfrecord.columns.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST
from torch_tfrecord.columns.reading import NO_OFFSETS, Column, Reader
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.protobuf.encoding import HELD, ListValues, int64_error, list_values

__all__ = ["ValueEncoder"]

_MISSING = ("NAType", "NaTType")  # of pandas, which is not imported for it


class ValueEncoder:
    """Turns a value into the values of one list; what it accepts, the reader reads back.

    Args:
        reader: The spec's reader.
        stored: Turns a value into what stands in the record, such as an array into its bytes.
        shape: Shape of one row, where the list may have any number of them.
        reads_back: Whether to call the reader on the result; not where that would decode a picture
            or a sound.
    """

    def __init__(
        self,
        reader: Reader,
        stored: Callable[[object], object],
        shape: tuple[int, ...] = (),
        *,
        reads_back: bool = True,
    ) -> None:
        self._reader, self._stored, self._reads_back = reader, stored, reads_back
        self._want = reader.wants[0]
        self._row = self._want.shape if self._want.num_values is not None else shape

    def __call__(self, value: object) -> ListValues | None:
        """The values, or None where the record shall lack the key.

        Raises:
            TypeError: The value has a type that the list does not hold.
            ValueError: The value is required and missing, or the spec would not read it back.
        """
        want = self._want
        if self._is_missing(value):
            if want.is_required:
                raise ValueError(
                    f"{want.label}: expected a value, got {value!r}, and the spec has no default_value"
                )
            return None
        try:
            found = self._in_list(value)
            self._check(found)
        except TypeError as error:
            raise TypeError(f"{want.label}: {error}") from error
        except TFRecordError as error:
            raise ValueError(str(error)) from error
        except ValueError as error:
            raise ValueError(f"{want.label}: {error}") from error
        is_left_out = not found.values and not want.is_required
        return None if is_left_out else found

    def _is_missing(self, value: object) -> bool:
        """Whether pandas and others write a missing value so; NaN is a value among floats alone."""
        if value is None or type(value).__name__ in _MISSING:
            return True
        is_nan = isinstance(value, (float, np.floating)) and value != value
        return is_nan and self._want.kind is not FLOAT_LIST

    def _in_list(self, value: object) -> ListValues:
        kind = self._want.kind
        if isinstance(value, (list, tuple)) and not value:
            return ListValues(kind.field, [], (0,))
        if kind is INT64_LIST and isinstance(value, (float, np.floating)) and value.is_integer():
            value = int(value)  # pandas makes floats of integers where one is missing
        try:
            found = list_values(self._stored(value))
        except TFRecordError as error:
            raise ValueError(error.args[0]) from error
        if kind is FLOAT_LIST and found.kind == INT64_LIST.field:
            single = np.array(found.values, np.float32)
            if single.tolist() != found.values:
                raise ValueError(
                    "expected integers that float32 holds, got one beyond 2**24 that it would round"
                )
            found = found._replace(kind=kind.field, values=single.astype("<f4").tobytes())
        if found.kind != kind.field:
            raise TypeError(
                f"expected {HELD[kind.field]}, got {HELD[found.kind]} ({type(value).__name__})"
            )
        return found

    def _check(self, found: ListValues) -> None:
        want = self._want
        if want.kind is FLOAT_LIST:
            values = np.frombuffer(found.values or b"", "<f4").astype(np.float32)
        elif want.kind is BYTES_LIST:
            values = np.array([*map(len, found.values)], np.int64)
        else:
            try:
                values = np.array(found.values, np.int64)
            except OverflowError as error:
                raise int64_error(found.values) from error
        count = len(values)
        if want.num_values not in (None, count):
            raise want.wrong_count(count)
        if len(found.shape) > 1 and found.shape[want.num_values is None :] != self._row:
            any_number = "any number of rows of " if want.num_values is None else ""
            raise ValueError(
                f"expected {any_number}shape {[*self._row]}, or a flat list, got {[*found.shape]}"
            )
        if not self._reads_back:
            return
        buffer = b""
        if want.kind is BYTES_LIST:
            buffer = b"".join(found.values)
            values = np.stack([np.cumsum(values) - values, values], axis=1)
        offsets = NO_OFFSETS if want.num_values is not None else np.array([0, count])
        if want.num_values is not None and want.num_values != 1:
            values = values[None]
        elif want.num_values is None and want.kind is BYTES_LIST:
            values = values.reshape(-1, 2)
        self._reader.read([Column(values, offsets, None, buffer)])
