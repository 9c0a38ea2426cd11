"""How many requests are in flight: more while all is well, fewer where a storage refuses."""

import pytest

from torch_tfrecord.files import engine
from torch_tfrecord.files.engine import RequestLimit


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(engine, "monotonic", lambda: now[0])
    return now


def test_one_more_for_each_round():
    limit = RequestLimit()
    assert limit.number == 128
    for _ in range(129):
        limit.finished()
    assert limit.number == 129


def test_climbs_up_to_the_most():
    limit = RequestLimit(most=200)
    for _ in range(100_000):
        limit.finished()
    assert limit.number == 200


def test_a_storage_that_refuses(clock):
    limit = RequestLimit()
    limit.refused()
    limit.refused()  # of the same moment
    assert limit.number == 64
    for _ in range(10):
        clock[0] += 2
        limit.refused()
    assert limit.number == 4
    for _ in range(9):
        limit.finished()
    assert limit.number == 5
