"""The package `tfr-reader`: its dataset by position, and its compiled reader of raw records; no
checksums.
"""

from __future__ import annotations

from pathlib import Path

import polars
from side import Job, Side
from tfr_reader import TFRecordDatasetReader, indexer
from tfr_reader.cython.indexer import TFRecordFileReader

from sides.at_random import positions_of, side_at_random

__all__ = ["open_side"]


def open_side(job: Job) -> Side:
    """Raw records, or the feature "data" of parsed ones."""
    if job.variant.startswith("raw"):
        get = TFRecordFileReader(job.path).get_example
        return side_at_random(job, get, lambda positions: [*map(get, positions)], positions_of(job))
    index = polars.DataFrame(indexer.create_index_for_tfrecord(job.path))
    reader = TFRecordDatasetReader(Path(job.path).parent, index_df=index, verbose=False)
    return side_at_random(
        job,
        lambda position: reader[position]["data"].value[0],
        lambda positions: [example["data"].value[0] for example in reader[positions]],
        positions_of(job),
    )
