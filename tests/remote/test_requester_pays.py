"""Buckets whose readers pay: each request says who pays, by `storage_options`, or it is refused.

Covers remote/obstore_options, remote/stores.
"""

import pytest
import torch
from range_server import range_server

from torch_tfrecord import (
    FixedLenFeature,
    RemoteError,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    make_dataloader,
    read_records,
)

FEATURES = {"n": FixedLenFeature((), torch.int64)}
S3 = ("x-amz-request-payer", "requester", 403)
GCS = ("x-goog-user-project", "my-project", 400)


@pytest.fixture
def bucket(tmp_path):
    (tmp_path / "bucket").mkdir()
    for shard in range(2):
        name = tmp_path / "bucket" / f"train-{shard:05d}-of-00002.tfrecord"
        with TFRecordWriter(name) as writer:
            for number in range(10):
                writer.write({"n": 10 * shard + number})
    return tmp_path


def options_of(kind, url):
    if kind == "gs":
        return {"token": "anon", "endpoint_url": url}
    keys = {"key": "me", "secret": "secret", "client_kwargs": {"region_name": "us-east-1"}}
    return {**keys, "endpoint_url": url}


CASES = [
    ("gs", {"requester_pays": "my-project"}),
    ("gs", {"requester_pays": True, "project": "my-project"}),
    ("s3", {"requester_pays": True}),
    pytest.param("s3fs", {"requester_pays": True}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "payer"), CASES)
def test_every_request_says_who_pays(bucket, kind, payer, take_client):
    pytest.importorskip("s3fs" if kind == "s3fs" else "obstore")
    if kind == "s3fs":
        take_client(kind)
    kind = kind[:2]
    with range_server(bucket, payer=GCS if kind == "gs" else S3) as url:
        options, paths = options_of(kind, url), f"{kind}://bucket/train-*"
        refused = RemoteError if kind == "gs" else PermissionError
        with pytest.raises(refused, match="400" if kind == "gs" else "forbids"):
            TFRecordDataset(paths, FEATURES, storage_options=options)
        statuses = {status for *_, status in url.requests()}
        assert statuses == {400 if kind == "gs" else 403}
        url.reset()
        options |= payer
        ds = TFRecordDataset(paths, FEATURES, index="memory", storage_options=options)
        assert [sample["n"].item() for sample in ds] == [*range(20)]
        loader = make_dataloader(ds, 8, shuffle=True)
        assert sorted(n for batch in loader for n in batch["n"].tolist()) == [*range(20)]
        stream = TFRecordIterableDataset(paths, FEATURES, storage_options=options)
        assert [sample["n"].item() for sample in stream] == [*range(20)]
        one = f"{kind}://bucket/train-00000-of-00002.tfrecord"
        assert len([*read_records(one, storage_options=options)]) == 10
        found = [status for *_, status in url.requests()]
        assert len(found) > 6 and not {400, 403} & {*found}
