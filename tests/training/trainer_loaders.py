"""All ways from files to a DataLoader, for the jobs of several ranks."""

import torch
from torch.utils.data import DataLoader

from torch_tfrecord import (
    FixedLenFeature,
    RecordSampler,
    TFRecordDataset,
    TFRecordIterableDataset,
    collate,
    make_dataloader,
)

FEATURES = {"id": FixedLenFeature((), torch.int64)}
BATCH_SIZE = 8


class Loaders:
    """All ways to a DataLoader, by name."""

    def __init__(self, folder):
        self.paths = f"{folder}/train-*"

    def dataset(self):
        return TFRecordDataset(self.paths, FEATURES)

    def make_dataloader(self, **options):
        return make_dataloader(self.paths, BATCH_SIZE, FEATURES, seed=3, **options)

    def batch_sampler(self, **options):
        dataset = self.dataset()
        batches = make_dataloader(dataset, BATCH_SIZE, seed=3).batch_sampler
        return DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **options)

    def sampler(self, **options):
        dataset = self.dataset()
        sampler = RecordSampler(dataset, seed=3)
        return DataLoader(dataset, BATCH_SIZE, sampler=sampler, collate_fn=collate, **options)

    def stream(self, **options):
        stream = TFRecordIterableDataset(
            self.paths, FEATURES, shuffle=True, shuffle_buffer_size=10, seed=3
        )
        return DataLoader(stream, BATCH_SIZE, collate_fn=collate, **options)

    def batched_stream(self, **options):
        stream = TFRecordIterableDataset(
            self.paths, FEATURES, batch_size=BATCH_SIZE, shuffle=True, seed=3
        )
        return DataLoader(stream, batch_size=None, **options)


NAMES = ("make_dataloader", "batch_sampler", "sampler", "stream", "batched_stream")


def ids(loader):
    return [batch["id"].tolist() for batch in loader]


def caught(function, *arguments, **options):
    """What a function returns, or the error in its place."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def two_epochs(loader):
    return [ids(loader) for _ in range(2)]
