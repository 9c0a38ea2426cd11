"""Build indexes that keep columns: `build_index`, and what reads the columns meanwhile."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from torch_tfrecord.arguments import PathLike, Paths, StorageOptions, check_compression_type
from torch_tfrecord.batch_memory import NO_INTS
from torch_tfrecord.columns import Nested, VarLenFeature, make_parser
from torch_tfrecord.errors import ParseError
from torch_tfrecord.files import Access, local_path, open_file
from torch_tfrecord.per_process import each_at_once
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.protobuf import parse_message
from torch_tfrecord.records import IndexKeeper, RecordIndex, found_files
from torch_tfrecord.samples import DType, RecordPlace
from torch_tfrecord.tables.found_records import FoundRecord
from torch_tfrecord.tables.kept_columns import KeptColumn, KeptColumns

__all__ = ["DTYPES", "ExampleColumns", "build_index"]

DTYPES: dict[str, DType] = {
    "int64_list": torch.int64,
    "float_list": torch.float32,
    "bytes_list": bytes,
}
"""Field of a Feature message -> dtype of the values in that list."""
_LENGTH = re.compile(r"len\((.*)\)", re.DOTALL)


class ExampleColumns:
    """Reads columns of Examples while an index is built, each with one value a record.

    Args:
        names: Keys of the records; ``len(key)`` is the number of values at a key.

    Raises:
        TypeError: `names` is a str.
        ValueError: A name is there twice, or empty.
    """

    def __init__(self, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise TypeError(f"columns must be a list of names, got the str {names!r}")
        self._keys = {name: _LENGTH.sub(r"\1", name) for name in names}
        if len(self._keys) < len(names) or not all(self._keys.values()):
            raise ValueError(f"columns must be different names, got {[*names]}")
        self._kinds: dict[str, DType] = {}  # keys that have had values so far
        self._parts: dict[str, list[KeptColumn]] = {name: [] for name in names}

    def add(
        self, records: Iterable[bytes | memoryview], place: Callable[[int], RecordPlace]
    ) -> None:
        """Read the columns of some records; `place` says of a row where it is.

        Raises:
            ParseError: A record is no Example, has several values where one is expected, or values
                of another kind than a record before.
        """
        self._learn_kinds(records)
        try:
            found = self._parser.batch(records)
            for name, key in self._keys.items():
                self._add(name, key, found[key])
        except ParseError as error:
            where, error.position = place(error.position or 0), None
            error.locate(path=where.path, offset=where.offset, position=where.position)
            raise

    def _learn_kinds(self, records: Iterable[bytes | memoryview]) -> None:
        """Find the kind of the keys that had no value so far, and parse by them."""
        unknown = {*self._keys.values()} - self._kinds.keys()
        if not unknown:
            return
        for record in records:
            with suppress(ParseError):  # parsing finds it, too, and names the record
                features = parse_message(record).features.feature
                for key in unknown & features.keys():
                    kind = features[key].WhichOneof("kind")
                    if kind and getattr(features[key], kind).value:
                        self._kinds[key] = DTYPES[kind]
                unknown -= self._kinds.keys()
            if not unknown:
                break
        # Records that lack a key fit any kind.
        self._parser: Any = make_parser(
            {key: VarLenFeature(self._kinds.get(key, torch.int64)) for key in self._keys.values()}
        )

    def _add(self, name: str, key: str, column: Nested | list[list[bytes]]) -> None:
        if isinstance(column, Nested):
            values, (ends,) = column.arrays()
            counts = np.diff(ends)
        else:
            counts = np.array([*map(len, column)], np.int64)
            values = NO_INTS
        if name != key:
            self._parts[name].append(KeptColumn(counts))
            return
        if (counts > 1).any():
            row = int((counts > 1).argmax())
            raise ParseError(
                f"column {name!r}: expected at most one value in a record, got {counts[row]}: keep their number, by "
                f"'len({name})'",
                position=row,
            )
        strings = None
        if not isinstance(column, Nested):
            found = [row[0] for row in column if row]
            # Sorted, so that the same records give the same index.
            strings = tuple(sorted({*found}))
            numbers = {string: number for number, string in enumerate(strings)}
            values = np.array([numbers[one] for one in found], np.int64)
        full, missing = np.zeros(len(counts), values.dtype), counts == 0
        full[~missing] = values
        self._parts[name].append(KeptColumn(full, missing if missing.any() else None, strings))

    def check(self, kept: Iterable[KeptColumns], records: Iterable[bytes]) -> None:
        """Check that some record has each of the columns, or for ``len(key)`` a value there.

        Args:
            kept: The columns of each file.
            records: Those of all files; the first one is for the error.

        Raises:
            ValueError: None has.
        """
        unknown = {*self._keys}
        for columns in kept:
            for name in [*unknown]:
                column = columns[name]
                if column.has_values and (column.values.any() or not name.startswith("len(")):
                    unknown.remove(name)
        for record in records if unknown else ():
            raise ValueError(
                f"expected columns that a record has, got {sorted(unknown)}, which none of the records has; the first "
                f"has {sorted(parse_message(record).features.feature)}"
            )

    def columns(self) -> KeptColumns:
        """The columns of all blocks."""
        none = KeptColumn(NO_INTS)
        return {name: KeptColumn.join(parts or [none]) for name, parts in self._parts.items()}


def build_index(
    paths: Paths,
    columns: Sequence[str] | None = None,
    save: bool | None = None,
    *,
    verify_crc: bool = True,
    compression_type: str | None = "auto",
    index_bytes_ratio: float = 0.005,
    index_dir: PathLike | None = None,
    storage_options: StorageOptions = None,
) -> RecordIndex | Any:
    """Find every record of a file, or of several, by reading each once; without `verify_crc` only
    the headers, of its records or (of what `TFRecordWriter` compressed) of its members.

    Args:
        paths: A path, or what else `find_files` takes.
        columns: Keys of Examples to keep beside the offsets: one integer, float or string a record
            (bytes, for `TFRecordDataset.where`), or none; ``len(key)`` keeps the number of values.
            `RecordIndex.columns` has them. Columns that are kept already stay.
        save: Keep the indexes where `TFRecordDataset` finds them; None does so if they have columns
            (a dataset builds and keeps one without columns by itself).
        verify_crc: Check the payloads' checksums, too; headers are always checked.
        compression_type: "auto", None or "", "GZIP", "ZLIB", "SNAPPY".
        index_bytes_ratio: Share of a compressed file, 0 to 1, that its seek points may take; 16 KiB
            are always allowed, and at most 64 MiB. With the default, 0.5 %, they are 2 to some 10
            MiB of decompressed data apart (data that compress 2 to 10 times), and a record takes
            1 to 5 ms.
        index_dir: Folder to keep them in; see `TFRecordDataset`.
        storage_options: See there.

    Returns:
        The index of the file that `paths` names; a list, in the order of the files, if `paths` is
        a pattern, a directory or a list.

    Raises:
        CorruptRecordError, CompressionError: a file is damaged; there is no index of the good part.
        ParseError: a column has several values in a record, or values of several kinds.
        ValueError: an argument is not one of those above, or no record has a column.

    Example:
        >>> index = build_index("train.tfrecord")  # doctest: +SKIP
        >>> index.offsets[:3], len(index)  # doctest: +SKIP
        (array([  0,  51, 107]), 23)
        >>> build_index(["data/train-*"], columns=["label"])  # doctest: +SKIP
    """
    access, kind = Access(storage_options), check_compression_type(compression_type)
    files, infos = found_files(paths, access)

    def build(path: str) -> RecordIndex:
        return RecordIndex._build(
            open_file(path, access, infos.get(path)),
            verify_crc=verify_crc,
            compression_type=kind,
            index_bytes_ratio=index_bytes_ratio,
            trusts_members=not verify_crc,
            reader=None if columns is None else ExampleColumns(columns),
        )

    built = each_at_once(build, files, 2) if len(files) > 1 else map(build, files)
    indexes = [*ProgressBar(built, "indexing", total=len(files), unit="file", delay=1.0)]
    if columns:
        records = (one.payload for path in files for one in FoundRecord.all_of(path, access))
        ExampleColumns(columns).check([index._kept for index in indexes], records)
    if columns if save is None else save:
        keeper = IndexKeeper(index_dir=index_dir, access=access)
        for path, index in zip(files, indexes, strict=True):
            keeper.keep(open_file(path, access), index)
        keeper.warn_of_displaced()
    is_one = isinstance(paths, (str, os.PathLike)) and files == [local_path(paths)]
    return indexes[0] if is_one else indexes
