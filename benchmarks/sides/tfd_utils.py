"""The package `tfd-utils`: records by key, its fastest way (`use_pread`); no checksums, no
batches.
"""

from __future__ import annotations

from side import Job, Side
from tfd_utils import TFRecordRandomAccess

from sides.at_random import positions_of, side_at_random

__all__ = ["open_side"]


def open_side(job: Job) -> Side:
    """The feature "data" of the records with these keys."""
    reader = TFRecordRandomAccess(job.path, use_pread=True)
    get = reader.get_feature
    return side_at_random(
        job,
        lambda key: get(key, "data"),
        lambda keys: [get(key, "data") for key in keys],
        [f"{position:08}" for position in positions_of(job)],
    )
