"""A function of many items at once, by threads: for steps that wait for a storage."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

__all__ = ["each_at_once"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each_at_once(function: Callable[[_Item], _Result], items: Iterable[_Item], most: int = 32) -> Iterator[_Result]:
    """What the function gives for each item, in their order; up to `most` of them are under way.

    An error is raised in its turn. Where it is not gone through to its end, what has not begun does not begin.

    Example:
        >>> list(each_at_once(str, [1, 2, 3]))
        ['1', '2', '3']
    """
    left = iter(items)
    pool = ThreadPoolExecutor(most, "tfrecord-remote-files")
    try:
        waiting: deque[Future[_Result]] = deque(pool.submit(function, item) for item in islice(left, most))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(function, item) for item in islice(left, 1))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
