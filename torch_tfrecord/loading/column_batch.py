"""A batch held as columns that is also a sequence of samples."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from typing import Any

from torch_tfrecord.loading.collate import register_samples
from torch_tfrecord.loading.sample import Sample
from torch_tfrecord.loading.sample_block import SampleBlock, take_apart
from torch_tfrecord.samples import Places, SampleList

__all__ = ["ChainedTransforms", "ColumnBatch", "ColumnTransform"]


class ColumnBatch(MutableSequence[Any]):
    """What `TFRecordDataset.__getitems__` returns: the samples at several positions, held as
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

    def __init__(self, columns: Any, num_samples: int) -> None:
        self.block = SampleBlock(columns, num_samples)
        self._num_samples = num_samples
        self._places: Places | None = None
        self._single: dict[int, Sample] = {}  # samples that were accessed by their number
        self._samples: list[Any] | None = None
        register_samples()

    @property
    def is_columns(self) -> bool:
        """Whether no sample was accessed yet, so that the columns are up to date."""
        return self._samples is None and all(sample.is_unseen for sample in self._single.values())

    @property
    def columns(self) -> Any:
        """The columns; parsed again if a batch took them."""
        return self.block.columns

    def take_columns(self) -> Any | None:
        """The columns, for one batch only; None if samples may differ from them or share their
        memory.
        """
        return self.block.take() if self.is_columns else None

    def __len__(self) -> int:
        return self._num_samples if self._samples is None else len(self._samples)

    @property
    def places(self) -> Places | None:
        """The record of each sample, by its number; None once the samples may have been
        reordered.
        """
        return self._places if self._samples is None else getattr(self._samples, "places", None)

    def located(self, places: Places | None, again: Callable[[], Any] | None) -> ColumnBatch:
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

    def __setitem__(self, number: Any, sample: Any) -> None:
        self._all()[number] = sample

    def __delitem__(self, number: Any) -> None:
        del self._all()[number]

    def __iter__(self) -> Any:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == (other._all() if isinstance(other, ColumnBatch) else other)

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other]

    def insert(self, index: int, value: Any) -> None:
        """Like ``list.insert``."""
        self._all().insert(index, value)

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        """Like ``list.sort``, which many custom collate functions call before they pad."""
        self._all().sort(key=key, reverse=reverse)

    def _all(self) -> list[Any]:
        if self._samples is None:
            is_dict = self.block.template
            samples = (
                self.block.samples() if is_dict else [*take_apart(self.columns, self._num_samples)]
            )
            for number, sample in self._single.items():
                samples[number] = sample
            self._samples = SampleList(samples, self._places)
        return self._samples

    def map(
        self, function: Callable[[Any], Any], again: Callable[[Any], Any] | None = None
    ) -> ColumnBatch:
        """The batch with the columns that a function returns for these; `again` returns the same
        once more.
        """
        repeat, parse = again or function, self.block.again
        return ColumnBatch(function(self.columns), self._num_samples).located(
            self._places, parse and (lambda: repeat(parse()))
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Without `places`, which do not pickle. Samples become dicts.
        return (
            ColumnBatch,
            (self.columns, self._num_samples),
            None if self.is_columns else list(self),
        )

    def __setstate__(self, samples: list[Any]) -> None:
        self._samples = SampleList(samples, None)

    def __repr__(self) -> str:
        return f"ColumnBatch({len(self)} samples)"


class ColumnTransform:
    """A transform that can be applied to columns, so that no samples need to be made for it."""

    def __call__(self, sample: Any) -> Any:
        """Transform one sample."""
        raise NotImplementedError

    def columns(self, columns: Any) -> Any:
        """Transform the columns of a batch, with the same result as transforming each sample."""
        raise NotImplementedError


class ChainedTransforms:
    """One transform, then another.

    Args:
        first, second: Called with a sample, and with the first one's result.
    """

    def __init__(self, first: Callable[[Any], Any], second: Callable[[Any], Any]) -> None:
        self.first, self.second = first, second

    def __call__(self, sample: Any) -> Any:
        """Apply both to a sample."""
        return self.second(self.first(sample))
