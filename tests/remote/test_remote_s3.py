"""Data in a bucket of S3, as moto's server stands for one: by obstore and by s3fs, with options,
indexes, listings.

Covers remote/obstore_store, remote/stores, remote/store, remote/storages.
"""

import pytest

boto3 = pytest.importorskip("boto3")
moto_server = pytest.importorskip("moto.server")

from torch_tfrecord import (  # noqa: E402
    IndexMismatchError,
    RecordIndex,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    build_index,
    encode_example,
    find_files,
    infer_features,
    make_dataloader,
    read_records,
)

NUM_FILES, NUM_RECORDS = 3, 20
SECRET = "top-s3cret-word"


@pytest.fixture(scope="module")
def server():
    started = moto_server.ThreadedMotoServer(port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    yield f"http://{host}:{port}"
    started.stop()


@pytest.fixture(scope="module")
def options(server):
    return {
        "key": "somebody",
        "secret": SECRET,
        "client_kwargs": {"endpoint_url": server, "region_name": "us-east-1"},
    }


def payload(number):
    return encode_example({"number": number, "text": "x" * (number % 7)})


@pytest.fixture(scope="module")
def bucket(server, tmp_path_factory):
    """A client of the bucket "data", which holds three shards with their indexes, built locally."""
    client = boto3.client(
        "s3",
        endpoint_url=server,
        region_name="us-east-1",
        aws_access_key_id="somebody",
        aws_secret_access_key=SECRET,
    )
    client.create_bucket(Bucket="data")
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(NUM_FILES):
        with TFRecordWriter(folder / f"train-{shard:05d}-of-{NUM_FILES:05d}.tfrecord") as writer:
            for number in range(NUM_RECORDS):
                writer.write(payload(shard * NUM_RECORDS + number))
    TFRecordDataset(folder)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.upload_file(str(path), "data", f"set/{path.relative_to(folder).as_posix()}")
    return client


@pytest.fixture(params=["obstore", "s3fs"])
def store(request, take_client, bucket):
    take_client(request.param)
    return request.param


ALL = [payload(number) for number in range(NUM_FILES * NUM_RECORDS)]
FILES = [f"s3://data/set/train-{shard:05d}-of-00003.tfrecord" for shard in range(NUM_FILES)]


@pytest.mark.parametrize(
    "paths",
    [
        "s3://data/set",
        "s3://data/set/",
        "s3://data/set/train-*",
        "s3://data/set/train@3",
        "s3://data/set/train@3.tfrecord",
        "s3://data/set/train@*",
        "s3://data/*/train-0000[012]*",
        "s3://data/**/*.tfrecord",
        FILES,
    ],
    ids=str,
)
def test_names(store, options, paths):
    assert find_files(paths, storage_options=options) == FILES


def test_names_that_are_not_there(store, options):
    with pytest.raises(FileNotFoundError, match="s3://data/set/no"):
        find_files("s3://data/set/no", storage_options=options)
    with pytest.raises(FileNotFoundError, match=r"no file matches the pattern.*s3://data/set/no"):
        find_files("s3://data/set/no*", storage_options=options)
    with pytest.raises(
        FileNotFoundError,
        match=r"4 of 4 shards missing: s3://data/set/train-00000-of-00004.*there are 3",
    ):
        find_files("s3://data/set/train@4", storage_options=options)


@pytest.mark.daily
def test_all_ways_to_read(store, options):
    dataset = TFRecordDataset("s3://data/set/train@3", index="require", storage_options=options)
    assert [dataset[number] for number in range(len(dataset))] == ALL
    assert dataset.__getitems__([41, 3, 3, 20]) == [ALL[41], ALL[3], ALL[3], ALL[20]]
    assert list(TFRecordIterableDataset(FILES, storage_options=options)) == ALL
    assert list(read_records(FILES[1], storage_options=options)) == ALL[20:40]
    batches = make_dataloader("s3://data/set/train@3", 7, shuffle=True, storage_options=options)
    assert sorted(record for batch in batches for record in batch) == sorted(ALL)
    features = infer_features("s3://data/set", storage_options=options)
    batch = next(iter(make_dataloader(FILES, 60, features, shuffle=False, storage_options=options)))
    assert batch["number"].tolist() == list(range(60))


def test_an_index_that_was_uploaded(store, options, bucket):
    name = next(
        entry["Key"]
        for entry in bucket.list_objects_v2(Bucket="data", Prefix="set/.torch_index/")["Contents"]
    )
    index = RecordIndex.load(f"s3://data/{name}", storage_options=options)
    assert (len(index), index.etag) == (NUM_RECORDS, None)
    built = build_index(FILES[0], storage_options=options)
    assert built.etag is not None
    assert (built.offsets == index.offsets).all()


@pytest.mark.slow
def test_a_file_that_changed_behind_its_index(store, options, bucket, tmp_path):
    def put(shift):
        with TFRecordWriter(tmp_path / "x") as writer:
            for number in range(10):
                writer.write(b"%04d" % (number + shift) * 1000)
        bucket.upload_file(str(tmp_path / "x"), "data", "changing/x.tfrecord")

    put(0)
    dataset = TFRecordDataset(
        "s3://data/changing/x.tfrecord", index_dir=tmp_path / "i", storage_options=options
    )
    put(1)  # of the same size
    if store == "obstore":
        with pytest.raises(
            Exception, match=r"s3://data/changing/x.tfrecord: .*got another one in its place \(ETag"
        ):
            dataset[5]
    else:
        with pytest.raises(IndexMismatchError, match="the index is not of this file as it is now"):
            dataset[5]
    again = TFRecordDataset(
        "s3://data/changing/x.tfrecord", index_dir=tmp_path / "i", storage_options=options
    )
    assert again[5] == b"0006" * 1000


@pytest.mark.daily
def test_no_option_is_shown(store, options, bucket):
    dataset = TFRecordDataset(FILES, storage_options=options)
    loader = make_dataloader(FILES, 2, storage_options=options)
    stream = TFRecordIterableDataset(FILES, storage_options=options)
    texts = [
        repr(dataset),
        repr(loader),
        repr(stream),
        repr(loader.state_dict()),
        repr(stream.state_dict()),
    ]
    texts += [repr(dataset._record_files.access)]
    with pytest.raises(Exception) as caught:
        TFRecordDataset("s3://no-such-bucket/x", storage_options=options)
    texts += [str(caught.value), repr(caught.value), repr(caught.value.__cause__)]
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert not any(SECRET in text or "somebody" in text for text in texts)
