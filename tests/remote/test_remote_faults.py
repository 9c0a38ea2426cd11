"""Every fault at every request of a small epoch: right records or an error of ours, no hang, no
record twice.
"""

import os
import shutil
import tempfile

import pytest
from range_server import Fault, range_server

from torch_tfrecord import (
    TFRecordDataset,
    TFRecordError,
    TFRecordIterableDataset,
    TFRecordWriter,
    make_dataloader,
)

NUM_FILES, NUM_RECORDS, BATCH = 2, 6, 4
OURS = (TFRecordError, FileNotFoundError, PermissionError)
PASSING = ("500", "503", "closed", "reset", "short", "stall")
pytestmark = pytest.mark.slow


def payload(version, number):
    return (b"%s %06d " % (version, number)) * 50


def write(folder, version):
    folder.mkdir()
    for shard in range(NUM_FILES):
        path = folder / f"train-{shard:05d}-of-{NUM_FILES:05d}.tfrecord"
        with TFRecordWriter(path, write_index=True) as writer:
            for number in range(shard * NUM_RECORDS, (shard + 1) * NUM_RECORDS):
                writer.write(payload(version, number))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two versions of the same files, all of the same size."""
    folder = tmp_path_factory.mktemp("faults")
    write(folder / "data", b"old")
    write(folder / "next", b"new")
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with range_server(folder, stall_seconds=30) as url:
        yield url


@pytest.fixture(autouse=True)
def few_attempts(monkeypatch):
    monkeypatch.setattr("torch_tfrecord.remote.transfers.MOST_ATTEMPTS", 3)


def short_times(monkeypatch, num_attempts):
    """Where a request stalls. Elsewhere a busy machine would be taken for a stall."""
    monkeypatch.setattr("torch_tfrecord.remote.transfers.MOST_ATTEMPTS", num_attempts)
    monkeypatch.setattr("torch_tfrecord.remote.obstore_store.STALL_SECONDS", 0.15)
    monkeypatch.setattr("torch_tfrecord.remote.fsspec_store.REQUEST_SECONDS", 0.3)


def batches(server):
    """Opening, and an epoch of batches at random."""
    loader = make_dataloader(f"{server}/data/*.tfrecord", BATCH, shuffle=True, seed=3)
    return [record for batch in loader for record in batch]


def one_by_one(server):
    dataset = TFRecordDataset(f"{server}/data/train@{NUM_FILES}.tfrecord")
    return [dataset[i] for i in range(0, len(dataset), 3)]


def stream(server):
    return [*TFRecordIterableDataset(f"{server}/data/*.tfrecord")]


def cached(server):
    """An epoch that fills a cache, and one that it gives."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"cache_dir": folder, "cache_bytes": 1 << 22}
        dataset = TFRecordDataset(f"{server}/data/*.tfrecord", **options)
        first, second = (dataset.__getitems__([*range(0, len(dataset), 2)]) for _ in range(2))
    assert first == second
    return first


@pytest.fixture(
    params=[
        ("obstore", batches),
        ("obstore", one_by_one),
        ("obstore", cached),
        ("obstore", stream),
        ("fsspec", batches),
        ("fsspec", stream),
    ],
    ids=lambda case: f"{case[0]}-{case[1].__name__}",
)
def way(request, take_client):
    """A way to read, by one of the clients."""
    client, way = request.param
    take_client(client)
    return way


def outcome(way, server, faults=()):
    """What a way in gives, as version and number of each record, or its error; and what the server
    counted.
    """
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)  # indexes that were built anew
    server.reset(faults)
    try:
        result = [named(record) for record in way(server)]
    except OURS as error:
        result = error
    return result, server.stats()


def named(record):
    version, number = record.split()[:2]
    assert record == payload(version, int(number))
    return version.decode(), int(number)


def check_error(error, server):
    """It says where: a file of ours, in the errors' grammar."""
    text = str(error)
    assert f"{server}/data" in text, text
    assert getattr(error, "attempts", 1) >= 1


def faults_at_every_request(way, server, make):
    """Each request's number, and what a run with a fault there gave; what the way gives without
    faults.
    """
    expected, stats = outcome(way, server)
    assert len(expected) == len(set(expected)) > 0
    made = 0
    for number in range(stats["requests"]):
        result, after = outcome(way, server, [make(number)])
        if after["faults"]:
            made += 1
            yield number, result, expected
        else:  # streams ask for more or fewer pieces, as these arrive: the run came to its end before the fault
            assert result == expected
    assert made, "no fault was made"


@pytest.mark.daily
@pytest.mark.parametrize("kind", PASSING)
def test_what_passes_is_not_noticed(way, kind, server, monkeypatch):
    if kind == "stall":
        short_times(monkeypatch, num_attempts=10)
    retry_after = 0.01 if kind == "503" else None
    for number, result, expected in faults_at_every_request(
        way, server, lambda number: Fault(kind, number, retry_after=retry_after)
    ):
        assert result == expected, f"{kind} at request {number}: {result}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["403", "404"])
def test_refusals_are_errors_or_not_noticed(way, kind, server):
    errors = 0
    for number, result, expected in faults_at_every_request(
        way, server, lambda number: Fault(kind, number)
    ):
        if isinstance(result, Exception):
            errors += 1
            assert isinstance(result, {"403": PermissionError, "404": FileNotFoundError}[kind]), (
                number,
                result,
            )
            check_error(result, server)
        else:
            assert result == expected, f"{kind} at request {number}"
    assert errors, "a file of the data was refused"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["500", "reset"])
def test_what_does_not_pass_is_an_error_that_says_so(way, kind, server):
    """From some request on nothing is answered."""
    for number, result, _ in faults_at_every_request(
        way, server, lambda number: Fault(kind, number, times=10_000)
    ):
        assert isinstance(result, TFRecordError), f"{kind} from request {number} on: {result}"
        check_error(result, server)
        assert "(3 attempts)" in str(result)
        assert result.attempts == 3
        assert (result.status == 500) == (kind == "500")


@pytest.mark.daily
def test_stalls_end(way, server, monkeypatch):
    short_times(monkeypatch, num_attempts=3)
    for number in (0, 1, 3):
        result, _ = outcome(way, server, [Fault("stall", number, times=10_000)])
        assert isinstance(result, TFRecordError), f"stalled from request {number} on: {result}"
        check_error(result, server)
        assert "(3 attempts)" in str(result)


@pytest.mark.daily
def test_a_file_that_changes_is_never_mixed(way, server, folder):
    """From some request on the second file is another, of the same size: one version, or an
    error.
    """
    name = f"train-00001-of-{NUM_FILES:05d}.tfrecord"
    replacement = str(folder / "next" / name)
    before, _ = outcome(way, server)
    of_file = sum(1 for method, path, *_ in server.requests() if path.endswith(name))
    after = [("new" if number >= NUM_RECORDS else "old", number) for _, number in before]
    errors = 0
    for number in range(of_file):
        result, stats = outcome(
            way, server, [Fault("changed", number, f"data/{name}", replacement=replacement)]
        )
        if not stats["faults"]:
            assert result == before  # it came to its end before the file changed
        elif isinstance(result, Exception):
            errors += 1
            assert isinstance(result, TFRecordError), result
            check_error(result, server)
        else:
            assert result in (before, after), f"mixed, changed at request {number} of the file"
    assert errors, "it changed where that mattered"
