"""Packs: records that fill rows of tokens together, and batches in which they follow each other
without padding between them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence, Sized
from copy import copy
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import at_least, one_of
from torch_tfrecord.batch_memory import NO_INTS, splits_of
from torch_tfrecord.columns import Nested, as_plain
from torch_tfrecord.lengths.buckets import LengthGroups, TooLong, check_too_long, checked_lengths
from torch_tfrecord.lengths.padding import (
    Nest,
    Wish,
    pad_rows_of,
    sizes_of_rows,
    split_argument,
)
from torch_tfrecord.loading import ColumnCollate
from torch_tfrecord.order import RecordOrder, digest
from torch_tfrecord.samples import Batch, Columns, Samples, place_of

__all__ = [
    "PackedCollate",
]


@dataclass(frozen=True)
class PackedCollate(ColumnCollate):
    """A ``collate_fn`` that joins the sequences of a batch end to end, without padding between
    them; pickles.

    Each sample is a document: a mapping in which the packed features (token ids, labels, a mask)
    have one length, which may be 0. Packed are the features that the dataset itself reads with a
    variable length, such as `VarLenFeature`; once a transform or your own code has had the samples,
    their tensors do not say whether a length varies, and `features` must name what to pack. All
    others are batched by `collate`, one value for each document.

    With ``layout="flat"``, as FlashAttention's varlen functions and ``torch.nested`` want it, the
    documents come in the order of the samples. T is the sum of the N lengths:

    - each packed feature: [T, ...], columns of a dataset without a copy;
    - ``"cu_seqlens"``: int32 [N + 1], where each document begins, and T;
    - ``"position_ids"``: int64 [T], from 0 in each document;
    - ``"max_seqlen"``: int, the length of the longest.

    With ``layout="blocks"``, for attention with a mask such as flex_attention's, documents fill R
    rows, padded at their ends; none is split. They stay in order, with a new row where the next
    does not fit. Where best-fit decreasing (the longest first, each into the fullest row that has
    space) takes fewer rows, the whole batch comes in the order of those rows:

    - each packed feature: [R, max_length, ...];
    - ``"position_ids"``: int64 [R, max_length], from 0 in each document, and 0 in padding;
    - ``"document_ids"``: int64 [R, max_length], the document's number in the batch, -1 in padding.

    Args:
        max_length: The most values of a document, and with ``layout="blocks"`` the size of a row.
        layout: "flat" or "blocks".
        padding_values: What "blocks" pads with: one value for all packed features, or values by
            name, 0 where a name is missing. The dtype must hold it exactly.
        num_rows: The R of "blocks", so that shapes are constant, as ``torch.compile`` wants them;
            rows without documents are padding. None means as few as possible. "flat" has no rows.
        features: The names of the features to pack: a tensor [n, ...] in each sample, on the CPU.
            If it has several dimensions and n varies, it must be the dataset's own.
        too_long: "drop" has ``make_dataloader(lengths=...)`` leave out longer documents.

    Raises:
        TypeError: Samples are not mappings, a feature to pack is no such tensor, or its dtype
            cannot hold the padding value.
        ValueError: There is nothing to pack, packed features of a sample have different lengths, a
            document is longer than `max_length`, `num_rows` are too few, or a feature has the name
            of an added value. The message names the sample by its number in the batch and its
            record, and the features with their lengths.

    Example:
        >>> pack = PackedCollate(8, features=["ids"])
        >>> pack([{"ids": torch.tensor([4, 5])}, {"ids": torch.tensor([7])}])["ids"]
        tensor([4, 5, 7])
        >>> blocks = PackedCollate(4, layout="blocks", features=["ids"], padding_values=-1)
        >>> batch = blocks([{"ids": torch.tensor([4, 5])}, {"ids": torch.tensor([7])}])
        >>> batch["ids"], batch["document_ids"]
        (tensor([[ 4,  5,  7, -1]]), tensor([[ 0,  0,  1, -1]]))
    """

    max_length: int
    _: KW_ONLY
    layout: Literal["flat", "blocks"] = "flat"
    padding_values: Nest = 0
    num_rows: int | None = None
    features: Sequence[str] | None = None
    too_long: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        """Check the arguments as far as possible without samples."""
        at_least(1, "max_length", self.max_length)
        one_of("layout", self.layout, "flat", "blocks")
        one_of("too_long", self.too_long, "error", "drop")

    def _batch(self, samples: Samples, columns: Columns | None) -> Batch:
        batch = self._collated(samples, columns)
        if not isinstance(batch, dict):
            raise TypeError(f"expected samples that are mappings, got {type(samples[0]).__name__}")
        # Columns are ragged by their features; in a batch of changed samples it may be by chance.
        known: Batch = batch if self.features else columns or {}
        packed: dict[str, Nested] = {}  # [T, ...]
        lengths: list[int] = []
        for name in self.features or [name for name in known if _varies(batch[name])]:
            rows = Nested.rows_of(known.get(name))
            if rows is None or not (sizes := sizes_of_rows(rows)).size:
                raise TypeError(
                    f"[{name!r}] cannot be packed: expected tensors [n, ...] on the CPU (see features=), "
                    f"got {type(as_plain(known.get(name))).__name__}"
                )
            counts = sizes[:, 0]
            lengths = lengths or counts.tolist()
            wrong = (counts != lengths) | (counts > self.max_length)
            if wrong.any():
                number = int(wrong.argmax())
                raise ValueError(
                    f"sample {number} ({place_of(samples, number) or 'record unknown'}): expected one length up to "
                    f"{self.max_length}, got { {next(iter(packed), name): lengths[number], name: int(counts[number])} }"
                )
            values, row_splits = rows.arrays()
            inner = values.shape[2 - len(row_splits) :]
            packed[name] = Nested(values.reshape(sum(lengths), *inner), rows.dtype)
        if not packed:
            raise ValueError(
                f"expected features of variable length, from a dataset without transform, or features=, got {[*batch]}"
            )
        # Joined as bytes, which keeps the GIL: NumPy lets go of it for more than 500 numbers.
        count = np.arange(max(lengths)).data
        places = bytearray().join([count[:length] for length in lengths])
        positions = np.frombuffer(places, np.int64) if places else NO_INTS
        added: Batch = {"position_ids": Nested(positions, torch.int64)}
        if self.layout == "flat":
            added["cu_seqlens"] = torch.from_numpy(splits_of(lengths).astype(np.int32))
            added["max_seqlen"] = max(lengths)
            joined = added | packed
        else:
            filled = self._choose_rows(lengths)
            order = [number for row in filled for number in row[1:]]
            if order != sorted(order):
                return self([samples[number] for number in order])
            documents = np.repeat(np.arange(len(lengths)), lengths)
            added["document_ids"] = Nested(documents, torch.int64)
            ends = splits_of([row[0] for row in filled])
            wish = Wish("", None, self.padding_values)
            fill = split_argument(wish, "padding_values", packed, dict) | {"document_ids": -1}
            joined = {
                name: pad_rows_of(
                    rows._replace(row_splits=(ends,)),
                    Wish(f"[{name!r}]", (self.max_length, *rows.values.shape[1:]), fill.get(name)),
                )[0]
                for name, rows in (added | packed).items()
            }
        if added.keys() & batch.keys():
            raise ValueError(f"the batch adds {[*added]}: expected other names, got {[*batch]}")
        return as_plain({**batch, **joined})

    def _packs(
        self,
        dataset: Sized,
        lengths: str | npt.ArrayLike,
        num_rows: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
    ) -> PackOrder:
        """The steps of records that fill rows together, for `make_dataloader`."""
        found = checked_lengths(dataset, lengths)
        return PackOrder(found, self.max_length, self.too_long, num_rows, shuffle, seed, drop_last)

    def _choose_rows(self, lengths: list[int]) -> list[list[int]]:
        """For each row the number of its values, then the numbers of its documents."""
        documents = [(length, number) for number, length in enumerate(lengths)]
        found = []
        # In order, into the last row or a new one; best-fit decreasing, into any.
        for order, first in ((documents, -2), (sorted(documents, reverse=True), 0)):
            rows = [[0]]  # the last one is empty
            for length, number in order:
                row = max(row for row in rows[first:] if row[0] + length <= self.max_length)
                row[0] += length
                row.append(number)
                if row is rows[-1]:
                    rows.append([0])
            found.append(rows[:-1])
        rows = min(found, key=len)
        rows += [[0]] * ((self.num_rows or 0) - len(rows))
        if self.num_rows not in (None, len(rows)):
            raise ValueError(
                f"expected at most {self.num_rows} rows (num_rows) of {self.max_length}, got documents for {len(rows)}"
            )
        return rows


def _varies(column: object) -> bool:
    """Whether a column has one ragged dimension, as from a reader or as a jagged tensor."""
    if isinstance(column, Nested):
        return len(column.row_splits) == 1
    return isinstance(column, torch.Tensor) and column.layout == torch.jagged


# Which records, from their lengths alone.


def pack_lengths(
    lengths: list[int], counts: list[int], size: int
) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Fill rows by best-fit decreasing, all rows of equal content at once.

    Works on the histogram of the lengths (Krell et al., "Efficient Sequence Packing without
    Cross-contamination", 2021), so that the time does not depend on the number of records.

    Args:
        lengths: Distinct lengths, descending, from 1 to `size`.
        counts: Records of each.
        size: Tokens of a row.

    Returns:
        How many rows, and what is in each: pairs of the number of a length and how many of it.

    Example:
        >>> pack_lengths([6, 4, 1], [2, 3, 1], 10)
        [(2, ((0, 1), (1, 1))), (1, ((1, 1), (2, 1)))]
    """
    # Rows that are not full, by the space that is left in them.
    rows: dict[int, list[tuple[int, tuple[tuple[int, int], ...]]]] = defaultdict(list)
    spaces: list[int] = []

    def put(space: int, count: int, content: tuple[tuple[int, int], ...]) -> None:
        if count and not rows[space]:
            insort(spaces, space)
        if count:
            rows[space].append((count, content))

    for number, (length, left) in enumerate(zip(lengths, counts, strict=True)):
        while left:
            at = bisect_left(spaces, length)
            space, num_rows = size, left
            content: tuple[tuple[int, int], ...] = ()
            if at < len(spaces):  # the tightest
                space = spaces[at]
                num_rows, content = rows[space].pop()
                if not rows[space]:
                    spaces.pop(at)
            each = min(space // length, left)
            filled = min(num_rows, left // each)
            put(space - each * length, filled, (*content, (number, each)))
            if content:
                put(space, num_rows - filled, content)
            left -= filled * each
    return [row for space in sorted(rows) for row in rows[space]]


class PackOrder(RecordOrder):
    """Steps of packs: each row of a batch has records that fill `max_length` tokens together.

    What lengths a row has is the same in each epoch; which records of these lengths, and the order
    of the rows, is drawn each time. A row counts as one place of the order: ranks, states and `drop_last`
    are those of any records.

    Args:
        lengths: int32 [N].
        max_length: Tokens of a row.
        too_long: For a longer record: "error" or "drop".
        num_rows: Rows of a batch, per rank.
        shuffle, seed, drop_last: As for `RecordBatchSampler`.

    Attributes:
        max_length: As given.
        num_dropped: Records that are too long.

    Raises:
        ValueError: A record is too long.
    """

    is_sized = False

    def __init__(
        self,
        lengths: npt.NDArray[np.int32],
        max_length: int,
        too_long: TooLong,
        num_rows: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
    ) -> None:
        self.max_length = at_least(1, "max_length", max_length)
        check_too_long(lengths, max_length, too_long, f"max_length={max_length}")
        # A record without tokens takes the place of one.
        values, counts = np.unique(np.maximum(lengths, 1), return_counts=True)
        # Those that are too long come last; NumPy sorts 16 bits in a fraction of the time.
        behind = np.where(lengths > max_length, max_length, max_length - np.maximum(lengths, 1))
        behind = behind.astype(np.uint16 if max_length < 1 << 16 else np.int32)
        fits = values <= max_length
        self.num_dropped = int(counts[~fits].sum())
        values, counts = values[fits][::-1], counts[fits][::-1]
        self._groups = LengthGroups(behind, counts, shuffle, seed)
        found = pack_lengths(values.tolist(), counts.tolist(), max_length)
        self._contents = [content for _, content in found]
        self._ends = np.cumsum([count for count, _ in found], dtype=np.int64)
        # For each content, how many records of each of its lengths earlier ones take.
        taken = [0] * len(values)
        self._taken: list[list[int]] = []
        for count, content in found:
            self._taken.append([taken[number] for number, _ in content])
            for number, each in content:
                taken[number] += count * each
        num_packs = int(self._ends[-1]) if found else 0
        self._tokens = int(values @ counts), num_packs * max_length
        super().__init__(range(num_packs), num_rows, drop_last, shuffle=shuffle, seed=seed)
        self._packed = {
            "lengths": digest(lengths),
            "max_length": max_length,
            "too_long": too_long,
        }

    def identity(self) -> dict[str, Any]:
        """See `StepOrder`."""
        return {**super().identity(), **self._packed}

    def in_order(self) -> PackOrder:
        """The same packs with the same records in every epoch."""
        other = super().in_order()
        other._groups = copy(self._groups)
        other._groups.shuffle = False
        return other

    def padded_tokens(self, _epoch: int, _world_size: int) -> tuple[int, int]:
        """Tokens of an epoch's records, and of all rows."""
        return self._tokens

    def positions(self, batches: list[list[int]], epoch: int) -> list[list[int]]:
        """The positions of the records in each batch of rows, row by row."""
        groups, every = self._groups, []
        for places in batches:
            found: list[int] = []
            numbers = np.searchsorted(self._ends, places, side="right").tolist()
            for place, number in zip(places, numbers, strict=True):
                row = place - int(self._ends[number - 1]) if number else place
                for (length, each), taken in zip(
                    self._contents[number], self._taken[number], strict=True
                ):
                    begin, first = int(groups.offsets[length]), taken + row * each
                    order = groups.order(length, epoch)
                    found += [
                        begin + (at if order is None else order[at])
                        for at in range(first, first + each)
                    ]
            every.append(groups.members[found].tolist())
        return every
