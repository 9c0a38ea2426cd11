"""A function of many items at once."""

import threading
import time

import pytest

from torch_tfrecord.per_process import each_at_once


def test_in_their_order_and_at_once():
    barrier = threading.Barrier(8, timeout=200)
    assert list(
        each_at_once(lambda n: (barrier.wait(), time.sleep(0.001 * (8 - n)), n)[2], range(8), 8)
    ) == [*range(8)]
    assert list(each_at_once(str, range(100), 3)) == [str(number) for number in range(100)]
    assert list(each_at_once(str, [])) == []


def test_no_more_than_the_most_are_begun():
    begun = []
    results = each_at_once(begun.append, range(100), 4)
    next(results)
    results.close()
    assert len(begun) <= 5


def test_an_error_comes_in_its_turn():
    results = each_at_once(lambda number: 10 // number, [5, 2, 0, 1])
    assert [next(results), next(results)] == [2, 5]
    with pytest.raises(ZeroDivisionError):
        next(results)
