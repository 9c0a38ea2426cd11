"""The Source spec: which record of which file a sample is from. Datasets answer it, since no bytes
of a record do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from torch_tfrecord.arguments import one_of
from torch_tfrecord.columns.dtypes import Value
from torch_tfrecord.columns.feature import Feature
from torch_tfrecord.columns.reading import Reader
from torch_tfrecord.samples import RecordPlace

__all__ = ["Source"]


@dataclass(frozen=True, repr=False)
class Source(Feature):
    """The file and place of a sample's record, as errors name it; for the features of a dataset.

    The path is a str as in the dataset's `files`; the position (the record's number in that file,
    from 0) and the offset (of its first byte; in the decompressed stream for a compressed file; -1
    in an ArrayRecord file) are int64 scalars. In a batch they are a list, and tensors [B].

    Args:
        what: "path", "position" or "offset" for one of them; None for a dict of all three.
        key: Not supported.

    Raises:
        ValueError: ``what`` is something else, or ``key`` is given.

    Example:
        >>> Source("path")
        Source(what='path')
    """

    what: Literal["path", "position", "offset"] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        one_of("what", self.what, None, "path", "position", "offset")
        if self.key is not None:
            raise ValueError("key is not supported by Source: nothing is read from the record")

    def reader(self, name: str, *, pads: bool = False) -> Reader:
        """Raise ValueError: there is nothing to read."""
        raise ValueError(
            f"Source for {name!r}: the bytes of a record do not say which file they are from; expected it in the "
            "features of a TFRecordDataset, TFRecordIterableDataset or make_dataloader, or the context of "
            "SequenceFeatures there"
        )

    def context_reader(self, name: str) -> Reader:
        """Raise ValueError, as `reader`."""
        return self.reader(name)

    def column(self, places: Sequence[RecordPlace]) -> Value:
        """The batch's column."""
        columns = {
            "path": [place.path for place in places],
            "position": torch.tensor([place.position for place in places], dtype=torch.int64),
            "offset": torch.tensor([*map(_offset, places)], dtype=torch.int64),
        }
        return columns if self.what is None else columns[self.what]

    def value(self, place: RecordPlace) -> Value:
        """The value of one sample."""
        values = {
            "path": place.path,
            "position": torch.tensor(place.position),
            "offset": torch.tensor(_offset(place)),
        }
        return values if self.what is None else values[self.what]


def _offset(place: RecordPlace) -> int:
    return -1 if place.offset is None else place.offset
