"""The protobuf messages of the package, built at run time in a private descriptor pool, and the
fields that other messages have.

protobuf registers generated messages in one pool per process, where two packages that both include
``tensorflow/core/example/example.proto`` conflict. A private pool cannot conflict, whatever else
you import.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, MutableSequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from torch_tfrecord.errors import ParseError

__all__ = [
    "BytesList",
    "Event",
    "Example",
    "ExampleListWithContext",
    "FeatureMessage",
    "FloatList",
    "Int64List",
    "ListMessage",
    "SequenceExample",
    "TensorProto",
    "find_fields",
    "parse_message",
    "varint",
]

# protobuf without its compiled part, as a free-threaded Python has it, raises the second for text
_ERRORS = (DecodeError, UnicodeDecodeError)

_PACKAGE = "tensorflow"

# message -> (field number, field name, label, type). Enums are int32: the encoding is the same, and
# unknown values are kept. Fields that are left out (TensorProto 14 and 15) are unknown fields to
# protobuf.
_SCHEMA: dict[str, list[tuple[int, str, str, str]]] = {
    "BytesList": [(1, "value", "repeated", "bytes")],
    "FloatList": [(1, "value", "repeated", "float")],
    "Int64List": [(1, "value", "repeated", "int64")],
    "Feature": [
        (1, "bytes_list", "oneof kind", "BytesList"),
        (2, "float_list", "oneof kind", "FloatList"),
        (3, "int64_list", "oneof kind", "Int64List"),
    ],
    "Features": [(1, "feature", "map", "Feature")],
    "FeatureList": [(1, "feature", "repeated", "Feature")],
    "FeatureLists": [(1, "feature_list", "map", "FeatureList")],
    "Example": [(1, "features", "", "Features")],
    "SequenceExample": [(1, "context", "", "Features"), (2, "feature_lists", "", "FeatureLists")],
    # tensorflow_serving's, with the Examples as bytes: which of them are parsed, and how, is said
    # later.
    "ExampleListWithContext": [(1, "examples", "repeated", "bytes"), (2, "context", "", "bytes")],
    "Dim": [(1, "size", "", "int64"), (2, "name", "", "string")],
    "TensorShapeProto": [(2, "dim", "repeated", "Dim"), (3, "unknown_rank", "", "bool")],
    "TensorProto": [
        (1, "dtype", "", "int32"),
        (2, "tensor_shape", "", "TensorShapeProto"),
        (3, "version_number", "", "int32"),
        (4, "tensor_content", "", "bytes"),
        (5, "float_val", "repeated", "float"),
        (6, "double_val", "repeated", "double"),
        (7, "int_val", "repeated", "int32"),
        (8, "string_val", "repeated", "bytes"),
        (9, "scomplex_val", "repeated", "float"),
        (10, "int64_val", "repeated", "int64"),
        (11, "bool_val", "repeated", "bool"),
        (12, "dcomplex_val", "repeated", "double"),
        (13, "half_val", "repeated", "int32"),
        (16, "uint32_val", "repeated", "uint32"),
        (17, "uint64_val", "repeated", "uint64"),
        (18, "float8_val", "", "bytes"),
    ],
    # event.proto and summary.proto: what is shown of an event
    "SummaryImage": [(4, "encoded_image_string", "", "bytes")],
    "SummaryValue": [
        (1, "tag", "", "string"),
        (2, "simple_value", "oneof value", "float"),
        (4, "image", "oneof value", "SummaryImage"),
        (8, "tensor", "oneof value", "TensorProto"),
    ],
    "Summary": [(1, "value", "repeated", "SummaryValue")],
    "Event": [
        (2, "step", "", "int64"),
        (3, "file_version", "", "string"),
        (5, "summary", "", "Summary"),
    ],
}

_Field = descriptor_pb2.FieldDescriptorProto
_Descriptor = descriptor_pb2.DescriptorProto


def _add_field(message: _Descriptor, number: int, name: str, how_often: str, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind in _SCHEMA:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
    if how_often == "repeated":
        field.label = _Field.LABEL_REPEATED
    elif how_often == "map":
        field.label = _Field.LABEL_REPEATED
        field.type_name = f".{_PACKAGE}.{message.name}.{_add_map_entry(message, name, kind)}"
    elif how_often.startswith("oneof "):
        if not message.oneof_decl:
            message.oneof_decl.add(name=how_often.removeprefix("oneof "))
        field.oneof_index = 0


def _add_map_entry(message: _Descriptor, name: str, kind: str) -> str:
    entry = message.nested_type.add(
        name="".join(word.capitalize() for word in name.split("_")) + "Entry"
    )
    entry.options.map_entry = True
    _add_field(entry, 1, "key", "", "string")
    _add_field(entry, 2, "value", "", kind)
    return str(entry.name)


def _build_pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="torch_tfrecord.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add_field(message, *field)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _build_pool()


@functools.cache
def _message_class(name: str) -> Any:
    # Any: the classes are built at run time, so type checkers cannot know their fields.
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


BytesList = _message_class("BytesList")
FloatList = _message_class("FloatList")
Int64List = _message_class("Int64List")
Event = _message_class("Event")
Example = _message_class("Example")
ExampleListWithContext = _message_class("ExampleListWithContext")
SequenceExample = _message_class("SequenceExample")
TensorProto = _message_class("TensorProto")


class ListMessage(Message):
    """A BytesList, FloatList or Int64List, as type checkers see it."""

    value: MutableSequence[Any]


class FeatureMessage(Message):
    """A Feature, as type checkers see it."""

    bytes_list: ListMessage


def parse_message(
    serialized: bytes | bytearray | memoryview,
    kind: str | type[Message] = "Example",
    what: str = "example input",
) -> Any:
    """Parse bytes as a protobuf message from this package's private pool, and raise this package's
    errors.

    Args:
        serialized: The bytes of the message.
        kind: Its name in this package's schema, or its class.
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
    message_class: Any = _message_class(kind) if isinstance(kind, str) else kind
    try:
        return message_class.FromString(
            serialized if isinstance(serialized, bytes) else bytes(serialized)
        )
    except _ERRORS as error:
        raise ParseError(
            f"Could not parse {what}: expected one {message_class.DESCRIPTOR.name} message, "
            f"got {memoryview(serialized).nbytes} bytes that are not one"
        ) from error


# The fields of a message on the wire.

_INTEGER, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


def find_fields(
    record: bytes, at: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number and kind of each field of a message, and where its content begins and ends.

    Args:
        record: Contains the message.
        at: First byte of the message.
        end: The byte after it; None for the end of the record.

    Raises:
        IndexError, ValueError: The bytes are no message.
    """
    end = len(record) if end is None else end
    while at < end:
        tag, at = _varint(record, at)
        number, kind = tag >> 3, tag & 7
        if kind not in (_INTEGER, _FIXED64, _BYTES, _FIXED32) or not 0 < number < 1 << 29:
            raise ValueError
        begin = at
        if kind == _INTEGER:
            _, at = _varint(record, at)
        else:
            length = _FIXED_BYTES.get(kind)
            if length is None:
                length, begin = _varint(record, at)
            at = begin + length
        if at > end:
            raise IndexError
        yield number, kind, begin, at


def _varint(record: bytes, at: int) -> tuple[int, int]:
    """An integer of seven bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = record[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError


def varint(number: int) -> bytes:
    """A number in seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
