"""TFRecord files in Spark 4, by its Python data source (extra ``spark``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from torch_tfrecord.columns import Text
from torch_tfrecord.engines.parts import PartFolder, open_dataset, schema_of
from torch_tfrecord.errors import IndexMismatchError, needs_extra
from torch_tfrecord.files import local_path
from torch_tfrecord.tables import ScanTask, TFRecordDataset

with needs_extra("Spark", "spark"):
    import pyarrow
    from pyspark.sql import datasource
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType

__all__ = ["TFRecordDataSource"]


class TFRecordDataSource(datasource.DataSource):
    """``spark.read.format("tfrecord")``, and ``df.write.format("tfrecord")``.

    Register it once: ``spark.dataSource.register(TFRecordDataSource)``. Workers see the same paths.
    The driver indexes the files; a partition reads only its bytes, with every checksum.

    Options:
        path: As for `TFRecordDataset`: a file, a pattern, a folder.
        features: Where the features are: ``"module:NAME"``; without it they are inferred.
        target_bytes: About how many bytes of records a partition has; 128 MiB.
        push_filters: "true" leaves out records by ``=`` and ``IN`` on columns that the index keeps,
            before they are read; with the setting ``spark.sql.python.filterPushdown.enabled``.
        compression_type: How files are compressed: "", "GZIP" or "ZLIB".

    Example:
        >>> spark.read.format("tfrecord").load("train-*").groupBy("label").count()  # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tfrecord"

    def schema(self) -> StructType:
        """Return the columns of the features."""
        return from_arrow_schema(_for_spark(schema_of(self._dataset())))

    def reader(self, schema: StructType) -> _Reader:
        """Return what reads these columns."""
        target_bytes = int(self.options.get("target_bytes", 128 << 20))
        pushes = self.options.get("push_filters", "false").lower() == "true"
        kind = _FilteringReader if pushes else _Reader
        return kind(
            self._dataset().select_columns(schema.names), to_arrow_schema(schema), target_bytes
        )

    def writer(self, schema: StructType, overwrite: bool) -> _Writer:
        """Return what writes a folder."""
        kind = self.options.get("compression_type", "")
        return _Writer(
            PartFolder(local_path(self.options["path"]), self._features(), kind), overwrite
        )

    def _features(self) -> Any:
        name = self.options.get("features")
        return None if name is None else resolve_name(name)

    def _dataset(self) -> TFRecordDataset:
        return open_dataset(self.options["path"], self._features(), None, {})


def _for_spark(schema: pyarrow.Schema) -> pyarrow.Schema:
    """The types that Spark has: lists of any size, signed integers."""
    return pyarrow.schema([field.with_type(_spark_type(field.type)) for field in schema])


def _spark_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    types = pyarrow.types
    if types.is_list(kind) or types.is_fixed_size_list(kind):
        return pyarrow.list_(_spark_type(kind.value_type))
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_spark_type(field.type)) for field in kind])
    wider = {
        pyarrow.uint8(): pyarrow.int16(),
        pyarrow.uint16(): pyarrow.int32(),
        pyarrow.uint32(): pyarrow.int64(),
        pyarrow.uint64(): pyarrow.int64(),
        pyarrow.float16(): pyarrow.float32(),
    }
    return wider.get(kind, kind)


class _Reader(datasource.DataSourceReader):
    def __init__(self, dataset: TFRecordDataset, schema: pyarrow.Schema, target_bytes: int) -> None:
        self._dataset, self._schema, self._target_bytes = dataset, schema, target_bytes

    def partitions(self) -> Sequence[datasource.InputPartition]:
        return [*map(datasource.InputPartition, self._dataset.scan_tasks(self._target_bytes))]

    def read(self, partition: datasource.InputPartition) -> Iterator[pyarrow.RecordBatch]:
        task: ScanTask = partition.value
        for batch in task.read(self._schema.names):
            yield batch.cast(self._schema)


class _FilteringReader(_Reader):
    # A class of its own: Spark refuses one that could filter where its setting is off.

    def pushFilters(  # noqa: N802 - Spark's name
        self, filters: list[datasource.Filter]
    ) -> Iterator[datasource.Filter]:
        for one in filters:
            if isinstance(one, (datasource.EqualTo, datasource.In)) and len(one.attribute) == 1:
                self._dataset = self._filtered(one.attribute[0], one.value)
            yield one  # Spark checks what is left, which costs little

    def _filtered(self, name: str, value: object) -> TFRecordDataset:
        spec = self._dataset.features[name]
        is_scalar = isinstance(spec, Text) or getattr(spec, "shape", None) == ()
        # Records that the column does not find get a default.
        if not is_scalar or getattr(spec, "default_value", None) is not None:
            return self._dataset
        try:
            self._dataset._kept(spec._key_of(name))  # without it, all records would be read here
            return self._dataset.where(name, value)
        except (IndexMismatchError, TypeError):  # not kept, or of another type
            return self._dataset


@dataclass
class _Written(datasource.WriterCommitMessage):
    name: str


class _Writer(datasource.DataSourceArrowWriter):
    def __init__(self, folder: PartFolder, overwrite: bool) -> None:
        self._folder, self._overwrite = folder, overwrite

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> _Written:
        return _Written(self._folder.write(iterator))

    def commit(self, messages: list[Any]) -> None:
        names = [message.name for message in messages if message is not None]
        self._folder.commit(names, overwrite=self._overwrite)

    def abort(self, messages: list[Any]) -> None:
        self._folder.abort()
