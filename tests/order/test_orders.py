"""Orders of positions: frozen for ever, complete, uniform, each place by itself."""

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.order import Permutation

pytestmark = pytest.mark.usefixtures("random_states_untouched")

TABLE = 1 << 16  # the largest size with a table


def everything(order):
    return order.positions(np.arange(order.num_positions))


# These orders were promised to users; a change of any of them breaks their runs.
LITERAL_SMALL = {
    (0, (0, 0)): [],
    (1, (0, 0)): [0],
    (2, (0, 0)): [0, 1],
    (2, (0, 3)): [0, 1],
    (2, (0, 1)): [0, 1],
    (5, (0, 0)): [2, 3, 0, 1, 4],
    (12, ()): [2, 4, 6, 8, 5, 10, 1, 11, 7, 0, 9, 3],
    (12, (0, 0)): [5, 9, 2, 3, 8, 6, 0, 11, 1, 10, 4, 7],
    (12, (0, 1)): [8, 0, 6, 10, 1, 2, 3, 11, 9, 4, 7, 5],
    (12, (1, 0)): [2, 8, 10, 6, 4, 11, 5, 1, 9, 3, 7, 0],
    (12, (-1, 2)): [1, 9, 10, 6, 0, 5, 8, 11, 2, 7, 4, 3],
    (12, (1180591620717411303424, 0)): [2, 7, 8, 6, 1, 11, 3, 0, 9, 10, 4, 5],
}
LITERAL_LARGE = {
    (65537, (0, 0)): [62026, 61056, 53641, 41518, 62564],
    (65537, (0, 1)): [20561, 27221, 31106, 35261, 16616],
    (65537, (1, 0)): [20413, 58836, 19579, 45891, 4986],
    (1000000, (0, 0)): [90460, 547974, 531170, 188893, 869781],
    (1048576, (5, 3)): [176040, 297346, 905163, 606000, 900000],
    (10000000000, (0, 0)): [2705237411, 7928340790, 1300998678, 4410882816, 1293318332],
    (10000000000, (-3, 7)): [3875723129, 9643837558, 6208977799, 3838985638, 9067763954],
    (9223372036854775808, (0, 0)): [
        5079613067968879738,
        9136227260024069688,
        4076872281499098781,
        4574718978640169174,
        4219954918617159582,
    ],
    (9223372036854775807, (18446744073709551616, 1)): [
        436660315019426949,
        8264747146995978711,
        7816482926751969298,
        4294368942146933089,
        1794809232742041185,
    ],
}


def test_frozen_tables():
    assert {
        (n, seeds): everything(Permutation(n, *seeds)).tolist() for n, seeds in LITERAL_SMALL
    } == LITERAL_SMALL


def test_frozen_bijections():
    # The first places, the last one, and places near the middle.
    for (n, seeds), positions in LITERAL_LARGE.items():
        order = Permutation(n, *seeds)
        places = [0, 1, 2, n // 2, n - 1]
        assert order.positions(np.array(places)).tolist() == positions
        assert [order[place] for place in places] == positions
    assert {type(number) for number in positions} == {int}


@pytest.mark.parametrize(
    "n", [0, 1, 2, 3, 1000, TABLE - 1, TABLE, TABLE + 1, 100_000, 1 << 17, (1 << 17) + 1]
)
def test_every_position_once(n):
    for seeds in ((), (0,), (3, 1)):
        assert np.array_equal(np.sort(everything(Permutation(n, *seeds))), np.arange(n))


@pytest.mark.slow
@given(st.integers(1, 1 << 63), st.integers(), st.data())
def test_places_alone_and_together(n, seed, data):
    order = Permutation(n, seed)
    places = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    found = order.positions(np.array(places, np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == [order[place] for place in places]
    assert all(0 <= position < n for position in found.tolist())
    assert len(set(found.tolist())) == len(set(places))


def test_the_ends_of_the_range():
    order = Permutation(1 << 63, 0)
    assert order[0] != order[(1 << 63) - 1]
    for n in (-1, (1 << 63) + 1):
        with pytest.raises(ValueError, match=rf"num_positions must be from 0 to 2\^63, got {n}"):
            Permutation(n)
    for place in (-1, 5):
        with pytest.raises(IndexError, match=f"place {place} is out of range for 5 positions"):
            Permutation(5)[place]


@pytest.mark.daily
@pytest.mark.parametrize("n", [3, 4, 5])
def test_every_order_is_as_likely_as_any(n):
    expected = 100
    draws = expected * math.factorial(n)
    counts = Counter(tuple(everything(Permutation(n, seed, 1)).tolist()) for seed in range(draws))
    assert set(counts) == set(permutations(range(n)))
    check_chi_square(np.array(list(counts.values())), expected)


def check_chi_square(counts, expected, deviations=4):
    degrees = len(counts) - 1
    assert (
        abs(((counts - expected) ** 2 / expected).sum() - degrees)
        < deviations * math.sqrt(2 * degrees) + 4
    )


@pytest.mark.daily
@pytest.mark.parametrize("n", [5000, TABLE, TABLE + 1, 1 << 17, 300_007])
def test_large_orders_look_random(n):
    seeds, cells = 12, 32
    together, serial, low = np.zeros(cells**2), np.zeros(cells**2), np.zeros(cells**2)
    fixed = []
    for seed in range(seeds):
        order = everything(Permutation(n, seed, 0))
        places = np.arange(n)
        fixed.append(int((order == places).sum()))
        there = order * cells // n
        together += np.bincount(places * cells // n * cells + there, minlength=cells**2)
        serial += np.bincount(there[:-1] * cells + there[1:], minlength=cells**2)
        low += np.bincount(places % cells * cells + order % cells, minlength=cells**2)
    # 31 x 31 degrees of freedom, as rows and columns are full: a little below the counts' number.
    for counts in (together, serial, low):
        expected = seeds * n / cells**2
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < 1023 + 4 * math.sqrt(2 * 1023)
        assert chi_square > 700
    assert 0 < sum(fixed) < 3 * seeds  # one of a random order's positions stays, on average
