"""Turns by weight: exact proportions, close to them at every moment, each turn by itself.

Covers mixing/draws.
"""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord import Mixture

pytestmark = pytest.mark.usefixtures("random_states_untouched")
WEIGHTS = st.lists(st.one_of(st.integers(1, 10), st.integers(1, 10**6)), min_size=1, max_size=12)


def mixed(weights, seed=0):
    """Endless datasets."""
    datasets = [range(10**18)] * len(weights)
    return Mixture(datasets, weights, shuffle=False, seed=seed, stop="never")


def turns(mixture, places):
    return [mixture.locate(place)[0] for place in places]


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ([0.7, 0.2, 0.1], [7, 2, 1]),
        ([0.1, 0.3], [1, 3]),
        ([50_000, 1_281_167], [50_000, 1_281_167]),
        ([4, 6, 2], [2, 3, 1]),
        ([Fraction(1, 3), Fraction(2, 3)], [1, 2]),
        ([1e-6, 1], [1, 10**6]),
        ([2.5], [1]),
    ],
)
def test_weights_of_any_kind_are_proportions(weights, whole):
    assert mixed(weights).shares == [each / sum(whole) for each in whole]
    assert turns(mixed(weights), range(40)) == turns(mixed(whole), range(40))


# Promised to users; a change breaks their runs.
FROZEN = (
    [1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0],
    [0, 0, 0, 1, 0, 0, 2, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 2, 0, 0],
    [(0, 962436), (1, 37560942629), (0, 962436803714026008)],
)


def test_frozen():
    assert turns(mixed([2, 1]), range(12)) == FROZEN[0]
    assert turns(mixed([7, 2, 1], seed=1), range(20)) == FROZEN[1]
    large = mixed([1_281_167, 50_000, 3])
    assert [large.locate(place) for place in (10**6, 10**12, 10**18)] == FROZEN[2]


@pytest.mark.daily
@given(WEIGHTS, st.integers(0, 1000), st.integers(1, 300))
def test_counts_follow_the_weights_at_every_moment(weights, seed, num_turns):
    mixture = mixed(weights, seed)
    counts = [0] * len(weights)
    bound = 1 if len(weights) == 2 else 4
    for place in range(num_turns):
        component, before = mixture.locate(place)
        assert before == counts[component]
        counts[component] += 1
        for weight, count in zip(weights, counts, strict=True):
            assert (
                abs(count - Fraction(weight * (place + 1), sum(weights))) < bound
                or len(weights) == 1
            )


def test_equal_weights_do_not_fall_in_step_with_ranks():
    found = turns(mixed([1, 1]), range(2000))
    assert abs(Counter(found[::2])[0] - 500) < 100
    assert [sorted(found[place : place + 2]) for place in range(0, 20, 2)] == [[0, 1]] * 10
