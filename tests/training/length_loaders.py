"""Ways to batches by length, for the jobs of several ranks."""

import numpy as np
import torch
from torch.utils.data import DataLoader

from torch_tfrecord import (
    FixedLenFeature,
    LengthBatchSampler,
    PackedCollate,
    PaddedCollate,
    ShardedTFRecordWriter,
    TFRecordDataset,
    VarLenFeature,
    build_index,
    make_dataloader,
)

N = 203
FEATURES = {"id": FixedLenFeature((), torch.int64), "tokens": VarLenFeature(torch.int64)}
BY_LENGTH = {"lengths": "tokens", "max_tokens": 256, "seed": 3}
PACKED = {"lengths": "tokens", "batch_size": 2, "seed": 3}
ROW_LENGTH = 64
LENGTHS = np.random.default_rng(0).integers(1, ROW_LENGTH + 1, N).tolist()


def write(folder):
    with ShardedTFRecordWriter(folder / "train", num_shards=5) as writer:
        for number, length in enumerate(LENGTHS):
            writer.write({"id": number, "tokens": [number] * length})
    build_index(f"{folder}/train-*", columns=["len(tokens)"])


class LengthLoaders:
    """Ways to a DataLoader of batches by length, by name."""

    def __init__(self, folder):
        self.paths = f"{folder}/train-*"

    def padded(self, **options):
        pad = PaddedCollate(multiple_of=8)
        return make_dataloader(
            self.paths, features=FEATURES, collate_fn=pad, **BY_LENGTH, **options
        )

    def packed(self, **options):
        pack = PackedCollate(ROW_LENGTH)
        return make_dataloader(self.paths, features=FEATURES, collate_fn=pack, **PACKED, **options)

    def sampler(self, **options):
        dataset, pad = TFRecordDataset(self.paths, FEATURES), PaddedCollate(multiple_of=8)
        batches = LengthBatchSampler(dataset, multiple_of=8, **BY_LENGTH)
        return DataLoader(dataset, batch_sampler=batches, collate_fn=pad, **options)


def row(batch):
    """What a rank notes of a batch: its records, and the shape of their tokens."""
    return [batch["id"].tolist(), list(batch["tokens"].shape)]


def rows(loader):
    return [row(batch) for batch in loader]
