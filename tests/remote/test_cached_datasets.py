"""Datasets of remote files with a cache: the second epoch asks for little or nothing, and every
record is right.
"""

import os
import random
import warnings
from pkgutil import resolve_name

import pytest
from range_server import range_server
from torch.utils.data import DataLoader

from torch_tfrecord import (
    CorruptRecordError,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    build_index,
    collate,
    make_dataloader,
)
from torch_tfrecord.remote import cache_info

FILES, RECORDS = 4, 40
ENOUGH = 16_000_000


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of shards with their indexes beside them, and their records."""
    folder, rng, records = tmp_path_factory.mktemp("data"), random.Random(1), []
    for number in range(FILES):
        with TFRecordWriter(
            folder / f"train-{number:05d}-of-{FILES:05d}", write_index=True
        ) as writer:
            for _ in range(RECORDS):
                records.append(rng.randbytes(rng.choice([10, 3000, 20_000, 50_000])))
                writer.write(records[-1])
    return folder, records


@pytest.fixture
def small_sectors(monkeypatch):
    """As if these files were a hundred times larger."""
    monkeypatch.setattr("torch_tfrecord.remote.disk_cache._SECTOR_BYTES", 4092)


@pytest.fixture
def server(data):
    with range_server(data[0]) as url:
        yield url


@pytest.fixture
def cache(tmp_path):
    return {"cache_dir": tmp_path / "cache", "cache_bytes": ENOUGH}


def total_bytes(folder):
    return sum(path.stat().st_size for path in folder.glob("train-*"))


def sent(server):
    found = server.stats()
    server.reset()
    return found["bytes_sent"], found["requests"]


def epoch(dataset, seed, batch=8):
    """All records by batches in a random order."""
    order = list(range(len(dataset)))
    random.Random(seed).shuffle(order)
    found = {}
    for at in range(0, len(order), batch):
        part = order[at : at + batch]
        found.update(zip(part, dataset.__getitems__(part), strict=True))
    return [found[position] for position in range(len(dataset))]


@pytest.mark.slow
def test_the_second_epoch_asks_for_nothing(server, data, cache):
    dataset = TFRecordDataset(f"{server}/train@{FILES}", **cache)
    assert epoch(dataset, 1) == data[1]
    sent(server)
    assert epoch(dataset, 2) == data[1]
    assert [dataset[position] for position in range(len(dataset))] == data[1]
    assert sent(server) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 8])
def test_streams_and_random_reads_share_what_is_there(server, data, cache, batch_size):
    stream = TFRecordIterableDataset(f"{server}/train@{FILES}", batch_size=batch_size, **cache)
    assert sorted(flat(stream)) == sorted(data[1])
    dataset = TFRecordDataset(f"{server}/train@{FILES}", **cache)
    sent(server)
    assert flat(stream) == data[1]
    assert epoch(dataset, 1) == data[1]
    assert sent(server) == (0, 0)


def flat(stream):
    return [record for item in stream for record in ([item] if isinstance(item, bytes) else item)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "stream"])
def test_a_cache_of_half_the_size(server, data, tmp_path, kind, small_sectors):
    half = {"cache_dir": tmp_path / "cache", "cache_bytes": total_bytes(data[0]) // 2}
    path = f"{server}/train@{FILES}"
    dataset = (
        TFRecordDataset(path, **half) if kind == "random" else TFRecordIterableDataset(path, **half)
    )
    shares = []
    for seed in range(3):
        assert (epoch(dataset, seed) if kind == "random" else flat(dataset)) == data[1]
        shares.append(sent(server)[0] / total_bytes(data[0]))
    assert max(shares[1:]) <= 0.6, shares
    assert (
        sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
        <= half["cache_bytes"]
    )


@pytest.mark.parametrize("open_it", [TFRecordDataset, TFRecordIterableDataset])
def test_features_are_inferred_through_it(tmp_path, cache, open_it):
    (tmp_path / "data").mkdir()
    with TFRecordWriter(tmp_path / "data" / "a.tfrecord") as writer:
        for number in range(20):
            writer.write({"id": number, "name": "x" * 9000})
    with range_server(tmp_path / "data") as url:
        dataset = open_it(f"{url}/a.tfrecord", "auto", **cache)
        assert [int(sample["id"]) for sample in dataset] == [*range(20)]
        size = (tmp_path / "data" / "a.tfrecord").stat().st_size
        assert size <= sent(url)[0] < 1.2 * size


@pytest.mark.daily
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_share_it(server, data, cache, context):
    dataset = TFRecordDataset(f"{server}/train@{FILES}", **cache)
    assert dataset[0] == data[1][0]  # the parent has read before the fork
    options = {"num_workers": 2, "collate_fn": collate, "multiprocessing_context": context}
    for _ in range(2 if context == "fork" else 1):  # to import torch takes seconds
        loaded = [record for batch in DataLoader(dataset, 8, **options) for record in batch]
        assert loaded == data[1]
    sent(server)
    assert epoch(dataset, 3) == data[1]
    assert sent(server) == (0, 0)


def test_a_dataset_has_its_cache_already(data, cache):
    with pytest.raises(ValueError, match="cache_dir cannot be given with a dataset"):
        make_dataloader(TFRecordDataset(data[0] / "train-*"), 8, cache_dir=cache["cache_dir"])


@pytest.mark.parametrize("kind", [TFRecordDataset, TFRecordIterableDataset])
def test_local_files_are_read_as_they_are(data, cache, kind):
    assert list(kind(data[0] / "train-*", **cache)) == data[1]
    assert not os.path.exists(cache["cache_dir"])


def test_indexes_are_kept_elsewhere(server, data, cache, small_sectors):
    dataset = TFRecordDataset(f"{server}/train@{FILES}", **cache)
    assert cache_info(cache["cache_dir"]) is None
    assert dataset[0] == data[1][0]
    info = cache_info(cache["cache_dir"])
    assert info.num_files == 1 and info.disk_bytes < len(data[1][0]) + 30_000


# Damage that the cache cannot see: wrong bytes with right checksums.


@pytest.fixture
def damaged(monkeypatch):
    """Some answers have a wrong byte; returns how many are still to have it."""
    pytest.importorskip("obstore")
    left, client = [0], "torch_tfrecord.remote.obstore_store.ObstoreStore.read_range"
    read = resolve_name(client)

    def damaging(*asked):
        found = bytearray(read(*asked))
        if left[0]:
            left[0] -= 1
            found[len(found) // 2] ^= 1
        return bytes(found)

    monkeypatch.setattr(client, damaging)
    return left


@pytest.mark.slow
@pytest.mark.parametrize("how", ["batches", "single", "stream", "blocks"])
def test_a_wrong_record_of_the_cache_is_fetched_again_once(server, data, cache, damaged, how):
    path = f"{server}/train@{FILES}"
    dataset = (
        TFRecordDataset(path, **cache)
        if how != "stream"
        else TFRecordIterableDataset(path, **cache)
    )
    blocks = make_dataloader(path, 8, shuffle="blocks", **cache)
    records = sorted(data[1]) if how == "blocks" else data[1]
    read = {
        "batches": lambda: epoch(dataset, 1),
        "single": lambda: [dataset[position] for position in range(len(dataset))],
        "stream": lambda: flat(dataset),
        "blocks": lambda: sorted(record for batch in blocks for record in batch),
    }[how]
    damaged[0] = 1
    assert read() == records
    assert damaged[0] == 0
    # A thread that has read the damaged bytes, too, may drop what another one has fetched meanwhile.
    assert how != "blocks" or read() == records
    sent(server)
    assert read() == records
    assert sent(server) == (0, 0)


@pytest.mark.parametrize("kind", [TFRecordDataset, TFRecordIterableDataset])
def test_a_record_that_is_damaged_again_is_an_error(server, cache, damaged, kind):
    dataset = kind(f"{server}/train@{FILES}", **cache)
    damaged[0] = 1 << 30
    with pytest.raises(CorruptRecordError, match="train-0000"):
        list(dataset)


def test_damage_of_the_storage_is_left_out_with_skip(data, cache, tmp_path):
    (tmp_path / "data").mkdir()
    for path in data[0].glob("train-*"):
        (tmp_path / "data" / path.name).write_bytes(path.read_bytes())
    first = tmp_path / "data" / f"train-00000-of-{FILES:05d}"
    index = build_index(first)
    content = bytearray(first.read_bytes())
    content[int(index.offsets[3]) + 14] ^= 1
    content[int(index.offsets[9]) + 3] ^= 1
    first.write_bytes(content)
    with range_server(tmp_path / "data") as url:
        stream = TFRecordIterableDataset(f"{url}/train@{FILES}", on_error="skip", **cache)
        for epoch in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert flat(stream) == [
                    record for number, record in enumerate(data[1]) if number not in (3, 9)
                ]
            assert [str(one.message)[:27] for one in caught] == ["on_error='skip': skipped 2 "] * (
                epoch == 0
            )
            assert stream.report.counts == {"CorruptRecordError": 2}
