"""The columns of an episode: one value per step; a sample reads a window of consecutive steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import Ints, splits_of
from torch_tfrecord.columns import Column, DType, LackingError, Want, decode_text, rows_of
from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.rlds.episode_reader import Frames, Spans, Values, read_frames
from torch_tfrecord.tfds import Leaf

__all__ = [
    "EncodedColumn",
    "EpisodeColumn",
    "FeaturePlace",
    "LeafLists",
    "ListColumn",
    "NumberColumn",
    "Pictures",
    "each_leaf",
    "own_tensor",
    "read_encoded",
]

_MOST_LENGTH = 1 << 33  # more than a record can hold


class FeaturePlace(NamedTuple):
    """A feature of one episode, for errors.

    Attributes:
        path: Path of the feature.
        locate: Adds the file and record to an error.
    """

    path: str
    locate: Callable[[TFRecordError], TFRecordError]

    def at_step(self, error: TFRecordError, step: int) -> TFRecordError:
        """Return the error with the feature, step, file and record added."""
        return self.locate(type(error)(f"feature {self.path!r}, step {step}: {error.args[0]}"))


class EpisodeColumn:
    """One value per step of an episode.

    Attributes:
        num_bytes: Approximate memory it holds.
    """

    # A batch reads from many episodes that are not in the CPU cache: each dict lookup would wait
    # for memory.
    __slots__ = ("num_bytes",)

    num_bytes: int

    def __len__(self) -> int:
        """The number of steps."""
        raise NotImplementedError

    def read(self, first: int, stop: int) -> Any:
        """The values of steps `first` to `stop` - 1: a list, or a tensor that owns its memory."""
        raise NotImplementedError

    def at(self, step: int) -> Any:
        """The value of one step."""
        return self.read(step, step + 1)[0]


class NumberColumn(EpisodeColumn):
    """Numbers of equal shape: `read` returns a tensor [steps, *shape].

    Args:
        values: [T, *shape], a tensor or array; not modified.

    Attributes:
        array: A NumPy view of the same memory; None for dtypes that NumPy lacks, such as bfloat16.
    """

    __slots__ = ("array", "values")

    def __init__(self, values: npt.NDArray[np.generic] | torch.Tensor) -> None:
        self.values = values
        self.array = values if isinstance(values, np.ndarray) else _as_array(values)
        self.num_bytes = values.nbytes

    def __len__(self) -> int:
        return len(self.values)

    def read(self, first: int, stop: int) -> torch.Tensor:
        """[steps, *shape]."""
        return own_tensor(self.values[first:stop])


def own_tensor(values: npt.NDArray[np.generic] | torch.Tensor) -> torch.Tensor:
    """A copy."""
    return values.clone() if isinstance(values, torch.Tensor) else torch.from_numpy(values.copy())


def _as_array(values: torch.Tensor) -> npt.NDArray[np.generic] | None:
    if type(values) is not torch.Tensor:  # subclasses must keep their type
        return None
    try:
        # NumPy is faster for the few rows of a window.
        array: npt.NDArray[np.generic] = values.numpy()
    except (RuntimeError, TypeError):
        return None
    return array


class ListColumn(EpisodeColumn):
    """Values that are not tensors, such as bytes; a sample gets a list of them.

    Args:
        values: One per step.
        empty: The padding value with pad="zero".
        text: Where the feature is, for errors, if the values are UTF-8, which is decoded when a
            sample reads it.
    """

    __slots__ = ("_text", "empty", "values")

    def __init__(
        self, values: Sequence[Any], empty: object = b"", text: FeaturePlace | None = None
    ) -> None:
        self.values = values
        self.empty = empty
        self._text = text
        # An instruction is one object for all steps.
        self.num_bytes = 8 * len(values) + sum(
            map(_size, {id(value): value for value in values}.values())
        )

    def __len__(self) -> int:
        return len(self.values)

    def at(self, step: int) -> object:
        """The value.

        Raises:
            ParseError: A text is not UTF-8.
        """
        if self._text is None:
            return self.values[step]
        try:
            return decode_text(self.values[step])
        except ParseError as error:
            raise self._text.at_step(error, step) from error.__cause__

    def read(self, first: int, stop: int) -> list[object]:
        """A list of values."""
        return [self.at(step) for step in range(first, stop)]


def _size(value: object) -> int:
    return len(value) if isinstance(value, (bytes, str)) else 64


class Pictures(NamedTuple):
    """How to decode the images of a feature in bulk, if decoding is a plain `decode_image`.

    Attributes:
        mode: See `decode_image`.
        shape: (height, width, channels), None for any.
    """

    mode: str
    shape: tuple[int | None, ...]

    def fits(self, size: Sequence[int]) -> bool:
        """Whether images of (height, width) match this shape."""
        return all(wanted in (None, found) for wanted, found in zip(self.shape, size, strict=False))


class EncodedColumn(EpisodeColumn):
    """Encoded values, such as images, read and decoded when a sample needs them.

    Args:
        values: One per step.
        decode: Turns bytes into the value; None returns the bytes.
        place: Where the feature is, for errors.
        pictures: How to decode many at once, if `decode` returns plain `tv_tensors.Image`.
    """

    __slots__ = ("_decode", "_place", "_values", "pictures")

    def __init__(
        self,
        values: Frames | Sequence[bytes],
        decode: Callable[[bytes], object] | None,
        place: FeaturePlace,
        pictures: Pictures | None = None,
    ) -> None:
        self.pictures = pictures
        self.num_bytes = values.num_bytes if isinstance(values, Frames) else sum(map(len, values))
        self._values = values
        self._decode = decode
        self._place = place

    def __len__(self) -> int:
        return len(self._values)

    def encoded(self, first: int, stop: int) -> list[bytes]:
        """The bytes of steps `first` to `stop` - 1, with their checksums verified."""
        return (
            self._values.read(first, stop)
            if isinstance(self._values, Frames)
            else list(self._values[first:stop])
        )

    def read(self, first: int, stop: int) -> list[Any]:
        """The decoded values, images as `tv_tensors.Image` [C, H, W]; bytes if there is no
        `decode`.
        """
        encoded = self.encoded(first, stop)
        if self._decode is None:
            return encoded
        values = []
        for step, data in enumerate(encoded, first):
            try:
                values.append(self._decode(data))
            except TFRecordError as error:
                raise self._place.at_step(error, step) from error.__cause__
        return values


def read_encoded(columns: Sequence[EncodedColumn], spans: Spans) -> list[bytes]:
    """`EncodedColumn.encoded` of each column's window, concatenated."""
    frames = [column._values for column in columns if isinstance(column._values, Frames)]
    # An `episode_transform` may have put other columns in their place.
    if len(frames) == len(columns):
        return read_frames(frames, spans)
    windows = zip(columns, spans, strict=True)
    return [value for column, (first, stop, *_) in windows for value in column.encoded(first, stop)]


def each_leaf(tree: Any, make: Callable[[Any], Any]) -> Any:
    """Apply a function to each leaf of a tree of columns or values.

    Example:
        >>> each_leaf({"a": {"b": 1}}, str)
        {'a': {'b': '1'}}
    """
    if isinstance(tree, EpisodeColumn):  # the cheaper check first
        return make(tree)
    if isinstance(tree, Mapping):
        return {name: each_leaf(item, make) for name, item in tree.items()}
    return make(tree)


class _Part(NamedTuple):
    """A list divided into records, each with rows of equal length.

    Attributes:
        values: The list.
        row_values: Values per row.
        ends: Row splits of the records; None for one row each.
    """

    values: Values
    row_values: int
    ends: Ints | None = None

    def bounds(self, first: int, stop: int) -> Ints:
        """Where the values of records `first` to `stop` - 1 begin and end."""
        # Only the asked range: an episode may have a million steps.
        rows = np.arange(first, stop + 1) if self.ends is None else self.ends[first : stop + 1]
        return rows * self.row_values


class LeafLists(EpisodeColumn):
    """A feature as its lists by key (int64 or float32 arrays, lists of bytes, or `Frames`), decoded
    when read.

    Args:
        leaf: Reads one record; for a step feature, one step without the sequence of steps around
            it.
        lists: The feature's lists.
        place: Where the feature is, for errors.
        num_steps: Number of steps to cut them into; None if they belong to a single record.

    Raises:
        ParseError: The lists do not fit the number of steps.
    """

    __slots__ = ("_leaf", "_lists", "_num_steps", "_parts", "_place")

    def __init__(
        self,
        leaf: Leaf,
        lists: Mapping[str, Values],
        place: FeaturePlace,
        num_steps: int | None = None,
    ) -> None:
        self._leaf, self._lists, self._place = leaf, lists, place
        self.num_bytes = sum(
            getattr(values, "nbytes", 64 * len(values)) for values in lists.values()
        )
        self._num_steps = 1 if num_steps is None else num_steps
        if num_steps is None:
            self._parts = {key: _Part(values, len(values)) for key, values in lists.items()}
        else:
            self._parts = _cut(leaf, lists, num_steps)

    def __len__(self) -> int:
        return self._num_steps

    def read(self, first: int, stop: int) -> list[object]:
        """The values of steps `first` to `stop` - 1, as copies."""
        try:
            return self.values(first, stop)
        except TFRecordError as error:
            if stop == first + 1:
                raise self._place.at_step(error, first) from error.__cause__
            middle = (first + stop) // 2  # by halves, to raise the error of the first bad step
            return self.read(first, middle) + self.read(middle, stop)

    def values(self, first: int = 0, stop: int = 1) -> list[object]:
        """`read`, with errors that do not name the step."""
        columns = [
            _column(want, self._parts.get(want.key), first, stop) for want in self._leaf.wants
        ]
        try:
            return list(rows_of(self._leaf.read(columns)))
        except LackingError as error:
            raise error.want.missing(self._lists) from None


def _cut(leaf: Leaf, lists: Mapping[str, Values], num_steps: int) -> dict[str, _Part]:
    """Cut the lists by step, under the keys that a record with only that step would have."""
    # Row lengths of the steps themselves are the outermost level: a step has one level fewer.
    key, ends, total = leaf.key, None, num_steps
    if key in lists or f"{key}/ragged_row_lengths_0" not in lists:
        keys = (key, f"{key}/shape", f"{key}/value")
        return {each: _shares(lists[each], total) for each in keys if each in lists}

    def find(suffix: str, dtype: DType, what: str) -> Any:
        want = Want(key, f"{key}/{suffix}", dtype, what)
        if want.key not in lists:
            raise want.missing(lists)
        return lists[want.key]

    parts: dict[str, _Part] = {}
    for level in range(len(leaf.lengths)):
        lengths = find(f"ragged_row_lengths_{level}", torch.int64, "sizes")
        # Before anything is cut by them.
        if len(lengths) != total or (lengths < 0).any():
            least = f" with {lengths.min()}" if (lengths < 0).any() else ""
            raise ParseError(
                f"expected {total} row lengths of level {level}, of at least 0, got {len(lengths)}{least}"
            )
        if level:
            parts[f"{key}/ragged_row_lengths_{level - 1}"] = _Part(lengths, 1, ends)
        # A sum that overflows might look right.
        below = splits_of(np.minimum(lengths, _MOST_LENGTH))
        ends, total = below if ends is None else below[ends], int(below[-1])
    flat = find("ragged_flat_values", leaf.element.stored, leaf.element.what)
    # A step of a sequence in a sequence of steps is a plain list.
    parts[f"{key}/ragged_flat_values" if parts else key] = _shares(flat, total, ends)
    return parts


def _shares(values: Values, total: int, ends: Ints | None = None) -> _Part:
    """Divide a list into `total` rows of equal length; for `ends` see `_Part`."""
    if total and len(values) % total:
        raise ParseError(f"expected a multiple of {total} values, got {len(values)}")
    return _Part(values, len(values) // total if total else 0, ends)


def _column(want: Want, part: _Part | None, first: int, stop: int) -> Column:
    if part is None:
        # As a parser says it of a key that no record has.
        num_records = stop - first
        values = np.zeros(
            (0, 2) if want.kind.dtype is bytes else 0,
            np.float32 if want.kind.dtype is torch.float32 else np.int64,
        )
        return Column(
            values, np.zeros(num_records + 1, np.int64), np.ones(num_records, np.uint8), b""
        )
    offsets = part.bounds(first, stop)
    begin, end = offsets[[0, -1]].tolist()
    offsets = offsets - begin
    found: Any = part.values
    if want.kind.dtype is not bytes:
        # A sample may change its tensors; the lists are cached.
        return Column(found[begin:end].copy(), offsets, None, b"")
    strings = found.read(begin, end) if isinstance(found, Frames) else found[begin:end]
    spans = np.empty((len(strings), 2), np.int64)
    spans[:, 1] = [*map(len, strings)]
    spans[:, 0] = spans[:, 1].cumsum() - spans[:, 1]
    return Column(spans, offsets, None, b"".join(strings))
