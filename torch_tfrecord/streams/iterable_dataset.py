"""The iterable-style dataset: a stream that needs no index."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Literal, NoReturn

from torch.utils.data import IterableDataset, get_worker_info

from torch_tfrecord.arguments import (
    HintsOfDataset,
    OnError,
    PathLike,
    Paths,
    StorageOptions,
    at_least,
    check_callable,
    check_compression_type,
    integer,
    knows_keywords,
    true_or_false,
)
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, check_max_batch_bytes
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.error_log import ErrorLog, ErrorReport, warn_of_no_records
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.files import Access, FileSource
from torch_tfrecord.loading import (
    RecordRows,
    SampleMaker,
    collate,
)
from torch_tfrecord.order import Prepared, Rank, StateForm, digest
from torch_tfrecord.random_stream import RandomStream, record_keys, shuffled
from torch_tfrecord.records import Block, SkippedBytes, found_files, read_blocks
from torch_tfrecord.samples import (
    LEFT_OUT,
    Batch,
    RecordPlace,
    Value,
    transform_one,
    without_left_out,
)
from torch_tfrecord.shown import shown_features, shown_files, shown_transform
from torch_tfrecord.streams.iterations import ORIGIN, EpochCount, State, StreamStates, signed
from torch_tfrecord.streams.record_stream import Piece, RecordGroup, RecordStream, deal_out
from torch_tfrecord.tables import KeyCheck

__all__ = ["TFRecordIterableDataset"]


@knows_keywords
class TFRecordIterableDataset(HintsOfDataset, IterableDataset[Any]):
    """Stream the records of TFRecord files, without an index.

    Every record appears exactly once over all ranks and workers. Each of these consumers gets whole
    files; leftover files (all of them, if there are fewer files than consumers) are split by
    record. So two ranks may get different numbers of records, and the order depends on the number
    of workers. `TFRecordDataset` with a sampler has neither limit.

    Each iteration over the whole stream is the next epoch, from 0: in a new order if you shuffle,
    with new random draws of features (a fused crop). With workers, persistent or not, one iterator
    of the DataLoader is one iteration. `set_epoch` chooses the epoch of the next one.

    Without workers, on more than one processor, threads of the compiled core read and parse what
    comes next while you use what came before; not where `cycle_length` or a shuffle buffer mixes
    records.

    You can resume an interrupted stream after the last sample that it yielded: see `state_dict` and
    `load_state_dict`; torchdata's StatefulDataLoader calls them, too. To resume, open files are
    read again from the beginning up to that sample, without being parsed.

    Args:
        paths: As for `TFRecordDataset`.
        features: As for `TFRecordDataset`, also "auto"; None gives the record's bytes.
            `SequenceFeatures` reads SequenceExamples, as `(context, sequences)`,
            `ListFeatures` lists of Examples; the spec of one bytes value alone (`Image()`,
            `Proto(...)`, `Json()`, ...) reads the record as that value.
        transform: Called with each sample, before batching.
        batch_size: Yield batches of this many samples (use `DataLoader(ds, batch_size=None)`); None
            yields samples.
        shuffle: Read the files in a new order each epoch.
        shuffle_buffer_size: Size of the shuffle buffer, in records, which mixes records within and
            across files; 0 for no buffer.
        seed: Seed of the order, which is a pure function of (seed, epoch), rank and worker.
        rank, world_size: Give both or neither. None takes them from torch.distributed if it is
            initialised, else from torchrun's environment variables, else 0 of 1.
        cycle_length: Number of files to read from in turn, as in tf.data's ``interleave``.
        block_length: Records to read from a file at its turn.
        drop_last: Drop each worker's last batch if it is not full.
        compression_type: "auto" (detected for each file), None or "" (none), "GZIP", "ZLIB",
            "SNAPPY".
        verify_crc: Check the payloads' checksums; headers are always checked.
        on_error, max_errors: As for `TFRecordDataset`; damage that hides where the next record
            begins is skipped, too, up to the next one that is whole.
        max_batch_bytes, storage_options, cache_dir, cache_bytes: As for `TFRecordDataset`.

    Example:
        >>> ds = TFRecordIterableDataset("train-*", features, batch_size=64, shuffle=True)  # doctest: +SKIP
        >>> for epoch in range(3):  # doctest: +SKIP
        ...     for batch in DataLoader(ds, batch_size=None, num_workers=4):  # in a new order
        ...         ...
    """

    def __init__(
        self,
        paths: Paths,
        features: RecordFeatures | Literal["auto"] | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_buffer_size: int = 0,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        cycle_length: int = 1,
        block_length: int = 1,
        drop_last: bool = False,
        compression_type: str | None = "auto",
        verify_crc: bool = True,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        storage_options: StorageOptions = None,
        cache_dir: PathLike | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(shuffle, bool):
            raise TypeError(f"shuffle must be True or False, got {shuffle!r}")
        Rank.check(rank, world_size)
        check_callable("transform", transform)
        self._errors = ErrorLog(on_error, max_errors)
        self._compression_type = check_compression_type(compression_type)
        check_max_batch_bytes(max_batch_bytes)
        access = Access(storage_options, cache_dir, cache_bytes)
        self._maker = SampleMaker.for_dataset(
            paths, access, features, max_batch_bytes, transform, self._errors
        )
        self._check_keys = KeyCheck(self._maker.parser)
        self._batch_size = None if batch_size is None else at_least(1, "batch_size", batch_size)
        self._seed = integer("seed", seed)
        self._rank, self._world_size = rank, world_size
        self._drop_last = true_or_false("drop_last", drop_last)
        self._verify = verify_crc
        # Listing must see new files, which the cache does not know.
        self.files, self._infos = found_files(paths, access.without_cache())
        self._access = access.for_files(self.files)
        # A state goes on only in a stream of the same order.
        self._order = {  # what decides it
            "num_files": len(self.files),
            # Without folders, since the data may have moved when a run is resumed.
            "files": digest("\0".join(map(os.path.basename, self.files))),
            "seed": self._seed,
            "shuffle": shuffle,
            "shuffle_buffer_size": at_least(0, "shuffle_buffer_size", shuffle_buffer_size),
            "cycle_length": at_least(1, "cycle_length", cycle_length),
            "block_length": at_least(1, "block_length", block_length),
        }
        self._empty: set[int] = set()  # files without a record
        self._epochs = EpochCount()
        self._loaded: StreamStates | None = None
        # The latest iteration: its stream while there is one, then its state.
        self._running: weakref.ref[RecordStream] | None = None
        self._ended: dict[str, Any] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, of the next iteration; later ones count on from it, in
        persistent workers, too.

        If it is the epoch of a loaded state, nothing changes: the next iteration yields the rest of
        that epoch.
        """
        self._check_prepared()  # Accelerate calls this before it starts workers
        loaded = self._coming_states()
        if loaded is not None and loaded.epoch != at_least(0, "epoch", epoch):
            Prepared.check_epoch(loaded.epoch, epoch)
            self._loaded = None
        self._epochs.choose(at_least(0, "epoch", epoch))

    def __iter__(self) -> Iterator[Batch]:
        self._running = self._ended = None
        # It begins with its first sample, since loaders make iterators that they never use. But a
        # worker cannot know whether a sample will be taken from it, and must stay in step with the
        # other workers; and StatefulDataLoader asks for none after a state at the end of an epoch.
        begins_now = get_worker_info() is not None
        # Not with the first sample: Accelerate takes that on one rank, and the others would wait.
        consumer = self._consumer()
        loaded = self._coming_states()
        if loaded is not None and (own := loaded.of(*consumer)) is not None:
            begins_now |= not self._stream(own).left(own)
        return self._iterate(self._begin() if begins_now else None)

    def _iterate(self, stream: RecordStream | None) -> Iterator[Batch]:
        stream = self._begin() if stream is None else stream
        size, epoch = self._batch_size, stream.origin["epoch"]
        try:
            yield from self._batches(stream, size, epoch) if size else self._samples(stream, epoch)
            self._errors.tell()
            # Workers begin again in each epoch, and would repeat it.
            if not epoch and len(self._empty) == len(self.files):
                warn_of_no_records(self.files)
        finally:
            # Files are closed when the stream is dropped, also in the middle.
            if self._running is not None and self._running() is stream:
                try:  # noqa: SIM105
                    self._ended = self._state(stream)
                except Exception:  # when Python ends, the names of modules may be gone
                    pass

    def _begin(self) -> RecordStream:
        """Begin an iteration: the rest of the loaded state's, or the whole next one."""
        number, epoch = self._epochs.begin()
        loaded, self._loaded = self._loaded, None  # for the next iteration alone
        if loaded is not None and loaded.number in (None, number):
            stream = self._rest(loaded)
        else:
            stream = self._stream(self._origin(epoch))
        self._running, self._ended = weakref.ref(stream), None
        return stream

    @property
    def features(self) -> Any:
        """The features read from each record: your specs, or those of the TFDS tree; None for the
        record's bytes.
        """
        return self._maker.features

    @property
    def report(self) -> ErrorReport:
        """The records left out so far, by all workers of this host; see `TFRecordDataset.report`."""
        return self._errors.report()

    def __getitem__(self, position: object) -> NoReturn:
        raise TypeError(
            "a stream has no positions, only an order: TFRecordDataset reads records by position"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the latest iteration, after the samples that it has yielded: JSON
        numbers and lists.

        It is the state of one consumer, that is, of one worker of one rank. In the order of the
        files it is a few numbers; with a shuffle buffer or interleaving it also lists the records
        that were read, but not yielded (file and number of each).
        """
        running = None if self._running is None else self._running()
        if running is not None:
            return self._state(running)
        if self._ended is not None:
            return deepcopy(self._ended)
        loaded = self._coming_states()
        if loaded is not None:
            return self._state(self._rest(loaded))
        return self._state(self._stream(self._origin(self._epochs.next()[1])))

    def load_state_dict(self, state_dict: object) -> None:
        """Resume from a state: the next iteration yields the rest of the interrupted one; the next
        epochs follow.

        Args:
            state_dict: This consumer's state, if there are as many consumers (workers times ranks)
                as before: you get exactly the samples that the uninterrupted run would have given.
                For any other number of workers or ranks, a list of the states of all consumers: the
                rest of all files is divided among the new ones. Pass a StatefulDataLoader's state
                as it is, and those of several ranks as a list.

        Raises:
            ValueError: The state has another version, seed, set of files or order, or the states
                are of different epochs (the message gives both values); or it is not as
                `state_dict` returned it. During iteration: states are missing, or a file has fewer
                records than the state says.
        """
        # In a worker: that worker's own state, for its next iteration.
        number = None if get_worker_info() is not None else self._epochs.next()[0]
        self._loaded = StreamStates(state_dict, self._order, number)
        self._running = self._ended = None
        self._epochs.choose(self._loaded.epoch)

    def _coming_states(self) -> StreamStates | None:
        """The loaded states, unless an iteration has begun since, in any worker."""
        loaded = self._loaded
        return loaded if loaded and loaded.number in (None, self._epochs.next()[0]) else None

    def _check_prepared(self) -> None:
        """ValueError if Accelerate cannot split this stream over its processes without losing
        records.
        """
        prepared = Prepared.loader()
        if prepared is None or prepared.num_processes == 1:
            return
        if prepared.splits_samples_by is None:
            raise ValueError(
                "with dispatch_batches=False Accelerate splits samples, and this loader has only batches: expected "
                "DataLoader(..., batch_size=n) over a stream without batch_size, or dispatch_batches=True"
            )
        if (
            prepared.dispatches
            and prepared.num_workers > 1
            and not (prepared.drops_last or self._drop_last)
        ):
            raise ValueError(
                "Accelerate's dispatch_batches loses records of a stream if the last batch of a worker is not "
                f"full: expected num_workers of at most 1 or dispatch_batches=False, got num_workers="
                f"{prepared.num_workers} (DataLoaderConfiguration in Accelerate, accelerator_config in a Trainer)"
            )

    # Iterations.

    def _consumer(self) -> tuple[int, int]:
        """Number of this consumer, and how many there are."""
        self._check_prepared()
        return Rank.here(self._rank, self._world_size).consumer()

    def _origin(self, epoch: int, pieces: Sequence[Piece] | None = None) -> State:
        """This consumer's part of an epoch; or its pieces of the rest that other consumers left."""
        consumer, num_consumers = self._consumer()
        return {
            "epoch": epoch,
            "consumer": consumer,
            "num_consumers": num_consumers,
            # They follow from the epoch, unless they are such a rest.
            "pieces": None if pieces is None else [list(piece) for piece in pieces],
        }

    def _stream(self, origin: State) -> RecordStream:
        """The stream of an origin, or of a state, at its beginning."""
        order, epoch, consumer = self._order, origin["epoch"], origin["consumer"]
        if origin["pieces"] is None:
            # In an order that is equal on all consumers.
            files: Sequence[int] = range(len(self.files))
            files = shuffled(files, self._seed, epoch) if order["shuffle"] else files
            pieces = deal_out([Piece(file) for file in files], consumer, origin["num_consumers"])
        else:
            pieces = [Piece(*piece) for piece in origin["pieces"]]
        names = (self.files[piece.file] for piece in pieces)
        read = partial(self._read, self._access.open_in_turn(names, self._infos))
        random = RandomStream(self._seed, epoch, consumer)
        return RecordStream(pieces, read, order, random, {name: origin[name] for name in ORIGIN})

    def _rest(self, states: StreamStates) -> RecordStream:
        """The rest of this consumer's stream, or its part of the rest that all others left."""
        consumer = self._consumer()
        own = states.of(*consumer)
        if own is not None:
            stream = self._stream(own)
            stream.go_to(own)
            return stream
        left: list[Piece] = []
        for state in states.all(*consumer):
            left += self._stream(state).left(state)
        return self._stream(self._origin(states.epoch, deal_out(left, *consumer)))

    def _state(self, stream: RecordStream) -> dict[str, Any]:
        return signed(
            {"version": StateForm.VERSION, **self._order, **stream.origin, **stream.place()}
        )

    # Reading.

    def _read(
        self,
        open_source: Callable[[str], FileSource],
        file: int,
        wanted: Callable[[], tuple[int, int]] | None,
        is_ahead: bool = False,
    ) -> Iterator[Block]:
        num_records = 0
        for block in read_blocks(
            open_source(self.files[file]),
            self._compression_type,
            verify_crc=self._verify,
            # Damage between records belongs to no record, so the scanner skips it.
            on_error="skip" if self._errors.skips else "raise",
            report=self._note_skipped,
            wanted=wanted,
            is_ahead=is_ahead,
        ):
            num_records += len(block.offsets)
            yield block
        if not num_records:
            self._empty.add(file)

    def _note_skipped(self, path: str, skipped: SkippedBytes) -> None:
        for kind, text in skipped.texts():
            self._errors.add(kind, text)

    # Samples and batches.

    def _batches(self, stream: RecordStream, size: int, epoch: int) -> Iterator[Batch]:
        def make(rows: RecordRows) -> Batch:
            samples = self._maker.load_batch(rows)
            samples = without_left_out(self._maker.transform_samples(samples))
            stream.num_taken = len(rows.records)
            return collate(samples) if len(samples) else LEFT_OUT

        short: RecordRows | None = None
        try:
            for rows in stream.parts(partial(self._rows, stream, epoch), size):
                if len(rows.records) < size:
                    short = rows
                elif (batch := make(rows)) is not LEFT_OUT:
                    yield batch
        except Exception:  # a builtin: when Python ends, other names may be gone
            if short is not None:
                # The group before an error is short for another reason than the end.
                make(short)  # one of its records may be bad, too, and comes before
            raise
        if short is not None and not self._drop_last and (batch := make(short)) is not LEFT_OUT:
            yield batch

    def _samples(self, stream: RecordStream, epoch: int) -> Iterator[Batch]:
        """Samples one by one, parsed several at a time."""
        for rows in stream.parts(partial(self._rows, stream, epoch)):
            for sample in self._samples_of(rows):
                stream.num_taken += 1
                if sample is not LEFT_OUT:
                    yield sample

    def _samples_of(self, rows: RecordRows) -> Iterable[Value]:
        """The samples of a part of a stream; those before a bad record are yielded before its error
        is raised.
        """
        maker, transform = self._maker, self._maker.transform
        # Each sample is decoded when it is its turn, so that draws come in order.
        if maker.crop is not None:
            yield from maker.each(rows, transform=True)
            return
        samples: Iterable[Value]
        try:
            samples = maker.parse_batches(rows, (0, len(rows.records)))[0]
        except TFRecordError:
            samples = maker.each(rows)
        if transform is None:
            yield from samples
            return
        for row, sample in enumerate(samples):
            yield transform_one(transform, row, sample, rows.places, self._errors)

    def _rows(self, stream: RecordStream, epoch: int, group: RecordGroup) -> RecordRows:
        keys = None
        if self._maker.draws_at_random:
            # A number for each record of all files; a file has fewer than 2^40 records.
            # Equal for each way of reading: a fused crop is the same with any number of workers.
            keys = record_keys((group.files << 40) + group.numbers, self._seed, epoch)

        def place(row: int) -> RecordPlace:
            file, offset, number = group.place(row)
            return RecordPlace(self.files[file], offset, number)

        self._check_keys(group.records, self.files, self._access)
        rows = RecordRows(group.records, keys, place)
        if stream.is_ahead:
            self._maker.begin(group.records)
        return rows

    def __getstate__(self) -> dict[str, object]:
        rank, world_size = Rank.to_send(self._rank, self._world_size)
        without = {"_running": None, "_ended": None}
        return {**self.__dict__, **without, "_rank": rank, "_world_size": world_size}

    def __repr__(self) -> str:
        features = shown_features(self.features)
        transform = shown_transform("transform", self._maker.transform)
        size = "" if self._batch_size is None else f", batch_size={self._batch_size}"
        return f"TFRecordIterableDataset({shown_files(self.files)}{features}{transform}{size})"
