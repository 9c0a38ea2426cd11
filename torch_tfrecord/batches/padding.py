"""From samples of unequal size to one batch, padded as tf.data's ``padded_batch`` pads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import default_collate

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, BatchBudget, check_max_batch_bytes, reserve
from torch_tfrecord.batches.collate import keep_type
from torch_tfrecord.batches.nested_lists import list_sizes, pad_list, scalars
from torch_tfrecord.errors import LimitExceededError
from torch_tfrecord.samples import place_of
from torch_tfrecord.values.dtypes import dtype_name

__all__ = ["PaddedCollate"]

_Shape: TypeAlias = tuple[int, ...]
_Padded: TypeAlias = tuple[Any, Any]  # a batch and its lengths, nested alike
_POINTER_BYTES = 8  # of one entry in a Python list


@dataclass(frozen=True)
class PaddedCollate:
    """A ``collate_fn`` that pads samples to equal sizes, as tf.data's ``padded_batch`` does; pickles.

    Padding is added at the end of each dimension. Nothing is ever cut. Tensors, arrays, numbers and lists of numbers
    become tensors [B, ...]; ``tv_tensors`` keep their type as in `collate`, Python floats are float64. Lists of bytes
    or str, nested ones too, stay lists and are padded in the same way. Mappings and tuples are taken apart, and so are
    lists of anything else. None, and a single bytes or str for each sample, become a list. Lists that are empty in the
    whole batch are taken for bytes.

    Args:
        padded_shapes: The sizes to pad to, nested as a sample: for each feature None (every dimension to its maximum in
            the batch), or a shape without the batch dimension, whose entries are sizes, or None or -1 (that
            dimension's maximum in the batch). A key that is left out of a mapping counts as None.
        padding_values: What to pad with, nested as a sample, or one value for all features. None, a key that is left
            out, and the plain ``0`` for all mean the dtype's own: 0, 0.0, False, ``b""``, ``""``. Else a value that the
            dtype holds exactly. A feature without dimensions is never padded.
        return_lengths: Return (batch, lengths). The lengths are nested as the batch: int64, sizes before padding, [B]
            for a feature of one dimension, [B, R] for one of R dimensions; None for one that has no dimension.
        max_batch_bytes: The most bytes that the batch may need: one long sample among many makes all of them as long.

    Raises:
        LimitExceededError: A batch that needs more, before it is allocated. Names the feature and the largest sample.
        TypeError: A padding value that the dtype does not hold exactly, samples of unequal dtype, a jagged, sparse or
            other value that cannot be padded. Names the feature.
        ValueError: A sample longer than the size asked for, a shape of another rank, or an argument nested in another
            way than the samples. Names the feature, and the sample by its number in the batch.

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
        """Check what can be checked without samples."""
        _check_shapes(self.padded_shapes)
        _check_paddings(self.padding_values)
        check_max_batch_bytes(self.max_batch_bytes)

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Make a batch of samples, at least one."""
        if not samples:
            raise ValueError("a batch needs at least one sample, got none")
        # 0 is the default for every dtype, bytes and str too.
        everywhere = None if type(self.padding_values) is int and not self.padding_values else self.padding_values
        try:
            with BatchBudget(self.max_batch_bytes):
                batch, lengths = _pad(list(samples), self.padded_shapes, everywhere, "")
        except LimitExceededError as error:
            place = None if error.position is None else place_of(samples, error.position)
            text = f"{error.args[0]}{'' if error.position is None else f'; its largest is sample {error.position}'}"
            raise LimitExceededError(text if place is None else f"{text}: {place}") from None
        return (batch, lengths) if self.return_lengths else batch


def _check_shapes(shapes: Any) -> None:
    if isinstance(shapes, Mapping):
        shapes = list(shapes.values())
    if isinstance(shapes, (list, tuple)):
        for item in shapes:
            _check_shapes(item)
    elif shapes is not None and (isinstance(shapes, bool) or not isinstance(shapes, int)):
        raise TypeError(f"padded_shapes holds ints, None and -1, in tuples and mappings, got {type(shapes).__name__}")
    elif shapes is not None and shapes < -1:
        raise ValueError(f"a size in padded_shapes must be at least 0, or None or -1 for the maximum, got {shapes}")


def _check_paddings(paddings: Any) -> None:
    if isinstance(paddings, (Mapping, list, tuple)):
        for item in paddings.values() if isinstance(paddings, Mapping) else paddings:
            _check_paddings(item)
    elif isinstance(paddings, (torch.Tensor, np.ndarray)):
        if paddings.ndim:
            raise ValueError(f"a padding value must be a scalar, got shape {list(paddings.shape)}")
    elif paddings is not None and not isinstance(paddings, (bool, int, float, complex, bytes, str, np.generic)):
        raise TypeError(f"a padding value must be a number, bytes, str or None, got {type(paddings).__name__}")


def _pad(values: list[Any], shapes: Any, paddings: Any, name: str) -> _Padded:
    first = values[0]
    if isinstance(first, Mapping):
        return _pad_mappings(values, shapes, paddings, name)
    if isinstance(first, tuple):
        return _pad_sequences(values, shapes, paddings, name)
    scalar = next(scalars(values), b"")  # lists that are all empty: strings or numbers, nobody knows
    if scalar is None:
        return values, None
    if isinstance(scalar, (bytes, str)):
        return _pad_strings(values, type(scalar), shapes, paddings, name)
    if isinstance(first, list) and not isinstance(scalar, (bool, int, float, complex, np.generic)):
        return _pad_sequences(values, shapes, paddings, name)
    return _pad_tensors(_tensors(values, name), shapes, paddings, name)


def _pad_mappings(values: list[Any], shapes: Any, paddings: Any, name: str) -> _Padded:
    keys = set(values[0])
    for number, value in enumerate(values):
        if not isinstance(value, Mapping) or set(value) != keys:
            raise ValueError(
                f"{name or 'samples'}: expected the keys {_names(keys)} in each, not so in sample {number}"
            )
    for argument, given in (("padded_shapes", shapes), ("padding_values", paddings)):
        if isinstance(given, Mapping) and not set(given) <= keys:
            unknown = _names(set(given) - keys)
            raise ValueError(f"{argument}{name}: the samples have no {unknown}, only {_names(keys)}")
        if isinstance(given, (list, tuple)) or (argument == "padded_shapes" and isinstance(given, int)):
            raise ValueError(f"{argument}{name}: expected a mapping of {_names(keys)}, nested as the samples")
    parts = {}
    for key in values[0]:
        shape = shapes.get(key) if isinstance(shapes, Mapping) else None
        padding = paddings.get(key) if isinstance(paddings, Mapping) else paddings
        parts[key] = _pad([value[key] for value in values], shape, padding, f"{name}[{key!r}]")
    return {key: part[0] for key, part in parts.items()}, {key: part[1] for key, part in parts.items()}


def _names(keys: set[Any]) -> list[str]:
    return sorted(map(str, keys))


def _pad_sequences(values: list[Any], shapes: Any, paddings: Any, name: str) -> _Padded:
    first = values[0]
    for number, value in enumerate(values):
        if not isinstance(value, (list, tuple)) or len(value) != len(first):
            raise ValueError(f"{name or 'samples'}: expected {len(first)} parts in each, not so in sample {number}")
    shapes = _parts("padded_shapes", [None] * len(first) if shapes is None else shapes, len(first), name)
    several = isinstance(paddings, (list, tuple, Mapping))
    paddings = _parts("padding_values", paddings if several else [paddings] * len(first), len(first), name)
    columns = enumerate(zip(zip(*values, strict=True), shapes, paddings, strict=True))
    parts = [_pad(list(column), shape, pad, f"{name}[{number}]") for number, (column, shape, pad) in columns]
    batch, lengths = ([part[which] for part in parts] for which in (0, 1))
    if isinstance(first, tuple):
        return type(first)(*batch) if hasattr(first, "_fields") else tuple(batch), tuple(lengths)
    return batch, lengths


def _parts(argument: str, given: Any, count: int, name: str) -> Any:
    if not isinstance(given, (list, tuple)) or len(given) != count:
        raise ValueError(f"{argument}{name}: expected {count} parts, nested as the samples, got {given!r}")
    return given


def _tensors(values: list[Any], name: str) -> list[torch.Tensor]:
    try:
        if isinstance(values[0], (bool, int, float, complex, list)):
            arrays = [np.asarray(value) for value in values]
            # An empty list has no dtype of its own.
            dtype = np.result_type(*(array for array in arrays if array.size))
            return [torch.from_numpy(array.astype(dtype)) for array in arrays]
        return [torch.tensor(value) if isinstance(value, (np.ndarray, np.generic)) else value for value in values]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name or 'samples'}: expected numbers alone, in lists of equal length") from error


def _pad_tensors(tensors: list[torch.Tensor], shapes: Any, padding: Any, name: str) -> _Padded:
    _check_alike(tensors, name)
    sizes = [tuple(tensor.shape) for tensor in tensors]
    size = _padded_size(sizes, shapes, name)
    plain = [tensor.as_subclass(torch.Tensor) for tensor in tensors]
    fill = _exact_number(padding, plain[0].dtype, name) if size else 0
    _reserve(sizes, size, plain[0].dtype.itemsize, name)
    if all(own == size for own in sizes):
        batch = default_collate(plain)
    else:
        batch = plain[0].new_full((len(plain), *size), fill)
        for number, tensor in enumerate(plain):
            batch[number][tuple(map(slice, tensor.shape))] = tensor
    return keep_type(batch, tensors[0]), _lengths(sizes)


def _reserve(sizes: Sequence[_Shape], size: _Shape, itemsize: int, name: str) -> None:
    """Ask for a column, whose values have all the same size then."""
    try:
        reserve(len(sizes) * math.prod(size) * itemsize)
    except LimitExceededError as error:
        largest = max(range(len(sizes)), key=lambda number: math.prod(sizes[number]))
        raise LimitExceededError(f"{name or 'samples'}: {error.args[0]}", position=largest) from None


def _check_alike(tensors: list[Any], name: str) -> None:
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested or tensor.layout != torch.strided:
            kind = "a jagged or sparse tensor" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(
                f"{name or 'samples'}: padding is only supported for dense tensors, numbers, bytes and str, got {kind} "
                f"in sample {number}"
            )
        if tensor.dtype != tensors[0].dtype:
            raise TypeError(
                f"{name or 'samples'}: expected one dtype, got {dtype_name(tensors[0].dtype)} in sample 0, "
                f"{dtype_name(tensor.dtype)} in sample {number}"
            )


def _padded_size(sizes: Sequence[_Shape], shape: Any, name: str) -> _Shape:
    """The size of one sample in the batch."""
    rank = len(sizes[0])
    for number, size in enumerate(sizes):
        if len(size) != rank:
            raise ValueError(
                f"{name or 'samples'}: expected tensors of one rank, got shape {list(sizes[0])} in sample 0, "
                f"{list(size)} in sample {number}"
            )
    wanted = _wanted(shape, rank, name)
    largest = [max(lengths) for lengths in zip(*sizes, strict=True)]
    padded = tuple(most if size is None else size for size, most in zip(wanted, largest, strict=True))
    for number, size in enumerate(sizes):
        if any(own > allowed for own, allowed in zip(size, padded, strict=True)):
            raise ValueError(
                f"{name or 'samples'}: sample {number}: Attempted to pad to a smaller size than the input element. "
                f"Its shape is {list(size)}, padded_shapes asks for {list(wanted)}"
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


def _exact_number(value: Any, dtype: torch.dtype, name: str) -> Any:
    """The padding value, if the dtype holds it exactly."""
    if value is None:
        return 0
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        value = value.item()
    try:
        held = torch.tensor(value, dtype=dtype).item()
    except (RuntimeError, TypeError, ValueError, OverflowError):
        held = None
    if held is None or not (held == value or (held != held and value != value)):
        nearest = f"; the nearest is {held!r}" if isinstance(held, float) and isinstance(value, float) else ""
        raise TypeError(
            f"{name or 'samples'}: Invalid `padding_values`. {dtype_name(dtype)} cannot hold {value!r} exactly{nearest}"
        )
    return held


def _lengths(sizes: Sequence[_Shape]) -> torch.Tensor | None:
    rank = len(sizes[0])
    if not rank:
        return None
    return torch.tensor([size[0] for size in sizes] if rank == 1 else sizes, dtype=torch.int64)


def _pad_strings(values: list[Any], kind: type[bytes] | type[str], shape: Any, padding: Any, name: str) -> _Padded:
    for scalar in scalars(values):
        if not isinstance(scalar, kind):
            raise TypeError(f"{name or 'samples'}: expected {kind.__name__} alone, got {type(scalar).__name__}, too")
    try:
        sizes = list_sizes(values)
    except ValueError as error:
        raise ValueError(f"{name or 'samples'}: {error}") from None
    size = _padded_size(sizes, shape, name)
    if padding is not None and not isinstance(padding, kind) and size and any(scalars(values)):
        raise TypeError(f"{name or 'samples'}: Invalid `padding_values`. {kind.__name__} cannot hold {padding!r}")
    fill = kind() if padding is None else padding
    _reserve(sizes, size, _POINTER_BYTES, name)
    return [pad_list(value, size, fill) for value in values], _lengths(sizes)
