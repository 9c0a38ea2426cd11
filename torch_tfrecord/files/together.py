"""A function of many items at once, by threads: for steps that wait for a storage."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

__all__ = ["each_at_once"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each_at_once(
    function: Callable[[_Item], _Result], items: Iterable[_Item], most: int = 32
) -> Iterator[_Result]:
    """What the function gives for each item, in their order; up to `most` of them are under way.

    An error is raised in its turn. Where it is not gone through to its end, what has not begun does
    not begin, and nobody waits for the rest, as a pool's threads would be waited for at the end of
    Python.

    Example:
        >>> list(each_at_once(str, [1, 2, 3]))
        ['1', '2', '3']
    """
    begun = (_begin(function, item) for item in items)
    waiting = deque(islice(begun, most))
    while waiting:
        yield waiting.popleft().result()
        waiting.extend(islice(begun, 1))


def _begin(function: Callable[[_Item], _Result], item: _Item) -> Future[_Result]:
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(function(item))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="tfrecord-remote-file", daemon=True).start()
    return future
