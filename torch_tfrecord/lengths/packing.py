"""From documents of unequal length to a batch that holds them end to end, without padding between
them.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import at_least, one_of
from torch_tfrecord.columns import Nested, as_plain, splits_of
from torch_tfrecord.lengths.buckets import checked_lengths
from torch_tfrecord.lengths.packs import PackOrder
from torch_tfrecord.lengths.padded_values import Nest, Wish, pad_rows_of, sizes_of_rows
from torch_tfrecord.lengths.padding import split_argument
from torch_tfrecord.loading import find_rows, for_transport, is_jagged, make_batch, take_columns
from torch_tfrecord.samples import Batch, Samples, place_of

__all__ = ["PackedCollate"]


@dataclass(frozen=True)
class PackedCollate:
    """A ``collate_fn`` that joins the sequences of a batch end to end, without padding between
    them; pickles.

    Each sample is a document: a mapping in which the packed features (token ids, labels, a mask)
    have one length, which may be 0. Packed are the features that the dataset itself reads with a
    variable length, such as `VarLenFeature`; once a transform or your own code has had the samples,
    their tensors do not tell whether a length varies, and `features` must name what to pack. All
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

    _takes_columns: ClassVar[Literal[True]] = True

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

    def __call__(self, samples: Samples) -> Batch:
        """Make a batch of at least one sample."""
        if not samples:
            raise ValueError("a batch needs at least one sample, got none")
        columns = take_columns(samples)
        batch = make_batch(samples, columns)
        if not isinstance(batch, dict):
            raise TypeError(f"expected samples that are mappings, got {type(samples[0]).__name__}")
        # Columns are ragged by their features; in a batch of changed samples it may be by chance.
        known: Batch = batch if self.features else columns or {}
        packed: dict[str, Nested] = {}  # [T, ...]
        lengths: list[int] = []
        for name in self.features or [name for name in known if is_jagged(batch[name])]:
            rows = find_rows(known.get(name))
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
        positions = np.frombuffer(places, np.int64) if places else np.empty(0, np.int64)
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
        return for_transport(as_plain({**batch, **joined}))

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
        """Of each row the number of its values, then those of its documents."""
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
