"""The package `tfrecord` (vahidk), as its README says: TFRecordDataset in a DataLoader."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from side import Job, Side
from workloads import CROP, MEAN, STD, columns_of

from sides.written import side_that_writes

__all__ = ["open_side"]


def open_side(job: Job) -> Side:
    """The workload with what the package offers."""
    if job.variant == "create_index":
        return _index(job)
    if job.workload.table == "writing":
        return _writing(job)
    return _raw(job) if job.workload.table == "whole" else _loader(job)


def _writing(job: Job) -> Side:
    from tfrecord.torch.dataset import TFRecordDataset
    from tfrecord.writer import TFRecordWriter

    columns = columns_of(job.workload.corpus)
    kinds = {name: kind for name, (kind, _) in columns.items()}
    rows = [
        {name: value if columns[name][1] else value.item() for name, value in row.items()}
        for row in TFRecordDataset(job.path, None, kinds)
    ]

    def write(path: str) -> None:
        writer = TFRecordWriter(path)
        for row in rows:
            writer.write({name: (value, kinds[name]) for name, value in row.items()})
        writer.close()

    return side_that_writes(job, write, _loader)


def _index(job: Job) -> Side:
    from tfrecord.tools.tfrecord2idx import create_index

    path = Path(f"{job.index_path}.tmp")

    def columns(pairs: np.ndarray) -> dict[str, np.ndarray]:
        path.unlink()
        return {"offset": pairs[:, 0], "length": pairs[:, 1] - 16}

    def items() -> list[np.ndarray]:
        create_index(job.path, str(path))
        return [np.loadtxt(path, dtype=np.int64)]

    return Side(items=items, columns=columns, drain=lambda: create_index(job.path, str(path)))


def _raw(job: Job) -> Side:
    from tfrecord.reader import tfrecord_iterator

    return Side(
        items=lambda: tfrecord_iterator(job.path),
        columns=lambda record: {"record": [record]},
        drain=lambda: deque(tfrecord_iterator(job.path), maxlen=0),
    )


def _loader(job: Job) -> Side:
    from tfrecord.torch.dataset import TFRecordDataset
    from torch.utils.data import DataLoader

    columns = columns_of(job.workload.corpus)
    dataset = TFRecordDataset(
        job.path,
        None,  # with an index it begins at a random record
        {name: kind for name, (kind, _) in columns.items()},
        transform=_augment() if job.workload.corpus == "images" else None,
    )
    loader = DataLoader(dataset, batch_size=job.workload.batch_size)
    first = next(iter(columns))
    shapes = {
        name: shape if kind != "byte" else (3, CROP, CROP)
        for name, (kind, shape) in columns.items()
    }
    return Side(
        items=lambda: loader,
        # A scalar comes as an array of one.
        columns=lambda batch: {
            name: batch[name].numpy().reshape(-1, *shape) for name, shape in shapes.items()
        },
        size=lambda batch: len(batch[first]),
    )


def _augment() -> Any:
    """Pillow and torchvision, which decode and crop as everybody's training script does."""
    import io

    import torch
    from PIL import Image
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(CROP),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )

    def apply(sample: dict[str, Any]) -> dict[str, Any]:
        with Image.open(io.BytesIO(sample["image"])) as image:
            return {"image": transform(image.convert("RGB")), "label": sample["label"]}

    return apply
