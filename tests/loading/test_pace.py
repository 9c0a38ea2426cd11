"""How many batches and threads a loader learns to read ahead with; from times that the tests give."""

import pytest

from torch_tfrecord.loading.pace import Pace


def load(pace, seconds_of, cpu_seconds, num_tasks):
    """Tasks whose batches take as long as the number of threads says."""
    for _ in range(num_tasks):
        each = seconds_of[pace.num_threads]
        pace.learn(pace.num_batches, each * pace.num_batches, cpu_seconds * pace.num_batches)
    return pace.num_threads


def test_tasks_grow_to_four_batches_of_a_millisecond():
    pace = Pace(2)
    found = []
    for _ in range(4):
        pace.learn(pace.num_batches, 0.5e-3 * pace.num_batches, 0.5e-3 * pace.num_batches)
        found.append(pace.num_batches)
    assert found == [2, 4, 4, 4]
    pace.learn(4, 4 * 2.1e-3, 4 * 2.1e-3)
    assert pace.num_batches == 1
    pace.learn(1, 0.0, 0.0)  # a clock that is too coarse
    assert pace.num_batches == 2


@pytest.mark.parametrize(
    ("seconds_of", "cpu_seconds", "expected"),
    [
        ({8: 8e-3, 4: 4e-3, 2: 2e-3, 1: 1e-3}, 1e-3, 1),  # they take turns
        ({8: 8e-3, 4: 4e-3, 2: 2e-3, 1: 1.2e-3}, 1e-3, 2),  # alone without overlap
        ({8: 8e-3, 4: 8e-3, 2: 8e-3, 1: 8e-3}, 1e-3, 8),  # a disk
        ({8: 1.1e-3, 4: 1e-3, 2: 1e-3, 1: 1e-3}, 1e-3, 8),  # they compute
        ({8: 3e-3, 4: 1.2e-3, 2: 1.2e-3, 1: 1.2e-3}, 1e-3, 4),  # as many as the memory feeds
    ],
)
def test_the_number_of_threads_that_is_as_fast(seconds_of, cpu_seconds, expected):
    pace = Pace(8)
    assert load(pace, seconds_of, cpu_seconds, 100) == expected
    assert load(pace, seconds_of, cpu_seconds, 1000) == expected
    assert load(pace, seconds_of, cpu_seconds, 1100) == expected  # once more from all


def test_a_file_that_is_in_memory_and_then_no_longer():
    pace = Pace(2)
    disk, memory = {2: 8e-3, 1: 8e-3}, {2: 2e-3, 1: 1e-3}
    assert load(pace, disk, 1e-3, 100) == 2
    assert load(pace, memory, 1e-3, 2100) == 1
    assert load(pace, disk, 1e-3, 2100) == 2


@pytest.mark.parametrize("pace", [Pace(1), Pace(2, is_fixed=True)])
def test_a_number_that_stays(pace):
    before = pace.num_threads
    assert load(pace, {2: 2e-3, 1: 1e-3}, 0.0, 3000) == before
