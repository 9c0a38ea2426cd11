"""torch_tfrecord, through its public names: by every way into training that people write."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow
import torch
import torchvision.transforms.v2 as v2
from side import Job, Side
from torch.utils.data import DataLoader, Dataset
from workloads import CROP, MEAN, STD, columns_of

from sides.at_random import positions_of, side_at_random
from sides.written import side_that_writes
from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    PaddedCollate,
    RandomResizedCrop,
    SequenceFeatures,
    Text,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    build_index,
    collate,
    make_dataloader,
    parse_sequence_example,
    read_records,
    tfds,
    write_arrow,
)

__all__ = ["features_of", "open_side"]

_DTYPES = {"float": torch.float32, "int": torch.int64, "byte": bytes}


def open_side(job: Job) -> Side:
    """The workload as a user of the library would write it."""
    if job.variant in ("handed_over", "by_torch"):
        return _hand_over(job)
    if job.workload.table == "writing":
        return _writing(job)
    if job.workload.table == "random":
        return _random(job)
    if job.workload.table in ("whole", "compressed"):
        return _raw(job)
    return _door(job)


def _raw(job: Job) -> Side:
    """Raw records of a file, or its index. Each epoch opens it again, with nothing that is
    decompressed.
    """
    size = job.workload.batch_size
    if job.variant == "index":
        build = partial(build_index, job.path)
        return Side(
            lambda: [build()],
            lambda index: {"offset": index.offsets, "length": index.lengths},
            drain=build,
        )
    if job.variant == "read_records":
        return Side(
            lambda: read_records(job.path),
            lambda record: {"record": [record]},
            drain=lambda: deque(read_records(job.path), maxlen=0),
            is_single=True,
        )
    if job.variant == "on_one_core":  # threads that decompress are not limited by num_threads
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    epochs: dict[str, Callable[[], Iterable[Any]]] = {
        "stream": lambda: TFRecordIterableDataset(job.path, batch_size=size),
        "in_order": lambda: make_dataloader(job.path, size, shuffle=False),
        "on_one_core": lambda: make_dataloader(job.path, size, shuffle=False),
        "in_blocks": lambda: make_dataloader(job.path, size, shuffle="blocks"),
    }
    return Side(
        epochs[job.variant],
        lambda batch: {"record": batch},
        ordered=job.variant != "in_blocks",
    )


def _writing(job: Job) -> Side:
    """Rows of Python's numbers, arrays and bytes, or a table of Arrow."""
    features = features_of(job.workload.corpus)
    dataset = TFRecordDataset(job.path, features)
    if job.variant == "write_arrow":
        columns = collate(dataset.__getitems__(range(len(dataset))))
        arrays = {name: [*column.numpy()] for name, column in columns.items()}
        table = pyarrow.table(arrays)
        return side_that_writes(job, partial(write_arrow, table), _read)
    rows = [{name: _plain(value) for name, value in sample.items()} for sample in dataset]
    checks = features if job.variant == "write_features" else None

    def write(path: str) -> None:
        with TFRecordWriter(path, features=checks) as writer:
            for row in rows:
                writer.write(row)

    return side_that_writes(job, write, _read)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy() if value.ndim else value.item()
    return value


def _read(job: Job) -> Side:
    dataset = TFRecordDataset(job.path, features_of(job.workload.corpus))
    loader = make_dataloader(dataset, job.workload.batch_size, shuffle=False)
    return Side(lambda: loader, _flat, _rows_of)


def _image_features(*, fused: bool) -> tuple[dict[str, Any], Any]:
    """The features, and the transform, if it is not fused into them."""
    label = FixedLenFeature((), torch.int64)
    if fused:
        crop = RandomResizedCrop(CROP, horizontal_flip=0.5)
        return {"image": Image(crop=crop, normalize=(MEAN, STD)), "label": label}, None
    to_float = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    steps = [v2.RandomResizedCrop(CROP), v2.RandomHorizontalFlip(), *to_float]
    return {"image": Image(), "label": label}, v2.Compose(steps)


def _random(job: Job) -> Side:
    """Raw records, or the feature "data" of parsed ones."""
    if job.variant.startswith("raw"):
        dataset = TFRecordDataset(job.path)
        return side_at_random(job, dataset.raw, dataset.__getitems__, positions_of(job))
    dataset = TFRecordDataset(job.path, {"data": FixedLenFeature((), bytes)})
    return side_at_random(
        job,
        lambda position: dataset[position]["data"],
        lambda positions: collate(dataset.__getitems__(positions))["data"],
        positions_of(job),
    )


def _door(job: Job) -> Side:
    """A way into training."""
    if job.workload.corpus == "images":
        return _image_ways(job)
    if job.workload.corpus == "tfds":
        return _ways(job, tfds.load(job.path, "train"), lambda: iter(()), _detection)
    features = features_of(job.workload.corpus)
    dataset = TFRecordDataset(job.path, features)
    if job.variant == "sequence_function":
        return _sequence_function(job, features)
    columns = (
        _sequence
        if isinstance(features, SequenceFeatures)
        else partial(_flat, padded=job.workload_name == "doors-padded")
    )
    size = job.workload.batch_size if job.variant == "with_stream" else None
    return _ways(
        job, dataset, lambda: TFRecordIterableDataset(job.path, features, batch_size=size), columns
    )


def features_of(corpus: str) -> Any:
    """All that the records of a file have."""
    ints, label = VarLenFeature(torch.int64), FixedLenFeature((), torch.int64)
    if corpus == "ragged":
        return {"ids": ints, "weights": VarLenFeature(torch.float32), "kinds": ints, "label": label}
    if corpus == "texts":
        return {"words": VarLenFeature(bytes), "ids": ints, "title": Text(), "label": label}
    if corpus == "sequences":
        state = FixedLenSequenceFeature((32,), torch.float32)
        return SequenceFeatures(
            {"id": label}, {"frame": FixedLenSequenceFeature((), bytes), "state": state}
        )
    return {
        name: FixedLenFeature(shape, _DTYPES[kind])
        for name, (kind, shape) in columns_of(corpus).items()
    }


def _ways(
    job: Job, dataset: Any, stream: Callable[[], Any], columns: Callable[[Any], Mapping[str, Any]]
) -> Side:
    size = job.workload.batch_size
    if job.variant == "ds_i":
        return Side(
            lambda: map(dataset.__getitem__, range(len(dataset))), _of_one(columns), is_single=True
        )
    plain = {"num_workers": 0, "batch_size": size}
    workers: Any = {"num_workers": 2, "persistent_workers": True}
    loaders: dict[str, Callable[[], Iterable[Any]]] = {
        "make_dataloader": lambda: make_dataloader(dataset, size, shuffle=False),
        "padded": lambda: make_dataloader(dataset, size, shuffle=False, collate_fn=PaddedCollate()),
        "collate": lambda: DataLoader(dataset, collate_fn=collate, **plain),
        "padded_plain": lambda: DataLoader(dataset, collate_fn=PaddedCollate(), **plain),
        "torch_collate": lambda: DataLoader(dataset, **plain),
        "with_collate": lambda: DataLoader(dataset, size, collate_fn=collate, **workers),
        "with_stream": lambda: DataLoader(stream(), batch_size=None, **workers),
        "with_make_dataloader": lambda: make_dataloader(dataset, size, shuffle=False, **workers),
        "stream_collate": lambda: DataLoader(stream(), collate_fn=collate, **plain),
    }
    loader = loaders[job.variant]()
    # each worker has its part
    return Side(lambda: loader, columns, _rows_of, ordered=job.variant != "with_stream")


class _Ready(Dataset[Any]):
    """A batch of a tensor of 1 MB, and a number; the same memory each time."""

    def __init__(self) -> None:
        self._values = torch.arange(125_000)

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        return {"x": self._values, "position": torch.tensor([position])}


def _hand_over(job: Job) -> Side:
    hand = collate if job.variant == "handed_over" else _copied
    loader = DataLoader(_Ready(), 1, num_workers=2, persistent_workers=True, collate_fn=hand)
    return Side(lambda: loader, lambda batch: {"position": batch["position"].numpy()}, _one)


def _copied(samples: list[Any]) -> Any:
    """The same as a plain dict of copies: torch would send the dataset's own memory again."""
    return {name: value.clone()[None] for name, value in samples[0].items()}


def _one(batch: Any) -> int:
    return 1


def _rows_of(batch: Any) -> int:
    """Rows of a batch, whatever it is made of."""
    while isinstance(batch, (tuple, Mapping)):
        batch = batch[0] if isinstance(batch, tuple) else next(iter(batch.values()))
    return len(batch)


def _of_one(columns: Callable[[Any], Mapping[str, Any]]) -> Callable[[Any], Mapping[str, Any]]:
    """The columns of a sample: of a batch of one."""
    return lambda sample: columns(collate([sample]))


def _flat(batch: Mapping[str, Any], *, padded: bool = False) -> dict[str, Any]:
    return {name: _column(column, padded) for name, column in batch.items()}


def _column(column: Any, padded: bool = False) -> Any:
    """Rows of several sizes as bytes, or padded."""
    if isinstance(column, torch.Tensor):
        if column.is_nested:
            return [row.numpy().tobytes() for row in column.unbind()]
        return (
            [row.tobytes() for row in column.numpy()]
            if padded and column.ndim > 1
            else column.numpy()
        )
    if column and isinstance(column[0], list):
        return [b"\n".join(row) for row in column]
    return [text.encode() if isinstance(text, str) else text for text in column]


def _sequence(batch: Any) -> dict[str, Any]:
    context, sequences = batch[:2]
    columns = _flat({**context, **sequences})
    if isinstance(columns["state"], np.ndarray):  # padded, by parse_sequence_example
        lengths = batch[2]["state"].tolist()
        columns["state"] = [
            row[:length].tobytes() for row, length in zip(columns["state"], lengths, strict=True)
        ]
        frames = zip(sequences["frame"], lengths, strict=True)
        columns["frame"] = [b"\n".join(row[:length]) for row, length in frames]
    return columns


def _detection(batch: Mapping[str, Any]) -> dict[str, Any]:
    objects, author = batch["objects"], batch["meta"]["author"]
    return {
        "image": np.moveaxis(batch["image"].numpy(), 1, -1),
        "bbox": np.concatenate(
            [np.asarray(boxes)[:, [1, 0, 3, 2]] / 64 for boxes in objects["bbox"]]
        ),
        "label": _column(objects["label"]),
        "area": _column(objects["area"]),
        "caption": _column(batch["caption"]),
        "id": _column(batch["meta"]["id"]),
        "author": _column(author["name"]),
        "score": _column(author["score"]),
    }


def _sequence_function(job: Job, features: SequenceFeatures) -> Side:
    def items() -> Iterable[Any]:
        records = read_records(job.path)
        while block := [*itertools.islice(records, job.workload.batch_size)]:
            yield parse_sequence_example(
                block, features.context_features, features.sequence_features
            )

    return Side(items, _sequence, _rows_of)


def _image_ways(job: Job) -> Side:
    features, transform = _image_features(fused=job.variant.startswith("crop"))
    dataset, size = (
        TFRecordDataset(job.path, features, transform=transform),
        job.workload.batch_size,
    )
    way = job.variant.partition("_")[2]
    if way == "process":
        loader: Any = DataLoader(dataset, size, num_workers=0, collate_fn=collate)
    elif way == "threads":
        loader = make_dataloader(dataset, size, shuffle=False, num_threads=2)
    else:
        loader = make_dataloader(
            dataset, size, shuffle=False, num_workers=2, persistent_workers=True
        )
    return Side(lambda: loader, _flat, _rows_of)
