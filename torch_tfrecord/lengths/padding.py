"""From samples of unequal size to one padded batch, like tf.data's ``padded_batch``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch

from torch_tfrecord.arguments import at_least, knows_keywords
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, BatchBudget, check_max_batch_bytes
from torch_tfrecord.columns import Nested
from torch_tfrecord.errors import LimitExceededError
from torch_tfrecord.lengths.padded_values import (
    Nest,
    Padded,
    Wish,
    flatten,
    pad_numbers,
    pad_rows_of,
    pad_strings,
)
from torch_tfrecord.loading import ColumnBatch, ColumnCollate
from torch_tfrecord.samples import WHOLE_KINDS, Batch, Columns, Samples, Values, place_of

__all__ = ["PaddedCollate", "split_argument"]


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
