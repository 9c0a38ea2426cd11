"""TFRecordIterableDataset: its state, alone, in StatefulDataLoader's workers, and on other workers
and ranks.

Covers streams/iterations.
"""

import json
import weakref
from collections import Counter
from itertools import islice, product

import pytest
import torch
from helpers import open_descriptors
from torch.utils.data import DataLoader

from torch_tfrecord import FixedLenFeature, TFRecordIterableDataset, TFRecordWriter

# DataLoader thinks more workers than processors a mistake; torchdata 0.11 with torch 2.15; forks
# where threads run.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create",
    "ignore:'set_vital' is deprecated",
    "ignore:This process .* is multi-threaded",
)
FEATURES = {"id": FixedLenFeature((), torch.int64)}


def write(folder, sizes, suffix=""):
    first = 0
    for number, size in enumerate(sizes):
        with TFRecordWriter(folder / f"part-{number:02}.tfrecord{suffix}") as writer:
            for position in range(first, first + size):
                writer.write({"id": position})
        first += size
    return first


@pytest.fixture(scope="module", params=["", ".gz"])
def files(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    assert write(folder, (9, 4, 0, 1, 12, 7, 3), request.param) == 36
    return folder


def stream(files, **options):
    return TFRecordIterableDataset(files / "part-*", FEATURES, **options)


def ids(items):
    return [item["id"].tolist() for item in items]


def plain(state):
    return json.loads(json.dumps(state))


OPTIONS = {
    "in order": {},
    "shuffled files": {"shuffle": True, "seed": 1},
    "buffer": {"shuffle": True, "shuffle_buffer_size": 10},
    "interleave": {"cycle_length": 3, "block_length": 2},
    "all": {"shuffle": True, "shuffle_buffer_size": 5, "cycle_length": 2},
    "batches": {"batch_size": 4},
    "batches, all": {"batch_size": 5, "shuffle": True, "shuffle_buffer_size": 7, "cycle_length": 3},
    "batches, drop_last": {"batch_size": 8, "drop_last": True},
}


@pytest.mark.daily
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("rank", [None, 1])
def test_resume_at_every_record_is_the_uninterrupted_run(files, options, rank):
    if rank is not None:
        options = {**options, "rank": rank, "world_size": 2}
    ds = stream(files, **options)
    ds.set_epoch(3)
    iterator, found, states = iter(ds), [], [plain(ds.state_dict())]
    for sample in iterator:
        found += ids([sample])
        states.append(plain(ds.state_dict()))
    assert len(states) == len(found) + 1 > 1
    following = ids(ds)
    assert (following == found) == (not options.get("shuffle"))
    for place, state in enumerate(states):
        fresh = stream(files, **options)
        fresh.load_state_dict(state)
        assert plain(fresh.state_dict()) == state
        fresh.set_epoch(3)  # as a training loop does that continues in epoch 3
        assert ids(fresh) == found[place:]
        assert ids(fresh) == following  # the next epoch, all of it
        fresh.load_state_dict(state)
        fresh.set_epoch(4)
        other = stream(files, **options)
        other.set_epoch(4)
        assert ids(fresh) == ids(other)


@pytest.mark.parametrize("options", ["in order", "all"])
def test_a_dropped_iterator_leaves_its_state_and_no_open_file(files, options):
    ds, before = stream(files, **OPTIONS[options]), open_descriptors()
    found = ids(islice(ds, 11))
    assert open_descriptors() == before
    state = plain(ds.state_dict())
    assert plain(ds.state_dict()) == state
    ds.load_state_dict(state)
    assert found + ids(ds) == ids(stream(files, **OPTIONS[options]))
    reference = weakref.ref(ds)
    del ds
    assert reference() is None  # by itself, without the garbage collector


def test_resume_of_a_resumed_run(files):
    options = OPTIONS["all"]
    whole, found, state = ids(stream(files, **options)), [], None
    while len(found) < len(whole):
        ds = stream(files, **options)
        if state is not None:
            ds.load_state_dict(state)
        found += ids(islice(ds, 5))
        state = plain(ds.state_dict())
    assert found == whole


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("worlds", [(1, 3), (3, 1), (2, 4, 3), (4, 2)], ids=str)
def test_other_ranks_go_on(files, options, worlds):
    if options.get("drop_last"):
        options = {**options, "drop_last": False}
    for taken in range(0, 12 // options.get("batch_size", 1), 2):
        seen, states = [], None
        for number, world_size in enumerate(worlds):
            datasets = [
                stream(files, rank=rank, world_size=world_size, **options)
                for rank in range(world_size)
            ]
            for rank, ds in enumerate(datasets):
                if states is not None:
                    ds.load_state_dict(states)
                # The ranks need not be at the same place.
                seen += ids(islice(ds, None if number == len(worlds) - 1 else taken + rank))
            states = [plain(ds.state_dict()) for ds in datasets]
        flat = [number for item in seen for number in (item if isinstance(item, list) else [item])]
        assert Counter(flat) == Counter(range(36))


# With compressed files the workers do the same.
@pytest.mark.daily
@pytest.mark.parametrize(
    ("files", "num_workers"),
    [
        pytest.param(
            suffix,
            num_workers,
            marks=pytest.mark.daily if suffix and num_workers in (1, 3) else (),
        )
        for suffix in ("", ".gz")
        for num_workers in (0, 1, 2, 3)
    ],
    indirect=["files"],
)
def test_a_plain_loader_goes_on_with_the_states_of_all(files, num_workers):
    """And its later epochs are whole ones, whether the loader keeps its workers or not."""
    datasets = [
        stream(files, rank=rank, world_size=2, shuffle=True, shuffle_buffer_size=4)
        for rank in range(2)
    ]
    seen = [number for ds in datasets for number in ids(islice(ds, 7))]
    states = [plain(ds.state_dict()) for ds in datasets]
    for persistent in {False, num_workers > 0}:
        ds = stream(files, shuffle=True, shuffle_buffer_size=4)
        ds.load_state_dict(states)
        loader = DataLoader(
            ds, batch_size=None, num_workers=num_workers, persistent_workers=persistent
        )
        assert sorted(seen + ids(loader)) == list(range(36))
        epochs = [ids(loader), ids(loader)]
        ds.set_epoch(1)
        epochs.append(ids(loader))
        assert [sorted(epoch) for epoch in epochs] == [list(range(36))] * 3
        assert epochs[0] == epochs[2] != epochs[1]
        del loader


@pytest.mark.daily
def test_workers_that_know_nothing_of_this_process_go_on_once(files):
    ds = stream(files, shuffle=True, shuffle_buffer_size=4)
    seen = ids(islice(ds, 10))
    ds.load_state_dict(plain(ds.state_dict()))
    loader = DataLoader(ds, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    assert sorted(seen + ids(loader)) == list(range(36))
    assert sorted(ids(loader)) == list(range(36))


def make_stateful(files, num_workers, options, batch_size=None, **keywords):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    ds = stream(files, **options)
    return ds, stateful.StatefulDataLoader(ds, batch_size, num_workers=num_workers, **keywords)


def _shows_nothing_new(suffix, num_workers, options):
    """With workers, which each loader starts anew: one of them, and compressed files, with some of
    the options.
    """
    return (
        num_workers
        and (suffix, num_workers) != ("", 2)
        and options != ("all" if num_workers == 2 else "batches")
    )


@pytest.mark.daily
@pytest.mark.parametrize(
    ("files", "num_workers", "options"),
    [
        pytest.param(*case, marks=pytest.mark.daily if _shows_nothing_new(*case) else ())
        for case in product(("", ".gz"), (0, 1, 2), ("in order", "all", "batches", "batches, all"))
    ],
    indirect=["files"],
)
def test_stateful_dataloader(files, num_workers, options):
    batch_size = None if "batches" in options else 3
    options = OPTIONS[options]
    ds, loader = make_stateful(files, num_workers, options, batch_size)
    ds.set_epoch(2)
    found, states = [], []
    for batch in loader:
        found += ids([batch])
        states.append(plain(loader.state_dict()))
    ds.set_epoch(3)
    following = ids(loader)
    assert sorted(number for batch in following for number in batch) == list(range(36))
    places = range(len(states) - 1) if num_workers == 0 else [0, 3, len(states) - 2]
    for place in places:
        ds, again = make_stateful(files, num_workers, options, batch_size)
        again.load_state_dict(states[place])
        ds.set_epoch(2)
        assert ids(again) == found[place + 1 :]
        ds.set_epoch(3)
        assert ids(again) == following


@pytest.mark.slow
def test_stateful_dataloader_with_persistent_workers(files):
    ds, loader = make_stateful(
        files, 2, OPTIONS["all"], 3, persistent_workers=True, prefetch_factor=3
    )
    epochs = []
    for epoch in range(2):
        ds.set_epoch(epoch)
        epochs.append(ids(loader))
    ds.set_epoch(2)
    found, states = [], []
    for batch in loader:
        found += ids([batch])
        states.append(plain(loader.state_dict()))
    ds, again = make_stateful(files, 2, OPTIONS["all"], 3, persistent_workers=True)
    again.load_state_dict(states[4])
    ds.set_epoch(2)
    assert ids(again) == found[5:]
    for epoch in range(2):
        ds.set_epoch(epoch)
        assert ids(again) == epochs[epoch]


@pytest.mark.daily
@pytest.mark.parametrize("options", ["in order", "all"])
@pytest.mark.parametrize(
    ("before", "after"), [((2, 1), (0, 1)), ((1, 2), (2, 1)), ((0, 2), (3, 1)), ((2, 1), (1, 3))]
)
def test_stateful_dataloader_with_other_workers_and_ranks(files, before, after, options):
    """(workers, ranks) before and after."""
    options, seen, states = OPTIONS[options], [], []
    (num_workers, world_size), (new_workers, new_size) = before, after
    for rank in range(world_size):
        _, loader = make_stateful(
            files, num_workers, {**options, "rank": rank, "world_size": world_size}, 3
        )
        for batch in islice(loader, 3):
            seen += batch["id"].tolist()
            state = plain(loader.state_dict())
        states.append(state)
    assert 0 < len(seen) < 36
    rest = []
    for rank in range(new_size):
        ds, loader = make_stateful(
            files, new_workers, {**options, "rank": rank, "world_size": new_size}, 2
        )
        ds.load_state_dict(states)
        rest += [number for batch in loader for number in batch["id"].tolist()]
    assert sorted(seen + rest) == list(range(36))


@pytest.mark.daily
@pytest.mark.parametrize(("num_workers", "persistent_workers"), [(0, False), (2, False), (2, True)])
def test_a_resumed_run_that_sets_no_epoch(files, num_workers, persistent_workers):
    """Is the uninterrupted one, epoch after epoch; also where it stopped at the end of one."""
    options = {"batch_size": 3, "shuffle": True, "shuffle_buffer_size": 5, "seed": 2}
    keywords = {"persistent_workers": persistent_workers}
    _, loader = make_stateful(files, num_workers, options, **keywords)
    first, second, states = ids(loader), [], []
    for batch in loader:
        second += ids([batch])
        states.append(plain(loader.state_dict()))
    states.append(plain(loader.state_dict()))  # behind the end
    epochs = [first, second, ids(loader), ids(loader)]
    assert [sorted(number for batch in epoch for number in batch) for epoch in epochs] == [
        list(range(36))
    ] * 4
    assert len({str(epoch) for epoch in epochs}) == 4
    for place in (1, len(states) - 1):
        _, again = make_stateful(files, num_workers, options, **keywords)
        again.load_state_dict(states[place])
        if place == 1:
            assert ids(again) == epochs[1][place + 1 :]
        assert [ids(again), ids(again)] == epochs[2:]


@pytest.mark.slow
def test_snapshots_now_and_then_are_refused_for_other_workers(files):
    _, loader = make_stateful(files, 2, {}, 3, snapshot_every_n_steps=3)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    with pytest.raises(
        ValueError, match=r"is 2 steps behind what it yielded; .*snapshot_every_n_steps must be 1"
    ):
        stream(files).load_state_dict(state)
    # With the same number of workers torchdata goes through the steps once more.
    _, again = make_stateful(files, 2, {}, 3, snapshot_every_n_steps=3)
    again.load_state_dict(state)
    assert ids(again) == ids(iterator)


def test_strict(files, tmp_path):
    ds = stream(files, seed=1, rank=0, world_size=2)
    next(iter(ds))
    state = ds.state_dict()
    for options, message in [
        ({"seed": 2}, "seed is 1 in the state, 2 here"),
        ({"shuffle_buffer_size": 9}, "shuffle_buffer_size is 0 in the state, 9 here"),
        ({"shuffle": True}, "shuffle is False in the state, True here"),
        ({"cycle_length": 2}, "cycle_length is 1 in the state, 2 here"),
    ]:
        with pytest.raises(ValueError, match=message):
            stream(files, **{"seed": 1, **options}).load_state_dict(state)
    write(tmp_path, (2, 2))
    with pytest.raises(ValueError, match="num_files is 7 in the state, 2 here"):
        stream(tmp_path, seed=1).load_state_dict(state)
    same = stream(files, seed=1)
    with pytest.raises(ValueError, match="expected a state of version 1, got version 7"):
        same.load_state_dict({**state, "version": 7})
    with pytest.raises(ValueError, match="got none"):
        same.load_state_dict({"epoch": 3})
    with pytest.raises(ValueError, match="the state is not as state_dict returned it"):
        same.load_state_dict({**state, "next_piece": 99})
    other = stream(files, seed=1, rank=1, world_size=2)
    other.set_epoch(1)
    with pytest.raises(ValueError, match="not of the same moment: epoch is 0 and 1"):
        same.load_state_dict([state, other.state_dict()])
    with pytest.raises(ValueError, match="two different states of consumer 0 of 2"):
        same.load_state_dict([state, stream(files, seed=1, rank=0, world_size=2).state_dict()])
    same.load_state_dict(state)
    missing = r"consumer 0 of 1 .* cannot resume from the states of consumers \[0\] of 2: .* \[1\] are missing"
    with pytest.raises(ValueError, match=missing):
        next(iter(same))


def test_a_loaded_state_is_used_once(files):
    """With workers, of which this process knows nothing, and in this one."""
    for num_workers in (0, 2):
        ds = stream(files)
        ds.set_epoch(5)
        seen = ids(islice(ds, 10))
        ds.load_state_dict(plain(ds.state_dict()))
        loader = DataLoader(ds, batch_size=None, num_workers=num_workers)
        ds.set_epoch(5)
        assert sorted(seen + ids(loader)) == list(range(36))
        ds.set_epoch(5)
        assert sorted(ids(loader)) == list(range(36))
