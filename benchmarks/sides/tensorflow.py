"""tf.data, as its performance guide says: batches, parsed by parallel maps, prefetched. It hands
out TF tensors.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from side import Job, Side
from workloads import COMPRESSED, CROP, MEAN, STD, columns_of

from sides.written import side_that_writes

__all__ = ["open_side"]

_AUTO = tf.data.AUTOTUNE
_KINDS = {"float": tf.float32, "int": tf.int64, "byte": tf.string}


def open_side(job: Job) -> Side:
    """The best pipeline we know for the workload."""
    if job.workload.table in ("whole", "compressed"):
        return _raw(job)
    if job.workload.table == "writing":
        return _writing(job)
    if job.workload.corpus == "tfds":
        return _tfds(job)
    if job.workload.corpus == "sequences":
        return _sequences(job)
    return _examples(job)


def _writing(job: Job) -> Side:
    """As its tutorial says: an Example of each row."""
    columns, spec = columns_of(job.workload.corpus), _spec(job)
    singles = _records(job).map(lambda record: tf.io.parse_single_example(record, spec))
    rows = [
        {
            name: value.item() if np.shape(value) == () and not isinstance(value, bytes) else value
            for name, value in row.items()
        }
        for row in singles.as_numpy_iterator()
    ]
    lists = {
        "float": lambda value: tf.train.Feature(float_list=tf.train.FloatList(value=value)),
        "int": lambda value: tf.train.Feature(int64_list=tf.train.Int64List(value=value)),
        "byte": lambda value: tf.train.Feature(bytes_list=tf.train.BytesList(value=value)),
    }

    def write(path: str) -> None:
        with tf.io.TFRecordWriter(path) as writer:
            for row in rows:
                feature = {
                    name: lists[kind](row[name] if shape else [row[name]])
                    for name, (kind, shape) in columns.items()
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())

    return side_that_writes(job, write, _examples)


def _batches(records: tf.data.Dataset, *, ordered: bool = True) -> Side:
    # Record by record its Python iterator is several times slower, and so is reduce(), which hands
    # nothing out.
    dataset = records.batch(1024).prefetch(_AUTO)
    return Side(
        items=lambda: dataset,
        columns=lambda batch: {"record": batch.numpy().tolist()},
        size=lambda batch: batch.shape[0],
        ordered=ordered,
    )


def _raw(job: Job) -> Side:
    if job.variant.startswith("batches"):
        return _batches(_records(job))
    return _batches(_records(job).shuffle(10_000), ordered=False)


def _records(job: Job) -> tf.data.Dataset:
    kind = "GZIP" if job.workload.corpus in COMPRESSED else ""
    return tf.data.TFRecordDataset(job.path, compression_type=kind, buffer_size=1 << 20)


def _examples(job: Job) -> Side:
    spec = _spec(job)

    def single(record: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tf.io.parse_single_example(record, spec)
        return (
            {**values, "image": _augment(values["image"])}
            if job.variant == "decode_and_crop"
            else values
        )

    singles, size = _records(job).map(single, _AUTO), job.workload.batch_size
    if job.variant in ("parse_single_example, batched", "decode_and_crop"):
        dataset = singles.batch(size)
    elif job.variant == "padded_batch":
        dataset = singles.padded_batch(size)
    else:
        batches = _records(job).batch(size)
        dataset = batches.map(lambda batch: tf.io.parse_example(batch, spec), _AUTO)
    dataset = dataset.prefetch(_AUTO)
    columns = _padded if job.workload_name == "doors-padded" else _flat
    return Side(lambda: dataset, columns, lambda batch: next(reversed(batch.values())).shape[0])


def _augment(data: tf.Tensor) -> tf.Tensor:
    """Decode a random region only, resize it with antialiasing as the others do, flip, normalise,
    channels first.
    """
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


def _spec(job: Job) -> dict[str, Any]:
    label = tf.io.FixedLenFeature([], tf.int64)
    if job.workload.corpus == "ragged":
        padded = partial(tf.io.FixedLenSequenceFeature, [], allow_missing=True)
        ints, floats = map(
            tf.io.RaggedFeature if job.variant == "ragged" else padded, (tf.int64, tf.float32)
        )
        return {"ids": ints, "weights": floats, "kinds": ints, "label": label}
    if job.workload.corpus == "texts":
        several = tf.io.VarLenFeature if job.variant == "sparse" else tf.io.RaggedFeature
        title = tf.io.FixedLenFeature([], tf.string)
        return {
            "words": several(tf.string),
            "ids": several(tf.int64),
            "title": title,
            "label": label,
        }
    columns = columns_of(job.workload.corpus)
    return {
        name: tf.io.FixedLenFeature(shape, _KINDS[kind]) for name, (kind, shape) in columns.items()
    }


def _flat(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _column(column) for name, column in batch.items()}


def _padded(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A padded row as bytes: the batches are of several widths."""
    columns = {name: column.numpy() for name, column in batch.items()}
    return {
        name: one if one.ndim == 1 else [row.tobytes() for row in one]
        for name, one in columns.items()
    }


def _column(column: Any) -> Any:
    """As `ours` shows it: rows of several sizes as bytes."""
    if isinstance(column, tf.SparseTensor):
        column = tf.RaggedTensor.from_sparse(column)
    if isinstance(column, tf.RaggedTensor):
        if column.dtype == tf.string:
            return [b"\n".join(row) for row in column.to_list()]
        return _rows(column)
    return column.numpy().tolist() if column.dtype == tf.string else column.numpy()


def _sequences(job: Job) -> Side:
    context = {"id": tf.io.FixedLenFeature([], tf.int64)}
    frames = {
        "frame": tf.io.FixedLenSequenceFeature([], tf.string),
        "state": tf.io.FixedLenSequenceFeature([32], tf.float32),
    }

    def columns(batch: Any) -> dict[str, Any]:
        ids, values, lengths = batch[0]["id"].numpy(), batch[1], batch[2]["state"].numpy().tolist()
        pairs = zip(values["frame"].numpy().tolist(), values["state"].numpy(), lengths, strict=True)
        rows = [
            (b"\n".join(frame[:length]), state[:length].tobytes()) for frame, state, length in pairs
        ]
        return {"id": ids, "frame": [row[0] for row in rows], "state": [row[1] for row in rows]}

    def column_of_one(sample: Any) -> dict[str, Any]:
        frame, state = sample[1]["frame"].numpy().tolist(), sample[1]["state"].numpy()
        return {
            "id": sample[0]["id"].numpy()[None],
            "frame": [b"\n".join(frame)],
            "state": [state.tobytes()],
        }

    if job.variant == "parse_sequence_example":
        dataset = _records(job).batch(job.workload.batch_size)
        dataset = dataset.map(
            lambda batch: tf.io.parse_sequence_example(batch, context, frames), _AUTO
        )
        dataset = dataset.prefetch(_AUTO)
        return Side(lambda: dataset, columns, lambda batch: batch[0]["id"].shape[0])
    singles = _records(job).map(
        lambda one: tf.io.parse_single_sequence_example(one, context, frames), _AUTO
    )
    singles = singles.prefetch(_AUTO)
    return Side(lambda: singles, column_of_one, is_single=True)


def _tfds(job: Job) -> Side:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(Path(job.path)))
    dataset = builder.as_dataset(split="train", shuffle_files=False)
    if job.variant == "as_numpy":
        return Side(lambda: tfds.as_numpy(dataset.prefetch(_AUTO)), _detection, is_single=True)
    batches = dataset.ragged_batch(job.workload.batch_size).prefetch(_AUTO)
    return Side(lambda: tfds.as_numpy(batches), _detections, lambda batch: len(batch["caption"]))


def _detection(sample: Mapping[str, Any]) -> dict[str, Any]:
    objects, author = sample["objects"], sample["meta"]["author"]
    return {
        "image": sample["image"][None],
        "bbox": objects["bbox"],
        "label": [objects["label"].tobytes()],
        "area": [objects["area"].tobytes()],
        "caption": [sample["caption"]],
        "id": sample["meta"]["id"][None],
        "author": [author["name"]],
        "score": author["score"][None],
    }


def _detections(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch, whose ragged values are TensorFlow's."""
    objects, author = batch["objects"], batch["meta"]["author"]
    return {
        "image": np.asarray(batch["image"]),
        "bbox": np.asarray(objects["bbox"].flat_values),
        "label": _rows(objects["label"]),
        "area": _rows(objects["area"]),
        "caption": batch["caption"].tolist(),
        "id": batch["meta"]["id"],
        "author": author["name"].tolist(),
        "score": np.asarray(author["score"]),
    }


def _rows(ragged: Any) -> list[bytes]:
    values, splits = np.asarray(ragged.flat_values), np.asarray(ragged.row_splits).tolist()
    return [values[begin:end].tobytes() for begin, end in itertools.pairwise(splits)]
