"""One call from files, or a dataset, to a DataLoader."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from torch_tfrecord.arguments import IndexPolicy, Shuffle, at_least, check_callable, integer, true_or_false
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES
from torch_tfrecord.batches.collate import collate
from torch_tfrecord.batches.column_batch import ChainedTransforms, ColumnTransform
from torch_tfrecord.errors import outer_level
from torch_tfrecord.features.feature import SequenceFeatures
from torch_tfrecord.loading.map_dataset import TFRecordDataset
from torch_tfrecord.loading.nested_dataset import NestedDataset, loads_ahead
from torch_tfrecord.loading.read_ahead import usual_num_threads
from torch_tfrecord.loading.record_loader import RecordLoader
from torch_tfrecord.order.batch_sampler import RecordBatchSampler
from torch_tfrecord.order.epochs import find_lanes
from torch_tfrecord.order.leaves import stores
from torch_tfrecord.order.random_stream import RandomStream
from torch_tfrecord.order.ranks import check_rank, resolve_rank
from torch_tfrecord.order.samplers import BLOCK_BYTES
from torch_tfrecord.records.paths import Paths

__all__ = ["make_dataloader"]

_OURS = ("dataset", "sampler", "batch_sampler")


class SizedDataset(Protocol):
    """A map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: Any, /) -> Any:
        """The sample at a position."""


def make_dataloader(
    paths: Paths | SizedDataset,
    batch_size: int,
    features: Mapping[str, Any] | SequenceFeatures | None = None,
    *,
    label_key: str | None = None,
    transform: Callable[[Any], Any] | None = None,
    shuffle: Shuffle = True,
    seed: int = 0,
    num_epochs: int | None = 1,
    drop_last: bool = False,
    num_workers: int = 0,
    num_threads: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    compression_type: str | None = "auto",
    verify_crc: bool = True,
    index: IndexPolicy = "auto",
    index_dir: str | os.PathLike[str] | None = None,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    **dataloader_kwargs: Any,
) -> RecordLoader:
    """Make the DataLoader that most trainings want, as TensorFlow's ``make_batched_features_dataset`` does.

    A `TFRecordDataset`, or a map-style dataset of yours, read by position, in an order that is a pure function of
    (seed, epoch), the same for any number of workers. Each iteration over the loader is the next epoch, in a new order
    (or the one of `loader.set_epoch`). Several epochs of one iteration follow each other without a pause.

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
        paths: As for `TFRecordDataset`. Or a dataset: a `TFRecordDataset`, a slice of one, `tfds.RLDSDataset`, a
            `Mixture`, torch's `Subset` (so `random_split`) or `ConcatDataset` of these, one in another: as quick as
            paths. Or any other one with a length and `ds[i]`, which is read as DataLoader reads it, without threads.
        batch_size: Samples in a batch, of one rank.
        features: What to read from each record, by name; None gives the record's bytes. Not with a dataset.
        label_key: The feature that is the label: a sample is (features, label), without it among the features.
        transform: Called with each sample, a dict with the label still in it, before batching; after a dataset's own.
        shuffle: A new random order each epoch; "blocks", one that reads nearly in sequence (see `RecordSampler`); False
            reads the sorted files one after another. Compressed files are shuffled by "blocks" with True, too, and a
            warning says so.
        seed: Decides the order; with the workers' random states for transforms, where no `generator` is given.
        num_epochs: Epochs in one iteration over the loader: iteration k begins with epoch k * num_epochs. 0 gives no
            batch. None or -1: endlessly many, iteration k begins with epoch k, ``len(loader)`` is TypeError.
        drop_last: Leave out an epoch's last batch if it is not full.
        num_workers: DataLoader processes. With 0, threads of this process read ahead, which is the faster way but for
            a slow transform: that runs in the thread that iterates.
        num_threads: Threads that read, check, parse and decode ahead where `num_workers` is 0; one more batch than
            threads is under way. 0 for none; None chooses by the number of processors. Compressed files have one.
        rank, world_size: Both or none; None means torch.distributed's where it is initialised, else torchrun's
            environment, else 0 of 1.
        compression_type, verify_crc, index, index_dir, max_batch_bytes, storage_options: As for `TFRecordDataset`. Not
            with a dataset.
        **dataloader_kwargs: For `DataLoader`: pin_memory, persistent_workers, prefetch_factor, ...; `collate_fn` is
            `collate` unless given.

    Returns:
        A DataLoader of batches; its ``len`` is the number of batches of the next iteration: of all `num_epochs`, or
        after `load_state_dict` of what is left of them.

    Raises:
        FileNotFoundError: Nothing matches `paths`.
        TypeError: A number that is none, a keyword that nobody knows, a stream in place of a dataset.
        ValueError: A `label_key` that is not among the features, numbers out of range, `sampler`, `batch_sampler` or
            `dataset` among the keywords, or what belongs to a dataset together with one.

    Example:
        >>> features = {"x": FixedLenFeature((40,), torch.float32), "y": FixedLenFeature((), torch.int64)}
        ... # doctest: +SKIP
        >>> for x, y in make_dataloader("train-*", 64, features, label_key="y", num_workers=4):  # doctest: +SKIP
        ...     ...
    """
    _check_arguments(batch_size, shuffle, num_epochs, dataloader_kwargs)
    if num_threads is not None:
        at_least(0, "num_threads", num_threads)
    check_callable("transform", transform)
    check_rank(rank, world_size)
    seed, drop_last = integer("seed", seed), true_or_false("drop_last", drop_last)
    here = resolve_rank(rank, world_size)
    dataset: Any = paths
    of_dataset: dict[str, Any] = {
        "compression_type": compression_type,
        "verify_crc": verify_crc,
        "index": index,
        "index_dir": index_dir,
        "max_batch_bytes": max_batch_bytes,
        "storage_options": storage_options,
    }
    if _is_paths(paths):
        _check_label(label_key, features)
        dataset = TFRecordDataset(
            cast("Paths", paths),
            features,
            transform=_with_label(transform, label_key),
            **of_dataset,
        )
        transform = None
    else:
        _check_dataset(dataset, features=features, **of_dataset)
        transform = _with_label(transform, label_key)
    is_alone = here.world_size == 1 and not num_workers  # else each would fetch every block for a part of it
    for store in stores(dataset):
        store.read_by_blocks(BLOCK_BYTES if shuffle == "blocks" and is_alone else None)
    batches = RecordBatchSampler(
        dataset,
        batch_size,
        shuffle=_shuffle_of(dataset, shuffle),
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
    if transform is not None or not loads_ahead(dataset):
        dataset = NestedDataset(dataset, transform)
    num_threads = usual_num_threads(dataset) if num_threads is None else int(num_threads)
    return RecordLoader(
        dataset,
        batch_sampler=batches,
        num_workers=num_workers,
        num_threads=num_threads if loads_ahead(dataset) else 0,
        **dataloader_kwargs,
    )


def _check_arguments(
    batch_size: int, shuffle: object, num_epochs: int | None, dataloader_kwargs: Iterable[str]
) -> None:
    if integer("batch_size", batch_size) < 1:
        raise ValueError(f"batch_size: Batch size must be greater than zero, got {batch_size}")
    if not isinstance(shuffle, bool) and shuffle != "blocks":
        raise TypeError(f'shuffle must be True, False or "blocks", got {shuffle!r}')
    if num_epochs is not None and integer("num_epochs", num_epochs) < -1:
        raise ValueError(f"num_epochs must be at least 0, or None or -1 for endlessly many, got {num_epochs}")
    for name in _OURS:
        if name in dataloader_kwargs:
            raise ValueError(f"{name} cannot be given: make_dataloader makes it; use DataLoader(TFRecordDataset(...))")
    known = inspect.signature(DataLoader.__init__).parameters
    for name in dataloader_kwargs:
        if name not in known:
            raise TypeError(f"{name} is no keyword of make_dataloader, nor of TFRecordDataset or DataLoader")


def _is_paths(paths: object) -> bool:
    is_usual = isinstance(paths, (str, bytes, os.PathLike, list, tuple, set, frozenset, np.ndarray))
    return is_usual or not (isinstance(paths, Dataset) or hasattr(paths, "__getitem__"))


def _check_dataset(dataset: object, **of_dataset: object) -> None:
    """An error for a stream, and for what was to be said when the dataset was made."""
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(f"expected paths, or a dataset with a length and ds[i], got {kind}: streams go into DataLoader")
    for name, value in of_dataset.items():
        if value != inspect.signature(make_dataloader).parameters[name].default:
            raise ValueError(f"{name} cannot be given with a dataset: give it to the dataset, got a {kind}")


def _shuffle_of(dataset: object, shuffle: Shuffle) -> Shuffle:
    """What the order shall be: compressed files are not read at random."""
    compressed = [store for store in stores(dataset) if store.first_compressed is not None]
    if not compressed:
        return shuffle
    if shuffle is True and find_lanes(dataset) is None:  # of a Mixture: nothing better is known
        for store in compressed:
            store.warn()
        return True
    for store in compressed:
        store.has_warned = True  # it is said below, or the user knows
    if shuffle is True:
        warnings.warn(
            f"{compressed[0].first_compressed}: compressed files are shuffled within windows of up to 32 MiB, from up "
            "to 64 files at a time, so that each is decompressed once an epoch. Write the data uncompressed for an "
            'exact shuffle, or say shuffle="blocks" to have this one without a warning.',
            stacklevel=outer_level(),
        )
    return "blocks" if shuffle else False


def _check_label(label_key: str | None, features: Mapping[str, Any] | SequenceFeatures | None) -> None:
    if label_key is not None and (not isinstance(features, Mapping) or label_key not in features):
        keys = list(features) if isinstance(features, Mapping) else None
        raise ValueError(f"The `label_key` provided ({label_key}) must be one of the `features` keys: {keys}")


def _with_label(transform: Callable[[Any], Any] | None, label_key: str | None) -> Callable[[Any], Any] | None:
    if label_key is None:
        return transform
    split = _SplitLabel(label_key)
    return split if transform is None else ChainedTransforms(transform, split)


class _SplitLabel(ColumnTransform):
    """(features, label) of a sample, or of the columns of a batch."""

    def __init__(self, label_key: str) -> None:
        self._label_key = label_key

    def __call__(self, sample: Any) -> tuple[dict[str, Any], Any]:
        """Take the label out of a sample."""
        if not isinstance(sample, Mapping) or self._label_key not in sample:
            raise ValueError(
                f"the dataset, or the transform, must return a mapping that holds label_key={self._label_key!r}"
            )
        rest = {key: value for key, value in sample.items() if key != self._label_key}
        return rest, sample[self._label_key]

    def columns(self, columns: Any) -> tuple[dict[str, Any], Any]:
        """Take the label's column out."""
        return self(columns)
