"""Checks of arguments that several modules have."""

from __future__ import annotations

from operator import index as as_integer
from typing import Any

__all__ = ["at_least"]


def at_least(least: int, name: str, value: Any) -> int:
    """The value as int; NumPy's integers are integers, True is none.

    Raises:
        ValueError: It is no integer, or smaller.

    Example:
        >>> at_least(1, "batch_size", 2)
        2
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or as_integer(value) < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return as_integer(value)
