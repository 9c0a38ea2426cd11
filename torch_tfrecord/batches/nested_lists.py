"""Nested lists as arrays: what they hold, their shape, padding. For bytes and str, of which torch has no tensors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeAlias

__all__ = ["flat_sizes", "list_sizes", "pad_lists", "scalars"]

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


def flat_sizes(values: list[Any], kind: type) -> list[_Shape] | None:
    """The shape of each of several lists of one type of scalars, or of such scalars themselves; None of anything else.

    Example:
        >>> flat_sizes([["a", "b"], []], str), flat_sizes(["a"], str), flat_sizes([[["a"]]], str)
        ([(2,), (0,)], [()], None)
    """
    types = set(map(type, values))
    if types == {list} and set(map(type, chain.from_iterable(values))) <= {kind}:
        return [(len(value),) for value in values]
    return [()] * len(values) if types == {kind} else None


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


def pad_lists(values: list[Any], size: _Shape, fill: Any) -> list[Any]:
    """Several nested lists, each padded at the end of each dimension to a shape that is nowhere smaller.

    Example:
        >>> pad_lists([[["a"], ["b"]]], (2, 2), "")
        [[['a', ''], ['b', '']]]
    """
    if len(size) < 2:
        fills = [fill] * sum(size)
        return [[*value, *fills[len(value) :]] for value in values] if size else list(values)
    rows = [[*value, *[[]] * (size[0] - len(value))] for value in values]
    return [pad_lists(row, size[1:], fill) for row in rows]
