"""Draws with replacement: by weight, frozen, each place by itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord import RecordSampler, balanced_weights

pytestmark = pytest.mark.usefixtures("random_states_untouched")


def draws(weights, epoch=0, **options):
    sampler = RecordSampler(weights, weights=weights, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_frozen():
    # Promised to users; a change breaks their runs.
    assert draws([1, 2, 3, 4] * 3) == [6, 9, 3, 3, 11, 0, 6, 11, 5, 2, 10, 7]


def test_frequencies_follow_the_weights():
    weights = np.array([5, 0, 1, 2, 0, 12])
    many = np.tile(weights, 100)
    found = np.concatenate([draws(many, epoch, seed=3) for epoch in range(100)]) % 6
    counts = np.bincount(found, minlength=6)
    assert counts[[1, 4]].tolist() == [0, 0]
    expected = len(found) * weights[weights > 0] / 20
    # 3 degrees of freedom, p = 0.001
    assert ((counts[weights > 0] - expected) ** 2 / expected).sum() < 16.3


@given(
    st.lists(st.sampled_from([0, 1, 1e-300, 0.1, 7, 1e300]), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_no_position_without_a_weight_is_ever_drawn(weights, seed):
    if any(weights):
        found = [draws(weights, epoch, seed=seed) for epoch in range(30)]
        assert all(weights[position] > 0 for each in found for position in each)


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
        draws(weights)


def test_nothing_to_draw_from():
    assert draws([]) == []


def test_balanced():
    labels = ["dog", "cat", "dog", "dog", "bird", "cat"]
    weights = balanced_weights(labels)
    assert weights.tolist() == [1 / 3, 1 / 2, 1 / 3, 1 / 3, 1, 1 / 2]
    assert balanced_weights([]).tolist() == []
    with pytest.raises(ValueError, match=r"labels must have one dimension, got shape \[2, 1\]"):
        balanced_weights([[1], [2]])
