"""`loader.stats()`: what it counts, of which loader, in threads and in workers of any kind; and what
torch's profiler shows.

Covers phases, loading/read_ahead.
"""

import functools
import io
import time
import wave

import pytest
import torch
from range_server import range_server
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, get_worker_info

from torch_tfrecord import (
    Audio,
    FixedLenFeature,
    PaddedCollate,
    TFRecordWriter,
    collate,
    encode_example,
    make_dataloader,
)

NUMBERS = {"x": FixedLenFeature((), torch.float32)}
PHASES = ("read", "parse", "decode", "transform", "collate", "transport")
KEYS = ("batches", "samples", "seconds", "wait", "queue", *PHASES, "bytes")
NO_THREADS = {"num_threads": 0}
WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}
WAYS = pytest.mark.parametrize(
    "way", [{}, NO_THREADS, WORKERS, WORKERS | {"persistent_workers": True}], ids=repr
)
SLEEP = 0.002


def write(folder, records, name="a.tfrecord"):
    with TFRecordWriter(folder / name, write_index=True) as writer:
        for record in records:
            writer.write(record)
    return str(folder / name)


@pytest.fixture
def numbers(tmp_path):
    return write(tmp_path, ({"x": float(number)} for number in range(40)))


def sleep(sample):
    time.sleep(SLEEP)
    return sample


def finish(loader):
    for _ in loader:
        pass
    return loader.stats()


def longest(stats):
    return max(PHASES, key=stats.__getitem__)


# What is counted.


@WAYS
def test_the_whole_iteration(numbers, way):
    size = len(encode_example({"x": 0.0}))
    loader = make_dataloader(numbers, 16, NUMBERS, **way)
    for _ in range(2):  # each begins anew, also with persistent workers
        stats = finish(loader)
        assert {"queue": 0.0, **stats}.keys() == {*KEYS}
        assert ("queue" in stats) == ("num_workers" not in way)
        assert (stats["batches"], stats["samples"]) == (3, 40)
        assert stats["bytes"] * 3 == pytest.approx(40 * size)
        assert all(stats[name] > 0 for name in ("read", "parse", "collate", "wait"))
        assert stats["decode"] == stats["transform"] == 0
        assert (stats["transport"] > 0) == ("num_workers" in way)
        assert 3 * stats["wait"] <= stats["seconds"]
        assert all(type(stats[name]) is int for name in ("batches", "samples"))


@WAYS
def test_in_the_middle_of_an_iteration(numbers, way):
    loader = make_dataloader(numbers, 5, NUMBERS, **way)
    assert set(loader.stats().values()) == {0}
    batches = iter(loader)
    assert loader.stats()["batches"] == 0
    for number in range(1, 4):
        next(batches)
        stats = loader.stats()
        assert (stats["batches"], stats["samples"]) == (number, 5 * number)


@WAYS
def test_a_slow_transform(numbers, way):
    stats = finish(make_dataloader(numbers, 8, NUMBERS, transform=sleep, **way))
    assert stats["transform"] >= 8 * SLEEP
    assert longest(stats) == "transform"


@WAYS
def test_a_slow_collate_fn(numbers, way):
    def slow(samples):
        time.sleep(8 * SLEEP)
        return collate(samples)

    stats = finish(make_dataloader(numbers, 8, NUMBERS, collate_fn=slow, **way))
    assert stats["collate"] >= 8 * SLEEP
    assert longest(stats) == "collate"


@pytest.mark.parametrize("way", [{"num_threads": 2}, NO_THREADS, WORKERS], ids=repr)
def test_a_slow_storage(tmp_path, way):
    write(tmp_path, ({"x": float(number)} for number in range(16)))
    with range_server(tmp_path, latency=0.02) as url:
        stats = finish(make_dataloader(f"{url}/a.tfrecord", 8, NUMBERS, **way))
    assert stats["read"] >= 0.02
    assert longest(stats) == "read"


def test_sounds(tmp_path):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(2000))
    path = write(tmp_path, [{"sound": file.getvalue()}] * 4)
    stats = finish(make_dataloader(path, 4, {"sound": Audio()}))
    assert stats["decode"] > 0


def test_batches_that_wait_for_you(numbers):
    loader = make_dataloader(numbers, 1, NUMBERS, num_threads=2)
    for _ in loader:
        time.sleep(0.01)
    assert 0 < loader.stats()["queue"] <= 12  # 3 tasks of up to 4
    assert finish(make_dataloader(numbers, 1, NUMBERS, **NO_THREADS))["queue"] == 0


# Of which loader.


@WAYS
def test_two_loaders_count_apart(numbers, tmp_path, way):
    other = write(tmp_path, ({"x": float(number)} for number in range(24)), "b.tfrecord")
    slow = make_dataloader(numbers, 8, NUMBERS, transform=sleep, **way)
    quick = make_dataloader(other, 8, NUMBERS, collate_fn=PaddedCollate(), **way)
    for _ in zip(slow, quick, strict=False):
        pass
    assert [loader.stats()["samples"] for loader in (slow, quick)] == [32, 24]
    assert quick.stats()["transform"] == 0
    assert slow.stats()["transform"] >= 8 * SLEEP


def test_what_is_read_beside_a_loader_does_not_count(numbers):
    loader = make_dataloader(numbers, 8, NUMBERS, **NO_THREADS)
    for _ in loader:
        loader.dataset.__getitems__([1, 2, 3])
    assert loader.stats()["bytes"] * 5 == pytest.approx(40 * len(encode_example({"x": 0.0})))


def note_worker(seen, worker):
    seen[worker] = get_worker_info().id + 1


def test_your_own_functions_stay(numbers):
    seen = torch.zeros(2, dtype=torch.int64).share_memory_()
    begin = functools.partial(note_worker, seen)
    loader = make_dataloader(numbers, 8, NUMBERS, worker_init_fn=begin, collate_fn=list, **WORKERS)
    batches = iter(loader)
    assert (loader.worker_init_fn, loader.collate_fn) == (begin, list)
    assert len([*batches]) == 5
    assert seen.tolist() == [1, 2]


def test_your_own_functions_stay_if_no_worker_starts(numbers, monkeypatch):
    def fail(loader):
        raise RuntimeError("no more processes")

    loader = make_dataloader(numbers, 8, NUMBERS, **WORKERS)
    monkeypatch.setattr(DataLoader, "__iter__", fail)
    with pytest.raises(RuntimeError, match="no more processes"):
        iter(loader)
    assert (loader.worker_init_fn, loader.collate_fn) == (None, collate)


# The profiler.


@pytest.mark.parametrize(
    ("way", "shown"),
    [
        (NO_THREADS, ["collate", "parse", "read", "transform", "wait"]),
        ({}, ["collate", "transform", "wait"]),  # what the thread that iterates does
        (WORKERS, ["transport", "wait"]),
    ],
    ids=repr,
)
def test_the_profiler_shows_the_phases(numbers, way, shown):
    loader = make_dataloader(numbers, 8, NUMBERS, transform=dict, **way)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        finish(loader)
    counts = {event.key: event.count for event in profiler.key_averages()}
    found = {name: counts[name] for name in counts if name.startswith("torch_tfrecord::")}
    assert sorted(found) == [f"torch_tfrecord::{name}" for name in shown]
    assert found.pop("torch_tfrecord::wait") == 6  # also for the end
    assert set(found.values()) == {5}
