"""A program that ends with everything at module level: program_ends_job.py FOLDER START_METHOD
[URL].

Where Python sets the globals of modules to None as it ends, finalizers run without them.
"""

import importlib.util
import os
import sys

import torch
from torch.utils.data import DataLoader

import torch_tfrecord as t

FOLDER, METHOD, *URL = sys.argv[1:]
CHILD = "a forked child"
FEATURES = {"n": t.FixedLenFeature([], torch.int64)}
NAMES = [f"x-{shard:05d}-of-00002" for shard in range(2)]
LOCAL = [f"{FOLDER}/{name}" for name in NAMES]
ZIPPED, MEMORY = f"{FOLDER}/zipped.gz", [f"memory://ends/{name}" for name in NAMES]


def first(iterator):
    found = next(iterator)["n"].reshape(-1)[0].item()
    next(iterator)  # of the other worker, so that both are there
    return found


if __name__ == "__main__":
    for paths in (LOCAL, MEMORY, [ZIPPED]):
        for path in paths:
            with t.TFRecordWriter(path, features=FEATURES) as closed:
                for number in range(100):
                    closed.write({"n": number})
    dataset = t.TFRecordDataset(LOCAL, FEATURES)
    remote = t.TFRecordDataset(MEMORY, FEATURES, on_error="skip")
    cached = t.TFRecordDataset(MEMORY, FEATURES, cache_dir=f"{FOLDER}/cache")
    zipped = t.TFRecordDataset(ZIPPED, FEATURES)
    over_http = [t.TFRecordDataset(f"{url}/{NAMES[0]}", FEATURES, index="memory") for url in URL]
    datasets = [dataset, remote, cached, zipped, *over_http]
    if importlib.util.find_spec("array_record") is not None:
        from array_record.python.array_record_module import ArrayRecordWriter

        array_writer = ArrayRecordWriter(f"{FOLDER}/x.array_record", "group_size:1")
        for number in range(100):
            array_writer.write(t.encode_example({"n": number}, FEATURES))
        array_writer.close()
        datasets.append(t.TFRecordDataset(f"{FOLDER}/x.array_record", FEATURES))
    samples = [one[70] for one in datasets]
    sources = [LOCAL, MEMORY, ZIPPED, *(f"{url}/{NAMES[1]}" for url in URL)]
    streams = [t.TFRecordIterableDataset(paths, FEATURES) for paths in sources]
    streams.append(t.TFRecordIterableDataset(LOCAL, FEATURES, batch_size=5))
    iterators = [iter(stream) for stream in streams]
    mixture = t.Mixture(datasets)
    loaders = [t.make_dataloader(one, 5, num_threads=2) for one in (*datasets, mixture)]
    records = [t.read_records(path) for path in (LOCAL[0], ZIPPED)]
    read = [next(one) for one in records]
    if METHOD and METHOD != CHILD:
        workers = {"num_workers": 2, "multiprocessing_context": METHOD}
        # what is in memory:// reaches forked workers alone
        reached = [one for one in datasets if METHOD == "fork" or one not in (remote, cached)]
        loaders += [
            t.make_dataloader(t.Mixture(reached), 5, persistent_workers=True, **workers),
            DataLoader(mixture if METHOD == "fork" else dataset, batch_size=5, **workers),
            DataLoader(streams[0], batch_size=5, **workers),
        ]
    iterators += map(iter, loaders)
    print(*map(first, iterators))
    ended = [*DataLoader(dataset, batch_size=50, num_workers=2 if METHOD == "fork" else 0)]
    writer = t.TFRecordWriter(f"{FOLDER}/open", features=FEATURES)
    sharded = t.ShardedTFRecordWriter(f"{FOLDER}/shards", num_shards=2, features=FEATURES)
    sharded.write({"n": 1})

    def written():
        with t.TFRecordWriter(f"{FOLDER}/inside", features=FEATURES) as inside:
            inside.write({"n": 1})
            yield

    suspended = written()
    next(suspended)
    if METHOD == CHILD and not os.fork():
        sys.exit()  # as Python ends, with copies of all that
