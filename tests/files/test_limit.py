"""How many requests are in flight: against storages that get faster by more of them, or do not."""

import pytest

from torch_tfrecord.files import engine
from torch_tfrecord.files.engine import AdaptiveLimit


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(engine, "monotonic", lambda: now[0])
    return now


def after(clock, adaptive, rate_of, seconds):
    """Let requests of 100 KB come back at the rate that a number of them has."""
    end = clock[0] + seconds
    while clock[0] < end:
        clock[0] += 1 / rate_of(adaptive.number)
        adaptive.finished(100_000, True)
    return adaptive.number


def test_climbs_while_it_pays(clock):
    # 20 ms each, as many as there are
    assert after(clock, AdaptiveLimit(), lambda number: number / 0.02, 3) == 256


def test_stays_where_more_bring_nothing(clock):
    assert 60 <= after(clock, AdaptiveLimit(), lambda number: min(number, 70) / 0.02, 10) <= 150


def test_goes_down_where_fewer_bring_as_much(clock):
    assert (
        10
        <= after(
            clock, AdaptiveLimit(), lambda number: min(number, 10) / 0.02 + 1 - number / 1e3, 200
        )
        <= 25
    )


def test_goes_back_from_what_is_slower(clock):
    assert after(clock, AdaptiveLimit(), lambda number: max(1000 - 4 * number, 10), 300) <= 16


@pytest.mark.slow
def test_a_storage_that_changes(clock):
    adaptive = AdaptiveLimit()
    after(clock, adaptive, lambda number: max(1000 - 4 * number, 10), 300)
    assert after(clock, adaptive, lambda number: number / 0.02, 60) > 100


def test_a_storage_that_refuses(clock):
    adaptive = AdaptiveLimit()
    adaptive.refused()
    adaptive.refused()  # of the same moment
    assert adaptive.number == 64
    for _ in range(10):
        clock[0] += 2
        adaptive.refused()
    assert adaptive.number == 4


def test_what_is_not_busy_tells_nothing(clock):
    adaptive = AdaptiveLimit()
    for _ in range(10_000):
        clock[0] += 0.001
        adaptive.finished(1, False)
    assert adaptive.number == 128
