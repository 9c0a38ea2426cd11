"""The protobuf messages of the package, built at run time in a private descriptor pool.

protobuf registers generated messages in one pool per process, where two packages that both include
``tensorflow/core/example/example.proto`` conflict. A private pool cannot conflict, whatever else
you import.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = [
    "BytesList",
    "Example",
    "ExampleListWithContext",
    "FloatList",
    "Int64List",
    "SequenceExample",
    "TensorProto",
]

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
}

_Field = descriptor_pb2.FieldDescriptorProto


def _add_field(message: Any, number: int, name: str, how_often: str, kind: str) -> None:
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


def _add_map_entry(message: Any, name: str, kind: str) -> str:
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


def _message_class(name: str) -> Any:
    # Any: the classes are built at run time, so type checkers cannot know their fields.
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


BytesList = _message_class("BytesList")
FloatList = _message_class("FloatList")
Int64List = _message_class("Int64List")
Example = _message_class("Example")
ExampleListWithContext = _message_class("ExampleListWithContext")
SequenceExample = _message_class("SequenceExample")
TensorProto = _message_class("TensorProto")
