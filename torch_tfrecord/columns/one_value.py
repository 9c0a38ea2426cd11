"""The specs of one bytes value (SerializedTensor, Text, Proto, Json), and the readers that specs of
bytes share.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache, reduce
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from google.protobuf.message import Message
from torch.utils.data import get_worker_info

from torch_tfrecord.batch_memory import Ints, splits_of
from torch_tfrecord.columns.containers import stack
from torch_tfrecord.columns.dtypes import shape_with_names
from torch_tfrecord.columns.feature import Feature, Layout
from torch_tfrecord.columns.lists import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
)
from torch_tfrecord.columns.reading import (
    NO_OFFSETS,
    Column,
    ReadContext,
    Reader,
    StepColumn,
    StepReader,
    Want,
    check_steps,
    labelled,
    read_record,
)
from torch_tfrecord.columns.tensors import parse_tensor, serialize_tensor
from torch_tfrecord.errors import TFRecordError, read_each
from torch_tfrecord.json_text import parse_json
from torch_tfrecord.protobuf import parse_message
from torch_tfrecord.samples import JsonList, JsonObject, Value
from torch_tfrecord.torch_internals import tv_classes

__all__ = ["Json", "OneValueReader", "OneValueSpec", "Proto", "SerializedTensor", "Shape", "Text"]

Shape: TypeAlias = tuple[Any, ...]
"""The shape of one value: ints, -1 or None."""


class OneValueSpec:
    """The shared base of specs of one bytes value, which can be used in an Example, a context or a
    feature list.

    Attributes:
        default_value: What a record that lacks the feature would store; None if that is an error.
    """

    key: str | None
    shape: Any
    default_value: bytes | str | None = None
    _default_type: type[bytes] | type[str] = bytes
    """How the value can be read without decoding."""
    _takes_several = False
    """Whether a value is made of a list with any number of byte strings."""

    def _checked_shape(self, allowed: str, *, unknown: int | None) -> tuple[int | str | None, ...]:
        """The spec's shape, whose entries may name other features; ``unknown`` (None or -1) marks
        an unknown size.
        """
        shape = shape_with_names(self.shape, allowed, unknown=unknown)
        object.__setattr__(self, "shape", shape)
        return shape

    @property
    def _is_drawn(self) -> bool:
        """Whether something is drawn at random for each record, by its key."""
        return False

    def _value(self, stored: Any, shape: Shape, key: int) -> object:
        """A value from the record's bytes, or from a list of them; the shape is the spec's, with the
        record's sizes, and the key random. The bytes are views of a buffer that may be reused after
        the call.
        """
        raise NotImplementedError

    def _column(self, values: list[Value]) -> Value:
        """The batch's column of several values."""
        return stack(values)

    def __post_init__(self) -> None:
        """Check the fields: a default must be what the reader of records takes."""
        super().__post_init__()  # type: ignore[misc]
        default = self.default_value
        if default is None:
            return
        if not isinstance(default, self._default_type):
            raise TypeError(
                f"default_value must be {self._default_type.__name__} or None, got {type(default).__name__}"
            )
        # Reads the default as it would a record's bytes, so that a bad one fails here.
        reader: Any = self._reader("")
        if len(reader.wants) > 1:
            raise ValueError(
                "default_value needs a shape without keys, which a record may lack, too"
            )
        try:
            reader.from_values([reader.default], [tuple(reader.shape)])
        except TFRecordError as error:
            raise ValueError(f"default_value: {error}") from error

    def _reader(self, name: str, *, pads: bool = False) -> OneValueReader:
        """Build the reader for Examples."""
        return OneValueReader(name, self)

    def _undecoded(self, *, is_step: bool = False, but_images: bool = False) -> Feature:
        key, dtype = self.key, self._default_type
        if is_step:
            return FixedLenSequenceFeature((), dtype, key=key)
        if self._takes_several:
            return VarLenFeature(dtype, key=key)
        return FixedLenFeature((), dtype, self.default_value, key=key)

    def _context_reader(self, name: str) -> Reader:
        """Build the reader for a context; random draws are not supported."""
        self._check_no_draw(name)
        return self._reader(name)

    def _step_reader(self, name: str, *, pads: bool = False) -> StepReader:
        """Build the reader for a feature list; random draws and defaults are not supported."""
        self._check_no_draw(name)
        if self.default_value is not None:
            raise ValueError(
                f"default_value of {name!r}: a step of a feature list always has its value"
            )
        self._check_step(name)
        return _ValueSteps(self._reader(name), pads=pads)

    def _check_step(self, name: str) -> None:
        """Raise ValueError if a step of a feature list cannot have such a value."""

    def _check_no_draw(self, name: str) -> None:
        """Raise ValueError if something is drawn at random for each record."""


class SerializedTensor(OneValueSpec, Feature):
    """A tensor written by ``tf.io.serialize_tensor`` (a TensorProto), in one bytes value.

    A sample is the stored tensor with its shape and dtype, or a (nested) list of bytes for a string
    tensor. A batch is stacked if all shapes and dtypes are equal, else a list.

    Args:
        key: Name of the feature in the record, if it differs from the output's name.
    """

    def _value(self, stored: memoryview, shape: Shape, key: int) -> object:
        return parse_tensor(stored)

    def _stored(self, value: object) -> object:
        """A tensor, array or nested list of strings as a TensorProto; bytes are one already."""
        return value if isinstance(value, bytes) else serialize_tensor(value)


@dataclass(frozen=True, repr=False)
class Text(OneValueSpec, Feature):
    """One string in strict UTF-8. A sample is a str, a batch a list of str.

    Args:
        key: Name of the feature in the record, if it differs from the output's name.
        default_value: The text of a record that lacks the feature; None if that raises ParseError.

    Raises:
        TypeError: ``default_value`` is not a str.
    """

    _: KW_ONLY
    default_value: str | None = None
    _default_type = str
    _makes_objects = True
    _undecoded = Feature._undecoded

    def _layout(self) -> Layout:
        return str, ()

    def _reader(self, name: str, *, pads: bool = False) -> OneValueReader:
        """Build the reader for Examples."""
        return _TextReader(name, self)

    def _value(self, stored: str, shape: Shape, key: int) -> str:
        return stored


@dataclass(frozen=True, repr=False)
class Proto(OneValueSpec, Feature):
    """A protobuf message in one bytes value, parsed with your generated class.

    A sample is the message, a batch a list of messages. Records that are such messages themselves:
    give the spec alone, ``TFRecordDataset(path, Proto(Scenario))``.

    Args:
        message_class: The class, as ``protoc`` generates it. DataLoader workers send messages by
            the name of their class, which must be importable.
        key: Name of the feature in the record, if it differs from the output's name.

    Raises:
        TypeError: ``message_class`` is not a class of messages.

    Example:
        >>> from scenario_pb2 import Scenario  # doctest: +SKIP
        >>> TFRecordDataset("data/scenarios-*", Proto(Scenario))[0].scenario_id  # doctest: +SKIP
    """

    _makes_objects = True

    message_class: type[Message]

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if not isinstance(self.message_class, type) or not issubclass(self.message_class, Message):
            raise TypeError(
                f"message_class must be a generated protobuf class, got {self.message_class!r}"
            )

    def _value(self, stored: memoryview, shape: Shape, key: int) -> object:
        kind, what = self.message_class, self.message_class.DESCRIPTOR.full_name
        # a queue that cannot send it would leave the loader waiting forever
        if get_worker_info() is not None and not _is_importable(kind):  # type: ignore[arg-type]
            raise TypeError(
                f"Proto: a DataLoader worker sends messages by the name of their class, and {what} cannot be "
                "imported: take the class from a module that protoc generated, or use num_workers=0"
            )
        return parse_message(stored, kind, what)

    def _stored(self, value: object) -> object:
        """A message as its bytes."""
        return value.SerializeToString() if isinstance(value, self.message_class) else value


@lru_cache
def _is_importable(kind: type) -> bool:
    # As pickle finds a class: by its module and its qualified name.
    try:
        found: Any = reduce(getattr, kind.__qualname__.split("."), sys.modules[kind.__module__])
    except (AttributeError, KeyError):
        return False
    return found is kind


@dataclass(frozen=True, repr=False)
class Json(OneValueSpec, Feature):
    """JSON text in one bytes value, as Python objects.

    A sample is what the text says (dict, list, str, int, float, bool or None). A batch holds the
    same: a tensor of numbers (int64, or float64 if one is a float) or of bools; else a list, so
    also where bools are among numbers, an integer exceeds int64, or one beside a float exceeds
    float64's 53 bits. `parse_example` gives a list.

    Records that are JSON themselves: give the spec alone, ``TFRecordDataset(path, Json())``. For
    the JSON form of Examples: ``NestedExample(features, format="json")``.

    The text must be JSON in UTF-8, of 200 levels at most: NaN and Infinity, which Python writes,
    raise ParseError.

    Args:
        key: Name of the feature in the record, if it differs from the output's name.
    """

    _default_type = str
    _makes_objects = True

    def _value(self, stored: memoryview, shape: Shape, key: int) -> Value:
        value = parse_json(stored)
        # Types of their own, since collating takes plain dicts and lists apart.
        return (
            JsonObject(value)
            if isinstance(value, dict)
            else JsonList(value)
            if isinstance(value, list)
            else value
        )

    def _stored(self, value: object) -> object:
        """A value as JSON text; bytes are the text already."""
        # Not escaped: the bytes are UTF-8 anyway, and text beyond ASCII is shorter so.
        return value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)


class OneValueReader:
    """Reads a single bytes value, or all bytes values of a list together.

    Args:
        name: Name of the output.
        spec: Its spec, which makes the values. In its ``shape``, if it has one, names of other
            features are replaced with their values; a str names a list feature that has the whole
            shape.

    Attributes:
        default: What is converted for a record that lacks the feature.
        keyed: Whether it takes the records' random keys: see `Reader`.
        shape: The shape; a `Want` in place of each name.
    """

    def __init__(self, name: str, spec: Any) -> None:
        self._spec, self._several, self.keyed = spec, spec._takes_several, spec._is_drawn
        kind, num_values = type(spec).__name__, None if self._several else 1
        default, shape = spec.default_value, getattr(spec, "shape", None) or ()
        self.default = [default] if self._several else default
        self._want = Want(
            name,
            spec._key_of(name),
            bytes,
            kind,
            num_values=num_values,
            is_required=default is None,
        )
        self._is_whole = isinstance(shape, str)
        what, count = ("shape", None) if self._is_whole else ("size", 1)
        self.shape: list[Value] = [
            Want(name, entry, torch.int64, what, num_values=count, is_required=True)
            if isinstance(entry, str)
            else entry
            for entry in ([shape] if self._is_whole else shape)
        ]
        self.wants = (self._want, *(entry for entry in self.shape if isinstance(entry, Want)))

    def read(self, columns: Sequence[Column], keys: Sequence[int] | None = None) -> Value:
        """The batch's column: one tensor [N, ...] if all shapes and dtypes are equal, else a
        list.
        """
        values: list[Value] = columns[0].views()
        if self._several:
            values = [values[begin:end] for begin, end in columns[0].bounds()]
        values = self._completed(values, columns[0])
        return self._labelled(self.from_values, values, self._shapes(columns), keys)

    def _labelled(self, convert: Callable[..., Value], *args: object) -> Value:
        """Call it and add the feature's label to its errors."""
        return labelled(self._want, convert, *args)

    def _completed(self, values: list[Value], column: Column) -> list[Value]:
        """The values, with the default of records that lack the feature."""
        if column.missing is not None:
            for row in column.missing.nonzero()[0]:
                values[row] = self.default
        return values

    def from_values(
        self, values: Sequence[Value], shapes: Sequence[Shape], keys: Sequence[int] | None = None
    ) -> Value:
        """The column of several values with their shapes and random keys."""
        each = zip(values, shapes, [0] * len(values) if keys is None else keys, strict=True)
        return self._spec._column(read_each(lambda one: self._spec._value(*one), each))

    def _shapes(self, columns: Sequence[Column]) -> list[Shape]:
        """The shape of each record's value."""
        num_records = (
            max(len(columns[0].offsets) - 1, 0) if self._several else len(columns[0].values)
        )
        sizes = iter(columns[1:])
        if len(columns) == 1:
            return [tuple(self.shape)] * num_records
        if self._is_whole:
            found = _sizes(self.shape[0], columns[1])
            return [tuple(found[begin:end]) for begin, end in columns[1].bounds()]
        entries = [
            _sizes(entry, next(sizes)) if isinstance(entry, Want) else [entry] * num_records
            for entry in self.shape
        ]
        return list(zip(*entries, strict=True))


def _sizes(want: Want, column: Column) -> list[int]:
    sizes: list[int] = column.values.tolist()
    # In a spec -1 is a size to be found out; in a record it is a bad size.
    if min(sizes, default=0) < 0:
        raise want.error(f"expected a size, got {min(sizes)}")
    return sizes


class _TextReader(OneValueReader):
    """Reads a Text: a list of N str, one per record."""

    is_plain = is_text = True

    def read(self, columns: Sequence[Column], keys: object = None) -> list[str]:
        return self._completed(self._labelled(columns[0].strings, str), columns[0])


class _ValueSteps(StepReader):
    """Reads the steps of a spec of one bytes value. Sizes come from the step or the context.

    A sample is stacked if all steps have the same shape and dtype (images to a
    ``tv_tensors.Video``), else a list.

    Args:
        reader: Reads the spec from an Example.
        pads: Whether samples of equal shape are stacked, too; else the column is a list of samples.
    """

    is_required = True

    def __init__(self, reader: Reader, *, pads: bool) -> None:
        super().__init__(*reader.wants)
        self._reader, self._pads = reader, pads
        self.context_wants = self.wants[1:]

    def read(self, lists: Sequence[StepColumn], context: ReadContext) -> torch.Tensor | list[Value]:
        """The batch's column."""
        want, borders = self.step_wants[0], lists[0].borders
        check_steps(want, lists[0], is_required=True)
        pairs = enumerate(zip(self.step_wants[1:], lists[1:], strict=True))
        sizes = [
            _step_sizes(want, column, borders, context, place) for place, (want, column) in pairs
        ]
        values = lists[0].steps
        # Where each step must have one value, which was checked, the reader expects no offsets.
        columns = [
            values if want.num_values is None else values._replace(offsets=NO_OFFSETS),
            *sizes,
        ]
        samples = read_each(lambda ends: self._sample(columns, *ends), pairwise(borders.tolist()))
        return labelled(want, stack, samples) if self._pads else samples

    def _sample(
        self, columns: Sequence[Column], begin: int, end: int
    ) -> torch.Tensor | list[Value]:
        """Read one record's steps as a batch of records."""
        # No step has the size or the dtype, so there is no tensor to make.
        if begin == end:
            return []
        found: torch.Tensor | list[Value] = read_record(
            self._reader, [column.part(begin, end) for column in columns]
        )
        if isinstance(found, tv_classes("Image")) and found.dim() == 4:
            # Pictures of equal size in the steps of a record are its frames.
            return found.as_subclass(tv_classes("Video")[0])
        return found


def _step_sizes(
    want: Want, column: StepColumn, borders: Ints, context: ReadContext, place: int
) -> Column:
    """The size or shape of each step: from the step if the record's list has one per step, else
    from the context.

    Raises:
        ParseError: There is not exactly one number per step, or not at least one for a whole shape.
    """
    values, ends = column.steps.values, column.steps.offsets
    found: list[Ints] = []
    for record, (begin, end) in enumerate(pairwise(borders.tolist())):
        first, last = column.borders[record : record + 2].tolist()
        found += [values[ends[row] : ends[row + 1]] for row in range(first, last)][: end - begin]
        # A list of sizes may be shorter than that of the values: the context has the rest.
        if len(found) < end:
            shared, shared_ends = context()[place][:2]
            row = shared[shared_ends[record] : shared_ends[record + 1]]
            found += [row] * (end - len(found))
    counts = [*map(len, found)]
    if any(count < 1 or (want.num_values == 1 and count > 1) for count in counts):
        raise want.error(
            "expected one value" if want.num_values == 1 else "expected at least one size, got none"
        )
    taken = np.concatenate([*found, NO_OFFSETS])
    return Column(taken, NO_OFFSETS if want.num_values == 1 else splits_of(counts), None, b"")
