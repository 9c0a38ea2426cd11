"""A folder of pictures, one sub-folder for each class, to shards with a progress bar, in TensorFlow;
the counterpart of write_folder.py.
"""

from pathlib import Path

import tensorflow as tf
from tqdm import tqdm


def bytes_feature(value):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def int64_feature(value):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def write(folder, prefix, num_shards):
    classes = sorted(path.name for path in Path(folder).iterdir())
    files = [path for name in classes for path in sorted(Path(folder, name).iterdir())]
    writers = [
        tf.io.TFRecordWriter(f"{prefix}-{number:05d}-of-{num_shards:05d}.tfrecord")
        for number in range(num_shards)
    ]
    for number, path in enumerate(tqdm(files)):
        encoded = path.read_bytes()
        height, width, _ = tf.io.decode_png(encoded).shape
        feature = {
            "image/encoded": bytes_feature(encoded),
            "image/height": int64_feature(height),
            "image/width": int64_feature(width),
            "image/class/label": int64_feature(classes.index(path.parent.name)),
            "image/class/text": bytes_feature(path.parent.name.encode()),
            "image/filename": bytes_feature(path.name.encode()),
        }
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        writers[number % num_shards].write(example.SerializeToString())
    for writer in writers:
        writer.close()
