"""One call from files, or a dataset, to a DataLoader."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from torch_tfrecord.arguments import (
    IndexPolicy,
    OnError,
    Shuffle,
    at_least,
    check_callable,
    integer,
    one_of,
    true_or_false,
)
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES
from torch_tfrecord.columns.record_parsers import RecordFeatures, is_record_features
from torch_tfrecord.errors import outer_level
from torch_tfrecord.loading.collate import collate
from torch_tfrecord.loading.column_batch import ChainedTransforms, ColumnTransform
from torch_tfrecord.loading.described import describe
from torch_tfrecord.loading.map_dataset import TFRecordDataset
from torch_tfrecord.loading.nested_dataset import NestedDataset, loads_ahead
from torch_tfrecord.loading.packing import PackedCollate
from torch_tfrecord.loading.record_loader import RecordLoader
from torch_tfrecord.order.buckets import Buckets, LengthOptions, TooLong, checked_lengths
from torch_tfrecord.order.leaves import draw_salt, has_places, stores
from torch_tfrecord.order.packs import PackOrder
from torch_tfrecord.order.random_stream import RandomStream
from torch_tfrecord.order.ranks import check_rank, resolve_rank
from torch_tfrecord.order.samplers import BLOCK_BYTES, RecordBatchSampler
from torch_tfrecord.records.paths import Paths
from torch_tfrecord.samples import Columns, Transform, Value
from torch_tfrecord.shown import printable

__all__ = ["make_dataloader"]

_OURS = ("dataset", "sampler", "batch_sampler")


class SizedDataset(Protocol):
    """A map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: Any, /) -> Any:
        """The sample at a position."""


def make_dataloader(
    paths: Paths | SizedDataset,
    batch_size: int | None = None,
    features: RecordFeatures | None = None,
    *,
    label_key: str | None = None,
    transform: Callable[[Any], Any] | None = None,
    shuffle: Shuffle = True,
    seed: int | None = 0,
    num_epochs: int | None = 1,
    drop_last: bool = False,
    lengths: str | npt.ArrayLike | None = None,
    max_tokens: int | None = None,
    batch_by: Literal["length"] | None = None,
    boundaries: Sequence[int] | None = None,
    multiple_of: int = 1,
    too_long: TooLong = "error",
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
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    on_error: OnError = "raise",
    max_errors: int | None = None,
    **dataloader_kwargs: Any,
) -> RecordLoader:
    """Make the DataLoader that most training runs need, like TensorFlow's
    ``make_batched_features_dataset``.

    It reads a `TFRecordDataset`, or your own map-style dataset, by position. The order is a pure
    function of (seed, epoch), the same for any number of workers. Each iteration over the loader is
    the next epoch, in a new order (or the epoch you chose with `loader.set_epoch`). Several epochs
    in one iteration follow each other without a pause.

    A resumed run gets exactly the samples that it had not received yet, even with another number of
    workers, world size or batch size. Save one rank's `loader.state_dict()` whenever you save the
    model, and pass it to `loader.load_state_dict` on every rank. Continue with `for epoch in
    range(loader.epoch, num_epochs)`.

    It differs from TensorFlow's function where PyTorch has other conventions:

    - it gives one epoch by default, not endlessly many;
    - each epoch ends with its own batch, which may be short; TensorFlow's batches span epochs;
    - only `drop_last` drops short batches; TensorFlow also drops them when `num_epochs` is None;
    - the shuffle is exact, without a buffer, and the seed decides the order of every epoch, not
      only the first;
    - var-length features are jagged, not sparse; if no file matches, you get FileNotFoundError;
    - records are split over ranks, and each rank gets the same number of batches: the first records
      of the order are repeated to even out the numbers, as by ``DistributedSampler``, or with
      `drop_last` the last ones are dropped.

    Args:
        paths: As for `TFRecordDataset`. Or a dataset: a `TFRecordDataset`, a slice of one,
            `tfds.RLDSDataset`, a `Mixture`, or torch's `Subset` (so `random_split`) or
            `ConcatDataset` of these, nested in any way; these are as fast as paths. Any other
            dataset with a length and `ds[i]` is read as DataLoader reads it, without threads.
        batch_size: Samples in a batch, per rank; with `max_tokens` the most, or None; with
            `PackedCollate` and `lengths` rows.
        features: What to read from each record, by name; None gives the record's bytes. Not with a
            dataset.
        label_key: Name of the label feature: samples are then (features, label), and the features
            lack the label.
        transform: Called with each sample, a dict that still holds the label, before batching;
            after the dataset's own transform.
        shuffle: True for a new random order each epoch; "blocks" for one that reads nearly in
            sequence (see `RecordSampler`); False to read the sorted files one after another. For
            compressed files True means "blocks", with a warning, unless they are small enough to be
            kept decompressed.
        seed: Decides the order, random draws of features (``Image(crop=)``), and, unless you give a
            `generator`, the workers' random states for transforms. None draws one from torch's
            generator, for one rank only: resume such a run with ``seed=state["seed"]``.
        num_epochs: Epochs in one iteration over the loader: iteration k begins with epoch k *
            num_epochs. 0 gives no batch. None or -1: the iteration never ends, iteration k begins
            with epoch k, and ``len(loader)`` raises TypeError.
        drop_last: Drop an epoch's last batch if it is not full.
        lengths, max_tokens, boundaries, multiple_of, too_long: Any of the first two makes batches of
            records of like length, see `LengthBatchSampler`; so does ``batch_by="length"``, by the
            records' bytes. With ``collate_fn=PackedCollate(L)`` and `lengths`, records that fill
            rows of L tokens together make a batch, the same number on each rank. Then shuffle is
            True or False. See ``loader.padding_report()``.
        batch_by: "length", or None.
        num_workers: Worker processes of the DataLoader. With 0, threads of this process read ahead:
            the faster way, unless your transform is slow, since it then runs in the thread that
            iterates.
        num_threads: Threads that read, check, parse and decode ahead if `num_workers` is 0; they
            prepare one more batch than there are threads. 0 for none. None: one per processor, up
            to 8; one for small samples that are mostly bytes and str, which hold the GIL; 8 for
            remote files. Compressed files use one.
        rank, world_size: Give both or neither. None takes them from torch.distributed if it is
            initialised, else from torchrun's environment variables, else 0 of 1.
        compression_type, verify_crc, index, index_dir, max_batch_bytes: As for `TFRecordDataset`.
            Not with a dataset.
        storage_options, cache_dir, cache_bytes: As for `TFRecordDataset`. Not with a dataset.
        on_error, max_errors: As for `TFRecordDataset`. Not with a dataset. A batch of which nothing
            is left is passed over, on several ranks an error; ``loader.dataset.report`` lists what
            was left out, and one warning at the end of the epoch names the first ten.
        **dataloader_kwargs: For `DataLoader`: pin_memory, persistent_workers, prefetch_factor, ...;
            `collate_fn` defaults to `collate`.

    Returns:
        A DataLoader of batches. Its ``len`` is the number of batches in the next iteration: of all
        `num_epochs`, or after `load_state_dict` of the rest.

    Raises:
        FileNotFoundError: Nothing matches `paths`.
        TypeError: An argument that must be a number is not one, a keyword is unknown, or the
            dataset is a stream.
        ValueError: `label_key` is not one of the features, a number is out of range, you passed
            `sampler`, `batch_sampler` or `dataset`, or you passed a dataset together with one of
            the dataset's own arguments.

    Example:
        >>> features = {"x": FixedLenFeature((40,), torch.float32), "y": FixedLenFeature((), torch.int64)}
        ... # doctest: +SKIP
        >>> for x, y in make_dataloader("train-*", 64, features, label_key="y", num_workers=4):  # doctest: +SKIP
        ...     ...
    """
    borders = None if boundaries is None else [*map(int, boundaries)]
    options = LengthOptions(batch_size, max_tokens, borders, multiple_of, too_long)
    by_length = lengths is not None or max_tokens is not None or batch_by is not None
    one_of("batch_by", batch_by, "length", None)
    if not by_length and options[2:] != LengthOptions()[2:]:
        raise ValueError("boundaries, multiple_of and too_long need lengths or max_tokens")
    size: Any = 1 if batch_size is None and max_tokens is not None else batch_size
    _check_arguments(size, shuffle, num_epochs, dataloader_kwargs)
    if num_threads is not None:
        at_least(0, "num_threads", num_threads)
    check_callable("transform", transform)
    check_rank(rank, world_size)
    drop_last, here = true_or_false("drop_last", drop_last), resolve_rank(rank, world_size)
    if seed is None and here.world_size > 1:
        raise ValueError(
            f"seed must be an integer, the same on all {here.world_size} ranks, got None: each would draw another one"
        )
    seed = draw_salt() if seed is None else integer("seed", seed)
    # What belongs to the dataset, to pass on or to refuse.
    dataset: Any = paths
    of_dataset: dict[str, Any] = {
        "compression_type": compression_type,
        "verify_crc": verify_crc,
        "index": index,
        "index_dir": index_dir,
        "max_batch_bytes": max_batch_bytes,
        "storage_options": storage_options,
        "cache_dir": cache_dir,
        "cache_bytes": cache_bytes,
        "on_error": on_error,
        "max_errors": max_errors,
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
    # else each would fetch every block for a part of it
    is_alone = here.world_size == 1 and not num_workers
    for store in stores(dataset):
        store.read_by_blocks(BLOCK_BYTES if shuffle == "blocks" and is_alone else None)
    epochs = None if num_epochs == -1 else num_epochs
    collate_fn = dataloader_kwargs.setdefault("collate_fn", collate)
    order = None
    if by_length:
        order = _length_order(dataset, lengths, options, collate_fn, shuffle, seed, drop_last)
        batches = RecordBatchSampler.of_order(dataset, order, epochs, rank, world_size, drop_last)
    else:
        batches = RecordBatchSampler(
            dataset,
            size,
            shuffle=_shuffle_of(dataset, shuffle),
            seed=seed,
            num_epochs=epochs,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
        )
    run = {
        "dataset": describe(dataset) if isinstance(lengths, (str, type(None))) else None,
        "world_size": here.world_size,
        "lengths": lengths if isinstance(lengths, str) else None,
        "batch_by": "length" if by_length else None,
        "max_length": order.max_length if isinstance(order, PackOrder) else None,
        **options._asdict(),
    }
    if dataloader_kwargs.get("generator") is None:
        # Without one, DataLoader draws the workers' seeds from the global random state.
        generator = torch.Generator().manual_seed(RandomStream(seed, here.rank).below(1 << 63))
        dataloader_kwargs["generator"] = generator
    if transform is not None or not loads_ahead(dataset):
        dataset = NestedDataset(dataset, transform)
    return RecordLoader(
        dataset,
        batch_sampler=batches,
        num_workers=num_workers,
        num_threads=num_threads if loads_ahead(dataset) else 0,
        run=run,
        **dataloader_kwargs,
    )


def _length_order(
    dataset: Any,
    lengths: str | npt.ArrayLike | None,
    options: LengthOptions,
    collate_fn: object,
    shuffle: Shuffle,
    seed: int,
    drop_last: bool,
) -> Buckets | PackOrder:
    """Steps of records of like length, or of those that fill rows together."""
    if not isinstance(shuffle, bool):
        raise ValueError(f"shuffle must be True or False for batches by length, got {shuffle!r}")
    for store in stores(dataset) if shuffle else []:
        store.warn()  # of a compressed file, which is read at random
    found = checked_lengths(dataset, lengths)
    if not isinstance(collate_fn, PackedCollate):
        return Buckets(found, options, shuffle, seed, drop_last)
    if lengths is None or options[1:4] != LengthOptions()[1:4]:
        raise ValueError(
            "with PackedCollate expected batch_size and lengths, without max_tokens, boundaries and multiple_of: its "
            "max_length says how many tokens a row has"
        )
    size, too_long = at_least(1, "batch_size", options.batch_size), options.too_long
    return PackOrder(found, collate_fn.max_length, too_long, size, shuffle, seed, drop_last)


def _check_arguments(
    batch_size: int, shuffle: object, num_epochs: int | None, dataloader_kwargs: Iterable[str]
) -> None:
    if is_record_features(batch_size):
        raise TypeError(
            "batch_size must be an integer, got features: the order is make_dataloader(paths, batch_size, features)"
        )
    if integer("batch_size", batch_size) < 1:
        raise ValueError(f"batch_size: Batch size must be greater than zero, got {batch_size}")
    if not isinstance(shuffle, bool) and shuffle != "blocks":
        raise TypeError(f'shuffle must be True, False or "blocks", got {shuffle!r}')
    if num_epochs is not None and integer("num_epochs", num_epochs) < -1:
        raise ValueError(
            f"num_epochs must be at least 0, or None or -1 for endlessly many, got {num_epochs}"
        )
    for name in _OURS:
        if name in dataloader_kwargs:
            raise ValueError(
                f"{name} cannot be given: make_dataloader makes it; use DataLoader(TFRecordDataset(...))"
            )
    # Before any file is opened; DataLoader would tell only afterwards.
    known = inspect.signature(DataLoader.__init__).parameters
    for name in dataloader_kwargs:
        if name not in known:
            raise TypeError(
                f"{name} is not a keyword of make_dataloader, TFRecordDataset or DataLoader"
            )


def _is_paths(paths: object) -> bool:
    is_usual = isinstance(paths, (str, bytes, os.PathLike, list, tuple, set, frozenset, np.ndarray))
    is_dataset = isinstance(paths, (Dataset, DataLoader)) or hasattr(paths, "__getitem__")
    return is_usual or not is_dataset


def _check_dataset(dataset: object, **of_dataset: object) -> None:
    """An error for a stream, and for arguments that belong to the dataset."""
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise TypeError(
            f"expected paths or a dataset, got a {kind}: pass its dataset, loader.dataset"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"expected paths, or a dataset with a length and ds[i], got {kind}: pass streams to DataLoader"
        )
    for name, value in of_dataset.items():
        if value != inspect.signature(make_dataloader).parameters[name].default:
            raise ValueError(
                f"{name} cannot be given with a dataset: pass it to the dataset itself, got a {kind}"
            )


def _shuffle_of(dataset: object, shuffle: Shuffle) -> Shuffle:
    """The shuffle to use: compressed files are not read at random, unless a process keeps them
    whole.
    """
    compressed = [store for store in stores(dataset) if store.slow_file]
    if not compressed:
        return shuffle
    # a Mixture, for which there is no better order
    if shuffle is True and not has_places(dataset):
        for store in compressed:
            store.warn()
        return True
    for store in compressed:
        store.has_warned = True  # the warning below says it, or the user chose this order
    if shuffle is True:
        warnings.warn(
            f"{printable(compressed[0].slow_file or '')}: compressed files are shuffled in blocks of 4 MiB, "
            "mixed within windows of 64 MiB, so that each byte is decompressed about once per epoch. For an exact "
            'shuffle, write the data uncompressed; to silence this warning, pass shuffle="blocks".',
            stacklevel=outer_level(),
        )
    return "blocks" if shuffle else False


def _check_label(label_key: str | None, features: RecordFeatures | None) -> None:
    if label_key is not None and (not isinstance(features, Mapping) or label_key not in features):
        keys = list(features) if isinstance(features, Mapping) else None
        raise ValueError(
            f"The `label_key` provided ({label_key}) must be one of the `features` keys: {keys}"
        )


def _with_label(transform: Transform | None, label_key: str | None) -> Transform | None:
    if label_key is None:
        return transform
    split = _SplitLabel(label_key)
    return split if transform is None else ChainedTransforms(transform, split)


class _SplitLabel(ColumnTransform):
    """(features, label) of a sample, or of the columns of a batch."""

    def __init__(self, label_key: str) -> None:
        self._label_key = label_key

    def __call__(self, sample: Value) -> tuple[dict[str, Value], Value]:
        """Take the label out of a sample."""
        if not isinstance(sample, Mapping) or self._label_key not in sample:
            raise ValueError(
                f"the dataset or the transform must return a mapping with the key label_key={self._label_key!r}"
            )
        rest = {key: value for key, value in sample.items() if key != self._label_key}
        return rest, sample[self._label_key]

    def columns(self, columns: Columns) -> tuple[dict[str, Columns], Columns]:
        """Take the label's column out."""
        return self(columns)
