"""TFRecord files as a Dask DataFrame (extra ``dask``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_tfrecord.arguments import Paths
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.engines.parts import open_dataset, schema_of
from torch_tfrecord.errors import needs_extra
from torch_tfrecord.tables import ScanTask

with needs_extra("Dask", "dask"):
    import dask.dataframe
    import pandas
    import pyarrow

__all__ = ["to_dataframe"]


def to_dataframe(
    paths: Paths,
    features: RecordFeatures | None = None,
    *,
    columns: Sequence[str] | None = None,
    target_bytes: int = 128 << 20,
    **options: Any,
) -> dask.dataframe.DataFrame:
    """Return a Dask DataFrame of TFRecord files, in the order of the records.

    The files are indexed here, not by the workers, which see the same paths and read what their
    partition needs. A partition that is lost with its worker is read again. Lists and binary are
    pandas' Arrow dtypes.

    Args:
        paths, features, options: As for `TFRecordDataset`; without features they are inferred from
            some records.
        columns: Names of the features to read; None for all. Dask asks for fewer where a query
            needs fewer.
        target_bytes: About how many bytes of records a partition has.

    Example:
        >>> to_dataframe("train-*").groupby("label").size().compute()  # doctest: +SKIP
    """
    dataset = open_dataset(paths, features, columns, options)
    tasks = dataset.scan_tasks(target_bytes)
    meta = _frame(schema_of(dataset).empty_table())
    if not tasks:
        return dask.dataframe.from_pandas(meta, npartitions=1)
    return dask.dataframe.from_map(_read, tasks, meta=meta, label="tfrecord", enforce_metadata=True)


def _read(task: ScanTask, columns: Sequence[str] | None = None) -> pandas.DataFrame:
    # A query that only counts asks for no column, yet there are rows.
    batches = task.read(columns or None)
    frame = _frame(pyarrow.Table.from_batches(batches, task.schema(columns or None)))
    return frame if columns is None else frame[[*columns]]


def _frame(table: pyarrow.Table) -> pandas.DataFrame:
    return table.to_pandas(types_mapper=_pandas_type)


def _pandas_type(kind: pyarrow.DataType) -> pandas.ArrowDtype | None:
    # As Python objects, Dask would turn lists and bytes into text.
    is_object = pyarrow.types.is_nested(kind) or pyarrow.types.is_binary(kind)
    return pandas.ArrowDtype(kind) if is_object else None
