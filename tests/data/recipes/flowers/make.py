"""Writes data.zip: `python make.py`, with TensorFlow 2.21.

The functions that read are those of the notebook
courses/fast-and-lean-data-science/keras_104_flowers_gputputpupod_tf2.2.ipynb in
https://github.com/GoogleCloudPlatform/training-data-analyst, commit 01b3915 (Copyright Google,
Apache License 2.0), without its comments. Kaggle's writer is not public; the records here have the
features that this notebook and the competition's page name, and pictures that are drawn here.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1]))
from originals import arrays, example, keep, write

IMAGE_SIZE = [16, 24]
DCT = {}  # of decode_jpeg; the notebook gives none


def decode_image(image_data):
    image = tf.image.decode_jpeg(image_data, channels=3, **DCT)
    image = tf.cast(image, tf.float32) / 255.0
    image = tf.reshape(image, [*IMAGE_SIZE, 3])
    return image


def read_labeled_tfrecord(example):
    LABELED_TFREC_FORMAT = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "class": tf.io.FixedLenFeature([], tf.int64),
    }
    example = tf.io.parse_single_example(example, LABELED_TFREC_FORMAT)
    image = decode_image(example["image"])
    label = tf.cast(example["class"], tf.int32)
    return image, label


def read_unlabeled_tfrecord(example):
    UNLABELED_TFREC_FORMAT = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "id": tf.io.FixedLenFeature([], tf.string),
    }
    example = tf.io.parse_single_example(example, UNLABELED_TFREC_FORMAT)
    image = decode_image(example["image"])
    idnum = example["id"]
    return image, idnum


def flower(number):
    """JPEG bytes of petals around a centre, on noise."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[-1 : 1 : IMAGE_SIZE[0] * 1j, -1 : 1 : IMAGE_SIZE[1] * 1j]
    petals = np.hypot(x, y) < 0.5 + 0.4 * np.cos((3 + number) * np.arctan2(y, x))
    picture = np.where(petals[..., None], rng.integers(100, 256, 3), rng.integers(0, 120, 3))
    picture = (picture + rng.normal(0, 12, picture.shape)).clip(0, 255).astype("uint8")
    return tf.io.encode_jpeg(picture, quality=85).numpy()


def record(number, label=None):
    labels = {} if label is None else {"class": ("int64_list", [label])}
    strings = {"image": flower(number), "id": f"{number:09x}".encode()}
    return example(**{name: ("bytes_list", [value]) for name, value in strings.items()}, **labels)


def main():
    expected, files = {}, {}
    kinds = {
        "train/00-16x24-3.tfrec": [record(0, 67), record(1, 0), record(2, 103)],
        "val/00-16x24-2.tfrec": [record(3, 5), record(4, 5)],
        "test/00-16x24-2.tfrec": [record(5), record(6)],
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, records in kinds.items():
            kind = name.split("/")[0]
            file = files[name] = Path(folder, kind)
            write(file, records)
            read = read_unlabeled_tfrecord if kind == "test" else read_labeled_tfrecord
            for number, data in enumerate(tf.data.TFRecordDataset(str(file))):
                image, other = read(data)
                DCT["dct_method"] = "INTEGER_ACCURATE"
                accurate, _ = read(data)
                del DCT["dct_method"]
                found = {"image": image, "other": other, "accurate": accurate}
                expected |= {f"{kind}/{k}": v for k, v in arrays(number, found).items()}
        keep(Path(__file__).parent, files, expected)


main()
