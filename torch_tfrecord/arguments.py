"""Arguments that several modules share: the allowed strings, and checks."""

from __future__ import annotations

from operator import index as as_integer
from typing import Literal, TypeAlias

from torch_tfrecord.shown import shown_value

__all__ = [
    "IndexPolicy",
    "OnError",
    "Pad",
    "Shuffle",
    "at_least",
    "check_callable",
    "integer",
    "one_of",
    "true_or_false",
]

IndexPolicy: TypeAlias = Literal["auto", "require", "memory"]
"""Where indexes come from: stored ones, else built and stored; stored ones only; built and not stored."""

OnError: TypeAlias = Literal["raise", "skip"]
"""What to do at a damaged record."""

Pad: TypeAlias = Literal["repeat", "zero"] | None
"""How to fill steps before and after an episode; None excludes windows that would need them."""

Shuffle: TypeAlias = bool | Literal["blocks"]
"""Whether to use a new order in each epoch; "blocks" reads nearly in sequence."""


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


def check_callable(name: str, value: object) -> None:
    """TypeError unless the value is callable or None."""
    if value is not None and not callable(value):
        raise TypeError(
            f"{name} must be a function (anything that can be called with a sample) or None, got {shown_value(value)}"
        )
