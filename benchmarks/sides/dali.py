"""DALI's CPU pipeline: its TFRecord reader, decoding of the crop's region, fused flip and
normalisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali import tfrecord as tfrec
from side import Job, Side
from workloads import CROP, MEAN, STD

__all__ = ["open_side"]

# Batches taken before the clock starts, so that those which it made while it was waiting do not
# count.
_LEAD_IN = 4


def open_side(job: Job) -> Side:
    """The pipeline of DALI's ImageNet example."""
    pipeline = _pipeline(
        job, batch_size=job.workload.batch_size, num_threads=job.threads, device_id=None, seed=0
    )
    pipeline.build()

    def prepare() -> None:
        for _ in range(_LEAD_IN):
            pipeline.run()

    def items() -> Iterator[Any]:
        # The reader goes round and round; the last batch of an epoch is filled up.
        for _ in range(-(-job.count // job.workload.batch_size)):
            yield pipeline.run()

    return Side(
        items=items,
        columns=lambda batch: {
            "image": np.asarray(batch[0].as_tensor()),
            "label": np.asarray(batch[1].as_tensor()),
        },
        size=lambda batch: len(batch[0]),
        prepare=prepare,
    )


@pipeline_def
def _pipeline(job: Job) -> Any:
    values = fn.readers.tfrecord(
        path=job.path,
        index_path=job.index_path,
        features={
            "image": tfrec.FixedLenFeature((), tfrec.string, ""),
            "label": tfrec.FixedLenFeature((), tfrec.int64, -1),
        },
    )
    image = fn.decoders.image_random_crop(
        values["image"],
        output_type=types.RGB,
        random_area=(0.08, 1.0),
        random_aspect_ratio=(3 / 4, 4 / 3),
    )
    image = fn.resize(image, resize_x=CROP, resize_y=CROP)
    image = fn.crop_mirror_normalize(
        image,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
        mirror=fn.random.coin_flip(),
    )
    return image, values["label"]
