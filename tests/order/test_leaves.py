"""Batches of datasets inside datasets, taken apart by the innermost ones."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, random_split

from torch_tfrecord import Mixture
from torch_tfrecord.order import Leaves

A, B = list(range(100, 110)), list(range(200, 206))


def read(dataset, positions):
    """What the parts of a batch say is at each of its places."""
    samples = [None] * len(positions)
    for leaf, inner, places, *_ in Leaves(dataset).parts(positions):
        assert places == sorted(places)
        for place, position in zip(places, inner, strict=True):
            samples[place] = leaf[position]
    return samples


DATASETS = {
    "list": A,
    "subset": Subset(A, [3, 3, 0, -1]),
    "array": Subset(A, np.array([4, 2])),
    "tensor": Subset(A, torch.tensor([4, 2])),
    "range": Subset(A, range(9, 0, -2)),
    "split": random_split(A, [7, 3], generator=torch.Generator().manual_seed(0))[1],
    "both": ConcatDataset([A, B]),
    "both parts": ConcatDataset([Subset(A, [9, 1]), Subset(B, [5]), Subset(A, [0, 2])]),
    "deep": Subset(ConcatDataset([Subset(A, [8, 6, 4]), ConcatDataset([B, A])]), [-1, 3, 0, 18, 2]),
    "mixture": Mixture([A, Subset(B, [2, 1, 0])], seed=1),
    "part of a mixture": Subset(Mixture([A, B], weights=[2, 1], seed=1), [5, 0, 7, 5]),
}


@pytest.mark.parametrize("name", DATASETS)
def test_as_one_by_one(name):
    dataset = DATASETS[name]
    positions = [*range(len(dataset)), 1, 0, -1, -len(dataset)]
    assert read(dataset, positions) == [dataset[position] for position in positions]
    assert read(dataset, []) == []


@pytest.mark.parametrize("position", [16, -17])
def test_out_of_range(position):
    with pytest.raises(IndexError, match=rf"^position {position} is out of range for 16 samples$"):
        Leaves(DATASETS["both"]).parts([0, position])


class Twice(Subset):
    """A user's class that reads in a way of its own."""

    def __getitem__(self, position):
        return super().__getitem__(position) * 2

    def __getitems__(self, positions):
        return [self[position] for position in positions]


def test_classes_of_users_are_not_looked_into():
    mine = Twice(A, [1, 2])
    (found,) = Leaves(ConcatDataset([mine, mine])).parts([3, 0])
    assert found.dataset is mine
    assert Leaves(mine).read([1, 0]) == [204, 202]


class Together(list):
    def __getitems__(self, positions):
        return [self[position] + 1000 for position in positions]


class Alone(Together):
    def __getitem__(self, position):
        return -super().__getitem__(position)


def test_a_method_that_is_newer_counts():
    assert Leaves(Together(A)).read([1]) == [1101]
    assert Leaves(Alone(A)).read([1]) == [-101]


class Drawing(list):
    """A dataset with random draws, which goes by the epoch that was chosen or by the salt of a
    batch.
    """

    draws_at_random = True

    def __init__(self, needs_salt):
        super().__init__(range(4))
        self._needs_salt = needs_salt

    def __getitems__(self, positions):
        return [getattr(positions, "salt", None)] * len(positions)


def test_a_chosen_epoch_wins_over_the_salt_of_others():
    chosen, free = Drawing(False), Drawing(True)
    both = ConcatDataset([Subset(chosen, [1, 2]), free])
    batch = Leaves(both).salted([0, 2, 1], lambda: 7)
    found = {id(part.dataset): part.positions for part in Leaves(both).parts(batch)}
    assert found[id(free)].salt == 7
    assert found[id(chosen)] == [1, 2]
    assert not hasattr(found[id(chosen)], "salt")
