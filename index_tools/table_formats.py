"""Rows in files of other kinds, as Arrow tables and back: Parquet, CSV, JSON lines and WebDataset
tar; Hugging Face datasets are only read.

What a kind cannot hold is refused by the name of its feature, so that what was written reads back
as the same values.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import import_module
from itertools import chain, groupby, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
from pyarrow import csv, dataset, parquet

from torch_tfrecord.errors import ParseError
from torch_tfrecord.files.atomic import AtomicFile
from torch_tfrecord.images.codec import image_format
from torch_tfrecord.protobuf.json_text import parse_json

__all__ = ["read_tables", "write_table"]

_Row: TypeAlias = dict[str, Any]
_Rows: TypeAlias = Iterator[_Row]

_ROWS = 256  # at once: each may have a picture
_WAY_OUT = "leave it out by --columns, or write Parquet"
# Null is what is empty without quotes, and nothing else: NA may be Namibia, and nan is a number. An
# empty line is a record that lacks its one feature.
_NULLS = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
# The key of a sample, the name of a value, and how it is encoded.
_MEMBER = re.compile(r"((?:.*/)?[^./]*)\.?(?:(.*)\.)?(.*)", re.DOTALL)
_DAMAGE = (
    pa.ArrowException,
    tarfile.TarError,
    ParseError,
    ValueError,
    EOFError,
    ArithmeticError,
)
_CSV = dataset.CsvFileFormat(
    csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
    convert_options=csv.ConvertOptions(**_NULLS),
)


# Reading.


def read_tables(
    kind: str,
    files: Sequence[str],
    *,
    names: Collection[str] | None,
    schema: pa.Schema | None,
    split: str,
    first: int = 0,
    step: int = 1,
) -> Iterator[pa.Table]:
    """Read the rows of files, in order, some at a time.

    Fields of structs, as Hugging Face has them for pictures, are columns: ``image.bytes`` and
    ``image.path``.

    Args:
        kind: "parquet", "csv", "json", "tar"; "dataset" for a folder that Hugging Face's
            `save_to_disk` wrote.
        files: Their paths.
        names: The columns that are wanted, where they are there; None for all.
        schema: What columns of CSV hold; of others its first rows decide it.
        split: Which, if a dataset has several.
        first, step: Which tables are wanted.

    Raises:
        ParseError: A file is damaged, or of another kind.
        KeyError: There is no such split.
    """
    tables = chain.from_iterable(_read(kind, path, schema, split) for path in files)
    for table in islice(tables, first, None, step):
        yield table.select([name for name in table.column_names if not names or name in names])


def _read(kind: str, path: str, schema: pa.Schema | None, split: str) -> Iterator[pa.Table]:
    found: Iterator[Any]
    try:
        if kind == "parquet":
            found = parquet.ParquetFile(path).iter_batches(_ROWS)
        elif kind == "csv":
            types = {field.name: field.type for field in schema or ()}
            inferred = dataset.dataset(path, format=_CSV).schema
            cells = [(one.name, _cell_type(types.get(one.name, one.type))) for one in inferred]
            data = dataset.dataset(path, pa.schema(cells), _CSV)
            found = data.to_batches(batch_size=_ROWS, batch_readahead=2)
        elif kind == "dataset":
            data = import_module("datasets").load_from_disk(path)
            data = data[split] if isinstance(data, dict) else data
            found = data.with_format("arrow").iter(_ROWS)
        else:
            rows = _json_rows(path) if kind == "json" else _tar_rows(path)
            chunks = iter(lambda: [*islice(rows, _ROWS)], [])
            found = map(pa.Table.from_struct_array, map(pa.array, chunks))
        for table in found:
            yield pa.table(table).flatten()
    except _DAMAGE as error:
        raise ParseError(str(error).partition("\n")[0], path=path) from error


def _cell_type(kind: pa.DataType) -> pa.DataType:
    kind = getattr(kind, "value_type", kind)
    # no feature holds dates
    return pa.string() if pa.types.is_temporal(kind) else kind


def _json_rows(path: str) -> _Rows:
    with Path(path).open("rb") as file:
        for number, line in enumerate(file):
            try:
                yield {**parse_json(line)}
            except (ParseError, TypeError) as error:
                text = f"expected a JSON object on each line: {error}"
                raise ParseError(text, position=number) from error


def _tar_rows(path: str) -> _Rows:
    """Samples, as webdataset takes the names of members apart: the key up to the first dot, then the
    name of a value, whose last part says how it is encoded.
    """
    with tarfile.open(path, "r:") as tar:
        for sample, members in groupby(tar, lambda member: _MEMBER.findall(member.name)[0][0]):
            row: _Row = {} if os.path.basename(sample).isdecimal() else {"__key__": sample}
            for member in members:
                tar.members = []  # type: ignore[attr-defined]  # where it would keep all of them
                _, stem, ending = _MEMBER.findall(member.name)[0]
                name = unquote(stem or ending)
                # What is sparse may pretend to be of any size.
                if member.type == tarfile.REGTYPE:
                    file: Any = tar.extractfile(member)
                    value = _DECODERS.get(ending.lower(), bytes)(file.read())
                    # seg.png and seg.json are two
                    row[f"{name}.{ending}" if name in row else name] = value
            yield row


_DECODERS: dict[str, Callable[[bytes], object]] = {
    "cls": int,
    "json": parse_json,
    "npy": lambda data: np.load(io.BytesIO(data)).tolist(),
    "txt": bytes.decode,
}


# Writing.


def write_table(kind: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: str) -> None:
    """Write a file; it appears complete or not at all.

    Args:
        kind: "parquet", "csv", "json" or "tar".
        schema: Of the batches.
        batches: The rows.
        path: The file.

    Raises:
        ValueError: The kind cannot hold a feature; names it.
    """
    file = AtomicFile(path)
    rows = (row for batch in batches for row in batch.to_pylist())
    found = ([pair for pair in row.items() if pair[1] is not None] for row in rows)
    try:
        if kind == "parquet":
            sink = pa.PythonFile(SimpleNamespace(write=file.write, closed=False), "w")
            with parquet.ParquetWriter(sink, schema) as table:
                for batch in batches:
                    table.write_batch(batch)
        elif kind == "tar":
            _write_tar(file, found)
        elif kind == "json":
            for pairs in found:
                text = ", ".join(
                    f"{json.dumps(name)}: {_json(name, value)}" for name, value in pairs
                )
                file.write(f"{{{text}}}\n".encode())
        else:
            for row in chain([{name: name for name in schema.names}], rows):
                file.write(",".join(map(_cell, row, row.values())).encode() + b"\n")
        file.prepare()
        file.publish()
    finally:
        file.discard()


def _cell(name: str, value: Any) -> str:
    if isinstance(value, list) and len(value) < 2:
        value = value[0] if value else None
    if isinstance(value, (list, dict)):
        raise ValueError(f"feature {name!r}: CSV holds one value in each record: {_WAY_OUT}")
    if isinstance(value, (str, bytes)):
        text: str = json.loads(_json(name, value))
        return '"' + text.replace('"', '""') + '"'
    return "" if value is None else str(value)


def _json(name: str, value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=bytes.decode)
    except ValueError as error:
        text = f"feature {name!r}: text holds finite numbers and UTF-8: {_WAY_OUT}"
        raise ValueError(text) from error


def _write_tar(file: AtomicFile, samples: Iterator[list[tuple[str, Any]]]) -> None:
    with tarfile.open(fileobj=file, mode="w|") as tar:  # type: ignore[call-overload]
        for number, pairs in enumerate(samples):
            if not pairs:
                raise ValueError(f"record {number}: a tar has no sample without values: {_WAY_OUT}")
            for name, value in pairs:
                ending, data = _encode(name, value)
                member = tarfile.TarInfo(f"{number:09d}.{quote(name, safe='')}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def _encode(name: str, value: Any) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        return (image_format(value) or "bin").replace("jpeg", "jpg"), value
    if type(value) in (int, str):
        return "cls" if type(value) is int else "txt", str(value).encode()
    if isinstance(value, list) and isinstance(next(iter(value), None), (int, float)):
        buffer = io.BytesIO()
        np.save(buffer, np.array(value))
        return "npy", buffer.getvalue()
    return "json", _json(name, value).encode()
