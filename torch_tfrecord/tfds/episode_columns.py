"""The columns of an episode: one value per step; a sample reads a window of consecutive steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.columns.dtypes import decode_text
from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.tfds.episode_reader import Frames, Spans, read_frames

__all__ = [
    "Column",
    "EncodedColumn",
    "FeaturePlace",
    "ListColumn",
    "NumberColumn",
    "Pictures",
    "TextColumn",
    "each_leaf",
    "own_tensor",
    "read_encoded",
]


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


class Column:
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


class NumberColumn(Column):
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

    def at(self, step: int) -> torch.Tensor:
        """[*shape]."""
        return own_tensor(self.values[step : step + 1])[0]


def own_tensor(values: npt.NDArray[np.generic] | torch.Tensor) -> torch.Tensor:
    """A copy."""
    return values.clone() if isinstance(values, torch.Tensor) else torch.from_numpy(values.copy())


def _as_array(values: torch.Tensor) -> npt.NDArray[np.generic] | None:
    if type(values) is not torch.Tensor:  # subclasses must keep their type
        return None
    try:
        array: npt.NDArray[np.generic] = values.numpy()
    except (RuntimeError, TypeError):
        return None
    return array


class ListColumn(Column):
    """Values that are not tensors, such as bytes; a sample gets a list of them.

    Args:
        values: One per step.
        empty: The padding value with pad="zero".
    """

    __slots__ = ("empty", "values")

    def __init__(self, values: Sequence[Any], empty: object = b"") -> None:
        self.values = values
        self.empty = empty
        self.num_bytes = 8 * len(values) + sum(
            map(_size, {id(value): value for value in values}.values())
        )

    def __len__(self) -> int:
        return len(self.values)

    def at(self, step: int) -> Any:
        """The value."""
        return self.values[step]

    def read(self, first: int, stop: int) -> list[Any]:
        """A list of values."""
        return [self.at(step) for step in range(first, stop)]


def _size(value: object) -> int:
    return len(value) if isinstance(value, (bytes, str)) else 64


class TextColumn(ListColumn):
    """Text as str, decoded when a sample reads it.

    Args:
        values: UTF-8, one per step.
        place: Where the feature is, for errors.
    """

    __slots__ = ("_place",)

    def __init__(self, values: Sequence[bytes], place: FeaturePlace) -> None:
        super().__init__(values, "")
        self._place = place

    def at(self, step: int) -> str:
        """The text.

        Raises:
            ParseError: It is not UTF-8.
        """
        try:
            return decode_text(self.values[step])
        except ParseError as error:
            raise self._place.at_step(error, step) from error.__cause__


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


class EncodedColumn(Column):
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
        decode: Callable[[bytes], Any] | None,
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
    values = read_frames(frames, spans) if frames and len(frames) == len(columns) else None
    if values is None:
        windows = zip(columns, spans, strict=True)
        values = [
            value
            for column, (first, stop, _, _) in windows
            for value in column.encoded(first, stop)
        ]
    return values


def each_leaf(tree: Any, make: Callable[[Any], Any]) -> Any:
    """Apply a function to each leaf of a tree of columns or values.

    Example:
        >>> each_leaf({"a": {"b": 1}}, str)
        {'a': {'b': '1'}}
    """
    if isinstance(tree, Column):  # the cheaper check first
        return make(tree)
    if isinstance(tree, Mapping):
        return {name: each_leaf(item, make) for name, item in tree.items()}
    return make(tree)
