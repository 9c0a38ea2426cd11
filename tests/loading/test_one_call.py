"""A task's records are read, checked and parsed in one call of the compiled core.

Covers columns/column_plan, records/packed_records, loading/read_ahead.
"""

import numpy as np
import pytest
import torch
from helpers import framed

from torch_tfrecord import (
    CorruptRecordError,
    FixedLenFeature,
    TFRecordDataset,
    VarLenFeature,
    collate,
    encode_example,
)
from torch_tfrecord.loading.read_ahead import _load
from torch_tfrecord.native import native_module

jobs, frames = native_module("jobs"), native_module("frames")
compiled = pytest.mark.skipif(jobs is None, reason="needs the compiled core")

UNKNOWN = bytes.fromhex("4a0178")  # a field that Examples do not have
FEATURES = {
    "x": FixedLenFeature((), torch.int64),
    "v": FixedLenFeature((3,), torch.float32),
    "name": FixedLenFeature((), bytes),
    "many": VarLenFeature(torch.int64),
    "rare": FixedLenFeature((), torch.int64, -1),
}
BATCHES = [[5, 0, 3], [1, 9], [8, 7, 6, 2]]


def values(number):
    rare = {"rare": number} if number % 4 == 0 else {}
    return {
        "x": number,
        "v": np.arange(3, dtype=np.float32) + number,
        "name": b"n%d" % number,
        "many": np.arange(number),
    } | rare


@pytest.fixture
def calls(monkeypatch):
    """The kinds of the jobs of each call."""
    if jobs is None:
        pytest.skip("needs the compiled core")
    made, run = [], jobs.run

    def counted(each):
        made.append([type(job).__name__ for job in each])
        return run(each)

    monkeypatch.setattr(jobs, "run", counted)
    return made


@pytest.fixture
def path(tmp_path):
    # in two files, so that both are read by the same job
    for file in range(2):
        rows = range(5 * file, 5 * file + 5)
        data = framed(*(encode_example(values(number)) for number in rows))
        (tmp_path / f"a-{file:05d}-of-00002").write_bytes(data)
    return tmp_path / "a@2"


def check(batch, numbers):
    rows = [values(number) for number in numbers]
    assert batch["x"].tolist() == numbers
    assert batch["v"].tolist() == [row["v"].tolist() for row in rows]
    assert batch["name"] == [row["name"] for row in rows]
    assert [row.tolist() for row in batch["many"].unbind()] == [
        row["many"].tolist() for row in rows
    ]
    assert batch["rare"].tolist() == [row.get("rare", -1) for row in rows]


def test_several_batches_are_one_call(path, calls):
    ds = TFRecordDataset(path, FEATURES)
    calls.clear()
    loaded = _load(ds, BATCHES, collate, 1 << 20)[0]
    assert calls == [["ReadJob", "ParseJob", "ParseJob", "ParseJob"]]
    for (batch, error), numbers in zip(loaded, BATCHES, strict=True):
        assert error is None
        check(batch, numbers)


def test_a_record_in_another_form_stops_the_call_once(tmp_path, calls):
    records = [encode_example(values(number)) for number in range(10)]
    records[9] = UNKNOWN + records[9]
    (tmp_path / "a").write_bytes(framed(*records))
    ds = TFRecordDataset(tmp_path / "a", FEATURES)
    calls.clear()
    loaded = _load(ds, BATCHES, collate, 1 << 20)[0]
    assert calls == [["ReadJob", "ParseJob", "ParseJob", "ParseJob"], ["ParseJob"]]
    for (batch, _), numbers in zip(loaded, BATCHES, strict=True):
        check(batch, numbers)


@pytest.mark.parametrize("at", [3, 40])
def test_a_damaged_record_is_named_as_alone(path, at):
    ds = TFRecordDataset(path, FEATURES)
    skipping = TFRecordDataset(path, FEATURES, on_error="skip")
    ds[0], ds[9], skipping[0], skipping[9]  # both files are open
    _, begin = ds.locate(9)
    with open(ds.files[1], "r+b") as file:
        file.seek(begin + at)
        file.write(b"\xff")
    with pytest.raises(CorruptRecordError) as alone:
        ds[9]
    first, second, third = _load(ds, BATCHES, collate, 1 << 20)[0]
    assert first[1] is None and third[1] is None
    assert type(second[1]) is type(alone.value) and str(second[1]) == str(alone.value)
    with pytest.warns(UserWarning, match="skipped 1 .CorruptRecordError: 1."):
        loaded = _load(skipping, BATCHES, collate, 1 << 20)[0]
    check(loaded[1][0], [1])
    check(loaded[2][0], BATCHES[2])
