"""A table with defaults and a label: the port of tabular_tf.py."""

import torch

from torch_tfrecord import FixedLenFeature, VarLenFeature, make_dataloader

FEATURES = {
    "age": FixedLenFeature((), torch.int64, default_value=-1),
    "income": FixedLenFeature((1,), torch.float32),
    "country": FixedLenFeature((), bytes, default_value=b"unknown"),
    "tags": VarLenFeature(bytes),
    "clicked": FixedLenFeature((), torch.int64),
}


def pipeline(pattern, batch_size, num_workers=0):
    return make_dataloader(
        pattern, batch_size, FEATURES, label_key="clicked", shuffle=False, num_workers=num_workers
    )
