"""Batches by length: every record once, the same steps on all ranks, resumed on any world size.

Covers order/steps, order/iteration.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

from torch_tfrecord import (
    IndexMismatchError,
    LengthBatchSampler,
    Mixture,
    PaddedCollate,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    build_index,
)

SEED = 3


def samplers(lengths, world_size, **options):
    return [
        LengthBatchSampler(
            range(len(lengths)), lengths=lengths, rank=rank, world_size=world_size, **options
        )
        for rank in range(world_size)
    ]


def random_case(rng):
    """Lengths and options, of all kinds."""
    n = int(rng.integers(0, 60))
    longest = int(rng.choice([1, 5, 40]))
    lengths = rng.integers(0, longest + 1, n)
    options = {
        "multiple_of": int(rng.choice([1, 1, 4, 8])),
        "shuffle": bool(rng.integers(2)),
        "drop_last": bool(rng.integers(4) == 0),
        "seed": int(rng.integers(5)),
        "too_long": str(rng.choice(["alone", "drop"])),
    }
    kind = rng.integers(3)
    if kind != 1:
        options["batch_size"] = int(rng.integers(1, 9))
    if kind != 0:
        options["max_tokens"] = int(rng.integers(8, 80))
    if rng.integers(2):
        options["boundaries"] = np.unique(rng.integers(1, longest + 2, 3)).tolist()
    return lengths, options


def padded(lengths, batch, multiple_of):
    return len(batch) * (-(-max(lengths[batch]) // multiple_of) * multiple_of)


def check_step(lengths, batches, options, buckets):
    """One step's batches of all ranks."""
    limit, multiple_of = options.get("max_tokens"), options["multiple_of"]
    assert all(batches)  # each rank has a batch
    for batch in batches:
        assert len(batch) <= options.get("batch_size", 1 << 31)
        if limit is not None:
            assert padded(lengths, batch, multiple_of) <= limit or len(batch) == 1
    assert max(map(len, batches)) - min(map(len, batches)) <= 1
    # All of one bucket.
    assert len({buckets[position] for batch in batches for position in batch}) == 1


def check_case(rng):
    lengths, options = random_case(rng)
    world_size, epoch = int(rng.integers(1, 4)), int(rng.integers(3))
    ranks = samplers(lengths, world_size, **options)
    for sampler in ranks:
        sampler.set_epoch(epoch)
    sizes = [len(sampler) for sampler in ranks]
    per_rank = [list(sampler) for sampler in ranks]
    assert [len(batches) for batches in per_rank] == sizes
    assert len({*sizes}) == 1  # the same steps on all ranks
    buckets = np.digitize(lengths, ranks[0].boundaries)
    fits = np.ones(len(lengths), bool)
    if "max_tokens" in options:
        multiple_of = options["multiple_of"]
        fits = -(-lengths // multiple_of) * multiple_of <= options["max_tokens"]
    kinds = [*zip(buckets.tolist(), fits.tolist(), strict=True)]
    for step in zip(*per_rank, strict=True):
        check_step(lengths, step, options, kinds)
    given = Counter(position for batches in per_rank for batch in batches for position in batch)
    wanted = np.flatnonzero(fits) if options["too_long"] == "drop" else np.arange(len(lengths))
    assert ranks[0].num_dropped == len(lengths) - len(wanted)
    if options["drop_last"]:
        assert not given or max(given.values()) == 1
        assert {*given} <= {*wanted.tolist()}
    else:
        assert {*given} == {*wanted.tolist()}
        # Some come twice only where a bucket has a step of fewer records than ranks.
        again = Counter(
            kinds[position] for position, times in given.items() for _ in range(times - 1)
        )
        assert all(times < world_size for times in again.values())
        assert world_size > 1 or not again
    # Deterministic, and the next epoch is another.
    assert [list(sampler) for sampler in ranks] == per_rank
    return lengths, options, world_size, epoch, per_rank


def check_resumed(rng, lengths, options, world_size, epoch, per_rank):
    """Interrupted at every step, then resumed on the same and on another world size."""
    whole = Counter(position for batches in per_rank for batch in batches for position in batch)
    for num_steps in range(len(per_rank[0]) + 1):
        (first,) = samplers(lengths, world_size, **options)[:1]
        first.set_epoch(epoch)
        iterator = iter(first)
        for _ in range(num_steps):
            next(iterator)
        state = json.loads(json.dumps(first.state_dict()))
        # Every rank has the same state, so that one rank's is enough.
        resumed = samplers(lengths, world_size, **options)
        for sampler in resumed:
            sampler.load_state_dict(state)
        assert [len(sampler) for sampler in resumed] == [len(per_rank[0]) - num_steps] * world_size
        assert [list(sampler) for sampler in resumed] == [
            batches[num_steps:] for batches in per_rank
        ]
        others = samplers(lengths, int(rng.integers(1, 4)), **options)
        seen = Counter(p for batches in per_rank for batch in batches[:num_steps] for p in batch)
        # Once more interrupted there, and then on a third one.
        for sampler in others:
            sampler.load_state_dict(state)
        again = int(rng.integers(0, len(others[0]) + 1))
        parts = [iter(sampler) for sampler in others]
        for part in parts:
            for _ in range(again):
                seen.update(next(part))
        third = samplers(lengths, int(rng.integers(1, 4)), **options)
        for sampler in third:
            sampler.load_state_dict(others[0].state_dict())
            seen.update(position for batch in sampler for position in batch)
        if options["drop_last"]:
            assert not seen or max(seen.values()) == 1
        else:
            assert {*seen} == {*whole}


def test_random_cases_quickly():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        case = check_case(rng)
        if seed % 10 == 0:
            check_resumed(rng, *case)


@pytest.mark.slow
@pytest.mark.daily
def test_ten_thousand_random_cases():
    for seed in range(10_000):
        rng = np.random.default_rng(1000 + seed)
        case = check_case(rng)
        if seed % 4 == 0:
            check_resumed(rng, *case)


# What is chosen.


def waste(lengths, boundaries):
    """Padding where each record is as long as the longest of its bucket."""
    buckets = np.digitize(lengths, boundaries)
    return sum(int(lengths[buckets == b].max()) * sum(buckets == b) for b in {*buckets}) - sum(
        lengths
    )


def best_boundaries(lengths, batch_size):
    return LengthBatchSampler(lengths, lengths=lengths, batch_size=batch_size).boundaries


def test_boundaries_have_the_least_padding():
    """Of all that there are."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        lengths = rng.choice(rng.integers(0, 60, 7), 40)
        values = np.unique(lengths)
        batch_size, num_buckets = [(10, 1), (5, 2), (3, 3), (2, 5)][seed % 4]
        found = best_boundaries(lengths, batch_size)
        assert len(found) < num_buckets
        every = combinations(values[1:].tolist(), min(num_buckets, len(values)) - 1)
        assert waste(lengths, found) == min(waste(lengths, [*each]) for each in every)


def test_boundaries_of_many_lengths_are_those_of_fewer():
    """More candidates than are tried: lengths in three modes, far apart."""
    rng = np.random.default_rng(0)
    modes = [
        rng.integers(8, 500, 3000),
        rng.integers(4000, 4900, 2000),
        rng.integers(90_000, 90_060, 50),
    ]
    lengths = np.concatenate(modes)
    assert len(np.unique(lengths)) > 1000
    found = best_boundaries(lengths, 78)
    assert len(found) == 15
    assert waste(lengths, found) < 0.06 * sum(lengths)


def test_many_lengths_are_padded_below_five_percent():
    """Log-normal, mu 5 and sigma 1, cut at 4,096."""
    lengths = np.minimum(np.random.default_rng(0).lognormal(5, 1, 100_000), 4096).astype(int) + 1
    sampler = LengthBatchSampler(lengths, lengths=lengths, batch_size=32)
    padded = sum(len(batch) * lengths[batch].max() for batch in sampler)
    random = np.random.default_rng(1).permutation(lengths).reshape(-1, 32)
    assert lengths.sum() / padded > 0.95
    assert lengths.sum() / (32 * random.max(axis=1).sum()) < 0.4


def test_files_in_order():
    lengths = [1, 9, 2, 8, 1, 9, 1]
    sampler = LengthBatchSampler(
        range(7), lengths=lengths, batch_size=2, boundaries=[5], shuffle=False
    )
    assert list(sampler) == [[0, 2], [1, 3], [5], [4, 6]]


def test_epochs():
    sampler = LengthBatchSampler(range(50), lengths=[*range(50)], batch_size=4, seed=SEED)
    first = list(sampler)
    assert list(sampler) == first  # as for RecordSampler, until set_epoch is called
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first
    assert [batch.epoch for batch in second] == [1] * len(second)
    sampler.set_epoch(0)
    assert list(sampler) == first


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ValueError, "expected batch_size or max_tokens, got neither"),
        ({"batch_size": 0}, ValueError, "batch_size must be an integer of at least 1"),
        ({"max_tokens": 0}, ValueError, "max_tokens must be an integer of at least 1"),
        ({"batch_size": 2, "multiple_of": 0}, ValueError, "multiple_of must be an integer of"),
        (
            {"batch_size": 2, "boundaries": [4, 4]},
            ValueError,
            r"boundaries must ascend, got \[4, 4\]",
        ),
        ({"batch_size": 2, "too_long": "cut"}, ValueError, "too_long must be 'error', 'alone' or"),
        ({"batch_size": 2, "shuffle": "blocks"}, TypeError, "shuffle must be True or False"),
        (
            {"max_tokens": 8},
            ValueError,
            r"position 2 has length 9: expected at most 8 \(max_tokens=8, multiple_of=1\), or too_long=",
        ),
        ({"max_tokens": 15, "multiple_of": 8}, ValueError, "length 9: expected at most 8"),
        (
            {"batch_size": 2, "lengths": [1, 2]},
            ValueError,
            r"for each of 3 records, got shape \[2\]",
        ),
        ({"batch_size": 2, "lengths": [1.0, 2, 3]}, TypeError, "integers, got float64"),
        ({"batch_size": 2, "lengths": [1, -2, 3]}, ValueError, "from 0 to 2.31 - 1, got -2 to 3"),
        ({"batch_size": 2, "lengths": None}, TypeError, "expected a TFRecordDataset.* got range"),
        ({"batch_size": 2, "rank": 1}, ValueError, "rank and world_size must be given together"),
    ],
)
def test_wrong_arguments(options, error, text):
    with pytest.raises(error, match=text):
        LengthBatchSampler(range(3), **{"lengths": [1, 2, 9], **options})


def test_states_of_other_batches_are_refused():
    lengths = [1, 2, 9, 4]
    state = LengthBatchSampler(range(4), lengths=lengths, batch_size=2).state_dict()
    for options, text in [
        ({"batch_size": 3}, "batch_size is 2 in the state, 3 here"),
        ({"batch_size": 2, "max_tokens": 99}, "max_tokens is None in the state, 99 here"),
        ({"batch_size": 2, "lengths": [1, 2, 9, 5]}, "lengths is"),
        ({"batch_size": 2, "boundaries": [3]}, r"boundaries is \[\] in the state, \[3\] here"),
    ]:
        with pytest.raises(ValueError, match=text):
            LengthBatchSampler(range(4), **{"lengths": lengths, **options}).load_state_dict(state)
    sampler = LengthBatchSampler(range(4), lengths=lengths, batch_size=2)
    for change, text in [
        ({"jobs": [[0, 1, 0]]}, "jobs must hold lists of 4 numbers"),
        (
            {"jobs": [[0, 1, 0, -1]]},
            "jobs must be an integer of at least 0|jobs must be an integer at least 0",
        ),
        ({"jobs": [[0, 1, 0, 1]]}, "consumed must be 2 after the jobs in the state, got 0"),
        ({"skips": []}, r"0 missing: \[\], 1 unknown: \['skips'\]"),
    ]:
        with pytest.raises(ValueError, match=text):
            sampler.load_state_dict({**state, **change})


# Where the lengths come from.


def written(folder, name="a", num=40):
    """A file with lists of tokens, the index of which keeps their lengths; and the lengths."""
    path = folder / f"{name}.tfrecord"
    sizes = np.random.default_rng(len(name)).integers(0, 30, num).tolist()
    with TFRecordWriter(path) as writer:
        for number, size in enumerate(sizes):
            writer.write({"id": number, "size": size, "tokens": np.full(size, 7)})
    build_index(path, columns=["len(tokens)", "size"])
    return str(path), sizes


def test_lengths_of_files(tmp_path):
    (first, sizes), (second, others) = written(tmp_path), written(tmp_path, "bb", 25)
    ds = TFRecordDataset([first, second])
    options = {"max_tokens": 64, "boundaries": [8, 16], "seed": SEED}
    by_hand = list(LengthBatchSampler(ds, lengths=sizes + others, **options))
    assert list(LengthBatchSampler(ds, lengths="tokens", **options)) == by_hand
    assert list(LengthBatchSampler(ds, lengths="len(tokens)", **options)) == by_hand
    assert list(LengthBatchSampler(ds, lengths="size", **options)) == by_hand  # a number
    # Bytes, without a column.
    sizes_in_bytes = [len(ds.raw(position)) for position in range(len(ds))]
    by_hand = list(LengthBatchSampler(ds, lengths=sizes_in_bytes, batch_size=8))
    assert list(LengthBatchSampler(ds, batch_size=8)) == by_hand
    # Parts, and parts of parts.
    part = ConcatDataset([Subset(ds, [50, 3, 7]), ds[10:30:2]])
    chosen = [50, 3, 7, *range(10, 30, 2)]
    by_hand = LengthBatchSampler(part, lengths=[(sizes + others)[n] for n in chosen], batch_size=3)
    assert list(LengthBatchSampler(part, lengths="tokens", batch_size=3)) == list(by_hand)
    with pytest.raises(IndexMismatchError, match=r"index --columns 'len\(words\)' PATHS"):
        LengthBatchSampler(ds, lengths="words", batch_size=3)
    for dataset in (Mixture([ds, ds]), Subset(Mixture([ds, ds]), [0, 1])):
        for lengths in (None, "tokens", [1] * len(dataset)):
            with pytest.raises(TypeError, match="the same record at a position in each epoch"):
                LengthBatchSampler(dataset, lengths=lengths, batch_size=3)


def test_a_list_that_is_missing_has_no_length(tmp_path):
    path = tmp_path / "x.tfrecord"
    with TFRecordWriter(path) as writer:
        writer.write({"id": 0})
        writer.write({"id": 1, "tokens": [1, 2]})
    build_index(path, columns=["len(tokens)"])
    batches = LengthBatchSampler(
        TFRecordDataset(path), lengths="tokens", batch_size=2, boundaries=[1], shuffle=False
    )
    assert list(batches) == [[0], [1]]


def test_in_a_plain_dataloader(tmp_path):
    path, sizes = written(tmp_path)
    ds = TFRecordDataset(path, {"tokens": VarLenFeature(torch.int64)})
    batches = LengthBatchSampler(ds, lengths="tokens", max_tokens=60, multiple_of=4)
    loader = DataLoader(ds, batch_sampler=batches, collate_fn=PaddedCollate(multiple_of=4))
    shapes = [tuple(batch["tokens"].shape) for batch in loader]
    assert sum(rows for rows, _ in shapes) == len(sizes)
    assert all(rows * length <= 60 and length % 4 == 0 for rows, length in shapes)
    assert sorted(shapes) == sorted(
        (len(batch), -(-max(sizes[n] for n in batch) // 4) * 4) for batch in batches
    )
