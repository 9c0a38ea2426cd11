"""One call from files to a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import index as as_integer
from typing import Any

import torch

from torch_tfrecord.batches.collate import collate
from torch_tfrecord.batches.column_batch import ColumnTransform
from torch_tfrecord.features.structured_specs import SequenceFeatures
from torch_tfrecord.loading.map_dataset import TFRecordDataset
from torch_tfrecord.loading.read_ahead import usual_num_threads
from torch_tfrecord.loading.record_loader import RecordLoader
from torch_tfrecord.order.batch_sampler import RecordBatchSampler
from torch_tfrecord.order.random_stream import RandomStream
from torch_tfrecord.order.ranks import check_rank, resolve_rank
from torch_tfrecord.records.paths import Paths

__all__ = ["make_dataloader"]

_OURS = ("dataset", "sampler", "batch_sampler")


def make_dataloader(
    paths: Paths,
    batch_size: int,
    features: Mapping[str, Any] | SequenceFeatures | None = None,
    *,
    label_key: str | None = None,
    transform: Callable[[Any], Any] | None = None,
    shuffle: bool | str = True,
    seed: int = 0,
    num_epochs: int | None = 1,
    drop_last: bool = False,
    num_workers: int = 0,
    num_threads: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    **dataloader_kwargs: Any,
) -> RecordLoader:
    """Make the DataLoader that most trainings want, as TensorFlow's ``make_batched_features_dataset`` does.

    A `TFRecordDataset` read by position, in an order that is a pure function of (seed, epoch), the same for any number
    of workers. Each iteration over the loader is the next epoch, in a new order (or the one of `loader.set_epoch`).
    Several epochs of one iteration follow each other without a pause.

    A training that was stopped goes on with exactly the samples that it had not received, also with another number of
    workers, another world size or batch size: save `loader.state_dict()` of one rank whenever you save the model, and
    give it to `loader.load_state_dict` of every rank; `for epoch in range(loader.epoch, num_epochs)` is the rest.

    It differs from TensorFlow's function where PyTorch's manner is another one:

    - one epoch by default, not endlessly many;
    - each epoch ends with its own, perhaps short, batch; TensorFlow's batches go across the border of epochs;
    - `drop_last` alone decides on short batches; TensorFlow drops them, too, when `num_epochs` is None;
    - the shuffle is exact, without a buffer, and every epoch's order, not only the first one's, follows from the seed;
    - var-length features are jagged, not sparse; no file that matches is FileNotFoundError;
    - records are split over ranks, of which each gets the same number of batches: the first records of the order are
      repeated to make the numbers equal, as by ``DistributedSampler``; with `drop_last` the last ones are left out.

    Args:
        paths: As for `TFRecordDataset`.
        batch_size: Samples in a batch, of one rank.
        features: What to read from each record, by name; None gives the record's bytes.
        label_key: The feature that is the label: a sample is (features, label), without it among the features.
        transform: Called with each sample, a dict with the label still in it, before batching.
        shuffle: A new random order each epoch; "blocks", one that reads nearly in sequence (see `RecordSampler`); False
            reads the sorted files one after another.
        seed: Decides the order; with the workers' random states for transforms, where no `generator` is given.
        num_epochs: Epochs in one iteration over the loader: iteration k begins with epoch k * num_epochs. 0 gives no
            batch. None or -1: endlessly many, iteration k begins with epoch k, ``len(loader)`` is TypeError.
        drop_last: Leave out an epoch's last batch if it is not full.
        num_workers: DataLoader processes. With 0, threads of this process read ahead: they hand batches over without
            copying them, and are the faster way but for a slow transform, which runs in the thread that iterates.
        num_threads: Threads that read, check, parse and decode ahead where `num_workers` is 0; one more batch than
            threads is under way. 0 for none; None chooses by the number of processors.
        rank, world_size: Both or none; None means torch.distributed's where it is initialised, else torchrun's
            environment, else 0 of 1.
        **dataloader_kwargs: For `DataLoader`: pin_memory, persistent_workers, prefetch_factor, ...; `collate_fn` is
            `collate` unless given.

    Returns:
        A DataLoader of batches; its ``len`` is the number of batches of the next iteration: of all `num_epochs`, or
        after `load_state_dict` of what is left of them.

    Raises:
        FileNotFoundError: Nothing matches `paths`.
        TypeError: A number that is none.
        ValueError: A `label_key` that is not among the features, numbers out of range, or `sampler`, `batch_sampler` or
            `dataset` among the keywords.

    Example:
        >>> features = {"x": FixedLenFeature((40,), torch.float32), "y": FixedLenFeature((), torch.int64)}
        ... # doctest: +SKIP
        >>> for x, y in make_dataloader("train-*", 64, features, label_key="y", num_workers=4):  # doctest: +SKIP
        ...     ...
    """
    _check_arguments(batch_size, shuffle, num_epochs, dataloader_kwargs)
    if num_threads is not None and as_integer(num_threads) < 0:
        raise ValueError(f"num_threads must be at least 0, or None, got {num_threads}")
    check_rank(rank, world_size)
    if label_key is not None:
        split = _SplitLabel(label_key, features)
        transform = split if transform is None else _Chain(transform, split)
    here = resolve_rank(rank, world_size)
    dataset = TFRecordDataset(paths, features, transform=transform)
    batches = RecordBatchSampler(
        dataset,
        batch_size,
        shuffle=shuffle,
        seed=seed,
        num_epochs=None if num_epochs == -1 else num_epochs,
        rank=rank,
        world_size=world_size,
        drop_last=drop_last,
    )
    dataloader_kwargs.setdefault("collate_fn", collate)
    if dataloader_kwargs.get("generator") is None:
        # Else DataLoader draws the workers' seeds from the global random state.
        generator = torch.Generator().manual_seed(RandomStream(seed, here.rank).below(1 << 63))
        dataloader_kwargs["generator"] = generator
    return RecordLoader(
        dataset,
        batch_sampler=batches,
        num_workers=num_workers,
        num_threads=usual_num_threads() if num_threads is None else as_integer(num_threads),
        **dataloader_kwargs,
    )


def _check_arguments(batch_size: Any, shuffle: Any, num_epochs: Any, dataloader_kwargs: Mapping[str, Any]) -> None:
    if as_integer(batch_size) < 1:
        raise ValueError(f"batch_size: Batch size must be greater than zero, got {batch_size}")
    if not isinstance(shuffle, bool) and shuffle != "blocks":
        raise TypeError(f'shuffle must be True, False or "blocks", got {shuffle!r}')
    if num_epochs is not None and as_integer(num_epochs) < -1:
        raise ValueError(f"num_epochs must be at least 0, or None or -1 for endlessly many, got {num_epochs}")
    for name in _OURS:
        if name in dataloader_kwargs:
            raise ValueError(f"{name} cannot be given: make_dataloader makes it; use DataLoader(TFRecordDataset(...))")


class _SplitLabel(ColumnTransform):
    """(features, label) of a sample, or of the columns of a batch."""

    def __init__(self, label_key: str, features: Mapping[str, Any] | SequenceFeatures | None) -> None:
        if not isinstance(features, Mapping) or label_key not in features:
            keys = list(features) if isinstance(features, Mapping) else None
            raise ValueError(f"The `label_key` provided ({label_key}) must be one of the `features` keys: {keys}")
        self._label_key = label_key

    def __call__(self, sample: Any) -> tuple[dict[str, Any], Any]:
        """Take the label out of a sample."""
        if not isinstance(sample, Mapping) or self._label_key not in sample:
            raise ValueError(f"the transform must return a mapping that holds label_key={self._label_key!r}")
        rest = {key: value for key, value in sample.items() if key != self._label_key}
        return rest, sample[self._label_key]

    def columns(self, columns: Any) -> tuple[dict[str, Any], Any]:
        """Take the label's column out."""
        return self(columns)


class _Chain:
    """One transform, then another."""

    def __init__(self, first: Callable[[Any], Any], second: Callable[[Any], Any]) -> None:
        self._first, self._second = first, second

    def __call__(self, sample: Any) -> Any:
        """Apply both to a sample."""
        return self._second(self._first(sample))
