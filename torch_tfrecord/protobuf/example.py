"""Encode and decode tf.train.Example and SequenceExample without a feature spec.

::

    Example                  features: {key: Feature}
    SequenceExample          context: {key: Feature}, feature_lists: {key: [Feature, one per step]}
    Feature                  one of  bytes_list | float_list | int64_list  (or none: the kind is not set)

The wire format is protobuf's: what protobuf accepts is read with the same values, what it rejects
raises ParseError.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import Encoder, WritableSpec
from torch_tfrecord.batch_memory import Buffer, Ints
from torch_tfrecord.errors import locate_value
from torch_tfrecord.native import native_module
from torch_tfrecord.protobuf.messages import (
    Example,
    FeatureMessage,
    FloatList,
    ListMessage,
    SequenceExample,
    parse_message,
    varint,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "ListValues",
    "RowEncoder",
    "Values",
    "decode_example",
    "decode_sequence_example",
    "encode_example",
    "encode_sequence_example",
    "join_arrays",
]

_Floats: TypeAlias = "npt.NDArray[np.float32]"
Values: TypeAlias = "Ints | _Floats | list[bytes]"
# See `TFRecordWriter.write_columns`.
_Lists: TypeAlias = "tuple[str, Any, Any, Ints, npt.NDArray[np.bool_]]"
_Encoders: TypeAlias = "dict[str, tuple[str, Encoder]]"
_Array: TypeAlias = "npt.NDArray[np.generic]"
_Entry = TypeVar("_Entry")

_ALLOWED = "a bool, int, float, str, bytes, a list or tuple of one of these, a numpy array or a torch tensor"

_HELD = {"int64_list": "integers", "float_list": "floats", "bytes_list": "bytes or str"}
"""What each list holds, as errors say it."""

_MOST_LAYOUTS = 64
# A short repeated field is read faster through a list than through NumPy's array protocol.
_SHORT_LIST = 32


class ListValues(NamedTuple):
    """The content of a Feature message for a value: ``kind`` names the list, ``values`` is flat."""

    kind: str
    values: Any  # `Values`
    shape: tuple[int, ...]

    @classmethod
    def of(cls, value: object) -> ListValues:
        """Convert a value.

        Raises:
            TypeError: No list takes the type of the value, or the value mixes several kinds.
            ValueError: A value does not fit its list.
        """
        # From a spec, which has checked it.
        if isinstance(value, cls):
            return value
        kind = _kind_of(type(value))
        if kind is not None:
            return cls(kind, _LEAVES[kind]([value]), ())
        if isinstance(value, (list, tuple, range)):
            return _sort_out_list(value)
        array = _as_array(value)
        if array is None:
            hint = "; leave out the key if there is no value" if value is None else ""
            raise TypeError(f"expected {_ALLOWED}, got {type(value).__name__}{hint}")
        return _sort_out_array(array)

    @classmethod
    def empty(cls, kind: str) -> ListValues:
        """A list without values."""
        return cls(kind, _LEAVES[kind]([]), (0,))

    def error(self, wanted: str, kind: type) -> TypeError:
        """The error for values of a class, where another kind of list was wanted."""
        return TypeError(f"expected {_HELD[wanted]}, got {_HELD[self.kind]} ({kind.__name__})")


class _RowLayout(Protocol):
    def encode(self, row: object, memory: bytearray, framed: bool = False) -> memoryview | None: ...


def _layout(*items: tuple[object, ...]) -> _RowLayout | None:
    """Build the encoder of dicts of these items; None without the compiled core."""
    native = native_module("examples")
    return native and native.RowLayout([*items])


@lru_cache(maxsize=_MOST_LAYOUTS)
def _layout_of(names: tuple[object, ...]) -> _RowLayout | None:
    """Build that of dicts of these names, with any kinds of lists; None where protobuf encodes."""
    try:
        return _layout(*[(name, name, None, -1, ListValues.of) for name in names])
    except (AttributeError, UnicodeEncodeError):  # a key that is no text
        return None


class RowEncoder:
    """Encodes rows as Examples, one after another: each by the specs, or without them each key as
    one kind of list.

    Args:
        features: Name -> spec to read the records with later, or None; see `encode_example`.

    Raises:
        TypeError: ``features`` is not a mapping, or has a spec that cannot be written by.
    """

    def __init__(self, features: Mapping[str, WritableSpec] | None = None) -> None:
        self._encoders: _Encoders | None = None
        if features is not None:
            _check_mapping(features, "features")
            for name, spec in features.items():
                if not hasattr(spec, "_encoder"):
                    raise TypeError(
                        f"feature {name!r}: expected a spec, such as VarLenFeature(bytes), got {spec!r}"
                    )
            self._encoders = {
                name: (spec._key_of(name), spec._encoder(name)) for name, spec in features.items()
            }
            # Two values for one key: the second would silently replace the first.
            keys = [key for key, _ in self._encoders.values()]
            if len({*keys}) < len(keys):
                raise ValueError(f"expected one name for each key to write, got {sorted(keys)}")
        # By key: the kind of its lists, and since which row.
        self._kinds: dict[str, tuple[str, int]] = {}
        # By the names of rows; by the specs under None.
        self._layouts: dict[tuple[object, ...] | None, _RowLayout | None] = {}
        self._memory = bytearray()
        if self._encoders is not None:
            self._layouts[None] = _layout(
                *[
                    (key, name, encode.kind, encode.count, encode)
                    for name, (key, encode) in self._encoders.items()
                ]
            )

    def encode(self, row: Mapping[str, object], number: int = 0) -> bytes:
        """Encode the row with this number; raises as `encode_example` does, and for a key that
        changes its kind.
        """
        known = self.view(row)
        if known is not None:
            return bytes(known)
        message = Example()
        message.features.SetInParent()
        features = message.features.feature
        if self._encoders is not None:
            _fill_by(self._encoders, features, row)
        else:
            found = _fill_map(features, row, "features")
            self._check_kinds(found, number, row)
            if type(row) is dict and len(self._layouts) < _MOST_LAYOUTS:
                items = [(key, key, found[key], -1, ListValues.of) for key in row]
                self._layouts[tuple(row)] = _layout(*items)
        return message.SerializeToString(deterministic=True)

    def view(self, row: object, *, framed: bool = False) -> memoryview | None:
        """The Example, or the framed record, of a row, valid until the next one; None where
        `encode` should make it, or say what is wrong.
        """
        if type(row) is not dict:
            return None
        layout = self._layouts.get(tuple(row) if self._encoders is None else None)
        return None if layout is None else layout.encode(row, self._memory, framed)

    def encode_columns(
        self, lists: Mapping[str, _Lists], num_rows: int, number: int
    ) -> tuple[memoryview, Ints] | None:
        """The framed records of columns of rows from this number on, and the lengths of their
        payloads; None without the compiled core, or with specs: see `rows_of`.

        Raises:
            ValueError: A key changes its kind; the arrays do not fit; an Example would have 2 GiB.
        """
        native = native_module("examples")
        if native is None or self._encoders is not None:
            return None
        found = {}
        for key, (kind, values, *_, missing) in lists.items():
            if kind != "bytes_list" and values.dtype != _LEAVES[kind]([]).dtype:  # type: ignore[union-attr]
                raise ValueError(f"feature {key!r}: expected int64 or float32, got {values.dtype}")
            if not missing.all():
                found[key] = kind
        lengths = np.empty(num_rows, np.int64)
        columns = [(key, *parts) for key, parts in lists.items()]
        records = native.encode_columns(columns, lengths, self._memory)
        self._check_kinds(found, number, {})
        return records, lengths

    def rows_of(
        self, lists: Mapping[str, _Lists], num_rows: int
    ) -> Iterator[dict[str, ListValues]]:
        """The rows of columns, one after the other."""
        for number in range(num_rows):
            row = {}
            for key, (kind, values, offsets, splits, is_missing) in lists.items():
                begin, end = splits[number : number + 2].tolist()
                if offsets is None:
                    found = values[begin:end]
                else:
                    places = itertools.pairwise(offsets[begin : end + 1].tolist())
                    found = [bytes(values[start:stop]) for start, stop in places]
                if not is_missing[number]:
                    row[key] = ListValues(kind, found, (end - begin,))
            yield row

    def _check_kinds(
        self, found: Mapping[str, str], number: int, row: Mapping[str, object]
    ) -> None:
        for key, kind in found.items():
            if self._kinds.get(key, (kind,))[0] != kind:
                raise self._changed(key, kind, row.get(key))
        for key, kind in found.items():
            self._kinds.setdefault(key, (kind, number))

    def _changed(self, key: str, kind: str, value: object) -> ValueError:
        is_nan = isinstance(value, float) and value != value
        hint = (
            "; NaN is how pandas writes a missing value: leave out the key, or let features do so"
            if is_nan
            else ""
        )
        known, since = self._kinds[key]
        return ValueError(
            f"feature {key!r}: expected {_HELD[known]}, as in row {since}, got {_HELD[kind]} "
            f"({type(value).__name__}): pass features, which say what is right{hint}"
        )


def encode_example(
    row: Mapping[str, object], features: Mapping[str, WritableSpec] | None = None
) -> bytes:
    """Encode one mapping as a serialized tf.train.Example.

    The encoding is protobuf's deterministic one: keys are sorted by their UTF-8 bytes ("ab" before
    "a"), and lists are packed, so the order of the mapping does not matter.

    Args:
        row: Key -> value. A value is a scalar, str, bytes, list or tuple (also nested, if
            rectangular), numpy array or torch tensor; more than one dimension is flattened in
            row-major order. bool and integers become an int64_list, floats a float_list (rounded to
            float32), str (as UTF-8) and bytes a bytes_list. NumPy drops trailing NUL bytes from the
            elements of an array of dtype "S": pass binary data as a list or object array.
        features: Name -> spec to read the record with: a value is then under the spec's
            name, and is what the spec reads: a sample is a row that can be written again.
            Integers become floats, and floats without a fraction integers, where the spec says so.
            None, pandas.NA, and NaN except for a float spec, are missing: the key is left out.
            `Image`, `Audio` and `Video` take the encoded bytes, `RawTensor` and `SerializedTensor`
            a tensor, an array or the stored bytes.

    Raises:
        TypeError: A value has another type (None, complex, dict, ...), or a list mixes several
            kinds; or a spec cannot be written by: `SparseFeature`, partitions, or a `RawTensor`
            whose shape is in other features.
        ValueError: An empty list has no type (use an empty typed array), an integer is outside
            int64, one among floats is no float32, a finite float is outside float32, nested lists
            have different lengths, or text is not valid Unicode. With ``features``: a name is not
            among them, a value is required but missing, or the spec would not read the value back.

    Example:
        >>> encode_example({"a": 1}).hex()
        '0a0c0a0a0a016112051a030a0101'
    """
    layout = _layout_of(tuple(row)) if features is None and type(row) is dict else None
    found = None if layout is None else layout.encode(row, bytearray())
    return bytes(found or RowEncoder(features).encode(row))


def encode_sequence_example(
    context: Mapping[str, object], feature_lists: Mapping[str, object]
) -> bytes:
    """Encode a context and lists of steps as a serialized tf.train.SequenceExample.

    Args:
        context: Key -> value, see :func:`encode_example`.
        feature_lists: Key -> list, tuple or array of steps; each step is a value as in
            :func:`encode_example`. An empty list means no steps.

    Raises:
        TypeError: See :func:`encode_example`; also if the steps are a str or bytes.
        ValueError: See :func:`encode_example`.

    Example:
        >>> encode_sequence_example({}, {"x": []}).hex()
        '0a0012070a050a01781200'
    """
    message = SequenceExample()
    # Both parts are written though they are empty: no keys is not the same as no context.
    message.context.SetInParent()
    message.feature_lists.SetInParent()
    _fill_map(message.context.feature, context, "context")
    _check_mapping(feature_lists, "feature_lists")
    for key, steps in feature_lists.items():
        if isinstance(steps, (str, bytes, bytearray, memoryview, Mapping)) or not hasattr(
            steps, "__iter__"
        ):
            raise TypeError(
                f"feature list {key!r} must be a list of steps, got {type(steps).__name__}"
            )
        feature_list = _entry(message.feature_lists.feature_list, key)
        for number, step in enumerate(steps):
            _fill_feature(feature_list.feature.add(), step, f"feature list {key!r}, step {number}")
    return message.SerializeToString(deterministic=True)


def decode_example(serialized: Buffer) -> dict[str, Values]:
    """Decode a serialized tf.train.Example without a feature spec.

    Args:
        serialized: The bytes of the record.

    Returns:
        All keys of the record, sorted: an int64_list as a 1-D int64 array, a float_list as a 1-D
        float32 array (bit for bit), a bytes_list as a list of bytes. A feature whose kind is not
        set is an empty list, so that no key is lost. `encode_example` makes the same record of
        them, but refuses an empty list, which may be of any kind. The arrays are writable and own
        their memory.

    Raises:
        ParseError: The bytes are not an Example.
        TypeError: ``serialized`` is not bytes-like.

    Example:
        >>> decode_example(encode_example({"name": "x", "size": [2, 3]}))
        {'name': [b'x'], 'size': array([2, 3])}
    """
    message = parse_message(serialized, Example)
    return _decode_map(message.features.feature)


def decode_sequence_example(
    serialized: Buffer,
) -> tuple[dict[str, Values], dict[str, list[Values]]]:
    """Decode a serialized tf.train.SequenceExample without a feature spec.

    Args:
        serialized: The bytes of the record.

    Returns:
        ``(context, feature_lists)``: the context as from :func:`decode_example`, and for each
        feature list a list of its steps, each decoded the same way.

    Raises:
        ParseError: The bytes are not a SequenceExample.
        TypeError: ``serialized`` is not bytes-like.

    Example:
        >>> decode_sequence_example(encode_sequence_example({"id": 7}, {"x": [[1, 2], [3]]}))
        ({'id': array([7])}, {'x': [array([1, 2]), array([3])]})
    """
    message = parse_message(serialized, SequenceExample)
    lists = message.feature_lists.feature_list
    steps = {
        key: [_decode_feature(feature) for feature in lists[key].feature] for key in sorted(lists)
    }
    return _decode_map(message.context.feature), steps


def join_arrays(messages: Sequence[ListMessage]) -> Ints | _Floats:
    """Concatenate Int64List or FloatList messages of one kind into a new 1-D array, bit for bit."""
    if isinstance(messages[0], FloatList):
        return np.frombuffer(b"".join(map(_float_bytes, messages)), dtype="<f4").astype(np.float32)
    if max(len(message.value) for message in messages) > _SHORT_LIST:
        return np.concatenate([np.array(message.value, dtype=np.int64) for message in messages])
    return np.array([value for message in messages for value in message.value[:]], dtype=np.int64)


def _float_bytes(message: ListMessage) -> bytes:
    # Unlike a Python float, the packed bytes keep signalling NaNs; copying them is also fastest.
    packed = message.SerializeToString()
    size = 4 * len(message.value)
    if len(packed) != size + 1 + (size.bit_length() + 6) // 7:  # unknown fields around the values
        message.DiscardUnknownFields()
        packed = message.SerializeToString()
    return packed[len(packed) - size :]


def _decode_map(features: Mapping[str, FeatureMessage]) -> dict[str, Values]:
    return {key: _decode_feature(features[key]) for key in sorted(features)}


def _decode_feature(feature: FeatureMessage) -> Values:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return []
    if kind == "bytes_list":
        return list(feature.bytes_list.value)
    return join_arrays([getattr(feature, kind)])


def _fill_map(
    target: Mapping[str, FeatureMessage], features: Mapping[str, object], what: str
) -> dict[str, str]:
    """Fill a map of features, and return the kind of each."""
    _check_mapping(features, what)
    return {
        key: _fill_feature(_entry(target, key), value, f"feature {key!r}")
        for key, value in features.items()
    }


def _fill_by(
    encoders: _Encoders, target: Mapping[str, FeatureMessage], row: Mapping[str, object]
) -> None:
    """Fill a map of features by the specs, which say the kinds."""
    _check_mapping(row, "row")
    unknown = [name for name in row if name not in encoders]
    if unknown:
        raise ValueError(
            f"feature {unknown[0]!r}: expected one of {sorted(encoders)}, the names in features"
        )
    for name, (key, encode) in encoders.items():
        values = encode(row.get(name))
        if values is not None:
            _fill_feature(_entry(target, key), values, f"feature {name!r}")


def _check_mapping(features: Mapping[str, object], what: str) -> None:
    if not isinstance(features, Mapping):
        raise TypeError(
            f"{what} must be a mapping of keys to values, got {type(features).__name__}"
        )


def _entry(target: Mapping[str, _Entry], key: str) -> _Entry:
    if not isinstance(key, str):
        raise TypeError(f"a key must be str, got {type(key).__name__}: {key!r}")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"key {key!r} is not valid Unicode text") from error
    return target[key]


# One value as a Feature message.


def _fill_feature(feature: FeatureMessage, value: object, where: str) -> str:
    """Write a value into a Feature message, and return the kind of its list; ``where`` begins every
    error text.

    Raises:
        TypeError: No list takes the type of the value, or the value mixes several kinds.
        ValueError: A value does not fit its list.
    """
    try:
        kind, values, _ = ListValues.of(value)
    except (TypeError, ValueError) as error:
        raise locate_value(error, where) from error
    target: ListMessage = getattr(feature, kind)
    target.SetInParent()
    if kind == "float_list":
        # As raw bytes, which are copied bit for bit: extend() would make a Python float of each.
        data = np.asarray(values, "<f4").tobytes()
        target.MergeFromString(b"\n" + varint(len(data)) + data)
    else:
        target.value.extend(values)
    return kind


def _find_kind(cls: type) -> str | None:
    """The name of the list for scalars of this type; None for any other type."""
    if issubclass(cls, (bool, int, np.bool_, np.integer)) and not issubclass(cls, np.timedelta64):
        return "int64_list"
    if issubclass(cls, (float, np.floating)):
        return "float_list"
    if issubclass(cls, (bytes, str, bytearray, memoryview)):
        return "bytes_list"
    return None


# The annotation is for mypy, which does not treat a class as hashable.
_kind_of: Callable[[type], str | None] = lru_cache(maxsize=256)(_find_kind)


def _int_leaves(values: Sequence[Any]) -> Ints:
    found = [*map(int, values)]
    try:
        return np.array(found, np.int64)
    except OverflowError as error:
        large = next(value for value in found if not -(2**63) <= value < 2**63)
        raise ValueError(
            f"integer outside int64: an int64_list holds -2**63 to 2**63 - 1, got {large}"
        ) from error


def _float_leaves(values: Sequence[object]) -> _Floats:
    try:
        return np.frombuffer(bytearray(struct.pack(f"={len(values)}f", *values)), np.float32)
    except (OverflowError, struct.error) as error:
        raise ValueError("a finite float is outside float32, which a float_list holds") from error


def _bytes_leaves(values: Sequence[Any]) -> list[bytes]:
    try:
        return [value.encode() if isinstance(value, str) else bytes(value) for value in values]
    except UnicodeEncodeError as error:
        raise ValueError("text that is not valid Unicode has no UTF-8 form") from error


_LEAVES: dict[str, Callable[[Sequence[object]], Values]] = {
    "int64_list": _int_leaves,
    "float_list": _float_leaves,
    "bytes_list": _bytes_leaves,
}


def _sort_out_list(values: Sequence[object]) -> ListValues:
    if not len(values):
        raise ValueError(
            "an empty list has no type: use an empty typed array, such as numpy.zeros(0, numpy.int64); its dtype, "
            "numpy.int64, numpy.float32 or numpy.bytes_, selects the kind of list; or write by features, whose spec "
            "says it"
        )
    kinds = {_kind_of(cls) for cls in set(map(type, values))}
    # No scalars at all: rows of a nested list, or arrays.
    if kinds == {None}:
        return _join([ListValues.of(value) for value in values])
    if kinds == {"int64_list", "float_list"} and bool not in map(type, values):
        kinds = {"float_list"}  # as in [0, 0.5, 1] from JSON
        for value, found in zip(values, _float_leaves(values).tolist(), strict=True):
            if _kind_of(type(value)) == "int64_list" and int(value) != found:  # type: ignore[call-overload]
                raise ValueError(
                    f"expected integers among floats that float32 holds, got {value}, which it would round: write "
                    "the integers under a key of their own"
                )
    if len(kinds) > 1:
        names = ", ".join(sorted({cls.__name__ for cls in map(type, values)}))
        raise TypeError(
            f"mixed types in one list: {names}; a list holds integers, floats or bytes only"
        )
    kind = str(kinds.pop())
    return ListValues(kind, _LEAVES[kind](values), (len(values),))


def _join(parts: list[ListValues]) -> ListValues:
    """Flatten the rows of a nested list."""
    kinds, shapes = {part.kind for part in parts}, {part.shape for part in parts}
    if len(kinds) > 1:
        raise TypeError(f"mixed types in one list: it holds {' and '.join(sorted(kinds))}")
    if len(shapes) > 1:
        raise ValueError(
            "nested lists of different lengths (ragged) do not fit one feature: store the lengths as well"
        )
    rows = [part.values for part in parts]  # all of one kind
    is_bytes = parts[0].kind == "bytes_list"
    values = [*itertools.chain.from_iterable(rows)] if is_bytes else np.concatenate(rows)
    return ListValues(parts[0].kind, values, (len(parts), *parts[0].shape))


def _as_array(value: object) -> _Array | None:
    """Convert an array of any library to a NumPy array; None if the value is not an array."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError("a masked array has masked values: fill them first")
    if isinstance(value, np.ndarray):
        return value
    # a torch tensor, without importing torch
    if callable(getattr(value, "detach", None)) and hasattr(value, "dtype"):
        tensor = cast("torch.Tensor", value)
        if str(tensor.dtype).startswith(("torch.bfloat16", "torch.float8")):
            tensor = tensor.float()  # exact; NumPy has no such dtype
        return np.asarray(tensor.numpy(force=True))
    return np.asarray(value) if hasattr(value, "__array__") else None


def _sort_out_array(array: _Array) -> ListValues:
    kind = array.dtype.kind
    if kind in "biu":
        # some unsigned ones may not fit
        values = array.ravel() if array.dtype != np.uint64 else array.ravel().tolist()
        found = _int_leaves(values) if isinstance(values, list) else values.astype(np.int64)
        return ListValues("int64_list", found, array.shape)
    # the latter come from ml_dtypes, with kind "V"
    if kind == "f" or array.dtype.name.startswith(("bfloat16", "float8")):
        return ListValues("float_list", _float_array_leaves(array), array.shape)
    if kind in "SUT" and not array.size:
        return ListValues("bytes_list", [], array.shape)
    if kind in "SUTO":
        return _sort_out_list(array.ravel().tolist())._replace(shape=array.shape)
    raise TypeError(f"expected {_ALLOWED}, got an array of dtype {array.dtype}")


def _float_array_leaves(array: _Array) -> _Floats:
    with np.errstate(over="ignore"):
        # NumPy only warns of what becomes infinite, and warnings can be switched off.
        single = array.astype(np.float32)
    if array.dtype.itemsize > 4 and (np.isinf(single) & np.isfinite(array)).any():
        raise ValueError("a finite float is outside float32, which a float_list holds")
    return single.ravel()
