from .example import (
    ListValues,
    RowEncoder,
    WritableSpec,
    decode_example,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
    join_arrays,
)
from .json_text import example_of_json, parse_json
from .messages import find_fields, parse_message, varint

__all__ = [
    "ListValues",
    "RowEncoder",
    "WritableSpec",
    "decode_example",
    "decode_sequence_example",
    "encode_example",
    "encode_sequence_example",
    "example_of_json",
    "find_fields",
    "join_arrays",
    "parse_json",
    "parse_message",
    "varint",
]
