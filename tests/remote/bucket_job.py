"""A script that a newcomer writes, where the extra `remote` alone is installed: bucket_job.py
URL_OF_S3 START_METHOD.
"""

import sys

# Neither is one of the extra's, so nobody may need them: also in the workers that import this.
sys.modules |= dict.fromkeys(("s3fs", "aiohttp", "aiobotocore", "boto3", "botocore"))

import torch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import torch_tfrecord as t  # noqa: E402
from torch_tfrecord.files import Access  # noqa: E402
from torch_tfrecord.remote import stores  # noqa: E402

FEATURES = {"number": t.FixedLenFeature([], torch.int64)}
OPTIONS = {
    "key": "somebody",
    "secret": "s3cret",
    "client_kwargs": {"endpoint_url": sys.argv[1], "region_name": "us-east-1"},
}


def check(sample):
    """Who reads in this worker; and a worker writes, too."""
    store, _ = stores.store_of("s3://alone/x", Access(OPTIONS))
    number = sample["number"].item()
    if number % 20 == 0:
        path = f"s3://alone/by-worker-{number}"
        with t.TFRecordWriter(path, features=FEATURES, storage_options=OPTIONS) as writer:
            writer.write({"number": number})
    return number, type(store).__name__


if __name__ == "__main__":
    for shard in range(2):
        path = f"s3://alone/x-{shard:05d}-of-00002"
        with t.TFRecordWriter(path, features=FEATURES, storage_options=OPTIONS) as writer:
            for number in range(shard * 20, shard * 20 + 20):
                writer.write({"number": number})
    dataset = t.TFRecordDataset(
        "s3://alone/x@2", FEATURES, transform=check, storage_options=OPTIONS, index="memory"
    )
    loader = DataLoader(
        dataset,
        batch_size=5,
        num_workers=2,
        multiprocessing_context=sys.argv[2],
        collate_fn=list,
    )
    found = [pair for batch in loader for pair in batch]
    print([number for number, _ in found] == [*range(40)], {name for _, name in found})
    written = t.TFRecordDataset("s3://alone/by-worker-*", FEATURES, storage_options=OPTIONS)
    print(sorted(written[number]["number"].item() for number in range(len(written))))
