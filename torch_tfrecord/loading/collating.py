"""From samples to batches, and a batch of columns that is also a sequence of samples."""

from __future__ import annotations

from collections import UserList
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info

from torch_tfrecord.batch_memory import empty_tensor
from torch_tfrecord.columns import Nested, RaggedTensor, SparseList, as_plain, stack_samples
from torch_tfrecord.loading.sample import Sample, SampleBlock, join_samples, take_apart, to_html
from torch_tfrecord.loading.transport import for_transport
from torch_tfrecord.phases import Phase
from torch_tfrecord.samples import (
    WHOLE_KINDS,
    Batch,
    Columns,
    Places,
    SampleList,
    Samples,
    Transform,
    Value,
    Values,
    check_for_torch,
    is_listed,
    is_ragged,
    place_of,
)
from torch_tfrecord.shown import shown_list, shown_value
from torch_tfrecord.torch_internals import (
    collate_by_kinds,
    collate_functions,
    register_as_dict,
    tv_classes,
)

__all__ = ["ColumnBatch", "ColumnCollate", "collate"]


class ColumnBatch(UserList[Value]):
    """The result of `TFRecordDataset.__getitems__`: the samples at several positions, as
    columns.

    `collate` and torch's ``default_collate`` take the columns as they are. Everything else sees a
    list of samples, made on first access: sample i is what the dataset returns for position i
    alone, and its tensors are views of their columns. From then on the list counts, not the
    columns, since a custom `collate_fn` may sort or filter it; but a `Sample` that was not changed
    is still joined from its columns. No batch shares memory with a sample: the columns of samples
    that are first looked at after a batch took them are parsed again.

    Args:
        columns: Columns by name, or a tuple of such mappings and columns, nested like one sample. A
            column is the batch of several values, or a list of the values.
        num_samples: Number of samples.
        places: The record of each sample; None if unknown.
        again: Parses the columns once more, into new memory; without it they are copied for each
            batch.

    Example:
        >>> import torch
        >>> batch = ColumnBatch({"x": torch.tensor([4, 5]), "name": [b"a", b"b"]}, 2)
        >>> len(batch), batch[1]
        (2, {'x': tensor(5), 'name': b'b'})
    """

    def __init__(
        self,
        columns: Columns,
        num_samples: int,
        places: Places | None = None,
        again: Callable[[], Columns] | None = None,
    ) -> None:
        self._block, self._places = SampleBlock(columns, num_samples, again), places

    @cached_property
    def _first(self) -> Sample:
        """Sample 0: torch's collate looks at one before it asks for the batch."""
        return self._block.samples(1)[0]

    @cached_property
    def data(self) -> Values:  # type: ignore[override]
        """The samples, from the first access on."""
        block = self._block
        if not block.template:
            return SampleList(take_apart(block.columns, block.num_rows), self._places)
        samples = block.samples(block.num_rows)
        if "_first" in vars(self):
            samples[0] = self._first
        return SampleList(samples, self._places)

    @property
    def is_columns(self) -> bool:
        """Whether no sample was accessed yet, so that the columns are up to date."""
        return "data" not in vars(self) and ("_first" not in vars(self) or self._first.is_unseen)

    @property
    def columns(self) -> Columns:
        """The columns; parsed again if a batch took them."""
        return self._block.columns

    def take_columns(self) -> Columns | None:
        """The columns, for one batch only; None if samples may differ from them or share their
        memory.
        """
        return self._block.take(0, self._block.num_rows) if self.is_columns else None

    @property
    def places(self) -> Places | None:
        """The record of each sample, by its number; None once the samples may have been
        reordered.
        """
        return getattr(self.data, "places", None) if "data" in vars(self) else self._places

    def __len__(self) -> int:
        return len(self.data) if "data" in vars(self) else self._block.num_rows

    def __getitem__(self, number: Any) -> Any:
        is_first = number == 0 < len(self) and self.is_columns and self._block.template
        return self._first if is_first else self.data[number]

    def __iter__(self) -> Iterator[Value]:
        return iter(self.data)

    def __add__(self, other: Samples) -> Values:  # type: ignore[override]
        return [*self, *other]

    _repr_html_ = to_html

    def map(self, function: Transform, again: Transform | None = None) -> ColumnBatch:
        """The batch with the columns that a function returns for these; `again` returns the same
        once more.
        """
        # If the columns are needed again, they come from the records, through the same functions.
        repeat, parse = again or function, self._block.again
        return ColumnBatch(
            function(self.columns), len(self), self._places, parse and (lambda: repeat(parse()))
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Without `places`, which do not pickle. Samples become dicts.
        data = None if self.is_columns else {"data": list(self)}
        return ColumnBatch, (self.columns, self._block.num_rows), data

    __copy__ = None  # type: ignore[assignment]  # as pickle does

    def __repr__(self) -> str:
        return f"ColumnBatch({len(self)} samples)"


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


def transform_batch(transform: Transform, samples: Samples) -> Samples:
    """The samples of the batch that a transform makes of the batch of these.

    Raises:
        TypeError: It returned no mapping.
        ValueError: A column has another number of rows.
    """

    def changed(columns: Columns | None) -> Columns:
        found = transform(as_plain(make_batch(samples, columns)))
        if not isinstance(found, Mapping):
            raise TypeError(f"batch_transform must return a dict, got {type(found).__name__}")
        return _with_rows(found, len(samples), "batch_transform")

    if not samples:
        return samples
    places = getattr(samples, "places", None)
    try:
        with Phase("transform"):
            if isinstance(samples, ColumnBatch) and samples.is_columns:
                return samples.map(changed)
            return ColumnBatch(changed(take_columns(samples)), len(samples), places)
    except Exception as error:
        # As `transform_one` does.
        if places is not None and hasattr(error, "add_note"):
            error.add_note(f"in a batch of {len(samples)} whose first sample is {places(0)}")
        raise


def _with_rows(column: Value, num_rows: int, name: str) -> Columns:
    """The columns, plain dicts of what has this many rows."""
    if isinstance(column, Mapping):
        return {key: _with_rows(item, num_rows, f"{name}[{key!r}]") for key, item in column.items()}
    try:
        found = None if isinstance(column, (str, bytes)) else len(column)
    except TypeError:
        found = None
    if found != num_rows:
        got = type(column).__name__ if found is None else f"{found} of them"
        raise ValueError(f"{name}: expected a value for each of {num_rows} samples, got {got}")
    return torch.from_numpy(column) if isinstance(column, np.ndarray) else column


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
    if not isinstance(value, list):
        return isinstance(value, (bytes, str))
    # By kinds, since a batch has thousands of words.
    return {*map(type, value)} <= {bytes, str} or all(map(_is_strings, value))


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
    # Boxes and key points belong to one image each.
    stacked = tv_classes("Image", "Video", "Mask")
    is_of_one_image = isinstance(first, tv_classes("TVTensor")) and not isinstance(first, stacked)
    return values if is_of_one_image else _stack(values, name)


def _stack_structures(values: Values, name: str) -> Batch:
    """Jagged, ragged and sparse samples."""
    try:
        return stack_samples(values)
    except ValueError as error:
        raise ValueError(f"{name or 'samples'}: {error}") from error


# From this size on a batch is stacked in memory that is reused.
_LARGE_BYTES = 1 << 16


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
            [value.as_subclass(torch.Tensor) for value in values],
            layout=torch.jagged,
            device=values[0].device,
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


_KINDS = (
    ((RaggedTensor, SparseList), _stack_structures),
    (torch.Tensor, _tensors),
    (Mapping, _mapping),
    ((tuple, list), _sequence),
)


# The batch that torch's own collate makes of samples.


def _make_list(values: Samples, *, collate_fn_map: object = None) -> Values:
    return list(values)


def _collate_for_torch(samples: Samples, *, collate_fn_map: Any = None) -> Batch:
    """``default_collate`` of samples: the batch of `collate`.

    If a sample was changed, torch gets plain dicts instead and collates them itself.
    """
    columns = take_columns(samples)
    if columns is not None:
        return finished(samples, columns)
    check_for_torch(samples, getattr(samples, "places", None))
    # torch makes a batch of the first sample's class, which must be a plain dict.
    plain = [sample.copy() if isinstance(sample, Sample) else sample for sample in samples]
    return collate_by_kinds(plain, collate_fn_map | dict.fromkeys((bool, int, float), numbers))


# Here, for all processes that make samples of ours: torch keeps the functions for all loaders.
register_as_dict(Sample, "torch_tfrecord.Sample")
collate_functions().update({**dict.fromkeys(WHOLE_KINDS, _make_list), Sample: _collate_for_torch})
