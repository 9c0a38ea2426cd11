"""Rows with missing values to shards, in TensorFlow; the counterpart of write_table.py."""

import csv

import tensorflow as tf


def encode(row):
    feature = {
        "income": tf.train.Feature(float_list=tf.train.FloatList(value=[float(row["income"])])),
        "clicked": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(row["clicked"])])),
    }
    if row["age"]:
        age = tf.train.Int64List(value=[int(row["age"])])
        feature["age"] = tf.train.Feature(int64_list=age)
    if row["country"]:
        country = tf.train.BytesList(value=[row["country"].encode()])
        feature["country"] = tf.train.Feature(bytes_list=country)
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write(table, prefix, num_shards):
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    for shard in range(num_shards):
        name = f"{prefix}-{shard:05d}-of-{num_shards:05d}.tfrecord"
        with tf.io.TFRecordWriter(name) as writer:
            for row in rows[shard::num_shards]:
                writer.write(encode(row))
