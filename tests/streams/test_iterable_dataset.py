"""The stream: order, shuffling, epochs, batches, damaged files, every record once over all ranks
and workers.

Covers streams/iterable_dataset.
"""

import copy
import inspect
import itertools
import pickle
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import assert_same
from helpers import collect
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from torch_tfrecord import (
    CorruptRecordError,
    FixedLenFeature,
    ParseError,
    TFRecordError,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    build_index,
    collate,
    encode_example,
)
from torch_tfrecord.files import LocalFile

# DataLoader thinks more workers than processors a mistake; Python 3.12 and later warn of forks
# where threads run.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded"
)


def write(path, payloads, **options):
    with TFRecordWriter(path, **options) as writer:
        for payload in payloads:
            writer.write(payload)
    return str(path)


def write_split(folder, split, suffix=".tfrecord"):
    """Files a, b, c, ... with records a0, a1, ...; returns all records in order."""
    letters = "abcdefghijklmnopqrstuvwxyz"[: len(split)]
    parts = [
        [f"{letter}{n}".encode() for n in range(count)]
        for letter, count in zip(letters, split, strict=True)
    ]
    for letter, part in zip(letters, parts, strict=True):
        write(folder / f"{letter}{suffix}", part)
    return list(itertools.chain(*parts))


def stream(folder, **options):
    return TFRecordIterableDataset(folder / "*", **options)


def text(records):
    return " ".join(record.decode() for record in records)


# Order

INTERLEAVED = {  # spec: tf.data's interleave with block_length 1, files of 5, 3, 1 and 4 records
    1: "a0 a1 a2 a3 a4 b0 b1 b2 c0 d0 d1 d2 d3",
    2: "a0 b0 a1 b1 a2 b2 a3 a4 c0 d0 d1 d2 d3",
    3: "a0 b0 c0 a1 b1 a2 b2 d0 a3 d1 a4 d2 d3",
    4: "a0 b0 c0 d0 a1 b1 d1 a2 b2 d2 a3 d3 a4",
    8: "a0 b0 c0 d0 a1 b1 d1 a2 b2 d2 a3 d3 a4",
}


@pytest.mark.parametrize("cycle_length", INTERLEAVED)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_interleave(tmp_path, cycle_length, suffix):
    write_split(tmp_path, (5, 3, 1, 4), suffix)
    assert text(stream(tmp_path, cycle_length=cycle_length)) == INTERLEAVED[cycle_length]


def test_without_options_the_order_of_the_files(tmp_path):
    records = write_split(tmp_path, (5, 0, 3, 1))
    ds = stream(tmp_path)
    assert list(ds) == records
    assert list(ds) == records  # it can be read again
    assert ds.files == [str(tmp_path / f"{letter}.tfrecord") for letter in "abcd"]
    assert repr(ds) == f"TFRecordIterableDataset(4 files, '{tmp_path}/a.tfrecord', ...)"


@pytest.mark.filterwarnings("ignore:no file has a record")
def test_only_empty_files(tmp_path):
    write_split(tmp_path, (0, 0, 0))
    for options in (
        {},
        {"shuffle": True, "shuffle_buffer_size": 4, "cycle_length": 2},
        {"batch_size": 3},
    ):
        assert list(stream(tmp_path, **options)) == []


def test_needs_and_leaves_no_index(tmp_path):
    records = write_split(tmp_path, (2, 2))
    for path in tmp_path.iterdir():
        Path(f"{path}.index.safetensors").write_bytes(b"no index")
    before = sorted(tmp_path.iterdir())
    assert list(stream(tmp_path)) == records
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("suffix", [".gz", ".zlib"])
def test_compressed_files(tmp_path, suffix):
    records = write_split(tmp_path, (4, 2), suffix)
    assert list(stream(tmp_path)) == records
    assert (
        list(stream(tmp_path, compression_type={".gz": "GZIP", ".zlib": "ZLIB"}[suffix])) == records
    )
    with pytest.raises(TFRecordError, match=f"a{suffix}"):
        list(stream(tmp_path, compression_type=None))


# Shuffling: a pure function of (seed, epoch)


def epochs(ds, count=3):
    for epoch in range(count):
        ds.set_epoch(epoch)
        yield text(ds)


FILES = [  # epochs 0, 1, 2 of files a to e with two records each, seed 7
    "d0 d1 a0 a1 c0 c1 e0 e1 b0 b1",
    "c0 c1 e0 e1 d0 d1 b0 b1 a0 a1",
    "c0 c1 e0 e1 d0 d1 a0 a1 b0 b1",
]
BUFFER = [
    "b1 b0 a1 a0 c1 d0 c0 e0 e1 d1",
    "b1 a1 c1 b0 c0 a0 d1 e1 d0 e0",
    "b1 b0 a1 d0 c1 c0 e1 d1 e0 a0",
]
BOTH = [
    "e1 c1 d1 a0 b0 c0 b1 a1 e0 d0",
    "a1 c1 b1 e1 d1 c0 d0 b0 e0 a0",
    "b1 a0 c1 d0 b0 d1 e1 e0 a1 c0",
]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"shuffle": True}, FILES),
        ({"shuffle_buffer_size": 4}, BUFFER),
        ({"shuffle": True, "shuffle_buffer_size": 100, "cycle_length": 3}, BOTH),
    ],
    ids=["files", "buffer", "both"],
)
def test_orders_that_never_change(tmp_path, options, expected):
    # Frozen: whoever resumes a training with a later release, or on another machine, gets the same
    # order.
    write_split(tmp_path, (2,) * 5)
    assert list(epochs(stream(tmp_path, seed=7, **options))) == expected


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {"shuffle_buffer_size": 9}], ids=["files", "buffer"]
)
def test_seed_and_epoch_make_the_order(tmp_path, options):
    records = write_split(tmp_path, (4, 0, 7, 1, 5, 3, 2))
    first, second = (list(epochs(stream(tmp_path, seed=3, **options), 5)) for _ in range(2))
    assert first == second
    assert len(set(first)) == 5  # another one in each epoch
    assert all(Counter(order.split()) == Counter(text(records).split()) for order in first)
    other_seeds = {
        next(epochs(stream(tmp_path, seed=seed, **options), 1)) for seed in (0, 1, -1, 2**63, 2**70)
    }
    assert len(other_seeds) == 5
    ds = stream(tmp_path, seed=3, **options)
    assert [text(ds), text(ds)] == first[:2]  # each iteration is the next epoch
    ds.set_epoch(3)
    assert [text(ds), text(ds)] == first[3:]
    ds.set_epoch(np.int64(0))
    assert [text(ds), text(ds)] == first[:2]


def test_an_epoch_is_chosen_when_iteration_begins(tmp_path):
    write_split(tmp_path, (3, 3, 3))
    ds = stream(tmp_path, shuffle=True, shuffle_buffer_size=5)
    first, second = epochs(ds, 2)
    ds.set_epoch(0)
    running = iter(ds)
    head = next(running)
    ds.set_epoch(1)
    assert text([head, *running]) == first
    assert text(ds) == second


def test_an_iterator_that_gives_no_sample_does_not_count(tmp_path):
    write_split(tmp_path, (3, 3, 3))
    ds = stream(tmp_path, shuffle=True, shuffle_buffer_size=5)
    first, second = epochs(ds, 2)
    ds.set_epoch(0)
    early, unused = iter(ds), iter(ds)
    del unused
    assert text(ds) == first
    assert text(early) == second  # it begins now
    early = iter(ds)
    ds.set_epoch(1)
    assert text(early) == second


def test_files_are_shuffled_as_wholes_and_the_buffer_holds_so_many(tmp_path):
    write_split(tmp_path, (3, 3, 3, 3))
    order = list(stream(tmp_path, shuffle=True, seed=5))
    assert [order[first : first + 3] for first in range(0, 12, 3)] == [
        [letter + b"%d" % n for n in range(3)] for letter in (record[:1] for record in order[::3])
    ]
    place = {record: number for number, record in enumerate(stream(tmp_path))}
    for size in (1, 2, 5, 12, 1000):
        shuffled = list(stream(tmp_path, shuffle_buffer_size=size))
        assert sorted(shuffled) == sorted(place)
        # What comes out n-th went in as number n + size - 1 at the latest.
        assert all(place[record] < number + size for number, record in enumerate(shuffled))
        assert (shuffled == list(place)) == (size == 1)


def test_global_random_states_are_neither_read_nor_written(tmp_path):
    write_split(tmp_path, (5, 5))

    def states():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    ds = stream(tmp_path, shuffle=True, shuffle_buffer_size=4)
    before, order = states(), text(ds)
    assert states() == before
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert text(stream(tmp_path, shuffle=True, shuffle_buffer_size=4)) == order


# Batches


def test_batches(tmp_path):
    for first in (0, 5):
        numbers = range(first, first + 5)
        write(
            tmp_path / f"{first}",
            [encode_example({"n": n, "v": [n] * (n % 3 + 1)}) for n in numbers],
        )
    features = {"n": FixedLenFeature((), torch.int64), "v": VarLenFeature(torch.int64)}

    def batches(**options):
        ds = stream(tmp_path, features=features, **options)
        return [batch["n"].tolist() for batch in DataLoader(ds, batch_size=None)]

    assert batches(batch_size=4) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]  # across the border of the files
    assert batches(batch_size=4, drop_last=True) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (
        batches(batch_size=5, drop_last=True)
        == batches(batch_size=np.int64(5))
        == [[*range(5)], [*range(5, 10)]]
    )
    assert batches(batch_size=100) == [[*range(10)]]
    assert batches(batch_size=100, drop_last=True) == []
    assert batches(batch_size=1) == [[n] for n in range(10)]
    batch = next(iter(stream(tmp_path, features=features, batch_size=3)))
    assert [row.tolist() for row in batch["v"].unbind()] == [[0], [1, 1], [2, 2, 2]]


def test_transform_is_before_batching(tmp_path):
    records = write_split(tmp_path, (3, 2))
    assert list(stream(tmp_path, transform=bytes.upper)) == [record.upper() for record in records]
    assert list(stream(tmp_path, transform=bytes.upper, batch_size=2)) == [
        [b"A0", b"A1"],
        [b"A2", b"B0"],
        [b"B1"],
    ]


@pytest.mark.slow
def test_batches_in_workers_are_each_workers_own(tmp_path):
    records = write_split(tmp_path, (3, 3))
    loader = DataLoader(
        stream(tmp_path, batch_size=2),
        batch_size=None,
        num_workers=2,
        multiprocessing_context="fork",
    )
    assert list(loader) == [[b"a0", b"a1"], [b"b0", b"b1"], [b"a2"], [b"b2"]]
    assert sorted(record for batch in loader for record in batch) == records


# Every record exactly once over all ranks and workers


SPLITS = {
    "one file": (11,),
    "fewer files than workers": (4, 0, 7),
    "as many files": (3, 3, 3, 3, 3, 3),
    "more files, some empty": (2, 0, 5, 1, 0, 0, 9, 3, 1, 1, 2, 4, 0),
    "nothing": (0, 0),
}


@pytest.mark.daily
@pytest.mark.filterwarnings("ignore:no file has a record")
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (1, 5), (2, 2), (3, 0), (3, 1)])
def test_every_record_once(tmp_path, world_size, num_workers, split):
    records = write_split(tmp_path, split)
    seen = []
    for rank in range(world_size):
        ds = stream(
            tmp_path,
            rank=rank,
            world_size=world_size,
            shuffle=True,
            shuffle_buffer_size=3,
            cycle_length=2,
        )
        context = "fork" if num_workers else None
        seen += DataLoader(
            ds, batch_size=None, num_workers=num_workers, multiprocessing_context=context
        )
    assert sorted(seen) == sorted(records)


def counts(folder, world_size, **options):
    return [
        len(list(stream(folder, rank=rank, world_size=world_size, **options)))
        for rank in range(world_size)
    ]


def test_a_single_file_is_split_by_record(tmp_path):
    write_split(tmp_path, (10,))
    assert counts(tmp_path, 2) == [5, 5]
    assert counts(tmp_path, 3) == [4, 3, 3]
    assert list(stream(tmp_path, rank=1, world_size=3)) == [b"a1", b"a4", b"a7"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_of_several_blocks_is_split_by_record(tmp_path, suffix):
    # Files are read about half a megabyte at a time; the count continues across the borders.
    sizes = [1000, 999, 70_000, 0, 3]
    records = [b"%d:" % number + bytes(sizes[number % 5]) for number in range(200)]
    write(tmp_path / f"a{suffix}", records)
    for rank in range(3):
        assert list(stream(tmp_path, rank=rank, world_size=3)) == records[rank::3]


def test_all_ranks_agree_on_the_order_of_files(tmp_path):
    write_split(tmp_path, (1,) * 6)
    ranks = [stream(tmp_path, rank=rank, world_size=2, shuffle=True, seed=4) for rank in range(2)]
    for ds in ranks:
        ds.set_epoch(5)
    whole = stream(tmp_path, shuffle=True, seed=4)
    whole.set_epoch(5)
    dealt = [list(ds) for ds in ranks]
    assert [record for pair in zip(*dealt, strict=True) for record in pair] == list(whole)


# Copies and pickles


@pytest.mark.slow
def test_set_epoch_of_a_pickled_dataset(tmp_path):
    write_split(tmp_path, (3, 3, 3))
    ds = stream(tmp_path, shuffle=True, shuffle_buffer_size=4)
    orders = list(epochs(ds))
    ds.set_epoch(2)
    for other in (pickle.loads(pickle.dumps(ds)), copy.deepcopy(ds)):
        assert text(other) == orders[2]  # the epoch travels along
        other.set_epoch(1)
        assert text(other) == orders[1]
        assert text(ds) == orders[2]  # they are apart
        ds.set_epoch(2)
        other.set_epoch(1)
        # As with the original, persistent workers see what is set later.
        loader = DataLoader(
            other,
            batch_size=None,
            num_workers=1,
            multiprocessing_context="fork",
            persistent_workers=True,
        )
        assert text(loader) == orders[1]
        other.set_epoch(0)
        assert text(loader) == orders[0]
        del loader


@pytest.mark.daily
@pytest.mark.parametrize("num_workers", [1, 2])
def test_persistent_workers_see_set_epoch(tmp_path, num_workers):
    write_split(tmp_path, (3,) * 8)
    options = {"shuffle": True, "shuffle_buffer_size": 4, "seed": 1}

    def loader(ds, persistent):
        return DataLoader(
            ds,
            batch_size=None,
            num_workers=num_workers,
            multiprocessing_context="fork",
            persistent_workers=persistent,
        )

    ds = stream(tmp_path, **options)
    lasting = loader(ds, True)
    seen = []
    for epoch in (0, 1, 2, 1):
        ds.set_epoch(epoch)
        seen.append(text(lasting))
        fresh = stream(tmp_path, **options)
        fresh.set_epoch(epoch)
        assert text(loader(fresh, False)) == seen[-1]
    assert len(set(seen)) == 3
    assert seen[1] == seen[3]


# Errors, damaged data


def test_a_record_that_does_not_fit(tmp_path):
    good, bad = encode_example({"n": 1}), encode_example({"n": "text"})
    write(tmp_path / "a", [good])
    path = write(tmp_path / "b", [good, good, bad, good])
    offset = int(build_index(path).offsets[2])
    ds = stream(tmp_path, features={"n": FixedLenFeature((), torch.int64)})
    running = iter(ds)
    assert [int(next(running)["n"]) for _ in range(3)] == [1, 1, 1]
    with pytest.raises(ParseError) as caught:
        next(running)
    assert str(caught.value).startswith(f"{path}: record 2 at byte {offset}: feature 'n'")
    assert (caught.value.path, caught.value.position, caught.value.offset) == (path, 2, offset)


@pytest.fixture
def damaged(tmp_path):
    """Files of 5, 3 and 1 records; record 1 of the second, at byte 18, has a flipped bit in its
    payload.
    """
    records = write_split(tmp_path, (5, 3, 1))
    path = tmp_path / "b.tfrecord"
    data = bytearray(path.read_bytes())
    data[18 + 12] ^= 1
    path.write_bytes(data)
    return tmp_path, path, records


def test_damage_raises_after_the_records_before_it(damaged):
    folder, path, _ = damaged
    running = iter(stream(folder))
    assert text(itertools.islice(running, 6)) == "a0 a1 a2 a3 a4 b0"
    with pytest.raises(CorruptRecordError, match=f"{path}: record 1 at byte 18: "):
        next(running)


def test_damage_is_seen_only_where_it_is_looked_for(damaged):
    folder, _, records = damaged
    seen = list(stream(folder, verify_crc=False))
    assert len(seen) == 9
    assert [record for record in seen if record not in records] == [b"c1"]


def test_skip_leaves_out_the_damaged_record_alone_and_says_so(damaged):
    folder, path, records = damaged
    kept = [record for record in records if record != b"b1"]
    ds = stream(folder, on_error="skip")
    with pytest.warns(UserWarning, match="skipped") as caught:
        assert list(ds) == kept
    (warning,) = caught
    message = str(warning.message)
    assert message.startswith(
        f"on_error='skip': skipped 1 (CorruptRecordError: 1)\n  {path}: record 1 at byte 18: "
    )
    assert "(skipped 18 damaged bytes: [18, 36))" in message
    assert ds.report.counts == {"CorruptRecordError": 1}
    with pytest.warns(UserWarning, match="skipped 18 damaged bytes"):
        assert text(stream(folder, on_error="skip", cycle_length=2)) == "a0 b0 a1 b2 a2 a3 c0 a4"


def test_skip_shares_what_is_left_among_the_ranks(tmp_path):
    records = write_split(tmp_path, (8,))
    path = tmp_path / "a.tfrecord"
    data = bytearray(path.read_bytes())
    data[3 * 18 + 12] ^= 1
    path.write_bytes(data)
    seen = []
    for rank in range(3):
        with pytest.warns(UserWarning, match="skipped 18 damaged bytes"):
            seen += stream(tmp_path, on_error="skip", rank=rank, world_size=3)
    assert sorted(seen) == [record for record in records if record != b"a3"]


# Batches are made from blocks of records: as if each record were read and parsed by itself.


BATCH_FEATURES = {
    "n": FixedLenFeature((), torch.int64),
    "ids": VarLenFeature(torch.int64),
    "name": FixedLenFeature((), bytes),
}
MODES = [
    {},
    {"cycle_length": 2},
    {"shuffle_buffer_size": 7},
    {"rank": 1, "world_size": 2},
    {"transform": dict},
]


def numbered(number):
    return encode_example({"n": number, "ids": np.arange(number % 4), "name": f"n{number}"})


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few records, so that batches begin and end within them."""
    monkeypatch.setattr(LocalFile, "chunk_bytes", 300)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("batch_size", [1, 3, 10, 50])
@pytest.mark.parametrize("features", [None, BATCH_FEATURES], ids=["bytes", "features"])
def test_batches_are_collated_samples(tmp_path, options, batch_size, features):
    numbers = iter(range(40))
    for file, count in enumerate((17, 0, 21)):
        write(tmp_path / f"{file}", [numbered(next(numbers)) for _ in range(count)])
    options = {} if features is None and "transform" in options else options
    samples = list(stream(tmp_path, features=features, **options))
    for drop_last in (False, True):
        found = list(
            stream(
                tmp_path, features=features, batch_size=batch_size, drop_last=drop_last, **options
            )
        )
        lows = range(0, len(samples) - (batch_size - 1 if drop_last else 0), batch_size)
        assert_same(found, [collate(samples[low : low + batch_size]) for low in lows])
    assert len(samples) == (10 if "rank" in options else 38)


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("transform", [None, dict])
@pytest.mark.parametrize("options", [{}, {"cycle_length": 2}], ids=str)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    misfits=st.sets(st.integers(0, 29), max_size=3),
    damage=st.none() | st.integers(0, 29),
    batch_size=st.none() | st.integers(1, 12),
)
def test_errors_come_in_the_order_of_the_records(
    tmp_path_factory, transform, options, misfits, damage, batch_size
):
    folder = tmp_path_factory.mktemp("errors")
    records = [
        encode_example({"n": "text"}) if number in misfits else numbered(number)
        for number in range(30)
    ]
    path = write(folder / "a", records)
    offsets = build_index(path).offsets
    if damage is not None:
        data = bytearray(Path(path).read_bytes())
        data[int(offsets[damage]) + 12] ^= 1
        Path(path).write_bytes(data)
    first = min([*misfits, *([] if damage is None else [damage])], default=30)
    ds = stream(
        folder, features=BATCH_FEATURES, transform=transform, batch_size=batch_size, **options
    )
    items, error = collect(iter(ds), TFRecordError)
    seen = [int(n) for item in items for n in item["n"].reshape(-1)]
    if first == 30:
        assert error is None
        assert seen == list(range(30))
        return
    # batches that were full before it
    assert seen == list(range(first - first % (batch_size or 1)))
    assert isinstance(error, CorruptRecordError if first == damage else ParseError)
    assert str(error).startswith(f"{path}: record {first} at byte {offsets[first]}: ")
    assert (error.path, error.position, error.offset) == (path, first, offsets[first])


@pytest.mark.usefixtures("small_blocks")
def test_skip_in_batches(tmp_path):
    path = write(tmp_path / "a", map(numbered, range(30)))
    data = bytearray(Path(path).read_bytes())
    for bad in (4, 20):
        data[int(build_index(path).offsets[bad]) + 12] ^= 1
    Path(path).write_bytes(data)
    with pytest.warns(UserWarning, match="skipped 2 "):
        found = list(stream(tmp_path, features=BATCH_FEATURES, batch_size=7, on_error="skip"))
    assert [batch["n"].tolist() for batch in found] == [
        [0, 1, 2, 3, 5, 6, 7],
        list(range(8, 15)),
        [15, 16, 17, 18, 19, 21, 22],
        list(range(23, 30)),
    ]


# Wrong arguments


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *(
            (
                {name: value},
                ValueError if type(value) is int else TypeError,
                rf"{name} must be an integer of at least {least}, got {value!r}",
            )
            for name, least in (("batch_size", 1), ("shuffle_buffer_size", 0), ("cycle_length", 1))
            for value in (least - 1, -5, 1.5, "2", True)
        ),
        (
            {"cycle_length": None},
            TypeError,
            "cycle_length must be an integer of at least 1, got None",
        ),
        ({"shuffle": "blocks"}, TypeError, "shuffle must be True or False, got 'blocks'"),
        ({"on_error": "ignore"}, ValueError, "on_error must be 'raise' or 'skip', got 'ignore'"),
        ({"compression_type": "BZ2"}, ValueError, "'BZ2'"),
        ({"seed": 0.5}, TypeError, "float"),
        (
            {"rank": 0},
            ValueError,
            "rank and world_size must be given together, got rank=0, world_size=None",
        ),
        (
            {"world_size": 2},
            ValueError,
            "rank and world_size must be given together, got rank=None, world_size=2",
        ),
        (
            {"rank": 2, "world_size": 2},
            ValueError,
            "rank must be from 0 to world_size - 1, got rank=2, world_size=2",
        ),
        (
            {"rank": -1, "world_size": 2},
            ValueError,
            "rank must be from 0 to world_size - 1, got rank=-1",
        ),
        ({"features": {}}, ValueError, "features"),
    ],
)
def test_wrong_arguments(tmp_path, options, error, message):
    write_split(tmp_path, (1,))
    with pytest.raises(error, match=message):
        stream(tmp_path, **options)


@pytest.mark.parametrize("epoch", [-1, 0.5, None, True])
def test_wrong_epoch(tmp_path, epoch):
    write_split(tmp_path, (1,))
    with pytest.raises(
        ValueError if epoch == -1 else TypeError,
        match=f"epoch must be an integer of at least 0, got {epoch}",
    ):
        stream(tmp_path).set_epoch(epoch)


def test_options_are_keyword_only():
    parameters = inspect.signature(TFRecordIterableDataset).parameters
    assert [name for name, item in parameters.items() if item.kind.name != "KEYWORD_ONLY"] == [
        "paths",
        "features",
    ]


def test_no_match(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        TFRecordIterableDataset(tmp_path / "nothing")


def test_what_a_stream_cannot_do(tmp_path):
    write_split(tmp_path, (1,))
    ds = stream(tmp_path)
    with pytest.raises(TypeError, match="len"):
        len(ds)  # a wrong length would be worse than none
    with pytest.raises(ValueError, match="shuffle"):
        DataLoader(ds, shuffle=True)
