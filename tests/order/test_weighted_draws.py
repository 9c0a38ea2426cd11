"""Draws with replacement: by weight, frozen, each place by itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord import RecordSampler, balanced_weights
from torch_tfrecord.order.orders import WeightedDraws, cumulated

pytestmark = pytest.mark.usefixtures("random_states_untouched")


# Promised to users; a change breaks their runs.
FROZEN = [2, 3, 2, 2, 3, 0, 2, 3, 2, 1, 3, 2]


def test_frozen():
    draws = WeightedDraws(cumulated([1, 2, 3, 4]), 0, 0)
    assert draws.positions(np.arange(12)).tolist() == FROZEN


def test_frequencies_follow_the_weights():
    weights = np.array([5, 0, 1, 2, 0, 12])
    sums = cumulated(weights)
    found = np.concatenate(
        [WeightedDraws(sums, 3, epoch).positions(np.arange(1000)) for epoch in range(100)]
    )
    counts = np.bincount(found, minlength=6)
    assert counts[[1, 4]].tolist() == [0, 0]
    expected = 100_000 * weights[weights > 0] / 20
    # 3 degrees of freedom, p = 0.001
    assert ((counts[weights > 0] - expected) ** 2 / expected).sum() < 16.3


@given(
    st.lists(st.sampled_from([0, 1, 1e-300, 0.1, 7, 1e300]), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_no_position_without_a_weight_is_ever_drawn(weights, seed):
    if not any(weights):
        return
    draws = WeightedDraws(cumulated(weights), seed)
    found = draws.positions(np.arange(200))
    assert all(weights[position] > 0 for position in found.tolist())
    places = np.array([7, 3, 150])
    assert draws.positions(places).tolist() == found[places].tolist()


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([[1, 2]], r"weights must have one dimension, got shape \[1, 2\]"),
        ([1, -2, 3], r"weights must be finite and at least 0, got -2.0 at position 1"),
        ([1, 2, float("nan")], r"weights must be finite and at least 0, got nan at position 2"),
        ([float("inf")], r"weights must be finite and at least 0, got inf at position 0"),
        ([0, 0], "weights must not all be 0"),
    ],
)
def test_wrong_weights(weights, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        cumulated(weights)


def test_nothing_to_draw_from():
    assert list(RecordSampler([], weights=[])) == []


def test_balanced():
    labels = ["dog", "cat", "dog", "dog", "bird", "cat"]
    weights = balanced_weights(labels)
    assert weights.tolist() == [1 / 3, 1 / 2, 1 / 3, 1 / 3, 1, 1 / 2]
    assert balanced_weights([]).tolist() == []
    with pytest.raises(ValueError, match=r"labels must have one dimension, got shape \[2, 1\]"):
        balanced_weights([[1], [2]])
