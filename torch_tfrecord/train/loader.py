"""One call from files, or a dataset, to a DataLoader."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from torch_tfrecord.arguments import (
    Paths,
    Shuffle,
    at_least,
    check_callable,
    integer,
    nearest,
    true_or_false,
)
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.errors import warn
from torch_tfrecord.lengths import LengthBatchSampler, PackedCollate
from torch_tfrecord.loading import (
    DatasetOptions,
    collate,
)
from torch_tfrecord.order import (
    Leaves,
    Rank,
    RecordBatchSampler,
    RecordOrder,
)
from torch_tfrecord.random_stream import RandomStream, draw_salt
from torch_tfrecord.samples import Batch, Samples
from torch_tfrecord.shown import printable
from torch_tfrecord.tables import TFRecordDataset
from torch_tfrecord.train.record_loader import RecordLoader, describe, open_described

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["LoaderOptions", "make_dataloader", "replay"]

_OURS = ("dataset", "sampler")


class SizedDataset(Protocol):
    """A map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: Any, /) -> Any:
        """The sample at a position."""


class LoaderOptions(DatasetOptions, total=False):
    """The further keywords of `make_dataloader`: those of `TFRecordDataset` and DataLoader."""

    collate_fn: Callable[[Samples], Batch]
    pin_memory: bool
    pin_memory_device: str
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool


def make_dataloader(
    paths: Paths | SizedDataset,
    batch_size: int | None = None,
    features: RecordFeatures | Literal["auto"] | None = None,
    *,
    label_key: str | None = None,
    transform: Callable[[Any], Any] | None = None,
    shuffle: Shuffle = True,
    seed: int | None = 0,
    num_epochs: int | None = 1,
    drop_last: bool = False,
    lengths: str | npt.ArrayLike | None = None,
    max_tokens: int | None = None,
    batch_sampler: LengthBatchSampler | None = None,
    num_workers: int = 0,
    num_threads: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    device: torch.device | str | int | None = None,
    **options: Unpack[LoaderOptions],
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
        transform: Called with each sample, a dict that still has the label, before batching;
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
        batch_sampler: A `LengthBatchSampler` of this dataset, for the finer options of batches by
            length. Order, seed and ranks are then its own; choose epochs and resume by the loader.
        lengths, max_tokens: Any of them makes batches of records of like length, by a
            `LengthBatchSampler` with the `multiple_of` of a `PaddedCollate`. With
            ``collate_fn=PackedCollate(L)`` and `lengths`, records that fill rows of L tokens
            together make a batch, the same number on each rank. Then shuffle is True or False. See
            ``loader.padding_report()``.
        num_workers: Worker processes of the DataLoader. With 0, threads of this process read ahead:
            the faster way, unless your transform is slow, since it then runs in the thread that
            iterates.
        num_threads: Threads that read, check, parse and decode ahead if `num_workers` is 0; they
            prepare one more batch than there are threads, of fast batches several, beside a
            training loop that computes in Python as many as take 20 ms. 0 for none. None: one per
            processor that this process may use, divided by the ranks on this machine (torchrun's
            LOCAL_WORLD_SIZE, or those of the process group, unless the launcher has bound each rank
            to processors of its own); one for small samples that are mostly bytes and str, which
            keep the GIL; at least 8 for remote files. Compressed files use one.
        rank, world_size: Give both or neither. None takes them from torch.distributed if it is
            initialised, else from torchrun's environment variables, else 0 of 1.
        device: Where batches go, such as "cuda": they are made in pinned memory, copied there in
            one piece while you train on those before, and ``batch.to(device)`` does nothing. See
            `DevicePrefetcher`.
        **options: Not with a dataset: ``compression_type``, ``verify_crc``, ``index``,
            ``index_dir``, ``max_batch_bytes``, ``storage_options``, ``cache_dir``, ``cache_bytes``,
            ``on_error`` and ``max_errors``, as for `TFRecordDataset`. If records are left out, a
            batch of which nothing is left is passed over, on several ranks an error;
            ``loader.dataset.report`` lists them, and one warning at the end of the epoch names the
            first ten. For `DataLoader`: ``pin_memory``, ``persistent_workers``,
            ``prefetch_factor``, ...; ``collate_fn`` defaults to `collate`.

    Returns:
        A DataLoader of batches. Its ``len`` is the number of batches in the next iteration, over all
        `num_epochs`, or after `load_state_dict` of the rest.

    Raises:
        FileNotFoundError: Nothing matches `paths`.
        TypeError: An argument that must be a number is not one, a keyword is unknown, or the
            dataset is a stream.
        ValueError: `label_key` is not one of the features, a number is out of range, you passed
            `sampler` or `dataset`, or you passed a dataset or a `batch_sampler` together with one
            of its own arguments.

    Example:
        >>> features = {"x": FixedLenFeature((40,), torch.float32), "y": FixedLenFeature((), torch.int64)}
        ... # doctest: +SKIP
        >>> for x, y in make_dataloader("train-*", 64, features, label_key="y", num_workers=4):  # doctest: +SKIP
        ...     ...
    """
    given: dict[str, Any] = {**options}
    _check_keywords(given)
    of_dataset = {name: given.pop(name) for name in DatasetOptions.__annotations__ if name in given}
    collate_fn = given.setdefault("collate_fn", collate)
    by_length = lengths is not None or max_tokens is not None
    if batch_sampler is not None:
        own: dict[str, object] = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "seed": seed,
            "drop_last": drop_last,
            "lengths": lengths,
            "max_tokens": max_tokens,
            "rank": rank,
            "world_size": world_size,
        }
        _check_sampler(batch_sampler, own)
        rank, world_size = batch_sampler.given_ranks
    size: Any = 1 if batch_sampler or (batch_size is None and max_tokens) else batch_size
    _check_arguments(size, shuffle, num_epochs)
    if by_length and not isinstance(shuffle, bool):
        raise ValueError(f"shuffle must be True or False for batches by length, got {shuffle!r}")
    if num_threads is not None:
        at_least(0, "num_threads", num_threads)
    check_callable("transform", transform)
    Rank.check(rank, world_size)
    drop_last, here = true_or_false("drop_last", drop_last), Rank.here(rank, world_size)
    if seed is None and here.world_size > 1:
        raise ValueError(
            f"seed must be an integer, the same on all {here.world_size} ranks, got None: each would draw another one"
        )
    seed = draw_salt() if seed is None else integer("seed", seed)
    dataset: Any = paths
    if _is_paths(paths):
        dataset = TFRecordDataset(
            cast("Paths", paths), features, transform=transform, label_key=label_key, **of_dataset
        )
        transform = label_key = None
    else:
        _check_dataset(dataset, *(["features"] if features is not None else []), *of_dataset)
    # else each would fetch every block for a part of it
    is_alone = here.world_size == 1 and not num_workers
    Leaves(dataset).read_by_blocks(shuffle == "blocks" and is_alone)
    epochs = None if num_epochs == -1 else num_epochs
    ranks: dict[str, Any] = {"rank": rank, "world_size": world_size}
    if by_length and not isinstance(collate_fn, PackedCollate):
        batch_sampler = LengthBatchSampler(
            dataset,
            lengths=lengths,
            batch_size=batch_size,
            max_tokens=max_tokens,
            multiple_of=getattr(collate_fn, "multiple_of", 1),
            shuffle=bool(shuffle),
            seed=seed,
            drop_last=drop_last,
            **ranks,
        )
    if batch_sampler is not None:
        batches, lengths = batch_sampler.over_epochs(dataset, epochs), batch_sampler.lengths
    elif by_length:
        if lengths is None or max_tokens is not None:
            raise ValueError(
                "with PackedCollate expected batch_size and lengths, without max_tokens: its max_length says how many "
                "tokens a row has"
            )
        packs = collate_fn._packs(dataset, lengths, size, bool(shuffle), seed, drop_last)
        batches = RecordBatchSampler(dataset, packs, epochs, **ranks)
    else:
        order = RecordOrder(
            dataset, size, drop_last, shuffle=_shuffle_of(dataset, shuffle), seed=seed
        )
        batches = RecordBatchSampler(dataset, order, epochs, **ranks)
    identity = batches._order.identity()
    for store in Leaves(dataset).stores if "lengths" in identity and identity["shuffle"] else []:
        store.warn()  # a compressed file's, which is read at random
    is_named = lengths is None or isinstance(lengths, str)
    run = {
        "dataset": describe(dataset) if is_named else None,
        "world_size": here.world_size,
        "batch_size": batches._order.batch_size,
        "lengths": lengths if is_named else None,
    }
    if given.get("generator") is None:
        # Without one, DataLoader draws the workers' seeds from the global random state.
        stream = RandomStream(identity["seed"], here.rank)
        given["generator"] = torch.Generator().manual_seed(stream.below(1 << 63))
    return RecordLoader(
        dataset,
        batch_sampler=batches,
        num_workers=num_workers,
        num_threads=num_threads,
        transform=transform,
        label_key=label_key,
        run=run,
        device=device,
        **given,
    )


def replay(
    state: Mapping[str, Any], step: int, epoch: int | None, num_records: int | None
) -> list[tuple[str, int, int, bytes]]:
    """The records of a step of a training run, from the state of its loader.

    Args:
        state: A `RecordLoader.state_dict` that says which records the loader reads.
        step, epoch: See `RecordLoader.records_of`.
        num_records: How many of them, the first ones; None for all.

    Returns:
        What `RecordLoader.records_of` does, with the payload of each.

    Raises:
        FileNotFoundError: The files are no longer there.
        IndexError: The epoch has fewer steps.
    """
    run = state["run"]
    dataset: Any = open_described(run["dataset"])
    options: dict[str, Any] = {name: state[name] for name in ("shuffle", "seed", "drop_last")}
    options |= {"rank": 0, "world_size": run["world_size"]}
    if "max_tokens" in state:
        names = ("batch_size", "max_tokens", "boundaries", "multiple_of", "too_long")
        options |= {name: state[name] for name in names}
        batches = LengthBatchSampler(dataset, lengths=run["lengths"], **options)
        loader = make_dataloader(dataset, batch_sampler=batches)
    else:
        if "max_length" in state:
            packs = PackedCollate(state["max_length"], too_long=state["too_long"])
            options |= {"lengths": run["lengths"], "collate_fn": packs}
        loader = make_dataloader(dataset, run["batch_size"], **options)
    loader.load_state_dict(state)
    places = loader.records_of(step, epoch)[:num_records]
    payloads = Leaves(dataset).read(loader._order.records_of(step, epoch)[:num_records])
    return [(*place, payload) for place, payload in zip(places, payloads, strict=True)]


def _check_sampler(sampler: object, given: Mapping[str, object]) -> None:
    """An error for a sampler of others, and for arguments that belong to it."""
    if not isinstance(sampler, LengthBatchSampler):
        raise TypeError(
            f"batch_sampler must be a LengthBatchSampler, got {type(sampler).__name__}: give others to "
            "DataLoader(TFRecordDataset(...), batch_sampler=...)"
        )
    known = inspect.signature(make_dataloader).parameters
    for name, value in given.items():
        if value is not known[name].default:
            raise ValueError(
                f"{name} cannot be given with a batch_sampler: pass it to the sampler itself"
            )


def _check_keywords(given: Mapping[str, object]) -> None:
    """An error for a keyword of nothing, before any file is opened."""
    own = inspect.signature(make_dataloader).parameters
    known = {*DatasetOptions.__annotations__, *inspect.signature(DataLoader.__init__).parameters}
    for name in given:
        if name in _OURS:
            raise ValueError(
                f"{name} cannot be given: make_dataloader makes it; use DataLoader(TFRecordDataset(...))"
            )
        if name not in known:
            raise TypeError(
                f"{name} is not a keyword of make_dataloader, TFRecordDataset or DataLoader"
                f"{nearest(name, sorted(known.union(own)))}"
            )


def _check_arguments(batch_size: int, shuffle: object, num_epochs: int | None) -> None:
    if isinstance(batch_size, RecordFeatures):
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


def _is_paths(paths: object) -> bool:
    is_usual = isinstance(paths, (str, bytes, os.PathLike, list, tuple, set, frozenset, np.ndarray))
    is_dataset = isinstance(paths, (Dataset, DataLoader)) or hasattr(paths, "__getitem__")
    return is_usual or not is_dataset


def _check_dataset(dataset: object, *of_dataset: str) -> None:
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
    for name in of_dataset:
        raise ValueError(
            f"{name} cannot be given with a dataset: pass it to the dataset itself, got a {kind}"
        )


def _shuffle_of(dataset: object, shuffle: Shuffle) -> Shuffle:
    """The shuffle to use: compressed files are not read at random, unless a process keeps them
    whole.
    """
    compressed = [store for store in Leaves(dataset).stores if store.slow_file]
    if not compressed:
        return shuffle
    # a Mixture, for which there is no better order
    if shuffle is True and not Leaves(dataset).have_places:
        for store in compressed:
            store.warn()
        return True
    for store in compressed:
        store.has_warned = True  # the warning below says it, or the user chose this order
    if shuffle is True:
        warn(
            f"{printable(compressed[0].slow_file or '')}: compressed files are shuffled in blocks of 4 MiB, "
            "mixed within windows of 64 MiB, so that each byte is decompressed about once per epoch. For an exact "
            'shuffle, write the data uncompressed; to silence this warning, pass shuffle="blocks".'
        )
    return "blocks" if shuffle else False
