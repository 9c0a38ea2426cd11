"""The columns of an episode: one value per step; a sample reads a window of consecutive steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from torch_tfrecord.batch_memory import Ints, splits_of
from torch_tfrecord.columns import LackingError, Want
from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.media import Image
from torch_tfrecord.rlds.episode_index import EpisodeRecord, Frames, Values
from torch_tfrecord.samples import DType
from torch_tfrecord.tfds import Leaf

__all__ = [
    "Decoding",
    "EpisodeColumn",
    "NumberColumn",
    "StepLists",
    "ValueColumn",
    "each_leaf",
    "part_of",
    "read_leaf",
]

_MOST_LENGTH = 1 << 33  # more than fits a record


class EpisodeColumn:
    """One value per step of an episode.

    Attributes:
        num_bytes: Approximate memory it takes.
    """

    # A batch reads from many episodes that are not in the CPU cache: each dict lookup would wait
    # for memory.
    __slots__ = ("num_bytes", "values")

    num_bytes: int
    values: Any

    def __len__(self) -> int:
        """The number of steps."""
        return len(self.values)

    def stored(self, first: int, stop: int) -> Any:
        """The values of steps `first` to `stop` - 1 as they are kept: a list, or a tensor that owns its
        memory.
        """
        raise NotImplementedError

    def decoded(self, stored: Any, first: int, key: int) -> Any:
        """The values of a sample, from the stored ones of the steps from `first` on, by the sample's
        random key.
        """
        return stored

    def read(self, first: int, stop: int, key: int = 0) -> Any:
        """The values of steps `first` to `stop` - 1: see `stored` and `decoded`."""
        return self.decoded(self.stored(first, stop), first, key)

    def at(self, step: int, key: int = 0) -> Any:
        """The value of one step."""
        return self.read(step, step + 1, key)[0]


class NumberColumn(EpisodeColumn):
    """Numbers of equal shape: `read` returns a tensor [steps, *shape].

    Args:
        values: [T, *shape], a tensor or array; not modified.

    Attributes:
        array: A NumPy view of the same memory; None for dtypes that NumPy lacks, such as bfloat16.
    """

    __slots__ = ("array",)

    def __init__(self, values: npt.NDArray[np.generic] | torch.Tensor) -> None:
        self.values = values
        self.array = values if isinstance(values, np.ndarray) else _as_array(values)
        self.num_bytes = values.nbytes

    def stored(self, first: int, stop: int) -> torch.Tensor:
        """[steps, *shape]."""
        rows = self.values[first:stop]
        return rows.clone() if isinstance(rows, torch.Tensor) else torch.from_numpy(rows.copy())


def _as_array(values: torch.Tensor) -> npt.NDArray[np.generic] | None:
    if type(values) is not torch.Tensor:  # subclasses must keep their type
        return None
    try:
        # NumPy is faster for the few rows of a window.
        array: npt.NDArray[np.generic] = values.numpy()
    except (RuntimeError, TypeError):
        return None
    return array


class Decoding(NamedTuple):
    """How the values of a feature are decoded; one object for the columns of all episodes.

    Attributes:
        path: Path of the feature.
        decode: Turns a stored value into that of a sample.
        image: What decodes many images at once, each with the same values; None for other values.
        shape: (height, width, channels) of such images, None for any.
    """

    path: str
    decode: Callable[[Any], object]
    image: Image | None = None
    shape: tuple[int | None, ...] = ()

    def one(self, value: Any, key: int) -> object:
        """A value of a sample, by the sample's random key."""
        if self.image is None or self.image.crop is None:
            return self.decode(value)
        images = self.image._decoded([value], [self.shape], [key])
        return cast("torch.Tensor", images)[0].as_subclass(tv_tensors.Image)


class ValueColumn(EpisodeColumn):
    """Values that are no numbers of one shape, decoded when a sample reads them: texts, pictures,
    nested lists.

    Args:
        values: One per step; the lists of each step as `StepLists`.
        decoding: How to decode one; None takes them as they are.
        record: Where they are from, for errors of `decoding`.
        is_list: Whether a window is a list of the values whatever they are.
    """

    __slots__ = ("_record", "decoding", "is_list")

    def __init__(
        self,
        values: Values | StepLists | Sequence[Any],
        decoding: Decoding | None = None,
        record: EpisodeRecord | None = None,
        *,
        is_list: bool = False,
    ) -> None:
        self.values, self.decoding, self.is_list = values, decoding, is_list
        self._record = record
        if isinstance(values, (Frames, StepLists)):
            self.num_bytes = values.num_bytes
        else:
            # An instruction is one object for all steps.
            different = dict(zip(map(id, values), values, strict=True)).values()
            sizes = (len(one) if isinstance(one, (bytes, str)) else 64 for one in different)
            self.num_bytes = 8 * len(values) + sum(sizes)

    def stored(self, first: int, stop: int) -> list[Any]:
        """The encoded values of steps `first` to `stop` - 1."""
        return part_of(self.values, first, stop)

    def decoded(self, stored: list[Any], first: int, key: int) -> list[Any]:
        """See `EpisodeColumn`; images are `tv_tensors.Image` [C, H, W].

        Raises:
            TFRecordError: A value is damaged; names the file, the record, the feature and the step.
        """
        if self.decoding is None:
            return stored
        path, values = self.decoding.path, []
        for step, value in enumerate(stored, first):
            try:
                values.append(self.decoding.one(value, key))
            except TFRecordError as error:
                text = f"feature {path!r}, step {step}: {error.args[0]}"
                located = type(error)(text)
                if self._record is not None:
                    self._record.locate(located)
                raise located from error.__cause__
        return values


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


class StepLists:
    """The lists of a feature by key, cut by steps under the keys that a record with only that step
    would have.

    Args:
        leaf: Reads one step, without the sequence of steps around it.
        lists: The feature's lists.
        num_steps: Number of steps.

    Raises:
        ParseError: The lists do not fit the number of steps.
    """

    def __init__(self, leaf: Leaf, lists: Mapping[str, Values], num_steps: int) -> None:
        self._parts, self._num_steps = _cut(leaf, lists, num_steps), num_steps
        self.num_bytes = sum(
            ends.nbytes + getattr(values, "nbytes", 64 * len(values))
            for values, ends in self._parts.values()
        )

    def __len__(self) -> int:
        return self._num_steps

    def read(self, first: int, stop: int) -> list[dict[str, Any]]:
        """The lists of steps `first` to `stop` - 1, as copies."""
        return [
            {
                key: part_of(values, *ends[step : step + 2].tolist())
                for key, (values, ends) in self._parts.items()
            }
            for step in range(first, stop)
        ]


def part_of(values: Any, begin: int = 0, end: int | None = None) -> Any:
    """A copy of some of the values of a list."""
    if isinstance(values, (Frames, StepLists)):
        return values.read(begin, len(values) if end is None else end)
    # A sample may change its tensors; the lists are cached.
    part = values[begin:end]
    return part.copy() if isinstance(part, np.ndarray) else list(part)


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
