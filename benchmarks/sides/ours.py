"""torch_tfrecord, through its public names."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
import torchvision.transforms.v2 as v2
from side import Job, Side
from workloads import CROP, MEAN, STD, columns_of

from sides.ours_doors import open_door
from sides.ours_random import open_random
from torch_tfrecord import FixedLenFeature, Image, RandomResizedCrop, build_index, make_dataloader, read_records

__all__ = ["open_side"]

_DTYPES = {"float": torch.float32, "int": torch.int64}


def open_side(job: Job) -> Side:
    """The workload as a user of the library would write it."""
    if job.workload.table == "doors":
        return open_door(job)
    if job.workload.table == "random":
        return open_random(job)
    if job.workload.table == "index":
        return _index(job)
    if job.workload.table == "raw":
        return _raw(job)
    return _loader(job)


def _index(job: Job) -> Side:
    return Side(
        items=lambda: [build_index(job.path)],
        columns=lambda index: {"offset": index.offsets, "length": index.lengths},
        drain=lambda: build_index(job.path),
    )


def _raw(job: Job) -> Side:
    return Side(
        items=lambda: read_records(job.path),
        columns=lambda record: {"record": [record]},
        drain=lambda: deque(read_records(job.path), maxlen=0),
    )


def _loader(job: Job) -> Side:
    shuffle = job.variant.startswith("shuffled")
    workers = 2 if job.variant.endswith("2 workers") else 0
    features, transform = _features(job)
    loader = make_dataloader(
        job.path,
        job.workload.batch_size,
        features,
        transform=transform,
        shuffle=shuffle,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    first = next(iter(features))
    return Side(
        items=lambda: loader,
        columns=lambda batch: {name: column.numpy() for name, column in batch.items()},
        size=lambda batch: len(batch[first]),
        ordered=not shuffle,
    )


def _features(job: Job) -> tuple[Mapping[str, Any], Any]:
    if job.workload.corpus != "images":
        columns = columns_of(job.workload.corpus)
        return {name: FixedLenFeature(shape, _DTYPES[kind]) for name, (kind, shape) in columns.items()}, None
    label = FixedLenFeature((), torch.int64)
    in_float = job.workload.name == "images"
    if job.variant.startswith("fused"):
        crop = RandomResizedCrop(CROP, horizontal_flip=0.5)
        return {"image": Image(crop=crop, normalize=(MEAN, STD) if in_float else None), "label": label}, None
    to_float = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)] if in_float else []
    steps = [v2.RandomResizedCrop(CROP), v2.RandomHorizontalFlip(), *to_float]
    return {"image": Image(), "label": label}, v2.Compose(steps)
