"""From samples to batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate
from torchvision import tv_tensors

from torch_tfrecord.batch_memory import empty_bytes, empty_tensor
from torch_tfrecord.columns.containers import RaggedTensor, SparseList, jagged_tensor
from torch_tfrecord.columns.stacking import (
    WHOLE_KINDS,
    as_kind_of,
    is_listed,
    is_ragged,
    mark_listed,
    stack_samples,
)
from torch_tfrecord.loading.sample import (
    UNSEEN,
    Sample,
    SampleBlock,
    as_array,
    is_jagged,
    is_plain,
)
from torch_tfrecord.loading.transport import for_transport, register_in_worker
from torch_tfrecord.samples import check_for_torch, place_of
from torch_tfrecord.shown import shown_list, shown_value
from torch_tfrecord.torch_internals import (
    collate_by_kinds,
    collate_functions,
    jagged_parts,
    register_as_dict,
)

__all__ = ["collate", "keep_type", "numbers", "register_samples", "take_columns"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"


def collate(samples: Sequence[Any]) -> Any:
    """Make a batch of samples, like torch's ``default_collate``, plus what TFRecord data needs.

    - Bytes, str and (nested) lists of them become lists with one item for each sample.
    - Tensors of equal shape are stacked to [B, ...]; images, videos and masks of ``tv_tensors``
      keep their type.
    - Boxes and key points of ``tv_tensors``, which belong to one image each, become lists; so do
      sounds and videos of any length (`Audio`, `Video`), whatever their lengths.
    - Var-length features always become a jagged nested tensor [B, *], whatever their lengths; so do
      other 1-D tensors of unequal length.
    - Jagged, ragged and sparse samples are joined into one, with the sample's number as first
      dimension.
    - In mappings, tuples and lists, each part becomes a batch. None, protobuf messages and JSON
      become lists; numbers a tensor, or a list if no dtype holds each as it is.

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
    return for_transport(_batch(samples, take_columns(samples)))


def take_columns(samples: Sequence[Any]) -> Any | None:
    """The samples' columns, for this batch only; None if the samples may differ from them."""
    take = getattr(samples, "take_columns", None)
    columns = None if take is None else take()
    return join_samples(samples) if columns is None else columns


def _batch(samples: Sequence[Any], columns: Any | None) -> Any:
    try:
        return _collate(list(samples), "") if columns is None else _finish(columns, "")
    except _UnlikeError as error:
        raise ValueError(f"{error}{_records(samples, error.number)}") from None


# torch's own.


def register_samples() -> None:
    """Register `Sample`, and what a batch keeps whole, with torch's functions that look values up
    by their class.
    """
    register_in_worker()
    functions = collate_functions()
    if Sample not in functions:
        register_as_dict(Sample, "torch_tfrecord.Sample")
        functions.update(dict.fromkeys(WHOLE_KINDS, _listed))
        functions[Sample] = _collate_for_torch


def _listed(values: Sequence[Any], *, collate_fn_map: Any = None) -> list[Any]:
    return list(values)


def _collate_for_torch(samples: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """What ``default_collate`` makes of samples: the batch of `collate`, with images as plain
    tensors, like torch's.

    If a sample was changed, torch gets plain dicts instead and collates them itself.
    """
    columns = take_columns(samples)
    if columns is not None:
        return for_transport(_untyped(_batch(samples, columns)))
    check_for_torch(samples, getattr(samples, "places", None))
    plain = [sample.copy() if isinstance(sample, Sample) else sample for sample in samples]
    return collate_by_kinds(plain, collate_fn_map | dict.fromkeys((bool, int, float), numbers))


def _untyped(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _untyped(part) for name, part in batch.items()}
    return batch.as_subclass(torch.Tensor) if isinstance(batch, _BATCHED_KINDS) else batch


class _UnlikeError(ValueError):
    """A sample that does not fit sample 0."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


def _records(samples: Sequence[Any], number: int) -> str:
    """The records of sample 0 and another one, if the batch knows them."""
    first, other = place_of(samples, 0), place_of(samples, number)
    return "" if first is None else f"; sample 0 is {first}, sample {number} is {other}"


def _finish(columns: Any, name: str) -> Any:
    """The columns as they are, except that lists of values are collated."""
    if isinstance(columns, torch.Tensor):
        return columns
    if isinstance(columns, dict):
        return {
            key: column if isinstance(column, torch.Tensor) else _finish(column, f"{name}[{key!r}]")
            for key, column in columns.items()
        }
    if isinstance(columns, tuple):
        return tuple(_finish(column, f"{name}[{number}]") for number, column in enumerate(columns))
    return _collate(columns, name) if isinstance(columns, list) else columns


def _collate(values: list[Any], name: str) -> Any:
    first = values[0]
    if first is None or isinstance(first, WHOLE_KINDS) or _are_strings(values):
        return values
    for kind, make_batch in _KINDS:
        if isinstance(first, kind):
            _check_kind(values, kind, name)
            return make_batch(values, name)
    return numbers(values) if isinstance(first, (int, float)) else default_collate(values)


def numbers(values: list[Any], *, collate_fn_map: Any = None) -> Any:
    """One tensor of Python's numbers, if it holds each as it is; else the values, since JSON may be
    any mixture.
    """
    kinds = {*map(type, values)}
    if (bool in kinds and len(kinds) > 1) or not all(
        issubclass(kind, (int, float)) for kind in kinds
    ):
        return values
    has_floats = any(issubclass(kind, float) for kind in kinds)
    try:  # torch looks at the first alone, and would make float32 of floats behind an int
        batch = default_collate([*map(float, values)] if has_floats else values)
    except (OverflowError, RuntimeError, ValueError):  # by the version of torch
        return values
    is_rounded = any(
        held != value == value for held, value in zip(batch.tolist(), values, strict=True)
    )
    return values if is_rounded else batch


def _are_strings(values: list[Any]) -> bool:
    """Whether these are a bytes feature's; where the first is an empty list, the others say what it
    is.
    """
    return _is_strings(values[0]) and (values[0] != [] or all(map(_is_strings, values)))


def _is_strings(value: Any) -> bool:
    """Whether it is a bytes feature, of any shape or length: its list must not be split into
    columns.
    """
    return isinstance(value, (bytes, str)) or (
        isinstance(value, list) and all(map(_is_strings, value))
    )


def _check_kind(values: list[Any], kind: type | tuple[type, ...], name: str) -> None:
    for number, value in enumerate(values):
        if not isinstance(value, kind):
            raise TypeError(
                f"{name or 'samples'}: expected the same type in each, got {type(values[0]).__name__} in sample 0, "
                f"{type(value).__name__} in sample {number}"
            )


def _mapping(values: list[Any], name: str) -> Any:
    columns = join_samples(values)
    if columns is not None:
        return _finish(columns, name)
    _check_keys(values, name)
    return {
        key: _collate([value[key] for value in values], f"{name}[{key!r}]") for key in values[0]
    }


def _sequence(values: list[Any], name: str) -> Any:
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
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return parts


def _check_keys(values: list[Any], name: str) -> None:
    expected = set(values[0])
    for number, value in enumerate(values):
        if set(value) != expected:
            raise _UnlikeError(
                f"{name or 'samples'}: expected the keys {_names(expected)} in each, "
                f"got {_names(value)} in sample {number}",
                number,
            )


def _names(keys: Any) -> str:
    return f"[{shown_list(sorted(map(str, keys)), shown_value)}]"


def _tensors(values: list[Any], name: str) -> Any:
    first = values[0]
    if is_listed(first):
        return values
    if first.is_nested or first.layout == torch.sparse_coo:
        return _structured(values, name)
    if not isinstance(first, tv_tensors.TVTensor):
        return _stack(values, name)
    return keep_type(_stack(values, name), first) if isinstance(first, _BATCHED_KINDS) else values


def _structured(values: list[Any], name: str) -> Any:
    """Jagged, ragged and sparse samples."""
    try:
        return stack_samples(values)
    except ValueError as error:
        raise ValueError(f"{name or 'samples'}: {error}") from error


# From this size on a batch is stacked in memory that is reused.
_LARGE_BYTES = 1 << 16

# The tv_tensors that exist as batches; boxes and key points belong to one image each.
_BATCHED_KINDS = (tv_tensors.Image, tv_tensors.Video, tv_tensors.Mask)


def keep_type(batch: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    """The batch as the same tv_tensor as its samples; a plain tensor if tv_tensors has no batches
    of that type.
    """
    return as_kind_of(batch, sample) if isinstance(sample, _BATCHED_KINDS) else batch


def _stack(values: list[Any], name: str) -> torch.Tensor:
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
    is_small = len(plain) * plain[0].nbytes < _LARGE_BYTES
    if is_small or any(
        value.requires_grad or value.device.type != "cpu" or value.is_quantized for value in plain
    ):
        return torch.stack(plain)
    return torch.stack(plain, out=empty_tensor((len(plain), *shapes[0]), plain[0].dtype))


_KINDS: tuple[tuple[type | tuple[type, ...], Callable[[list[Any], str], Any]], ...] = (
    ((RaggedTensor, SparseList), _structured),
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


def join_samples(samples: Sequence[Any]) -> dict[Any, Any] | None:
    """The columns whose rows the samples are, for one batch only; None if one was changed or is not
    a `Sample`.

    A feature that was accessed is the list of the samples' values, since those may have been
    changed in place.
    """
    if set(map(type, samples)) != {Sample}:
        return None
    blocks = [*map(_BLOCK, samples)]
    distinct: dict[int, SampleBlock] = dict(zip(map(id, blocks), blocks, strict=True))
    names = None if id(None) in distinct else list(blocks[0].template)
    if names is None or any(block.template.keys() != set(names) for block in distinct.values()):
        return None
    rows = np.fromiter(map(_ROW, samples), np.int64, len(samples))
    chosen = _neighbours(rows)
    if len(distinct) == 1 and isinstance(chosen, slice) and chosen.start >= 0:
        taken = blocks[0].take(chosen.start, chosen.stop)
        if taken is not None:
            return taken  # type: ignore[no-any-return]
    looked = _looked(samples, names, rows)
    picks = []
    if len(looked) < len(names):
        picks = _find_picks(blocks, [*distinct.values()], np.where(rows < 0, ~rows, rows))
    columns: dict[Any, Any] = {}
    for name in names:
        column = None if name in looked else _join_column(name, picks, len(samples))
        values = [sample[name] for sample in samples] if column is None else column
        columns[name] = [*map(_own, values)] if type(values) is list else values
    return columns


def _looked(samples: Sequence[Sample], names: Sequence[Any], rows: _Integers) -> set[Any]:
    """The names of features with an accessed value."""
    looked: set[Any] = set()
    get = dict.__getitem__
    for number in np.flatnonzero(rows < 0).tolist():
        looked.update([name for name in names if get(samples[number], name) is not UNSEEN])
        if len(looked) == len(names):
            break
    return looked


def _find_picks(
    blocks: Sequence[SampleBlock], distinct: Sequence[SampleBlock], rows: _Integers
) -> list[_Pick]:
    if len(distinct) == 1:
        return [_Pick(distinct[0], _neighbours(rows), slice(0, len(rows)))]
    numbers = {id(block): number for number, block in enumerate(distinct)}
    of_block = np.array([numbers[id(block)] for block in blocks], np.int64)
    ends = np.bincount(of_block).cumsum()[:-1]
    places = np.split(np.argsort(of_block, kind="stable"), ends)
    return [
        _Pick(block, _neighbours(rows[each]), _neighbours(each))
        for block, each in zip(distinct, places, strict=True)
    ]


def _neighbours(numbers: _Integers) -> slice | _Integers:
    is_slice = int(numbers[-1]) - int(numbers[0]) + 1 == len(numbers) and bool(
        (np.diff(numbers) == 1).all()
    )
    return slice(int(numbers[0]), int(numbers[-1]) + 1) if is_slice else numbers


def _join_column(name: Any, picks: Sequence[_Pick], num_rows: int) -> Any | None:
    """The picked rows of one feature; None if only its values can be collated."""
    columns = [pick.block.read(_first(pick.rows))[name] for pick in picks]
    rows, places = [pick.rows for pick in picks], [pick.places for pick in picks]
    if all(isinstance(column, list) for column in columns):
        return _join_lists(columns, rows, places, num_rows)
    if not all(map(is_jagged, columns)):
        return _join_tensors(columns, rows, places, num_rows)
    parts = [part for part in map(jagged_parts, columns) if part is not None]
    if len(parts) < len(columns):
        return None
    offsets = [part[1].numpy() for part in parts]
    ends = np.zeros(num_rows + 1, np.int64)
    for each, row, place in zip(offsets, rows, places, strict=True):
        ends[1:][place] = np.diff(each)[row]
    np.cumsum(ends, out=ends)
    values = _join_tensors(
        [part[0] for part in parts],
        [*map(_value_rows, offsets, rows)],
        [_value_rows(ends, place) for place in places],
        int(ends[-1]),
    )
    return None if values is None else jagged_tensor(values, torch.from_numpy(ends))


def _first(rows: slice | _Integers) -> int:
    return rows.start if isinstance(rows, slice) else int(rows.min())


def _join_lists(
    columns: Sequence[list[Any]],
    rows: Sequence[slice | _Integers],
    places: Sequence[slice | _Integers],
    num_rows: int,
) -> list[Any]:
    values: list[Any] = [None] * num_rows
    for column, row, place in zip(columns, rows, places, strict=True):
        picked = column[row] if isinstance(row, slice) else [column[each] for each in row.tolist()]
        if isinstance(place, slice):
            values[place] = picked
        else:
            for each, value in zip(place.tolist(), picked, strict=True):
                values[each] = value
    return values


def _join_tensors(
    columns: Sequence[Any],
    rows: Sequence[slice | _Integers],
    places: Sequence[slice | _Integers],
    num_rows: int,
) -> torch.Tensor | None:
    """The rows of dense columns, in new memory; None if they are not dense or not alike."""
    if not all(map(is_plain, columns)):
        return None
    first = columns[0]
    if len({(type(column), column.dtype, column.shape[1:]) for column in columns}) > 1:
        return None
    # By NumPy: torch's threads take longer to sync than one to copy.
    arrays = [*map(as_array, columns)]
    shape = (num_rows, *arrays[0].shape[1:])
    memory = empty_bytes(math.prod(shape) * first.itemsize)
    joined = memory.view(arrays[0].dtype).reshape(shape)
    for array, row, place in zip(arrays, rows, places, strict=True):
        joined[place] = array[row]
    return as_kind_of(torch.from_numpy(joined).view(first.dtype), first)


def _value_rows(offsets: _Integers, rows: slice | _Integers) -> slice | _Integers:
    """The values of some rows of a jagged column."""
    if isinstance(rows, slice):
        return slice(int(offsets[rows.start]), int(offsets[rows.stop]))
    begins, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    ends = lengths.cumsum()
    numbers: _Integers = np.repeat(begins - ends + lengths, lengths) + np.arange(int(ends[-1]))
    return numbers


def _own(value: Any) -> Any:
    """A copy of what a batch would list as it is; other tensors are about to be stacked."""
    if isinstance(value, (bytes, str)):
        return value
    if type(value) is list:  # of strings, or of lists
        return [*map(_own, value)] if value and type(value[0]) is list else value[:]
    if type(value) is dict:
        return {name: _own(part) for name, part in value.items()}
    if is_listed(value):
        return mark_listed(copy.deepcopy(value))  # a copy of a tv_tensor has no marks
    return copy.deepcopy(value) if isinstance(value, WHOLE_KINDS) else value
