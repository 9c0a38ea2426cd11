"""Map-style datasets that are read in two stages, and nested ones, read as fast as the innermost
ones allow.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, overload

from torch.utils.data import Dataset, get_worker_info

from torch_tfrecord.arguments import HintsOfDataset
from torch_tfrecord.error_log import RAISES, ErrorLog
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.loading.collating import collate
from torch_tfrecord.loading.sample_maker import is_users, transform_samples
from torch_tfrecord.loading.transport import register_in_worker
from torch_tfrecord.native import has_native
from torch_tfrecord.order import (
    DrawEpoch,
    Leaves,
    Part,
    Rank,
    defines_last,
)
from torch_tfrecord.processors import num_processors
from torch_tfrecord.samples import (
    Samples,
    Transform,
    Value,
    transform_one,
    without_left_out,
)

__all__ = [
    "NestedDataset",
    "StagedDataset",
    "check_left",
    "loads_ahead",
    "sample_bytes",
    "usual_num_threads",
]


_D = TypeVar("_D", bound="StagedDataset")


class StagedDataset(HintsOfDataset, Dataset[Value]):
    """A map-style dataset of ours: threads may load its samples, but may not run its transform.

    Attributes:
        _transform: Called with each sample; None for no transform.
        _errors: What to do about a record that fails.
        _epoch: The epoch that was chosen for random draws; None if nothing is drawn.
        _positions: From the dataset's positions to those of its records.
    """

    _transform: Transform | None = None
    _errors: ErrorLog = RAISES
    _epoch: DrawEpoch | None = None
    _positions: Any

    @overload
    def __getitem__(self: _D, position: slice) -> _D: ...

    @overload
    def __getitem__(self, position: Any) -> Any: ...

    def __getitem__(self, position: Any) -> Any:
        """Return the sample at a position (negative ones count from the end), or for a slice a
        dataset of that part.

        For a list, 1-D array or tensor of positions, return the batch that `collate` makes of their
        samples: a DataLoader with ``batch_size=None`` and a batch sampler asks for these.
        """
        # A sample that is sent alone needs it, and nothing else of ours runs in the worker.
        if get_worker_info() is not None:
            register_in_worker()
        if type(position) is int:
            return self._sample(position)
        if isinstance(position, slice):
            return self._part(self._positions[position])
        if isinstance(position, list) or getattr(position, "ndim", 0) == 1:
            return collate(self.__getitems__(list_of_positions(position)))
        return self._sample(position)

    def __getitems__(self, positions: Sequence[int]) -> Samples:
        """Return the samples at several positions, in that order; DataLoader calls this to make a
        batch.

        The records are read in few calls and parsed together into columns, which `collate` passes
        on. To everything else the result is a sequence of samples, each equal to `ds[position]`. If
        a record is damaged or does not fit the features, you get the error of the first such
        position.
        """
        # a subclass overrides __getitem__, which must win
        if not defines_last(self, "__getitems__"):
            return [self[position] for position in positions]
        return check_left(self._transform_samples(self._load_samples(positions)), self)

    def _sample(self, position: Any) -> Value:
        """The sample at a position."""
        raise NotImplementedError

    def _part(self: _D, positions: Any) -> _D:
        """The dataset of some positions."""
        raise NotImplementedError

    def _load_samples(self, positions: Sequence[int]) -> Samples:
        """The samples at several positions, without the transform: reads, verifies, parses and
        decodes. Safe from several threads.
        """
        raise NotImplementedError

    def _load_batches(self, batches: Sequence[Sequence[int]]) -> list[Any]:
        """`_load_samples` of several batches, or of the first of them, at least one; where it
        raises, they are loaded one by one.
        """
        return [self._load_samples(positions) for positions in batches]

    def _transform_samples(self, samples: Samples) -> Samples:
        """Apply the transform to each of the samples from `_load_samples`."""
        return transform_samples(self._transform, samples, self._errors)

    @property
    def _has_user_transform(self) -> bool:
        """Whether there is a user's transform, which must run in the thread that iterates."""
        return is_users(self._transform)

    @property
    def _error_logs(self) -> list[ErrorLog]:
        """The logs of records that are left out."""
        return [self._errors]

    @property
    def _num_threads(self) -> int:
        """How many threads read ahead by default: see `usual_num_threads`."""
        return usual_num_threads(self)

    def _salted(self, positions: Sequence[int]) -> Sequence[int]:
        """The positions of a batch with what decides its random draws."""
        return Leaves(self).salted(positions) if self._needs_salt else positions

    @property
    def _draws_at_random(self) -> bool:
        """Whether samples depend on the epoch."""
        return self._epoch is not None

    @property
    def _needs_salt(self) -> bool:
        """Whether random draws need a salt, since no epoch was chosen."""
        return self._epoch is not None and not self._epoch.is_known


def list_of_positions(positions: Any) -> list[int]:
    """A batch of positions as a list; TypeError for booleans (a mask).

    Example:
        >>> import numpy as np
        >>> list_of_positions(np.array([3, 1]))
        [3, 1]
    """
    found: list[int] = positions if isinstance(positions, list) else positions.tolist()
    if any(isinstance(position, bool) for position in found):
        raise TypeError(
            "positions must be integers, got booleans: mask.nonzero() gives the positions of a mask"
        )
    return found


def loads_ahead(dataset: object) -> bool:
    """Whether threads may load a dataset's samples: `TFRecordDataset`, `RLDSDataset`,
    `NestedDataset` of these.

    False for a subclass of one of these that overrides how it reads.
    """
    if isinstance(dataset, NestedDataset):
        return all(map(loads_ahead, Leaves(dataset.dataset)))
    return isinstance(dataset, StagedDataset) and defines_last(dataset, "_load_samples")


def check_left(samples: Samples, dataset: object) -> Samples:
    """A dataset's batch without the samples that were left out.

    Raises:
        TFRecordError: None is left, and the loader cannot pass over an empty batch.
    """
    logs: Sequence[ErrorLog] = getattr(dataset, "_error_logs", ())
    if not any(errors.skips for errors in logs):
        return samples
    # A loader of ours attends the log: it passes over an empty batch and warns at the end.
    kept = without_left_out(samples)
    if len(kept) < len(samples) and not all(errors.is_attended for errors in logs):
        for errors in logs:
            errors.tell(once=True)
        if not len(kept):
            raise TFRecordError(
                f"all {len(samples)} records of a batch were left out, and a DataLoader has no empty batch: expected "
                "make_dataloader, which passes over it, a larger batch, or a TFRecordIterableDataset"
            )
    return kept


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

    def __getitem__(self, position: Any) -> Value:
        """The sample at a position."""
        sample = self.dataset[position]
        return (
            sample if self._transform is None else transform_one(self._transform, 0, sample, None)
        )

    def __getitems__(self, positions: Sequence[int]) -> Samples:
        """The samples of several positions, in that order."""
        return check_left(self._transform_samples(self._load_samples(positions)), self)

    @property
    def _error_logs(self) -> list[ErrorLog]:
        """The logs of each innermost dataset."""
        return [log for leaf in Leaves(self.dataset) for log in getattr(leaf, "_error_logs", ())]

    def _load_samples(self, positions: Sequence[int]) -> Any:
        """`__getitems__` without the transforms, where `loads_ahead`."""
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
        """Whether there is a user's transform, here or in an innermost dataset."""
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
        """Whether random draws need a salt, since no epoch was chosen."""
        return Leaves(self.dataset).need_salt

    def __repr__(self) -> str:
        return f"NestedDataset({self.dataset!r})"


# Threads that read ahead.

# At least: they wait for answers.
_REMOTE_THREADS = 8
# Samples of more bytes than this are worth a second thread even if they are Python objects.
_SMALL_SAMPLE = 1 << 12


def usual_num_threads(dataset: object = None) -> int:
    """The default number of threads that read ahead: one per processor that this process may use,
    divided by the training processes that share them (`Rank.num_on_host`).

    Batches of numbers and of images are made without the GIL, so that threads share the work. It is
    one where they would only take turns: small samples that are mostly Python objects (bytes, str),
    and anything without the compiled core. For remote files it is at least 8: the threads mostly
    wait.
    """
    files = Leaves(dataset).stores
    share = max(num_processors() // Rank.num_on_host(), 1)
    if not has_native():  # the fallbacks keep the GIL
        return 1
    if any(store.is_remote for store in files):
        return max(share, _REMOTE_THREADS)
    if dataset is not None and all(map(_holds_lock, Leaves(dataset))):
        return 1
    return share


def _holds_lock(leaf: Any) -> bool:
    """Whether samples are small, and most of their values Python objects."""
    features = getattr(leaf, "features", None)
    if not 0 < sample_bytes(leaf) <= _SMALL_SAMPLE:
        return False
    specs = list(features.values()) if isinstance(features, Mapping) else [features]
    objects = [spec for spec in specs if getattr(spec, "_makes_objects", spec is None)]
    return 2 * len(objects) > len(specs)


def sample_bytes(dataset: object) -> float:
    """About how many bytes of the files a sample has; 0 if that is unknown."""
    found = [(leaf, store) for leaf in Leaves(dataset) for store in Leaves(leaf).stores]
    num_samples = sum(max(len(leaf), store.extent[1]) for leaf, store in found)
    return sum(store.extent[2] for _, store in found) / max(num_samples, 1)
