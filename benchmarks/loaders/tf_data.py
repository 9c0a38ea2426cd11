"""tf.data in a DataLoader: an IterableDataset around the pipeline, each worker of each rank with
its own shard, as `Dataset.shard` is documented ("Be sure to shard before you use any randomizing
operator"), the files interleaved: https://www.tensorflow.org/api_docs/python/tf/data/Dataset#shard.
TensorFlow must not be used before the workers are forked, so the pipeline is built in `__iter__`,
as timm's reader_tfds.py does ("lazily initialize the dataset"). Checkpoints:
https://www.tensorflow.org/guide/data#iterator_checkpointing, which a DataLoader with workers does
not reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from loaders import Loader, Setting, files_in

__all__ = ["READS_TFRECORD", "open_loader", "write"]

READS_TFRECORD = True


def write(folder: str, shards: list[list[int]]) -> None:
    """Nothing: it reads the files as they are."""


class _Records(IterableDataset[dict[str, Any]]):
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._pipeline: Any = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._pipeline is None:
            self._pipeline = _pipeline(self._setting)
        return self._pipeline.as_numpy_iterator()


def _pipeline(setting: Setting) -> Any:
    import tensorflow as tf

    worker = get_worker_info()
    workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
    # Each worker another one, as https://docs.pytorch.org/docs/stable/notes/randomness.html#dataloader says.
    tf.random.set_seed(torch.initial_seed() % 2**31)
    spec = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "value": tf.io.FixedLenFeature([], tf.string),
    }
    if setting.draw:
        spec["image"] = tf.io.FixedLenFeature([], tf.string)
    # The second option of https://www.tensorflow.org/tutorials/images/data_augmentation.
    generator = tf.random.Generator.from_seed(torch.initial_seed() % 2**31, alg="philox")

    def parse(record: Any) -> dict[str, Any]:
        sample = tf.io.parse_single_example(record, spec)
        if setting.draw:
            image = tf.io.decode_png(sample.pop("image"), channels=3)
            seed = generator.make_seeds(2)[0]
            crop = tf.image.stateless_random_crop(image, (8, 8, 3), seed)
            sample["draw"] = tf.cast(crop[0, 0, 0], tf.int64) * 256 + tf.cast(
                crop[0, 0, 1], tf.int64
            )
        return sample

    files = tf.data.Dataset.from_tensor_slices(files_in(setting.folder, ".tfrecord"))
    files = files.shard(setting.world_size * workers, setting.rank * workers + number)
    if setting.shuffle:
        files = files.shuffle(16, seed=setting.seed)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=4)
    if setting.shuffle:
        records = records.shuffle(1000, seed=setting.seed)
    return records.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def open_loader(setting: Setting) -> Loader:
    return Loader(
        DataLoader(
            _Records(setting),
            setting.batch_size,
            num_workers=setting.workers,
            persistent_workers=setting.workers > 0,  # else each epoch would begin a new pipeline
            collate_fn=_columns,
        )
    )


def _columns(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [sample[name] for sample in samples] for name in samples[0]}
