"""A table with defaults and a label, in TensorFlow; the counterpart of tabular.py."""

import tensorflow as tf

SPEC = {
    "age": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    "income": tf.io.FixedLenFeature([1], tf.float32),
    "country": tf.io.FixedLenFeature([], tf.string, default_value="unknown"),
    "tags": tf.io.VarLenFeature(tf.string),
    "clicked": tf.io.FixedLenFeature([], tf.int64),
}


def pipeline(pattern, batch_size):
    return tf.data.experimental.make_batched_features_dataset(
        pattern, batch_size, SPEC, label_key="clicked", num_epochs=1, shuffle=False
    )
