"""Files of an http server, whose requests are counted: opened at once, read at once, read ahead,
and no more than is needed.

Covers files/storage, remote/storages, remote/remote_file.
"""

import os

import numpy as np
import pytest
from range_server import Fault, range_server

from torch_tfrecord import (
    CorruptRecordError,
    IndexMismatchError,
    RecordIndex,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    build_index,
    find_files,
    make_dataloader,
    read_records,
)
from torch_tfrecord.files import open_file
from torch_tfrecord.progress import ProgressBar

NUM_FILES, NUM_RECORDS, LENGTH = 4, 50, 20_000
OVERHEAD = 16


def payload(number):
    return b"%08d" % number * (LENGTH // 8)


ALL = [payload(number) for number in range(NUM_FILES * NUM_RECORDS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for shard in range(NUM_FILES):
        with TFRecordWriter(folder / f"train-{shard:05d}-of-{NUM_FILES:05d}.tfrecord") as writer:
            for record in ALL[shard * NUM_RECORDS : (shard + 1) * NUM_RECORDS]:
                writer.write(record)
    with TFRecordWriter(folder / "small.tfrecord.gz", compression_type="GZIP") as writer:
        for record in ALL[:20]:
            writer.write(record)
    TFRecordDataset(folder / f"train@{NUM_FILES}")
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with range_server(folder, latency=0.02) as url:
        yield url


@pytest.fixture(autouse=True)
def fresh(server):
    server.reset()


def paths(server):
    return [f"{server}/train-{shard:05d}-of-{NUM_FILES:05d}.tfrecord" for shard in range(NUM_FILES)]


# Names.


@pytest.mark.slow
def test_a_set_without_a_listing(server, client):
    server.reset(listing=False)
    for ask in (
        f"{server}/train@{NUM_FILES}",
        f"{server}/train@{NUM_FILES}.tfrecord",
        paths(server),
    ):
        assert find_files(ask) == paths(server)
    assert {path for _, path, _, _ in server.requests()} <= {
        f"/train-{number:05d}-of-00004{suffix}"
        for number in range(4)
        for suffix in ("", ".tfrecord", ".tfrecord.gz", ".tfrec")
    }
    with pytest.raises(
        FileNotFoundError, match=r"more than 10 of 12 shards missing.*there is none"
    ):
        find_files(f"{server}/train@12")
    server.reset(listing=True)


@pytest.mark.slow
def test_globs_and_folders(server, client):
    assert find_files(f"{server}/train-*") == paths(server)
    assert find_files(f"{server}/") == [f"{server}/small.tfrecord.gz", *paths(server)]
    assert [request[0] for request in server.requests()].count("GET") == 2  # one listing each
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        find_files(f"{server}/no.tfrecord")
    with pytest.raises(FileNotFoundError, match="no file matches the pattern"):
        find_files(f"{server}/no-*")


def test_a_long_listing_shows_that_it_goes_on(server, monkeypatch):
    shown = []

    class Bar(ProgressBar):
        def refresh(self, *arguments, **options):
            shown.append("listing")

    monkeypatch.setattr("torch_tfrecord.remote.storages.ProgressBar", Bar)
    monkeypatch.setattr("torch_tfrecord.remote.storages._SHOWN_AFTER", 0.001)
    assert find_files(f"{server}/train-*") == paths(server)
    assert set(shown) == {"listing"}


# Opening.


def test_indexes_are_looked_for_at_once(server, client):
    dataset = TFRecordDataset(f"{server}/train@{NUM_FILES}.tfrecord", index="require")
    stats = server.stats()
    assert len(dataset) == len(ALL)
    assert stats["requests"] <= 6 * NUM_FILES
    assert stats["most_at_once"] >= NUM_FILES


@pytest.mark.slow
def test_an_index_of_another_time_or_machine(server, client, folder, tmp_path):
    name = folder / "moved.tfrecord"
    name.write_bytes((folder / "train-00001-of-00004.tfrecord").read_bytes())
    try:
        os.utime(name, ns=(1, 1))
        path = f"{server}/moved.tfrecord"
        built = build_index(path)
        built.check_fresh(open_file(path))
        os.utime(name, ns=(5 * 10**18, 5 * 10**18))  # another ETag, too
        built.check_fresh(open_file(path))
        content = bytearray(name.read_bytes())
        content[20] ^= 1
        name.write_bytes(content)
        with pytest.raises(IndexMismatchError, match="expected a file with fingerprint"):
            built.check_fresh(open_file(path))
        name.write_bytes(content[:-1])
        with pytest.raises(IndexMismatchError, match=r"expected a file of \d+ bytes"):
            built.check_fresh(open_file(path))
    finally:
        name.unlink()


def test_equal_etags_need_no_request(server):
    pytest.importorskip("obstore")
    path = paths(server)[0]
    built, source = build_index(path), open_file(path)
    assert built.etag == source.etag is not None
    server.reset()
    built.check_fresh(source)
    assert server.stats()["requests"] == 0
    again = RecordIndex(built.offsets, built.lengths, built.file_size, etag=built.etag)
    again.check_fresh(source)
    assert again != RecordIndex(built.offsets, built.lengths, built.file_size)


# Reading.


@pytest.mark.slow
def test_a_batch_of_all_files_at_once(server, client):
    dataset = TFRecordDataset(paths(server), index="require")
    positions = np.random.default_rng(1).permutation(len(ALL))[:40].tolist()
    dataset.__getitems__([0, 60, 110, 160])  # opens all
    server.reset()
    assert dataset.__getitems__(positions) == [ALL[position] for position in positions]
    stats = server.stats()
    assert stats["requests"] <= 40
    assert 2 * stats["most_at_once"] >= min(stats["requests"], 8)  # a busy machine starts them late
    assert stats["bytes_sent"] <= len(ALL) * (LENGTH + OVERHEAD)


def test_neighbours_are_one_request(server):
    dataset = TFRecordDataset(paths(server), index="require")
    dataset[0]
    server.reset()
    assert dataset.__getitems__(list(range(5, 25))) == ALL[5:25]
    assert [request[2] for request in server.requests()] == ["bytes=100080-500399"]


@pytest.mark.slow
def test_a_large_range_is_split(server, folder):
    name = folder / "large.tfrecord"
    with TFRecordWriter(name) as writer:
        writer.write(bytes(20 << 20))
    try:
        path = f"{server}/large.tfrecord"
        dataset = TFRecordDataset(path, index="memory")
        server.reset()
        assert dataset[0] == bytes(20 << 20)
        assert 3 <= server.stats()["requests"] <= 22  # header and footer are two
        assert server.stats()["most_at_once"] > 2
    finally:
        name.unlink()


def test_blocks_are_fetched_once(server):
    loader = make_dataloader(paths(server), 10, shuffle="blocks", seed=2)
    server.reset()
    assert sorted(record for batch in loader for record in batch) == ALL
    stats = server.stats()
    assert stats["requests"] == NUM_FILES
    assert stats["bytes_sent"] == len(ALL) * (LENGTH + OVERHEAD)


def test_a_stream_reads_ahead_over_the_files(server, client):
    stream = iter(TFRecordIterableDataset(paths(server)))
    server.reset()
    assert [next(stream) for _ in range(NUM_RECORDS + 1)] == ALL[: NUM_RECORDS + 1]
    assert list(stream) == ALL[NUM_RECORDS + 1 :]
    stats = server.stats()
    assert stats["bytes_sent"] <= len(ALL) * (LENGTH + OVERHEAD) + 1000
    assert stats["most_at_once"] > 1


@pytest.mark.parametrize(
    "options",
    [{"cycle_length": 3}, {"shuffle": True, "shuffle_buffer_size": 30}, {"batch_size": 7}],
)
def test_streams_of_all_kinds(server, options):
    records = [*TFRecordIterableDataset(paths(server), **options)]
    if "batch_size" in options:
        records = [record for batch in records for record in batch]
    assert sorted(records) == ALL


def test_who_reads_little_fetches_little(server, folder):
    name = folder / "long.tfrecord"
    with TFRecordWriter(name) as writer:
        for _ in range(300):
            writer.write(bytes(100_000))
    try:
        server.reset()
        records = read_records(f"{server}/long.tfrecord")
        next(records)
        del records
        assert server.stats()["bytes_sent"] <= 5 << 20
    finally:
        name.unlink()


def test_compressed_files(server, client):
    path = f"{server}/small.tfrecord.gz"
    assert list(read_records(path)) == ALL[:20]
    dataset = TFRecordDataset(path, index="memory")
    assert dataset.__getitems__([19, 3, 7]) == [ALL[19], ALL[3], ALL[7]]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".gz", ".zlib"])
def test_a_record_of_a_long_compressed_stream_is_one_request(
    server, client, folder, tmp_path, suffix
):
    rng = np.random.default_rng(0)
    records = [rng.integers(0, 64, 4000, np.uint8).tobytes() for _ in range(2500)]
    name, path = folder / f"long{suffix}", f"{server}/long{suffix}"
    with TFRecordWriter(name, member_bytes=None) as writer:
        for record in records:
            writer.write(record)
    size = name.stat().st_size
    try:
        TFRecordDataset(path, index_dir=tmp_path)
        # once, and both ends for the fingerprint
        assert size <= server.stats()["bytes_sent"] <= size + (1 << 15)
        dataset = TFRecordDataset(path, index_dir=tmp_path, index="require")
        for position in (2000, 1000, 200):  # each behind another seek point
            server.reset()
            assert dataset[position] == records[position]
            assert server.stats()["requests"] == 1
            assert server.stats()["bytes_sent"] < size / 2
        server.reset()
        assert dataset[200] == records[200]
        assert server.stats()["requests"] == 0  # kept
    finally:
        name.unlink()


# What goes wrong.


def test_a_file_that_changes_between_two_reads(server):
    pytest.importorskip("obstore")
    dataset = TFRecordDataset(paths(server), index="require")
    dataset[0]
    server.reset([Fault("changed", path="train-00000-of-00004.tfrecord")])
    with pytest.raises(
        CorruptRecordError,
        match=r"train-00000-of-00004.tfrecord: .*got another one in its place \(ETag",
    ):
        dataset[1]
