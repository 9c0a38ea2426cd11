"""docs/remote.md: its Python is run as it stands, by a server of moto's; what it says of requests
is counted.
"""

import logging
import re
from pathlib import Path

import pytest
import torch
from range_server import range_server

from torch_tfrecord import (
    FixedLenFeature,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    build_manifest,
    make_dataloader,
)

DOC = Path(__file__).parents[2] / "docs" / "remote.md"
pytestmark = pytest.mark.skipif(not DOC.is_file(), reason="not beside an installed package")

NUM_FILES, NUM_RECORDS = 4, 30  # of each file


def block(marker):
    """The Python block that a marker stands in."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", DOC.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    (found,) = [block for block in blocks if marker in block]
    return found


# For the session: a process of pytest-xdist may come back to the module, and clients know a
# server's address.
@pytest.fixture(scope="session")
def bucket(tmp_path_factory):
    """``s3://my-bucket/data`` as the page has it, by a server of moto's; its URL."""
    boto3, moto_server = pytest.importorskip("boto3"), pytest.importorskip("moto.server")

    folder = tmp_path_factory.mktemp("bucket") / "data"
    folder.mkdir()
    write(folder)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = moto_server.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    keys = {
        "aws_access_key_id": "testing",
        "aws_secret_access_key": "testing",
        "region_name": "us-east-1",
    }
    client = boto3.client("s3", endpoint_url=url, **keys)
    client.create_bucket(Bucket="my-bucket")
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "my-bucket", path.relative_to(folder.parent).as_posix())
    yield url
    server.stop()


def write(folder, size=1000):
    for shard in range(NUM_FILES):
        path = folder / f"train-{shard:05d}-of-{NUM_FILES:05d}.tfrecord"
        with TFRecordWriter(path, write_index=True) as writer:
            for number in range(shard * NUM_RECORDS, (shard + 1) * NUM_RECORDS):
                writer.write({"image": bytes([number]) * size, "label": number})


@pytest.fixture
def page(bucket, tmp_path, monkeypatch):
    """The names of the page's first block, which was run where the environment names server and
    keys.
    """
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "AWS_ENDPOINT_URL": bucket,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    names = {}
    exec(
        block('loader = make_dataloader("s3://my-bucket/data/train-*", 8, features, shuffle=True)'),
        names,
    )
    return names


@pytest.mark.daily
def test_reading(page):
    labels = torch.cat([batch["label"] for batch in page["loader"]])
    assert sorted(labels.tolist()) == [*range(NUM_FILES * NUM_RECORDS)]
    assert all(
        image == bytes([label]) * 1000
        for label, image in zip(page["batch"]["label"], page["batch"]["image"], strict=True)
    )


@pytest.mark.slow
def test_storage_options(page, capsys):
    exec(block("storage_options="), page)
    assert capsys.readouterr().out == "120 tensor(5)\n"


@pytest.mark.slow
def test_cache(page):
    exec(block("cache_dir="), page)
    assert Path("cache").is_dir()
    assert sum(path.stat().st_size for path in Path("cache").rglob("*")) <= 1 << 26


@pytest.mark.slow
def test_writing(page, capsys):
    exec(block("ShardedTFRecordWriter"), page)
    assert capsys.readouterr().out == "8\n"


@pytest.fixture
def server(tmp_path):
    """A server of the same files with larger records."""
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", 50_000)
    with range_server(tmp_path) as url:
        yield url


FEATURES = {"label": FixedLenFeature((), torch.int64)}


def requests_of(server, act):
    """What was asked of the data and its folder, as (method, path)."""
    server.reset()
    result = act()
    return result, [(method, path) for method, path, *_ in server.requests()]


@pytest.mark.slow
def test_requests_to_find_and_open_files(server):
    folder = f"{server}/data"
    pattern, found = requests_of(server, lambda: TFRecordDataset(f"{folder}/train-*", FEATURES))
    assert len(found) <= 2 + 5 * NUM_FILES
    assert [path.rstrip("/") for _, path in found].count("/data") == 1, "one listing"
    spec = f"{folder}/train@{NUM_FILES}.tfrecord"
    dataset, found = requests_of(server, lambda: TFRecordDataset(spec, FEATURES))
    assert len(found) <= 1 + 5 * NUM_FILES
    assert [path.rstrip("/") for _, path in found].count("/data") == 0
    assert dataset.files == pattern.files
    assert max(size for path, size in asked_bytes(server) if path.endswith(".tfrecord")) <= 4096, (
        "both ends of the data"
    )


@pytest.mark.slow
def test_requests_with_a_manifest(server, tmp_path):
    path = Path(build_manifest(str(tmp_path / "data"))).relative_to(tmp_path)
    for paths in (f"{server}/{path}", f"{server}/data/train-*"):
        dataset, found = requests_of(server, lambda paths=paths: TFRecordDataset(paths, FEATURES))
        assert len(dataset) == NUM_FILES * NUM_RECORDS
        assert [path for _, path in found if path.endswith(".tfrecord")] == [], "no look at a shard"
        assert len(found) <= 4
        assert [int(sample["label"]) for sample in dataset] == [*range(NUM_FILES * NUM_RECORDS)]


@pytest.mark.slow
def test_requests_with_a_cache(server, tmp_path):
    cache = {"cache_dir": tmp_path / "cache", "cache_bytes": 1 << 26}
    dataset = TFRecordDataset(f"{server}/data/train-*", FEATURES, **cache)
    for shuffle in (True, "blocks", True):
        batches, found = requests_of(
            server, lambda way=shuffle: [*make_dataloader(dataset, 8, shuffle=way)]
        )
        assert sum(len(batch["label"]) for batch in batches) == NUM_FILES * NUM_RECORDS
    assert found == []


def asked_bytes(server):
    for method, path, header, _ in server.requests():
        if method == "GET" and header:
            begin, last = map(int, header.removeprefix("bytes=").split("-"))
            yield path, last + 1 - begin


@pytest.mark.slow
def test_requests_of_batches_epochs_and_streams(server):
    dataset = TFRecordDataset(f"{server}/data/train-*", FEATURES)
    _, found = requests_of(server, lambda: dataset.__getitems__([3, 70, 20, 110]))
    assert len(found) <= 4
    _, found = requests_of(server, lambda: [*make_dataloader(dataset, 8, shuffle=True)])
    assert len(found) <= NUM_FILES * NUM_RECORDS
    _, found = requests_of(server, lambda: [*make_dataloader(dataset, 8, shuffle="blocks")])
    assert len(found) <= NUM_FILES * 3
    stream = TFRecordIterableDataset(f"{server}/data/train-*", FEATURES, batch_size=8)
    batches, found = requests_of(server, lambda: [*stream])
    assert sorted(torch.cat([batch["label"] for batch in batches]).tolist()) == [
        *range(NUM_FILES * NUM_RECORDS)
    ]
    assert len(found) <= 1 + NUM_FILES * 4
