"""The columns of an episode: one value for each step, of which samples take a few neighbouring ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from torch_tfrecord.arguments import Pad
from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.tfds.episode_reader import Frames, read_frames
from torch_tfrecord.tfds.windows import Span
from torch_tfrecord.values.dtypes import decode_text
from torch_tfrecord.values.stacking import is_ragged

__all__ = [
    "Column",
    "EncodedColumn",
    "ListColumn",
    "NestedColumn",
    "NumberColumn",
    "Pictures",
    "TextColumn",
    "read_encoded",
    "stacked",
]


class Column(Protocol):
    """One value for each step of an episode.

    Attributes:
        num_bytes: Memory that it keeps, in the main.
    """

    num_bytes: int

    def __len__(self) -> int:
        """The number of steps."""

    def at(self, step: int) -> Any:
        """The value of one step."""

    def take(self, span: Span, pad: Pad) -> Any:
        """The values of neighbouring steps; those that are missing are repeated or zero."""


class NumberColumn:
    """Numbers of one shape: each step's are a tensor of its own memory.

    Args:
        values: [T, *shape], a tensor or array; not changed.

    Attributes:
        array: The same memory as an array; None where there is none, as of bfloat16.
    """

    # A batch takes from many episodes that are in no cache: each look into a dict would be a wait for memory.
    __slots__ = ("array", "num_bytes", "values")

    def __init__(self, values: npt.NDArray[Any] | torch.Tensor) -> None:
        self.values = values
        self.array = values if isinstance(values, np.ndarray) else _as_array(values)
        self.num_bytes = values.nbytes

    def __len__(self) -> int:
        return len(self.values)

    def at(self, step: int) -> torch.Tensor:
        """[*shape]."""
        return _tensor(self.values[step : step + 1])[0]

    def take(self, span: Span, pad: Pad) -> torch.Tensor:
        """[steps, *shape]."""
        real = self.values[span.first : span.stop]
        reserve((span.before + len(real) + span.behind) * math.prod(real.shape[1:]) * real.itemsize)
        if not span.before and not span.behind:
            return _tensor(real)
        if pad == "repeat":
            return _tensor(self.values[span.repeated()], is_own=True)
        return _with_zeros(_tensor(real), span)


def _as_array(values: torch.Tensor) -> npt.NDArray[Any] | None:
    if type(values) is not torch.Tensor:  # others must keep their kind
        return None
    try:
        array: npt.NDArray[Any] = values.numpy()
    except (RuntimeError, TypeError):
        return None
    return array


def _tensor(values: npt.NDArray[Any] | torch.Tensor, is_own: bool = False) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.clone()
    return torch.from_numpy(values if is_own else values.copy())


def _with_zeros(real: torch.Tensor, span: Span) -> torch.Tensor:
    padded = real.new_zeros((span.before + len(real) + span.behind, *real.shape[1:]))
    padded[span.before : span.before + len(real)] = real
    return padded


class ListColumn:
    """Values that no tensor holds, such as bytes; a sample has a list of them.

    Args:
        values: One for each step.
        empty: What stands for a missing one with pad="zero".
    """

    def __init__(self, values: Sequence[Any], empty: Any = b"") -> None:
        self.values = values
        self.num_bytes = 8 * len(values) + sum(map(_size, {id(value): value for value in values}.values()))
        self._empty = empty

    def __len__(self) -> int:
        return len(self.values)

    def at(self, step: int) -> Any:
        """The value."""
        return self.values[step]

    def take(self, span: Span, pad: Pad) -> list[Any]:
        """A list of values."""
        return _padded(list(self.values[span.first : span.stop]), span, pad, self._empty)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (bytes, str)) else 64


def _padded(real: list[Any], span: Span, pad: Pad, empty: Any) -> list[Any]:
    front, back = (real[0], real[-1]) if pad == "repeat" else (empty, empty)
    return [front] * span.before + real + [back] * span.behind


class TextColumn(ListColumn):
    """Texts, as str; decoded when a sample takes them.

    Args:
        values: UTF-8, one for each step.
        path: Of the feature, for errors.
        locate: Adds file and record to an error.
    """

    def __init__(self, values: Sequence[bytes], path: str, locate: Callable[[TFRecordError], TFRecordError]) -> None:
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

    def take(self, span: Span, pad: Pad) -> list[str]:
        """A list of str."""
        return _padded([self.at(step) for step in range(span.first, span.stop)], span, pad, "")


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


class EncodedColumn:
    """Encoded values, such as images, read and decoded when a sample takes them.

    Args:
        values: One for each step.
        decode: From bytes to the value; None hands out the bytes.
        path: Of the feature, for errors.
        locate: Adds file and record to an error.
        pictures: What `decode` makes of them, where that is plain `tv_tensors.Image`.
    """

    __slots__ = ("_decode", "_locate", "_path", "_values", "num_bytes", "pictures")

    def __init__(
        self,
        values: Frames | Sequence[bytes],
        decode: Callable[[bytes], Any] | None,
        path: str,
        locate: Callable[[TFRecordError], TFRecordError],
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

    def at(self, step: int) -> Any:
        """The value; of an image a `tv_tensors.Image` [C, H, W]; bytes where nothing is decoded."""
        return self._read(step, step + 1)[0]

    def take(self, span: Span, pad: Pad) -> Any:
        """Images: a `tv_tensors.Video` [steps, C, H, W], a list where sizes differ. Tensors: stacked. Else a list.

        Padding repeats what was decoded once.
        """
        real = self._read(span.first, span.stop)
        return stacked(_padded(real, span, pad, _zero_like(real[0]) if real and pad == "zero" else None))

    def encoded(self, first: int, stop: int) -> list[bytes]:
        """The bytes of the steps `first` to `stop` - 1, whose checksums were right."""
        return self._values.read(first, stop) if isinstance(self._values, Frames) else list(self._values[first:stop])

    def _read(self, first: int, stop: int) -> list[Any]:
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


def read_encoded(columns: Sequence[EncodedColumn], spans: Sequence[Span]) -> list[bytes]:
    """What `EncodedColumn.encoded` gives of each column's window, one after another."""
    frames = [column._values for column in columns if isinstance(column._values, Frames)]
    if frames and len(frames) == len(columns):
        return read_frames(frames, spans)
    windows = zip(columns, spans, strict=True)
    return [value for column, span in windows for value in column.encoded(span.first, span.stop)]


def _at_step(error: TFRecordError, path: str, step: int) -> TFRecordError:
    return type(error)(f"feature {path!r}, step {step}: {error.args[0]}")


class NestedColumn:
    """Values of any other feature, such as sequences in each step: decoded when a sample takes them.

    Args:
        num_steps: The number of steps.
        num_bytes: Memory that it keeps.
        values: From a step and the one behind the last to the values of all of them.
        path: Of the feature, for errors.
        locate: Adds file and record to an error.
    """

    def __init__(
        self,
        num_steps: int,
        num_bytes: int,
        values: Callable[[int, int], list[Any]],
        path: str,
        locate: Callable[[TFRecordError], TFRecordError],
    ) -> None:
        self.num_bytes = num_bytes
        self._num_steps = num_steps
        self._values = values
        self._path = path
        self._locate = locate

    def __len__(self) -> int:
        return self._num_steps

    def at(self, step: int) -> Any:
        """The value."""
        try:
            return self._values(step, step + 1)[0]
        except TFRecordError as error:
            raise self._locate(_at_step(error, self._path, step)) from error.__cause__

    def take(self, span: Span, pad: Pad) -> Any:
        """Stacked where they are tensors of one shape, else a list."""
        try:
            real = self._values(span.first, span.stop)
        except TFRecordError:  # one after another, for the error of the first bad step
            real = [self.at(step) for step in range(span.first, span.stop)]
        return stacked(_padded(real, span, pad, _zero_like(real[0]) if real and pad == "zero" else None))


def _zero_like(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return type(value)()
    zeros = torch.zeros_like(value)  # of a tv_tensor a plain one
    return tv_tensors.wrap(zeros, like=value) if isinstance(value, tv_tensors.TVTensor) else zeros


def stacked(values: list[Any]) -> Any:
    """Tensors of one shape as one tensor, of images a `tv_tensors.Video`; everything else as the list it is."""
    first = values[0] if values else None
    if not isinstance(first, torch.Tensor) or first.is_nested or is_ragged(first):
        return values
    if any(value.is_nested or value.shape != first.shape or value.dtype != first.dtype for value in values):
        return values
    plain = [value.as_subclass(torch.Tensor) for value in values]
    reserve(len(values) * first.nbytes if len(values) > 1 else 0)
    together = plain[0][None] if len(plain) == 1 else torch.stack(plain)  # one needs no copy
    if isinstance(first, tv_tensors.Image):
        return tv_tensors.Video(together)
    return tv_tensors.Mask(together) if isinstance(first, tv_tensors.Mask) else together
