"""The state of make_dataloader's loader: what the training received, whatever threads and workers
have read ahead.
"""

import itertools
import json
import os

import pytest
import torch
from torch.utils.data import DistributedSampler, get_worker_info

from torch_tfrecord import (
    FixedLenFeature,
    RecordLoader,
    ShardedTFRecordWriter,
    TFRecordDataset,
    make_dataloader,
)

# DataLoader thinks more workers than processors a mistake; Python 3.12 and later warn of forks
# where threads run.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded"
)
FEATURES = {"id": FixedLenFeature((), torch.int64)}
N = 53


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loader")
    with ShardedTFRecordWriter(folder / "train", max_shard_bytes=700, write_index=True) as writer:
        for number in range(N):
            writer.write({"id": number})
    return f"{folder}/train-*"


def make(files, batch_size=4, **options):
    return make_dataloader(files, batch_size, FEATURES, **({"seed": 5, "num_epochs": 2} | options))


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def expected(files, batch_size=4, *, num_epochs=2, iteration=0, **options):
    """The batches of one iteration, by the sampler alone."""
    options.pop("num_workers", None)
    sampler = make_dataloader(
        TFRecordDataset(files), batch_size, seed=5, num_epochs=num_epochs, **options
    ).batch_sampler
    sampler.set_epoch(iteration * num_epochs)
    return list(sampler)


def plain(state):
    return json.loads(json.dumps(state))


LOADERS = {
    "no threads": {"num_threads": 0},
    "threads": {"num_threads": 3},
    "1 worker": {"num_workers": 1},
    "2 workers": {"num_workers": 2, "prefetch_factor": 4},
    "3 workers": {"num_workers": 3, "persistent_workers": True},
}


@pytest.mark.daily
@pytest.mark.parametrize("shuffle", [True, False, "blocks"])
@pytest.mark.parametrize("kind", LOADERS)
def test_resume_at_every_batch_is_the_uninterrupted_run(files, kind, shuffle):
    options = {"shuffle": shuffle, "rank": 1, "world_size": 2}
    loader = make(files, **options, **LOADERS[kind])
    assert len(loader) == 14
    ids(loader)  # the second iteration, epochs 2 and 3, is looked at
    states, found = [plain(loader.state_dict())], []
    for batch in loader:
        found.append(batch["id"].tolist())
        states.append(plain(loader.state_dict()))
    third = ids(loader)
    assert found == expected(files, iteration=1, **options)
    assert third == expected(files, iteration=2, **options)
    places = range(15) if kind in ("no threads", "threads") else [0, 1, 7, 14]
    for place in places:
        fresh = make(files, **options, **LOADERS[kind])
        fresh.load_state_dict(states[place])
        assert plain(fresh.state_dict()) == states[place]
        assert len(fresh) == 14 - place
        assert ids(fresh) == found[place:]
        assert len(fresh) == 14
        if place in (1, 14):
            assert ids(fresh) == third


@pytest.mark.slow
@pytest.mark.parametrize(
    "sequence", [("3 workers", "threads", "no threads"), ("threads", "2 workers", "1 worker")]
)
def test_any_workers_and_threads_go_on(files, sequence):
    whole = expected(files)
    state, found = None, []
    for number, kind in enumerate(sequence):
        loader = make(files, **LOADERS[kind])
        if state is not None:
            loader.load_state_dict(state)
        for batch in itertools.islice(
            loader, 30 if number == 2 else 9
        ):  # the second one goes over an epoch's end
            found.append(batch["id"].tolist())
            state = plain(loader.state_dict())
    assert found == whole


def test_a_state_before_and_after_an_iteration(files):
    loader = make(files, num_epochs=1, num_threads=0)
    assert (loader.epoch, loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (
        0,
        0,
        0,
    )
    iterator = iter(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (0, 0)
    assert len(iterator) == 14
    received = [next(iterator) for _ in range(14)]
    assert len(received) == 14
    assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (0, N)
    assert next(iterator, None) is None
    assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (1, 0)
    assert loader.epoch == 1


@pytest.mark.daily
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loop_of_a_training(files, num_workers):
    """As the documentation says: killed at every step of three epochs, also at their ends."""

    class Killed(Exception):
        pass

    def train(state, steps):
        loader = make(files, 16, num_epochs=1, num_workers=num_workers)
        if state is not None:
            loader.load_state_dict(state)
        for epoch in range(loader.epoch, 3):
            for batch in loader:
                if not steps:
                    raise Killed
                steps -= 1
                log.append((epoch, batch["id"].tolist()))
                saved.append(plain(loader.state_dict()))
            saved.append(plain(loader.state_dict()))

    log, saved = [], []
    train(None, 1000)
    whole, states = log, saved.copy()
    assert len(whole) == 12 and len(states) == 15
    for number, state in (
        enumerate(states) if num_workers == 0 else [(1, states[1]), (4, states[4]), (8, states[8])]
    ):
        log = []
        train(state, 1000)
        done = number + 1 - (number + 1) // 5
        assert log == whole[done:]
    log = []
    with pytest.raises(Killed):
        train(None, 7)
    train(saved[-1], 1000)
    assert log == whole


def test_set_epoch(files):
    loader = make(files, num_epochs=1, num_workers=1, persistent_workers=True)
    for epoch in (3, 3, 0):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        assert ids(loader) == expected(files, num_epochs=1, iteration=epoch)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.set_epoch(9)
    assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (9, 0)
    loader.load_state_dict(state)
    loader.set_epoch(1)  # as a training loop does that continues in epoch 1
    assert ids(loader) == expected(files, num_epochs=1, iteration=1)[1:]


@pytest.mark.parametrize("kind", LOADERS)
def test_len_is_right_from_iter_on(files, kind):
    loader = make(files, num_epochs=1, **LOADERS[kind])
    for _ in itertools.islice(loader, 6):
        state = loader.state_dict()
    fresh = make(files, num_epochs=1, **LOADERS[kind])
    fresh.load_state_dict(state)
    assert len(fresh) == 8
    iterator = iter(fresh)
    assert (len(fresh), len(iterator), fresh.epoch) == (14, 8, 0)
    assert plain(fresh.state_dict()) == plain(state)
    next(iterator)
    assert (len(fresh), len(iterator), fresh.epoch) == (14, 8, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "1 worker", "3 workers"])
def test_an_iterator_without_a_batch_is_the_next_iteration(files, kind):
    """Trainers make it first, and load or say the epoch then; some make two."""
    loader = make(files, num_epochs=1, **LOADERS[kind])
    whole = [expected(files, num_epochs=1, iteration=epoch) for epoch in range(4)]
    iter(loader)
    assert loader.epoch == 0
    iterator = iter(loader)
    loader.set_epoch(0)
    assert ids(iterator) == whole[0]
    iterator = iter(loader)
    loader.set_epoch(3)
    assert loader.state_dict()["epoch"] == 3
    assert (next(iterator)["id"].tolist(), loader.epoch) == (whole[3][0], 4)
    state = loader.state_dict()
    iterator = iter(loader)
    loader.load_state_dict(state)
    assert ids(iterator) == whole[3][1:]
    loader.load_state_dict(state)
    iterator = iter(loader)
    loader.sampler.set_epoch(3)  # the number that it has: what is left of it
    assert plain(loader.state_dict()) == plain(state)
    assert ids(iterator) == whole[3][1:]
    loader.sampler.set_epoch(2)
    assert ids(loader) == whole[2]


def test_the_sampler_that_trainers_see(files):
    loader = make(files, 8, num_epochs=1, rank=1, world_size=2)
    assert isinstance(loader.sampler, DistributedSampler)
    assert (loader.sampler.rank, loader.sampler.num_replicas) == (1, 2)
    assert (len(loader.sampler), loader.sampler.num_samples, loader.sampler.total_size) == (
        27,
        27,
        54,
    )
    whole = [
        expected(files, 8, num_epochs=1, iteration=epoch, rank=1, world_size=2)
        for epoch in range(2)
    ]
    for epoch in (1, 0):
        loader.sampler.set_epoch(epoch)
        assert ids(loader) == whole[epoch]
        loader.sampler.set_epoch(epoch)
        assert list(loader.sampler) == [position for batch in whole[epoch] for position in batch]
    dropping = make(files, 8, num_epochs=1, rank=1, world_size=2, drop_last=True)
    assert (len(dropping), len(dropping.sampler)) == (3, 24)


@pytest.mark.daily
@pytest.mark.parametrize("kind", ["threads", "1 worker"])
def test_trainers_count_iterations(files, kind):
    loader = make(files, num_epochs=2, **LOADERS[kind])
    for iteration in (0, 1, 3):
        iterator = iter(loader)
        loader.sampler.set_epoch(iteration)
        assert ids(iterator) == expected(files, iteration=iteration)
    for _ in itertools.islice(loader, 17):
        state = loader.state_dict()
    assert (state["first_epoch"], state["epoch"]) == (8, 9)
    for numbers in [
        (4, 5, 6),
        (0, 1, 2),
    ]:  # as Lightning's Trainer counts after a restart, and as Fabric does
        fresh = make(files, num_epochs=2, **LOADERS[kind])
        fresh.load_state_dict(state)
        for iteration, number in enumerate(numbers, 4):
            fresh.sampler.set_epoch(number)
            assert ids(fresh) == expected(files, iteration=iteration)[17 if iteration == 4 else 0 :]
    fresh = make(files, num_epochs=2, **LOADERS[kind])
    fresh.load_state_dict(state)
    fresh.sampler.set_epoch(7)  # beyond it: that one
    assert ids(fresh) == expected(files, iteration=7)


def test_the_rank_is_that_of_the_iteration(files, monkeypatch):
    """Lightning starts the other processes after the loader was made."""
    loader = make(files, 8, num_epochs=1)
    assert len(loader) == 7
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(loader) == 4
    assert ids(loader) == expected(files, 8, num_epochs=1, rank=1, world_size=2)


class BeginsAnew:
    """As Lightning's batch sampler for predictions: each iter() of its iterator begins anew."""

    def __init__(self, batches):
        self.sampler, self._batches = batches.sampler, batches

    def __iter__(self):
        self._iterator = iter(self._batches)
        return self

    def __next__(self):
        return next(self._iterator)


def test_threads_ask_an_iterator_for_its_next_batch_only(files):
    batches = make_dataloader(TFRecordDataset(files, FEATURES), 4, seed=5).batch_sampler
    loader = RecordLoader(
        TFRecordDataset(files, FEATURES), batch_sampler=BeginsAnew(batches), num_threads=2
    )
    assert ids(loader) == expected(files, num_epochs=1)
    assert ids(loader) == expected(files, num_epochs=1, iteration=1)


def worker(sample):
    return {**sample, "pid": os.getpid(), "worker": get_worker_info().id}


@pytest.mark.slow
@pytest.mark.parametrize("num_epochs", [3, None])
def test_no_pause_between_epochs(files, num_epochs):
    loader = make(files, 10, num_epochs=num_epochs, num_workers=2, transform=worker)
    pids, ahead = set(), []
    for batch in itertools.islice(loader, 18):
        pids |= set(zip(batch["worker"].tolist(), batch["pid"].tolist(), strict=True))
        # What was handed to the workers, of the epochs from 0, against what was received.
        ahead.append((loader.batch_sampler.state_dict()["epoch"], loader.state_dict()["epoch"]))
    assert len(pids) == 2  # the same two processes in all epochs
    assert len(ahead) == 18
    assert ahead[5] == (1, 0) and ahead[11] == (
        2,
        1,
    )  # 6 batches an epoch; with its last one the next is under way


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_pinned_batches_count_as_received_when_they_are_handed_over(files, num_workers):
    loader = make(files, pin_memory=True, num_workers=num_workers)
    whole = expected(files)
    for number, _ in enumerate(loader, 1):
        state = loader.state_dict()
        if number in (1, 8):
            fresh = make(files)
            fresh.load_state_dict(state)
            assert ids(fresh) == whole[number:]
    assert number == 28


@pytest.mark.slow
def test_endless(files):
    loader = make(files, num_epochs=None, num_workers=2)
    found = []
    for batch in itertools.islice(loader, 20):
        found.append(batch["id"].tolist())
        state = loader.state_dict()
    fresh = make(files, num_epochs=None)
    fresh.load_state_dict(state)
    found += [batch["id"].tolist() for batch in itertools.islice(fresh, 15)]
    assert found == expected(files, num_epochs=3)[:35]
    with pytest.raises(TypeError, match="never ends"):
        len(fresh)


def test_strict(files):
    loader = make(files)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ValueError, match="seed is 5 in the state, 6 here"):
        make(files, seed=6).load_state_dict(state)
    with pytest.raises(ValueError, match="shuffle is True in the state, 'blocks' here"):
        make(files, shuffle="blocks").load_state_dict({**state, "window_blocks": 64, "blocks": "x"})
    with pytest.raises(ValueError, match="expected a state of version 1, got version 2"):
        make(files).load_state_dict({**state, "version": 2})
    unordered = make(files, num_workers=1, in_order=False)
    with pytest.raises(ValueError, match="in_order=False"):
        unordered.state_dict()


def test_a_dropped_iterator_ends_its_workers(files):
    loader = make(files, num_workers=1, num_epochs=None)
    iterator = iter(loader)
    next(iterator)
    (process,) = iterator._workers
    assert process.is_alive()
    del iterator
    process.join(120)
    assert not process.is_alive()


SIZES, WORLDS, BATCHES = (0, 1, 2, 7, 1000, 10_007), (1, 2, 3, 4, 5), (1, 3, 64)


# With workers every loader starts processes: all those combinations take minutes.
MATRIX = [
    *(pytest.param(size, 0, WORLDS, marks=pytest.mark.slow, id=f"{size}-0") for size in SIZES),
    pytest.param(7, 2, (2, 3), marks=pytest.mark.slow, id="7-2-some ranks"),
    pytest.param(2, 3, (1, 4), marks=pytest.mark.slow, id="2-3-some ranks"),
    *(
        pytest.param(size, workers, WORLDS, marks=pytest.mark.daily, id=f"{size}-{workers}")
        for size, workers in itertools.product(SIZES, (1, 2, 3))
    ),
]


@pytest.mark.daily
@pytest.mark.filterwarnings("ignore:no file has a record")
@pytest.mark.parametrize(("num_records", "num_workers", "worlds"), MATRIX)
def test_ranks_workers_batches(tmp_path, num_records, num_workers, worlds):
    """The union over ranks is the epoch (or the stated padding), equal counts, resume on other
    ranks and workers.
    """
    with ShardedTFRecordWriter(
        tmp_path / "train", max_shard_bytes=100 + 10 * num_records, write_index=True
    ) as writer:
        for number in range(num_records):
            writer.write({"id": number})
    path = f"{tmp_path}/train-*"
    modes = itertools.cycle(
        [(True, False), ("blocks", False), (False, True), (True, True), ("blocks", True)]
    )
    for world_size, batch_size in itertools.product(worlds, BATCHES):
        if num_records > 1000 and (batch_size < 64 or (num_workers and world_size not in (1, 4))):
            continue
        if num_records == 1000 and num_workers and batch_size == 1:
            continue
        shuffle, drop_last = next(modes)
        options = {"shuffle": shuffle, "drop_last": drop_last, "num_epochs": 1}

        def ranks(
            world_size, state=None, options=options, batch_size=batch_size, num_workers=num_workers
        ):
            loaders = [
                make(
                    f"{tmp_path}/train-*",
                    batch_size,
                    rank=r,
                    world_size=world_size,
                    num_workers=num_workers,
                    **options,
                )
                for r in range(world_size)
            ]
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
            return loaders

        order = [p for batch in expected(path, 1, **options) for p in batch]
        loaders = ranks(world_size)
        per_rank = [ids(loader) for loader in loaders]
        assert all([*map(len, batches)] == [*map(len, per_rank[0])] for batches in per_rank)
        steps = [
            [p for row in zip(*step, strict=True) for p in row]
            for step in zip(*per_rank, strict=True)
        ]
        taken = [position for step in steps for position in step]
        assert taken == [order[place % num_records] for place in range(len(taken))]
        if drop_last:
            assert num_records - len(taken) < world_size * batch_size
        else:
            assert len(taken) == -(-num_records // world_size) * world_size
        # Killed in the middle, on another world size afterwards.
        loaders = ranks(world_size)
        iterators = [iter(loader) for loader in loaders]
        done = len(steps) // 2
        for _ in range(done):
            for iterator in iterators:
                next(iterator)
        state = plain(loaders[-1].state_dict())
        del iterators
        other = WORLDS[(world_size + num_workers) % 5]
        rest = [ids(loader) for loader in ranks(other, state)]
        assert all([*map(len, batches)] == [*map(len, rest[0])] for batches in rest)
        before = [position for step in steps[:done] for position in step]
        after = [
            p for step in zip(*rest, strict=True) for row in zip(*step, strict=True) for p in row
        ]
        together = before + after
        assert together == [order[place % num_records] for place in range(len(together))]
        if not drop_last:
            assert num_records <= len(together) < num_records + other
