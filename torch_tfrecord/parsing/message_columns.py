"""Columns from protobuf's messages: the twin of the compiled core, and where the errors of records get their words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.parsing.columns import Column, Reader, read_columns, rows_of
from torch_tfrecord.parsing.wants import LackingError, Want
from torch_tfrecord.protobuf.example import join_arrays
from torch_tfrecord.values.dtypes import BYTES_LIST, FLOAT_LIST

__all__ = ["columns_of", "read_one"]

_NO_OFFSETS = np.zeros(0, np.int64)


def columns_of(wants: Sequence[Want], records: Sequence[Any]) -> list[Column]:
    """What records have of several wants.

    Args:
        wants: What is wanted.
        records: Each a map of key to Feature message.

    Raises:
        ParseError: Of some record that does not fit what is wanted.
    """
    return [_column(want, records) for want in wants]


def read_one(reader: Reader, record: Any, key: int = 0) -> Any:
    """The value of one record, the row of a batch of one; arguments and errors as of `columns_of` and the reader.

    Args:
        reader: What reads it.
        record: A map of key to Feature message.
        key: What a reader that draws at random draws from, an unsigned number of 64 bits.
    """
    columns = columns_of(reader.wants, [record])
    try:
        column = read_columns(reader, columns, key)
    except LackingError as error:
        raise error.want.missing(record) from None
    except TFRecordError as error:
        error.position = None  # its number in the batch of one
        raise
    return rows_of(column)[0]


def _column(want: Want, records: Sequence[Any]) -> Column:
    found = [want.take(record) for record in records]
    counts = np.array([0 if item is None else len(item.value) for item in found], np.int64)
    present = [item for item in found if item is not None]
    missing = None
    if len(present) < len(found):
        pairs = zip(found, records, strict=True)
        missing = np.array([item is None and (2 if want.key in record else 1) for item, record in pairs], np.uint8)
    values, buffer = _spans(present) if want.kind is BYTES_LIST else (_numbers(want, present), b"")
    if want.num_values is None:
        return Column(values, np.concatenate([_NO_OFFSETS, [0], counts.cumsum()]), missing, buffer)
    return Column(_dense(want, values, missing, len(records)), _NO_OFFSETS, missing, buffer)


def _numbers(want: Want, found: Sequence[Any]) -> npt.NDArray[Any]:
    return join_arrays(found) if found else np.zeros(0, np.float32 if want.kind is FLOAT_LIST else np.int64)


def _spans(found: Sequence[Any]) -> tuple[npt.NDArray[np.int64], bytes]:
    values = [value for item in found for value in item.value]
    lengths = np.array([*map(len, values)], np.int64)
    return np.stack([lengths.cumsum() - lengths, lengths], axis=1), b"".join(values)


def _dense(
    want: Want, values: npt.NDArray[Any], missing: npt.NDArray[np.uint8] | None, num_records: int
) -> npt.NDArray[Any]:
    shape = (num_records, *(() if want.num_values == 1 else (want.num_values or 0,)), *values.shape[1:])
    if missing is None:
        return values.reshape(shape)
    dense = np.zeros(shape, values.dtype)
    dense[missing == 0] = values.reshape(-1, *shape[1:])
    return dense
