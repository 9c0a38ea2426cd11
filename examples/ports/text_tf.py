"""Token sequences of unequal length, padded, in TensorFlow; the counterpart of text.py."""

import tensorflow as tf

MAX_TOKENS = 6
SPEC = {
    "text": tf.io.FixedLenFeature([], tf.string),
    "tokens": tf.io.VarLenFeature(tf.int64),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def read(record):
    parsed = tf.io.parse_single_example(record, SPEC)
    tokens = tf.sparse.to_dense(parsed["tokens"])[:MAX_TOKENS]
    return {"text": parsed["text"], "tokens": tokens, "length": tf.size(tokens)}, parsed["label"]


def pipeline(pattern, batch_size):
    files = tf.data.Dataset.list_files(pattern, shuffle=False)
    samples = tf.data.TFRecordDataset(files).map(read)
    shapes = {"text": [], "tokens": [None], "length": []}, []
    values = (
        {"text": "", "tokens": tf.constant(-1, tf.int64), "length": 0},
        tf.constant(0, tf.int64),
    )
    return samples.padded_batch(batch_size, shapes, values).prefetch(2)
