"""Batches of records of like length: buckets of lengths, the steps that all ranks take together, and a
batch sampler of these for one rank.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from copy import copy
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import at_least, integer, knows_keywords, one_of, true_or_false
from torch_tfrecord.batch_memory import Array, Ints
from torch_tfrecord.order import Leaves, Permutation, Place, RecordBatchSampler, digest

__all__ = [
    "LengthBatchSampler",
    "LengthGroups",
    "TooLong",
    "check_too_long",
    "checked_lengths",
]

_Lengths: TypeAlias = "npt.NDArray[np.int32]"

TooLong: TypeAlias = Literal["error", "alone", "drop"]
"""How to treat a record that is longer than a batch may be."""

_MOST_BUCKETS = 64
_MOST_CANDIDATES = 512  # boundaries that are tried
_STEPS_A_BUCKET = 4  # on average at least, since the last step of each bucket is short


def checked_lengths(dataset: Sized, lengths: str | npt.ArrayLike | None) -> _Lengths:
    """The lengths of all records as int32 [N]: as given, or what the dataset knows.

    Args:
        dataset: The dataset.
        lengths: Integers [N]; the name of a kept column; None for the bytes of the records.

    Raises:
        TypeError: They are not integers, the dataset does not know them, or it has a `Mixture`.
        ValueError: They are not one for each record, or one is not from 0 to 2^31 - 1.
    """
    if Leaves(dataset).are_mixed:
        raise TypeError(
            "batches by length need the same record at a position in each epoch: expected a ConcatDataset, or a "
            "loader for each dataset, got a Mixture"
        )
    if lengths is None or isinstance(lengths, str):
        lengths = Leaves(dataset).lengths(lengths)
    array = np.ma.filled(np.asanyarray(lengths), 0)  # a list that is missing has no length
    if array.shape != (len(dataset),):
        raise ValueError(
            f"lengths must have one number for each of {len(dataset)} records, got shape {list(array.shape)}"
        )
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"lengths must be integers, got {array.dtype}")
    if array.size and not 0 <= array.min() <= array.max() < 1 << 31:
        raise ValueError(f"lengths must be from 0 to 2^31 - 1, got {array.min()} to {array.max()}")
    return array.astype(np.int32, copy=False)


def check_too_long(lengths: _Lengths, limit: int, too_long: TooLong, limits: str) -> None:
    """ValueError if a record is longer than a limit, and that is an error."""
    one_of("too_long", too_long, "error", "alone", "drop")
    if too_long == "error" and len(lengths) and lengths.max() > limit:
        position = int(lengths.argmax())
        raise ValueError(
            f"the record at position {position} has length {lengths[position]}: expected at most {limit} "
            f'({limits}), or too_long="drop" or "alone"'
        )


class LengthGroups:
    """Records in groups of like length; each group has an order of its own in each epoch.

    Args:
        groups: [N]: the group of each record, from 0; in few bits, which NumPy sorts fast.
        counts: int64 [G]: records of each; those of any further group are left out.
        shuffle: False for the order of the files.
        seed: An integer of any size.

    Attributes:
        members: uint32 [N], beyond 2^32 int64: the positions, group by group.
        offsets: int64 [G]: where each group begins there.
    """

    def __init__(self, groups: Array, counts: Ints, shuffle: bool, seed: int) -> None:
        self.counts, self.shuffle, self.seed = counts, shuffle, seed
        small = len(groups) <= 1 << 32
        self.members = np.argsort(groups, kind="stable").astype(np.uint32 if small else np.int64)
        self.offsets = np.cumsum(counts) - counts
        self._orders: dict[tuple[int, int], Permutation] = {}

    def order(self, group: int, epoch: int) -> Permutation | None:
        """The order of a group's places; None for that of the files."""
        if not self.shuffle:
            return None
        order = self._orders.get((epoch, group))
        if order is None:
            if len(self._orders) > 2 * len(self.counts):
                self._orders.clear()  # from epochs long past
            order = Permutation(int(self.counts[group]), self.seed, epoch, 1 + group)
            self._orders[epoch, group] = order
        return order

    def positions(self, group: int, places: Ints, epoch: int) -> list[int]:
        """The positions at places of a group's order."""
        order = self.order(group, epoch)
        places = places if order is None else order.positions(places)
        return self.members[self.offsets[group] + places].tolist()


class Buckets(LengthGroups):
    """The records by length, and the order of each epoch: a pure function of (seed, epoch).

    Bucket b has the records with ``boundaries[b - 1] <= length < boundaries[b]``, as for tf.data's
    ``bucket_by_sequence_length``. The records of a bucket come in a random order of their own, and
    so do the steps; each step takes the next records of one bucket, on all ranks. So the shuffle is
    exact over the whole epoch, except that a batch has records of one bucket. It takes 4 bytes a
    record, and each step is found without those before it.

    Args:
        lengths: int32 [N].
        batch_size, max_tokens, boundaries, multiple_of, too_long: See `LengthBatchSampler`.
        shuffle: False for the order of the files; each batch comes where its last record is.
        seed: An integer of any size.
        drop_last: Drop the last step of each bucket if it is not full.

    Attributes:
        num_records, num_dropped: Records of an epoch, and those that are too long.
        boundaries: As given, or chosen for the least padding.
        counts: int64 [B]: records of each bucket; empty ones are left out.
        batch_sizes: int64 [B]: samples in a full batch of each.
        batch_size: 0, since batches have no one size.

    Raises:
        ValueError: An option is out of range, or a record is too long.
    """

    batch_size, is_sized = 0, False

    def __init__(
        self,
        lengths: _Lengths,
        batch_size: int | None,
        max_tokens: int | None,
        boundaries: Sequence[int] | None,
        multiple_of: int,
        too_long: TooLong,
        shuffle: bool,
        seed: int,
        drop_last: bool,
    ) -> None:
        if batch_size is None and max_tokens is None:
            raise ValueError("expected batch_size or max_tokens, got neither")
        most = at_least(1, "batch_size", 1 << 31 if batch_size is None else batch_size)
        at_least(1, "multiple_of", multiple_of)
        self._lengths, self._multiple_of = lengths, multiple_of
        self.drop_last = drop_last
        limit = int(lengths.max()) if len(lengths) else 0
        if max_tokens is not None:
            limit = at_least(1, "max_tokens", max_tokens) // multiple_of * multiple_of
        check_too_long(
            lengths, limit, too_long, f"max_tokens={max_tokens}, multiple_of={multiple_of}"
        )
        values, counts = np.unique(lengths, return_counts=True)
        padded = -(-values.astype(np.int64) // multiple_of) * multiple_of
        if boundaries is None:
            num_steps = max(len(lengths) / most, float(padded @ counts) / (max_tokens or np.inf))
            num_buckets = min(max(int(num_steps) // _STEPS_A_BUCKET, 1), _MOST_BUCKETS)
            rounded, first = np.unique(padded, return_index=True)
            self.boundaries = best_boundaries(rounded, np.add.reduceat(counts, first), num_buckets)
        else:
            self.boundaries = _checked(boundaries)
        # Those that are too long have buckets of their own.
        borders = np.unique([*self.boundaries, limit + 1])
        ends = np.append(np.searchsorted(values, borders), len(values))
        ends = ends[np.diff(ends, prepend=0) > 0]
        counts = np.diff(np.append(0, np.cumsum(counts))[ends], prepend=0)
        self.batch_sizes = np.full(len(ends), most)
        if max_tokens is not None:
            fitting = np.maximum(max_tokens // np.maximum(padded[ends - 1], 1), 1)
            self.batch_sizes = np.minimum(self.batch_sizes, fitting)
        if too_long == "drop":
            kept = values[ends - 1] <= limit
            counts, self.batch_sizes = counts[kept], self.batch_sizes[kept]
        buckets = np.searchsorted(values[ends - 1], lengths).astype(np.uint16)
        super().__init__(buckets, counts, shuffle, seed)
        self.num_records = int(counts.sum())
        self.num_dropped = len(lengths) - self.num_records
        self._identity = {
            "batch_size": batch_size,
            "max_tokens": max_tokens,
            "boundaries": self.boundaries,
            "multiple_of": multiple_of,
            "too_long": too_long,
            "lengths": digest(lengths),
            "num_records": self.num_records,
            "seed": seed,
        }

    def identity(self) -> dict[str, Any]:
        """All that decides the order, as JSON values."""
        return {**self._identity, "shuffle": self.shuffle}

    def in_order(self) -> Buckets:
        """The same records, unshuffled in every epoch."""
        other = copy(self)
        other.shuffle = False
        return other

    def steps(self, place: Place, world_size: int) -> BucketSteps:
        """The steps of the rest of an epoch."""
        return BucketSteps(self, place, world_size)

    def padded_tokens(self, epoch: int, world_size: int) -> tuple[int, int]:
        """Tokens of an epoch's records, and with padding where each step has the size of its
        longest record.
        """
        steps = self.steps(Place.at(epoch), world_size)
        tokens = padded = 0
        for bucket, num_steps in enumerate(steps.num_steps.tolist()):
            starts = steps.starts(bucket, np.arange(num_steps + 1))
            positions = self.positions(bucket, np.arange(starts[-1]), epoch)
            lengths = self._lengths[positions].astype(np.int64)
            tokens += int(lengths.sum())
            longest = np.maximum.reduceat(lengths, starts[:-1]) if num_steps else starts[:-1]
            rounded = -(-longest // self._multiple_of) * self._multiple_of
            padded += int(np.diff(starts) @ rounded)
        return tokens, padded

    def check(self, place: Place) -> None:
        """ValueError if a place of a state cannot be one of this order."""
        consumed = self.steps(place, 1).consumed(0)
        if consumed != place.consumed:
            raise ValueError(
                f"consumed must be {consumed} after the jobs in the state, got {place.consumed}"
            )


class BucketSteps:
    """The steps of an epoch: in each one all ranks have a batch of the same bucket.

    The last step of a bucket is shared evenly. If it has fewer records than there are ranks, the
    one before it gives it some; if there is none to give, records of the bucket come twice.

    Args:
        buckets: The records.
        place: The jobs that took steps of this epoch before, perhaps with another world size.
        world_size: Ranks that share a step.
    """

    def __init__(self, buckets: Buckets, place: Place, world_size: int) -> None:
        self._buckets, self._epoch, self._world_size = buckets, place.epoch, world_size
        self._num_jobs = len(place.jobs)
        self._begins = np.zeros(len(buckets.counts), np.int64)
        if place.jobs:
            last = place.jobs[-1]
            before = buckets.steps(place.before_last_job(), last.world_size)
            self._begins = before._ends(last.num_steps)
        self._at_once = buckets.batch_sizes * world_size
        left = buckets.counts - self._begins
        self.num_steps = left // self._at_once if buckets.drop_last else -(-left // self._at_once)

    def __len__(self) -> int:
        return int(self.num_steps.sum())

    @cached_property
    def _order(self) -> tuple[Ints, Ints]:
        """The bucket of each step, and how many of this bucket come before it."""
        num_steps, buckets = self.num_steps, self._buckets
        found = np.repeat(np.arange(len(num_steps)), num_steps)
        firsts = np.cumsum(num_steps) - num_steps
        numbers = np.arange(len(found)) - firsts[found]
        if buckets.shuffle:
            seeds = (self._epoch, 0, self._num_jobs)
            found = found[
                Permutation(len(found), buckets.seed, *seeds).positions(np.arange(len(found)))
            ]
            by_bucket = np.argsort(found, kind="stable")
            again = np.empty_like(numbers)
            again[by_bucket] = numbers
            return found, again
        last = [
            buckets.positions(bucket, self.starts(bucket, np.arange(1, count + 1)) - 1, self._epoch)
            for bucket, count in enumerate(num_steps.tolist())
        ]
        order = np.argsort(np.concatenate(last)) if last else numbers
        return found[order], numbers[order]

    def starts(self, bucket: int | Ints, numbers: Ints) -> Ints:
        """The place in its bucket where a step begins; the step after the last begins at the end."""
        count, begin, at_once = (
            self._buckets.counts[bucket],
            self._begins[bucket],
            self._at_once[bucket],
        )
        is_last = numbers + 1 == self.num_steps[bucket]
        starts = begin + numbers * at_once
        # A last step of too few takes from the one before it, if that has at least two for each rank.
        gives = is_last & (self._buckets.batch_sizes[bucket] > 1) & (numbers > 0)
        starts = np.where(gives, np.minimum(starts, count - self._world_size), starts)
        return np.minimum(starts, count)

    def batches(self, rank: int, begin: int, end: int) -> list[list[int]]:
        """A rank's batches of some steps."""
        world_size, found = self._world_size, []
        buckets, numbers = (part[begin:end] for part in self._order)
        extents = buckets, self.starts(buckets, numbers), self.starts(buckets, numbers + 1)
        for bucket, start, stop in zip(*map(np.ndarray.tolist, extents), strict=True):
            size = stop - start
            places = np.arange(rank, max(size, world_size), world_size) % size
            found.append(self._buckets.positions(bucket, start + places, self._epoch))
        return found

    def consumed(self, step: int) -> int:
        """Records that all ranks have taken of the epoch after some steps."""
        return int(self._ends(step).sum())

    def _ends(self, step: int) -> Ints:
        """Where each bucket is after some steps."""
        taken = np.bincount(self._order[0][:step], minlength=len(self.num_steps))
        return self.starts(np.arange(len(taken)), taken)


def _checked(boundaries: Sequence[int]) -> list[int]:
    found = [at_least(1, "boundaries", boundary) for boundary in boundaries]
    if any(low >= high for low, high in pairwise(found)):
        raise ValueError(f"boundaries must ascend, got {found}")
    return found


def best_boundaries(values: Ints, counts: Ints, num_buckets: int) -> list[int]:
    """The boundaries of at most so many buckets for which padding is least, where each record is as
    long as the longest of its bucket: by dynamic programming over the lengths, or about 500 of them.

    Args:
        values: int64 [V]: lengths, ascending, from 0.
        counts: int64 [V]: records of each.

    Example:
        >>> best_boundaries(np.array([1, 2, 9, 10]), np.array([5, 5, 5, 5]), 2)
        [3]
    """
    sums, ends = np.cumsum(counts), np.arange(len(values))
    if len(values) > _MOST_CANDIDATES:
        # Half of them at equal shares of the records, half at equal shares of the tokens.
        shares = np.arange(1, _MOST_CANDIDATES // 2 + 1) / (_MOST_CANDIDATES // 2)
        totals = (sums, np.cumsum(counts * values))
        ends = np.unique([np.searchsorted(each, shares * each[-1]) for each in totals])
    uppers, sums = values[ends], np.append(0, sums[ends])
    # Tokens with padding of a bucket from one candidate up to another.
    cost = np.where(ends[:, None] <= ends, uppers * (sums[1:] - sums[:-1, None]), np.inf)
    least, choices = sums[:0].astype(float), []
    for number in range(min(num_buckets, len(ends))):
        every = np.append(0, least[:-1])[:, None] + cost if number else cost[:1]
        choices.append(every.argmin(axis=0))
        least = every.min(axis=0)
    found: list[int] = []
    end = len(ends) - 1
    for choice in choices[:0:-1]:
        end = int(choice[end]) - 1
        if end < 0:
            break
        found.insert(0, int(uppers[end]) + 1)
    return found


@knows_keywords
class LengthBatchSampler(RecordBatchSampler):
    """Batches of records of like length, for padded batches with little padding.

    The records are put into buckets by length; a batch has records of one bucket, and in each step
    the batches of all ranks are of the same bucket, so that no rank waits for another's longer
    batch. All ranks have the same number of batches. Which records share a batch, and the order of
    the batches, is drawn over the whole epoch for each (seed, epoch). No record is read.

    An epoch has each record once, on one rank. Where the last step of a bucket is not full it is
    shared evenly over the ranks; a bucket with fewer records than ranks repeats some.

    It resumes, and chooses epochs, as `RecordSampler` does, also with another world size: then the
    rest of the epoch's records is shared out again. ``make_dataloader(dataset, batch_sampler=...)``
    makes a loader of these batches that counts what you received, and goes on from epoch to epoch.

    Args:
        dataset: The dataset: anything with a length. A `TFRecordDataset`, or a `Subset` or
            `ConcatDataset` of these, knows the lengths of its records.
        lengths: None for the records' bytes, which the index knows; the name of a column that the
            index keeps, a number for each record or ``len(name)``, the length of a list; or the
            lengths, integers [N] from 0.
        batch_size: Samples in a batch, per rank; with `max_tokens` the most.
        max_tokens: Most tokens in a batch, padding included: its samples times the longest of the
            bucket, rounded up to `multiple_of`.
        boundaries: Lengths where the second and each later bucket begins, ascending, as for
            tf.data's ``bucket_by_sequence_length``. None chooses up to 64 for the least padding.
        multiple_of: What you pad lengths to a multiple of: see `PaddedCollate`.
        too_long: For a record of more than `max_tokens`: "error", "alone" (the only one of its
            batch), or "drop" (`num_dropped` counts them).
        shuffle: False for the order of the files: each batch comes where its last record is.
        seed: An integer of any size. Its order never changes between releases or machines.
        rank, world_size: As for `RecordSampler`.
        drop_last: Drop each bucket's last step if it is not full.

    Attributes:
        lengths: As given.
        boundaries: The boundaries, as given or chosen.
        num_dropped: Records that are too long.

    Raises:
        IndexMismatchError: The index has no such column.
        TypeError: The dataset does not know its lengths, or they are not integers.
        ValueError: An argument is out of range, or a record is too long.

    Example:
        >>> lengths = [7, 2, 8, 1, 2, 9]
        >>> list(LengthBatchSampler(range(6), lengths=lengths, max_tokens=18, boundaries=[4]))
        [[2, 0], [1, 4, 3], [5]]
    """

    _continues = False

    def __init__(
        self,
        dataset: Sized,
        *,
        lengths: str | npt.ArrayLike | None = None,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        boundaries: Sequence[int] | None = None,
        multiple_of: int = 1,
        too_long: TooLong = "error",
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        order = Buckets(
            checked_lengths(dataset, lengths),
            batch_size,
            max_tokens,
            boundaries,
            multiple_of,
            too_long,
            true_or_false("shuffle", shuffle),
            integer("seed", seed),
            true_or_false("drop_last", drop_last),
        )
        self.lengths = lengths
        self.boundaries, self.num_dropped = order.boundaries, order.num_dropped
        super().__init__(dataset, order, 1, rank, world_size)

    def over_epochs(self, dataset: Sized, num_epochs: int | None) -> RecordBatchSampler:
        """The same order for `make_dataloader`: it goes on from epoch to epoch, from where this
        would begin.
        """
        num_records = self._order.num_records + self.num_dropped
        if len(dataset) != num_records:
            raise ValueError(
                f"the batch_sampler is for {num_records} records, the dataset has {len(dataset)}"
            )
        batches = RecordBatchSampler(dataset, self._order, num_epochs, *self.given_ranks)
        batches._next, batches._loaded_epoch = self._next, self._loaded_epoch
        return batches
