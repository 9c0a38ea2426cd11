"""The DataLoader that `make_dataloader` returns: it knows which batches the training has received,
so that it resumes, and can be steered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import wait
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch_tfrecord.error_log import ErrorLog
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.files import is_remote, local_path
from torch_tfrecord.loading import ReadAheadLoader
from torch_tfrecord.mixing import Mixture
from torch_tfrecord.order import Leaves, Rank, RecordBatchSampler
from torch_tfrecord.phases import Counters
from torch_tfrecord.samples import LEFT_OUT, Batch, Samples
from torch_tfrecord.shown import shown_value, without_secrets
from torch_tfrecord.tables import TFRecordDataset
from torch_tfrecord.torch_internals import show_order, workers_of

__all__ = ["RecordLoader", "describe", "open_described"]

# For the exit code of a worker whose connection has closed.
_WAIT_SECONDS = 5.0


@runtime_checkable
class _LengthOrder(Protocol):
    """The steps of batches by length, or of packs."""

    num_dropped: int

    def padded_tokens(self, epoch: int, world_size: int, /) -> tuple[int, int]:
        """Tokens of an epoch's records, and with padding."""


class RecordLoader(ReadAheadLoader):
    """The DataLoader that `make_dataloader` returns; its state counts the batches that you have
    received.

    Batches that threads or workers have prefetched are not counted. You can load the state with
    another number of workers and threads, another world size and batch size.
    """

    _reads_others = True

    def __init__(
        self,
        dataset: Any,
        *,
        batch_sampler: RecordBatchSampler,
        num_threads: int | None,
        run: Mapping[str, object] | None = None,
        **dataloader_kwargs: Any,
    ) -> None:
        """Begin with an order, and with JSON values from which ``tfrecord replay`` makes such a loader again."""
        self._run = run
        # For predictions Lightning wraps our batch sampler in its own, which copies our attributes.
        self._order: RecordBatchSampler = batch_sampler.sampler.batches
        self._errors: list[ErrorLog] = [
            log for leaf in Leaves(dataset) for log in getattr(leaf, "_error_logs", ())
        ]
        for log in self._errors:
            log.is_attended = True
        super().__init__(
            dataset, batch_sampler=batch_sampler, num_threads=num_threads, **dataloader_kwargs
        )
        show_order(self, self._order.sampler, drop_last=self._order.drop_last)

    def _received(self, begin: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
        running = self._order._running
        # Nothing was taken from the last iterator: trainers make one that they drop.
        if running is not None and running.is_waiting:
            running.put_back()
        return _ReceivedBatches(self, begin)

    def _begin_with(self, begin: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
        """DataLoader's iterator for the next iteration."""
        if self.persistent_workers and len(self._counters.table) > 1:
            self._counters.begin()
        else:
            self._counters = Counters(self.num_workers)
        iterator, batches = begin(), self._order._last_iteration
        batches.begin()  # even if workers have not begun: from here on `len` is that of the next iteration
        batches.num_received = 0
        return iterator

    @property
    def epoch(self) -> int:
        """The epoch in which the next iteration begins, or resumes after `load_state_dict`."""
        return self._order.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, in which the next iteration begins; by default the one after
        the last.

        If it is the epoch of a loaded state, nothing changes: the next iteration yields the rest of
        that epoch. An iterator from which no batch was taken counts as the next iteration, too.
        (``loader.sampler.set_epoch``, which trainers call, counts iterations instead: the same if
        `num_epochs` is 1.)
        """
        self._order.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that you have received: a few JSON numbers and
        strings.

        It is the same on every rank after the same number of batches: save one rank's state, load it
        on all ranks. Its entry "run" says which records the loader reads, for ``tfrecord replay``.

        Raises:
            ValueError: Batches come out of order (`in_order=False`), so a number cannot say which
                were received; or you received them from the loader that ``accelerator.prepare``
                made of this one: pass their number to ``loader.batch_sampler.state_dict``.
        """
        if self.num_workers and not getattr(self, "in_order", True):
            raise ValueError("state_dict needs batches in order, got a loader with in_order=False")
        changes = [] if self._mixture is None else self._mixture._weight_changes()
        run = {"run": {**self._run, "weights": changes}} if self._run else {}
        return {**self._order.state_dict(self._num_received), **run}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration yields the rest of the interrupted one.

        Raises:
            ValueError: The state has another version or order; the message gives both values.
        """
        place = self._order.checked_place(state_dict)
        run = state_dict.get("run")  # none in a state of the batch sampler, which knows no weights
        if run is not None:
            if not isinstance(run, Mapping) or "weights" not in run:
                raise ValueError(f"run must have weights in the state, got {shown_value(run)}")
            if self._mixture is not None:
                self._mixture._set_weight_changes(run["weights"])
            elif run["weights"] != []:
                raise ValueError(
                    "run has weights of a Mixture in the state, which this loader does not read: "
                    f"{shown_value(run['weights'])}"
                )
        self._order.begin_at(place)

    def stats(self) -> dict[str, float | int]:
        """Return what took how long since the last iteration began, until now or its end.

        - "batches": that you have received; "samples": in these. Until the end the latter is an
          estimate if batches have unequal sizes.
        - "seconds": from the beginning of the iteration until you received the last of them, also
          those that your training took.
        - "wait": seconds for each batch in which your thread waited in ``next``, or worked there:
          without workers your transform and a custom `collate_fn` run there.
        - "read" (with decompression and checksums), "parse", "decode" (of pictures, sounds and
          videos), "transform", "collate", "transport" (to make a batch ready to be sent from a
          worker and to take it out; not what torch and the system do): seconds for each batch, none
          of them counted twice, summed over the threads or workers. So these may work longer than
          you wait, and batches that were made ahead of you count, too.
        - "bytes": size of the records of a batch, decompressed.
        - "queue": how many batches were ready when you asked for one, on average; missing with
          workers.
        - "on_device": pictures of a batch that the device decodes; missing where there are none.

        All but "batches" and "samples" are float. Training waits for the loader if ``wait *
        batches`` is much of ``seconds``; ``tfrecord bench`` says why. While torch's profiler runs,
        it shows the same parts as ``torch_tfrecord::read`` and so on; those of other threads only
        with its `profile_all_threads`. For `tfds.RLDSDataset` only the parts after decoding are
        counted.

        Example:
            >>> for batch in loader:  # doctest: +SKIP
            ...     train(batch)
            >>> loader.stats()["wait"]  # doctest: +SKIP
            0.00021
        """
        return self._counters.stats()

    @property
    def _num_received(self) -> int | None:
        running = self._order._running
        return None if running is None or running.is_over else running.num_received

    # Steering a run. What changes, changes for the next iteration, which begins after the batches
    # that you have received.

    @property
    def _mixture(self) -> Any:
        """The `Mixture` that it reads; None if it reads another dataset."""
        dataset = self._dataset
        return dataset if isinstance(dataset, Mixture) else None

    def records_of(self, step: int, epoch: int | None = None) -> list[tuple[str, int, int]]:
        """Return which records are in a step, on all ranks, without reading them.

        Args:
            step: From 0 in its epoch; steps before a resumption count, too.
            epoch: None for the running epoch. Others are as if this job had them from their
                beginning.

        Returns:
            For each sample, rank by rank, its file, its record's byte offset (see
            `TFRecordDataset.locate`), and its position in the dataset.

        Raises:
            IndexError: The epoch has fewer steps.
            TypeError: The dataset does not know where its records are.

        Example:
            >>> loader.records_of(41_203)  # doctest: +SKIP
            [('train-00007-of-00016.tfrecord', 1834211, 90177), ...]
        """
        positions = self._order.records_of(step, epoch)
        found: list[Any] = [None] * len(positions)
        for leaf, inside, places, *_ in Leaves(self._dataset).parts(positions):
            if not hasattr(leaf, "locate"):
                raise TypeError(
                    f"expected a dataset that knows where its records are, got {type(leaf).__name__}"
                )
            for place, position in zip(places, inside, strict=True):
                found[place] = (*leaf.locate(position), positions[place])
        return found

    def skip_to(self, step: int) -> None:
        """Begin the next iteration at a step of the running epoch, from 0.

        Call it on every rank; no record is read. It goes back, too: then steps count for the ranks
        and batch size of now.

        Raises:
            IndexError: The epoch has fewer steps.
        """
        self._order.skip_to(step)

    def padding_report(self) -> dict[str, float]:
        """Return how full the batches of the running epoch are, from the lengths alone.

        Returns:
            "tokens": those of all records; "padded_tokens": with padding, each batch padded to its
            longest record, or rows of `PackedCollate` to their length; "fill": their ratio, from 0
            to 1; "dropped": records that are too long.

        Raises:
            TypeError: The loader does not know lengths: it was made without `lengths` and
                `max_tokens`.
        """
        order, epoch = self._order._order, self._order.epoch
        if not isinstance(order, _LengthOrder):
            raise TypeError("expected a loader made with lengths= or max_tokens=, got one without")
        world_size = Rank.here(*self._order.given_ranks).world_size
        tokens, padded = order.padded_tokens(epoch, world_size)
        fill = tokens / max(padded, 1)
        counts = {"tokens": tokens, "padded_tokens": padded, "dropped": order.num_dropped}
        return {**counts, "fill": fill}


class _ReceivedBatches(Iterator[Batch]):
    """DataLoader's iterator with a count of the batches; everything else is passed on to it.

    Trainers choose the epoch only after they have made the iterator: until its first batch it may
    begin again.
    """

    def __init__(self, loader: RecordLoader, begin: Callable[[], Iterator[Batch]]) -> None:
        self._loader, self._begin_torchs = loader, begin
        self._begin()

    def _begin(self) -> None:
        self._iterator: Any = None  # so that its workers end before those of a new one start
        self._iterator = self._loader._begin_with(self._begin_torchs)
        self._batches, self._counters = self._loader._order._last_iteration, self._loader._counters

    def __next__(self) -> Batch:
        if self._batches.is_replaced:
            self._begin()
        while (batch := self._receive()) is LEFT_OUT:
            if Rank.here(*self._loader._order.given_ranks).world_size > 1:
                raise TFRecordError(
                    "all records of a batch were left out, and all ranks need the same number of batches: expected a "
                    "larger batch_size, or fewer records that fail"
                )
        return batch

    def _receive(self) -> Batch:
        try:
            batch = self._counters.receive(self._iterator)
        except StopIteration:
            # From here on the state is that of the next epoch.
            self._batches.is_over = True
            for log in self._loader._errors:
                log.tell()
            raise
        except (ConnectionError, EOFError) as error:
            # torch shows a killed worker only by a closed connection.
            lost = _find_ended_workers(workers_of(self._iterator))
            if not lost:
                raise
            raise RuntimeError(f"a batch was lost: {', '.join(lost)}") from error
        self._batches.num_received = (self._batches.num_received or 0) + 1
        return batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # not set yet
            raise AttributeError(name)
        return getattr(self._iterator, name)


def _find_ended_workers(workers: Samples) -> list[str]:
    """The workers that have ended, and why: torch does not check for one that is killed while it
    sends a batch.
    """
    ended = wait([worker.sentinel for worker in workers], _WAIT_SECONDS) if workers else []
    for worker in workers:
        if worker.sentinel in ended:
            worker.join(_WAIT_SECONDS)  # it has ended, but its exit code may not be available yet
    return [
        f"DataLoader worker (pid {worker.pid}) "
        + (
            f"was killed by signal {-worker.exitcode}"
            if worker.exitcode < 0
            else f"ended with {worker.exitcode}"
        )
        for worker in workers
        if worker.exitcode
    ]


# The data that a loader reads, as JSON values in its state, to read it again where the program is not at hand.

Description: TypeAlias = Mapping[str, Any]

_MOST_PATHS = 1000  # for a list; a glob may match any number


def describe(dataset: object) -> Description | None:
    """The argument of `open_described`; None if a dataset cannot be described in a few JSON values.

    That is a `TFRecordDataset` of paths, a slice of one, or a `Mixture` of these by weights.
    """
    if isinstance(dataset, Mixture):
        parts = [describe(part) for part in dataset.datasets]
        arguments = dataset._arguments()
        return None if None in parts or arguments is None else {"datasets": parts, **arguments}
    if type(dataset) is not TFRecordDataset or not isinstance(dataset._positions, range):
        return None
    paths, index_dir = _texts(dataset._paths), _texts(dataset._index_dir or ())
    if paths is None or index_dir is None:
        return None
    part = dataset._positions
    return {"paths": paths, "index_dir": index_dir, "part": [part.start, part.stop, part.step]}


def _texts(paths: object) -> list[str] | None:
    """Paths as text that is the same in any folder."""
    each = paths if isinstance(paths, (list, tuple)) else [paths]
    texts = [local_path(path) for path in each if isinstance(path, (str, os.PathLike))]
    if len(texts) < len(each) or len(texts) > _MOST_PATHS:
        return None
    return [without_secrets(text) if is_remote(text) else os.path.abspath(text) for text in texts]


def open_described(description: Description) -> TFRecordDataset | Mixture:
    """The dataset of a description: its records' bytes.

    Raises:
        FileNotFoundError: The files are no longer there.
    """
    if "datasets" in description:
        arguments = {key: value for key, value in description.items() if key != "datasets"}
        return Mixture([*map(open_described, description["datasets"])], **arguments)
    index_dir = next(iter(description["index_dir"]), None)
    dataset = TFRecordDataset(description["paths"], index_dir=index_dir)
    dataset._positions = range(*description["part"])
    return dataset
