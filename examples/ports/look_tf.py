"""A look at what was written, in TensorFlow; the counterpart of look.py."""

import tensorflow as tf


def look(pattern):
    files = tf.data.Dataset.list_files(pattern, shuffle=False)
    for record in tf.data.TFRecordDataset(files).take(2):
        example = tf.train.Example.FromString(record.numpy())
        for name, feature in sorted(example.features.feature.items()):
            kind = feature.WhichOneof("kind")
            print(name, kind, [str(value)[:20] for value in getattr(feature, kind).value[:8]])
