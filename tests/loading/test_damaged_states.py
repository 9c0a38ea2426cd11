"""States of which any field was changed: refused when loaded, by its name, or an iteration without
foreign errors.
"""

import copy
import itertools
import random

import pytest
import torch
from torch.utils.data import DataLoader

import torch_tfrecord as tfr
from torch_tfrecord import RecordSampler, make_dataloader

VALUES = [
    None, True, False, -1, 0, 1, 2, 3, 5, 7, 99, 1 << 31, 1 << 40, 1 << 62, 1 << 63, 10**30, -(10**30), 10**5000, 0.0,
    1.5, float("nan"), float("inf"), "", "1", "x" * 5000, b"1", [], [0], [0, 0], [[0, 0]], [[0, 1], [0, 1]],
    [[0, 0, 1, 0, None]], [[0, 0, 1, 0, [3, 1]]], [[0, 0, 1 << 62, 0, None]], [[1, 2, 3, 4, 5]], [None], [None, None],
    [[3, 9], None], [[0, 10**9], [1, 10**9]], [[0, 1 << 40]], {}, {"a": 1}, {1: 2, None: 3}, (), (1, 2), set(),
    [[[[[[]]]]]], object, torch.zeros(3), [0] * 3000, [[0, 3]] * 500, {str(number): 0 for number in range(3000)},
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    for file, count in enumerate((7, 9, 4)):
        with tfr.TFRecordWriter(folder / f"{file}.tfrecord") as writer:
            for number in range(count):
                writer.write({"id": 100 * file + number})
    return str(folder)


FEATURES = {"id": tfr.FixedLenFeature((), torch.int64)}


def stream(files, **options):
    return tfr.TFRecordIterableDataset(files, FEATURES, seed=1, **options)


def dataset(files):
    return tfr.TFRecordDataset(files, FEATURES, index="memory")


def after(holder, steps):
    """The state of a holder some steps into an iteration."""
    iterator = iter(holder)
    for _ in range(steps):
        next(iterator)
    return holder.state_dict()


def merged(files):
    """The states of two ranks, to be dealt out to one: some hold pieces."""
    made = [stream(files, shuffle_buffer_size=3, rank=rank, world_size=2) for rank in range(2)]
    return [after(each, 3 + number) for number, each in enumerate(made)]


def dealt_anew(files):
    ds = stream(files, shuffle_buffer_size=3, rank=0, world_size=1)
    ds.load_state_dict(merged(files))
    return after(ds, 2)


KINDS = {
    "sampler": (lambda f: RecordSampler(dataset(f), seed=2), lambda f, make: after(make(f), 3)),
    "blocks": (
        lambda f: RecordSampler(dataset(f), shuffle="blocks"),
        lambda f, make: after(make(f), 3),
    ),
    "batches": (
        lambda f: make_dataloader(dataset(f), batch_size=3).batch_sampler,
        lambda f, make: after(make(f), 3),
    ),
    "endless": (
        lambda f: make_dataloader(dataset(f), batch_size=3, num_epochs=None).batch_sampler,
        lambda f, make: after(make(f), 9),
    ),
    "loader": (lambda f: tfr.make_dataloader(f, 3, FEATURES), lambda f, make: after(make(f), 2)),
    "plain": (lambda f: stream(f, rank=0, world_size=1), lambda f, make: after(make(f), 9)),
    "interleaved": (
        lambda f: stream(f, rank=0, world_size=1, cycle_length=2, block_length=3, shuffle=True),
        lambda f, make: after(make(f), 8),
    ),
    "buffered": (
        lambda f: stream(f, rank=0, world_size=1, cycle_length=2, shuffle_buffer_size=4),
        lambda f, make: after(make(f), 8),
    ),
    "dealt": (
        lambda f: stream(f, shuffle_buffer_size=3, rank=0, world_size=1),
        lambda f, make: dealt_anew(f),
    ),
    "merged": (
        lambda f: stream(f, shuffle_buffer_size=3, rank=0, world_size=1),
        lambda f, make: merged(f),
    ),
    "mixture": (
        lambda f: tfr.make_dataloader(tfr.Mixture([dataset(f), dataset(f)]), 3, shuffle=False),
        lambda f, make: after(make(f), 2),
    ),
}


def places(state, path=()):
    """The paths of all that is in a state."""
    items = (
        state.items()
        if isinstance(state, dict)
        else enumerate(state)
        if isinstance(state, list)
        else ()
    )
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(state, path, change):
    state = copy.deepcopy(state)
    holder = state
    for key in path[:-1]:
        holder = holder[key]
    change(holder, path[-1])
    return state


def setting(value):
    def change(holder, key):
        holder[key] = value

    return change


def doubled(holder, key):
    value = holder[key]
    holder[key] = value * 2 if isinstance(value, (list, str, int)) else [value, value]


def mutations(state):
    """Each field with each value, missing, doubled; then two at once."""
    paths = list(places(state))
    for path in paths:
        for value in VALUES:
            yield path, changed(state, path, setting(value))
        yield path, changed(state, path, lambda holder, key: holder.__delitem__(key))
        yield path, changed(state, path, doubled)
    draw = random.Random(0)
    for _ in range(300):
        one, two = draw.sample(paths, 2) if len(paths) > 1 else (paths[0], paths[0])
        twice = changed(state, one, setting(draw.choice(VALUES)))
        try:
            yield two, changed(twice, two, setting(draw.choice(VALUES)))
        except (KeyError, IndexError, TypeError):  # what was there is gone
            continue


# What a file or a dataset of the user's alone can tell.
WHEN_ITERATED = (
    "the file has changed",
    "cannot resume from the states of",
    "samples, but the state has taken",
    "which has no load_state_dict",
)


@pytest.mark.daily
@pytest.mark.parametrize("kind", KINDS)
def test_every_change_is_refused_by_name_or_read(kind, files):
    make, state_of = KINDS[kind]
    state = state_of(files, make)
    holder, refused, read = make(files), 0, 0
    for path, mutated in mutations(state):
        try:
            holder.load_state_dict(mutated)
        except ValueError as error:
            assert len(str(error)) < 2000
            refused += 1
            continue
        except TypeError:
            assert not isinstance(mutated, dict), path
            continue
        read += path[0] != "run"  # that is for `tfrecord replay`, not read by a loader
        try:
            assert len(list(itertools.islice(holder, 50))) <= 50
        except ValueError as error:
            assert str(error).startswith(WHEN_ITERATED) or any(
                text in str(error) for text in WHEN_ITERATED
            ), path
            assert len(str(error)) < 2000
        holder = make(files)
    assert refused > 3 * read, (refused, read)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("batches", "first_epoch", 1 << 62),
        ("batches", "jobs", [[0, 1, 3]]),
        ("batches", "skips", [[1, 2, 1, 3]]),
        ("loader", "skips", []),
        ("loader", "run", 3),
        ("loader", "run", {"weights": [[0, 2, [1, 2]]]}),
        ("mixture", "run", {"weights": 7}),
        ("sampler", "jobs", []),
        ("sampler", "consumed", 10**50),
    ],
)
def test_a_refusal_names_the_field(kind, field, value, files):
    make, state_of = KINDS[kind]
    state = state_of(files, make)
    named = "changes of weights 7" if (kind, field) == ("mixture", "run") else rf"\b{field}\b"
    with pytest.raises(ValueError, match=named):
        make(files).load_state_dict({**state, field: value})


@pytest.mark.parametrize("kind", ["plain", "interleaved", "buffered", "dealt"])
@pytest.mark.parametrize("field", ["epoch", "consumer", "pieces", "slots", "waiting", "checksum"])
def test_a_changed_state_of_a_stream_is_refused(kind, field, files):
    make, state_of = KINDS[kind]
    state = state_of(files, make)
    for value in (7, True, -1, 1.5, "x", b"1", [7, 7], {"a": 1}, object, 10**30, 10**5000):
        with pytest.raises(
            ValueError, match="is not as state_dict returned it: expected the checksum"
        ):
            make(files).load_state_dict({**state, field: value})


def test_fewer_records_than_the_state_has(tmp_path):
    def write(count):
        with tfr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
            for number in range(count):
                writer.write({"id": number})

    write(9)
    plain, buffered = ({}, {"shuffle_buffer_size": 3})
    states = [after(stream(str(tmp_path), **options), 6) for options in (plain, buffered)]
    write(4)
    for options, state in zip((plain, buffered), states, strict=True):
        ds = stream(str(tmp_path), **options)
        ds.load_state_dict(state)
        with pytest.raises(ValueError, match="the file has changed: file 0"):
            list(ds)


def test_states_in_each_other_without_end(files):
    nest = []
    nest.append(nest)
    with pytest.raises(ValueError, match="within 50 nested dicts and lists"):
        stream(files).load_state_dict(nest)


def test_what_is_no_mapping_is_a_type_error(files):
    for kind in ("sampler", "batches", "loader", "mixture"):
        for wrong in (None, 3, "state", [1]):
            with pytest.raises(TypeError, match="expected a state_dict"):
                KINDS[kind][0](files).load_state_dict(wrong)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.15
def test_the_state_of_a_stateful_dataloader(files):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    ds = stream(files, shuffle_buffer_size=3)
    state = after(stateful(ds, batch_size=None, num_workers=2), 4)
    refused = 0
    for path in places(state):
        if path[-1] not in (
            "slots",
            "waiting",
            "turn",
            "next_piece",
            "draws",
            "consumer",
            "num_consumers",
        ):
            continue
        for value in (-1, 1.5, None, "x", [[9, 9]], 10**30):
            mutated = changed(state, path, setting(value))
            with pytest.raises(
                ValueError, match=r"is not as state_dict returned it|two different states"
            ):
                ds.load_state_dict(mutated)
            refused += 1
    assert refused >= 50
    assert len(list(DataLoader(ds, batch_size=None))) == 20
