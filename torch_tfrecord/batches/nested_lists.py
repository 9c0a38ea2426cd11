"""Nested lists as arrays: what they hold, their shape, padding. For bytes and str, of which torch has no tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

__all__ = ["list_sizes", "pad_list", "scalars"]

_Shape: TypeAlias = tuple[int, ...]


def scalars(value: Any) -> Iterator[Any]:
    """What lies in nested lists, row-major.

    Example:
        >>> list(scalars([[b"a"], [], [b"b"]]))
        [b'a', b'b']
    """
    if isinstance(value, list):
        for item in value:
            yield from scalars(item)
    else:
        yield value


def list_sizes(values: list[Any]) -> list[_Shape]:
    """The shape of each of several nested lists; an empty one has as many dimensions as the others.

    Raises:
        ValueError: Lists of unequal length in one of them; says in which.

    Example:
        >>> list_sizes([[["a", "b"]], []])
        [(1, 2), (0, 0)]
    """
    sizes = []
    for number, value in enumerate(values):
        try:
            sizes.append(_list_size(value))
        except ValueError:
            raise ValueError(f"expected lists of equal length within sample {number}") from None
    rank = max(map(len, sizes))
    return [size + (0,) * (rank - len(size)) if 0 in size else size for size in sizes]


def _list_size(value: Any) -> _Shape:
    if not isinstance(value, list):
        return ()
    (inner,) = {_list_size(item) for item in value} or {()}
    return len(value), *inner


def pad_list(value: Any, size: _Shape, fill: Any) -> Any:
    """A nested list padded at the end of each dimension to a shape that is nowhere smaller.

    Example:
        >>> pad_list([["a"], ["b"]], (2, 2), "")
        [['a', ''], ['b', '']]
    """
    if not size:
        return value
    rest = size[1:]
    padded = [pad_list(item, rest, fill) for item in value]
    padded += [pad_list([], rest, fill) if rest else fill for _ in range(size[0] - len(value))]
    return padded
