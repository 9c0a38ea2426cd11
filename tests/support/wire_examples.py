"""Wire forms of Examples that protobuf reads, drawn by hypothesis; and protobuf itself, in a pool
of its own, as the oracle.
"""
# ruff: noqa: E501 - tables of whole texts read better in one line each.

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import strategies as st

FLOATS = st.floats(width=32)


# The schema again, as text: it shares nothing with the package's own.
SCHEMA = """
name: "oracle.proto" package: "oracle" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".oracle.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".oracle.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".oracle.Int64List" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".oracle.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".oracle.Feature" } } }
message_type { name: "FeatureList"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".oracle.Feature" } }
message_type { name: "FeatureLists"
  field { name: "feature_list" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".oracle.FeatureLists.FeatureListEntry" }
  nested_type { name: "FeatureListEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".oracle.FeatureList" } } }
message_type { name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".oracle.Features" } }
message_type { name: "SequenceExample"
  field { name: "context" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".oracle.Features" }
  field { name: "feature_lists" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".oracle.FeatureLists" } }
"""


POOL = descriptor_pool.DescriptorPool()
POOL.Add(text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto()))
Example, SequenceExample = (
    message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"oracle.{name}"))
    for name in ("Example", "SequenceExample")
)


def oracle_feature(feature):
    kind = feature.WhichOneof("kind")
    return [] if kind is None else list(getattr(feature, kind).value)


def varint(number, extra=0):
    out = bytearray()
    while number > 0x7F or extra:
        extra -= number <= 0x7F
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def length_delimited(number, body):
    return varint(number << 3 | 2) + varint(len(body)) + body


UNKNOWN = st.sampled_from(["", "4a0178", "4803", "490000000000000000", "4d00000000", "4b4c"]).map(
    bytes.fromhex
)
INT_CHUNK = st.one_of(
    st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, 1)), max_size=3).map(
        lambda numbers: length_delimited(
            1, b"".join(varint(n, e if n < 1 << 60 else 0) for n, e in numbers)
        )
    ),
    st.integers(0, (1 << 64) - 1).map(lambda number: b"\x08" + varint(number)),
)
FLOAT_CHUNK = st.one_of(
    st.lists(FLOATS, max_size=3).map(
        lambda values: length_delimited(1, np.array(values, "<f4").tobytes())
    ),
    FLOATS.map(lambda value: b"\x0d" + np.array(value, "<f4").tobytes()),
)
BYTES_CHUNK = st.binary(max_size=4).map(lambda value: length_delimited(1, value))


def wire_list(number, chunk):
    return st.lists(st.one_of(chunk, UNKNOWN), max_size=4).map(
        lambda parts: length_delimited(number, b"".join(parts))
    )


WIRE_FEATURE = st.lists(
    st.one_of(
        wire_list(1, BYTES_CHUNK), wire_list(2, FLOAT_CHUNK), wire_list(3, INT_CHUNK), UNKNOWN
    ),
    max_size=3,
).map(b"".join)
WIRE_ENTRY = st.tuples(
    st.sampled_from([b"a", b"b", b"", "é".encode()]), WIRE_FEATURE, st.integers(0, 4)
).map(
    lambda item: length_delimited(
        1,
        [
            length_delimited(1, item[0]) + length_delimited(2, item[1]),
            length_delimited(2, item[1]) + length_delimited(1, item[0]),
            length_delimited(1, item[0]),
            length_delimited(2, item[1]),
            length_delimited(1, item[0])
            + length_delimited(2, item[1])
            + length_delimited(2, item[1]),
        ][item[2]],
    )
)
WIRE_EXAMPLE = st.lists(
    st.one_of(
        st.lists(st.one_of(WIRE_ENTRY, UNKNOWN), max_size=5).map(
            lambda parts: length_delimited(1, b"".join(parts))
        ),
        UNKNOWN,
    ),
    max_size=3,
).map(b"".join)
