"""The columns of an episode: one value for each step, of which samples take a few neighbouring ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.tfds.episode_reader import Frames, read_frames
from torch_tfrecord.values.dtypes import decode_text

__all__ = [
    "Column",
    "EncodedColumn",
    "ListColumn",
    "NestedColumn",
    "NumberColumn",
    "Pictures",
    "TextColumn",
    "own_tensor",
    "read_encoded",
]

_Locate: TypeAlias = Callable[[TFRecordError], TFRecordError]


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

    def __init__(self, values: npt.NDArray[Any] | torch.Tensor) -> None:
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


def own_tensor(values: npt.NDArray[Any] | torch.Tensor) -> torch.Tensor:
    """A copy."""
    return values.clone() if isinstance(values, torch.Tensor) else torch.from_numpy(values.copy())


def _as_array(values: torch.Tensor) -> npt.NDArray[Any] | None:
    if type(values) is not torch.Tensor:  # others must keep their kind
        return None
    try:
        array: npt.NDArray[Any] = values.numpy()
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
        path: Of the feature, for errors.
        locate: Adds file and record to an error.
    """

    __slots__ = ("_locate", "_path")

    def __init__(self, values: Sequence[bytes], path: str, locate: _Locate) -> None:
        super().__init__(values, "")
        self._path = path
        self._locate = locate

    def at(self, step: int) -> str:
        """The text.

        Raises:
            ParseError: It is not UTF-8.
        """
        try:
            return decode_text(self.values[step])
        except ParseError as error:
            raise self._locate(_at_step(error, self._path, step)) from error.__cause__


def _at_step(error: TFRecordError, path: str, step: int) -> TFRecordError:
    return type(error)(f"feature {path!r}, step {step}: {error.args[0]}")


class Pictures:
    """How the pictures of a feature are decoded many at a time, where `decode_image` is all that decoding does.

    Args:
        mode: As of `decode_image`.
        shape: (height, width, channels), None for any.
    """

    def __init__(self, mode: str, shape: tuple[int | None, ...]) -> None:
        self.mode = mode
        self._shape = shape

    def fits(self, size: Sequence[int]) -> bool:
        """Whether pictures of (height, width) are of this shape."""
        return all(wanted in (None, found) for wanted, found in zip(self._shape, size, strict=False))


class EncodedColumn(Column):
    """Encoded values, such as images, read and decoded when a sample takes them.

    Args:
        values: One for each step.
        decode: From bytes to the value; None hands out the bytes.
        path: Of the feature, for errors.
        locate: Adds file and record to an error.
        pictures: What `decode` makes of them, where that is plain `tv_tensors.Image`.
    """

    __slots__ = ("_decode", "_locate", "_path", "_values", "pictures")

    def __init__(
        self,
        values: Frames | Sequence[bytes],
        decode: Callable[[bytes], Any] | None,
        path: str,
        locate: _Locate,
        pictures: Pictures | None = None,
    ) -> None:
        self.pictures = pictures
        self.num_bytes = values.num_bytes if isinstance(values, Frames) else sum(map(len, values))
        self._values = values
        self._decode = decode
        self._path = path
        self._locate = locate

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
                raise self._locate(_at_step(error, self._path, step)) from error.__cause__
        return values


def read_encoded(columns: Sequence[EncodedColumn], spans: Sequence[tuple[int, int, int, int]]) -> list[bytes]:
    """What `EncodedColumn.encoded` gives of each column's `Span`, one after another."""
    frames = [column._values for column in columns if isinstance(column._values, Frames)]
    if frames and len(frames) == len(columns):
        return read_frames(frames, spans)
    windows = zip(columns, spans, strict=True)
    return [value for column, (first, stop, _, _) in windows for value in column.encoded(first, stop)]


class NestedColumn(Column):
    """Values of any other feature, such as sequences in each step: decoded when a sample takes them.

    Args:
        num_steps: The number of steps.
        num_bytes: Memory that it keeps.
        values: From a step and the one behind the last to the values of all of them.
        path: Of the feature, for errors.
        locate: Adds file and record to an error.
    """

    __slots__ = ("_locate", "_num_steps", "_path", "_values")

    def __init__(
        self, num_steps: int, num_bytes: int, values: Callable[[int, int], list[Any]], path: str, locate: _Locate
    ) -> None:
        self.num_bytes = num_bytes
        self._num_steps = num_steps
        self._values = values
        self._path = path
        self._locate = locate

    def __len__(self) -> int:
        return self._num_steps

    def read(self, first: int, stop: int) -> list[Any]:
        """The values."""
        try:
            return self._values(first, stop)
        except TFRecordError as error:
            if stop == first + 1:
                raise self._locate(_at_step(error, self._path, first)) from error.__cause__
            # One after another, for the error of the first bad step.
            return [value for step in range(first, stop) for value in self.read(step, step + 1)]
