"""The specs of what has a structure of its own: sequences of rows, ragged rows, sparse values, SequenceExamples.

::

    Feature
    ├── FixedLenSequenceFeature     any number of rows of a shape -> tensor [T, *shape]
    ├── RaggedFeature               values and their partitions   -> tensor, jagged nested tensor, RaggedTensor
    └── SparseFeature               values and their indices      -> torch.sparse_coo
    SequenceFeatures                what to read from a SequenceExample: specs of its context and of its feature lists
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from torch_tfrecord.features.spec_checks import check_key, check_list_dtype, default_values, fixed_shape, positive_size
from torch_tfrecord.features.specs import Feature
from torch_tfrecord.values.dtypes import DType

__all__ = [
    "FixedLenSequenceFeature",
    "Partition",
    "RaggedFeature",
    "RowLengths",
    "RowLimits",
    "RowSplits",
    "RowStarts",
    "SequenceFeatures",
    "SparseFeature",
    "UniformRowLength",
    "ValueRowIds",
]


@dataclass(frozen=True, repr=False)
class FixedLenSequenceFeature(Feature):
    """Any number of rows, each of the same shape.

    In an Example one list holds all rows; in a feature list each step is a row. Read as a tensor [T, *shape]; with
    dtype ``bytes`` or ``str`` as a (nested) list. A batch of ``parse_example`` or ``parse_sequence_example`` is
    [B, longest T, *shape], padded at the end.

    Args:
        shape: Sizes of one row; an int means one dimension, ``()`` a scalar.
        dtype: As in :class:`FixedLenFeature`.
        allow_missing: Whether a record may lack it, which then has no rows. In an Example it must be True, as in
            TensorFlow.
        default_value: What a batch is padded with, one element; None means 0, ``b""`` or ``""``. Only in an Example.
        key: Name of the feature in the record, where it is not the output's name.

    Raises:
        TypeError: An unknown dtype, or a default value of another type.
        ValueError: No shape, an unknown or negative dimension, or a default of more than one element or out of range.

    Example:
        >>> FixedLenSequenceFeature((2,), torch.float32, allow_missing=True)
        FixedLenSequenceFeature((2,), torch.float32, allow_missing=True)
    """

    shape: tuple[int, ...]
    dtype: DType
    allow_missing: bool = False
    default_value: Any = None

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        object.__setattr__(self, "shape", fixed_shape(self.shape))
        check_list_dtype(self.dtype)
        if self.default_value is not None:
            object.__setattr__(self, "default_value", default_values(self.default_value, (), self.dtype))


@dataclass(frozen=True, repr=False)
class Partition:
    """How the rows of one ragged dimension are told; the base of the classes of :class:`RaggedFeature`."""

    def __repr__(self) -> str:
        """Print the Python code that builds it."""
        (value,) = vars(self).values()
        return f"RaggedFeature.{type(self).__name__}({value!r})"


@dataclass(frozen=True, repr=False)
class _KeyPartition(Partition):
    key: str

    def __post_init__(self) -> None:
        """Check the key."""
        check_key("key", self.key)


@dataclass(frozen=True, repr=False)
class RowSplits(_KeyPartition):
    """Key of the list of row ends, begun by a 0: ``[0, 2, 2, 3]`` is rows of 2, 0 and 1 values."""


@dataclass(frozen=True, repr=False)
class RowLengths(_KeyPartition):
    """Key of the list of row lengths: ``[2, 0, 1]``."""


@dataclass(frozen=True, repr=False)
class RowStarts(_KeyPartition):
    """Key of the list of row starts: ``[0, 2, 2]``."""


@dataclass(frozen=True, repr=False)
class RowLimits(_KeyPartition):
    """Key of the list of row ends: ``[2, 2, 3]``."""


@dataclass(frozen=True, repr=False)
class ValueRowIds(_KeyPartition):
    """Key of the list of each value's row: ``[0, 0, 2]``."""


@dataclass(frozen=True, repr=False)
class UniformRowLength(Partition):
    """All rows have this many values."""

    length: int

    def __post_init__(self) -> None:
        """Check the length."""
        object.__setattr__(self, "length", positive_size("length", self.length))


@dataclass(frozen=True, repr=False)
class RaggedFeature(Feature):
    """Values in rows of different lengths, also rows of rows.

    One record is: without partitions a 1-D tensor; with only uniform ones a dense tensor; with one ragged dimension a
    jagged nested tensor; with more a :class:`RaggedTensor`. A batch, and a feature list, has one ragged dimension more.
    With dtype ``bytes`` or ``str``: nested lists.

    Args:
        dtype: As in :class:`FixedLenFeature`.
        value_key: Name in the record of the values; None means the name of the output.
        partitions: How the values are in rows, outermost dimension first: ``RaggedFeature.RowSplits(key)``,
            ``RowLengths(key)``, ``RowStarts(key)``, ``RowLimits(key)``, ``ValueRowIds(key)`` (the key of an int64_list
            in the record) or ``UniformRowLength(length)``.
        row_splits_dtype: ``torch.int32`` or ``torch.int64``, so that specs port as they are. Row splits always come as
            int64, which torch's jagged nested tensors have and which does not overflow.
        validate: Partitions that do not fit the values are ParseError. False accepts them as TensorFlow does: rows end
            where the values end. (TensorFlow's default is False.)
        key: The same as ``value_key``.

    Raises:
        TypeError: An unknown dtype, or a partition that is none.
        ValueError: Another row_splits_dtype, a uniform length below 1, or key and value_key that differ.

    Example:
        >>> RaggedFeature(torch.int64, "values", [RaggedFeature.RowLengths("lengths")])
        RaggedFeature(torch.int64, value_key='values', partitions=(RaggedFeature.RowLengths('lengths'),))
    """

    RowSplits: ClassVar[type[RowSplits]] = RowSplits
    RowLengths: ClassVar[type[RowLengths]] = RowLengths
    RowStarts: ClassVar[type[RowStarts]] = RowStarts
    RowLimits: ClassVar[type[RowLimits]] = RowLimits
    ValueRowIds: ClassVar[type[ValueRowIds]] = ValueRowIds
    UniformRowLength: ClassVar[type[UniformRowLength]] = UniformRowLength

    dtype: DType
    value_key: str | None = None
    partitions: tuple[Partition, ...] = ()
    row_splits_dtype: torch.dtype = torch.int64
    validate: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_list_dtype(self.dtype)
        if self.value_key is not None:
            check_key("value_key", self.value_key)
            if self.key not in (None, self.value_key):
                raise ValueError(f"key and value_key are the same thing, got {self.key!r} and {self.value_key!r}")
        if self.row_splits_dtype not in (torch.int32, torch.int64):
            raise ValueError(f"row_splits_dtype must be torch.int32 or torch.int64, got {self.row_splits_dtype!r}")
        object.__setattr__(self, "partitions", tuple(self.partitions))
        for partition in self.partitions:
            if not isinstance(partition, Partition):
                raise TypeError(f"a partition must be a RaggedFeature.RowSplits or the like, got {partition!r}")


@dataclass(frozen=True, repr=False)
class SparseFeature(Feature):
    """Values with their places in a large, mostly empty array.

    Read as ``torch.sparse_coo`` of ``size``, a batch [B, *size]; with dtype ``bytes`` or ``str`` as a
    :class:`SparseList`. A record that lacks all the keys has no values.

    Args:
        index_key: Key of the int64_list of indices, or a list of keys, one for each dimension of ``size``.
        value_key: Key of the values; as many as indices, else ParseError.
        dtype: As in :class:`FixedLenFeature`.
        size: Size of the array, or a list of sizes.
        already_sorted: Keep the values in the stored order; by default they are sorted by index.
        key: Not used here; give index_key and value_key.
        validate: The same index twice is ParseError. False keeps both, as TensorFlow does; torch adds them up when the
            tensor is made dense. An index out of range is ParseError always: torch would read foreign memory.

    Raises:
        TypeError: An unknown dtype, or keys or sizes of another type.
        ValueError: As many keys as sizes are missing, a negative size, or ``key`` is given.

    Example:
        >>> SparseFeature(["row", "column"], "value", torch.float32, [100, 3])
        SparseFeature(('row', 'column'), 'value', torch.float32, (100, 3))
    """

    index_key: tuple[str, ...]
    value_key: str
    dtype: DType
    size: tuple[int, ...]
    already_sorted: bool = False
    validate: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.key is not None:
            raise ValueError("a SparseFeature has index_key and value_key in place of key")
        keys = (self.index_key,) if isinstance(self.index_key, str) else tuple(self.index_key)
        for name, key in (*(("index_key", key) for key in keys), ("value_key", self.value_key)):
            check_key(name, key)
        check_list_dtype(self.dtype)
        size = fixed_shape(self.size)
        if len(size) != len(keys) or not keys:
            raise ValueError(
                f"index_key and size have to have equal lengths, at least 1, got {len(keys)} keys and {len(size)} sizes"
            )
        object.__setattr__(self, "index_key", keys)
        object.__setattr__(self, "size", size)


@dataclass(frozen=True)
class SequenceFeatures:
    """What to read from SequenceExamples; give it to a dataset as ``features``.

    A sample is then ``(context, sequences)``, two dicts as of ``parse_single_sequence_example``.

    Args:
        context_features: Name of the output -> spec, for the context.
        sequence_features: Name of the output -> spec, for the feature lists.

    Raises:
        TypeError: One of them is not a mapping.
        ValueError: Both are None or empty.

    Example:
        >>> from torch_tfrecord.features.specs import Image
        >>> SequenceFeatures(sequence_features={"frame": Image()})
        SequenceFeatures(context_features={}, sequence_features={'frame': Image()})
    """

    context_features: Mapping[str, Feature] | None = None
    sequence_features: Mapping[str, Feature] | None = None

    def __post_init__(self) -> None:
        """Check the fields, and copy them."""
        for name in ("context_features", "sequence_features"):
            features = getattr(self, name)
            if features is not None and not isinstance(features, Mapping):
                raise TypeError(f"{name} must be a mapping of names to specs, got {type(features).__name__}")
            object.__setattr__(self, name, dict(features or {}))
        if not self.context_features and not self.sequence_features:
            raise ValueError(
                "Both `context_features` and `sequence_features` argument are None, "
                "but at least one should have values."
            )

    __hash__ = None  # type: ignore[assignment]
