"""Rows in files of other kinds, as Arrow tables and back: Parquet, CSV, JSON lines and WebDataset
tar; Hugging Face datasets are only read.

A feature that a kind cannot store is refused by name, so that what was written reads back as the
same values.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import chain, groupby, islice
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, dataset, parquet

from torch_tfrecord import LimitExceededError, ParseError
from torch_tfrecord.files import AtomicFile
from torch_tfrecord.json_text import parse_json
from torch_tfrecord.media import image_format

__all__ = ["deal_tables", "read_tables", "write_table"]

_Row: TypeAlias = dict[str, Any]
_Rows: TypeAlias = Iterator[_Row]

_ROWS = 256  # at once: each may have a picture
_MOST_BYTES = (1 << 31) - 1  # the largest message of protobuf
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
_AS_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=bytes.decode).encode
_INTEGER = re.compile(r"\s*([+-]?)0*(\d+)\s*")
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
    specs: Mapping[str, Any] | None,
    split: str,
) -> Iterator[pa.Table]:
    """Read the rows of files, in order, some at a time.

    Fields of structs, as Hugging Face has them for pictures, are columns: ``image.bytes`` and
    ``image.path``.

    Args:
        kind: "parquet", "csv", "json", "tar"; "dataset" for a folder that Hugging Face's
            `save_to_disk` wrote.
        files: Their paths.
        names: The columns that are wanted, where they are there; None for all.
        specs: They say the types of CSV's columns; the first rows decide those of others.
        split: Which, if a dataset has several.

    Raises:
        ParseError: A file is damaged, or of another kind.
        KeyError: There is no such split.
    """
    for table in chain.from_iterable(_read(kind, path, specs or {}, split) for path in files):
        yield table.select([name for name in table.column_names if not names or name in names])


def deal_tables(
    read: Callable[[], Iterator[pa.Table]], path: str, begins: list[int], first: int, step: int
) -> Iterator[pa.Table]:
    """Tables `first`, `first + step`, ...: who is first to ask reads all, and keeps the others in a
    file.

    Args:
        read: Reads the tables.
        path: The file.
        begins: Where each table begins in the file, also those that are not there.
    """
    if begins:
        with pa.OSFile(path) as file:
            for begin in begins[first::step]:
                file.seek(begin)
                yield pa.ipc.open_stream(file).read_all()
        return
    with pa.OSFile(path, "wb") as file:
        for number, table in enumerate(read()):
            begins.append(file.tell())
            if number % step == first:
                yield table
            else:  # each may have another schema
                with pa.ipc.new_stream(file, table.schema) as stream:
                    stream.write_table(table)


def _read(kind: str, path: str, specs: Mapping[str, Any], split: str) -> Iterator[pa.Table]:
    found: Iterator[Any]
    try:
        if kind == "parquet":
            found = parquet.ParquetFile(path).iter_batches(_ROWS)
        elif kind == "csv":
            inferred = dataset.dataset(path, format=_CSV).schema
            cells = [(one.name, _cell_type(specs.get(one.name), one.type)) for one in inferred]
            data = dataset.dataset(path, pa.schema(cells), _CSV)
            found = data.to_batches(batch_size=_ROWS, batch_readahead=2)
            found = _with_whole_integers(
                path, found, [name for name, _ in cells if name not in specs]
            )
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
    except LimitExceededError as error:
        raise error.locate(path=path) from error.__cause__
    except _DAMAGE as error:
        raise ParseError(str(error).partition("\n")[0], path=path) from error


def _cell_type(spec: Any, inferred: pa.DataType) -> pa.DataType:
    if spec is None:
        # no feature has dates
        return pa.string() if pa.types.is_temporal(inferred) else inferred
    layout = spec._undecoded()._layout()
    dtype = layout[0] if isinstance(layout, tuple) else bytes
    if dtype in (bytes, str):
        return pa.binary() if dtype is bytes else pa.string()
    return pa.from_numpy_dtype(str(dtype).removeprefix("torch."))


def _with_whole_integers(
    path: str, batches: Iterator[pa.RecordBatch], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The batches; ParseError, naming the row, for an integer beyond int64 in one of these columns,
    which Arrow takes for a float.
    """
    unread = {*names}
    try:
        for batch in batches:
            for name in [*unread]:
                column = batch.column(name)
                if not pa.types.is_floating(column.type):
                    unread.remove(name)
                elif (pc.max(pc.abs(column)).as_py() or 0) >= 1 << 63:
                    unread.remove(name)
                    _check_integers(path, name)
            yield batch
    except pa.ArrowInvalid:
        for name in names:
            _check_integers(path, name)
        raise


def _check_integers(path: str, name: str) -> None:
    data = dataset.dataset(path, pa.schema([(name, pa.string())]), _CSV)
    cells = chain.from_iterable(batch.column(0) for batch in data.to_batches())
    for row, cell in enumerate(cells, 1):
        digits = _INTEGER.fullmatch(cell.as_py() or "")
        if digits and (
            len(digits[2]) > 19 or not -(1 << 63) <= int(f"{digits[1]}{digits[2]}") < 1 << 63
        ):
            raise ParseError(
                f"row {row}, column {name!r}: expected an integer from -2^63 to 2^63 - 1, got one of "
                f"{len(digits[2])} digits; as a float it needs a point, or --features"
            )


def _json_rows(path: str) -> _Rows:
    with Path(path).open("rb") as file:
        for number, line in enumerate(file):
            try:
                yield {**parse_json(line)}
            except (ParseError, TypeError) as error:
                raise ParseError(
                    f"expected a JSON object on each line: {error}", position=number
                ) from error


def _tar_rows(path: str) -> _Rows:
    """Samples, as webdataset takes the names of members apart: the key up to the first dot, then the
    name of a value, whose last part says how it is encoded.
    """
    places: dict[str, tuple[int, int]] = {}  # where the files are that hard links may be to
    with tarfile.open(path, "r:") as tar:
        files = (member for member in tar if not member.isdir())
        for sample, members in groupby(files, lambda member: _MEMBER.findall(member.name)[0][0]):
            row: _Row = {} if os.path.basename(sample).isdecimal() else {"__key__": sample}
            for member in members:
                tar.members = []  # type: ignore[attr-defined]  # where it would keep all of them
                _, stem, ending = _MEMBER.findall(member.name)[0]
                name = unquote(stem or ending)
                try:
                    value = _DECODERS.get(ending.lower(), bytes)(_member_bytes(tar, member, places))
                except (*_DAMAGE, LimitExceededError) as error:
                    kind = type(error) if isinstance(error, LimitExceededError) else ParseError
                    raise kind(f"member {member.name!r}: {error}") from error
                # seg.png and seg.json are two
                row[f"{name}.{ending}" if name in row else name] = value
            yield row


def _member_bytes(
    tar: tarfile.TarFile, member: tarfile.TarInfo, places: dict[str, tuple[int, int]]
) -> bytes:
    """The bytes of a file, or of the file before it that a hard link is to."""
    if member.islnk() and member.linkname in places:
        member.offset_data, member.size = places[member.linkname]
        member.type = tarfile.REGTYPE
    # A sparse file may claim any size.
    if not member.isreg() or member.issparse():
        what = f"a link to {member.linkname!r}" if member.linkname else f"type {member.type!r}"
        raise ParseError(f"expected a file, or a hard link to a file before it, got {what}")
    if member.size > _MOST_BYTES:
        raise LimitExceededError(
            f"expected at most {_MOST_BYTES} bytes, as a record has, got {member.size}"
        )
    places[member.name] = member.offset_data, member.size
    file: Any = tar.extractfile(member)
    return file.read()


def _read_npy(data: bytes) -> object:
    file = io.BytesIO(data)
    read = np.lib.format.read_array_header_1_0
    if np.lib.format.read_magic(file)[0] > 1:
        read = np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    # Items may have no bytes, and axes no items: each of them is a Python object here.
    if (claimed := prod(max(size, 1) for size in shape) * max(dtype.itemsize, 1)) > len(data):
        raise LimitExceededError(
            f"expected an array of at most the {len(data)} bytes that are there, got {claimed}"
        )
    return np.load(io.BytesIO(data)).tolist()


_DECODERS: dict[str, Callable[[bytes], object]] = {
    "cls": int,
    "json": parse_json,
    "npy": _read_npy,
    "txt": bytes.decode,
}


# Writing.


def write_table(kind: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: str) -> None:
    """Write a file; it appears complete or not at all.

    Args:
        kind: "parquet", "csv", "json" or "tar".
        schema: That of the batches.
        batches: The rows.
        path: The file.

    Raises:
        ValueError: The kind cannot store a feature; names it.
    """
    file = AtomicFile(path)
    try:
        if kind == "parquet":
            sink = pa.PythonFile(SimpleNamespace(write=file.write, closed=False), "w")
            with parquet.ParquetWriter(sink, schema) as table:
                for batch in batches:
                    table.write_batch(batch)
        elif kind == "tar":
            _write_tar(file, chain.from_iterable(map(pa.RecordBatch.to_pylist, batches)))
        else:
            if kind == "csv":
                file.write(",".join(_cell(name, name) for name in schema.names).encode() + b"\n")
            for batch in batches:
                file.write(_lines(kind, batch))
        file.prepare()
        file.publish()
    finally:
        file.discard()


def _lines(kind: str, batch: pa.RecordBatch) -> bytes:
    """The rows of a batch as CSV or JSON."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values, is_number = column.to_pylist(), pa.types.is_primitive(column.type)
        if kind == "csv":
            texts = [*map(str if is_number else partial(_cell, name), values)]
        elif is_number:  # all in one call
            texts = _json(name, values)[1:-1].split(", ")
        else:
            texts = [_json(name, value) for value in values]
        label = "" if kind == "csv" else f"{json.dumps(name)}: "
        found = zip(texts, values, strict=True)
        columns.append([label + text if value is not None else "" for text, value in found])
    rows = zip(*columns, strict=True)
    if kind == "csv":
        return "".join(f"{','.join(row)}\n" for row in rows).encode()
    return "".join(f"{{{', '.join(filter(None, row))}}}\n" for row in rows).encode()


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
        return _AS_JSON(value)
    except ValueError as error:
        raise ValueError(
            f"feature {name!r}: text holds finite numbers and UTF-8: {_WAY_OUT}"
        ) from error


def _write_tar(file: AtomicFile, rows: _Rows) -> None:
    with tarfile.open(fileobj=file, mode="w|") as tar:  # type: ignore[call-overload]
        for number, row in enumerate(rows):
            pairs = [pair for pair in row.items() if pair[1] is not None]
            if not pairs:
                raise ValueError(f"record {number}: a tar has no sample without values: {_WAY_OUT}")
            for name, value in pairs:
                if not name or "\0" in name:  # Arrow ends names there
                    raise ValueError(
                        f"feature {name!r}: a tar has no value of that name: {_WAY_OUT}"
                    )
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
