"""Columns that an index keeps beside the offsets: one value for each record.

In the index file they come after the seek points, and are read when they are asked for, each
alone. Strings are kept as numbers of their distinct values.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from torch_tfrecord.batch_memory import Array, Ints
from torch_tfrecord.errors import IndexMismatchError

__all__ = ["KeptColumn", "KeptColumns", "StoredColumns"]

_Mask: TypeAlias = "npt.NDArray[np.bool_]"
Wanted: TypeAlias = "object | Iterable[object] | Callable[[Array], _Mask]"
"""What a column is searched for."""

_INTEGERS = ("<i1", "<i2", "<i4", "<i8")
_LEAST, _MOST = -(2**63), 2**63 - 1
_DTYPES = (*_INTEGERS, "<f4")


@dataclass(frozen=True, eq=False)
class KeptColumn:
    """One value of each of N records.

    Attributes:
        values: Integers of any size, or float32, [N]; for strings the numbers of their values. 0
            where one is missing.
        missing: bool [N]: which records have none; None if all have one.
        strings: The distinct strings, sorted; None for numbers.
    """

    values: Array
    missing: _Mask | None = None
    strings: tuple[bytes, ...] | None = None

    @property
    def kind(self) -> str:
        """ "integers", "floats" or "strings"."""
        if self.strings is not None:
            return "strings"
        return "floats" if self.values.dtype == np.float32 else "integers"

    def array(self) -> Array:
        """The values: int64, float32, or str (bytes, if one is not UTF-8); a masked array if some
        are missing.
        """
        found = self.values
        if self.strings is None:
            found = found if found.dtype == np.float32 else found.astype(np.int64)
        else:
            strings: list[object] = [*self.strings]
            with suppress(UnicodeDecodeError):
                strings = [string.decode() for string in self.strings]
            # One more, since a column without any string has none to use for what is missing.
            found = np.array([*strings, ""], dtype=object)[self.values]
        return found if self.missing is None else np.ma.MaskedArray(found, self.missing)

    @property
    def has_values(self) -> bool:
        """Whether a record has one."""
        return bool(len(self.values)) and (self.missing is None or not self.missing.all())

    def parse(self, text: str, name: str) -> int | float | str:
        """A value to look for in this column, of a command line.

        Raises:
            ValueError: The column has numbers, and the text is none.
        """
        if self.strings is not None:
            return text
        with suppress(ValueError):
            return int(text)
        try:
            return float(text)
        except ValueError as error:
            raise ValueError(f"column {name!r}: expected {self.kind}, got {text!r}") from error

    def take(self, numbers: slice | Ints) -> KeptColumn:
        """The column of some of the records."""
        missing = None if self.missing is None else self.missing[numbers]
        return KeptColumn(self.values[numbers], missing, self.strings)

    def matches(self, wanted: Wanted, name: str) -> _Mask:
        """Which records have a value, or one of several; what is missing is none of them, and what
        the column cannot have (0.5 among integers) matches nothing.

        Raises:
            TypeError: A callable returned no bool array [N], or a value is of another type.
        """
        if callable(wanted):
            mask = np.ma.filled(wanted(self.array()), False)
            if np.shape(mask) != self.values.shape or mask.dtype != np.bool_:
                raise TypeError(
                    f"column {name!r}: expected a bool for each of {len(self.values)} records from the callable, got "
                    f"{getattr(mask, 'dtype', type(mask).__name__)}"
                )
        elif isinstance(wanted, range) and self.strings is None:
            mask = self._within(wanted) if wanted else np.zeros(len(self.values), np.bool_)
        else:
            mask = self._equal(_plain(wanted), name)
        return mask if self.missing is None else mask & ~self.missing

    def _within(self, wanted: range) -> _Mask:
        values, step = self.values, abs(wanted.step)
        if self.kind == "floats" or step > _MOST:
            # One by one: a range's end may be no float32, and would be rounded.
            is_in = (value == value // 1 and int(value) in wanted for value in values.tolist())
            return np.fromiter(is_in, np.bool_, len(values))
        low, high = sorted((wanted[0], wanted[-1]))
        mask = (values >= max(low, _LEAST)) & (values <= min(high, _MOST))
        return mask if step == 1 else mask & (values.astype(np.int64) % step == low % step)

    def _equal(self, wanted: object, name: str) -> _Mask:
        mask: _Mask
        is_one = isinstance(wanted, (str, bytes)) or not isinstance(wanted, Iterable)
        values: list[Any] = [wanted] if is_one else [*map(_plain, wanted)]  # type: ignore[call-overload]
        kinds = (int, float, np.number) if self.strings is None else (str, bytes)
        other = next((value for value in values if not isinstance(value, kinds)), None)
        if other is not None:
            got = type(other).__name__
            raise TypeError(f"column {name!r} holds {self.kind}, got {got} to look for")
        if self.strings is not None:
            texts = {
                value.encode(errors="surrogatepass") if isinstance(value, str) else value
                for value in values
            }
            mask = np.array([*(string in texts for string in self.strings), False])[self.values]
        elif self.kind == "floats":
            mask = np.isin(self.values, np.array([*map(_as_float32, values)], np.float32))
        else:
            whole = [int(each) for each in values if _LEAST <= each <= _MOST and each == each // 1]
            mask = np.isin(self.values, np.array(whole, np.int64))
        return mask

    @classmethod
    def join(cls, parts: Sequence[KeptColumn]) -> KeptColumn:
        """The columns of several files as one.

        Raises:
            ValueError: They are of several kinds.
        """
        if len(parts) == 1:
            return parts[0]
        # A file in which no record has a value says nothing of the kind.
        has_values = [part.has_values for part in parts]
        known = [*compress(parts, has_values)] or parts
        kinds = {part.kind for part in known}
        if len(kinds) > 1:
            raise ValueError(f"values of one kind in all files, got {' and '.join(sorted(kinds))}")
        strings: list[bytes] | None = None
        if known[0].strings is not None:
            strings = sorted({string for part in known for string in part.strings or ()})
        places = {string: number for number, string in enumerate(strings or ())}
        values = []
        for part, is_known in zip(parts, has_values, strict=True):
            own = part.values if is_known else np.zeros(len(part.values), known[0].values.dtype)
            if part.strings:
                own = np.array([places[string] for string in part.strings], np.int64)[own]
            values.append(own)
        missing = [
            np.zeros(len(part.values), np.bool_) if part.missing is None else part.missing
            for part in parts
        ]
        mask = np.concatenate(missing) if any(part.missing is not None for part in parts) else None
        return cls(np.concatenate(values), mask, None if strings is None else tuple(strings))


def _plain(value: object) -> object:
    """Python's own values of an array, a tensor or their scalars: exact, whatever the dtype."""
    return value.tolist() if hasattr(value, "tolist") else value


def _as_float32(value: float) -> float:
    """The float32 that is stored for a number; NaN, which equals none, if there is none."""
    try:
        found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except (OverflowError, struct.error):
        return np.nan
    return np.nan if isinstance(value, int) and found != value else found


KeptColumns: TypeAlias = Mapping[str, KeptColumn]


class _Place(NamedTuple):
    """Where a column is among those of an index file; the fields that describe it there."""

    name: str
    dtype: str
    has_missing: bool
    num_strings: int  # -1 for numbers
    num_bytes: int
    checksum: int


class StoredColumns(Mapping[str, KeptColumn]):
    """The columns of an index file, each read when it is asked for; pickles.

    Args:
        described: What `pack` says.
        num_records: Records of the index.
        num_bytes: Size of all columns.
        read: From a first byte and a number of bytes to those of the columns.
        path: Path of the index file, for errors.

    Raises:
        ValueError: The description is none.
        IndexMismatchError: The columns have another number of bytes.
    """

    def __init__(
        self,
        described: str,
        num_records: int,
        num_bytes: int,
        read: Callable[[int, int], bytes],
        path: str | None = None,
    ) -> None:
        places = [_Place(*fields) for fields in json.loads(described)] if described else []
        self._num_records, self._read, self._path = num_records, read, path
        for place in places:
            if [*map(type, place)] != [str, str, bool, int, int, int]:
                raise ValueError("fields of other types")
            dtypes = _DTYPES if place.num_strings < 0 else _INTEGERS
            if place.dtype not in dtypes:
                raise ValueError(f"a column of dtype {place.dtype!r}")
            size = np.dtype(place.dtype).itemsize + place.has_missing
            if place.num_bytes < num_records * size + 8 * max(place.num_strings, 0):
                raise ValueError(f"a column of {place.num_bytes} bytes for {num_records} records")
        begins = [*accumulate((place.num_bytes for place in places), initial=0)]
        self._places = {
            place.name: (place, begin) for place, begin in zip(places, begins, strict=False)
        }
        if begins[-1] != num_bytes:
            raise IndexMismatchError("expected seek points and columns up to the end of the index")

    @staticmethod
    def pack(columns: KeptColumns) -> tuple[str, bytes]:
        """The description of the columns, as JSON, and their bytes."""
        places, parts = [], []
        for name, column in columns.items():
            values = column.values
            dtype = "<f4"
            if values.dtype != np.float32:
                # The smallest that fits them: most columns are labels.
                ends = [values.min(), values.max()] if len(values) else []
                fits = (kind for kind in _INTEGERS if (np.array(ends).astype(kind) == ends).all())
                dtype = next(fits)
            content = values.astype(dtype).tobytes()
            if column.missing is not None:
                content += column.missing.tobytes()
            if column.strings is not None:
                content += np.array([*map(len, column.strings)], "<i8").tobytes()
                content += b"".join(column.strings)
            parts.append(content)
            num_strings = -1 if column.strings is None else len(column.strings)
            own = column.missing is not None, num_strings, len(content), crc32c(content)
            places.append(_Place(name, dtype, *own))
        return json.dumps(places) if places else "", b"".join(parts)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __getitem__(self, name: str) -> KeptColumn:
        """Read a column.

        Raises:
            IndexMismatchError: It is damaged.
            OSError: The index file cannot be read.
        """
        place, begin = self._places[name]
        data = self._read(begin, place.num_bytes)
        if len(data) != place.num_bytes or crc32c(data) != place.checksum:
            raise IndexMismatchError(f"the column {name!r} is damaged", path=self._path)
        count, dtype = self._num_records, np.dtype(place.dtype)
        values = np.frombuffer(data, dtype, count).astype(dtype.newbyteorder("="), copy=False)
        at, missing, strings = count * dtype.itemsize, None, None
        if place.has_missing:
            missing, at = np.frombuffer(data, np.uint8, count, at) != 0, at + count
        if place.num_strings >= 0:
            sizes = np.frombuffer(data, "<i8", place.num_strings, at).tolist()
            ends = [*accumulate(sizes, initial=at + 8 * place.num_strings)]
            is_whole = ends[-1] == len(data) and min(sizes, default=0) >= 0
            if not is_whole or (count and not 0 <= values.min() <= values.max() <= len(sizes)):
                raise IndexMismatchError(f"the column {name!r} is damaged", path=self._path)
            strings = tuple(data[low:high] for low, high in pairwise(ends))
        return KeptColumn(values, missing, strings)
