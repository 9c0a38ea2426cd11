"""A batch of columns that is also a sequence of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableSequence
from typing import Any

from torch.utils.data import get_worker_info

from torch_tfrecord.loading.collating import finished, numbers, take_columns
from torch_tfrecord.loading.sample import Sample, SampleBlock, take_apart, to_html
from torch_tfrecord.loading.transport import register_in_worker
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
)
from torch_tfrecord.torch_internals import collate_by_kinds, collate_functions, register_as_dict

__all__ = [
    "ColumnBatch",
    "WithLabel",
    "register_samples",
    "with_label",
]


class ColumnBatch(MutableSequence[Value]):
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

    Example:
        >>> import torch
        >>> batch = ColumnBatch({"x": torch.tensor([4, 5]), "name": [b"a", b"b"]}, 2)
        >>> len(batch), batch[1]
        (2, {'x': tensor(5), 'name': b'b'})
    """

    def __init__(self, columns: Columns, num_samples: int) -> None:
        self.block = SampleBlock(columns, num_samples)
        self._num_samples = num_samples
        self._places: Places | None = None
        self._single: dict[int, Sample] = {}  # samples that were accessed by their number
        self._samples: Values | None = None
        # Here, since a batch of ours may reach torch's collate in a process that made none before.
        register_samples()

    @property
    def is_columns(self) -> bool:
        """Whether no sample was accessed yet, so that the columns are up to date."""
        return self._samples is None and all(sample.is_unseen for sample in self._single.values())

    @property
    def columns(self) -> Columns:
        """The columns; parsed again if a batch took them."""
        return self.block.columns

    def take_columns(self) -> Columns | None:
        """The columns, for one batch only; None if samples may differ from them or share their
        memory.
        """
        return self.block.take(0, self._num_samples) if self.is_columns else None

    def __len__(self) -> int:
        return self._num_samples if self._samples is None else len(self._samples)

    @property
    def places(self) -> Places | None:
        """The record of each sample, by its number; None once the samples may have been
        reordered.
        """
        return self._places if self._samples is None else getattr(self._samples, "places", None)

    def located(self, places: Places | None, again: Callable[[], Columns] | None) -> ColumnBatch:
        """This batch with the record of each sample, and what parses the columns once more, into
        new memory.

        Without the latter the columns are copied for each batch.
        """
        self._places, self.block.again = places, again
        return self

    def __getitem__(self, number: Any) -> Any:
        if self._samples is None and self.block.template and type(number) is int:
            row = number + len(self) if number < 0 else number
            # torch's collate first looks at one sample: do not make the others
            if 0 <= row < len(self):
                if row not in self._single:
                    self._single[row] = self.block.samples([row])[0]
                return self._single[row]
        return self._all()[number]

    def __setitem__(self, number: Any, sample: Value) -> None:
        self._all()[number] = sample

    def __delitem__(self, number: Any) -> None:
        del self._all()[number]

    def __iter__(self) -> Iterator[Value]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == (other._all() if isinstance(other, ColumnBatch) else other)

    __hash__ = None  # type: ignore[assignment]  # like a list
    _repr_html_ = to_html

    def __add__(self, other: Samples) -> Values:
        return [*self, *other]

    def insert(self, index: int, value: Value) -> None:
        """Like ``list.insert``."""
        self._all().insert(index, value)

    def sort(self, *, key: Transform | None = None, reverse: bool = False) -> None:
        """Like ``list.sort``, which many custom collate functions call before they pad."""
        self._all().sort(key=key, reverse=reverse)

    def _all(self) -> Values:
        if self._samples is None:
            is_dict = self.block.template
            samples = (
                self.block.samples() if is_dict else [*take_apart(self.columns, self._num_samples)]
            )
            for number, sample in self._single.items():
                samples[number] = sample
            self._samples = SampleList(samples, self._places)
        return self._samples

    def map(self, function: Transform, again: Transform | None = None) -> ColumnBatch:
        """The batch with the columns that a function returns for these; `again` returns the same
        once more.
        """
        # If the columns are needed again, they come from the records, through the same functions.
        repeat, parse = again or function, self.block.again
        return ColumnBatch(function(self.columns), self._num_samples).located(
            self._places, parse and (lambda: repeat(parse()))
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Without `places`, which do not pickle. Samples become dicts.
        return (
            ColumnBatch,
            (self.columns, self._num_samples),
            None if self.is_columns else list(self),
        )

    def __setstate__(self, samples: Values) -> None:
        self._samples = SampleList(samples, None)

    def __repr__(self) -> str:
        return f"ColumnBatch({len(self)} samples)"


class WithLabel:
    """(features, label) of a sample. Without a transform before, also of the columns of a batch.

    Args:
        first: The user's transform, called with the sample before; None for none.
        label_key: The label's name.
    """

    def __init__(self, first: Transform | None, label_key: str) -> None:
        self.first, self._label_key = first, label_key

    def __call__(self, sample: Value) -> tuple[dict[str, Value], Value]:
        """Transform a sample."""
        return self.split(sample if self.first is None else self.first(sample))

    def split(self, sample: Value) -> tuple[dict[str, Value], Value]:
        """Take the label out of a sample."""
        if not isinstance(sample, Mapping) or self._label_key not in sample:
            raise ValueError(
                f"the dataset or the transform must return a mapping with the key label_key={self._label_key!r}"
            )
        rest = {key: value for key, value in sample.items() if key != self._label_key}
        return rest, sample[self._label_key]


def with_label(transform: Transform | None, label_key: str | None) -> Transform | None:
    """The transform, and then (features, label) of its sample."""
    return transform if label_key is None else WithLabel(transform, label_key)


# The batch that torch's own collate makes of samples.


def register_samples() -> None:
    """Register `Sample`, and what a batch keeps whole, with torch's functions that look values up
    by their class.
    """
    if get_worker_info() is not None:
        register_in_worker()
    functions = collate_functions()
    # Once a process: torch keeps the functions for all loaders.
    if Sample not in functions:
        register_as_dict(Sample, "torch_tfrecord.Sample")
        functions.update(dict.fromkeys(WHOLE_KINDS, _make_list))
        functions[Sample] = _collate_for_torch


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
