"""make_dataloader: what one call gives, in which order, to which rank; and what it refuses."""

import itertools
import math

import pytest
import torch

from torch_tfrecord import (
    FixedLenFeature,
    PaddedCollate,
    ShardedTFRecordWriter,
    TFRecordWriter,
    VarLenFeature,
    make_dataloader,
)
from torch_tfrecord.order import Permutation

NUM_RECORDS = 23
FEATURES = {
    "id": FixedLenFeature((), torch.int64),
    "label": FixedLenFeature((), torch.int64),
    "ids": VarLenFeature(torch.int64),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("loader") / "train"
    with ShardedTFRecordWriter(prefix, max_shard_bytes=500, write_index=True) as writer:
        for number in range(NUM_RECORDS):
            writer.write({"id": number, "label": number % 3, "ids": torch.arange(number % 4)})
    return f"{prefix}-*"


def batches(loader):
    return [batch["id"].tolist() for batch in loader]


def joined(lists):
    return list(itertools.chain.from_iterable(lists))


def ids(loader):
    return joined(batches(loader))


def double(sample):
    return sample | {"id": sample["id"] * 2}


def without_label(sample):
    return {"id": sample["id"]}


def permutation(num_records, seed, epoch):
    order = Permutation(num_records, seed, epoch)
    return [order[place] for place in range(num_records)]


# Promised to users: a change breaks the order of their runs.
FROZEN = [
    ((12, 0, 0), [5, 9, 2, 3, 8, 6, 0, 11, 1, 10, 4, 7]),
    ((12, 0, 1), [8, 0, 6, 10, 1, 2, 3, 11, 9, 4, 7, 5]),
    ((12, 2**70, 5), [10, 1, 9, 6, 11, 0, 4, 5, 2, 7, 8, 3]),
    ((5, 0, 0), [2, 3, 0, 1, 4]),
    ((1, 3, 7), [0]),
    ((0, 0, 0), []),
]


@pytest.mark.filterwarnings("ignore:no file has a record")
@pytest.mark.parametrize(("arguments", "order"), FROZEN)
def test_frozen_orders(tmp_path, arguments, order):
    num_records, seed, epoch = arguments
    with TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(num_records):
            writer.write({"id": number, "label": 0})
    loader = make_dataloader(tmp_path / "a.tfrecord", 5, {"id": FEATURES["id"]}, seed=seed)
    loader.set_epoch(epoch)
    assert ids(loader) == permutation(*arguments) == order


def test_batch_is_collated(files):
    batch = next(iter(make_dataloader(files, 4, FEATURES, shuffle=False)))
    assert batch["label"].tolist() == [0, 1, 2, 0]
    assert batch["ids"].layout == torch.jagged
    assert [row.tolist() for row in batch["ids"].unbind()] == [[], [0], [0, 1], [0, 1, 2]]


def test_bytes_without_features(files):
    batch = next(iter(make_dataloader(files, 4)))
    assert [type(record) for record in batch] == [bytes] * 4


def test_each_pass_is_the_next_epoch(files):
    loader = make_dataloader(files, 5, FEATURES, seed=7)
    assert [ids(loader) for _ in range(3)] == [
        permutation(NUM_RECORDS, 7, epoch) for epoch in range(3)
    ]


def test_a_pass_that_is_left_early_counts_once(files):
    loader = make_dataloader(files, 5, FEATURES, num_epochs=2)
    next(iter(loader))
    assert ids(loader) == permutation(NUM_RECORDS, 0, 2) + permutation(NUM_RECORDS, 0, 3)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_order_does_not_depend_on_workers(files, num_workers, persistent_workers):
    plain = make_dataloader(files, 4, FEATURES, num_epochs=2)
    loader = make_dataloader(
        files,
        4,
        FEATURES,
        num_epochs=2,
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
    for _ in range(2):
        assert batches(loader) == batches(plain)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_epochs", [0, 1, 3])
@pytest.mark.parametrize("world_size", [1, 2, 5, 30])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_length_and_equal_ranks(files, drop_last, num_epochs, world_size, batch_size):
    arguments = {"num_epochs": num_epochs, "drop_last": drop_last, "world_size": world_size}
    sizes = []
    for rank in sorted({0, world_size // 2, world_size - 1}):
        loader = make_dataloader(files, batch_size, FEATURES, rank=rank, **arguments)
        sizes.append(list(map(len, batches(loader))))
        assert len(loader) == len(sizes[-1])
    assert all(size == sizes[0] for size in sizes)
    if drop_last:
        assert set(sizes[0]) <= {batch_size}


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_each_epoch(files, drop_last):
    loaders = [
        make_dataloader(files, 5, FEATURES, rank=rank, world_size=2, drop_last=drop_last)
        for rank in (0, 1)
    ]
    for epoch in range(2):
        order = permutation(NUM_RECORDS, 0, epoch)
        found = [ids(loader) for loader in loaders]
        if drop_last:
            # 11 each, of which the short batch is left out
            assert found == [order[0:20:2], order[1:20:2]]
        else:
            # the first one twice, to make them equal
            assert found == [order[0::2], [*order[1::2], order[0]]]


@pytest.mark.slow
def test_endless_with_workers(files):
    loader = make_dataloader(files, 10, FEATURES, num_epochs=None, num_workers=2)
    iterator = iter(loader)
    assert [len(next(iterator)["id"]) for _ in range(7)] == [10, 10, 3, 10, 10, 3, 10]
    del iterator


@pytest.mark.filterwarnings("ignore:no file has a record")
def test_no_batches_end_at_once(files, tmp_path):
    with TFRecordWriter(tmp_path / "empty.tfrecord"):
        pass
    assert list(make_dataloader(tmp_path / "empty.tfrecord", 2, num_epochs=None)) == []
    assert list(make_dataloader(tmp_path / "empty.tfrecord", 2, rank=1, world_size=2)) == []
    assert list(make_dataloader(files, 100, drop_last=True)) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_size": 100}, "at least 100 samples, got 23"),
        ({"batch_size": 12, "rank": 1, "world_size": 2}, "at least 24 samples, got 23"),
        ({"batch_size": 24, "lengths": None, "max_tokens": 1 << 20}, "a batch of samples, got 23"),
    ],
)
def test_an_endless_loader_whose_batches_never_fill_is_an_error(files, options, expected):
    loader = make_dataloader(files, num_epochs=None, drop_last=True, **options)
    with pytest.raises(ValueError, match=f"num_epochs=None with drop_last=True: .*{expected}"):
        next(iter(loader))


def test_label(files):
    features, label = next(
        iter(make_dataloader(files, 4, FEATURES, label_key="label", shuffle=False))
    )
    assert list(features) == ["id", "ids"]
    assert label.tolist() == [0, 1, 2, 0]


def test_label_after_the_transform(files):
    loader = make_dataloader(
        files, 4, FEATURES, label_key="id", transform=double, shuffle=False, num_workers=1
    )
    features, label = next(iter(loader))
    assert (list(features), label.tolist()) == (["label", "ids"], [0, 2, 4, 6])


def test_transform_without_label(files):
    assert next(iter(make_dataloader(files, 4, FEATURES, transform=double, shuffle=False)))[
        "id"
    ].tolist() == [
        0,
        2,
        4,
        6,
    ]


@pytest.mark.parametrize("features", [FEATURES, None])
def test_label_key_that_is_no_feature(files, features):
    with pytest.raises(
        ValueError, match=r"The `label_key` provided \(q\) must be one of the `features` keys"
    ):
        make_dataloader(files, 4, features, label_key="q")


def test_transform_that_loses_the_label(files):
    loader = make_dataloader(files, 4, FEATURES, label_key="label", transform=without_label)
    with pytest.raises(
        ValueError, match="or the transform must return a mapping with the key label_key='label'"
    ):
        next(iter(loader))


@pytest.mark.slow
def test_keywords_for_the_dataloader(files):
    pad = PaddedCollate(({"ids": [4]}, None), ({"ids": -1}, None))
    loader = make_dataloader(
        files,
        4,
        FEATURES,
        label_key="label",
        shuffle=False,
        collate_fn=pad,
        num_workers=2,
        prefetch_factor=3,
    )
    assert (loader.collate_fn, loader.prefetch_factor, loader.num_workers) == (pad, 3, 2)
    features, _ = next(iter(loader))
    assert features["ids"].tolist() == [[-1] * 4, [0, -1, -1, -1], [0, 1, -1, -1], [0, 1, 2, -1]]


@pytest.mark.parametrize("name", ["sampler", "dataset"])
def test_conflicting_keywords(files, name):
    with pytest.raises(ValueError, match=f"^{name} cannot be given"):
        make_dataloader(files, 4, FEATURES, **{name: None})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "Batch size must be greater than zero, got 0"),
        ({"batch_size": 2.5}, TypeError, "float"),
        ({"shuffle": "yes"}, TypeError, "shuffle must be True, False or \"blocks\", got 'yes'"),
        (
            {"num_epochs": -2},
            ValueError,
            "num_epochs must be at least 0, or None or -1 for endlessly many, got -2",
        ),
        ({"num_epochs": math.inf}, TypeError, "float"),
        ({"seed": "a"}, TypeError, "str"),
        ({"rank": 1}, ValueError, "rank and world_size must be given together"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank must be from 0 to world_size - 1"),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"unknown": 1}, TypeError, "unknown"),
    ],
)
def test_wrong_arguments(files, arguments, error, message):
    with pytest.raises(error, match=message):
        make_dataloader(files, **({"batch_size": 4, "features": FEATURES} | arguments))


@pytest.mark.slow
def test_global_random_state_is_left_alone(files):
    before = torch.get_rng_state()
    for _ in make_dataloader(files, 4, FEATURES, num_workers=1):
        pass
    assert torch.get_rng_state().equal(before)


def random_number(sample):
    return sample | {"random": torch.rand(())}


@pytest.mark.daily
def test_seed_decides_the_workers_random_states(files):
    def draw(**arguments):
        loader = make_dataloader(
            files, 4, FEATURES, transform=random_number, num_workers=2, **arguments
        )
        return torch.cat([batch["random"] for _ in range(2) for batch in loader]).tolist()

    first = draw(seed=3)
    assert draw(seed=3) == first
    assert len(set(first)) == len(first)  # the second epoch draws anew
    assert not set(draw(seed=4)) & set(first)
    assert not set(draw(seed=3, rank=1, world_size=2)) & set(first)
    own = torch.Generator().manual_seed(5)
    assert not set(draw(seed=3, generator=own)) & set(first)
