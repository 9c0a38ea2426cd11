"""Checks of arguments that several modules have."""

from __future__ import annotations

from operator import index as as_integer
from typing import Any

from torch_tfrecord.shown import shown_value

__all__ = ["at_least", "check_callable", "integer", "true_or_false"]


def at_least(least: int, name: str, value: Any) -> int:
    """The value as int; NumPy's integers are integers, True is none.

    Raises:
        ValueError: It is no integer, or smaller.

    Example:
        >>> at_least(1, "batch_size", 2)
        2
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or as_integer(value) < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {shown_value(value)}")
    return as_integer(value)


def integer(name: str, value: Any) -> int:
    """The value as int, of any size; NumPy's integers are integers, True is none.

    Raises:
        TypeError: It is no integer.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {shown_value(value)} ({type(value).__name__})")
    return as_integer(value)


def true_or_false(name: str, value: Any) -> bool:
    """The value as bool; NumPy's are bools, numbers are none.

    Raises:
        TypeError: It is neither.
    """
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):  # NumPy's, old and new
        raise TypeError(f"{name} must be True or False, got {shown_value(value)}")
    return bool(value)


def check_callable(name: str, value: Any) -> None:
    """TypeError unless the value can be called, or is None."""
    if value is not None and not callable(value):
        raise TypeError(
            f"{name} must be a function (anything that can be called with a sample) or None, got {shown_value(value)}"
        )
