"""From samples to batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate, get_worker_info
from torchvision import tv_tensors

from torch_tfrecord.batch_memory import Array, as_tensor, empty_bytes, empty_tensor
from torch_tfrecord.columns import Nested, RaggedTensor, SparseList, as_plain, stack_samples
from torch_tfrecord.loading.sample import (
    UNSEEN,
    Sample,
    SampleBlock,
)
from torch_tfrecord.loading.transport import for_transport
from torch_tfrecord.samples import (
    WHOLE_KINDS,
    Batch,
    Columns,
    Samples,
    Value,
    Values,
    is_listed,
    is_ragged,
    mark_listed,
    place_of,
)
from torch_tfrecord.shown import shown_list, shown_value

__all__ = ["ColumnCollate", "collate", "finished", "numbers", "take_columns"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"


def collate(samples: Samples) -> Batch:
    """Make a batch of samples, like torch's ``default_collate``, plus what TFRecord data needs.

    - Bytes, str and (nested) lists of them become lists with one item for each sample.
    - Tensors of equal shape are stacked to [B, ...]; of images, videos and masks of
      ``tv_tensors`` this is a plain tensor, as from torch's own.
    - Boxes and key points of ``tv_tensors``, which belong to one image each, become lists; so do
      sounds and videos of any length (`Audio`, `Video`), whatever their lengths.
    - Var-length features always become a jagged nested tensor [B, *], whatever their lengths; so do
      other 1-D tensors of unequal length.
    - Jagged, ragged and sparse samples are joined into one, with the sample's number as first
      dimension.
    - In mappings, tuples and lists, each part becomes a batch. None, protobuf messages and JSON
      become lists; numbers a tensor, or a list if no dtype has each as it is.

    Columns that a dataset has read already (in `__getitems__`, without a transform) are passed on
    as they are, and samples that you have not touched are joined from their columns. You may change
    the batch in place: samples that you look at later are parsed again. torch's own
    ``default_collate`` does the same. From a DataLoader worker the batch is sent in one piece of
    shared memory and arrives as a plain dict, tuple or list.

    Args:
        samples: What a dataset returned for each position; at least one.

    Returns:
        The batch, nested like the samples.

    Raises:
        TypeError: One sample has a tensor, mapping or sequence where another has something else;
            the message names the feature.
        ValueError: Samples have different keys, or tensors have shapes or dtypes that cannot be
            stacked; the message names the feature.

    Example:
        >>> collate([{"x": torch.zeros(2), "name": b"a"}, {"x": torch.ones(2), "name": b"b"}])
        {'x': tensor([[0., 0.],
                [1., 1.]]), 'name': [b'a', b'b']}
    """
    if not samples:
        raise ValueError("a batch needs at least one sample, got none")
    return finished(samples, take_columns(samples))


class ColumnCollate:
    """A `collate_fn` of ours besides `collate`: it takes columns, and draws nothing at random, so
    that any thread may call it.
    """

    def __call__(self, samples: Samples) -> Batch:
        """Make a batch of at least one sample."""
        if not samples:
            raise ValueError("a batch needs at least one sample, got none")
        return _sent(self._batch(samples, take_columns(samples)))

    def _batch(self, samples: Samples, columns: Columns | None) -> Batch:
        """The batch of samples, of which there are columns unless they were changed."""
        raise NotImplementedError

    def _collated(self, samples: Samples, columns: Columns | None) -> Batch:
        """The batch that `collate` makes of them, but for `as_plain`."""
        return make_batch(samples, columns)


def finished(samples: Samples, columns: Columns | None) -> Batch:
    """The batch of samples as users see it, or of their columns where they are known."""
    return _sent(as_plain(make_batch(samples, columns)))


def _sent(batch: Batch) -> Batch:
    return batch if get_worker_info() is None else for_transport(batch)


def take_columns(samples: Samples) -> Columns | None:
    """The samples' columns, for this batch only; None if the samples may differ from them."""
    # A list that a sampler or a user made has no such method, but may have our samples in it.
    take = getattr(samples, "take_columns", None)
    columns = None if take is None else take()
    return join_samples(samples) if columns is None else columns


def make_batch(samples: Samples, columns: Columns | None) -> Batch:
    """The batch of samples, or of their columns where they are known; for `as_plain`."""
    try:
        return _collate(list(samples), "") if columns is None else _finish(columns, "")
    except _UnlikeError as error:
        first, other = place_of(samples, 0), place_of(samples, error.number)
        where = "" if first is None else f"; sample 0 is {first}, sample {error.number} is {other}"
        raise ValueError(f"{error}{where}") from None


class _UnlikeError(ValueError):
    """A sample that does not fit sample 0."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


def _finish(columns: Columns, name: str) -> Batch:
    """The columns as they are, except that lists of values are collated."""
    # The usual case first: a batch has a column for each of perhaps hundreds of features.
    if isinstance(columns, (torch.Tensor, Nested)):
        return columns
    if isinstance(columns, dict):
        return {
            key: column
            if isinstance(column, (torch.Tensor, Nested))
            else _finish(column, f"{name}[{key!r}]")
            for key, column in columns.items()
        }
    if isinstance(columns, tuple):
        return tuple(_finish(column, f"{name}[{number}]") for number, column in enumerate(columns))
    return _collate(columns, name) if isinstance(columns, list) else columns


def _collate(values: Values, name: str) -> Batch:
    # The first value decides; `_check_kind` says which other one does not fit.
    first = values[0]
    if first is None or isinstance(first, WHOLE_KINDS) or _are_strings(values):
        return values
    for kind, make_batch in _KINDS:
        if isinstance(first, kind):
            _check_kind(values, kind, name)
            return make_batch(values, name)
    return numbers(values) if isinstance(first, (int, float)) else default_collate(values)


def numbers(values: Values, *, collate_fn_map: object = None) -> Batch:
    """One tensor of Python's numbers, if it has each as it is; else the values, since JSON may be
    any mixture.
    """
    kinds = {*map(type, values)}
    if (bool in kinds and len(kinds) > 1) or not all(
        issubclass(kind, (int, float)) for kind in kinds
    ):
        return values
    has_floats = any(issubclass(kind, float) for kind in kinds)
    try:  # torch looks at the first alone, and would make float32 of floats after an int
        batch = default_collate([*map(float, values)] if has_floats else values)
    except (OverflowError, RuntimeError, ValueError):  # by the version of torch
        return values
    is_rounded = any(
        held != value == value for held, value in zip(batch.tolist(), values, strict=True)
    )
    return values if is_rounded else batch


def _are_strings(values: Values) -> bool:
    """Whether these are a bytes feature's; where the first is an empty list, the others say what it
    is.
    """
    return _is_strings(values[0]) and (values[0] != [] or all(map(_is_strings, values)))


def _is_strings(value: object) -> bool:
    """Whether it is a bytes feature, of any shape or length: its list must not be split into
    columns.
    """
    return isinstance(value, (bytes, str)) or (
        isinstance(value, list) and all(map(_is_strings, value))
    )


def _check_kind(values: Values, kind: type | tuple[type, ...], name: str) -> None:
    for number, value in enumerate(values):
        if not isinstance(value, kind):
            raise TypeError(
                f"{name or 'samples'}: expected the same type in each, got {type(values[0]).__name__} in sample 0, "
                f"{type(value).__name__} in sample {number}"
            )


def _mapping(values: Values, name: str) -> Batch:
    columns = join_samples(values)
    if columns is not None:
        return _finish(columns, name)
    _check_keys(values, name)
    return {
        key: _collate([value[key] for value in values], f"{name}[{key!r}]") for key in values[0]
    }


def _sequence(values: Values, name: str) -> Batch:
    first = values[0]
    lengths = {len(value) for value in values}
    if len(lengths) > 1:
        raise ValueError(
            f"{name or 'samples'}: expected sequences of equal length, got lengths [{shown_list(sorted(lengths))}]"
        )
    parts = [
        _collate(list(part), f"{name}[{number}]")
        for number, part in enumerate(zip(*values, strict=True))
    ]
    if isinstance(first, tuple):
        # A named tuple takes its parts one by one.
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return parts


def _check_keys(values: Values, name: str) -> None:
    expected = set(values[0])
    for number, value in enumerate(values):
        if set(value) != expected:
            raise _UnlikeError(
                f"{name or 'samples'}: expected the keys {_names(expected)} in each, "
                f"got {_names(value)} in sample {number}",
                number,
            )


def _names(keys: Iterable[object]) -> str:
    return f"[{shown_list(sorted(map(str, keys)), shown_value)}]"


def _tensors(values: Values, name: str) -> Batch:
    first = values[0]
    if is_listed(first):
        return values
    # torch.stack knows neither.
    if first.is_nested or first.layout == torch.sparse_coo:
        return _stack_structures(values, name)
    is_of_one_image = isinstance(first, tv_tensors.TVTensor) and not isinstance(first, _STACKED)
    return values if is_of_one_image else _stack(values, name)


def _stack_structures(values: Values, name: str) -> Batch:
    """Jagged, ragged and sparse samples."""
    try:
        return stack_samples(values)
    except ValueError as error:
        raise ValueError(f"{name or 'samples'}: {error}") from error


# From this size on a batch is stacked in memory that is reused.
_LARGE_BYTES = 1 << 16

# Boxes and key points belong to one image each.
_STACKED = (tv_tensors.Image, tv_tensors.Video, tv_tensors.Mask)


def _stack(values: Values, name: str) -> torch.Tensor:
    for number, value in enumerate(values):
        # torch would convert all to one dtype, which changes values
        if value.dtype != values[0].dtype:
            raise _UnlikeError(
                f"{name or 'samples'}: cannot batch tensors with different dtypes: {values[0].dtype} in sample 0, "
                f"{value.dtype} in sample {number}",
                number,
            )
    shapes = [tuple(value.shape) for value in values]
    if is_ragged(values[0]) or (len(set(shapes)) > 1 and all(len(shape) == 1 for shape in shapes)):
        return torch.nested.nested_tensor(
            [value.as_subclass(torch.Tensor) for value in values], layout=torch.jagged
        )
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise _UnlikeError(
                f"{name or 'samples'}: cannot batch tensors with different shapes: {list(shapes[0])} in sample 0, "
                f"{list(shape)} in sample {number} (crop, resize or pad them in a transform; "
                "Image takes crop=), or let collate_fn=PaddedCollate() pad them",
                number,
            )
    plain = [value.as_subclass(torch.Tensor) for value in values]
    # A tensor with a gradient, another device or a scale cannot be stacked into given memory.
    is_small = len(plain) * plain[0].nbytes < _LARGE_BYTES
    if is_small or any(
        value.requires_grad or value.device.type != "cpu" or value.is_quantized for value in plain
    ):
        return torch.stack(plain)
    return torch.stack(plain, out=empty_tensor((len(plain), *shapes[0]), plain[0].dtype))


_KINDS: tuple[tuple[type | tuple[type, ...], Callable[[Values, str], Batch]], ...] = (
    ((RaggedTensor, SparseList), _stack_structures),
    (torch.Tensor, _tensors),
    (Mapping, _mapping),
    ((tuple, list), _sequence),
)


# Samples that nobody changed: a batch is joined from rows of their columns.

_BLOCK, _ROW = attrgetter("_block"), attrgetter("_row")


class _Pick(NamedTuple):
    """Rows of a block, and their places in a batch; slices if they are neighbours."""

    block: SampleBlock
    rows: slice | _Integers
    places: slice | _Integers


def join_samples(samples: Samples) -> Columns | None:
    """The columns whose rows the samples are, for one batch only; None if one was changed or is not
    a `Sample`.

    A feature that was accessed is the list of the samples' values, since those may have been
    changed in place.
    """
    # A subclass or a plain dict may have anything in it.
    if set(map(type, samples)) != {Sample}:
        return None
    blocks = [*map(_BLOCK, samples)]
    # By identity: blocks do not compare, and a set would need their hash.
    distinct: dict[int, SampleBlock] = dict(zip(map(id, blocks), blocks, strict=True))
    names = None if id(None) in distinct else list(blocks[0].template)
    if names is None or any(block.template.keys() != set(names) for block in distinct.values()):
        return None
    rows = np.fromiter(map(_ROW, samples), np.int64, len(samples))
    chosen = _neighbours(rows)
    if len(distinct) == 1 and isinstance(chosen, slice) and chosen.start >= 0:
        taken = blocks[0].take(chosen.start, chosen.stop)
        if taken is not None:
            return taken
    # A sample that was not accessed cannot have been changed.
    looked = _find_looked(samples, names, rows)
    picks = []
    if len(looked) < len(names):
        picks = _find_picks(blocks, [*distinct.values()], np.where(rows < 0, ~rows, rows))
    columns: Columns = {}
    for name in names:
        column = None if name in looked else _join_column(name, picks, len(samples))
        values = [sample[name] for sample in samples] if column is None else column
        columns[name] = [*map(_own, values)] if type(values) is list else values
    return columns


def _find_looked(
    samples: Sequence[Sample], names: Sequence[object], rows: _Integers
) -> set[object]:
    """The names of features with an accessed value."""
    looked: set[object] = set()
    get = dict.__getitem__
    for number in np.flatnonzero(rows < 0).tolist():
        looked.update([name for name in names if get(samples[number], name) is not UNSEEN])
        # All are known: the other samples cannot add any.
        if len(looked) == len(names):
            break
    return looked


def _find_picks(
    blocks: Sequence[SampleBlock], distinct: Sequence[SampleBlock], rows: _Integers
) -> list[_Pick]:
    if len(distinct) == 1:
        return [_Pick(distinct[0], _neighbours(rows), slice(0, len(rows)))]
    # In order, so that most are neighbours; NumPy's sort would let go of the GIL.
    places: dict[int, list[int]] = {id(block): [] for block in distinct}
    for number, block in enumerate(blocks):
        places[id(block)].append(number)
    return [
        _Pick(block, _neighbours(rows[each]), _neighbours(np.array(each)))
        for block, each in zip(distinct, places.values(), strict=True)
    ]


def _neighbours(numbers: _Integers) -> slice | _Integers:
    is_slice = int(numbers[-1]) - int(numbers[0]) + 1 == len(numbers) and bool(
        (np.diff(numbers) == 1).all()
    )
    return slice(int(numbers[0]), int(numbers[-1]) + 1) if is_slice else numbers


def _join_column(name: object, picks: Sequence[_Pick], num_rows: int) -> Columns | None:
    """The picked rows of one feature, in new memory; None if only its values can be collated."""
    blocks, rows, places = zip(*picks, strict=True)
    firsts = [each.start if isinstance(each, slice) else int(each.min()) for each in rows]
    columns = [block.read(first)[name] for block, first in zip(blocks, firsts, strict=True)]
    if all(isinstance(column, list) for column in columns):
        objects = [np.fromiter(column, object, len(column)) for column in columns]
        return _join_arrays(objects, rows, places, num_rows).tolist()
    found = [part for part in map(Nested.rows_of, columns) if part is not None]
    kinds = {(part.dtype, part.values.shape[1:], len(part.row_splits)) for part in found}
    if len(found) < len(columns) or len(kinds) > 1:
        return None
    dtype = found[0].dtype
    # By NumPy: torch's threads take longer to sync than one to copy.
    values, splits = zip(*[part.arrays() for part in found], strict=True)
    if not splits[0]:
        return as_tensor(_join_arrays(values, rows, places, num_rows), dtype)
    offsets = [ends for (ends,) in splits]
    # First each row's length in its place, then their sums: the offsets of the joined rows.
    ends = np.zeros(num_rows + 1, np.int64)
    for each, row, place in zip(offsets, rows, places, strict=True):
        ends[1:][place] = np.diff(each)[row]
    np.cumsum(ends, out=ends)
    joined = _join_arrays(
        values,
        [*map(_value_rows, offsets, rows)],
        [_value_rows(ends, place) for place in places],
        int(ends[-1]),
    )
    return Nested(joined, dtype, (ends,))


def _join_arrays(
    arrays: Sequence[Array],
    rows: Sequence[slice | _Integers],
    places: Sequence[slice | _Integers],
    num_rows: int,
) -> Array:
    shape, kind = (num_rows, *arrays[0].shape[1:]), arrays[0].dtype
    if kind.hasobject:
        joined = np.empty(shape, object)
    else:
        joined = empty_bytes(math.prod(shape) * kind.itemsize).view(kind).reshape(shape)
    alike = [joined, *arrays]
    if joined.size and joined.dtype != object and all(each.flags.c_contiguous for each in alike):
        # Each row as one item: NumPy lets go of the GIL for more than 500, and waits for it then.
        alike = [each.reshape(-1).view(f"V{joined[0].nbytes}") for each in alike]
    for array, row, place in zip(alike[1:], rows, places, strict=True):
        alike[0][place] = array[row]
    return joined


def _value_rows(offsets: _Integers, rows: slice | _Integers) -> slice | _Integers:
    """The values of some rows of a jagged column."""
    if isinstance(rows, slice):
        return slice(int(offsets[rows.start]), int(offsets[rows.stop]))
    begins, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    # For each value its row's begin, plus its number within the row.
    ends = lengths.cumsum()
    numbers: _Integers = np.repeat(begins - ends + lengths, lengths) + np.arange(int(ends[-1]))
    return numbers


def _own(value: Value) -> Value:
    """A copy of what a batch would list as it is; other tensors are about to be stacked."""
    if isinstance(value, (bytes, str)):
        return value
    if type(value) is list:  # strings, or lists
        return [*map(_own, value)] if value and type(value[0]) is list else value[:]
    if type(value) is dict:
        return {name: _own(part) for name, part in value.items()}
    if is_listed(value):
        return mark_listed(copy.deepcopy(value))  # a copy of a tv_tensor has no marks
    return copy.deepcopy(value) if isinstance(value, WHOLE_KINDS) else value
