"""How many batches and threads a loader learns to read ahead with; from times that the tests
give.
"""

import pytest

from torch_tfrecord.loading.pace import Pace


class Training:
    """It waits for its batches; every 25th task it pauses, for a validation."""

    def __init__(self, pace, step_seconds=0.0):
        self.pace, self.step_seconds = pace, step_seconds
        self.now = 0.0
        self.num_tasks = 0

    def load(self, seconds_of, cpu_seconds, num_tasks):
        """Tasks whose batches take as long as the number of threads says; the number of threads
        afterwards.
        """
        for _ in range(num_tasks):
            count, each = self.pace.num_batches, seconds_of[self.pace.num_threads]
            self.num_tasks += 1
            self.now += count * max(each / self.pace.num_threads, self.step_seconds) + 5 * (
                self.num_tasks % 25 == 0
            )
            self.pace.learn(count, count * each, count * cpu_seconds, self.now)
        return self.pace.num_threads


def test_tasks_grow_to_four_batches_of_a_millisecond():
    pace = Pace(2)
    found = []
    for _ in range(4):
        pace.learn(pace.num_batches, 0.5e-3 * pace.num_batches, 0.5e-3 * pace.num_batches, 0.0)
        found.append(pace.num_batches)
    assert found == [2, 4, 4, 4]
    pace.learn(4, 4 * 2.1e-3, 4 * 2.1e-3, 0.0)
    assert pace.num_batches == 1
    for _ in range(100):
        pace.learn(1, 0.0, 0.0, 0.0)  # a clock that is too coarse
    assert pace.num_batches == 4


@pytest.mark.parametrize(
    ("seconds_of", "cpu_seconds", "expected"),
    [
        ({8: 8e-3, 4: 4e-3, 2: 2e-3, 1: 1e-3}, 1e-3, 1),  # they take turns
        ({8: 8e-3, 4: 4e-3, 2: 2e-3, 1: 1.2e-3}, 1e-3, 2),  # alone without overlap
        ({8: 8e-3, 4: 8e-3, 2: 8e-3, 1: 8e-3}, 1e-3, 8),  # a disk
        ({8: 1.02e-3, 4: 0.5e-3, 2: 0.25e-3, 1: 0.1e-3}, 1e-3, 8),  # they compute all of the time
        ({8: 3e-3, 4: 1.2e-3, 2: 1.2e-3, 1: 1.2e-3}, 1e-3, 4),  # as many as the memory feeds
    ],
)
def test_the_number_of_threads_that_is_as_fast(seconds_of, cpu_seconds, expected):
    training = Training(Pace(8))
    assert training.load(seconds_of, cpu_seconds, 600) == expected
    assert training.load(seconds_of, cpu_seconds, 1300) == expected
    assert training.load(seconds_of, cpu_seconds, 1000) == expected  # once more from all


def test_as_many_as_a_slow_training_needs():
    training = Training(Pace(8), step_seconds=3e-3)
    assert training.load(dict.fromkeys((8, 4, 2, 1), 8e-3), 1e-3, 600) == 4


def test_a_file_that_is_in_memory_and_then_no_longer():
    training = Training(Pace(2))
    disk, memory = {2: 8e-3, 1: 8e-3}, {2: 2e-3, 1: 1e-3}
    assert training.load(disk, 1e-3, 200) == 2
    assert training.load(memory, 1e-3, 2200) == 1
    assert training.load(disk, 1e-3, 2200) == 2


@pytest.mark.parametrize("pace", [Pace(1), Pace(2, is_fixed=True)])
def test_a_number_that_stays(pace):
    before = pace.num_threads
    assert Training(pace).load({2: 2e-3, 1: 1e-3}, 0.0, 3000) == before
