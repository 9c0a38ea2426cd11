"""What a record is that is no Example, by the fields of the message."""

import struct

import pytest
from google.protobuf import descriptor_pb2
from helpers import inferred
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_tfrecord import ParseError, encode_example, encode_sequence_example
from torch_tfrecord.tables import FoundRecord


def looks_like(record: bytes) -> str:
    return FoundRecord("", 0, 0, record).looks_like()[0]


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def doubles(*values: float) -> bytes:
    return b"".join(b"\x09" + struct.pack("<d", value) for value in values)


ELWC = (
    field(1, encode_example({"relevance": 1}))
    + field(1, encode_example({"x": 0.5}))
    + field(2, encode_example({"q": "a"}))
)
# The first record of any tfevents file, and one with a step and a summary.
VERSION = doubles(1.6e9) + field(3, b"brain.Event:2")
SUMMARY = doubles(1.6e9) + b"\x10\x05" + field(5, field(1, b"abc"))
SCENARIO = field(5, b"1a2b") + doubles(0.0, 0.1) + b"\x50\x0a" + field(2, b"\x08\x05") + b"\x30\x01"
FRAME = field(1, b"x" * 9) + b"\x10\x80\x01" + field(4, b"jpeg")
OTHERS = "another protobuf message, of the fields "
OTHER = descriptor_pb2.FileDescriptorProto(
    name="a.proto", dependency=["b.proto"], package="c"
).SerializeToString()


@pytest.mark.parametrize(
    ("record", "looks"),
    [
        (ELWC, "an ExampleListWithContext (ELWC)"),
        (field(1, encode_example({"a": 1})), "an ExampleListWithContext (ELWC)"),  # without a context
        (VERSION, "a TensorFlow event, as in tfevents files"),
        (SUMMARY, "a TensorFlow event, as in tfevents files"),
        (SCENARIO, "a Waymo Scenario"),
        (FRAME, "a Waymo Frame"),
        (b"\x08\x05\x15abcd" + field(9, b""), OTHERS + "1 (integer), 2 (4 bytes), 9 (bytes or message)"),
    ],
)  # fmt: skip
def test_messages(record, looks):
    assert looks_like(record) == looks
    with pytest.raises(ParseError, match=r"^record 1: ") as caught:
        inferred([encode_example({}), record])
    assert f"look like {looks}: features=" in str(caught.value)


def test_many_fields_are_not_all_named():
    record = b"".join(bytes([number << 3, 1]) for number in range(1, 12))
    assert looks_like(record) == OTHERS + ", ".join(
        [f"{number} (integer)" for number in range(1, 9)] + ["..."]
    )


@pytest.mark.parametrize(
    ("record", "looks"),
    [
        (b"hello, world: a text", "text"),
        (b'{"a": [1, 2]}', "JSON text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "a PNG image"),
        (b"\x80\x04\x95\x00\x00", "a Python pickle"),
        (OTHER, OTHERS + "1 (bytes or message), 2 (bytes or message), 3 (bytes or message)"),
        (b"\xff\xff\xfe" * 9, "an unknown format"),
    ],
)  # fmt: skip
def test_other_content(record, looks):
    with pytest.raises(ParseError) as caught:
        inferred([record])
    assert f"look like {looks}: features=" in str(caught.value)
    assert b"hello" not in str(caught.value).encode()


@pytest.mark.parametrize(
    "record",
    [
        b"",
        encode_example({}),
        encode_sequence_example({}, {}),
        b"\x12\x00",
        bytes.fromhex("0a070a050a01611200"),
    ],
)
def test_examples_without_values_are_examples(record):
    assert inferred([record, record]) == {}


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_look_like_something(record):
    assert looks_like(record)
