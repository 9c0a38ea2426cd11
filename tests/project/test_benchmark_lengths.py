"""Smoke runs of benchmarks/lengths.py, our side alone, on few records; no time is asserted."""

import argparse
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.slow


@pytest.fixture
def lengths(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("lengths")


def given(**options):
    return argparse.Namespace(records=3000, rounds=1, trained=50, tf_python=None, **options)


def rows_of(text):
    """The first and last cell of each row, below the titles."""
    return [(cells[1].strip(), cells[-2].strip()) for cells in map(_split, text.splitlines()[2:-1])]


def _split(line):
    return line.split("|")


@pytest.mark.parametrize("kind", ["max_tokens", "packs"])
def test_planning(lengths, kind, tmp_path, capsys):
    np.save(tmp_path / "lengths.npy", np.full(800, 1024, np.int32))
    lengths.probe(kind, tmp_path)
    seconds, megabytes, steps = json.loads(capsys.readouterr().out)
    assert steps == 800 // 16
    assert seconds > 0
    assert megabytes >= 0


def test_the_loader_alone(lengths, tmp_path, capsys):
    lengths.load(tmp_path, given())
    padding = dict(rows_of(capsys.readouterr().out))
    assert [*padding] == ["ours, padded", "ours, batch_size", "ours, max_tokens", "ours, packs"]
    percents = [float(each.rstrip("%")) for each in padding.values()]
    assert percents[0] > 50
    assert max(percents[1:]) < 20  # of few records
    assert percents[3] == 0


@pytest.mark.daily
def test_training(lengths, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lengths, "_BATCH", 2)
    monkeypatch.setattr(lengths, "_BUDGET", 2 * lengths._MOST)
    threads = torch.get_num_threads()
    try:
        lengths.train(tmp_path, given())  # compares losses
    finally:
        torch.set_num_threads(threads)
    rows = rows_of(capsys.readouterr().out)
    assert [name for name, _ in rows] == ["padded", "batch_size", "max_tokens", "packs"]


def test_padding_as_tf_data_makes_it(lengths):
    # Nine lengths, one for each bucket, and full batches: nothing is padded, whatever the order.
    draw = np.random.default_rng(0)
    each = np.repeat([1, 3, 10, 40, 90, 200, 500, 900, 2000], 64).astype(np.int32)
    shuffled = draw.permutation(each)
    assert lengths.padded_by_tf(shuffled, "batch_size") == each.sum()
    assert lengths.padded_by_tf(shuffled, "max_tokens") == each.sum()
    # With a tenth, those of 1 and 3 share a bucket.
    more = draw.permutation(np.append(each, np.full(64, 1000, np.int32)))
    assert more.sum() < lengths.padded_by_tf(more, "batch_size") <= more.sum() + 64 * 2


def test_budgets_of_tf_data(lengths):
    boundaries, sizes = lengths.of_tf(lengths.log_normal(2000))
    assert len(boundaries) == 8
    assert len(sizes) == 9
    for bound, size in zip([*boundaries, 2049], sizes, strict=True):
        assert size * (bound - 1) <= 16_384 < (size + 1) * (bound - 1)
