"""torch_tfrecord's random access, with checksums."""

from __future__ import annotations

from side import Job, Side

from sides.at_random import positions_of, side_at_random
from torch_tfrecord import FixedLenFeature, TFRecordDataset, collate

__all__ = ["open_random"]


def open_random(job: Job) -> Side:
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
