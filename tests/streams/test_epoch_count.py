"""EpochCount: iterations of a stream are counted, and all workers of an iteration agree.

Covers streams/iterations.
"""

import copy
import os
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from torch_tfrecord.streams import iterations
from torch_tfrecord.streams.iterations import EpochCount

# Forks where threads of other tests run; as many workers as this machine may not have.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded"
)


def test_in_one_process():
    epochs = EpochCount()
    found = [epochs.next(), epochs.begin(), epochs.next(), epochs.begin()]
    assert found == [(0, 0), (0, 0), (1, 1), (1, 1)]
    epochs.choose(7)
    assert [epochs.next(), epochs.begin(), epochs.begin()] == [(2, 7), (2, 7), (3, 8)]


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda epochs: pickle.loads(pickle.dumps(epochs))]
)
def test_a_copy_goes_on_by_itself(again):
    epochs = EpochCount()
    epochs.choose(5)
    other = again(epochs)
    assert [other.begin(), other.begin(), epochs.begin()] == [(0, 5), (1, 6), (0, 5)]


def test_leaves_no_open_file():
    before = os.listdir("/dev/fd")
    for _ in range(3):
        EpochCount().begin()
    assert os.listdir("/dev/fd") == before


class Loader:
    """Workers as those of a DataLoader's iterator, in this process."""

    number = 0

    def __init__(self, epochs, monkeypatch, seed, num_workers=2, place=None, owner=1):
        self.monkeypatch, self.seed, self.owner = monkeypatch, seed, owner
        self.place = Loader.number if place is None else place
        Loader.number += num_workers
        self.copies = []
        for _ in range(num_workers):
            file = SimpleNamespace(detach=lambda: os.dup(epochs._file))
            self.copies.append(EpochCount(file=file))

    def do(self, worker, name, *arguments):
        with self.monkeypatch.context() as patch:
            info = SimpleNamespace(id=worker, seed=self.seed + worker)
            patch.setattr(iterations, "get_worker_info", lambda: info)
            places = (
                self.place if isinstance(self.place, list) else range(self.place, self.place + 99)
            )
            patch.setattr(iterations, "_process_number", lambda: places[worker])
            patch.setattr(iterations, "_owner", lambda: str(self.owner))
            return getattr(self.copies[worker], name)(*arguments)

    def begin(self, worker):
        return self.do(worker, "begin")[1]


def test_workers_of_an_iteration_agree_whichever_is_first(monkeypatch):
    epochs = EpochCount()
    for epoch, order in enumerate([(0, 1, 2), (2, 1, 0), (1, 0, 2)]):
        loader = Loader(epochs, monkeypatch, seed=epoch, num_workers=3)
        assert [loader.begin(worker) for worker in order] == [epoch] * 3
    lasting = Loader(epochs, monkeypatch, seed=9)
    assert [lasting.begin(worker) for worker in (0, 1, 1, 0, 0, 1)] == [3, 3, 4, 4, 5, 5]


def test_a_worker_behind_finds_the_epochs_of_the_others(monkeypatch):
    """By one iteration: a loader begins the next one when all workers have begun the one before."""
    epochs = EpochCount()
    lasting = Loader(epochs, monkeypatch, seed=1)
    ahead, behind = [lasting.begin(0)], []
    for number in range(200):
        ahead.append(lasting.begin(0))
        if number % 2:
            other = Loader(epochs, monkeypatch, seed=100 + number)
            assert [other.begin(0), other.begin(1)] == [ahead[-1] + 1] * 2
        behind.append(lasting.begin(1))
    assert [*behind, lasting.begin(1)] == ahead
    assert ahead[:7] == [0, 1, 2, 4, 5, 7, 8]


def test_an_iterator_that_was_dropped_before_all_had_begun(monkeypatch):
    epochs = EpochCount()
    assert Loader(epochs, monkeypatch, seed=1).begin(0) == 0
    loader = Loader(epochs, monkeypatch, seed=2)
    assert [loader.begin(1), loader.begin(0)] == [1, 1]


def test_the_same_seed_once_more(monkeypatch):
    # As after torch.manual_seed before each epoch, or by loaders that get equal generators.
    epochs = EpochCount()
    for epoch in range(3):
        loader = Loader(epochs, monkeypatch, seed=5)
        assert [loader.begin(1), loader.begin(0)] == [epoch] * 2
    first, second = Loader(epochs, monkeypatch, seed=5), Loader(epochs, monkeypatch, seed=5)
    assert [first.begin(0), second.begin(0), second.begin(1), first.begin(1)] == [3, 4, 4, 3]


def test_processes_that_another_thread_starts_in_between(monkeypatch):
    epochs = EpochCount()
    first = Loader(epochs, monkeypatch, seed=1, place=[10, 12, 19])
    second = Loader(epochs, monkeypatch, seed=2, place=[11, 13, 14])
    assert [loader.begin(worker) for worker in (0, 1) for loader in (first, second)] == [0, 1, 0, 1]


def test_what_is_chosen_in_a_worker(monkeypatch):
    epochs = EpochCount()
    loader = Loader(epochs, monkeypatch, seed=1)
    for worker in (0, 1):  # as by a dataset around it, in its __iter__
        loader.do(worker, "choose", 4)
        assert loader.do(worker, "next")[1] == 4
        assert loader.begin(worker) == 4
    assert [loader.begin(1), loader.begin(0)] == [5, 5]


def test_each_process_counts_its_own_loaders(monkeypatch):
    epochs = EpochCount()
    epochs.choose(2)
    ranks = [Loader(epochs, monkeypatch, seed=7, owner=owner) for owner in (1001, 1002)]
    found = [rank.begin(worker) for _ in range(2) for worker in (0, 1) for rank in ranks]
    assert found == [2, 2, 2, 2, 3, 3, 3, 3]
    assert epochs.begin() == (0, 2)


@pytest.mark.slow
def test_what_is_kept_stays_small(monkeypatch):
    epochs = EpochCount()
    lasting = Loader(epochs, monkeypatch, seed=1)
    assert [lasting.begin(0), lasting.begin(1)] == [0, 0]
    for number in range(200):
        loader = Loader(epochs, monkeypatch, seed=2**62 + number)
        assert loader.begin(0) == loader.begin(1) == 2 * number + 1
        assert lasting.begin(0) == lasting.begin(1) == 2 * number + 2
    assert os.fstat(epochs._file).st_size < 4000
    for owner in range(500):
        loader = Loader(epochs, monkeypatch, seed=owner, owner=10**6 + owner)
        assert loader.begin(0) == loader.begin(1) == 0
    assert os.fstat(epochs._file).st_size < 30_000


class Epochs(IterableDataset):
    """Each worker gives its number and the epoch, a few times."""

    def __init__(self):
        self.epochs = EpochCount()

    def __iter__(self):
        (_, epoch), worker = self.epochs.begin(), get_worker_info()
        return iter([(0 if worker is None else worker.id, epoch)] * 3)


def make_loader(dataset, num_workers, **options):
    return DataLoader(dataset, None, num_workers=num_workers, collate_fn=tuple, **options)


@pytest.mark.slow
@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize(
    "method", ["fork", pytest.param("spawn", marks=pytest.mark.daily), "forkserver"]
)
def test_in_a_loader(method, persistent_workers):
    dataset = Epochs()
    loader = make_loader(
        dataset,
        2,
        persistent_workers=persistent_workers,
        multiprocessing_context=method,
        generator=torch.Generator(),
    )
    for epoch in (0, 1):
        assert sorted(loader) == [(0, epoch)] * 3 + [(1, epoch)] * 3
    iterator = iter(loader)
    assert next(iterator) == (0, 2)
    del iterator
    dataset.epochs.choose(9)
    for epoch in (9, 10):
        assert sorted(loader) == [(0, epoch)] * 3 + [(1, epoch)] * 3


@pytest.mark.slow
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_loaders_in_turn(persistent_workers):
    dataset = Epochs()
    loaders = [make_loader(dataset, 2, persistent_workers=persistent_workers) for _ in range(2)]
    seen = set()
    for _ in range(2):
        pairs = list(zip(*loaders, strict=True))
        for samples in zip(*pairs, strict=True):
            epochs = {epoch for _, epoch in samples}
            assert len(samples) == 6
            assert len(epochs) == 1
            seen |= epochs
    assert seen == {0, 1, 2, 3}
