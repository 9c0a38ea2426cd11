"""ImageNet for evaluation, in TensorFlow; the counterpart of imagenet.py."""

import tensorflow as tf

SIZE = 32  # 224 for the real one
MEAN = tf.constant([123.675, 116.28, 103.53])
STD = tf.constant([58.395, 57.12, 57.375])
SPEC = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


def read(record):
    parsed = tf.io.parse_single_example(record, SPEC)
    image = tf.io.decode_jpeg(parsed["image/encoded"], channels=3, dct_method="INTEGER_ACCURATE")
    image = tf.image.central_crop(image, 0.875)
    image = tf.image.resize(image, (SIZE, SIZE))
    return (image - MEAN) / STD, parsed["image/class/label"] - 1


def pipeline(pattern, batch_size):
    files = tf.data.Dataset.list_files(pattern, shuffle=False)
    records = tf.data.TFRecordDataset(files)
    return records.map(read, num_parallel_calls=4).batch(batch_size).prefetch(2)
