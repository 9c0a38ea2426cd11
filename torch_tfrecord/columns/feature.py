"""The base class of all feature specs, and the readers they build.

::

    Feature                         key: the name in the record, if it differs from the output's name
    ├── FixedLenFeature             a known number of values       -> tensor of a shape
    ├── VarLenFeature               any number of values           -> 1-D tensor, batch: jagged
    ├── FixedLenSequenceFeature     any number of rows of a shape  -> tensor [T, *shape]
    ├── RaggedFeature               values and their partitions    -> tensor, jagged nested tensor, RaggedTensor
    ├── SparseFeature               values and their indices       -> torch.sparse_coo
    ├── Image                       encoded image                  -> tv_tensors.Image
    ├── Audio                       sound file                     -> float32 tensor [channels, samples]
    ├── Video                       video file                     -> tv_tensors.Video
    ├── RawTensor                   raw bytes of an array          -> tensor
    ├── SerializedTensor            TensorProto                    -> tensor
    ├── Text                        UTF-8 bytes                    -> str
    ├── Json                        JSON text                      -> Python object
    ├── Proto                       message of the user's class    -> message
    └── NestedExample               serialized Example             -> dict (in ``parsing``: it parses)
    SequenceFeatures                specs for the context and the feature lists of a SequenceExample
    ListFeatures             specs for the context and the Examples of a list of Examples

Specs are frozen classes that are validated when built; they have no state, compare and hash by
value, pickle, and print as the code that builds them. Each is in one module with its readers.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from torch_tfrecord.columns.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST, DType
from torch_tfrecord.columns.reading import NO_OFFSETS, Column, Reader, StepColumn, StepReader
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.extensions import attached, is_there
from torch_tfrecord.protobuf import ListValues
from torch_tfrecord.samples import LeadingPart
from torch_tfrecord.shown import features_code, show_code

__all__ = [
    "Feature",
    "Layout",
    "SequenceFeatures",
    "copy_mappings",
    "make_context_reader",
    "make_reader",
    "make_step_reader",
]

_MISSING = ("NAType", "NaTType")  # from pandas, which is not imported for it
_ASKED = -2  # see `Encoder.count`


class ValueEncoder:
    """Turns a value into the values of one list; what it accepts, the reader reads back.

    Args:
        reader: The spec's reader.
        stored: Turns a value into what the record has, such as an array into its bytes.
        shape: Shape of one row, where the list may have any number of them.
        reads_back: Whether to call the reader on the result; not where that would decode a picture
            or a sound.
        is_plain: Whether the reader gives all values of its kind back as they are.
    """

    def __init__(
        self,
        reader: Reader,
        stored: Callable[[object], object],
        shape: tuple[int, ...],
        *,
        reads_back: bool,
        is_plain: bool,
    ) -> None:
        self._reader, self._stored, self._reads_back = reader, stored, reads_back
        self._want = reader.wants[0]
        num_values = self._want.num_values
        self._row = shape if num_values is None else self._want.shape
        self.kind = self._want.kind.field
        any_number = _ASKED if shape else -1
        self.count = _ASKED if not is_plain else any_number if num_values is None else num_values

    def __call__(self, value: object) -> ListValues | None:
        """The values, or None where the record should lack the key.

        Raises:
            TypeError: The value has a type that the list does not take.
            ValueError: The value is required and missing, or the spec would not read it back.
        """
        want = self._want
        if self._is_missing(value):
            if want.is_required:
                raise ValueError(
                    f"{want.label}: expected a value, got {value!r}, and the spec has no default_value"
                )
            return None
        try:
            found = self._in_list(value)
            self._check(found)
        except TypeError as error:
            raise TypeError(f"{want.label}: {error}") from error
        except TFRecordError as error:
            raise ValueError(str(error)) from error
        except ValueError as error:
            raise ValueError(f"{want.label}: {error}") from error
        # Where the key may be missing, reading gives the same without it, in fewer bytes.
        is_left_out = not len(found.values) and not want.is_required
        return None if is_left_out else found

    def _is_missing(self, value: object) -> bool:
        """Whether pandas and others write a missing value so; NaN is a value among floats alone."""
        if value is None or type(value).__name__ in _MISSING:
            return True
        is_nan = isinstance(value, (float, np.floating)) and value != value
        return is_nan and self._want.kind is not FLOAT_LIST

    def _in_list(self, value: object) -> ListValues:
        kind = self._want.kind
        # An empty list has no type of its own, so it is of the spec's kind.
        if isinstance(value, (list, tuple)) and not value:
            return ListValues.empty(kind.field)
        if kind is INT64_LIST and isinstance(value, (float, np.floating)) and value.is_integer():
            value = int(value)  # pandas makes floats of integers where one is missing
        try:
            found = ListValues.of(self._stored(value))
        except TFRecordError as error:
            raise ValueError(error.args[0]) from error
        # People write 1 for 1.0: taken where float32 holds the integer exactly.
        if kind is FLOAT_LIST and found.kind == INT64_LIST.field:
            single = np.array(found.values, np.float32)
            if single.tolist() != found.values.tolist():
                raise ValueError(
                    "expected integers that float32 holds, got one beyond 2**24 that it would round"
                )
            found = found._replace(kind=kind.field, values=single)
        if found.kind != kind.field:
            raise found.error(kind.field, type(value))
        return found

    def _check(self, found: ListValues) -> None:
        want, values = self._want, found.values
        count = len(values)
        if want.num_values not in (None, count):
            raise want.wrong_count(count)
        if len(found.shape) > 1 and found.shape[want.num_values is None :] != self._row:
            any_number = "any number of rows of " if want.num_values is None else ""
            raise ValueError(
                f"expected {any_number}shape {[*self._row]}, or a flat list, got {[*found.shape]}"
            )
        if not self._reads_back:
            return
        buffer = b""
        if want.kind is BYTES_LIST:
            # As the core gives them: one buffer, and the span of each string in it.
            buffer, sizes = b"".join(values), np.array([*map(len, values)], np.int64)
            values = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1)
        # The forms that `Column` promises, for a batch of one record.
        offsets = NO_OFFSETS if want.num_values is not None else np.array([0, count])
        if want.num_values not in (None, 1):
            values = values[None]
        self._reader.read([Column(values, offsets, None, buffer)])


Layout: TypeAlias = "tuple[DType, tuple[int | None, ...]]"
"""Dtype of a spec's values, and the size of each dimension of a sample; None for any."""


@dataclass(frozen=True, repr=False)
class Feature:
    """The base class of all feature specs.

    Args:
        key: Name of the feature in the record; None means the name of the output.
    """

    _: KW_ONLY
    key: str | None = None
    _decodes = False
    """Whether reading decodes a picture or a sound, so that a written value is not read back to check it."""

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.key is not None and not isinstance(self.key, str):
            raise TypeError(f"key must be str or None, got {type(self.key).__name__}")

    def __repr__(self) -> str:
        """Show the Python code that builds this spec."""
        return show_code(self, _code)

    def _key_of(self, name: str) -> str:
        """The name in the record, given the name of the output."""
        return name if self.key is None else self.key

    def _encoder(self, name: str) -> ValueEncoder:
        """Build what turns a row's value into the values that `reader` reads back; see
        `encode_example`.

        Raises:
            TypeError: The spec cannot be written by: it reads several keys.
        """
        reader = self._reader(name)
        # Partitions of one length want no key of their own, yet they split the value.
        if len(reader.wants) > 1 or getattr(self, "partitions", None):
            raise TypeError(
                f"feature {name!r}: {self!r} cannot be written by, since it puts a value together from several parts: "
                "give each key that it reads a spec of its own"
            )
        shape = getattr(self, "shape", ())
        is_plain = type(self)._stored is Feature._stored and not self._decodes
        is_plain &= getattr(self, "dtype", None) in (torch.int64, torch.float32, bytes)
        return ValueEncoder(
            reader, self._stored, shape, reads_back=not self._decodes, is_plain=is_plain
        )

    def _stored(self, value: object) -> object:
        """The record's list for a row's value, to be checked and widened by the kind of the
        list.
        """
        return value

    # Questions that tables ask of it.

    _may_lack = False
    """Whether a sample does not tell that its record lacks the feature."""

    def _missing(self, name: str) -> Feature | None:
        """A spec of which records lack the feature; None for one that every record has."""
        return _Missing(self, name) if self._may_lack else None

    @property
    def _makes_objects(self) -> bool:
        """Whether its values are Python objects: bytes, str, messages or JSON."""
        return getattr(self, "dtype", None) in (bytes, str)

    def _layout(self) -> Layout | dict[str, Any]:
        """How its values are laid out; by name those of a dict's parts.

        Raises:
            TypeError: The spec does not say.
        """
        raise TypeError(f"no Arrow type is known for {self!r}")

    def _undecoded(self, *, is_step: bool = False, but_images: bool = False) -> Feature:
        """The spec that reads what is stored, where this one would decode it.

        Args:
            is_step: For a feature list.
            but_images: Leave images decoded.
        """
        return self

    # The part that a transform may take of a value before it is decoded.

    @property
    def _has_pictures(self) -> bool:
        """Whether its values have pictures, which torchvision's transforms change."""
        return False

    def _leading(self, transform: object) -> LeadingPart | None:
        """The beginning of a transform, where it needs only a part of the encoded value."""
        return None

    def _opened(self, data: bytes) -> object:
        """An encoded value as `LeadingPart` takes it; raises what decoding would."""
        raise NotImplementedError

    # A spec can be used wherever it implements one of these.

    def _reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples; see `make_reader`."""
        raise NotImplementedError

    def _context_reader(self, name: str) -> Reader:
        """Build the reader for the context of SequenceExamples."""
        raise NotImplementedError

    def _step_reader(self, name: str, *, pads: bool = False) -> StepReader:
        """Build the reader for a feature list of SequenceExamples."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class _Missing(Feature):
    """Whether each record lacks another feature: bool [N]."""

    spec: Feature
    name: str

    def _reader(self, name: str, *, pads: bool = False) -> Reader:
        return _MissingReader(self.spec._reader(self.name))

    def _context_reader(self, name: str) -> Reader:
        return _MissingReader(self.spec._context_reader(self.name))

    def _step_reader(self, name: str, *, pads: bool = False) -> StepReader:
        return _MissingSteps(self.spec._step_reader(self.name).step_wants[0])


class _MissingReader:
    def __init__(self, reader: Reader) -> None:
        self.wants = reader.wants

    def read(self, columns: Sequence[Column]) -> torch.Tensor:
        masks = [column.missing for column in columns if column.missing is not None]
        if len(masks) < len(columns):
            return torch.zeros(len(columns[0].offsets) - 1, dtype=torch.bool, device="cpu")
        # With several keys, all: one of them still says something.
        return torch.from_numpy(np.stack(masks).all(axis=0))


class _MissingSteps(StepReader):
    def read(self, lists: Sequence[StepColumn], context: object) -> torch.Tensor:
        return torch.from_numpy(lists[0].missing != 0)


@dataclass(frozen=True)
class SequenceFeatures:
    """The features to read from SequenceExamples; pass it to a dataset as ``features``.

    Each sample is then ``(context, sequences)``, two dicts as from
    ``parse_single_sequence_example``.

    Args:
        context_features: Output name -> spec, for the context.
        sequence_features: Output name -> spec, for the feature lists.

    Raises:
        TypeError: One of them is not a mapping.
        ValueError: Both are None or empty.

    Example:
        >>> from torch_tfrecord import Image
        >>> SequenceFeatures(sequence_features={"frame": Image()})
        SequenceFeatures(context_features={}, sequence_features={'frame': Image()})
    """

    context_features: Mapping[str, Feature] | None = None
    sequence_features: Mapping[str, Feature] | None = None

    def __post_init__(self) -> None:
        """Check and copy the fields."""
        copy_mappings(self, "context_features", "sequence_features")
        if not self.context_features and not self.sequence_features:
            raise ValueError(
                "Both `context_features` and `sequence_features` argument are None, "
                "but at least one should have values."
            )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        """Show the Python code that builds it, with its imports."""
        return features_code(self)


def copy_mappings(features: object, *names: str) -> None:
    """Copy these fields, mappings of specs, where None becomes an empty one; TypeError for anything
    else.
    """
    for name in names:
        given = getattr(features, name)
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"{name} must be a mapping of names to specs, got {type(given).__name__}"
            )
        # Copied, as a frozen spec must not change when the caller's dict does.
        object.__setattr__(features, name, dict(given or {}))


def make_reader(name: str, spec: Feature | Reader, *, pads: bool = False) -> Reader:
    """Build the reader of one output of an Example.

    Args:
        name: Name of the output.
        spec: What to read; a reader reads it already.
        pads: Whether the rows of a FixedLenSequenceFeature are padded in a batch; else they are
            jagged.

    Raises:
        TypeError: The name is not a str, or the spec is not a known feature spec.
        ValueError: The spec cannot be read from an Example.
    """
    if isinstance(spec, Feature) or not hasattr(spec, "wants"):
        _check("_reader", name, spec, "an Example")
    return spec._reader(name, pads=pads) if isinstance(spec, Feature) else spec


def make_context_reader(name: str, spec: Feature) -> Reader:
    """:func:`make_reader` for the context of a SequenceExample; raises ValueError for other
    specs.
    """
    _check("_context_reader", name, spec, "a context")
    return spec._context_reader(name)


def make_step_reader(name: str, spec: Feature, *, pads: bool = False) -> StepReader:
    """:func:`make_reader` for a feature list of a SequenceExample; raises ValueError for other
    specs.
    """
    _check("_step_reader", name, spec, "a feature list")
    return spec._step_reader(name, pads=pads)


_Method = Literal["_reader", "_context_reader", "_step_reader"]


def _check(method: _Method, name: object, spec: object, where: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a name in features must be str, got {type(name).__name__}")
    if not _makes(method, type(spec)):
        hint = "" if isinstance(spec, Feature) else _hint(spec)
        text = f"Unsupported {type(spec).__name__} for key {name!r} of {where}: expected one of {_kinds(method)}{hint}"
        # As in TensorFlow, a spec in the wrong place is a ValueError; other objects are no specs at
        # all.
        raise (ValueError if _makes("_reader", type(spec)) else TypeError)(text)


def _makes(method: _Method, kind: type) -> bool:
    return issubclass(kind, Feature) and getattr(kind, method) is not getattr(Feature, method)


def _kinds(method: _Method) -> str:
    """The names of all specs of this package that build such a reader."""
    # All specs register as subclasses, once their modules are imported.
    for module in pkgutil.iter_modules([str(Path(__file__).parent)], f"{__package__}."):
        importlib.import_module(module.name)
    if is_there("media"):
        attached("media", "Image")
        attached("media", "Video")
    known = [
        kind for kind in Feature.__subclasses__() if kind.__module__.startswith("torch_tfrecord.")
    ]
    names = (kind.__name__ for kind in known if _makes(method, kind))
    return ", ".join(sorted(name for name in names if not name.startswith("_")))


def _hint(value: object) -> str:
    """A hint on what to write instead of a value that is not a spec, for the end of an error text.

    Example:
        >>> _hint(torch.int64)
        '; for one torch.int64 in each record: FixedLenFeature((), torch.int64)'
    """
    if type(value).__module__.partition(".")[0] == "tensorflow":
        return "; this one is TensorFlow's: use torch_tfrecord's, with a torch dtype"
    if isinstance(value, type) and issubclass(value, Feature):
        return f"; this one is the class: {value.__name__}(...) makes a spec of it"
    dtype = _meant_dtype(value)
    if dtype is not None:
        return f"; for one {_code(dtype)} in each record: FixedLenFeature((), {_code(dtype)})"
    return "; for one integer in each record: FixedLenFeature((), torch.int64)"


def _meant_dtype(value: object) -> DType | None:
    """The dtype that the user probably means by a dtype or its name in place of a spec."""
    found = getattr(torch, value, None) if isinstance(value, str) else value
    if isinstance(found, torch.dtype):
        return found
    if value is bytes or value is str:
        return type(value())
    if not isinstance(value, (type, np.dtype)):
        return None
    try:
        # NumPy dtypes, and Python's int, float and bool
        return torch.from_numpy(np.zeros(0, value)).dtype
    except TypeError:
        return None


def _code(value: object) -> str:
    """The value as Python code: dtypes and types by name, anything else by repr."""
    return value.__name__ if isinstance(value, type) else repr(value)
