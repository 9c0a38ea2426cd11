"""The map-style dataset: random access by position."""

from __future__ import annotations

import bisect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import index as as_integer
from typing import Any, overload

from torch.utils.data import Dataset

from torch_tfrecord.compression import ByteSource, check_compression_type, open_stream
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.parsing import make_parser
from torch_tfrecord.paths import Paths, find_files
from torch_tfrecord.reader import RecordReader
from torch_tfrecord.sidecar import IndexKeeper
from torch_tfrecord.storage import SourceCache, open_file
from torch_tfrecord.structured_features import SequenceFeatures

__all__ = ["TFRecordDataset"]


class TFRecordDataset(Dataset[Any]):
    """Random access to the records of TFRecord files: `ds[i]`, `len(ds)`, for DataLoader, Subset, random_split.

    Positions count the records of all files, in the order of `files`. Each file's index is used where there is a fresh
    one, else built by reading the file once. Reading checks every checksum. The object pickles without open files and
    may be used after fork and spawn, and from threads.

    Args:
        paths: A path, a glob, ``name@N``, a directory, or a list of these; see `find_files`. Local, or of fsspec.
        features: What to read from each record, by name; None gives the record's bytes. `SequenceFeatures` reads
            SequenceExamples, as `(context, sequences)`.
        transform: Called with each sample.
        compression_type: "auto" (detected for each file), None or "" (none), "GZIP", "ZLIB". In compressed files random
            access has to decompress from the beginning up to the record.
        verify_crc: Check the payloads' checksums; headers are always checked.
        index: "auto" (use a fresh index, else build it and keep it), "require" (never build), "memory" (build, keep
            nothing).
        index_dir: A folder to keep indexes in, in place of beside the data.

    Attributes:
        files: The files, sorted.

    Raises:
        FileNotFoundError: nothing matches, or a shard is missing; names it.
        IndexMismatchError: `index="require"` and a file without a fresh index.
        TFRecordError: a file that must be indexed is damaged.

    Example:
        >>> ds = TFRecordDataset("train-*", {"label": FixedLenFeature((), torch.int64)})  # doctest: +SKIP
        >>> ds[0]  # doctest: +SKIP
        {'label': tensor(3)}
        >>> loader = DataLoader(ds, batch_size=64, shuffle=True, num_workers=4, collate_fn=collate)  # doctest: +SKIP
    """

    def __init__(
        self,
        paths: Paths,
        features: Mapping[str, Any] | SequenceFeatures | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        compression_type: str | None = "auto",
        verify_crc: bool = True,
        index: str = "auto",
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        compression = check_compression_type(compression_type)
        parser = None if features is None else make_parser(features)
        keeper = IndexKeeper(index, index_dir=index_dir, verify_crc=verify_crc, compression_type=compression)
        files = find_files(paths)
        self._set_up(files, keeper.indexes(files), None, parser, transform, verify_crc)

    @classmethod
    def from_indexes(
        cls,
        files: Sequence[str],
        indexes: Sequence[RecordIndex],
        features: Any = None,
        *,
        positions: Sequence[int] | None = None,
        transform: Callable[[Any], Any] | None = None,
        verify_crc: bool = True,
    ) -> TFRecordDataset:
        """A dataset of files in a given order, for layers above that know the files, such as `tfds`.

        Args:
            files: The paths; not sorted.
            indexes: One for each file.
            features: As of the class; or an object that parses records, with `single`, `batch` and `samples`.
            positions: Those of the dataset, counted over all files: a range or an int64 array; None for all.
            transform: Called with each sample.
            verify_crc: Check the payloads' checksums.
        """
        dataset = cls.__new__(cls)
        is_spec = isinstance(features, (Mapping, SequenceFeatures))
        parser = make_parser(features) if is_spec else features
        dataset._set_up(list(files), list(indexes), positions, parser, transform, verify_crc)
        return dataset

    def _set_up(
        self,
        files: list[str],
        indexes: list[RecordIndex],
        positions: Sequence[int] | None,
        parser: Any,
        transform: Callable[[Any], Any] | None,
        verify_crc: bool,
    ) -> None:
        self._parser = parser
        self._transform = transform
        self.files: list[str] = files
        self._indexes = indexes
        self._ends = list(accumulate(map(len, indexes)))
        self._positions = range(self._ends[-1]) if positions is None else positions
        self._reader = RecordReader(verify_crc)
        self._opener = _FileOpener(files, indexes)
        self._sources = SourceCache(self._opener)

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, position: slice) -> TFRecordDataset: ...

    @overload
    def __getitem__(self, position: int) -> Any: ...

    def __getitem__(self, position: int | slice) -> Any:
        """The sample at a position (negative ones count from the end), or for a slice a dataset of those positions."""
        if isinstance(position, slice):
            return self._part(self._positions[position])
        file, number = self._find(position)
        payload = self._read(file, number)
        sample = payload if self._parser is None else self._parse(self._parser, payload, file, number)
        return sample if self._transform is None else self._transform(sample)

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """The samples of several positions, in that order: what DataLoader asks for to make a batch."""
        return [self[position] for position in positions]

    def raw(self, position: int) -> bytes:
        """The record's payload, unparsed."""
        return self._read(*self._find(position))

    def locate(self, position: int) -> tuple[str, int]:
        """File of a position, and byte offset of its record; in the decompressed stream for compressed files."""
        file, number = self._find(position)
        return self.files[file], int(self._indexes[file].offsets[number])

    def _part(self, positions: Sequence[int]) -> TFRecordDataset:
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        part._positions = positions
        return part

    def _find(self, position: int) -> tuple[int, int]:
        """Number of the file, and of the record in it."""
        try:
            absolute = int(self._positions[as_integer(position)])
        except IndexError:
            raise IndexError(f"position {position} is out of range for {len(self)} records") from None
        file = bisect.bisect_right(self._ends, absolute)
        return file, absolute - (self._ends[file - 1] if file else 0)

    def _read(self, file: int, number: int) -> bytes:
        index = self._indexes[file]
        try:
            return self._reader.read(self._sources.get(file), int(index.offsets[number]), int(index.lengths[number]))
        except TFRecordError as error:
            error.locate(path=self.files[file], position=number)
            raise

    def _parse(self, parser: Any, payload: bytes, file: int, number: int) -> Any:
        try:
            return parser.single(payload)
        except TFRecordError as error:
            offset = int(self._indexes[file].offsets[number])
            error.locate(path=self.files[file], offset=offset, position=number)
            raise

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_sources"]  # open files stay in their process
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._sources = SourceCache(self._opener)

    def __repr__(self) -> str:
        return f"TFRecordDataset({len(self)} records in {len(self.files)} files, {self.files[0]!r}, ...)"


class _FileOpener:
    """Opens files by number. Apart from the dataset, which would else refer to itself and keep files open when dropped.

    Args:
        files: The paths.
        indexes: One for each file, which must still be of that file.
    """

    def __init__(self, files: Sequence[str], indexes: Sequence[RecordIndex]) -> None:
        self._files = files
        self._indexes = indexes
        self._said_slow = False

    def __call__(self, file: int) -> ByteSource:
        source = open_file(self._files[file])
        index = self._indexes[file]
        index.check_fresh(source)
        if index.compression_type and not self._said_slow:
            self._said_slow = True
            warnings.warn(
                "random access in a compressed file decompresses from its beginning up to the record: slow unless read "
                "in order. Write the data uncompressed, or stream it with TFRecordIterableDataset.",
                stacklevel=5,  # whoever asked for the record
            )
        return open_stream(source, index.compression_type)[0]
