"""Batches by length from `make_dataloader`, and steering: which records are in a step, going to a
step, a mixture's weights that change.

Covers train/record_loader.
"""

from __future__ import annotations

import json
from itertools import chain, islice

import numpy as np
import pytest
import torch

from torch_tfrecord import (
    FixedLenFeature,
    LengthBatchSampler,
    Mixture,
    PackedCollate,
    PaddedCollate,
    ShardedTFRecordWriter,
    TFRecordDataset,
    VarLenFeature,
    build_index,
    decode_example,
    make_dataloader,
    read_records,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded"
)
FEATURES = {"id": FixedLenFeature((), torch.int64), "tokens": VarLenFeature(torch.int64)}
N = 203


def write(folder, first=0, num=N):
    sizes = np.random.default_rng(first).integers(1, 30, num)
    with ShardedTFRecordWriter(folder / "train", max_shard_bytes=2000) as writer:
        for number, size in enumerate(sizes.tolist(), first):
            writer.write({"id": number, "tokens": [number] * size})
    build_index(f"{folder}/train-*", columns=["len(tokens)"])
    return f"{folder}/train-*"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("steering"))


KINDS = {
    "records": {"batch_size": 4},
    "lengths": {
        "lengths": "tokens",
        "max_tokens": 96,
        "collate_fn": PaddedCollate(multiple_of=8),
    },
    "packs": {"batch_size": 2, "lengths": "tokens", "collate_fn": PackedCollate(64)},
}


def make(files, kind="records", **options):
    return make_dataloader(files, features=FEATURES, **{"seed": 5, **KINDS[kind], **options})


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def flat(batches):
    return [*chain.from_iterable(batches)]


def plain(state):
    return json.loads(json.dumps(state))


def id_at(path, offset):
    """The id of a record, read by another way."""
    (record,) = [
        record for record, at in zip(read_records(path), offsets(path), strict=True) if at == offset
    ]
    return int(decode_example(record)["id"][0])


def offsets(path):
    ends = np.cumsum([16 + len(record) for record in read_records(path)])
    return [0, *ends[:-1].tolist()]


# Batches by length.


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["lengths", "packs"])
def test_batches_by_length(files, kind, num_workers):
    loader = make(files, kind, num_workers=num_workers)
    epochs = []
    for _ in range(2):
        batches = list(loader)
        assert sorted(flat(ids(batches))) == list(range(N))
        if kind == "lengths":
            for batch in batches:
                rows, length = batch["tokens"].shape
                assert rows * length <= 96
                assert length % 8 == 0
                assert (batch["tokens"].max(dim=1).values == batch["id"]).all()
        else:
            assert all(len(batch["tokens"]) <= 2 * 64 for batch in batches)
        epochs.append(ids(batches))
    assert epochs[0] != epochs[1]
    assert epochs == [ids(make(files, kind)), ids(make_at(files, kind, 1))]


def make_at(files, kind, epoch):
    loader = make(files, kind)
    loader.set_epoch(epoch)
    return loader


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_at_every_step_on_another_world_size(files, kind):
    whole = ids(make(files, kind))
    for num_steps in range(0, len(whole), 5):
        loader = make(files, kind)
        taken = ids(islice(loader, num_steps))
        state = plain(loader.state_dict())
        same = make(files, kind)
        same.load_state_dict(state)
        assert len(same) == len(whole) - num_steps
        assert taken + ids(same) == whole
        rest = []
        ranks = [make(files, kind, rank=rank, world_size=3) for rank in range(3)]
        for loader in ranks:
            loader.load_state_dict(state)
        lengths = {len(loader) for loader in ranks}
        assert len(lengths) == 1
        for loader in ranks:
            rest += flat(ids(loader))
        assert {*flat(taken), *rest} == {*range(N)}


def test_padding_report(files):
    loader = make(files, "lengths")
    padded = sum(batch["tokens"].numel() for batch in loader)
    report = make(files, "lengths").padding_report()
    assert report["padded_tokens"] == padded
    sizes = np.random.default_rng(0).integers(1, 30, N)
    assert report["tokens"] == sizes.sum()
    assert report["fill"] == report["tokens"] / padded
    assert report["dropped"] == 0
    ds, options = TFRecordDataset(files, FEATURES), {"max_tokens": 16, "too_long": "drop"}
    batches = LengthBatchSampler(ds, lengths="tokens", **options)
    short = make_dataloader(ds, batch_sampler=batches).padding_report()
    assert (short["dropped"], short["tokens"]) == (sum(sizes > 16), sizes[sizes <= 16].sum())
    packed = make(files, "packs").padding_report()
    assert packed["tokens"] == sizes.sum()
    assert packed["fill"] > 0.95
    with pytest.raises(TypeError, match=r"made with lengths= or max_tokens=, got one without"):
        make(files).padding_report()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"lengths": "tokens", "shuffle": "blocks"},
            ValueError,
            "True or False for batches by length",
        ),
        ({"batch_size": None}, TypeError, "batch_size must be an integer"),
        (
            {"lengths": "tokens", "max_tokens": 9, "collate_fn": PackedCollate(64)},
            ValueError,
            "with PackedCollate expected batch_size and lengths",
        ),
        ({"max_tokens": 20, "lengths": "tokens"}, ValueError, "has length 29: expected at most 20"),
    ],
)
def test_wrong_arguments(files, options, error, text):
    with pytest.raises(error, match=text):
        make(files, **options)


# Which records.


@pytest.mark.parametrize("kind", KINDS)
def test_records_of_a_step(files, kind):
    loader = make(files, kind)
    batches = ids(loader)
    epoch_1 = ids(loader)
    fresh = make(files, kind)
    for step in (0, 7, len(batches) - 1):
        found = fresh.records_of(step)
        assert [id_at(path, offset) for path, offset, _ in found] == batches[step]
        assert [position for *_, position in found] == batches[step]  # ids are positions here
    assert [position for *_, position in fresh.records_of(3, epoch=1)] == epoch_1[3]
    with pytest.raises(
        IndexError, match=rf"step 999 is out of range: epoch 0 has {len(batches)} steps"
    ):
        fresh.records_of(999)


@pytest.mark.parametrize("kind", KINDS)
def test_records_of_steps_before_and_after_a_resumption(files, kind):
    """Three jobs with one, three and two ranks."""
    seen, state, step = {}, None, 0
    for world_size, num_steps in ((1, 5), (3, 2), (2, 4)):
        ranks = [make(files, kind, rank=rank, world_size=world_size) for rank in range(world_size)]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        received = [ids(islice(loader, num_steps)) for loader in ranks]
        for number in range(num_steps):
            seen[step + number] = [i for batches in received for i in batches[number]]
        step += num_steps
        states = [plain(loader.state_dict()) for loader in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
        for number, wanted in seen.items():
            for loader in (ranks[0], resumed(files, kind, state)):
                found = [position for *_, position in loader.records_of(number)]
                assert found == wanted, number


def resumed(files, kind, state):
    loader = make(files, kind, rank=0, world_size=2)
    loader.load_state_dict(state)
    return loader


def test_a_batch_size_that_changed(files):
    loader = make(files)
    first = ids(islice(loader, 3))
    other = make(files, batch_size=9)
    other.load_state_dict(loader.state_dict())
    later = ids(islice(other, 2))
    for step, wanted in enumerate(first + later):
        assert [position for *_, position in other.records_of(step)] == wanted


# Going to a step.


@pytest.mark.parametrize("kind", KINDS)
def test_skip_to(files, kind):
    whole = ids(make(files, kind))
    loader = make(files, kind)
    loader.skip_to(6)
    assert ids(islice(loader, 2)) == whole[6:8]
    loader.skip_to(2)  # back
    assert ids(loader) == whole[2:]
    loader.skip_to(1)  # of the next epoch
    assert ids(loader) == ids(make_at(files, kind, 1))[1:]
    with pytest.raises(IndexError, match=f"step 9999 is out of range: expected 0 to {len(whole)}"):
        make(files, kind).skip_to(9999)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_left_out_by_going_to_the_next_one(files, kind):
    whole = [ids(make(files, kind, rank=rank, world_size=2)) for rank in range(2)]
    ranks = [make(files, kind, rank=rank, world_size=2) for rank in range(2)]
    for loader, wanted in zip(ranks, whole, strict=True):
        assert ids(islice(loader, 2)) == wanted[:2]
        loader.skip_to(5)
        assert len(loader) == len(wanted) - 5
        assert ids(islice(loader, 1)) == wanted[5:6]
        again = make(files, kind, rank=loader.sampler.rank, world_size=2)
        again.load_state_dict(plain(loader.state_dict()))
        assert ids(again) == wanted[6:]
        assert not hasattr(loader, "skip")


# Weights that change.


@pytest.fixture(scope="module")
def two_sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    parts = []
    for number, first in enumerate((0, 1000)):
        (folder / str(number)).mkdir()
        parts.append(write(folder / str(number), first, 120))
    return parts


def mixed(two_sets, weights=(3, 1), num_samples=160, **options):
    parts = [TFRecordDataset(paths, FEATURES) for paths in two_sets]
    mixture = Mixture(parts, weights, seed=2, stop="never", num_samples=num_samples)
    return make_dataloader(mixture, 4, shuffle=False, **options)


def change(loader, weights):
    """Change the weights after the batches that were received."""
    state = loader.state_dict()
    mixture = loader.dataset.dataset
    mixture.set_epoch(state["epoch"])
    mixture.set_weights(weights, state["consumed"])
    loader.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_weights_change_at_a_step(two_sets, num_workers):
    plain_run = ids(mixed(two_sets))
    loader = mixed(two_sets, num_workers=num_workers)
    loader.dataset.dataset.set_weights([1, 3], from_position=10 * 4)
    found = ids(loader)
    assert found[:10] == plain_run[:10]
    later = [number >= 1000 for batch in found[10:] for number in batch]
    assert abs(sum(later) - 0.75 * len(later)) <= 2
    assert len(found) == 40
    # The next epoch has the new weights from its beginning.
    following = [number >= 1000 for batch in ids(loader) for number in batch]
    assert abs(sum(following) - 120) <= 2


def test_weights_are_in_the_state_and_the_same_on_all_ranks(two_sets):
    ranks = [mixed(two_sets, rank=rank, world_size=2) for rank in range(2)]
    states, rest = [], []
    for loader in ranks:
        ids(islice(loader, 3))
        change(loader, [1, 5])
        iterator = iter(loader)
        ids(islice(iterator, 2))
        states.append(plain(loader.state_dict()))
        rest.append(ids(iterator))
    assert states[0] == states[1]
    assert states[0]["run"]["weights"] == [[0, 24, [1, 5]]]
    both = [ids(resume(two_sets, states[0], rank)) for rank in range(2)]
    assert both == rest
    # Another world size: the same records in all.
    alone = mixed(two_sets)
    alone.load_state_dict(states[0])
    assert sorted(flat(ids(alone))) == sorted(flat(both[0] + both[1]))


def test_a_state_is_loaded_as_a_whole_or_not_at_all(two_sets):
    loader = mixed(two_sets)
    loader.dataset.dataset.set_weights([1, 5], from_position=16)
    state = plain(loader.state_dict())
    for wrong, text in [
        ({"seed": 77}, "seed is 77 in the state, 0 here"),
        ({"run": 3}, "run must have weights in the state, got 3"),
        ({"run": {"weights": [[0, 16, [2, 4]]]}}, "expected whole weights"),
        ({"run": {"weights": [[0, 9999, [1, 2]]]}}, "from_position must be at most 160"),
    ]:
        with pytest.raises(ValueError, match=text):
            loader.load_state_dict({**state, "consumed": 8, **wrong})
        assert plain(loader.state_dict()) == state
    # A state of the batch sampler knows no weights: those of the program stay.
    loader.load_state_dict(loader.batch_sampler.state_dict())
    assert plain(loader.state_dict()) == state
    loader.load_state_dict({**state, "run": {**state["run"], "weights": []}})
    assert ids(loader) == ids(mixed(two_sets))


def resume(two_sets, state, rank):
    loader = mixed(two_sets, rank=rank, world_size=2)
    loader.load_state_dict(state)
    return loader
