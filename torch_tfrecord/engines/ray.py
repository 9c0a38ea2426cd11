"""TFRecord files as a Ray dataset, and back (extra ``ray``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from torch_tfrecord.arguments import PathLike, Paths
from torch_tfrecord.columns import Feature, RecordFeatures
from torch_tfrecord.engines.parts import PartFolder, open_dataset, schema_of
from torch_tfrecord.errors import needs_extra
from torch_tfrecord.files import local_path
from torch_tfrecord.tables import ScanTask, TFRecordDataset

with needs_extra("Ray", "ray"):
    import pyarrow
    import ray.data
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.datasource import Datasink, Datasource, ReadTask

__all__ = ["TFRecordDatasource", "read_tfrecords", "write_tfrecords"]


def read_tfrecords(
    paths: Paths,
    features: RecordFeatures | None = None,
    *,
    columns: Sequence[str] | None = None,
    override_num_blocks: int | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """Return a Ray dataset of TFRecord files, which every node sees under the same paths.

    Checks every checksum. The files are indexed here, so that ``count()`` reads nothing.

    Args:
        paths, features, options: As for `TFRecordDataset`; without features they are inferred from
            some records.
        columns: Names of the features to read; None for all. Ray asks for fewer where
            ``select_columns`` follows.
        override_num_blocks: Number of tasks; None leaves it to Ray.

    Example:
        >>> read_tfrecords("s3://bucket/train-*").groupby("label").count().show()  # doctest: +SKIP
    """
    source = TFRecordDatasource(open_dataset(paths, features, columns, options))
    return ray.data.read_datasource(source, override_num_blocks=override_num_blocks)


class TFRecordDatasource(Datasource):
    """A source with which Ray reads a `TFRecordDataset`, also a slice or a ``where`` of one.

    Args:
        dataset: The dataset; its transform is not applied.
    """

    def __init__(self, dataset: TFRecordDataset) -> None:
        super().__init__()
        self._dataset = dataset
        self._columns: list[str] | None = None
        self._num_bytes = sum(task.num_bytes for task in dataset.scan_tasks())

    def get_name(self) -> str:
        """Return the name that Ray shows."""
        return "TFRecord"

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of the records."""
        return self._num_bytes

    def supports_projection_pushdown(self) -> bool:
        """Return True: columns that a query drops are not parsed."""
        return True

    def get_projection_map(self) -> dict[str, str] | None:
        """Return the columns that are asked for; None for all."""
        return None if self._columns is None else {name: name for name in self._columns}

    def apply_projection(self, projection_map: Mapping[str, str] | None) -> TFRecordDatasource:
        """Return a datasource of some of the columns."""
        other = copy(self)
        if projection_map is not None:
            names = [*schema_of(self._dataset).names] if self._columns is None else self._columns
            other._columns = [name for name in names if name in projection_map]
        return other

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return about so many tasks, with exact numbers of rows."""
        columns = self._columns
        # Where none is asked for, there are still rows to count.
        dataset = self._dataset if not columns else self._dataset.select_columns(columns)
        target_bytes = max(self._num_bytes // max(parallelism, 1), 1)
        schema = schema_of(dataset)
        return [
            ReadTask(
                partial(_read, task, columns == []),
                BlockMetadata(task.num_rows, task.num_bytes, None, None, input_files=task.files),
                schema=schema,
                per_task_row_limit=per_task_row_limit,
            )
            for task in dataset.scan_tasks(target_bytes)
        ]


def _read(task: ScanTask, drops_all: bool) -> Iterator[pyarrow.Table]:
    # Ray keeps and sends each block by itself: few megabytes are too few.
    batches: list[pyarrow.RecordBatch] = []
    for batch in task.read():
        batches.append(batch)
        if sum(one.nbytes for one in batches) >= _BLOCK_BYTES:
            yield _block(batches, drops_all)
            batches = []
    if batches:
        yield _block(batches, drops_all)


def _block(batches: Sequence[pyarrow.RecordBatch], drops_all: bool) -> pyarrow.Table:
    table = pyarrow.Table.from_batches(batches)
    return table.select([]) if drops_all else table


_BLOCK_BYTES = 64 << 20


def write_tfrecords(
    dataset: ray.data.Dataset,
    path: PathLike,
    *,
    features: Mapping[str, Feature] | None = None,
    compression_type: str = "",
    **write_options: Any,
) -> None:
    """Write a Ray dataset as TFRecord files in a folder that every node sees.

    The files get their names when all are written: a task that fails or is retried leaves nothing.

    Args:
        dataset: The dataset.
        path: The folder; files that are there stay.
        features: See `write_arrow`.
        compression_type: "", "GZIP" or "ZLIB".
        write_options: Options of ``ray.data.Dataset.write_datasink``.

    Raises:
        ValueError: The folder is on a storage.
    """
    folder = PartFolder(local_path(path), features, compression_type)
    dataset.write_datasink(_TFRecordDatasink(folder), **write_options)


class _TFRecordDatasink(Datasink[str]):
    def __init__(self, folder: PartFolder) -> None:
        self._folder = folder

    def write(self, blocks: Iterable[Any], ctx: Any) -> str:
        tables = (BlockAccessor.for_block(block).to_arrow() for block in blocks)
        return self._folder.write(tables)

    def on_write_complete(self, write_result: Any) -> None:
        self._folder.commit(write_result.write_returns)

    def on_write_failed(self, error: Exception) -> None:
        self._folder.abort()
