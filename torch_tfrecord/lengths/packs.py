"""Packs: records that fill a row of tokens together, found from their lengths alone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from copy import copy
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import at_least
from torch_tfrecord.lengths.buckets import LengthGroups, TooLong, check_too_long
from torch_tfrecord.order import RecordOrder, StateForm

__all__ = ["PackOrder", "pack_lengths"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"


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
        How many rows, and what each holds: pairs of the number of a length and how many of it.

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
    of the rows, is drawn anew. A row counts as one place of the order: ranks, states and `drop_last`
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
            "lengths": StateForm.digest(lengths),
            "max_length": max_length,
            "too_long": too_long,
        }

    def identity(self) -> dict[str, Any]:
        """See `StepOrder`."""
        return {**super().identity(), **self._packed}

    def in_order(self) -> PackOrder:
        """The same packs with the same records in every epoch."""
        other = copy(self)
        other.epochs, other._groups = self.epochs.in_order(), copy(self._groups)
        other._groups.shuffle = False
        return other

    def padded_tokens(self, _epoch: int, _world_size: int) -> tuple[int, int]:
        """Tokens of an epoch's records, and of all rows."""
        return self._tokens

    def positions(self, places: list[int], epoch: int) -> list[int]:
        """The positions of a batch's records, row by row."""
        found: list[int] = []
        groups = self._groups
        numbers = np.searchsorted(self._ends, places, side="right").tolist()
        for place, number in zip(places, numbers, strict=True):
            row = place - int(self._ends[number - 1]) if number else place
            for (length, each), taken in zip(
                self._contents[number], self._taken[number], strict=True
            ):
                begin, first = int(groups.offsets[length]), taken + row * each
                order = groups.order(length, epoch)
                found += [
                    begin + (place if order is None else order[place])
                    for place in range(first, first + each)
                ]
        positions: list[int] = groups.members[found].tolist()
        return positions
