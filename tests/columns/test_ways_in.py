"""Every way into a batch gives the same: values, bit for bit, and the error of the first bad
record.
"""

import warnings

import pytest
from batches import bits
from test_golden import CASES, golden_specs, unbase64
from torch.utils.data import DataLoader

from torch_tfrecord import (
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    collate,
    make_dataloader,
)

SINGLE = [case for case in CASES if "features" in case]


def outcome(make):
    """The batches, or the error's class and text."""
    try:
        return bits([*make()])
    except Exception as error:
        return type(error), str(error)


def ways(path, features, size):
    ds = TFRecordDataset(path, features, index="memory")

    def stream(**options):
        return TFRecordIterableDataset(path, features, **options)

    yield "ds[i]", lambda: [collate([ds[number] for number in range(len(ds))])]
    yield "collate", lambda: DataLoader(ds, size, collate_fn=collate)
    yield "torch", lambda: DataLoader(ds, size)
    yield "make_dataloader", lambda: make_dataloader(ds, size, shuffle=False, num_threads=0)
    yield "stream, collate", lambda: DataLoader(stream(), size, collate_fn=collate)
    yield "stream, torch", lambda: DataLoader(stream(), size)
    yield "stream, mixed", lambda: DataLoader(stream(cycle_length=2), size)
    yield (
        "stream by batch",
        lambda: DataLoader(
            stream(batch_size=size), batch_size=None, collate_fn=lambda batch: batch
        ),
    )


def differing(case, folder):
    """The ways that give something else than `ds[i]`."""
    try:
        features = golden_specs(case, "features")
    except (TypeError, ValueError):
        return []  # no such specs
    rows = [unbase64(text) for text in case["serialized"]]
    if not features or not rows:
        return []
    path = folder / "records"
    with TFRecordWriter(path) as writer:
        for row in rows:
            writer.write(row)
    try:
        (_, first), *others = ways(path, features, len(rows))
    except ValueError:
        return []  # no specs of an Example
    expected = outcome(first)
    found = []
    for name, make in others:
        got = outcome(make)
        if got != expected:
            found.append(f"{case['name']} by {name}: {got} in place of {expected}"[:2000])
    return found


def check(cases, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [text for case in cases for text in differing(case, folder)]
    assert not found, "\n".join(found)


@pytest.mark.daily
def test_golden_cases_by_every_way(tmp_path):
    check(SINGLE[::9], tmp_path)


@pytest.mark.daily
@pytest.mark.parametrize("part", range(8))
def test_all_golden_cases_by_every_way(tmp_path, part):
    check(SINGLE[part::8], tmp_path)
