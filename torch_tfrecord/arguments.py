"""Arguments that several modules have: the strings they may be, and checks of them."""

from __future__ import annotations

from operator import index as as_integer
from typing import Literal, TypeAlias

from torch_tfrecord.shown import shown_value

__all__ = [
    "IndexPolicy",
    "OnCorrupt",
    "Pad",
    "Shuffle",
    "at_least",
    "check_callable",
    "integer",
    "one_of",
    "true_or_false",
]

IndexPolicy: TypeAlias = Literal["auto", "require", "memory"]
"""Where indexes come from: kept ones or else built and kept; kept ones only; built and not kept."""

OnCorrupt: TypeAlias = Literal["raise", "skip"]
"""What happens at a damaged record."""

Pad: TypeAlias = Literal["repeat", "zero"] | None
"""What stands for the steps before and behind an episode; None leaves them out."""

Shuffle: TypeAlias = bool | Literal["blocks"]
"""A new order in each epoch; "blocks" is one that reads nearly in sequence."""


def at_least(least: int, name: str, value: object) -> int:
    """The value as int; NumPy's integers are integers, True is none.

    Raises:
        TypeError: It is no integer.
        ValueError: It is smaller.

    Example:
        >>> at_least(1, "batch_size", 2)
        2
    """
    number = integer(name, value, f"an integer of at least {least}")
    if number < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {shown_value(value)}")
    return number


def integer(name: str, value: object, wanted: str = "an integer") -> int:
    """The value as int, of any size; NumPy's integers are integers, True is none.

    Raises:
        TypeError: It is no integer.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be {wanted}, got {shown_value(value)} ({type(value).__name__})")
    return as_integer(value)


def true_or_false(name: str, value: object) -> bool:
    """The value as bool; NumPy's are bools, numbers are none.

    Raises:
        TypeError: It is neither.
    """
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):  # NumPy's, old and new
        raise TypeError(f"{name} must be True or False, got {shown_value(value)}")
    return bool(value)


def one_of(name: str, value: object, *choices: str | None) -> None:
    """ValueError unless the value is one of some strings, or None where that is one of them.

    Example:
        >>> one_of("on_corrupt", "ignore", "raise", "skip")
        Traceback (most recent call last):
        ...
        ValueError: on_corrupt must be 'raise' or 'skip', got 'ignore'
    """
    if not isinstance(value, (str, type(None))) or value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {shown_value(value)}")


def check_callable(name: str, value: object) -> None:
    """TypeError unless the value can be called, or is None."""
    if value is not None and not callable(value):
        raise TypeError(
            f"{name} must be a function (anything that can be called with a sample) or None, got {shown_value(value)}"
        )
