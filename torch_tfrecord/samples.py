"""Which record each sample is from: so that errors after reading can name it, and `Source` can give
it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from google.protobuf.message import Message

from torch_tfrecord.error_log import RAISES, ErrorLog
from torch_tfrecord.shown import printable, shown_callable, shown_list

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import torch

__all__ = [
    "LEFT_OUT",
    "WHOLE_KINDS",
    "Batch",
    "Columns",
    "DType",
    "JsonList",
    "JsonObject",
    "LeadingPart",
    "Places",
    "RecordPlace",
    "SampleList",
    "Samples",
    "Transform",
    "Value",
    "Values",
    "check_for_torch",
    "is_listed",
    "is_ragged",
    "mark_listed",
    "mark_ragged",
    "place_of",
    "transform_each",
    "transform_one",
    "without_left_out",
]

Value: TypeAlias = Any
"""A sample, or a feature's value in it: what features give, or whatever a user's transform makes of it."""

DType: TypeAlias = "torch.dtype | type[bytes] | type[str]"
"""What a feature's values are."""

Samples: TypeAlias = Sequence[Value]
"""The samples of a batch."""

Values: TypeAlias = list[Value]
"""The values of one feature in a batch, or of all of them."""

Columns: TypeAlias = Any
"""The columns of a batch: one column, or a mapping or tuple of columns, nested like a sample."""

Batch: TypeAlias = Any
"""What a `collate_fn` returns."""

Transform: TypeAlias = Callable[[Value], Value]
"""What a user's function makes of a sample."""

Places: TypeAlias = Callable[[int], str]
"""From a sample's number in its batch to the record: ``<path>: record <n> at byte <offset>``."""


class LeadingPart(Protocol):
    """The beginning of a transform, where it needs only a part of an encoded value: a crop of a
    picture.
    """

    @property
    def rest(self) -> Sequence[Transform]:
        """The transforms that follow."""

    @property
    def is_all(self) -> bool:
        """Whether `batch` applies those, too."""

    def one(self, encoded: Value, /) -> torch.Tensor:
        """That part of a value that the spec has opened."""

    def batch(self, encoded: Samples, threads: Executor | None, /) -> torch.Tensor:
        """That part of several, decoded by these threads; all random draws come first, one value
        after another.
        """


class RecordPlace(NamedTuple):
    """Where a record is; its text is how errors name the record. The offset is None where none is
    known.
    """

    path: str
    offset: int | None
    position: int

    def __str__(self) -> str:
        offset = "" if self.offset is None else f" at byte {self.offset}"
        return f"{printable(self.path)}: record {self.position}{offset}"


class SampleList(list[Value]):
    """A list of samples that knows the record of each. Copies and pickles as a plain list.

    Args:
        samples: The samples.
        places: From a sample's number in this list to its record; None if unknown.
    """

    def __init__(self, samples: Iterable[Value], places: Places | None) -> None:
        super().__init__(samples)
        self._places = places
        self._before = tuple(self)  # a custom collate_fn may sort or filter the list

    @property
    def places(self) -> Places | None:
        """From a sample's number to its record; None once the list was changed."""
        is_same = len(self) == len(self._before) and all(map(operator.is_, self, self._before))
        return self._places if is_same else None

    # The records are those of this process's batch; a worker sends the samples alone.
    def __reduce__(self) -> tuple[type[Values], tuple[Values]]:
        return list, (list(self),)


def place_of(samples: object, number: int) -> str | None:
    """The record of a sample of a batch; None if unknown."""
    places: Places | None = getattr(samples, "places", None)
    return None if places is None else places(number)


# Transforms.


class _LeftOut(Enum):
    """In place of a sample whose record failed, where ``on_error="skip"``, until the batch is
    whole.
    """

    LEFT_OUT = auto()


LEFT_OUT = _LeftOut.LEFT_OUT


def transform_each(transform: Transform, samples: Samples, errors: ErrorLog = RAISES) -> SampleList:
    """Apply the transform to each sample; see `transform_one`."""
    places: Places | None = getattr(samples, "places", None)
    return SampleList(
        [transform_one(transform, *pair, places, errors) for pair in enumerate(samples)], places
    )


def transform_one(
    transform: Transform,
    number: int,
    sample: Value,
    places: Places | None,
    errors: ErrorLog = RAISES,
) -> Value:
    """Apply the transform to one sample; an exception in it gets a note that names record `number`.

    Raises:
        TypeError: It returned None, and records are not left out; or it takes no dicts.
    """
    if sample is LEFT_OUT:
        return sample
    try:
        found = transform(sample)
    except Exception as error:
        if errors.takes(error):
            errors.add(type(error).__name__, f"{_named(places, number)}{error}")
            return LEFT_OUT
        # torchvision's functions for pictures, which show what they were given
        is_shown = isinstance(error, TypeError) and str(type(sample)) in str(error)
        if is_shown and isinstance(sample, Mapping):
            raise TypeError(
                f"{_named(places, number)}the transform {shown_callable(transform)} takes a picture, and a sample is a "
                f"dict of {shown_list([*sample], repr)}: take a class of torchvision.transforms.v2, or transform "
                "sample['image'] in a function of yours"
            ) from error
        # Python 3.10 has no notes, and changing the text or class could break code that catches it.
        if places is not None and hasattr(error, "add_note"):
            error.add_note(f"in the transform of {places(number)}")
        raise
    if found is not None:
        return found
    text = f"{_named(places, number)}the transform {shown_callable(transform)} returned None"
    if not errors.skips:
        raise TypeError(f"{text}: expected a sample")
    errors.add("None", text)
    return LEFT_OUT


def without_left_out(samples: Samples) -> Samples:
    """The samples of a batch but those that were left out."""
    if not isinstance(samples, SampleList):
        return samples  # columns
    # numbers, not samples: what is kept still has to name its record
    kept = [number for number, sample in enumerate(samples) if sample is not LEFT_OUT]
    if len(kept) == len(samples):
        return samples
    places = samples.places
    return SampleList(
        [samples[number] for number in kept], places and (lambda number: places(kept[number]))
    )


def _named(places: Places | None, number: int) -> str:
    return "" if places is None else f"{places(number)}: "


# torch's own collate_fn.


def check_for_torch(samples: Sequence[object], places: Places | None) -> None:
    """ValueError if samples have features of different sizes, which ``default_collate`` cannot
    stack.

    torch's own error, "stack expects each tensor to be equal size", does not say what to do about
    it.
    """
    sizes = dict(_sizes(samples[0], ""))
    for number, sample in enumerate(samples):
        for name, size in _sizes(sample, ""):
            # a key that the first sample lacks is a KeyError of torch
            if sizes.get(name, size) == size:
                continue
            where = "" if places is None else f" ({places(number)})"
            raise ValueError(
                f"{name or 'samples'}: torch's default collate_fn stacks equal sizes only, got {sizes[name]} in sample "
                f"0, {size} in sample {number}{where}: give the DataLoader collate_fn=torch_tfrecord.collate, for "
                "jagged tensors and lists, or collate_fn=torch_tfrecord.PaddedCollate(), for padded ones; pictures get "
                "one size by Image(crop=...) or in a transform"
            )


def _sizes(value: object, name: str) -> Iterable[tuple[str, list[int]]]:
    """The shape of each tensor, and the length of each list, of a sample."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _sizes(part, f"{name}[{key!r}]")
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from _sizes(part, f"{name}[{number}]")
    elif isinstance(value, list):
        yield name, [len(value)]
    elif hasattr(value, "shape") and not getattr(value, "is_nested", False):
        yield name, list(value.shape)


# How collating makes a batch of a sample's values.

# Attributes, as a subclass of Tensor would make each operation on a sample slower.
_RAGGED = "_torch_tfrecord_ragged"
_LISTED = "_torch_tfrecord_listed"


def mark_ragged(tensor: torch.Tensor) -> torch.Tensor:
    """Mark a sample's tensor as variable-length, so that collating makes it jagged even if all
    lengths are equal.

    The mark belongs to the tensor object: it does not survive operations on it, or pickling to
    another process.
    """
    setattr(tensor, _RAGGED, True)
    return tensor


def is_ragged(tensor: torch.Tensor) -> bool:
    """Whether :func:`mark_ragged` marked this tensor object."""
    return getattr(tensor, _RAGGED, False)


def mark_listed(tensor: torch.Tensor) -> torch.Tensor:
    """Mark a sample's tensor so that collating makes a list of such tensors even if all sizes are
    equal.

    For sounds and videos of any length, whose last dimensions vary; the mark lasts as long as that
    of `mark_ragged`.
    """
    setattr(tensor, _LISTED, True)
    return tensor


def is_listed(tensor: torch.Tensor) -> bool:
    """Whether :func:`mark_listed` marked this tensor object."""
    return getattr(tensor, _LISTED, False)


class JsonObject(dict[str, Value]):
    """An object from JSON: a dict that a batch does not take apart."""


class JsonList(list[Value]):
    """A list from JSON, which a batch does not take apart."""


WHOLE_KINDS = (Message, JsonObject, JsonList)
"""Values that a batch lists as they are."""
