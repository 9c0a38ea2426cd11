"""Writers to storages: S3 by moto through obstore and through s3fs, memory:// through fsspec; also
test_upload_file's.

Covers records/record_file, remote/storages.
"""

import contextlib
import io
import os
import sys
from pkgutil import resolve_name

import pytest

from torch_tfrecord import (
    ShardedTFRecordWriter,
    TFRecordDataset,
    TFRecordError,
    TFRecordWriter,
    find_files,
    read_records,
)
from torch_tfrecord.files import Access, open_file
from torch_tfrecord.remote import upload_bytes

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto.server")
pytestmark = pytest.mark.slow
KEYS = {"key": "testing", "secret": "testing-secret"}
RECORDS = [bytes([number]) * (number * 31 % 200) for number in range(50)]


@pytest.fixture(scope="module")
def server():
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    with contextlib.redirect_stdout(io.StringIO()):
        server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["obstore", pytest.param("s3fs", marks=pytest.mark.slow)])
def s3(server, request, take_client):
    """Options that reach an empty bucket, and a client that looks into it beside us."""
    take_client(request.param)
    client = boto3.client(
        "s3",
        endpoint_url=server,
        region_name="us-east-1",
        aws_access_key_id=KEYS["key"],
        aws_secret_access_key=KEYS["secret"],
    )
    client.create_bucket(Bucket="bucket")
    for entry in client.list_objects_v2(Bucket="bucket").get("Contents", []):
        client.delete_object(Bucket="bucket", Key=entry["Key"])
    client.options = {**KEYS, "endpoint_url": server}
    client.store = {
        "obstore": "torch_tfrecord.remote.obstore_store.ObstoreStore",
        "s3fs": "torch_tfrecord.remote.fsspec_store.FsspecStore",
    }[request.param]
    return client


def keys(client):
    return sorted(
        entry["Key"] for entry in client.list_objects_v2(Bucket="bucket").get("Contents", [])
    )


def parts_left(client):
    return client.list_multipart_uploads(Bucket="bucket").get("Uploads", [])


def write(path, records, options, **more):
    with TFRecordWriter(path, storage_options=options, **more) as writer:
        for record in records:
            writer.write(record)


@pytest.mark.daily
@pytest.mark.parametrize("name", ["a/x.tfrecord", "a/x.tfrecord.gz"])
def test_a_file_and_its_index(s3, name, tmp_path):
    write(f"s3://bucket/{name}", RECORDS, s3.options, write_index=True)
    write(tmp_path / os.path.basename(name), RECORDS, None)
    content = s3.get_object(Bucket="bucket", Key=name)["Body"].read()
    assert content == (tmp_path / os.path.basename(name)).read_bytes()
    ds = TFRecordDataset(f"s3://bucket/{name}", index="require", storage_options=s3.options)
    assert len(ds) == 50
    assert name.endswith("gz") or [ds.raw(number) for number in range(50)] == RECORDS
    assert [*read_records(f"s3://bucket/{name}", storage_options=s3.options)] == RECORDS
    index, data = keys(s3)
    assert index.startswith("a/.torch_index/")
    assert data == name


@pytest.mark.slow
def test_large_files_go_in_parts(s3, monkeypatch):
    monkeypatch.setattr("torch_tfrecord.remote.store._PART_BYTES", 5 << 20)
    records = [os.urandom(1 << 20) for _ in range(12)]
    write("s3://bucket/large", records, s3.options)
    assert s3.head_object(Bucket="bucket", Key="large")["ETag"].endswith('-3"')
    assert [*read_records("s3://bucket/large", storage_options=s3.options)] == records
    assert parts_left(s3) == []


def test_nothing_is_there_before_close_or_after_an_error(s3):
    writer = TFRecordWriter("s3://bucket/x", storage_options=s3.options)
    writer.write(b"abc")
    writer.flush()
    assert keys(s3) == []
    writer.close()
    assert keys(s3) == ["x"]
    with (
        pytest.raises(RuntimeError),
        TFRecordWriter("s3://bucket/y", storage_options=s3.options) as writer,
    ):
        writer.write(b"abc")
        raise RuntimeError
    with pytest.warns(UserWarning, match="s3://bucket/z: the writer was dropped without close"):
        writer = TFRecordWriter("s3://bucket/z", storage_options=s3.options)
        del writer
    assert keys(s3) == ["x"]
    assert parts_left(s3) == []


@pytest.mark.daily
@pytest.mark.parametrize("how", [{"num_shards": 3}, {"max_shard_bytes": 2000}], ids=str)
def test_shards(s3, how):
    with ShardedTFRecordWriter(
        "s3://bucket/d/t", write_index=True, storage_options=s3.options, **how
    ) as writer:
        for record in RECORDS:
            writer.write(record)
        assert keys(s3) == []
    found = find_files("s3://bucket/d/t-*", storage_options=s3.options)
    assert found == writer.paths
    assert len(keys(s3)) == 2 * len(found)
    ds = TFRecordDataset("s3://bucket/d/t-*", index="require", storage_options=s3.options)
    wanted = [*RECORDS[::3], *RECORDS[1::3], *RECORDS[2::3]] if "num_shards" in how else RECORDS
    assert [ds.raw(number) for number in range(len(ds))] == wanted
    assert repr(writer) == "ShardedTFRecordWriter('s3://bucket/d/t')"


def test_a_shard_that_cannot_be_written_leaves_no_new_ones(s3, monkeypatch):
    write("s3://bucket/t-00000-of-00003.tfrecord", [b"old"], s3.options)
    real = resolve_name(f"{s3.store}.upload")

    def upload(self, name, file, size):
        if name.endswith("t-00002-of-00003.tfrecord"):
            raise PermissionError
        return real(self, name, file, size)

    monkeypatch.setattr(f"{s3.store}.upload", upload)
    writer = ShardedTFRecordWriter("s3://bucket/t", num_shards=3, storage_options=s3.options)
    writer.write(b"new")
    with pytest.raises(
        PermissionError,
        match=r"the storage forbids it \(its 0 bytes\): 's3://bucket/t-00002",
    ):
        writer.close()
    assert keys(s3) == ["t-00000-of-00003.tfrecord"]
    assert writer.paths == []


@pytest.mark.slow
def test_a_failure_that_passes_is_tried_again_from_the_start(s3, monkeypatch):
    real, failures = resolve_name(f"{s3.store}.upload"), iter([True, True])

    def upload(self, name, file, size):
        if next(failures, False):
            file.read(7)
            raise resolve_name("torch_tfrecord.remote.store.StoreError")("the connection was reset")
        return real(self, name, file, size)

    monkeypatch.setattr(f"{s3.store}.upload", upload)
    write("s3://bucket/x", RECORDS, s3.options)
    assert [*read_records("s3://bucket/x", storage_options=s3.options)] == RECORDS
    assert next(failures, None) is None


@pytest.mark.slow
def test_no_bucket(s3):
    with pytest.raises((OSError, TFRecordError), match="s3://none/x"):
        write("s3://none/x", RECORDS, s3.options)


def test_file_systems_without_parts():
    write("memory://up/a/x", RECORDS, None, write_index=True)
    assert [*read_records("memory://up/a/x")] == RECORDS
    write("memory://up/a/x", RECORDS[:3], None, write_index=True)
    ds = TFRecordDataset("memory://up/a/x", index="require")
    assert [ds.raw(number) for number in range(3)] == RECORDS[:3]


def test_bytes():
    upload_bytes("memory://up/b", b"content", Access())
    assert open_file("memory://up/b").read(100, 0) == b"content"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a full device")
def test_no_room_for_the_temporary_file(monkeypatch):
    def full():
        return open("/dev/full", "w+b", buffering=0)

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    writer = TFRecordWriter("memory://up/full")
    with pytest.raises(
        OSError, match=r"No space left on device \(its temporary file in .*: 'memory://up/full'"
    ):
        writer.write(b"x")
    with pytest.raises(
        OSError, match=r"No space left on device \(its temporary file in .*: 'memory://up/full'"
    ):
        writer.close()
