"""The columns of an episode: one value for each step, of which samples take a few neighbouring ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.tfds.episode_reader import Frames, Spans, read_frames
from torch_tfrecord.values.dtypes import decode_text

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
        path: Of the feature.
        locate: Adds file and record to an error.
    """

    path: str
    locate: Callable[[TFRecordError], TFRecordError]

    def at_step(self, error: TFRecordError, step: int) -> TFRecordError:
        """The error of one step."""
        return self.locate(type(error)(f"feature {self.path!r}, step {step}: {error.args[0]}"))


class Column:
    """One value for each step of an episode.

    Attributes:
        num_bytes: Memory that it keeps, in the main.
    """

    # A batch takes from many episodes that are in no cache: each look into a dict would be a wait for memory.
    __slots__ = ("num_bytes",)

    num_bytes: int

    def __len__(self) -> int:
        """The number of steps."""
        raise NotImplementedError

    def read(self, first: int, stop: int) -> Any:
        """The values of the steps `first` to `stop` - 1: a list, or a tensor of its own memory."""
        raise NotImplementedError

    def at(self, step: int) -> Any:
        """The value of one step."""
        return self.read(step, step + 1)[0]


class NumberColumn(Column):
    """Numbers of one shape: `read` gives a tensor [steps, *shape].

    Args:
        values: [T, *shape], a tensor or array; not changed.

    Attributes:
        array: The same memory as an array; None where there is none, as of bfloat16.
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
    if type(values) is not torch.Tensor:  # others must keep their kind
        return None
    try:
        array: npt.NDArray[np.generic] = values.numpy()
    except (RuntimeError, TypeError):
        return None
    return array


class ListColumn(Column):
    """Values that no tensor holds, such as bytes; a sample has a list of them.

    Args:
        values: One for each step.
        empty: What stands for a missing one with pad="zero".
    """

    __slots__ = ("empty", "values")

    def __init__(self, values: Sequence[Any], empty: object = b"") -> None:
        self.values = values
        self.empty = empty
        self.num_bytes = 8 * len(values) + sum(map(_size, {id(value): value for value in values}.values()))

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
    """Texts, as str; decoded when a sample takes them.

    Args:
        values: UTF-8, one for each step.
        place: Of the feature.
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
    """How the pictures of a feature are decoded many at a time, where `decode_image` is all that decoding does.

    Attributes:
        mode: As of `decode_image`.
        shape: (height, width, channels), None for any.
    """

    mode: str
    shape: tuple[int | None, ...]

    def fits(self, size: Sequence[int]) -> bool:
        """Whether pictures of (height, width) are of this shape."""
        return all(wanted in (None, found) for wanted, found in zip(self.shape, size, strict=False))


class EncodedColumn(Column):
    """Encoded values, such as images, read and decoded when a sample takes them.

    Args:
        values: One for each step.
        decode: From bytes to the value; None hands out the bytes.
        place: Of the feature.
        pictures: What `decode` makes of them, where that is plain `tv_tensors.Image`.
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
        """The bytes of the steps `first` to `stop` - 1, whose checksums were right."""
        return self._values.read(first, stop) if isinstance(self._values, Frames) else list(self._values[first:stop])

    def read(self, first: int, stop: int) -> list[Any]:
        """Of images each a `tv_tensors.Image` [C, H, W]; bytes where nothing is decoded."""
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
    """What `EncodedColumn.encoded` gives of each column's window, one after another."""
    frames = [column._values for column in columns if isinstance(column._values, Frames)]
    values = read_frames(frames, spans) if frames and len(frames) == len(columns) else None
    if values is None:
        windows = zip(columns, spans, strict=True)
        values = [value for column, (first, stop, _, _) in windows for value in column.encoded(first, stop)]
    return values


def each_leaf(tree: Any, make: Callable[[Any], Any]) -> Any:
    """A tree of columns or values, with what is made of each of them.

    Example:
        >>> each_leaf({"a": {"b": 1}}, str)
        {'a': {'b': '1'}}
    """
    if isinstance(tree, Column):  # before the slower question
        return make(tree)
    if isinstance(tree, Mapping):
        return {name: each_leaf(item, make) for name, item in tree.items()}
    return make(tree)
