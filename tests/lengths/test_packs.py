"""Packs: every record once, no row too full, the same rows on any world size."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from torch.utils.data import SequentialSampler

from torch_tfrecord import PackedCollate, make_dataloader


def best_fit_decreasing(lengths, size):
    """One record at a time: the oracle for the number of rows."""
    spaces = []
    for length in sorted(lengths, reverse=True):
        fitting = [number for number, space in enumerate(spaces) if space >= length]
        if fitting:
            tightest = min(fitting, key=lambda number: spaces[number])
            spaces[tightest] -= length
        else:
            spaces.append(size - length)
    return sorted(spaces)


def random_lengths(rng, size):
    return np.minimum(rng.lognormal(np.log(size / 4), 1, rng.integers(0, 80)).astype(int), size)


def packs(lengths, size, num_rows, too_long="error", **options):
    collate = PackedCollate(size, too_long=too_long)
    return make_dataloader(
        range(len(lengths)), num_rows, lengths=lengths, collate_fn=collate, **options
    )


def batches_of(lengths, size, num_rows, *, world_size=1, epoch=0, **options):
    """The loader, and the batches of each rank."""
    found = []
    for rank in range(world_size):
        loader = packs(lengths, size, num_rows, rank=rank, world_size=world_size, **options)
        loader.set_epoch(epoch)
        found.append([list(batch) for batch in loader.batch_sampler])
    return loader, found


def rows_of(lengths, size):
    """Rows in order: a new one where the next record does not fit."""
    rows, left = 0, 0
    for length in lengths:
        if length > left:
            rows, left = rows + 1, size
        left -= length
    return rows


def test_as_full_as_best_fit_decreasing():
    for seed in range(300):
        rng = np.random.default_rng(seed)
        size = int(rng.choice([7, 20, 100]))
        lengths = np.maximum(random_lengths(rng, size), 1)
        _, (rows,) = batches_of(lengths, size, 1)
        spaces = [size - int(lengths[row].sum()) for row in rows]
        assert sorted(spaces) == best_fit_decreasing(lengths.tolist(), size)


def test_every_record_once_and_no_row_too_full():
    for seed in range(300):
        rng = np.random.default_rng(seed)
        size, num_rows = int(rng.choice([7, 20, 100])), int(rng.integers(1, 5))
        lengths = random_lengths(rng, size)
        shuffle, epoch = bool(rng.integers(2)), int(rng.integers(3))
        _, (batches,) = batches_of(lengths, size, num_rows, epoch=epoch, shuffle=shuffle, seed=seed)
        assert sorted(p for batch in batches for p in batch) == list(range(len(lengths)))
        assert all(rows_of(lengths[batch], size) <= num_rows for batch in batches)
        # Ranks: the same number of batches, each record on one; rows come twice to even them out.
        world_size = int(rng.integers(2, 4))
        _, ranks = batches_of(lengths, size, num_rows, world_size=world_size, epoch=epoch)
        assert len({len(batches) for batches in ranks}) == 1
        given = Counter(p for batches in ranks for batch in batches for p in batch)
        assert {*given} == {*range(len(lengths))}
        num_packs = len(packs(lengths, size, 1).batch_sampler)
        assert sum(given.values()) == len(lengths) or num_packs % world_size
        _, ranks = batches_of(lengths, size, num_rows, world_size=world_size, drop_last=True)
        given = Counter(p for batches in ranks for batch in batches for p in batch)
        assert not given or max(given.values()) == 1


def test_in_order_every_epoch_is_the_same():
    """For Lightning's overfit_batches, by the names that it reads."""
    lengths = np.random.default_rng(0).integers(1, 10, 100)
    loader, (shuffled,) = batches_of(lengths, 32, 4)
    make = getattr(loader.batch_sampler, "__pl_saved_kwargs")["explicit_cls"]
    sampler = make(SequentialSampler(range(100)), None)
    first = [list(batch) for batch in sampler]
    assert first == [list(batch) for batch in sampler] != shuffled
    assert sorted(p for batch in first for p in batch) == list(range(100))


def test_what_is_too_long():
    lengths = [3, 40, 5, 33, 32]
    with pytest.raises(
        ValueError,
        match=r"record at position 1 has length 40: expected at most 32 \(max_length=32\)",
    ):
        batches_of(lengths, 32, 2)
    loader, (batches,) = batches_of(lengths, 32, 2, too_long="drop")
    assert sorted(p for batch in batches for p in batch) == [0, 2, 4]
    wanted = {"tokens": 40, "padded_tokens": 64, "fill": 40 / 64, "dropped": 2}
    assert loader.padding_report() == wanted
