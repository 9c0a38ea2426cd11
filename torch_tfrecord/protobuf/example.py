"""Encode and decode tf.train.Example and SequenceExample without a feature spec.

::

    Example                  features: {key: Feature}
    SequenceExample          context: {key: Feature}, feature_lists: {key: [Feature, one per step]}
    Feature                  one of  bytes_list | float_list | int64_list  (or none: the kind is not set)

The wire format is protobuf's: what protobuf accepts is read with the same values, what it rejects
raises ParseError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from torch_tfrecord.errors import ParseError
from torch_tfrecord.protobuf.encoding import HELD, ListValues, fill_feature
from torch_tfrecord.protobuf.messages import Example, FloatList, SequenceExample

__all__ = [
    "RowEncoder",
    "Values",
    "WritableSpec",
    "decode_example",
    "decode_sequence_example",
    "encode_example",
    "encode_sequence_example",
    "join_arrays",
    "parse_message",
]

Values: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float32] | list[bytes]"

# A short repeated field is read faster through a list than through NumPy's array protocol.
_SHORT_LIST = 32


class WritableSpec(Protocol):
    """What encoding asks of a feature spec."""

    def key_of(self, name: str) -> str:
        """The key in the record, given the name of the output."""

    def encoder(self, name: str) -> Callable[[object], ListValues | None]:
        """Build what turns a row's value into the values that the spec reads back; None where the
        record lacks them.
        """


_Encoders: TypeAlias = Mapping[str, tuple[str, Callable[[object], ListValues | None]]]


class RowEncoder:
    """Encodes rows as Examples, one after another: each by the specs, or without them each key as
    one kind of list.

    Args:
        features: Name -> spec that shall read the records, or None; see `encode_example`.

    Raises:
        TypeError: ``features`` is not a mapping, or has a spec that cannot be written by.
    """

    def __init__(self, features: Mapping[str, WritableSpec] | None = None) -> None:
        self._encoders: _Encoders | None = None
        if features is not None:
            _check_mapping(features, "features")
            for name, spec in features.items():
                if not hasattr(spec, "encoder"):
                    raise TypeError(
                        f"feature {name!r}: expected a spec, such as VarLenFeature(bytes), got {spec!r}"
                    )
            self._encoders = {
                name: (spec.key_of(name), spec.encoder(name)) for name, spec in features.items()
            }
            keys = [key for key, _ in self._encoders.values()]
            if len({*keys}) < len(keys):
                raise ValueError(f"expected one name for each key to write, got {sorted(keys)}")
        self._kinds: dict[str, str] = {}
        self._since: dict[str, int] = {}

    def encode(self, row: Mapping[str, Any], number: int = 0) -> bytes:
        """Encode the row with this number; raises as `encode_example` does, and for a key that
        changes its kind.
        """
        message, kinds = Example(), self._kinds
        message.features.SetInParent()
        features = message.features.feature
        if self._encoders is not None:
            _fill_by(self._encoders, features, row)
        else:
            found = _fill_map(features, row, "features")
            for key, kind in found.items():
                if kinds.get(key, kind) != kind:
                    raise self._changed(key, kind, row[key])
            if not found.keys() <= kinds.keys():
                self._since.update(dict.fromkeys(found.keys() - kinds.keys(), number))
                kinds.update(found)
        return bytes(message.SerializeToString(deterministic=True))

    def _changed(self, key: str, kind: str, value: object) -> ValueError:
        is_nan = isinstance(value, float) and value != value
        hint = (
            "; NaN is how pandas writes a missing value: leave out the key, or let features do so"
            if is_nan
            else ""
        )
        return ValueError(
            f"feature {key!r}: expected {HELD[self._kinds[key]]}, as in row {self._since[key]}, got {HELD[kind]} "
            f"({type(value).__name__}): pass features, which say what is right{hint}"
        )


def encode_example(
    row: Mapping[str, Any], features: Mapping[str, WritableSpec] | None = None
) -> bytes:
    """Encode one mapping as a serialized tf.train.Example.

    The encoding is deterministic: keys are sorted by their UTF-8 bytes, and lists are packed, so
    the order of the mapping does not matter.

    Args:
        row: Key -> value. A value is a scalar, str, bytes, list or tuple (also nested, if
            rectangular), numpy array or torch tensor; more than one dimension is flattened in
            row-major order. bool and integers become an int64_list, floats a float_list (rounded to
            float32), str (as UTF-8) and bytes a bytes_list. NumPy drops trailing NUL bytes from the
            elements of an array of dtype "S": pass binary data as a list or object array.
        features: Name -> spec that shall read the record: a value then stands under the spec's
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
            int64, a finite float is outside float32, nested lists have different lengths, or text
            is not valid Unicode. With ``features``: a name is not among them, a value is required
            but missing, or the spec would not read the value back.

    Example:
        >>> encode_example({"a": 1}).hex()
        '0a0c0a0a0a016112051a030a0101'
    """
    return RowEncoder(features).encode(row)


def encode_sequence_example(context: Mapping[str, Any], feature_lists: Mapping[str, Any]) -> bytes:
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
            fill_feature(feature_list.feature.add(), step, f"feature list {key!r}, step {number}")
    return bytes(message.SerializeToString(deterministic=True))


def decode_example(serialized: bytes | bytearray | memoryview) -> dict[str, Values]:
    """Decode a serialized tf.train.Example without a feature spec.

    Args:
        serialized: The bytes of the record.

    Returns:
        All keys of the record, sorted: an int64_list as a 1-D int64 array, a float_list as a 1-D
        float32 array (bit for bit), a bytes_list as a list of bytes. A feature whose kind is not
        set is an empty list, so that no key is lost. The arrays are writable and own their memory.

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
    serialized: bytes | bytearray | memoryview,
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


def parse_message(
    serialized: bytes | bytearray | memoryview,
    message_class: Any = Example,
    what: str = "example input",
) -> Any:
    """Parse bytes as a protobuf message from this package's private pool, and raise this package's
    errors.

    Args:
        serialized: The bytes of the message.
        message_class: Class of the message.
        what: Name of the message in errors.

    Raises:
        ParseError: The bytes are not such a message.
        TypeError: ``serialized`` is not bytes-like.
    """
    if not isinstance(serialized, (bytes, bytearray, memoryview)):
        raise TypeError(
            "Input serialized must be a scalar: bytes, bytearray or memoryview of one record, "
            f"got {type(serialized).__name__}"
        )
    try:
        return message_class.FromString(
            serialized if isinstance(serialized, bytes) else bytes(serialized)
        )
    except DecodeError as error:
        raise ParseError(
            f"Could not parse {what}: expected one {message_class.DESCRIPTOR.name} message, "
            f"got {memoryview(serialized).nbytes} bytes that are not one"
        ) from error


def join_arrays(messages: Sequence[Any]) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
    """Concatenate Int64List or FloatList messages of one kind into a new 1-D array, bit for bit."""
    if isinstance(messages[0], FloatList):
        return np.frombuffer(b"".join(map(_float_bytes, messages)), dtype="<f4").astype(np.float32)
    if max(len(message.value) for message in messages) > _SHORT_LIST:
        arrays = [np.array(message.value, dtype=np.int64) for message in messages]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return np.array([value for message in messages for value in message.value[:]], dtype=np.int64)


def _float_bytes(message: Any) -> bytes:
    # Unlike a Python float, the packed bytes keep signalling NaNs; copying them is also fastest.
    packed: bytes = message.SerializeToString()
    # tag, one byte of length, values
    if packed[:2] == bytes((0x0A, len(packed) - 2 & 0x7F)) and len(packed) < 130:
        return packed[2:]
    size = 4 * len(message.value)
    if len(packed) != size + 1 + (size.bit_length() + 6) // 7:  # unknown fields around the values
        known = FloatList.FromString(packed)
        known.DiscardUnknownFields()
        packed = known.SerializeToString()
    return packed[len(packed) - size :]


def _decode_map(features: Any) -> dict[str, Values]:
    return {key: _decode_feature(features[key]) for key in sorted(features)}


def _decode_feature(feature: Any) -> Values:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return []
    if kind == "bytes_list":
        return list(feature.bytes_list.value)
    return join_arrays([getattr(feature, kind)])


def _fill_map(target: Any, features: Mapping[str, Any], what: str) -> dict[str, str]:
    """Fill a map of features, and return the kind of each."""
    _check_mapping(features, what)
    return {
        key: fill_feature(_entry(target, key), value, f"feature {key!r}")
        for key, value in features.items()
    }


def _fill_by(encoders: _Encoders, target: Any, row: Mapping[str, Any]) -> None:
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
            fill_feature(_entry(target, key), values, f"feature {name!r}")


def _check_mapping(features: Mapping[str, Any], what: str) -> None:
    if not isinstance(features, Mapping):
        raise TypeError(
            f"{what} must be a mapping of keys to values, got {type(features).__name__}"
        )


def _entry(target: Any, key: str) -> Any:
    if not isinstance(key, str):
        raise TypeError(f"a key must be str, got {type(key).__name__}: {key!r}")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"key {key!r} is not valid Unicode text") from error
    return target[key]
