"""Mixtures: the order by position, each sample's place known, every way to stop."""

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from torch_tfrecord import (
    FixedLenFeature,
    Mixture,
    RecordSampler,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    collate,
)

pytestmark = pytest.mark.usefixtures("random_states_untouched")
STOPS = ["first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "never"]


def numbers(*sizes):
    return [range(1000 * number, 1000 * number + size) for number, size in enumerate(sizes)]


def everything(mixture):
    return [mixture[position] for position in range(len(mixture))]


CASES = [
    ((6, 2), [3, 1]),
    ((7, 7), None),
    ((100, 10, 1), [0.7, 0.2, 0.1]),
    ((5,), [2]),
    ((30, 3, 8, 1, 20), None),
    ((4, 90), [9, 1]),
]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(("sizes", "weights"), CASES)
def test_counts_and_orders(sizes, weights, stop):
    length = 500 if stop == "never" else None
    mixture = Mixture(
        numbers(*sizes), weights, seed=4, stop=stop, shuffle=False, num_samples=length
    )
    samples = everything(mixture)
    counts = Counter(sample // 1000 for sample in samples)
    if stop == "first_exhausted":
        assert any(counts[number] == size for number, size in enumerate(sizes))
        assert all(counts[number] <= size for number, size in enumerate(sizes))
    elif stop == "all_exhausted":
        assert any(counts[number] == size for number, size in enumerate(sizes))
        assert all(counts[number] >= size for number, size in enumerate(sizes))
    elif stop == "all_exhausted_without_replacement":
        assert sorted(samples) == sorted(
            sample for numbers_of_one in numbers(*sizes) for sample in numbers_of_one
        )
    for number, size in enumerate(sizes):  # each in its own order, again and again
        assert [sample - 1000 * number for sample in samples if sample // 1000 == number] == [
            place % size for place in range(counts[number])
        ]


@pytest.mark.parametrize("seed", [0, 1])
def test_each_pass_over_a_dataset_is_an_order_of_its_own(seed):
    mixture = Mixture(numbers(50, 7), [1, 1], seed=seed, stop="all_exhausted")
    samples = everything(mixture)
    of_second = [sample for sample in samples if sample >= 1000]
    passes = [of_second[begin : begin + 7] for begin in range(0, len(of_second) - 6, 7)]
    assert len(passes) > 5
    assert all(sorted(one) == list(range(1000, 1007)) for one in passes)
    assert len(set(map(tuple, passes))) > len(passes) // 2
    assert sorted(sample for sample in samples if sample < 1000) == list(range(50))
    other = everything(Mixture(numbers(50, 7), [1, 1], seed=seed + 2, stop="all_exhausted"))
    assert other != samples


def test_later_epochs_go_on_in_the_longer_dataset():
    mixture = Mixture(numbers(100, 10), seed=1)
    seen = []
    for epoch in range(10):
        mixture.set_epoch(epoch)
        samples = everything(mixture)
        seen += [sample for sample in samples if sample < 1000]
        assert sorted(sample for sample in samples if sample >= 1000) == list(range(1000, 1010))
    assert len(seen) > 80
    assert len(set(seen[:100])) == len(seen[:100])


class Epoch(list):
    """Positions of a batch that know their epoch."""

    epoch = 3


def test_batches_of_positions():
    class Batched:
        def __init__(self, first):
            self.first, self.asked = first, []

        def __len__(self):
            return 20

        def __getitems__(self, positions):
            self.asked.append(positions)
            return [self.first + position for position in positions]

    parts = [Batched(0), Batched(1000)]
    mixture = Mixture([*parts, range(2000, 2020)], seed=2)
    plain = Mixture(numbers(20, 20, 20), seed=2)
    positions = [5, 3, -1, 17, 5, 0, 30]
    assert mixture.__getitems__(positions) == [plain[position] for position in positions]
    assert [len(part.asked) for part in parts] == [1, 1]
    plain.set_epoch(3)
    assert mixture.__getitems__(Epoch(positions)) == [plain[position] for position in positions]
    assert mixture.__getitems__([]) == []


def test_a_dataset_is_told_the_pass_over_it():
    class Passes:
        def __len__(self):
            return 3

        def __getitems__(self, positions):
            return [(position, positions.epoch) for position in positions]

    mixture = Mixture([Passes(), range(5)], shuffle=False, stop="never", num_samples=10)
    asked = [sample for sample in mixture if isinstance(sample, tuple)]
    assert asked == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]
    assert [
        sample for sample in mixture.__getitems__(range(10)) if isinstance(sample, tuple)
    ] == asked
    mixture.set_epoch(1)
    assert [sample for sample in mixture if isinstance(sample, tuple)] == [
        (2, 1),
        (0, 2),
        (1, 2),
        (2, 2),
        (0, 3),
    ]


def test_mixtures_of_mixtures_go_on_in_their_passes():
    mixture = Mixture(
        [Mixture([*numbers(12)], seed=1), Mixture(numbers(5, 4), seed=2)],
        seed=3,
        stop="all_exhausted",
    )
    for epoch in range(3):
        mixture.set_epoch(epoch)
        positions = list(range(len(mixture)))
        assert mixture.__getitems__(positions) == [mixture[position] for position in positions]


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_a_sampler_over_ranks_and_workers(num_workers, world_size):
    mixture = Mixture(
        numbers(40, 13, 7), [5, 2, 1], seed=3, stop="all_exhausted_without_replacement"
    )
    taken = []
    for rank in range(world_size):
        sampler = RecordSampler(mixture, shuffle=False, rank=rank, world_size=world_size)
        loader = DataLoader(
            mixture, 4, sampler=sampler, num_workers=num_workers, generator=torch.Generator()
        )
        taken.append([sample for batch in loader for sample in batch.tolist()])
    assert [sample for step in zip(*taken, strict=True) for sample in step] == everything(mixture)


def test_positions_out_of_range():
    mixture = Mixture(numbers(4, 4), seed=1)
    n = len(mixture)
    assert mixture[-1] == mixture[n - 1]
    assert mixture[np.int64(0)] == mixture[-n]
    for position in (n, -n - 1):
        with pytest.raises(
            IndexError,
            match=f"position {n if position > 0 else -1} is out of range for {n} samples",
        ):
            mixture[position]
    endless = Mixture(numbers(4, 4), stop="never")
    assert endless[10**15] in {0, 1, 2, 3, 1000, 1001, 1002, 1003}
    with pytest.raises(TypeError, match="has no length"):
        len(endless)
    with pytest.raises(IndexError):
        endless[-1]


CHOICES = [0, 1, 2, 0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("first_exhausted", [0, 1000, 2000, 1]),
        ("all_exhausted", [0, 1000, 2000, 1, 1000, 2001, 2, 0, 1000]),
        ("all_exhausted_without_replacement", [0, 1000, 2000, 1, 2001, 2]),
        ("never", [0, 1000, 2000, 1, 1000, 2001, 2, 0, 1000]),
    ],
)
def test_choices(stop, expected):
    sizes = (3, 1, 2)
    mixture = Mixture(numbers(*sizes), choices=CHOICES, stop=stop, shuffle=False)
    assert everything(mixture) == list(mixture) == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"datasets": []}, "datasets must hold at least one dataset"),
        ({"weights": [1]}, "weights must have one number for each of 2 datasets, got 1"),
        ({"weights": [1, 0]}, "weights must be finite numbers above 0, got 0"),
        ({"weights": [1, 1], "choices": [0]}, "weights and choices cannot be given together"),
        ({"choices": [0, 2]}, "choices must be from 0 to 1, got 2"),
        ({"choices": [0, -1]}, "choices must be from 0 to 1, got -1"),
        (
            {"choices": [0.5]},
            r"choices must be a sequence of integers, got float64 with shape \[1\]",
        ),
        (
            {"stop": "first"},
            "stop must be 'first_exhausted', 'all_exhausted', .* or 'never', got 'first'",
        ),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        Mixture(**{"datasets": numbers(2, 2), **options})


@pytest.mark.parametrize("stop", ["all_exhausted", "never"])
def test_nothing_cannot_be_repeated(stop):
    with pytest.raises(
        ValueError, match=f"dataset 1 is empty: stop='{stop}' would draw from it forever"
    ):
        Mixture(numbers(2, 0), stop=stop)
    with pytest.raises(ValueError, match="dataset 1 is empty"):
        Mixture(numbers(2, 0), choices=[0, 1], stop=stop)
    assert len(Mixture(numbers(2, 0), choices=[0], stop=stop)) == 1


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def test_paths_are_refused():
    for wrong in (["data/train-*"], "data/train-*", {"a": [1], "b": b"data"}, [Path("x"), [1]]):
        with pytest.raises(
            TypeError, match=r"got (str|bytes|PosixPath): read its files with TFRec"
        ):
            Mixture(wrong)


@pytest.mark.parametrize(
    "stream",
    [Stream(), iter([1, 2]), DataLoader(range(3)), {1, 2}],
    ids=lambda one: type(one).__name__,
)
def test_streams_are_refused(stream):
    with pytest.raises(
        TypeError,
        match=rf"^datasets: expected datasets with a length and ds\[i\], got {type(stream).__name__}: read its "
        "files with TFRecordDataset, or put its samples into a list$",
    ):
        Mixture({"a": range(4), "b": stream}, balance_weights=True)


def write_ids(path, first, count):
    with TFRecordWriter(path) as writer:
        for number in range(first, first + count):
            writer.write({"id": number})
    return path


@pytest.mark.daily
def test_of_files(tmp_path):
    features = {"id": FixedLenFeature((), torch.int64)}
    paths = [write_ids(tmp_path / "a", 0, 30), write_ids(tmp_path / "b", 1000, 12)]
    parts = [TFRecordDataset(path, features, index="memory") for path in paths]
    mixture = Mixture(parts, [2, 1], stop="all_exhausted_without_replacement")
    sampler = RecordSampler(mixture, seed=1)
    ids = []
    for num_workers in (0, 2):
        loader = DataLoader(
            mixture,
            5,
            sampler=sampler,
            num_workers=num_workers,
            collate_fn=collate,
            generator=torch.Generator(),
        )
        ids.append([number for batch in loader for number in batch["id"].tolist()])
    assert ids[0] == ids[1]
    assert sorted(ids[0]) == [*range(30), *range(1000, 1012)]
    assert [
        int(pickle.loads(pickle.dumps(mixture))[position]["id"]) for position in sampler
    ] == ids[0]
    with pytest.raises(TypeError, match="got TFRecordIterableDataset: read its files with TFRec"):
        Mixture([TFRecordIterableDataset(path, features) for path in paths])


# By name.


def test_weights_by_name_are_those_in_the_order_of_the_datasets():
    datasets = {"bridge": range(40), "kuka": range(1000, 1013), "taco": range(2000, 2007)}
    plain = everything(Mixture(list(datasets.values()), [5, 2, 1], seed=3))
    assert plain == everything(Mixture(datasets, [5, 2, 1], seed=3))
    assert plain == everything(Mixture(datasets, {"taco": 0.5, "bridge": 2.5, "kuka": 1}, seed=3))
    pairs = [
        ("taco", 0.5),
        ("kuka", 1.0),
        ("bridge", 2.5),
        ("kuka", 9.0),
    ]  # OpenVLA's mixtures name some twice
    mixture = Mixture(datasets, pairs, seed=3)
    assert plain == everything(mixture)
    assert mixture.names == ["bridge", "kuka", "taco"]
    assert mixture.shares == [0.625, 0.25, 0.125]
    assert repr(mixture) == (
        f"Mixture({len(mixture)} samples of 3 datasets: 'bridge' 62.5% of 40 samples, 'kuka' 25.0% of 13 samples, "
        "'taco' 12.5% of 7 samples)"
    )
    assert Mixture(numbers(4, 4)).names is None
    assert Mixture(datasets, choices=[0, 2]).shares is None
    assert "2 samples of 3 datasets: 'bridge' 40 samples, " in repr(
        Mixture(datasets, choices=[0, 2])
    )


def test_balanced_weights_count_with_the_sizes():
    datasets = {"bridge": range(60), "kuka": range(1000, 1015)}
    mixture = Mixture(datasets, [("bridge", 0.5), ("kuka", 1.0)], balance_weights=True, seed=1)
    assert mixture.shares == [2 / 3, 1 / 3]  # 30 to 15
    assert everything(mixture) == everything(Mixture(list(datasets.values()), [2, 1], seed=1))
    equal = Mixture(datasets, balance_weights=True, seed=2, stop="all_exhausted")
    assert set(everything(equal)) == {*range(60), *range(1000, 1015)}
    assert len(equal) - 75 in (
        0,
        1,
        2,
    )  # one pass over each, and what comes before the last sample's turn


def test_names_and_weights_that_do_not_fit():
    datasets = {"bridge": range(4), "kuka": range(3)}
    with pytest.raises(
        ValueError, match=r"weights must name each of \['bridge', 'kuka'\], got \['bridge'\]"
    ):
        Mixture(datasets, {"bridge": 1.0})
    with pytest.raises(
        ValueError,
        match=r"weights must name each of \['bridge', 'kuka'\], got \['taco', 'kuka', 'bridge'\]",
    ):
        Mixture(datasets, [("bridge", 1.0), ("kuka", 1.0), ("taco", 1.0)])
    with pytest.raises(ValueError, match="weights by name need names: datasets must be a dict"):
        Mixture(list(datasets.values()), {"bridge": 1.0, "kuka": 1.0})
    with pytest.raises(
        ValueError, match="dataset 1 is empty: balance_weights would give it no weight"
    ):
        Mixture({"bridge": range(4), "kuka": []}, balance_weights=True)
    with pytest.raises(ValueError, match="balance_weights and choices cannot be given together"):
        Mixture(datasets, choices=[0, 1], balance_weights=True)
    with pytest.raises(TypeError, match="balance_weights must be True or False, got 1"):
        Mixture(datasets, balance_weights=1)
