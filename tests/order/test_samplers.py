"""RecordSampler: equal ranks, the whole epoch, and resuming at every batch, also on other ranks."""

import itertools
import json
import pickle
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import for_each
from torch.utils.data import DataLoader, DistributedSampler

from torch_tfrecord import RecordSampler, TFRecordDataset, TFRecordWriter, balanced_weights

pytestmark = pytest.mark.usefixtures("random_states_untouched")
SIZES = [0, 1, 2, 7, 1000, 10_007]


class Blocks:
    """A dataset that says where blocks begin."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def _block_starts(self, block_bytes):
        return np.arange(0, len(self), 13)


MODES = {
    "random": {"shuffle": True},
    "in order": {"shuffle": False},
    "blocks": {"shuffle": "blocks", "window_blocks": 5},
    "weights": {"weights": True},
}


def make(n, mode="random", **options):
    given = {**MODES[mode], **options}
    if given.get("weights"):
        given["weights"] = np.arange(n) % 3 + 1
    return RecordSampler(Blocks(n), seed=3, **given)


def epoch_order(n, mode, epoch=0):
    whole = make(n, mode)
    whole.set_epoch(epoch)
    return list(whole)


# Promised to users; a change breaks their runs.
FROZEN = {
    "random": [[29, 6, 10, 16, 21, 17, 4, 26, 11, 8], [15, 21, 8, 7, 27, 20, 16, 19, 24, 12]],
    "in order": [[1, 4, 7, 10, 13, 16, 19, 22, 25, 28], [1, 4, 7, 10, 13, 16, 19, 22, 25, 28]],
    "blocks": [[17, 25, 11, 20, 29, 24, 18, 8, 3, 7], [4, 18, 9, 21, 14, 15, 10, 19, 23, 26]],
    "weights": [[16, 17, 26, 8, 20, 10, 26, 7, 1, 20], [28, 11, 12, 11, 25, 23, 24, 14, 4, 6]],
}


@pytest.mark.parametrize("mode", MODES)
def test_frozen(mode):
    found = []
    for epoch in (0, 1):
        sampler = make(30, mode, rank=1, world_size=3)
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    assert found == FROZEN[mode]


@for_each("mode", MODES)
@for_each("n", SIZES)
def test_one_rank_has_the_whole_epoch(n, mode):
    orders = [epoch_order(n, mode, epoch) for epoch in range(3)]
    for order in orders:
        assert all(type(position) is int for position in order[:5])
        assert len(order) == len(make(n, mode)) == n
        if mode != "weights":
            assert sorted(order) == list(range(n))
    if mode == "in order":
        assert orders == [list(range(n))] * 3
    elif n > 2:
        assert orders[0] != orders[1] != orders[2]


def samplers(n, mode, world_size, state=None, **options):
    """One for each rank."""
    made = [
        make(n, mode, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]
    for sampler in made:
        if state is not None:
            sampler.load_state_dict(state)
    return made


@pytest.mark.daily
@for_each("batch_size", [1, 3, 64])
@for_each("mode", MODES)
@for_each("world_size", [1, 2, 3, 5])
@for_each("n", [0, 1, 2, 7, 200])
def test_resume_at_every_batch_is_the_uninterrupted_run(n, world_size, mode, batch_size):
    for rank in range(world_size):
        sampler = make(n, mode, rank=rank, world_size=world_size)
        sampler.set_epoch(4)
        whole = list(sampler)
        iterator = iter(sampler)
        for taken in range(0, len(whole) + 1, batch_size):
            state = json.loads(
                json.dumps(
                    sampler.state_dict() if taken else make(n, mode).state_dict() | {"epoch": 4}
                )
            )
            # Another rank's checkpoint serves as well.
            fresh = make(n, mode, rank=rank, world_size=world_size)
            fresh.load_state_dict(state)
            fresh.set_epoch(4)  # as a training loop does; the loaded place stays
            assert fresh.epoch == 4
            assert len(fresh) == len(whole) - taken
            assert list(fresh) == whole[taken:]
            assert fresh.state_dict() == {**state, "consumed": n}
            assert list(fresh) == whole  # a loaded state is used once
            for _ in zip(range(batch_size), iterator, strict=False):
                pass


@pytest.mark.daily
@for_each("drop_last", [False, True])
@for_each("after", range(1, 6))
@for_each("before", range(1, 6))
@for_each("n", [1, 7, 200])
def test_every_batch_can_go_on_with_another_world_size(n, before, after, drop_last):
    order = epoch_order(n, "random")
    sampler = make(n, rank=before - 1, world_size=before, drop_last=drop_last)
    ranks = [make(n, rank=rank, world_size=after, drop_last=drop_last) for rank in range(after)]
    iterator = iter(sampler)
    for taken in range(0, len(sampler) + 1, 3):
        state = sampler.state_dict()
        assert state["consumed"] == min(taken * before, n)
        for other in ranks:
            other.load_state_dict(state)
        found = [position for step in zip(*map(list, ranks), strict=True) for position in step]
        rest = order[state["consumed"] :]
        if drop_last:
            assert found == rest[: len(rest) // after * after]
        else:
            assert found[: len(rest)] == rest
            assert found[len(rest) :] == [order[place % n] for place in range(-len(rest) % after)]
        list(itertools.islice(iterator, 3))


@pytest.mark.slow
@for_each("mode", MODES)
@for_each("n", [1, 2, 7, 100, 1000])
@for_each("worlds", [(2, 3, 1), (1, 4), (5, 2), (4, 2, 4, 3), (3, 5, 2)])
def test_a_chain_of_world_sizes_neither_loses_nor_repeats(worlds, n, mode):
    order = epoch_order(n, mode)
    state, taken, steps = None, [], max(1, n // (sum(worlds) + 2))
    for number, world_size in enumerate(worlds):
        ranks = samplers(n, mode, world_size, state)
        before = len(taken)
        iterators = [iter(sampler) for sampler in ranks]
        last = number == len(worlds) - 1
        for _ in range(len(ranks[0]) if last else min(steps, len(ranks[0]))):
            taken += [next(iterator) for iterator in iterators]
        states = [sampler.state_dict() for sampler in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
        assert state["consumed"] == min(len(taken), n)
        if len(taken) > n:  # the rule that evens out the ranks' numbers, once
            assert taken[n:] == [order[place % n] for place in range(len(taken) - n)]
            assert len(taken) - max(before, n) < world_size
            taken = taken[:n]
    assert taken == order
    assert list(samplers(n, mode, 3, state)[1]) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_a_plain_loader_with_the_number_received(num_workers, batch_size):
    # The lines of the documentation.
    n = 200 if batch_size == 64 else 20
    sampler = make(n, rank=1, world_size=2)
    # A generator, as DataLoader else takes its workers' seeds from the global random state.
    loader = DataLoader(
        range(n), batch_size, sampler=sampler, num_workers=num_workers, generator=torch.Generator()
    )
    samples_this_iteration = len(sampler)
    batches, states = [], []
    for number, batch in enumerate(loader, 1):
        batches.append(batch.tolist())
        states.append(
            sampler.state_dict(num_received=min(number * batch_size, samples_this_iteration))
        )
    assert len(batches) == -(-n // 2 // batch_size)
    for number, state in enumerate(states, 1):
        fresh = make(n, rank=1, world_size=2)
        fresh.load_state_dict(state)
        # Another number of workers and another size of batches.
        rest = DataLoader(range(n), 7, sampler=fresh, generator=torch.Generator())
        assert sum((batch.tolist() for batch in rest), []) == sum(batches[number:], [])  # noqa: RUF017


def test_the_second_resume_counts_from_the_first():
    sampler = make(100, rank=0, world_size=2)
    whole = list(sampler)
    sampler.load_state_dict({**sampler.state_dict(), "consumed": 20})
    iterator = iter(sampler)
    assert [next(iterator) for _ in range(5)] == whole[10:15]
    assert sampler.state_dict()["consumed"] == 30
    assert sampler.state_dict(num_received=3)["consumed"] == 26
    assert sampler.state_dict(num_received=0)["consumed"] == 20


def test_epochs():
    sampler = make(50)
    first = list(sampler)
    assert list(sampler) == first  # as with DistributedSampler, until set_epoch
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first
    assert sampler.state_dict()["epoch"] == 1
    sampler.set_epoch(np.int64(0))
    assert sampler.state_dict() == make(50).state_dict()  # nothing taken
    assert json.dumps(sampler.state_dict())
    assert list(sampler) == first
    # Another epoch than the loaded one begins at its beginning.
    sampler.load_state_dict({**sampler.state_dict(), "consumed": 20})
    sampler.set_epoch(1)
    assert list(sampler) == second


def test_an_iterator_that_is_thrown_away_changes_nothing():
    sampler = make(20)
    sampler.load_state_dict({**sampler.state_dict(), "consumed": 5})
    iter(sampler)
    iter(sampler)
    assert sampler.state_dict()["consumed"] == 5
    assert len(list(sampler)) == 15


def test_the_rank_is_looked_up_when_an_iteration_begins(monkeypatch):
    sampler = make(10)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert list(sampler) == list(make(10, rank=1, world_size=3))
    assert len(sampler) == 4


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, "expected a state of version 1, got version 2"),
        ({"seed": 4}, "the state is of another order: seed is 4 in the state, 3 here"),
        (
            {"num_records": 8},
            "the state is of another order: num_records is 8 in the state, 7 here",
        ),
        (
            {"shuffle": "blocks"},
            "the state is of another order: shuffle is 'blocks' in the state, True here",
        ),
        ({"shuffle": 1}, "the state is of another order: shuffle is 1 in the state, True here"),
        (
            {"drop_last": True},
            "the state is of another order: drop_last is True in the state, False here",
        ),
        ({"consumed": 8}, "consumed must be an integer from 0 to 7 in the state, got 8"),
        ({"consumed": -1}, "consumed must be an integer from 0 to 7 in the state, got -1"),
        ({"epoch": 1.0}, "epoch must be an integer at least 0 in the state, got 1.0"),
        ({"epoch": True}, "epoch must be an integer at least 0 in the state, got True"),
        (
            {"extra": 0},
            r"expected a state with the keys \['consumed', 'drop_last', 'epoch', 'num_records', .*'version'\], ",
        ),
    ],
)
def test_wrong_states(change, text):
    sampler = make(7)
    iterator = iter(sampler)
    next(iterator)
    before = sampler.state_dict()
    with pytest.raises(ValueError, match=f"^{text}"):
        sampler.load_state_dict({**before, **change})
    assert sampler.state_dict() == before  # nothing was taken over


def test_states_of_other_weights_and_blocks():
    state = make(7, "weights").state_dict()
    with pytest.raises(
        ValueError, match=r"weights is '[0-9a-f]{16}' in the state, '[0-9a-f]{16}' here"
    ):
        RecordSampler(range(7), seed=3, weights=[1] * 7).load_state_dict(state)
    with pytest.raises(ValueError, match="window_blocks is 5 in the state, 6 here"):
        RecordSampler(Blocks(7), seed=3, shuffle="blocks", window_blocks=6).load_state_dict(
            make(7, "blocks").state_dict()
        )
    with pytest.raises(ValueError, match="expected a state with the keys"):
        make(7).load_state_dict(state)
    with pytest.raises(ValueError, match=r"expected a state with the keys .*, got \['version'\]"):
        make(7).load_state_dict({"version": 1})
    with pytest.raises(TypeError, match="expected a state_dict, got list"):
        make(7).load_state_dict([1])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shuffle": "Blocks"}, "shuffle must be True, False or \"blocks\", got 'Blocks'"),
        ({"shuffle": 1}, 'shuffle must be True, False or "blocks", got 1'),
        ({"shuffle": None}, 'shuffle must be True, False or "blocks", got None'),
        (
            {"shuffle": "blocks"},
            r'shuffle="blocks" needs to know where each record is: expected a TFRecordDataset, got list',
        ),
        ({"weights": [1, 2]}, "weights must have one number for each of 3 records, got 2"),
        ({"weights": [1, 2, 3], "shuffle": False}, "with weights, shuffle must be True, got False"),
        ({"rank": 2}, "rank and world_size must be given together"),
        ({"rank": 2, "world_size": 2}, "rank must be from 0 to world_size - 1"),
        ({"block_bytes": 0}, "block_bytes must be an integer of at least 1, got 0"),
        ({"window_blocks": True}, "window_blocks must be an integer of at least 1, got True"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(
        TypeError if options.get("window_blocks") is True else ValueError, match=f"^{text}"
    ):
        RecordSampler([0, 0, 0], **options)


def test_wrong_numbers():
    sampler = make(10)
    for epoch in (-1, 1.0, True, "1"):
        with pytest.raises(
            ValueError if epoch == -1 else TypeError,
            match="epoch must be an integer of at least 0, got",
        ):
            sampler.set_epoch(epoch)
    with pytest.raises(
        ValueError, match="num_received must be 0 before an iteration has begun, got 3"
    ):
        sampler.state_dict(num_received=3)
    assert sampler.state_dict(num_received=0)["consumed"] == 0
    next(iter(sampler))
    with pytest.raises(
        ValueError, match="num_received=2, but the sampler has yielded only 1 samples"
    ):
        sampler.state_dict(num_received=2)
    with pytest.raises(ValueError, match="num_received must be an integer of at least 0, got -1"):
        sampler.state_dict(num_received=-1)
    with pytest.raises(TypeError):
        RecordSampler([1], seed="0")


def test_balance():
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    sampler = RecordSampler(labels, weights=balanced_weights(labels))
    counts = Counter()
    for epoch in range(20):
        sampler.set_epoch(epoch)
        counts.update(labels[list(sampler)].tolist())
    # 2 degrees, p = 0.001
    assert sum((count - 20_000 / 3) ** 2 / (20_000 / 3) for count in counts.values()) < 13.8
    shares = [
        list(RecordSampler(labels, weights=balanced_weights(labels), rank=r, world_size=2))
        for r in (0, 1)
    ]
    assert [position for pair in zip(*shares, strict=True) for position in pair] == list(
        RecordSampler(labels, weights=balanced_weights(labels))
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocks")
    for file, count in enumerate((40, 0, 25)):
        with TFRecordWriter(folder / f"part-{file}") as writer:
            for number in range(count):
                writer.write(b"x" * (84 + number % 2))  # 100 and 101 bytes in the file
    return folder


@pytest.mark.parametrize(
    "part", [slice(None), slice(None, None, -1), slice(3, 60, 2), slice(0, 0)], ids=str
)
def test_blocks_of_files(files, part):
    dataset = TFRecordDataset(files / "part-*", index="memory")[part]
    sampler = RecordSampler(dataset, shuffle="blocks", block_bytes=1000, window_blocks=1)
    order = list(sampler)
    assert sorted(order) == list(range(len(dataset)))
    # With windows of one block the records of a block follow one another.
    blocks = [(path, offset // 1000) for path, offset in map(dataset.locate, order)]
    runs = [block for place, block in enumerate(blocks) if place == 0 or blocks[place - 1] != block]
    assert len(runs) == len(set(runs))


def test_ten_thousand_million_records_cost_no_memory():
    sampler = RecordSampler(range(10**10), rank=7, world_size=8)
    iterator = iter(sampler)
    assert len(sampler) == 10**10 // 8
    assert [next(iterator) for _ in range(3)] == [1308917057, 8828247277, 7430240139]
    assert sampler.state_dict()["consumed"] == 24


def test_a_distributed_sampler(monkeypatch):
    """To whoever asks, without a process group."""
    sampler = RecordSampler(range(7), seed=3)
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.rank, sampler.num_replicas, sampler.num_samples, sampler.total_size) == (
        0,
        1,
        7,
        7,
    )
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (sampler.rank, sampler.num_replicas, sampler.num_samples, sampler.total_size) == (
        1,
        2,
        4,
        8,
    )
    again = pickle.loads(pickle.dumps(sampler))
    assert list(again) == list(sampler)


def test_an_iteration_not_begun_follows_set_epoch():
    """Lightning makes the loader's iterator first, and says the epoch then."""
    sampler = RecordSampler(range(50), seed=3)
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    iterator = iter(sampler)
    sampler.set_epoch(1)
    assert [next(iterator) for _ in range(5)] == orders[1][:5]
    state = iterator.state_dict()
    loaded = iter(sampler)
    loaded.load_state_dict(state)
    sampler.set_epoch(1)
    assert list(loaded) == orders[1][5:]
    loaded = iter(sampler)
    loaded.load_state_dict(state)
    sampler.set_epoch(2)
    assert list(loaded) == orders[2]


def test_a_lightning_that_has_states_elsewhere_is_told():
    """A fit loop without the list of states that `give_forgotten_states` needs."""
    program = "def advance(self, sampler):\n    sampler.set_epoch(1)\n"
    names = {"__name__": "lightning.pytorch.loops.fit_loop"}
    exec(program, names)
    sampler = RecordSampler(range(3))
    names["advance"](SimpleNamespace(restarting=False), sampler)
    with pytest.warns(RuntimeWarning, match=r"states of loaders elsewhere.*Lightning#20550"):
        names["advance"](SimpleNamespace(restarting=True), sampler)


@pytest.mark.daily
@for_each("drop_last", [False, True])
@for_each("mode", MODES)
@for_each("world_size", range(1, 6))
@for_each("n", SIZES)
def test_the_union_over_ranks_is_the_epoch(n, world_size, mode, drop_last):
    order = epoch_order(n, mode, 2)
    shares = []
    for rank in range(world_size):
        sampler = make(n, mode, rank=rank, world_size=world_size, drop_last=drop_last)
        sampler.set_epoch(2)
        shares.append(list(sampler))
        assert len(sampler) == len(shares[-1])
    assert len(set(map(len, shares))) == 1
    taken = [position for step in zip(*shares, strict=True) for position in step]
    if drop_last:
        assert taken == order[: n // world_size * world_size]
    else:
        assert taken == [order[place % n] for place in range(-(-n // world_size) * world_size)]


@pytest.mark.daily
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("n", "world_size"),
    [
        *itertools.product([1000], range(1, 6)),
        *(pytest.param(10_007, size, marks=pytest.mark.slow) for size in (1, 4)),
        *(pytest.param(10_007, size, marks=pytest.mark.daily) for size in (2, 3, 5)),
    ],
)
def test_resume_at_every_batch_of_a_larger_dataset(n, world_size, mode):
    for batch_size in (1, 3, 64):
        whole = list(make(n, mode, rank=world_size - 1, world_size=world_size))
        sampler = make(n, mode, rank=0, world_size=world_size)
        fresh = make(n, mode, rank=world_size - 1, world_size=world_size)
        iterator = iter(sampler)
        taken = 0
        while taken < len(whole):
            taken += sum(1 for _ in itertools.islice(iterator, batch_size))
            fresh.load_state_dict(sampler.state_dict())
            assert len(fresh) == len(whole) - taken
            few = None if taken % 997 == 0 else 3  # the whole rest now and then
            assert list(itertools.islice(fresh, few)) == whole[taken:][:few]
        assert next(iterator, None) is None


@pytest.mark.parametrize("worlds", [(2, 3, 1), (3, 4), (5, 3)], ids=str)
def test_drop_last_leaves_out_the_end_alone(worlds):
    n, order, state, taken = 101, epoch_order(101, "random"), None, []
    for world_size in worlds:
        ranks = samplers(n, "random", world_size, state, drop_last=True)
        iterators = [iter(sampler) for sampler in ranks]
        for _ in range(len(ranks[0]) if world_size == worlds[-1] else 7):
            taken += [next(iterator) for iterator in iterators]
        state = ranks[0].state_dict()
    assert taken == order[: len(taken)]
    assert n - len(taken) < worlds[-1]
