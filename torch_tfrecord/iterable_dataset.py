"""The iterable-style dataset: a stream that needs no index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import index as as_integer
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset

from torch_tfrecord.batch_parser import BatchParser
from torch_tfrecord.collate import collate
from torch_tfrecord.compression import check_compression_type
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.ordering import FileShare, RandomStream, file_shares, interleave, shuffled
from torch_tfrecord.paths import Paths, find_files
from torch_tfrecord.ranks import check_rank, consumer, in_process_group, resolve_rank
from torch_tfrecord.reader import check_on_corrupt, read_blocks
from torch_tfrecord.record_groups import RecordGroup, StreamRecord, regroup
from torch_tfrecord.record_keys import record_keys
from torch_tfrecord.structured_features import SequenceFeatures

__all__ = ["TFRecordIterableDataset"]

# Parsing so many records together takes half the time of parsing each; more gain nothing, and take memory.
_SAMPLES_AT_ONCE = 128


class TFRecordIterableDataset(IterableDataset[Any]):
    """A stream of the records of TFRecord files; needs no index.

    Every record appears exactly once over all ranks and workers. Whole files are dealt out to them; files left over
    (all, where there are fewer files than consumers) are split by record. So the numbers of records of two ranks can
    differ, and the order depends on the number of workers; `TFRecordDataset` with a sampler has neither limit.

    Args:
        paths: As for `TFRecordDataset`.
        features: What to read from each record, by name; None gives the record's bytes. `SequenceFeatures` reads
            SequenceExamples, as `(context, sequences)`.
        transform: Called with each sample, before batching.
        batch_size: Yield batches of this many samples (use `DataLoader(ds, batch_size=None)`); None yields samples.
        shuffle: Put the files in a new order each epoch.
        shuffle_buffer_size: Records drawn at random from a buffer of this many, for order within files; 0 for none.
        seed: The order is a pure function of (seed, epoch), rank and worker.
        rank, world_size: Both or none; None means torch.distributed's where it is initialised, else torchrun's
            environment, else 0 of 1.
        cycle_length: Read from this many files in turn, as tf.data's ``interleave``.
        block_length: Records to read from a file at its turn.
        drop_last: Leave out a last batch (of each worker) that is not full.
        compression_type: "auto" (detected for each file), None or "" (none), "GZIP", "ZLIB".
        verify_crc: Check the payloads' checksums; headers are always checked.
        on_corrupt: "raise", or "skip" to leave damaged records out, with one warning a file.

    Example:
        >>> ds = TFRecordIterableDataset("train-*", features, batch_size=64, shuffle=True)  # doctest: +SKIP
        >>> for epoch in range(3):  # doctest: +SKIP
        ...     ds.set_epoch(epoch)
        ...     for batch in DataLoader(ds, batch_size=None, num_workers=4):
        ...         ...
    """

    def __init__(
        self,
        paths: Paths,
        features: Mapping[str, Any] | SequenceFeatures | None = None,
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
        on_corrupt: str = "raise",
    ) -> None:
        super().__init__()
        if not isinstance(shuffle, bool):
            raise TypeError(f"shuffle must be True or False, got {shuffle!r}")
        check_rank(rank, world_size)
        check_on_corrupt(on_corrupt)
        self._compression_type = check_compression_type(compression_type)
        self._parser = None if features is None else BatchParser(features)
        self._transform = transform
        self._batch_size = None if batch_size is None else _at_least(1, "batch_size", batch_size)
        self._shuffle = shuffle
        self._buffer_size = _at_least(0, "shuffle_buffer_size", shuffle_buffer_size)
        self._seed = as_integer(seed)
        self._rank, self._world_size = rank, world_size
        self._cycle_length = _at_least(1, "cycle_length", cycle_length)
        self._block_length = _at_least(1, "block_length", block_length)
        self._drop_last = drop_last
        self._verify = verify_crc
        self._on_corrupt = on_corrupt
        self.files: list[str] = find_files(paths)
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._share_epoch()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, whose order the next iteration has; persistent workers follow."""
        self._epoch.fill_(_at_least(0, "epoch", epoch))

    def __iter__(self) -> Iterator[Any]:
        epoch = int(self._epoch)
        number, count = consumer(resolve_rank(self._rank, self._world_size))
        order = range(len(self.files))
        files = shuffled(order, self._seed, epoch) if self._shuffle else order
        shares = [share._replace(file=files[share.file]) for share in file_shares(len(files), number, count)]
        if not self._buffer_size and self._cycle_length == 1:
            groups = (group for share in shares for group in self._groups(share))
            size = self._batch_size
            return self._batches(groups, size, epoch) if size else self._samples(groups, epoch)
        records = interleave(map(self._records, shares), self._cycle_length, self._block_length)
        if self._buffer_size:
            records = _buffer_shuffled(records, self._buffer_size, RandomStream(self._seed, epoch, number))
        if self._batch_size:
            return self._batches(_grouped(records, self._batch_size), self._batch_size, epoch)
        return (self._sample(record, epoch) for record in records)

    def _groups(self, share: FileShare) -> Iterator[RecordGroup]:
        """The records of a share, block by block."""
        blocks = read_blocks(
            self.files[share.file],
            self._compression_type,
            verify_crc=self._verify,
            on_corrupt=self._on_corrupt,
        )
        for block in blocks:
            if block.records is not None:
                numbers = np.arange(block.position, block.position + len(block.records))
                group = RecordGroup(block.records, np.full(len(numbers), share.file), block.offsets, numbers)
                yield group.part(slice((share.part - block.position) % share.parts, None, share.parts))

    def _records(self, share: FileShare) -> Iterator[StreamRecord]:
        """The records of a share, one by one: a shuffle buffer must not keep whole blocks for the sake of a few."""
        for group in self._groups(share):
            columns = (group.records, group.files, group.offsets, group.numbers)
            yield from zip(*(column.tolist() for column in columns), strict=True)

    # Samples and batches.

    def _batches(self, groups: Iterator[RecordGroup], size: int, epoch: int) -> Iterator[Any]:
        def check(group: RecordGroup) -> None:
            self._load(group, epoch)  # an error in a record comes before one of a later record

        for group in regroup(groups, size, drop_last=self._drop_last, before_error=check):
            yield collate(self._load(group, epoch))

    def _samples(self, groups: Iterator[RecordGroup], epoch: int) -> Iterator[Any]:
        """Samples one by one, parsed some at a time."""
        pieces = (
            group.part(slice(low, low + _SAMPLES_AT_ONCE))
            for group in groups
            for low in range(0, len(group.numbers), _SAMPLES_AT_ONCE)
        )
        for group in pieces:
            try:
                samples = self._parse(group, epoch)
            except TFRecordError:
                yield from self._one_by_one(group, epoch)
            else:
                yield from samples if self._transform is None else map(self._transform, samples)

    def _load(self, group: RecordGroup, epoch: int) -> Sequence[Any]:
        """The samples of a batch."""
        try:
            samples = self._parse(group, epoch, as_columns=self._transform is None)
        except TFRecordError:
            return [*self._one_by_one(group, epoch)]  # for the error of the first bad record
        return samples if self._transform is None else [*map(self._transform, samples)]

    def _parse(self, group: RecordGroup, epoch: int, as_columns: bool = False) -> Sequence[Any]:
        if self._parser is None:
            return group.records.tolist()
        keys = record_keys(_unique(group.files, group.numbers), self._seed, epoch) if self._parser.needs_keys else None
        parse = self._parser.batch if as_columns else self._parser.samples
        return parse(group.records, keys)

    def _one_by_one(self, group: RecordGroup, epoch: int) -> Iterator[Any]:
        for row, payload in enumerate(group.records.tolist()):
            yield self._sample((payload, *group.place(row)), epoch)

    def _sample(self, record: StreamRecord, epoch: int) -> Any:
        payload, file, offset, number = record
        sample: Any = payload
        if self._parser is not None:
            try:
                sample = self._parser.single(payload, self._key(file, number, epoch))
            except TFRecordError as error:
                error.locate(path=self.files[file], offset=offset, position=number)
                raise
        return sample if self._transform is None else self._transform(sample)

    def _key(self, file: int, number: int, epoch: int) -> int:
        if self._parser is None or not self._parser.needs_keys:
            return 0
        return int(record_keys(_unique(np.array([file]), np.array([number])), self._seed, epoch)[0])

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if in_process_group():  # a spawned worker is not in it and could not tell its rank
            state["_rank"], state["_world_size"] = resolve_rank(self._rank, self._world_size)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share_epoch()  # plain pickle and copies do not keep it shared

    def _share_epoch(self) -> None:
        # In shared memory: persistent workers hold a copy of this object and must see set_epoch all the same.
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f"TFRecordIterableDataset({len(self.files)} files, {self.files[0]!r}, ...)"


def _at_least(least: int, name: str, value: Any) -> int:
    """The value as int; NumPy's integers are integers, True is none."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or as_integer(value) < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return as_integer(value)


def _buffer_shuffled(items: Iterator[Any], size: int, random: RandomStream) -> Iterator[Any]:
    """Items drawn at random from a buffer of `size` that the next ones refill."""
    buffer: list[Any] = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        chosen = random.below(size)
        yield buffer[chosen]
        buffer[chosen] = item
    while buffer:
        chosen = random.below(len(buffer))
        buffer[chosen], buffer[-1] = buffer[-1], buffer[chosen]
        yield buffer.pop()


def _grouped(records: Iterator[StreamRecord], size: int) -> Iterator[RecordGroup]:
    """Groups of up to `size` records; in front of an error what came before it."""
    while True:
        taken: list[StreamRecord] = []
        try:
            taken.extend(islice(records, size))
        except TFRecordError:
            if taken:
                yield RecordGroup.of(taken)
            raise
        if not taken:
            return
        yield RecordGroup.of(taken)


def _unique(files: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """A number for each record of all files, below 2^40 in each."""
    return (files << 40) + numbers
