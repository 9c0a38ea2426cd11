"""The iterable-style dataset: a stream that needs no index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import index as as_integer
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from torch_tfrecord.collate import collate
from torch_tfrecord.compression import check_compression_type
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.ordering import FileShare, RandomStream, file_shares, interleave, shuffled
from torch_tfrecord.parsing import make_parser
from torch_tfrecord.paths import Paths, find_files
from torch_tfrecord.ranks import check_rank, consumer, in_process_group, resolve_rank
from torch_tfrecord.reader import check_on_corrupt, read_blocks
from torch_tfrecord.structured_features import SequenceFeatures

__all__ = ["TFRecordIterableDataset"]


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
        self._parser = None if features is None else make_parser(features)
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
        samples = self._samples(file_shares(len(self.files), number, count), epoch)
        if self._buffer_size:
            samples = _buffer_shuffled(samples, self._buffer_size, RandomStream(self._seed, epoch, number))
        parsed = (self._sample(*record) for record in samples)
        return parsed if self._batch_size is None else _batches(parsed, self._batch_size, self._drop_last)

    def _samples(self, shares: list[FileShare], epoch: int) -> Iterator[tuple[bytes, str, int, int]]:
        order = shuffled(self.files, self._seed, epoch) if self._shuffle else self.files
        streams = (self._records(order[share.file], share) for share in shares)
        return interleave(streams, self._cycle_length, self._block_length)

    def _records(self, path: str, share: FileShare) -> Iterator[tuple[bytes, str, int, int]]:
        """Payload, path, offset and number of each record of a share."""
        blocks = read_blocks(
            path,
            self._compression_type,
            verify_crc=self._verify,
            on_corrupt=self._on_corrupt,
            use_helper=get_worker_info() is None,  # workers keep the processors busy as it is
        )
        for block in blocks:
            first = (share.part - block.position) % share.parts
            payloads = block.payloads or []
            for number in range(first, len(payloads), share.parts):
                yield payloads[number], path, block.offsets[number], block.position + number

    def _sample(self, payload: bytes, path: str, offset: int, position: int) -> Any:
        try:
            sample = payload if self._parser is None else self._parser.single(payload)
        except TFRecordError as error:
            error.locate(path=path, offset=offset, position=position)
            raise
        return sample if self._transform is None else self._transform(sample)

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


def _batches(samples: Iterator[Any], batch_size: int, drop_last: bool) -> Iterator[Any]:
    batch: list[Any] = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == batch_size:
            yield collate(batch)
            batch = []
    if batch and not drop_last:
        yield collate(batch)
