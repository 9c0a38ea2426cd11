"""Measure the features of a data set, some records at a time, and put the results together in order.

Memory does not grow with the data: each feature has moments, a sample of its values, and as long as
few values differ, how often each is there.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from index_tools._workers import Advance
from torch_tfrecord import ImageDecodeError, ScanTask, SequenceFeatures, VarLenFeature
from torch_tfrecord.columns import Feature, RecordFeatures
from torch_tfrecord.media import image_format, image_size
from torch_tfrecord.samples import DType

__all__ = ["MOST_DISTINCT", "ROWS", "Distribution", "Statistics", "measure_task", "stored_features"]

MOST_DISTINCT = 2_000
"""If more values differ, it is not known how often each is there."""

ROWS = "", "rows"
"""Where `Statistics` count the records that were read."""

_SAMPLE = 1 << 12
_MOST_BYTES = 256  # two values that begin with the same ones count as one
_SLICE = 1 << 15  # values at once: they stay in the processor's cache
_BATCHES = 8  # put together, as each column of each has a price

_DTYPES: dict[str, DType] = {
    "int64_list": torch.int64,
    "float_list": torch.float32,
    "bytes_list": bytes,
}
_KINDS = {
    "Image": "image",
    "RawTensor": "tensor",
    "SerializedTensor": "tensor",
    "Text": "text",
    "str": "text",
}


@dataclass
class Distribution:
    """The measurements of some values: numbers or bytes.

    Attributes:
        count: How many there are.
        missing: NaN, and what is not there, beside these.
        zeros: How many of the numbers.
        low, high: The smallest and the largest number.
        mean: That of the numbers.
        squares: Sum of the squares of their distances from the mean.
        sample: float64 [2, N]: random keys, and the numbers that drew the smallest ones: all, or
            4,096 of them.
        frequencies: How often each value is there, by its first 256 bytes; of more than
            `MOST_DISTINCT` not of all.
    """

    count: int = 0
    missing: int = 0
    zeros: int = 0
    low: float = math.inf
    high: float = -math.inf
    mean: float = 0.0
    squares: float = 0.0
    sample: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty((2, 0)))
    frequencies: Counter[float | bytes] = field(default_factory=Counter)

    def add(self, values: pa.Array, task: int) -> None:
        """Add values; which are drawn depends on the number of the task, and on how many it had
        before.
        """
        for start in range(0, len(values), _SLICE):
            part = values.slice(start, _SLICE)
            known = part.filter(pc.invert(pc.is_null(part, nan_is_null=True)))
            count = len(known)
            found = Distribution(count, len(part) - count)
            if pa.types.is_binary(part.type):
                known = pc.binary_slice(known, 0, _MOST_BYTES)
            elif count:
                numbers = known.to_numpy().astype(float)
                keys = np.random.default_rng((task, self.count)).random(count)
                found.zeros = count - int(np.count_nonzero(numbers))
                found.low, found.high = pc.min_max(known).as_py().values()
                found.mean = numbers.mean().item()
                found.squares = np.square(numbers - found.mean).sum().item()
                found.sample = np.stack([keys, numbers])
            if len(self.frequencies) <= MOST_DISTINCT:
                pairs = pc.value_counts(known)[: MOST_DISTINCT + 1].flatten()
                found.frequencies.update(dict(zip(*map(pa.Array.to_pylist, pairs), strict=True)))
            self.merge(found)

    def merge(self, other: Distribution) -> None:
        """Add what is known of other values."""
        before, shift = self.count, other.mean - self.mean
        self.count += other.count
        self.missing += other.missing
        self.zeros += other.zeros
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        share = other.count / max(self.count, 1)
        self.mean += shift * share
        self.squares += other.squares + shift**2 * before * share
        self.sample = np.hstack([self.sample, other.sample])
        if self.sample.shape[1] > _SAMPLE:
            first = np.argpartition(self.sample[0], _SAMPLE)[:_SAMPLE]
            self.sample = self.sample[:, first]
        if len(self.frequencies) <= MOST_DISTINCT:
            self.frequencies.update(other.frequencies)


Statistics: TypeAlias = defaultdict[tuple[str, str], Distribution]
"""By the name of a feature and what is measured of it: its "values"; their number in a record as
"length", where records that lack it are missing; the length of bytes as "bytes"; and of pictures, in
place of values, "format", "height" and "width".
"""


def _parts(column: pa.Array, kind: str) -> Iterator[tuple[str, pa.Array]]:
    if pa.types.is_list(column.type):
        yield "length", pc.list_value_length(column)
    while pa.types.is_list(column.type):
        column = column.flatten()
    if kind == "image":
        headers = map(pa.array, zip(*map(_header, column.to_pylist()), strict=True))
        yield from zip(("format", "height", "width"), headers, strict=False)
    else:
        yield "values", column
    if pa.types.is_binary(column.type):
        yield "bytes", pc.binary_length(column)


def _header(picture: bytes) -> tuple[bytes, int | None, int | None]:
    try:
        return str(image_format(picture)).encode(), *image_size(picture)
    except ImageDecodeError:
        return b"unreadable", None, None


def stored_features(
    features: RecordFeatures | None,
) -> tuple[RecordFeatures | None, dict[str, str]]:
    """Specs that read all that features want from records, as it is stored and with any number of
    values; and the kinds of values.
    """
    kinds: dict[str, str] = {}

    def stored(specs: Mapping[str, Feature] | None, reader: str = "_reader") -> dict[str, Feature]:
        readers = [getattr(spec, reader)(name) for name, spec in (specs or {}).items()]
        wants = [want for one in readers for want in one.wants]
        kinds.update((want.key, _KINDS.get(want.what, want.kind.counted)) for want in wants)
        return {want.key: VarLenFeature(_DTYPES[want.kind.field]) for want in wants}

    if isinstance(features, SequenceFeatures):
        steps = stored(features.sequence_features, "_step_reader")
        return SequenceFeatures(stored(features.context_features), steps), kinds
    if isinstance(features, Mapping):
        return stored(features), kinds
    return None, {"record": _KINDS.get(type(features).__name__, "bytes")}


def measure_task(
    kinds: Mapping[str, str], item: tuple[int, ScanTask], advance: Advance
) -> Statistics:
    """Measure the records of a task.

    Args:
        kinds: Those of `stored_features`.
        item: The number of the task, and the task, which reads these.
        advance: Called with the number of its records in the end.
    """
    number, task = item
    found: Statistics = defaultdict(Distribution)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the data set's report has what is left out
        batches = task.read()
        while held := [*islice(batches, _BATCHES)]:
            table = pa.Table.from_batches(held).combine_chunks()
            found[ROWS].count += table.num_rows
            for name, kind in kinds.items():
                for part, values in _parts(table.column(name).chunk(0), kind):
                    found[name, part].add(values, number)
    advance(task.num_rows)
    return found
