"""The unread rest of an epoch, as pieces of files, and how it is divided among consumers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch_tfrecord.order.shares import file_shares
from torch_tfrecord.shown import shown_value

__all__ = ["MOST_RECORDS", "Piece", "deal_out", "picked_pieces"]

MOST_RECORDS = 1 << 40
"""Limit on the records of one file: their numbers are below it, in the states of streams, too."""


class Piece(NamedTuple):
    """Records of one file: those from `first` on whose number modulo `parts` is `part`; or only
    those in `picked`.

    Attributes:
        file: Number of the file.
        part, parts: 0 <= part < parts.
        first: Records with a lower number are not part of it.
        picked: None, or the numbers of the records in ascending order; then part and parts are 0
            and 1.
    """

    file: int
    part: int = 0
    parts: int = 1
    first: int = 0
    picked: tuple[int, ...] | None = None

    def split(self, part: int, parts: int) -> Piece:
        """One of `parts` parts, which together have every record exactly once."""
        if self.picked is not None:
            return self._replace(picked=self.picked[part::parts])
        return self._replace(part=self.part + self.parts * part, parts=self.parts * parts)

    def as_json(self) -> list[Any]:
        """The piece as JSON values."""
        return [
            self.file,
            self.part,
            self.parts,
            self.first,
            None if self.picked is None else list(self.picked),
        ]

    @classmethod
    def from_json(cls, values: Sequence[Any], num_files: int) -> Piece:
        """The inverse of `as_json`; ValueError for anything else."""
        try:
            file, part, parts, first, picked = values
            if not (picked is None or isinstance(picked, (list, tuple))):
                raise ValueError
            numbers = [file, part, parts, first, *(picked or ())]
            if any(
                type(number) is not int or not 0 <= number <= MOST_RECORDS for number in numbers
            ):
                raise ValueError
            if (
                file >= num_files
                or part >= parts
                or not (picked is None or (_ascend(picked) and (part, parts) == (0, 1)))
            ):
                raise ValueError
        except (TypeError, ValueError):
            raise ValueError(
                f"pieces: expected a piece of one of {num_files} files in the state, got {shown_value(values)}"
            ) from None
        return cls(file, part, parts, first, None if picked is None else tuple(picked))


def deal_out(pieces: Sequence[Piece], consumer: int, num_consumers: int) -> list[Piece]:
    """One consumer's pieces: whole ones round-robin, and leftover ones split by record, as in
    `file_shares`.

    Example:
        >>> deal_out([Piece(7), Piece(8), Piece(9, 1, 2, first=6)], 1, 2)
        [Piece(file=8, part=0, parts=1, first=0, picked=None), Piece(file=9, part=3, parts=4,
        first=6, picked=None)]
    """
    return [
        pieces[share.file].split(share.part, share.parts)
        for share in file_shares(len(pieces), consumer, num_consumers)
    ]


def picked_pieces(records: Iterable[tuple[int, int]]) -> list[Piece]:
    """Pieces for single records, given as (file, number): one for each file."""
    by_file: dict[int, list[int]] = {}
    for file, number in records:
        by_file.setdefault(file, []).append(number)
    return [Piece(file, picked=tuple(sorted(numbers))) for file, numbers in sorted(by_file.items())]


def _ascend(numbers: Sequence[int]) -> bool:
    return all(before < after for before, after in pairwise(numbers))
