from .column_plan import ColumnPlan
from .containers import (
    Nested,
    RaggedTensor,
    SparseList,
    as_plain,
    rows_of,
    stack,
    stack_samples,
)
from .dtypes import decode_text
from .example_lists import ListFeatures, NestedExample
from .feature import Feature, SequenceFeatures
from .lists import FixedLenFeature, FixedLenSequenceFeature, VarLenFeature
from .one_value import Json, OneValueReader, OneValueSpec, Proto, SerializedTensor, Text
from .ragged import RaggedFeature, SparseFeature
from .raw_tensor import RawTensor
from .reading import Column, LackingError, Want
from .record_parsers import (
    RecordFeatures,
    Source,
    make_parser,
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)
from .tensors import parse_tensor, serialize_tensor

__all__ = [
    "Column",
    "ColumnPlan",
    "Feature",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "Json",
    "LackingError",
    "ListFeatures",
    "Nested",
    "NestedExample",
    "OneValueReader",
    "OneValueSpec",
    "Proto",
    "RaggedFeature",
    "RaggedTensor",
    "RawTensor",
    "RecordFeatures",
    "SequenceFeatures",
    "SerializedTensor",
    "Source",
    "SparseFeature",
    "SparseList",
    "Text",
    "VarLenFeature",
    "Want",
    "as_plain",
    "decode_text",
    "make_parser",
    "parse_example",
    "parse_sequence_example",
    "parse_single_example",
    "parse_single_sequence_example",
    "parse_tensor",
    "rows_of",
    "serialize_tensor",
    "stack",
    "stack_samples",
]
