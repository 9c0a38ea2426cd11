"""From samples of unequal size to one padded batch, like tf.data's ``padded_batch``."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from operator import gt
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import at_least, knows_keywords
from torch_tfrecord.batch_memory import (
    MAX_BATCH_BYTES,
    Array,
    BatchBudget,
    array_dtype,
    as_array,
    as_tensor,
    check_max_batch_bytes,
    pad_rows,
    reserve,
)
from torch_tfrecord.columns import Nested, as_plain
from torch_tfrecord.errors import LimitExceededError
from torch_tfrecord.loading import ColumnBatch, ColumnCollate, collate
from torch_tfrecord.samples import WHOLE_KINDS, Batch, Columns, Samples, Value, Values, place_of
from torch_tfrecord.shown import dtype_name

__all__ = ["Nest", "PaddedCollate", "Wish", "pad_rows_of", "sizes_of_rows", "split_argument"]

Padded: TypeAlias = tuple[Batch, Batch]
"""A batch and its lengths, nested alike."""

_Shape: TypeAlias = tuple[int, ...]
_Sizes: TypeAlias = "npt.NDArray[np.int64]"  # the shapes of a batch's samples: [B, rank]

_POINTER_BYTES = 8  # one entry of a Python list


Nest: TypeAlias = Any
"""An argument of `PaddedCollate`, nested like the samples."""


class Wish(NamedTuple):
    """The wishes for one feature, or of a nest of them: the arguments of `PaddedCollate` for it,
    and its name in errors, such as ``['x'][0]``.
    """

    name: str
    padded_shapes: Nest
    padding_values: Nest
    multiple_of: int = 1
    return_lengths: bool = False


@knows_keywords
@dataclass(frozen=True)
class PaddedCollate(ColumnCollate):
    """A ``collate_fn`` that pads samples to equal sizes, like tf.data's ``padded_batch``; pickles.

    Padding is added at the end of each dimension; nothing is ever truncated. Tensors, arrays,
    numbers and lists of numbers become plain tensors [B, ...]; Python floats become float64. Lists
    of bytes or str, also nested, stay lists and are padded in the same way. In mappings, tuples and
    lists of anything else, each part is padded by itself. None, messages, JSON, and a single bytes
    or str for each sample, become a list. Lists that are empty in the whole batch are taken to be
    of bytes.

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
        multiple_of: Round the sizes that are padded to the batch's maximum up to a multiple of this
            number, such as 8 or 16, which matrix units are fastest at; sizes that `padded_shapes`
            gives stay as they are. It goes for each such dimension of each feature: give the others
            their size, such as ``(3, None, None)`` for images.

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

    padded_shapes: Nest = None
    padding_values: Nest = 0
    _: KW_ONLY
    return_lengths: bool = False
    max_batch_bytes: int = field(default=MAX_BATCH_BYTES, repr=False)
    multiple_of: int = 1

    def __post_init__(self) -> None:
        """Check the arguments as far as possible without samples."""
        for size in _each(self.padded_shapes):
            _check_size(size)
        for padding in _each(self.padding_values):
            _check_padding(padding)
        check_max_batch_bytes(self.max_batch_bytes)
        at_least(1, "multiple_of", self.multiple_of)

    def _batch(self, samples: Samples, columns: Columns | None) -> Batch:
        padding = self.padding_values
        if type(padding) is int and not padding:
            padding = None  # 0 means every dtype's default, also for bytes and str
        try:
            with BatchBudget(self.max_batch_bytes):
                columns = list(samples) if columns is None else columns
                wish = Wish("", self.padded_shapes, padding, self.multiple_of, self.return_lengths)
                batch, lengths = _pad(columns, wish, len(samples))
        except LimitExceededError as error:
            place = None if error.position is None else place_of(samples, error.position)
            text = f"{error.args[0]}{'' if error.position is None else f'; its largest is sample {error.position}'}"
            raise LimitExceededError(text if place is None else f"{text}: {place}") from None
        return (batch, lengths) if self.return_lengths else batch


# The arguments.

# Types of a list's values in a sample, and of padding values.
_SCALARS = (bool, int, float, complex, bytes, str, np.generic, type(None))


def _each(tree: Nest) -> Iterator[Nest]:
    """The innermost parts of nested mappings, lists and tuples."""
    if isinstance(tree, (Mapping, list, tuple)):
        for item in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _each(item)
    else:
        yield tree


def _check_size(size: object) -> None:
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise TypeError(
            f"padded_shapes must hold ints, None and -1, in tuples and mappings, got {type(size).__name__}"
        )
    if size is not None and size < -1:
        raise ValueError(
            f"a size in padded_shapes must be at least 0, or None or -1 for the maximum, got {size}"
        )


def _check_padding(padding: object) -> None:
    if isinstance(padding, (torch.Tensor, np.ndarray)):
        if padding.ndim:
            raise ValueError(f"a padding value must be a scalar, got shape {list(padding.shape)}")
    elif not isinstance(padding, _SCALARS):
        raise TypeError(
            f"a padding value must be a number, bytes, str or None, got {type(padding).__name__}"
        )


def split_argument(
    wish: Wish, argument: str, parts: Mapping[Any, object], kind: type
) -> dict[Any, Nest]:
    """The entry of an argument for each part of a nest of columns."""
    given = getattr(wish, argument)
    # One value is for all parts; a single size would fit only one of them.
    nests = isinstance(given, (Mapping, list, tuple))
    if not nests and (given is None or argument == "padding_values"):
        return dict.fromkeys(parts, given)
    if kind is not dict:
        if not isinstance(given, (list, tuple)) or len(given) != len(parts):
            raise ValueError(
                f"{argument}{wish.name}: expected {len(parts)} parts, nested like the samples, got {given!r}"
            )
        return dict(enumerate(given))
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{argument}{wish.name}: expected a mapping of {_names(parts)}, nested like the samples"
        )
    if not given.keys() <= parts.keys():
        raise ValueError(
            f"{argument}{wish.name}: expected some of the samples' keys {_names(parts)}, "
            f"got {_names(given.keys() - parts.keys())}"
        )
    return {key: given.get(key) for key in parts}


def _names(keys: Iterable[object]) -> list[str]:
    return sorted(map(str, keys))


# The samples.


def _pad(column: Columns, wish: Wish, num_samples: int) -> Padded:
    """Pad a mapping or tuple of columns, one column, or a list of its values."""
    parts: Mapping[Any, Columns]
    kind: Any
    # Single values are never padded: any tensor will do.
    is_flat = getattr(column, "layout", None) == torch.strided and column.ndim == 1
    rows = Nested(column, column.dtype) if is_flat else Nested.rows_of(column)
    if rows is not None:
        return pad_rows_of(rows, wish)
    if isinstance(column, dict):
        parts, kind = column, dict
    elif isinstance(column, tuple) and not isinstance(column, Nested):
        parts, kind = dict(enumerate(column)), tuple
    else:
        if not isinstance(column, list):
            column = list(ColumnBatch(column, num_samples))
        # The kind of the values decides: a nest of features, a list of strings, or numbers.
        first = column[0]
        scalar = next(flatten(column), b"")  # lists that are all empty count as strings
        # before mappings, which some of these are
        if isinstance(first, WHOLE_KINDS) or scalar is None:
            return column, None
        if isinstance(first, (Mapping, tuple)) or (
            isinstance(first, list) and not isinstance(scalar, _SCALARS)
        ):
            parts = _split(column, wish)
            kind = dict if isinstance(first, Mapping) else type(first)
        elif isinstance(scalar, (bytes, str)):
            return pad_strings(column, type(scalar), wish)
        else:
            return pad_numbers(column, wish)
    shapes, paddings = (
        split_argument(wish, argument, parts, kind)
        for argument in ("padded_shapes", "padding_values")
    )
    padded = {
        key: _pad(
            part,
            Wish(f"{wish.name}[{key!r}]", shapes[key], paddings[key], *wish[3:]),
            num_samples,
        )
        for key, part in parts.items()
    }
    batch, lengths = ({key: pair[number] for key, pair in padded.items()} for number in (0, 1))
    if kind is dict:
        return batch, lengths
    # Lengths are nested alike, but a named tuple's are a plain tuple.
    make = kind._make if hasattr(kind, "_make") else kind  # a named tuple's
    return make(batch.values()), (list if kind is list else tuple)(lengths.values())


def _split(values: Values, wish: Wish) -> dict[Any, Values]:
    """The parts of samples that are all mappings, or all lists or tuples, like the first."""
    found: list[Mapping[Any, Any]] = []
    for number, value in enumerate(values):
        is_mapping = isinstance(value, Mapping)
        part = (
            value
            if is_mapping
            else dict(enumerate(value) if isinstance(value, (list, tuple)) else ())
        )
        found.append(part)
        if is_mapping != isinstance(values[0], Mapping) or part.keys() != found[0].keys():
            wanted = (
                f"the keys {_names(found[0])}"
                if isinstance(values[0], Mapping)
                else f"{len(found[0])} parts"
            )
            raise ValueError(
                f"{wish.name or 'samples'}: expected {wanted} in each, got others in sample {number}"
            )
    return {key: [part[key] for part in found] for key in found[0]}


# One column: a tensor of all its rows, or a list of values.


def sizes_of_rows(rows: Nested) -> _Sizes:
    """The shapes of a column's rows."""
    shape, depth = rows.values.shape, len(rows.row_splits)
    sizes = np.empty((rows.num_rows, depth + len(shape) - 1), np.int64)
    for ends in map(np.asarray, rows.row_splits):  # one at most
        sizes[:, 0] = ends[1:] - ends[:-1]
    sizes[:, depth:] = shape[1:]
    return sizes


def pad_rows_of(rows: Nested, wish: Wish) -> Padded:
    """Pad a column, with the same result and errors as `pad_numbers` of its rows."""
    sizes = sizes_of_rows(rows)
    size, fill = _prepare(sizes, wish, rows.dtype)
    # First all dimensions but the first of a ragged row: then rows are of one size.
    inner = size[len(rows.row_splits) :]
    if not rows.row_splits and rows.values.shape[1:] == inner:
        return as_plain(rows), _lengths_of(sizes, wish)
    plain, row_splits = rows.arrays()
    if plain.shape[1:] != inner:
        values, plain = plain, np.full((len(plain), *inner), fill)
        plain[tuple(map(slice, values.shape))] = values
    for ends in row_splits:
        plain = pad_rows(plain, ends, size[0], fill)
    return as_tensor(plain, rows.dtype), _lengths_of(sizes, wish)


def pad_numbers(values: Values, wish: Wish) -> Padded:
    """Pad tensors, arrays, numbers or nested lists of numbers, one for each sample.

    Raises:
        TypeError: A value is not a number, dtypes differ, or the dtype cannot hold the padding
            value.
        ValueError: Samples have different numbers of dimensions, or one is larger than the size to
            pad to.
    """
    # Columns are tensors already; these are samples that were changed, or others'.
    tensors = _tensors(values, wish.name)
    _check_alike(tensors, wish.name)
    sizes = _sizes_of([tuple(tensor.shape) for tensor in tensors], wish.name)
    size, fill = _prepare(sizes, wish, tensors[0].dtype)
    batch = tensors[0].as_subclass(torch.Tensor).new_empty((len(tensors), *size))
    padded: Any = batch
    rows: list[Any] = tensors
    with suppress(RuntimeError, TypeError):  # gradients must pass, or they are on a device
        rows = [*map(as_array, tensors)]
        padded = as_array(batch)
    if (sizes != size).any():
        padded[...] = fill if padded is not batch else as_tensor(fill, batch.dtype)
    for number, row in enumerate(rows):
        place = (number, *map(slice, row.shape))
        padded[place] = row
    return batch, _lengths_of(sizes, wish)


def _tensors(values: Values, name: str) -> list[torch.Tensor]:
    try:
        if isinstance(values[0], (bool, int, float, complex, list)):
            arrays = [np.asarray(value) for value in values]
            # An empty list has no dtype of its own.
            dtype = np.result_type(*(array for array in arrays if array.size))
            flat = values
            while list in (kinds := {*map(type, flat)}):
                flat = [*chain.from_iterable(flat)]
            if (len(kinds) > 1 or (int in kinds and dtype != np.int64)) and isinstance(
                collate(flat), list
            ):
                raise TypeError
            return [torch.from_numpy(array.astype(dtype)) for array in arrays]
        return [
            torch.tensor(value, device="cpu")
            if isinstance(value, (np.ndarray, np.generic))
            else value
            for value in values
        ]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name or 'samples'}: expected only numbers, in lists of equal length, that one dtype holds as they are"
        ) from error


def _check_alike(tensors: Values, name: str) -> None:
    for number, tensor in enumerate(tensors):
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.is_nested
            or tensor.layout != torch.strided
        ):
            kind = (
                "a jagged or sparse tensor"
                if isinstance(tensor, torch.Tensor)
                else type(tensor).__name__
            )
            raise TypeError(
                f"{name or 'samples'}: padding is only supported for dense tensors, numbers, bytes and str, got {kind} "
                f"in sample {number}"
            )
        if tensor.dtype != tensors[0].dtype:
            raise TypeError(
                f"{name or 'samples'}: expected one dtype, got {dtype_name(tensors[0].dtype)} in sample 0, "
                f"{dtype_name(tensor.dtype)} in sample {number}"
            )


def _prepare(sizes: _Sizes, wish: Wish, dtype: torch.dtype) -> tuple[_Shape, Array]:
    """The size of a sample in the batch, and the fill value; reserves the batch's bytes."""
    size, value = _padded_size(sizes, wish, dtype.itemsize), wish.padding_values
    fill = np.zeros((), array_dtype(dtype))
    if size and value is not None:
        if hasattr(value, "item"):
            value = value.item()
        # By its text, too: 0.0 equals -0.0, and a NaN nothing.
        fill = _exact_number(value, str(value), dtype, wish.name)
    return size, fill


@functools.lru_cache
def _exact_number(value: Any, text: str, dtype: torch.dtype, name: str) -> Array:
    """The padding value; an error unless the dtype can hold it exactly."""
    found = held = None
    with suppress(RuntimeError, TypeError, ValueError, OverflowError):
        found = torch.tensor(value, dtype=dtype, device="cpu")
        held = found.item()
    # NaN differs from itself.
    if found is None or not (held == value or (held != held and value != value)):
        nearest = (
            f"; the nearest is {held!r}"
            if isinstance(held, float) and isinstance(value, float)
            else ""
        )
        raise TypeError(
            f"{name or 'samples'}: Invalid `padding_values`. {dtype_name(dtype)} cannot hold {value!r} exactly{nearest}"
        )
    return as_array(found)


def pad_strings(values: Values, kind: type[bytes] | type[str], wish: Wish) -> Padded:
    """Pad bytes or str, or nested lists of them, one for each sample; kind is the type of the
    first.

    Raises:
        TypeError: A value or the padding value has another type.
        ValueError: As for `pad_numbers`, or lists within a sample have unequal lengths.
    """
    name, padding = wish.name, wish.padding_values
    arrays = [np.array(value, object) for value in values]
    rank = max(array.ndim for array in arrays)
    for number, array in enumerate(arrays):
        # A list in an array is one whose length differs from that of its neighbours.
        other = next((item for item in array.flat if not isinstance(item, (kind, list))), None)
        if other is not None:
            raise TypeError(
                f"{name or 'samples'}: expected only {kind.__name__}, got {type(other).__name__}, too"
            )
        if any(isinstance(item, list) for item in array.flat):
            raise ValueError(
                f"{name or 'samples'}: expected lists of equal length within sample {number}"
            )
        if not array.size:  # an empty list does not say how deep it would be
            arrays[number] = array.reshape(array.shape + (0,) * (rank - array.ndim))
    sizes = _sizes_of([array.shape for array in arrays], name)
    size = _padded_size(sizes, wish, _POINTER_BYTES)
    if not isinstance(padding, (kind, type(None))) and size and any(map(np.size, arrays)):
        raise TypeError(
            f"{name or 'samples'}: Invalid `padding_values`. {kind.__name__} cannot hold {padding!r}"
        )
    padded = np.full((len(arrays), *size), kind() if padding is None else padding, object)
    for number, array in enumerate(arrays):
        place: Any = (number, ..., *map(slice, array.shape))
        padded[place] = array
    return padded.tolist(), _lengths_of(sizes, wish)


def flatten(value: object) -> Iterator[Value]:
    """The values in nested lists, in row-major order.

    Example:
        >>> list(flatten([[b"a"], [], [b"b"]]))
        [b'a', b'b']
    """
    if isinstance(value, list):
        for item in value:
            yield from flatten(item)
    else:
        yield value


def _sizes_of(shapes: Sequence[_Shape], name: str) -> _Sizes:
    """The shapes of at least one sample; ValueError if their numbers of dimensions differ."""
    rank = len(shapes[0])
    if len(set(map(len, shapes))) > 1:
        number = next(number for number, shape in enumerate(shapes) if len(shape) != rank)
        raise ValueError(
            f"{name or 'samples'}: expected tensors of one rank, got shape {list(shapes[0])} in sample 0, "
            f"{list(shapes[number])} in sample {number}"
        )
    return np.array(shapes, np.int64).reshape(len(shapes), rank)


def _padded_size(sizes: _Sizes, wish: Wish, itemsize: int) -> _Shape:
    """The size of one sample in the batch; reserves the batch's bytes: the error's position is the
    number of the largest sample.
    """
    shape, rank, name = wish.padded_shapes, sizes.shape[1], wish.name
    entries = [None] * rank if shape is None else [shape] if isinstance(shape, int) else shape
    if isinstance(entries, Mapping) or any(
        isinstance(entry, (Mapping, list, tuple)) for entry in entries
    ):
        raise ValueError(
            f"padded_shapes{name}: expected a shape, nested like the samples, got {shape!r}"
        )
    wanted = tuple(None if entry == -1 else entry for entry in entries)
    if len(wanted) != rank:
        raise ValueError(
            f"{name or 'samples'}: The padded shape {wanted!r} is not compatible with the shape {(None,) * rank!r} of "
            "the corresponding input component"
        )
    largest: list[int] = sizes.max(axis=0).tolist()
    padded = tuple(
        most + -most % wish.multiple_of if size is None else size
        for size, most in zip(wanted, largest, strict=True)
    )
    if any(map(gt, largest, padded)):
        number = int((sizes > padded).any(axis=1).argmax())
        raise ValueError(
            f"{name or 'samples'}: sample {number}: Attempted to pad to a smaller size than the input element. "
            f"Its shape is {sizes[number].tolist()}, padded_shapes asks for {list(wanted)}"
        )
    try:
        reserve(len(sizes) * math.prod(padded) * itemsize)
    except LimitExceededError as error:
        number = int(sizes.prod(axis=1).argmax())
        raise LimitExceededError(f"{name or 'samples'}: {error.args[0]}", position=number) from None
    return padded


def _lengths_of(sizes: _Sizes, wish: Wish) -> torch.Tensor | None:
    """The sizes as PaddedCollate returns them: [B] for one dimension, [B, R] for R, None for no
    dimension, or where nobody wants them.
    """
    rank = sizes.shape[1] if wish.return_lengths else 0
    return torch.from_numpy(sizes.ravel() if rank == 1 else sizes) if rank else None
