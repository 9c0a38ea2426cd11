"""Batches of records of like length, as a batch sampler for one rank that resumes."""

from __future__ import annotations

from collections.abc import Sequence, Sized

import numpy.typing as npt

from torch_tfrecord.arguments import integer, knows_keywords, true_or_false
from torch_tfrecord.lengths.buckets import Buckets, LengthOptions, TooLong, checked_lengths
from torch_tfrecord.order import RecordBatchSampler

__all__ = ["LengthBatchSampler"]


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
        options = LengthOptions(batch_size, max_tokens, boundaries, multiple_of, too_long)
        found = checked_lengths(dataset, lengths)
        order = Buckets(
            found,
            options,
            true_or_false("shuffle", shuffle),
            integer("seed", seed),
            true_or_false("drop_last", drop_last),
        )
        self.lengths = lengths
        self.boundaries, self.num_dropped = order.boundaries, order.num_dropped
        self._set_up(dataset, order, 1, rank, world_size, drop_last)

    def over_epochs(self, dataset: Sized, num_epochs: int | None) -> RecordBatchSampler:
        """The same order for `make_dataloader`: it goes on from epoch to epoch, from where this
        would begin.
        """
        num_records = self._order.num_records + self.num_dropped
        if len(dataset) != num_records:
            raise ValueError(
                f"the batch_sampler is for {num_records} records, the dataset has {len(dataset)}"
            )
        batches = RecordBatchSampler.of_order(
            dataset, self._order, num_epochs, *self.given_ranks, self.drop_last
        )
        batches._next, batches._loaded_epoch = self._next, self._loaded_epoch
        return batches
