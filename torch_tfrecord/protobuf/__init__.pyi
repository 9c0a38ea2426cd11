from .example import (
    ListValues,
    RowEncoder,
    decode_example,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
    join_arrays,
)
from .json_examples import example_of_json
from .messages import find_fields, parse_message, varint

__all__ = [
    "ListValues",
    "RowEncoder",
    "decode_example",
    "decode_sequence_example",
    "encode_example",
    "encode_sequence_example",
    "example_of_json",
    "find_fields",
    "join_arrays",
    "parse_message",
    "varint",
]
