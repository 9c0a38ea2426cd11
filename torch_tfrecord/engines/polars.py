"""TFRecord files as a polars LazyFrame (extra ``polars``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_tfrecord.arguments import Paths
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.engines.parts import open_dataset, schema_of
from torch_tfrecord.errors import needs_extra

with needs_extra("polars", "polars"):
    import polars as pl
    from polars.io.plugins import register_io_source

__all__ = ["scan_tfrecord"]


def scan_tfrecord(
    paths: Paths, features: RecordFeatures | None = None, **options: Any
) -> pl.LazyFrame:
    """Return a LazyFrame of TFRecord files: only the columns and rows that a query needs are parsed.

    Files are indexed as by `TFRecordDataset`. ``collect(engine="streaming")`` keeps memory small.

    Args:
        paths, features, options: As for `TFRecordDataset`; without features they are inferred from
            some records.

    Raises:
        TFRecordError: As for `TFRecordDataset`; of a record when the query runs.

    Example:
        >>> scan_tfrecord("train-*").group_by("label").len().collect()  # doctest: +SKIP
    """
    dataset = open_dataset(paths, features, None, options)
    schema = pl.from_arrow(schema_of(dataset).empty_table()).schema

    def read(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        part = dataset if n_rows is None else dataset[:n_rows]
        # A query that only counts asks for no column, and a frame without any has no rows.
        for batch in (part.select_columns(with_columns) if with_columns else part).iter_arrow(
            batch_size
        ):
            frame = pl.DataFrame(batch)
            yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(read, schema=schema, is_pure=True)
