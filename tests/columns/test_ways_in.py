"""Every way into a batch gives the same: values, bit for bit, and the error of the first bad
record.
"""

import warnings

import pytest
import torch
from batches import assert_same
from test_golden import CASES, golden_specs, unbase64
from torch.utils.data import DataLoader

from torch_tfrecord import (
    RaggedTensor,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    collate,
    make_dataloader,
)

SINGLE = [case for case in CASES if "features" in case]


def as_bits(value):
    """Floats as integers: a NaN is equal to itself, and -0.0 is not 0.0."""
    if isinstance(value, dict):
        return {name: as_bits(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(as_bits, value))
    if isinstance(value, RaggedTensor):
        return [as_bits(value.flat_values), *value.row_splits]
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_nested:
        return [as_bits(value.values()), value.offsets()]
    if value.layout == torch.sparse_coo:
        return [value.shape, value._indices(), as_bits(value._values())]
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return value.view(integers[value.itemsize]) if value.is_floating_point() else value


def outcome(make):
    """The batches, or the error's class and text."""
    try:
        return [as_bits(batch) for batch in make()]
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
        try:
            assert_same(got, expected)
        except AssertionError:
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
