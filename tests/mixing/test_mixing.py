"""Turns by weight: exact proportions, close to them at every moment, each turn by itself."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.mixing.draws import WeightedTurns, whole_weights

pytestmark = pytest.mark.usefixtures("random_states_untouched")
WEIGHTS = st.lists(st.one_of(st.integers(1, 10), st.integers(1, 10**6)), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ([0.7, 0.2, 0.1], [7, 2, 1]),
        ([0.1, 0.3], [1, 3]),
        ([1, 1, 1], [1, 1, 1]),
        ([50_000, 1_281_167], [50_000, 1_281_167]),
        ([4, 6, 2], [2, 3, 1]),
        ([Fraction(1, 3), Fraction(2, 3)], [1, 2]),
        ([1e-6, 1], [1, 10**6]),
        ([2.5], [1]),
    ],
)
def test_whole_weights(weights, whole):
    assert whole_weights(weights) == whole


# Promised to users; a change breaks their runs.
FROZEN = (
    [1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1],
    [2, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 2, 0, 1, 0, 0],
    [(0, 962437), (0, 962436803714), (0, 962436803714026007)],
)


def test_frozen():
    assert [WeightedTurns([2, 1], 0).turn(place).component for place in range(12)] == FROZEN[0]
    assert [WeightedTurns([7, 2, 1], 1, 5).turn(place).component for place in range(20)] == FROZEN[
        1
    ]
    large = WeightedTurns([1_281_167, 50_000, 3], 0)
    assert [tuple(large.turn(place)) for place in (10**6, 10**12, 10**18)] == FROZEN[2]


@pytest.mark.daily
@given(WEIGHTS, st.integers(0, 1000), st.integers(1, 300))
def test_counts_follow_the_weights_at_every_moment(weights, seed, num_turns):
    turns = WeightedTurns(weights, seed)
    counts = [0] * len(weights)
    bound = 1 if len(weights) == 2 else 4
    for place in range(num_turns):
        component, before = turns.turn(place)
        assert before == counts[component]
        counts[component] += 1
        for weight, count in zip(weights, counts, strict=True):
            assert (
                abs(count - Fraction(weight * (place + 1), sum(weights))) < bound
                or len(weights) == 1
            )
    assert turns.counts(num_turns) == counts


def test_equal_weights_do_not_fall_in_step_with_ranks():
    turns = WeightedTurns([1, 1], 0)
    first_of_pairs = Counter(turns.turn(place).component for place in range(0, 2000, 2))
    assert abs(first_of_pairs[0] - 500) < 100
    assert [
        sorted(turns.turn(place + k).component for k in (0, 1)) for place in range(0, 20, 2)
    ] == [[0, 1]] * 10
