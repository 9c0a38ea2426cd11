"""Arguments that several modules share: the allowed strings, checks, names of shards, and what to write
in place of a wrong name.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar

from torch_tfrecord.shown import shown_value

__all__ = [
    "DecodeOn",
    "HintsOfDataset",
    "IndexPolicy",
    "OnError",
    "Pad",
    "PathLike",
    "Paths",
    "Shuffle",
    "StorageOptions",
    "WritableSpec",
    "at_least",
    "check_callable",
    "check_compression_type",
    "integer",
    "knows_keywords",
    "nearest",
    "one_of",
    "shard_name",
    "true_or_false",
]

IndexPolicy: TypeAlias = Literal["auto", "require", "memory"]
"""Where indexes come from: stored ones, else built and stored; stored ones only; built and not stored."""

OnError: TypeAlias = Literal["raise", "skip"]
"""What to do at a damaged record."""

DecodeOn: TypeAlias = Literal["cpu", "device", "auto"]
"""Where pictures of batches that go to a device are decoded."""

Pad: TypeAlias = Literal["repeat", "zero"] | None
"""How to fill steps before and after an episode; None excludes windows that would need them."""

PathLike: TypeAlias = "str | os.PathLike[str]"
"""One path."""

Paths: TypeAlias = "PathLike | Sequence[PathLike]"
"""What `find_files` takes."""

Shuffle: TypeAlias = bool | Literal["blocks"]
"""Whether to use a new order in each epoch; "blocks" reads nearly in sequence."""

StorageOptions: TypeAlias = Mapping[str, Any] | None
"""How a storage is reached, as fsspec's: keys, an endpoint, and the like."""


class Encoder(Protocol):
    """Makes the list of a record of a value.

    Attributes:
        kind: The name of the list.
        count: How many values it has to have, -1 for any number; -2 where it has to be asked for each value, whether
            it is of that kind or not.
    """

    kind: str
    count: int

    def __call__(self, value: object) -> object:
        """The `ListValues` that the spec reads back; None where the record lacks them."""


class WritableSpec(Protocol):
    """What encoding asks of a feature spec."""

    def _key_of(self, name: str) -> str:
        """The key in the record, given the name of the output."""

    def _encoder(self, name: str) -> Encoder:
        """Build what encodes the value with that name."""


def at_least(least: int, name: str, value: object) -> int:
    """The value as int; accepts NumPy's integers, but not True or False.

    Raises:
        TypeError: The value is not an integer.
        ValueError: The value is smaller than `least`.

    Example:
        >>> at_least(1, "batch_size", 2)
        2
    """
    number = integer(name, value, f"an integer of at least {least}")
    if number < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {shown_value(value)}")
    return number


def integer(name: str, value: object, wanted: str = "an integer") -> int:
    """The value as int, of any size; accepts NumPy's integers, but not True or False.

    Raises:
        TypeError: The value is not an integer.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"{name} must be {wanted}, got {shown_value(value)} ({type(value).__name__})"
        )
    return as_integer(value)


def true_or_false(name: str, value: object) -> bool:
    """The value as bool; accepts NumPy's bools, but not numbers.

    Raises:
        TypeError: The value is not a bool.
    """
    # NumPy's, old and new
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{name} must be True or False, got {shown_value(value)}")
    return bool(value)


def one_of(name: str, value: object, *choices: str | None) -> None:
    """ValueError unless the value is one of the choices, which are strings or None.

    Example:
        >>> one_of("on_error", "ignore", "raise", "skip")
        Traceback (most recent call last):
        ...
        ValueError: on_error must be 'raise' or 'skip', got 'ignore'
    """
    if not isinstance(value, (str, type(None))) or value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {shown_value(value)}")


def check_compression_type(compression_type: str | None, *, is_written: bool = False) -> str:
    """Normalise a compression type to "auto", "", "GZIP", "ZLIB" or "SNAPPY", which is only read;
    raise ValueError for anything else.
    """
    types = ("GZIP", "ZLIB") if is_written else ("GZIP", "ZLIB", "SNAPPY")
    name = "" if compression_type is None else compression_type
    if isinstance(name, str):
        if name.lower() == "auto":
            return "auto"
        if name.upper() in ("", *types):
            return name.upper()
    *others, last = map(repr, ("auto", None, "", *types))
    raise ValueError(
        f"compression_type must be {', '.join(others)} or {last}, got {compression_type!r}"
    )


def check_callable(name: str, value: object) -> None:
    """TypeError unless the value is callable or None."""
    if value is not None and not callable(value):
        raise TypeError(
            f"{name} must be a function (anything that can be called with a sample) or None, got {shown_value(value)}"
        )


# Wrong names.

_MOST_NAMES = 10_000  # that are compared: a folder may have millions
_Class = TypeVar("_Class", bound=type)


def shard_name(base: str, number: int, total: int, suffix: str = "") -> str:
    """Name of one shard of a set, as TensorFlow's tools write it.

    Example:
        >>> shard_name("train", 3, 10, ".tfrecord")
        'train-00003-of-00010.tfrecord'
    """
    return f"{base}-{number:05d}-of-{total:05d}{suffix}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Which name was meant, for the end of an error text; empty where none is like it.

    Example:
        >>> nearest("lable", ["image", "label"])
        "; did you mean 'label'?"
    """
    found = difflib.get_close_matches(name, islice(known, _MOST_NAMES), 1, 0.75)
    return f"; did you mean {found[0]!r}?" if found else ""


def knows_keywords(kind: _Class) -> _Class:
    """Let the TypeError for an unknown keyword of a class name the nearest one, as Python itself
    does from 3.13 on.
    """
    make: Any = kind.__init__  # type: ignore[misc]
    # Python's own errors say it, too, where a class above has the constructor.
    make.__qualname__ = f"{kind.__qualname__}.__init__"
    known = inspect.signature(make).parameters

    @functools.wraps(make)
    def checked(*args: object, **named: object) -> None:
        for name in named:
            if name not in known and (hint := nearest(name, known)):
                raise TypeError(
                    f"{make.__qualname__}() got an unexpected keyword argument {name!r}{hint}"
                )
        make(*args, **named)

    kind.__init__ = checked  # type: ignore[misc]
    return kind


_INSTEAD = {
    "batch": "make_dataloader(ds, batch_size) makes batches",
    "cache": "cache_dir= keeps remote files on a local disk",
    "filter": "where(name, value) selects records; with on_error='skip' a transform leaves out those for which it "
    "returns None",
    "map": "transform= is called with each sample",
    "prefetch": "make_dataloader(ds, batch_size) reads ahead",
    "repeat": "make_dataloader(ds, batch_size, num_epochs=None) never ends",
    "shard": "make_dataloader and the samplers give each rank and worker its part",
    "shuffle": "make_dataloader(ds, batch_size) shuffles; a stream takes shuffle=True",
    "skip": "ds[n:] is a dataset of the rest",
    "take": "ds[:n] is a dataset of the first n",
}


class HintsOfDataset:
    """Says what to use in place of the methods of other libraries' datasets; there is no attribute."""

    if not TYPE_CHECKING:  # type checkers would believe that any attribute is there

        def __getattr__(self, name: str) -> NoReturn:
            hint = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")
