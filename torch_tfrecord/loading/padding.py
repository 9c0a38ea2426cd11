"""From samples of unequal size to one padded batch, like tf.data's ``padded_batch``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, BatchBudget, check_max_batch_bytes
from torch_tfrecord.columns.stacking import WHOLE_KINDS
from torch_tfrecord.errors import LimitExceededError
from torch_tfrecord.loading.collate import take_columns
from torch_tfrecord.loading.column_batch import ColumnBatch
from torch_tfrecord.loading.padded_values import (
    ColumnRows,
    Padded,
    column_rows,
    pad_column,
    pad_numbers,
    pad_strings,
    scalars,
)
from torch_tfrecord.samples import place_of

__all__ = ["PaddedCollate"]


@dataclass(frozen=True)
class PaddedCollate:
    """A ``collate_fn`` that pads samples to equal sizes, like tf.data's ``padded_batch``; pickles.

    Padding is added at the end of each dimension; nothing is ever truncated. Tensors, arrays,
    numbers and lists of numbers become tensors [B, ...]; ``tv_tensors`` keep their type as in
    `collate`, and Python floats become float64. Lists of bytes or str, also nested, stay lists and
    are padded in the same way. In mappings, tuples and lists of anything else, each part is padded
    by itself. None, messages, JSON, and a single bytes or str for each sample, become a list. Lists
    that are empty in the whole batch are taken to be of bytes.

    Args:
        padded_shapes: The sizes to pad to, nested like a sample. For each feature None (pad every
            dimension to its maximum in the batch), or a shape without the batch dimension, whose
            entries are sizes, or None or -1 for that dimension's maximum in the batch. A key
            missing from a mapping counts as None.
        padding_values: What to pad with, nested like a sample, or one value for all features: a
            value that the dtype can hold exactly. None, a missing key, or a plain ``0`` for all
            means the dtype's default: 0, 0.0, False, ``b""`` or ``""``. A feature without
            dimensions is never padded.
        return_lengths: Return (batch, lengths). The lengths are nested like the batch and hold the
            sizes before padding: int64 [B] for a feature of one dimension, [B, R] for one of R
            dimensions, None for one without dimensions.
        max_batch_bytes: Limit on the bytes of the batch, since one long sample makes all others as
            long.

    Raises:
        LimitExceededError: A batch needs more; raised before it is allocated. The message names the
            feature and the largest sample.
        TypeError: The dtype cannot hold the padding value exactly, samples have different dtypes,
            or a value is jagged, sparse or of another type that cannot be padded. The message names
            the feature.
        ValueError: A sample is larger than the size to pad to, a shape has another number of
            dimensions, or an argument is not nested like the samples. The message names the
            feature, and the sample by its number in the batch.

    Example:
        >>> pad = PaddedCollate(padding_values={"ids": -1})
        >>> pad([{"ids": torch.tensor([4])}, {"ids": torch.tensor([1, 2, 3])}])
        {'ids': tensor([[ 4, -1, -1],
                [ 1,  2,  3]])}
    """

    padded_shapes: Any = None
    padding_values: Any = 0
    return_lengths: bool = field(default=False, kw_only=True)
    max_batch_bytes: int = field(default=MAX_BATCH_BYTES, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Check the arguments as far as possible without samples."""
        _check_shapes(self.padded_shapes)
        _check_paddings(self.padding_values)
        check_max_batch_bytes(self.max_batch_bytes)

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Make a batch of at least one sample."""
        if not samples:
            raise ValueError("a batch needs at least one sample, got none")
        # 0 stands for every dtype's default, also for bytes and str.
        everywhere = (
            None
            if type(self.padding_values) is int and not self.padding_values
            else self.padding_values
        )
        columns = take_columns(samples)
        try:
            with BatchBudget(self.max_batch_bytes):
                columns = list(samples) if columns is None else _fillable(columns, len(samples))
                batch, lengths = _pad(columns, self.padded_shapes, everywhere, "")
        except LimitExceededError as error:
            place = None if error.position is None else place_of(samples, error.position)
            text = f"{error.args[0]}{'' if error.position is None else f'; its largest is sample {error.position}'}"
            raise LimitExceededError(text if place is None else f"{text}: {place}") from None
        return (batch, lengths) if self.return_lengths else batch


def _fillable(columns: Any, num_samples: int) -> Any:
    """The columns as `pad_column` takes them, or as a list of values where it cannot."""
    if isinstance(columns, dict):
        return {key: _fillable(column, num_samples) for key, column in columns.items()}
    if isinstance(columns, tuple):
        return tuple(_fillable(column, num_samples) for column in columns)
    if isinstance(columns, list):
        return columns
    column = column_rows(columns) if isinstance(columns, torch.Tensor) else None
    return list(ColumnBatch(columns, num_samples)) if column is None else column


def _check_shapes(shapes: object) -> None:
    if isinstance(shapes, Mapping):
        shapes = list(shapes.values())
    if isinstance(shapes, (list, tuple)):
        for item in shapes:
            _check_shapes(item)
    elif shapes is not None and (isinstance(shapes, bool) or not isinstance(shapes, int)):
        raise TypeError(
            f"padded_shapes must hold ints, None and -1, in tuples and mappings, got {type(shapes).__name__}"
        )
    elif shapes is not None and shapes < -1:
        raise ValueError(
            f"a size in padded_shapes must be at least 0, or None or -1 for the maximum, got {shapes}"
        )


def _check_paddings(paddings: object) -> None:
    if isinstance(paddings, (Mapping, list, tuple)):
        for item in paddings.values() if isinstance(paddings, Mapping) else paddings:
            _check_paddings(item)
    elif isinstance(paddings, (torch.Tensor, np.ndarray)):
        if paddings.ndim:
            raise ValueError(f"a padding value must be a scalar, got shape {list(paddings.shape)}")
    elif paddings is not None and not isinstance(
        paddings, (bool, int, float, complex, bytes, str, np.generic)
    ):
        raise TypeError(
            f"a padding value must be a number, bytes, str or None, got {type(paddings).__name__}"
        )


def _pad(column: Any, shapes: object, paddings: object, name: str) -> Padded:
    """Pad a mapping or tuple of columns, or one column: `ColumnRows`, or a list of its values."""
    if isinstance(column, dict):
        return _pad_mapping(column, shapes, paddings, name)
    if isinstance(column, tuple):
        batch, lengths = _pad_parts(column, shapes, paddings, name)
        return tuple(batch), tuple(lengths)
    if isinstance(column, ColumnRows):
        return pad_column(column, shapes, paddings, name)
    return _pad_values(column, shapes, paddings, name)


def _pad_values(values: list[Any], shapes: object, paddings: object, name: str) -> Padded:
    first = values[0]
    if isinstance(first, WHOLE_KINDS):
        return values, None
    if isinstance(first, Mapping):
        return _pad_mapping(_columns_of_mappings(values, name), shapes, paddings, name)
    if isinstance(first, tuple):
        return _pad_sequences(values, shapes, paddings, name)
    scalar = next(scalars(values), b"")  # lists that are all empty count as strings
    if scalar is None:
        return values, None
    if isinstance(scalar, (bytes, str)):
        return pad_strings(values, type(scalar), shapes, paddings, name)
    if isinstance(first, list) and not isinstance(scalar, (bool, int, float, complex, np.generic)):
        return _pad_sequences(values, shapes, paddings, name)
    return pad_numbers(values, shapes, paddings, name)


def _columns_of_mappings(values: list[Any], name: str) -> dict[Any, list[Any]]:
    keys = set(values[0])
    for number, value in enumerate(values):
        if not isinstance(value, Mapping) or set(value) != keys:
            raise ValueError(
                f"{name or 'samples'}: expected the keys {_names(keys)} in each, got others in sample {number}"
            )
    return {key: [value[key] for value in values] for key in values[0]}


def _pad_mapping(columns: dict[Any, Any], shapes: object, paddings: object, name: str) -> Padded:
    keys = set(columns)
    for argument, given in (("padded_shapes", shapes), ("padding_values", paddings)):
        if isinstance(given, Mapping) and not set(given) <= keys:
            unknown = _names(set(given) - keys)
            raise ValueError(
                f"{argument}{name}: expected some of the samples' keys {_names(keys)}, got {unknown}"
            )
        if isinstance(given, (list, tuple)) or (
            argument == "padded_shapes" and isinstance(given, int)
        ):
            raise ValueError(
                f"{argument}{name}: expected a mapping of {_names(keys)}, nested like the samples"
            )
    parts = {}
    for key, column in columns.items():
        shape = shapes.get(key) if isinstance(shapes, Mapping) else None
        padding = paddings.get(key) if isinstance(paddings, Mapping) else paddings
        parts[key] = _pad(column, shape, padding, f"{name}[{key!r}]")
    return {key: part[0] for key, part in parts.items()}, {
        key: part[1] for key, part in parts.items()
    }


def _names(keys: set[Any]) -> list[str]:
    return sorted(map(str, keys))


def _pad_sequences(values: list[Any], shapes: object, paddings: object, name: str) -> Padded:
    first = values[0]
    for number, value in enumerate(values):
        if not isinstance(value, (list, tuple)) or len(value) != len(first):
            raise ValueError(
                f"{name or 'samples'}: expected {len(first)} parts in each, got others in sample {number}"
            )
    batch, lengths = _pad_parts([*map(list, zip(*values, strict=True))], shapes, paddings, name)
    if isinstance(first, tuple):
        return type(first)(*batch) if hasattr(first, "_fields") else tuple(batch), tuple(lengths)
    return batch, lengths


def _pad_parts(
    columns: Sequence[Any], shapes: object, paddings: object, name: str
) -> tuple[list[Any], list[Any]]:
    count = len(columns)
    shapes = _parts("padded_shapes", [None] * count if shapes is None else shapes, count, name)
    several = isinstance(paddings, (list, tuple, Mapping))
    paddings = _parts("padding_values", paddings if several else [paddings] * count, count, name)
    numbered = enumerate(zip(columns, shapes, paddings, strict=True))
    parts = [
        _pad(column, shape, padding, f"{name}[{number}]")
        for number, (column, shape, padding) in numbered
    ]
    return [part[0] for part in parts], [part[1] for part in parts]


def _parts(argument: str, given: object, count: int, name: str) -> Sequence[object]:
    if not isinstance(given, (list, tuple)) or len(given) != count:
        raise ValueError(
            f"{argument}{name}: expected {count} parts, nested like the samples, got {given!r}"
        )
    return given
