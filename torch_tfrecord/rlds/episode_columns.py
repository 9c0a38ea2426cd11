"""The columns of an episode: one value per step; a sample reads a window of consecutive steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import Ints, splits_of
from torch_tfrecord.columns import DType, LackingError, Want, decode_text
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
    "part_of",
    "read_encoded",
    "read_leaf",
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


class LeafLists(EpisodeColumn):
    """A feature of steps as its lists by key (int64 or float32 arrays, lists of bytes, or
    `Frames`), decoded when read.

    Args:
        leaf: Reads one step, without the sequence of steps around it.
        lists: The feature's lists.
        place: Where the feature is, for errors.
        num_steps: Number of steps to cut them into.

    Raises:
        ParseError: The lists do not fit the number of steps.
    """

    __slots__ = ("_leaf", "_num_steps", "_parts", "_place")

    def __init__(
        self, leaf: Leaf, lists: Mapping[str, Values], place: FeaturePlace, num_steps: int
    ) -> None:
        self._leaf, self._place, self._num_steps = leaf, place, num_steps
        self._parts = _cut(leaf, lists, num_steps)
        self.num_bytes = sum(
            ends.nbytes + getattr(values, "nbytes", 64 * len(values))
            for values, ends in self._parts.values()
        )

    def __len__(self) -> int:
        return self._num_steps

    def at(self, step: int) -> object:
        """The value of one step, a copy."""
        lists = {
            key: part_of(values, *ends[step : step + 2].tolist())
            for key, (values, ends) in self._parts.items()
        }
        try:
            return read_leaf(self._leaf, lists)
        except TFRecordError as error:
            raise self._place.at_step(error, step) from error.__cause__

    def read(self, first: int, stop: int) -> list[object]:
        """The values of steps `first` to `stop` - 1, as copies."""
        return [self.at(step) for step in range(first, stop)]


def part_of(values: Any, begin: int = 0, end: int | None = None) -> Any:
    """A copy of some of the values of a list."""
    if isinstance(values, Frames):
        return values.read(begin, len(values) if end is None else end)
    # A sample may change its tensors; the lists are cached.
    return values[begin:end].copy()


def read_leaf(leaf: Leaf, lists: Mapping[str, Any]) -> object:
    """Read a leaf from the lists of one record, or of one step.

    Raises:
        TFRecordError: See `Leaf.read`.
    """
    try:
        return leaf.one(lists)
    except LackingError as error:
        raise error.want.missing(lists) from None


def _cut(leaf: Leaf, lists: Mapping[str, Values], num_steps: int) -> dict[str, tuple[Values, Ints]]:
    """Cut the lists by step, under the keys that a record with only that step would have: each list,
    and where the values of each step begin and end.
    """
    key, ends = leaf.key, np.arange(num_steps + 1)
    if key in lists or f"{key}/ragged_row_lengths_0" not in lists:
        return {each: (values, ends * _share(values, num_steps)) for each, values in lists.items()}

    def find(suffix: str, dtype: DType, what: str) -> Any:
        want = Want(key, f"{key}/{suffix}", dtype, what)
        if want.key not in lists:
            raise want.missing(lists)
        return lists[want.key]

    # Row lengths of the steps themselves are the outermost level: a step has one level fewer.
    parts: dict[str, tuple[Values, Ints]] = {}
    total = num_steps
    for level in range(len(leaf.lengths)):
        lengths = find(f"ragged_row_lengths_{level}", torch.int64, "sizes")
        # Before anything is cut by them.
        if len(lengths) != total or (lengths < 0).any():
            least = f" with {lengths.min()}" if (lengths < 0).any() else ""
            raise ParseError(
                f"expected {total} row lengths of level {level}, of at least 0, got {len(lengths)}{least}"
            )
        if level:
            parts[f"{key}/ragged_row_lengths_{level - 1}"] = lengths, ends
        # A sum that overflows might look right.
        below = splits_of(np.minimum(lengths, _MOST_LENGTH))
        ends, total = below[ends], int(below[-1])
    flat = find("ragged_flat_values", leaf.element.stored, leaf.element.what)
    # A step of a sequence in a sequence of steps is a plain list.
    name = f"{key}/ragged_flat_values" if parts else key
    return parts | {name: (flat, ends * _share(flat, total))}


def _share(values: Values, total: int) -> int:
    """How many values each of so many rows of equal length has."""
    if total and len(values) % total:
        raise ParseError(f"expected a multiple of {total} values, got {len(values)}")
    return len(values) // total if total else 0
