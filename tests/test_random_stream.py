"""Seeded numbers, orders and keys: frozen for ever, complete, uniform."""

import numpy as np
import pytest

from torch_tfrecord.random_stream import RandomStream, record_keys, shuffled

pytestmark = pytest.mark.usefixtures("random_states_untouched")


def test_splitmix64_is_the_published_one():
    # The first outputs for state 1234567, as in the reference implementations.
    stream = RandomStream()
    stream._state = 1234567
    assert [stream._next() for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


# robustness 90: these orders were promised to users; a change of any of them breaks their runs.
FROZEN = [
    ((), [5, 11, 6, 7, 3, 1, 2, 9, 8, 0, 4, 10]),
    ((0,), [3, 6, 11, 4, 0, 7, 9, 5, 8, 2, 10, 1]),
    ((0, 0), [11, 9, 6, 1, 4, 8, 0, 10, 2, 3, 7, 5]),
    ((1, 0), [6, 9, 2, 1, 7, 3, 5, 4, 10, 0, 8, 11]),
    ((0, 1), [9, 7, 5, 0, 8, 1, 6, 4, 3, 10, 11, 2]),
    ((2**63, 5), [11, 3, 0, 9, 2, 1, 5, 8, 10, 4, 7, 6]),
    ((2**64 - 1,), [0, 10, 4, 3, 8, 2, 7, 1, 9, 6, 11, 5]),
    ((-1,), [6, 1, 9, 3, 8, 7, 2, 10, 4, 11, 5, 0]),
    ((2**64,), [2, 4, 7, 0, 6, 9, 1, 8, 10, 11, 3, 5]),
    ((2**70 + 3,), [3, 9, 4, 1, 7, 10, 2, 0, 5, 6, 11, 8]),
]


@pytest.mark.parametrize(("seeds", "order"), FROZEN, ids=str)
def test_frozen_permutations(seeds, order):
    assert shuffled(range(12), *seeds) == order


def test_a_shuffle_is_a_permutation_and_pure():
    items = ["b", "a", "c", "a"]
    assert sorted(shuffled(items, 1)) == sorted(items)
    assert items == ["b", "a", "c", "a"]
    assert shuffled([], 1) == []
    for size in (1, 2, 100, 1000):
        assert sorted(shuffled(range(size), 3, size)) == list(range(size))
        assert shuffled(range(size), 3, size) == shuffled(range(size), 3, size)


def test_numbers_of_a_stream_by_place():
    stream = RandomStream(4, 2)
    ahead = stream.numbers_at(np.arange(6, dtype=np.uint64)).tolist()
    assert ahead == [stream.number_at(place) for place in range(6)]
    assert ahead[:2] == stream.next_numbers(2).tolist()
    assert ahead[2:] == [stream._next() for _ in range(4)]


# Keys for random draws: a function of (epoch, position) alone.


def keys_of(positions, *seeds):
    return record_keys(np.array(positions), *seeds).tolist()


def test_frozen_keys():
    # Promised to users: a change changes what their augmentation draws.
    assert keys_of([0, 1, 10**12], 0) == FROZEN_KEYS


FROZEN_KEYS = [9451143353636776879, 2391539541053276776, 8084620723335325249]


def test_the_numbers_of_splitmix64():
    first = RandomStream(5).below(1 << 64)
    stream = RandomStream()
    stream._state = (first - 0x9E3779B97F4A7C15) % 2**64
    assert keys_of(range(4), 5) == stream.next_numbers(4).tolist()
