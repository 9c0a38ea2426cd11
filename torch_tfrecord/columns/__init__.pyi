from .column_plan import ColumnPlan
from .containers import Nested, RaggedTensor, SparseList, nest_rows
from .dtypes import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    DType,
    ListKind,
    Value,
    cast,
    decode_text,
    from_bytes,
    nest,
    shape_with_names,
)
from .example_lists import ListFeatures, NestedExample
from .feature import Feature, Layout, LeadingPart, SequenceFeatures, make_reader
from .lists import FixedLenFeature, FixedLenSequenceFeature, VarLenFeature
from .message_columns import columns_of
from .one_value import Json, OneValueReader, OneValueSpec, Proto, SerializedTensor, Shape, Text
from .parsers import ExampleParser
from .ragged import RaggedFeature
from .raw_tensor import RawTensor, inflate
from .reading import Column, LackingError, Reader, StepReader, Want, reserve_for_values, splits_of
from .record_parsers import (
    RecordFeatures,
    Source,
    is_record_features,
    make_parser,
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)
from .sparse import SparseFeature
from .stacking import as_plain, pad_rows, rows_of, stack, stack_samples
from .tensors import parse_tensor, serialize_tensor

__all__ = [
    "BYTES_LIST",
    "FLOAT_LIST",
    "INT64_LIST",
    "Column",
    "ColumnPlan",
    "DType",
    "ExampleParser",
    "Feature",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "Json",
    "LackingError",
    "Layout",
    "LeadingPart",
    "ListFeatures",
    "ListKind",
    "Nested",
    "NestedExample",
    "OneValueReader",
    "OneValueSpec",
    "Proto",
    "RaggedFeature",
    "RaggedTensor",
    "RawTensor",
    "Reader",
    "RecordFeatures",
    "SequenceFeatures",
    "SerializedTensor",
    "Shape",
    "Source",
    "SparseFeature",
    "SparseList",
    "StepReader",
    "Text",
    "Value",
    "VarLenFeature",
    "Want",
    "as_plain",
    "cast",
    "columns_of",
    "decode_text",
    "from_bytes",
    "inflate",
    "is_record_features",
    "make_parser",
    "make_reader",
    "nest",
    "nest_rows",
    "pad_rows",
    "parse_example",
    "parse_sequence_example",
    "parse_single_example",
    "parse_single_sequence_example",
    "parse_tensor",
    "reserve_for_values",
    "rows_of",
    "serialize_tensor",
    "shape_with_names",
    "splits_of",
    "stack",
    "stack_samples",
]
