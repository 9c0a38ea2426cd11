"""Token sequences of unequal length, padded: the port of text_tf.py."""

import torch
from torch.utils.data import DataLoader

from torch_tfrecord import FixedLenFeature, PaddedCollate, TFRecordDataset, VarLenFeature

MAX_TOKENS = 6
FEATURES = {
    "text": FixedLenFeature((), bytes),
    "tokens": VarLenFeature(torch.int64),
    "label": FixedLenFeature((), torch.int64),
}


def read(sample):
    tokens = sample["tokens"][:MAX_TOKENS]
    return {"text": sample["text"], "tokens": tokens, "length": len(tokens)}, sample["label"]


def pipeline(pattern, batch_size, num_workers=0):
    samples = TFRecordDataset(pattern, FEATURES, transform=read)
    pad = PaddedCollate(padding_values=({"tokens": -1}, None))
    return DataLoader(samples, batch_size, num_workers=num_workers, collate_fn=pad)
