"""Nested datasets, read as fast as the innermost ones allow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from torch_tfrecord.error_log import RAISES, ErrorLog
from torch_tfrecord.loading.map_dataset import (
    StagedDataset,
    check_left,
    sample_bytes,
    usual_num_threads,
)
from torch_tfrecord.loading.sample_maker import transform_samples
from torch_tfrecord.order import Leaves, Part
from torch_tfrecord.samples import Samples, Transform, Value, transform_one

__all__ = [
    "NestedDataset",
    "StagedDataset",
    "check_left",
    "loads_ahead",
    "sample_bytes",
    "usual_num_threads",
]


def loads_ahead(dataset: object) -> bool:
    """Whether threads may load a dataset's samples: `TFRecordDataset`, `RLDSDataset`,
    `NestedDataset` of these.

    False for a subclass of one of these that overrides how it reads.
    """
    if isinstance(dataset, NestedDataset):
        return all(map(loads_ahead, Leaves(dataset.dataset)))
    return isinstance(dataset, StagedDataset) and Leaves.defines_last(
        type(dataset), "_load_samples"
    )


class _Loaded(NamedTuple):
    """The samples of the innermost datasets for a batch, before their transforms; a sequence in name
    only.
    """

    parts: list[tuple[Part, Samples]]
    num_samples: int


class NestedDataset(StagedDataset):
    """Read a dataset of datasets (`Subset`, `ConcatDataset`, `Mixture`, nested) through the
    innermost ones.

    Each of those is asked once for its part of a batch, together with the batch's epoch, which
    torch's `Subset` does not pass on. If one of them gives the whole batch, its columns stay
    columns.

    Args:
        dataset: Any map-style dataset.
        transform: Called with each sample, after the dataset's own.
    """

    def __init__(self, dataset: Any, transform: Transform | None = None) -> None:
        self.dataset = dataset
        self._transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def _sample(self, position: Any) -> Value:
        sample = self.dataset[position]
        return (
            sample if self._transform is None else transform_one(self._transform, 0, sample, None)
        )

    @property
    def _error_logs(self) -> list[ErrorLog]:
        return [log for leaf in Leaves(self.dataset) for log in getattr(leaf, "_error_logs", ())]

    def _load_samples(self, positions: Sequence[int]) -> Any:
        # Once for each innermost dataset, however its samples are mixed.
        parts: list[tuple[Part, Samples]] = [
            (
                part,
                part.dataset._load_samples(part.positions)
                if loads_ahead(part.dataset)
                else part.read(),
            )
            for part in Leaves(self.dataset).parts(positions)
        ]
        return _Loaded(parts, len(positions))

    def _load_batches(self, batches: Sequence[Sequence[int]]) -> list[Any]:
        """`_load_samples` of several batches, with one call of each innermost dataset."""
        split = [*map(Leaves(self.dataset).parts, batches)]
        asked: dict[int, list[Part]] = {}
        for part in itertools.chain.from_iterable(split):
            asked.setdefault(id(part.dataset), []).append(part)
        loaded = {
            key: iter(parts[0].dataset._load_batches([part.positions for part in parts]))
            for key, parts in asked.items()
        }
        found: list[Any] = []
        with suppress(StopIteration):  # one has loaded the first of them only
            for parts, positions in zip(split, batches, strict=True):
                pairs = [(part, next(loaded[id(part.dataset)])) for part in parts]
                found.append(_Loaded(pairs, len(positions)))
        return found

    @property
    def _has_user_transform(self) -> bool:
        return super()._has_user_transform or any(
            leaf._has_user_transform for leaf in Leaves(self.dataset)
        )

    def _transform_samples(self, loaded: Any) -> Samples:
        """Apply the transforms, the innermost dataset's and then this one's, to what
        `_load_samples` returned.
        """
        parts = [
            (
                part,
                part.dataset._transform_samples(samples) if loads_ahead(part.dataset) else samples,
            )
            for part, samples in loaded.parts
        ]
        joined = parts[0][1] if len(parts) == 1 else Part.join(parts, loaded.num_samples)
        errors = next(iter(self._error_logs), RAISES)
        return transform_samples(self._transform, joined, errors)

    @property
    def _needs_salt(self) -> bool:
        return Leaves(self.dataset).need_salt

    def __repr__(self) -> str:
        return f"NestedDataset({self.dataset!r})"
