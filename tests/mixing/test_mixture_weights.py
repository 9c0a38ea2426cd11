"""Weights that change at a position: what came before stays, each dataset goes on in its pass.

Covers mixing/mixture, mixing/draws.
"""

import copy
import json
import pickle
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord import Mixture

pytestmark = pytest.mark.usefixtures("random_states_untouched")
STOPS = ["first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "never"]
MOST = 60  # samples of an epoch that never stops


def numbers(*sizes):
    return [range(1000 * number, 1000 * number + size) for number, size in enumerate(sizes)]


def epoch_of(mixture, epoch):
    """The dataset and the position in it of every sample of an epoch."""
    mixture.set_epoch(epoch)
    return [mixture.locate(position) for position in range(len(mixture))]


def epochs_of(mixture, num_epochs=4):
    return [epoch_of(mixture, epoch) for epoch in range(num_epochs)]


def made(case, **options):
    sizes, weights, stop, seed = case
    limit = MOST if stop == "never" else None
    return Mixture(
        numbers(*sizes), weights, stop=stop, seed=seed, **{"num_samples": limit, **options}
    )


@st.composite
def cases(draw, stops=STOPS):
    num_datasets = draw(st.integers(1, 4))
    each = {"min_size": num_datasets, "max_size": num_datasets}
    sizes = draw(st.lists(st.integers(1, 20), **each))
    return sizes, draw(weights_of(num_datasets)), draw(st.sampled_from(stops)), draw(st.integers())


def weights_of(num_datasets):
    return st.lists(st.integers(1, 12), min_size=num_datasets, max_size=num_datasets)


def changed(mixture, data, num_changes):
    """Draw some changes, in any order of places, and make them."""
    for _ in range(num_changes):
        mixture.set_epoch(data.draw(st.integers(0, 2), label="epoch"))
        position = data.draw(st.integers(0, len(mixture)), label="position")
        mixture.set_weights(data.draw(weights_of(len(mixture.datasets))), position)
    return mixture


# What stays, and what changes.


@given(cases(), st.data())
def test_samples_before_the_change_stay(case, data):
    mixture, plain = made(case), made(case)
    before = epochs_of(plain)
    epoch = data.draw(st.integers(0, 3))
    mixture.set_epoch(epoch)
    position = data.draw(st.integers(0, len(mixture)))
    mixture.set_weights(data.draw(weights_of(len(case[0]))), position)
    after = epochs_of(mixture)
    assert after[:epoch] == before[:epoch]
    assert after[epoch][:position] == before[epoch][:position]


@given(cases(), st.data())
def test_each_dataset_has_its_share_after_the_change(case, data):
    sizes, _, stop, _ = case
    mixture = made(case)
    position = data.draw(st.integers(0, len(mixture)))
    weights = data.draw(weights_of(len(sizes)))
    mixture.set_weights(weights, position)
    bound = 1 if len(sizes) <= 2 else 4  # as for the weights of the constructor
    whole_run, begin_next = epochs_of(mixture, 2), 0
    for samples, begin in zip(whole_run, (position, begin_next), strict=True):
        gone = Counter(component for component, _ in samples[:begin])
        counts = [0] * len(sizes)
        for number, (component, _) in enumerate(samples[begin:], 1):
            is_exhausted = [
                gone[each] + count >= size
                for each, (count, size) in enumerate(zip(counts, sizes, strict=True))
            ]
            if stop == "all_exhausted_without_replacement" and any(is_exhausted):
                break  # then the others share its turns
            counts[component] += 1
            for weight, count in zip(weights, counts, strict=True):
                assert abs(count - Fraction(weight * number, sum(weights))) < bound


@given(cases(), st.data(), st.integers(0, 4))
def test_each_dataset_goes_on_in_its_pass(case, data, num_changes):
    plain = changed(made(case, shuffle=False), data, num_changes)
    shuffled = made(case)
    shuffled._set_weight_changes(plain._weight_changes())
    sizes, given = case[0], Counter()
    passes = {}
    for samples, mixed in zip(epochs_of(plain), epochs_of(shuffled), strict=True):
        for (component, position), (same_component, inner) in zip(samples, mixed, strict=True):
            assert same_component == component
            number, place = divmod(given[component], sizes[component])  # counted one by one
            assert position == place
            passes.setdefault((component, number), []).append(inner)
            given[component] += 1
    for (component, _), inner in passes.items():  # each pass has each sample once, in some order
        assert len(set(inner)) == len(inner)
        assert len(inner) == sizes[component] or set(inner) < set(range(sizes[component]))
    assert given.total() == sum(map(len, epochs_of(plain)))


def naive_length(turns, sizes, stop):
    """Where an epoch ends, from the endless turns of it."""
    counts, exhausted = Counter(), set()
    for number, component in enumerate(turns):
        if counts[component] >= sizes[component]:
            exhausted.add(component)
            if stop == "first_exhausted" or len(exhausted) == len(sizes):
                return number
        counts[component] += 1
    raise AssertionError("it did not end")


@given(cases(["first_exhausted", "all_exhausted"]), st.data(), st.integers(1, 4))
def test_an_epoch_ends_by_the_rule(case, data, num_changes):
    sizes, weights, stop, seed = case
    mixture = changed(made(case), data, num_changes)
    endless = Mixture(numbers(*sizes), weights, stop="never", seed=seed)
    endless._set_weight_changes(mixture._weight_changes())
    for epoch in range(4):
        mixture.set_epoch(epoch)
        length = len(mixture)
        turns = [endless.locate(position, epoch)[0] for position in range(length + 1)]
        assert [component for component, _ in epoch_of(mixture, epoch)] == turns[:-1]
        if any(change[:2] == [epoch, length] for change in mixture._weight_changes()):
            continue  # it ended there before the change, by the weights that it had
        assert naive_length(turns, sizes, stop) == length


@given(cases(["all_exhausted_without_replacement"]), st.data(), st.integers(1, 4))
def test_without_replacement_every_sample_comes_once(case, data, num_changes):
    mixture = changed(made(case), data, num_changes)
    everything = {(number, i) for number, size in enumerate(case[0]) for i in range(size)}
    for samples in epochs_of(mixture):
        assert len(samples) == len(everything)
        assert set(samples) == everything


# Promised to users; a change breaks their runs.
FROZEN = "01|0021002022000220011000|002200102200022002200"


def test_frozen():
    mixture = Mixture(numbers(30, 9, 9), [1, 2, 1], seed=3, stop="never", num_samples=24)
    mixture.set_weights([5, 1, 3], 2)
    mixture.set_epoch(1)
    mixture.set_weights([6, 1, 4], 3)
    found = ["".join(str(component) for component, _ in each) for each in epochs_of(mixture, 2)]
    assert f"{found[0][:2]}|{found[0][2:]}|{found[1][3:]}" == FROZEN


# Several changes.


def test_a_later_call_drops_what_comes_after_it():
    case = [50, 30, 20], [1, 1, 1], "never", 2
    mixture = made(case)
    mixture.set_weights([3, 1, 1], 20)
    mixture.set_weights([1, 3, 1], 40)
    mixture.set_epoch(2)
    mixture.set_weights([1, 1, 9], 10)
    assert mixture._weight_changes() == [
        [0, 20, [3, 1, 1]],
        [0, 40, [1, 3, 1]],
        [2, 10, [1, 1, 9]],
    ]
    mixture.set_epoch(0)
    mixture.set_weights([5, 1, 1], 30)
    assert mixture._weight_changes() == [[0, 20, [3, 1, 1]], [0, 30, [5, 1, 1]]]
    other = made(case)
    other.set_weights([3, 1, 1], 20)
    other.set_weights([5, 1, 1], 30)
    assert epochs_of(mixture) == epochs_of(other)
    mixture.set_epoch(0)
    for weights in ([7, 1, 1], [2, 1, 1], [9, 1, 1]):  # in place of the change there
        mixture.set_weights(weights, 30)
        assert mixture._weight_changes() == [[0, 20, [3, 1, 1]], [0, 30, weights]]


@given(cases(), st.data(), st.integers(0, 5))
def test_changes_are_a_pure_function_of_what_they_list(case, data, num_changes):
    mixture = changed(made(case), data, num_changes)
    changes = mixture._weight_changes()
    places = [change[:2] for change in changes]
    assert places == sorted(places)
    assert len(set(map(tuple, places))) == len(places)
    other = changed(made(case), data, 2)
    other._set_weight_changes(json.loads(json.dumps(changes)))
    assert other._weight_changes() == changes
    for same in (other, pickle.loads(pickle.dumps(mixture)), copy.deepcopy(mixture)):
        assert epochs_of(same) == epochs_of(mixture)
        assert same.shares == mixture.shares
        assert repr(same) == repr(mixture)
    other._set_weight_changes([])
    assert epochs_of(other) == epochs_of(made(case))
    assert (other.shares, other._weight_changes()) == (made(case).shares, [])


# Lengths.


def test_the_length_is_that_of_the_chosen_epoch():
    mixture = Mixture(numbers(40, 40), seed=1)
    plain = len(mixture)
    mixture.set_epoch(1)
    mixture.set_weights([3, 1], 10)
    lengths = []
    for epoch in range(4):
        mixture.set_epoch(epoch)
        lengths.append(len(mixture))
        assert repr(mixture).startswith(f"Mixture({lengths[-1]} samples of")
        assert mixture[-1] == mixture[lengths[-1] - 1]
        with pytest.raises(IndexError, match=f"out of range for {lengths[-1]} samples"):
            mixture[lengths[-1]]
    assert lengths[0] == plain > lengths[1] > lengths[2] == lengths[3]
    assert abs(lengths[1] - (10 + 35 * 4 / 3)) < 3
    assert abs(lengths[2] - 40 * 4 / 3) < 3
    component, inner = mixture.locate(plain - 1, 0)
    batch = Batch([plain - 1])  # a sampler's, whatever epoch was chosen here
    assert mixture.__getitems__(batch) == [1000 * component + inner]


class Batch(list):
    """Positions of a batch that know their epoch."""

    epoch = 0


def test_a_given_number_of_samples_stays():
    mixture = Mixture(numbers(7, 5), stop="never", num_samples=25)
    mixture.set_weights([9, 1], 10)
    assert [len(samples) for samples in epochs_of(mixture)] == [25] * 4
    endless = Mixture(numbers(7, 5), stop="never")
    endless.set_weights([1, 9], 10**12)
    assert [endless.locate(position, 5)[0] for position in range(20)].count(1) == 18
    turns = [endless.locate(10**12 + number, 0)[0] for number in range(20)]
    assert turns.count(1) == 18
    with pytest.raises(TypeError, match="has no length"):
        len(endless)


@pytest.mark.parametrize("stop", STOPS)
def test_an_epoch_that_is_over_does_not_grow(stop):
    for seed in range(20):
        case = [5, 9, 3], [3, 1, 1], stop, seed
        mixture, plain = made(case), made(case)
        mixture.set_weights([1, 1, 7], len(mixture))
        assert mixture._weight_changes() == [[0, len(plain), [1, 1, 7]]]
        assert epoch_of(mixture, 0) == epoch_of(plain, 0)
        new = made(([5, 9, 3], [1, 1, 7], stop, seed))
        turns = [component for component, _ in epoch_of(mixture, 1)]
        assert turns == [component for component, _ in epoch_of(new, 0)]
        mixture.set_epoch(0)
        mixture.set_weights([3, 1, 1], len(mixture) - 1)  # drops it
        assert [change[1] for change in mixture._weight_changes()] == [len(plain) - 1]


def test_empty_mixtures():
    mixture = Mixture(numbers(0, 0), stop="all_exhausted_without_replacement")
    mixture.set_weights([1, 2])
    assert epochs_of(mixture, 2) == [[], []]
    mixture = Mixture(numbers(4, 4), num_samples=0)
    mixture.set_weights([1, 2])
    assert epochs_of(mixture, 2) == [[], []]


# Which weights.


def test_weights_by_name_and_balanced():
    datasets = {"bridge": range(60), "kuka": range(1000, 1015)}
    by_number = Mixture(list(datasets.values()), seed=1, stop="all_exhausted")
    by_number.set_weights([1, 4], 12)
    for weights in ({"kuka": 1, "bridge": 0.25}, [("kuka", 4.0), ("bridge", 1), ("kuka", 7)]):
        mixture = Mixture(datasets, seed=1, stop="all_exhausted")
        mixture.set_weights(weights, from_position=np.int64(12))
        assert mixture.shares == [0.2, 0.8]
        assert epochs_of(mixture) == epochs_of(by_number)
    assert json.dumps(mixture._weight_changes()) == "[[0, 12, [1, 4]]]"
    mixture.set_epoch(0)
    assert repr(mixture) == (
        f"Mixture({len(mixture)} samples of 2 datasets: 'bridge' 20.0% of 60 samples, "
        "'kuka' 80.0% of 15 samples)"
    )
    balanced = Mixture(datasets, balance_weights=True, seed=1)
    balanced.set_weights([1, 16], 5)  # times 60 and 15
    assert balanced.shares == [0.2, 0.8]
    assert balanced._weight_changes() == [[0, 5, [1, 4]]]
    balanced.set_weights(None, 5)
    assert balanced.shares == [0.8, 0.2]
    restored = Mixture(datasets, balance_weights=True, seed=1)
    restored._set_weight_changes([[0, 5, [1, 4]]])  # whole ones, not multiplied again
    assert restored.shares == [0.2, 0.8]


# Wrong arguments.


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (([1, 1], 9), ValueError, "from_position must be at most 8, the length of epoch 0, got 9"),
        (([1, 1], -1), ValueError, "from_position must be an integer of at least 0, got -1"),
        (([1, 1], 1.0), TypeError, r"from_position must be an integer of at least 0, got 1.0 \(fl"),
        (([1, 1], False), TypeError, "from_position must be an integer of at least 0, got False"),
        (([1], 0), ValueError, "weights must have one number for each of 2 datasets, got 1"),
        (([1, 0], 0), ValueError, "weights must be finite numbers above 0, got 0"),
        (({"a": 1}, 0), ValueError, "weights by name need names: datasets must be a dict"),
    ],
)
def test_wrong_arguments(arguments, kind, text):
    mixture = Mixture(numbers(8, 9), [1, 1], num_samples=8)
    with pytest.raises(kind, match=f"^{text}"):
        mixture.set_weights(*arguments)
    assert (mixture._weight_changes(), mixture.shares) == ([], [0.5, 0.5])


def test_mixtures_without_weights_to_change():
    mixture = Mixture(numbers(4, 4), choices=[0, 1, 0])
    with pytest.raises(ValueError, match=r"^a Mixture with choices has no weights to change"):
        mixture.set_weights([1, 2])
    with pytest.raises(ValueError, match=r"^a Mixture with choices has no weights to change"):
        mixture._set_weight_changes([[0, 0, [1, 2]]])
    mixture._set_weight_changes([])
    assert (mixture._weight_changes(), mixture.shares) == ([], None)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([[0, 1, [1]]], "weights must have one number for each of 2 datasets, got 1"),
        ([[0, 1, [1, 2, 3]]], "weights must have one number for each of 2 datasets, got 3"),
        ([[0, 1, [0.5, 1]]], "expected whole weights, in the order of epochs and positions"),
        ([[0, 1, ["1", "2"]]], "expected whole weights, in the order of epochs and positions"),
        ([[0, 1, [2, 4]]], "expected whole weights, in the order of epochs and positions"),
        ([[0, 1, [1, True]]], "weights must be finite numbers above 0, got True"),
        ([[0, 1, [1, -2]]], "weights must be finite numbers above 0, got -2"),
        ([[0, 1.5, [1, 2]]], "epoch and position must be an integer of at least 0, got 1.5"),
        ([[-1, 1, [1, 2]]], "epoch and position must be an integer of at least 0, got -1"),
        ([[0, 99, [1, 2]]], "from_position must be at most 8, the length of epoch 0, got 99"),
        ([[0, 5, [1, 2]], [0, 4, [1, 3]]], "expected whole weights, in the order of epochs and"),
        ([[1, 5, [1, 2]], [0, 6, [1, 3]]], "expected whole weights, in the order of epochs and"),
        ([[0, 5, [1, 2]], [0, 5, [1, 2]]], "expected whole weights, in the order of epochs and"),
        ([[0, 1]], r".*"),
        ([[]], r".*"),
        ([[0, 1, 2, [1, 2]]], r".*"),
        ([7], r".*"),
        (None, r".*"),
        ({"0": 1}, r".*"),
    ],
)
def test_changes_that_do_not_fit(changes, text):
    mixture = Mixture(numbers(8, 9), [1, 1], num_samples=8)
    mixture.set_weights([1, 5], 3)
    samples = epochs_of(mixture)
    with pytest.raises(ValueError, match=f"^changes of weights .*: {text}"):
        mixture._set_weight_changes(changes)
    assert (mixture._weight_changes(), mixture.shares) == ([[0, 3, [1, 5]]], [1 / 6, 5 / 6])
    assert epochs_of(mixture) == samples
