"""The protobuf messages of the package, built at run time in a private descriptor pool, and the
fields that other messages have.

protobuf registers generated messages in one pool per process, where two packages that both include
``tensorflow/core/example/example.proto`` conflict. A private pool cannot conflict, whatever else
you import.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, MutableSequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from torch_tfrecord.errors import ParseError

__all__ = [
    "Example",
    "FeatureMessage",
    "FloatList",
    "ListMessage",
    "SequenceExample",
    "find_fields",
    "parse_message",
    "varint",
]

# protobuf without its compiled part, as a free-threaded Python has it, raises the second for text
_ERRORS = (DecodeError, UnicodeDecodeError)

_PACKAGE = "tensorflow"

# Enums are int32: the encoding is the same, and unknown values are kept. Fields that are left out
# (TensorProto 14 and 15) are unknown fields to protobuf. A oneof comes last.
_SCHEMA = """
message BytesList {
  repeated bytes value = 1;
}
message FloatList {
  repeated float value = 1;
}
message Int64List {
  repeated int64 value = 1;
}
message Feature {
  oneof kind {
    BytesList bytes_list = 1;
    FloatList float_list = 2;
    Int64List int64_list = 3;
  }
}
message Features {
  map<string, Feature> feature = 1;
}
message FeatureList {
  repeated Feature feature = 1;
}
message FeatureLists {
  map<string, FeatureList> feature_list = 1;
}
message Example {
  Features features = 1;
}
message SequenceExample {
  Features context = 1;
  FeatureLists feature_lists = 2;
}
// tensorflow_serving's, with the Examples as bytes: which of them are parsed, and how, is said later.
message ExampleListWithContext {
  repeated bytes examples = 1;
  bytes context = 2;
}
message Dim {
  int64 size = 1;
  string name = 2;
}
message TensorShapeProto {
  repeated Dim dim = 2;
  bool unknown_rank = 3;
}
message TensorProto {
  int32 dtype = 1;
  TensorShapeProto tensor_shape = 2;
  int32 version_number = 3;
  bytes tensor_content = 4;
  repeated float float_val = 5;
  repeated double double_val = 6;
  repeated int32 int_val = 7;
  repeated bytes string_val = 8;
  repeated float scomplex_val = 9;
  repeated int64 int64_val = 10;
  repeated bool bool_val = 11;
  repeated double dcomplex_val = 12;
  repeated int32 half_val = 13;
  repeated uint32 uint32_val = 16;
  repeated uint64 uint64_val = 17;
  bytes float8_val = 18;
}
// event.proto and summary.proto: what is shown of an event
message SummaryImage {
  bytes encoded_image_string = 4;
}
message SummaryValue {
  string tag = 1;
  oneof value {
    float simple_value = 2;
    SummaryImage image = 4;
    TensorProto tensor = 8;
  }
}
message Summary {
  repeated SummaryValue value = 1;
}
message Event {
  int64 step = 2;
  string file_version = 3;
  Summary summary = 5;
}
"""
_MESSAGE = re.compile(r"message (\w+) \{(.*?)\n\}", re.DOTALL)
_FIELD = re.compile(r"(repeated |map<string, )?(\w+)>? (\w+) = (\d+);")

_Descriptor = descriptor_pb2.DescriptorProto
_Field = descriptor_pb2.FieldDescriptorProto


def _add_field(message: _Descriptor, how_often: str, kind: str, name: str, number: int) -> _Field:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if how_often:
        field.label = _Field.LABEL_REPEATED
    if how_often.startswith("map"):
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, "", "string", "key", 1)
        _add_field(entry, "", kind, "value", 2)
        kind = f"{message.name}.{entry.name}"
    if kind.islower():
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    return field


def _build_pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="torch_tfrecord.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGE.findall(_SCHEMA):
        message = file.message_type.add(name=name)
        plain, _, choice = fields.partition("oneof ")
        for how_often, kind, field, number in _FIELD.findall(plain):
            _add_field(message, how_often, kind, field, int(number))
        if choice:
            message.oneof_decl.add(name=choice.split()[0])
        for how_often, kind, field, number in _FIELD.findall(choice):
            _add_field(message, how_often, kind, field, int(number)).oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _build_pool()


@functools.cache
def _message_class(name: str) -> Any:
    # Any: the classes are built at run time, so type checkers cannot know their fields.
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


FloatList = _message_class("FloatList")
Example = _message_class("Example")
SequenceExample = _message_class("SequenceExample")


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
