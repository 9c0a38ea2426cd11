"""tf.data, as its performance guide says: batches, parsed by parallel maps, prefetched. It hands out TF tensors."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from side import Job, Side
from workloads import CROP, MEAN, STD, columns_of

from sides.tensorflow_doors import open_door

__all__ = ["open_side"]

_KINDS = {"float": tf.float32, "int": tf.int64, "byte": tf.string}


def open_side(job: Job) -> Side:
    """The best pipeline we know for the workload."""
    if job.workload.table == "doors":
        return open_door(job)
    if job.workload.table == "raw":
        return _raw(job)
    dataset = _images(job) if job.workload.corpus == "images" else _examples(job)
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
    first = next(iter(columns_of(job.workload.corpus)))
    return Side(
        items=lambda: dataset,
        columns=lambda batch: {name: column.numpy() for name, column in batch.items()},
        size=lambda batch: batch[first].shape[0],
    )


def _spec(job: Job) -> dict[str, Any]:
    columns = columns_of(job.workload.corpus)
    return {name: tf.io.FixedLenFeature(shape, _KINDS[kind]) for name, (kind, shape) in columns.items()}


def _raw(job: Job) -> Side:
    # Record by record its Python iterator is several times slower, and so is reduce(), which hands nothing out.
    dataset = _records(job).batch(1024).prefetch(tf.data.AUTOTUNE)
    return Side(
        items=lambda: dataset,
        columns=lambda batch: {"record": batch.numpy().tolist()},
        size=lambda batch: batch.shape[0],
    )


def _records(job: Job) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(job.path, buffer_size=1 << 20)


def _examples(job: Job) -> tf.data.Dataset:
    spec = _spec(job)
    return (
        _records(job)
        .batch(job.workload.batch_size)
        .map(lambda batch: tf.io.parse_example(batch, spec), num_parallel_calls=tf.data.AUTOTUNE)
    )


def _images(job: Job) -> tf.data.Dataset:
    spec = _spec(job)

    def sample(record: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tf.io.parse_single_example(record, spec)
        return {"image": _augment(values["image"]), "label": values["label"]}

    return _records(job).map(sample, num_parallel_calls=tf.data.AUTOTUNE).batch(job.workload.batch_size)


def _augment(data: tf.Tensor) -> tf.Tensor:
    """Decode a random region only, resize it with antialiasing as the others do, flip, normalise, channels first."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(data),
        tf.zeros((1, 0, 4)),
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.io.decode_and_crop_jpeg(data, tf.concat([begin[:2], size[:2]], 0), channels=3)
    image = tf.image.resize(image, (CROP, CROP), antialias=True)
    image = tf.image.random_flip_left_right(image)
    image = (image / 255 - tf.constant(MEAN)) / tf.constant(STD)
    return tf.transpose(image, (2, 0, 1))
