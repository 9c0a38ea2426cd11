"""Streams in the main process read and parse ahead by threads of the core: what comes out is the same."""

import contextlib
import os
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from torch_tfrecord import (
    CorruptRecordError,
    FixedLenFeature,
    ParseError,
    TFRecordIterableDataset,
    TFRecordWriter,
    collate,
    parse_single_example,
    read_records,
)
from torch_tfrecord.native import has_native, native_module
from torch_tfrecord.streams import record_stream

FEATURES = {"x": FixedLenFeature((300,), torch.float32), "n": FixedLenFeature((), torch.int64)}
NUM_RECORDS = 3000


def open_files():
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of this listing
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def threads():
    return {*os.listdir("/proc/self/task")}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("ahead") / "x.tfrecord"
    rng = np.random.default_rng(0)
    with TFRecordWriter(path) as writer:
        for number in range(NUM_RECORDS):
            writer.write({"x": rng.random(300, np.float32), "n": number})
    return path


@pytest.fixture(params=[1, 2])
def processors(request, monkeypatch):
    """One processor: nothing is read ahead."""
    monkeypatch.setattr(record_stream, "num_processors", lambda: request.param)
    return request.param


@pytest.mark.parametrize(("ranks", "is_ahead"), [("2", False), ("1", True)])
def test_the_processors_are_shared_with_the_ranks_of_the_machine(
    path, monkeypatch, ranks, is_ahead
):
    monkeypatch.setattr(record_stream, "num_processors", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    stream = TFRecordIterableDataset(path, FEATURES)
    next(iter(stream))
    assert stream._stream(stream._origin(0)).is_ahead is is_ahead


def rows(samples):
    return [(int(sample["n"]), sample["x"].numpy().tobytes()) for sample in samples]


def expected(path):
    """The records, read by position in plain order."""
    return rows(parse_single_example(record, FEATURES) for record in read_records(path))


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_samples_and_batches_are_those_of_the_file(path, processors, tmp_path, compression):
    wanted, here = expected(path), path
    if compression:
        here = tmp_path / "x.tfrecord.gz"
        with TFRecordWriter(here, compression_type=compression) as writer:
            for record in read_records(path):
                writer.write(record)
    assert rows(TFRecordIterableDataset(here, FEATURES)) == wanted
    for size in (7, 256):
        batches = [*TFRecordIterableDataset(here, FEATURES, batch_size=size)]
        loader = [*DataLoader(TFRecordIterableDataset(here, FEATURES), size, collate_fn=collate)]
        for found in (batches, loader):
            numbers = torch.cat([batch["n"] for batch in found]).tolist()
            values = torch.cat([batch["x"] for batch in found])
            assert [
                (n, x.numpy().tobytes()) for n, x in zip(numbers, values, strict=True)
            ] == wanted
            assert {len(batch["n"]) for batch in found[:-1]} == {size}


@pytest.mark.parametrize("taken", [0, 1, 16, 17, 700, 2999, 3000])
def test_states_are_those_of_what_was_given(path, processors, taken):
    stream = TFRecordIterableDataset(path, FEATURES)
    iterator = iter(stream)
    for _ in range(taken):
        next(iterator)
    state = stream.state_dict()
    assert state["slots"] == ([[0, taken]] if taken else [None])
    other = TFRecordIterableDataset(path, FEATURES)
    other.load_state_dict(state)
    assert [int(sample["n"]) for sample in other] == [*range(taken, NUM_RECORDS)]
    assert [int(sample["n"]) for sample in iterator] == [*range(taken, NUM_RECORDS)]


@pytest.mark.parametrize("bad", [0, 20, 1024, 2998])
def test_records_before_a_bad_one_come_first(path, processors, tmp_path, bad):
    records = [*read_records(path)]
    offset = sum(len(record) + 16 for record in records[:bad])
    content = bytearray(path.read_bytes())
    content[offset + 500] ^= 1
    damaged, unfit = tmp_path / "damaged.tfrecord", tmp_path / "unfit.tfrecord"
    damaged.write_bytes(content)
    with TFRecordWriter(unfit) as writer:
        for number, record in enumerate(records):
            writer.write({"n": 1} if number == bad else record)
    for file, kind in ((damaged, CorruptRecordError), (unfit, ParseError)):
        found = []
        with pytest.raises(kind) as raised:
            for sample in TFRecordIterableDataset(file, FEATURES):
                found.append(int(sample["n"]))
        assert found == [*range(bad)]
        assert (raised.value.position, raised.value.offset) == (bad, offset)
        left = TFRecordIterableDataset(file, FEATURES, on_error="skip", max_errors=3)
        with pytest.warns(match="left out|skipped"):
            kept = [int(sample["n"]) for sample in left]
        assert kept == [number for number in range(NUM_RECORDS) if number != bad]


@pytest.mark.skipif(not has_native(), reason="needs the compiled core")
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads by Linux's /proc")
def test_no_thread_is_left(path, monkeypatch):
    monkeypatch.setattr(record_stream, "num_processors", lambda: 2)
    before = threads()
    for taken in (1, 700):
        iterator = iter(TFRecordIterableDataset(path, FEATURES))
        for _ in range(taken):
            next(iterator)
        del iterator
        assert os.path.realpath(path) not in open_files()
        deadline = time.monotonic() + 20  # the system forgets a thread a little after it was joined
        while threads() - before:
            assert time.monotonic() < deadline


@pytest.mark.skipif(not has_native(), reason="needs the compiled core")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_fork_in_the_middle_goes_on_in_both_processes(path, monkeypatch):
    monkeypatch.setattr(record_stream, "num_processors", lambda: 2)
    iterator = iter(TFRecordIterableDataset(path, FEATURES))
    for _ in range(700):
        next(iterator)
    pid = os.fork()
    if not pid:  # the child has no thread of the parent's
        found = [int(sample["n"]) for sample in iterator]
        os._exit(found != [*range(700, NUM_RECORDS)])
    assert [int(sample["n"]) for sample in iterator] == [*range(700, NUM_RECORDS)]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(not has_native(), reason="needs the compiled core")
def test_workers_start_none(path, monkeypatch):
    def started(job):
        raise AssertionError("a thread in a worker")

    monkeypatch.setattr(native_module("jobs"), "Started", started)
    stream = TFRecordIterableDataset(path, FEATURES, batch_size=100)
    found = [*DataLoader(stream, None, num_workers=1, multiprocessing_context="fork")]
    assert torch.cat([batch["n"] for batch in found]).tolist() == [*range(NUM_RECORDS)]
