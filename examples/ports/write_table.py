"""Rows with missing values to shards, by torch_tfrecord; the counterpart of write_table_tf.py."""

import pandas
import torch

from torch_tfrecord import FixedLenFeature, write_arrow

FEATURES = {
    "age": FixedLenFeature((), torch.int64, default_value=-1),
    "income": FixedLenFeature((), torch.float32),
    "country": FixedLenFeature((), str, default_value="unknown"),
    "clicked": FixedLenFeature((), torch.int64),
}


def write(table, prefix, num_shards):
    write_arrow(pandas.read_csv(table), prefix, features=FEATURES, num_shards=num_shards)
