"""Columns as Apache Arrow: the type of each spec, a batch's columns as Arrow arrays, and rows back as
Examples.

The types follow from the features alone, so that all batches of a data set have one schema. Values
that a spec decodes from bytes (pictures, sounds, messages, tensors of any shape) stay as they are
stored. docs/dataframes.md has the table of types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import PathLike
from torch_tfrecord.batch_memory import Ints, splits_of
from torch_tfrecord.columns import (
    Feature,
    FixedLenSequenceFeature,
    ListFeatures,
    Nested,
    RaggedTensor,
    RecordFeatures,
    SequenceFeatures,
    SparseList,
)
from torch_tfrecord.errors import needs_extra, warn
from torch_tfrecord.records import ShardedTFRecordWriter, TFRecordWriter
from torch_tfrecord.samples import DType, Value
from torch_tfrecord.torch_internals import sparse_parts

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:  # the error comes where it is used
    pa = None

__all__ = ["ArrowColumns", "write_arrow"]

_Lists: TypeAlias = "tuple[str, Any, Ints | None, Ints, npt.NDArray[np.bool_]]"

_RECORD = "record"
_MISSING = "\0missing "  # begins the name of an output that says which records lack another
_WRITTEN_BYTES = 1 << 20
_MOST_OFFSET, _MOST_INTEGER = (1 << 31) - 1, (1 << 63) - 1
# Arrow has no such floats; float32 has all their values.
_SMALL_FLOATS = (
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)


class ArrowColumns:
    """The Arrow schema of some features, and record batches of what a dataset reads with
    `features`.

    Args:
        features: What a dataset reads; None for the record's bytes, as a column ``record``.
        decode_images: Whether pictures are nested lists of pixels, [C, H, W], in place of their
            bytes.

    Attributes:
        features: What to parse the records with.
        schema: The schema of all batches.

    Raises:
        ImportError: pyarrow is missing.
        ValueError: Two columns would have one name.
        TypeError: Arrow has no type for a feature.
    """

    def __init__(self, features: RecordFeatures | None, *, decode_images: bool = False) -> None:
        _check_pyarrow()
        self._decode = decode_images
        self.features: RecordFeatures | None
        context: dict[str, Feature] = {}
        steps: dict[str, Feature] = {}
        others = []
        if isinstance(features, SequenceFeatures):
            context = self._stored(features.context_features or {})
            steps = self._stored(features.sequence_features or {}, is_step=True)
            self.features = SequenceFeatures(
                {**context, **_missing(context)}, {**steps, **_missing(steps)}
            )
        elif isinstance(features, ListFeatures):
            context = self._stored(features.context_features or {})
            steps = self._stored(features.example_features)
            self.features = replace(features, context_features=context, example_features=steps)
            if features.size_feature_name is not None:
                others.append(pa.field(features.size_feature_name, pa.int64()))
            if features.mask_feature_name is not None:
                others.append(pa.field(features.mask_feature_name, pa.list_(pa.bool_())))
        elif isinstance(features, Mapping):
            context = self._stored(features)
            self.features = {**context, **_missing(context)}
        elif features is None:
            self.features, others = None, [pa.field(_RECORD, pa.binary())]
        elif isinstance(features, Feature):
            self.features = features._undecoded(but_images=decode_images)
            others = [pa.field(_RECORD, _type(self.features))]
        else:
            raise TypeError(
                f"expected features by specs, which say the Arrow types, got {type(features).__name__}: read the same "
                "files by TFRecordDataset(ds.files, infer_features(ds.files))"
            )
        fields = [
            *(pa.field(name, _type(spec)) for name, spec in context.items()),
            *(pa.field(name, _step_type(spec)) for name, spec in steps.items()),
            *others,
        ]
        names = [field.name for field in fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(
                f"expected one column of each name, got two {twice!r}: name one of the features otherwise, with key="
            )
        self.schema = pa.schema(fields)

    def batch(self, columns: Value, num_rows: int) -> pa.RecordBatch:
        """A record batch of what a dataset returned for a batch, as columns.

        Raises:
            ValueError: A column has more than 2 GiB, or 2^31 values.
        """
        if isinstance(columns, tuple):
            columns = {**columns[0], **columns[1]}
        elif not isinstance(columns, dict):
            columns = {_RECORD: columns}
        arrays = []
        for field in self.schema:
            array = to_array(columns[field.name], field.type, num_rows)
            missing = columns.get(_MISSING + field.name)
            if missing is not None and missing.any():
                array = pc.if_else(pa.array(missing.numpy()), None, array)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _stored(self, specs: Mapping[str, Feature], *, is_step: bool = False) -> dict[str, Feature]:
        """The specs that read what is stored, where the given ones would decode it."""
        return {
            name: spec._undecoded(is_step=is_step, but_images=self._decode)
            for name, spec in specs.items()
        }


def _check_pyarrow() -> None:
    with needs_extra("an Arrow table", "arrow"):
        if pa is None:
            raise ModuleNotFoundError(name="pyarrow")


# The type of each spec.


def _step_type(spec: Feature) -> pa.DataType:
    # Both in an Example and in a feature list it is rows of one shape.
    return _type(spec) if isinstance(spec, FixedLenSequenceFeature) else pa.list_(_type(spec))


def _type(spec: Feature) -> pa.DataType:
    return _type_of(spec._layout())


def _type_of(layout: tuple[DType, tuple[int | None, ...]] | dict[str, Any]) -> pa.DataType:
    if isinstance(layout, dict):
        return pa.struct([pa.field(name, _type_of(part)) for name, part in layout.items()])
    dtype, shape = layout
    kind = _leaf(dtype)
    for size in reversed(shape):
        kind = pa.list_(kind, -1 if size is None else size)
    return kind


def _leaf(dtype: DType) -> pa.DataType:
    if not isinstance(dtype, torch.dtype):
        return pa.binary() if dtype is bytes else pa.string()
    if dtype in _SMALL_FLOATS:
        return pa.float32()
    try:
        return pa.from_numpy_dtype(torch.empty(0, dtype=dtype, device="cpu").numpy().dtype)
    except (pa.ArrowNotImplementedError, TypeError) as error:
        raise TypeError(f"Arrow has no type for {dtype}") from error


def _missing(specs: Mapping[str, Feature]) -> dict[str, Feature]:
    """For each feature that a record may lack, an output that says which do."""
    found = ((_MISSING + name, spec._missing(name)) for name, spec in specs.items())
    return {name: spec for name, spec in found if spec is not None}


# A column as an array.


def to_array(value: Value, kind: pa.DataType, num_rows: int) -> pa.Array:
    """The column of a batch, in any form that a parser gives it, as an Arrow array.

    Numbers are not copied, except for bool, float8 and bfloat16.

    Args:
        value: A tensor [N, ...], also jagged or sparse; a list of N values; a dict of columns.
        kind: The type that the column's spec has.
        num_rows: N.
    """
    if isinstance(value, dict):
        parts = [to_array(value[field.name], field.type, num_rows) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=[*kind])
    if isinstance(value, SparseList) or getattr(value, "layout", None) is torch.sparse_coo:
        return _sparse_array(value, kind, num_rows)
    if isinstance(value, (Nested, RaggedTensor)) or getattr(value, "is_nested", False):
        nested = Nested.of(value)
        return _nest(nested.tensors()[0], nested.arrays()[1], kind)
    if isinstance(value, torch.Tensor):
        values = value.as_subclass(torch.Tensor).reshape(-1)
        if value.dim() == 1:  # the usual case: a batch may have forty such columns
            return _numbers(values, kind)
        shapes = np.tile(np.array(value.shape[1:], np.int64), (num_rows, 1))
        return _of_shapes(values, shapes, kind)
    if value and isinstance(value[0], torch.Tensor):
        if value[0].is_nested:  # for lists of lists
            return pa.array([[part.tolist() for part in row.unbind()] for row in value], kind)
        shapes = np.array([row.shape for row in value], np.int64).reshape(num_rows, -1)
        values = torch.cat([row.as_subclass(torch.Tensor).reshape(-1) for row in value])
        return _of_shapes(values, shapes, kind)
    found = pa.array(value, kind)
    if isinstance(found, pa.ChunkedArray):
        raise _too_large()
    return found


def _too_large() -> ValueError:
    return ValueError(
        "a column of a record batch holds at most 2 GiB and 2^31 values: expected a smaller batch_size"
    )


def _numbers(values: torch.Tensor, kind: pa.DataType) -> pa.Array:
    if values.dtype in _SMALL_FLOATS:
        values = values.float()
    return pa.array(values.numpy(), kind)


def _of_shapes(values: torch.Tensor, shapes: Ints, kind: pa.DataType) -> pa.Array:
    """Nested lists of rows of these shapes, int64 [N, dimensions], whose values are one after the
    other.
    """
    if pa.types.is_struct(kind):
        ranks = pa.array([*shapes], kind.field("shape").type)
        sizes = shapes.prod(axis=1, keepdims=True)
        parts = [ranks, _of_shapes(values, sizes, kind.field("values").type)]
        return pa.StructArray.from_arrays(parts, fields=[*kind])
    # How many lists a row has at each depth: the sizes before it, multiplied.
    counts = np.cumprod(np.insert(shapes, 0, 1, axis=1), axis=1)
    lengths = (np.repeat(shapes[:, depth], counts[:, depth]) for depth in range(shapes.shape[1]))
    return _nest(values, [*map(splits_of, lengths)], kind)


def _nest(values: Value, row_splits: Sequence[Ints], kind: pa.DataType) -> pa.Array:
    """Nested lists of values that are one after the other."""
    kinds = [kind]
    for _ in row_splits:
        kinds.append(kinds[-1].value_type)
    found = to_array(values, kinds[-1], len(values))
    for splits, outer in zip(reversed(row_splits), reversed(kinds[:-1]), strict=True):
        found = _list_array(found, splits, outer)
    return found


def _list_array(values: pa.Array, splits: Ints, kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        # Not `from_arrays`, which does not know how many lists of no values there are.
        return pa.Array.from_buffers(kind, len(splits) - 1, [None], children=[values])
    if splits[-1] > _MOST_OFFSET:
        raise _too_large()
    offsets = pa.array(splits.astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, kind)


def _sparse_array(value: Any, kind: pa.DataType, num_rows: int) -> pa.Array:
    is_list = isinstance(value, SparseList)
    indices, values = (value.indices, value.values) if is_list else sparse_parts(value)
    splits = splits_of(np.bincount(indices[0].numpy(), minlength=num_rows))
    places = indices[1:].T.contiguous()
    if not pa.types.is_nested(kind.field("indices").type.value_type):
        places = places[:, 0]
    parts = [
        _nest(each, [splits], field.type)
        for each, field in zip((places, values), kind, strict=True)
    ]
    return pa.StructArray.from_arrays(parts, fields=[*kind])


# Rows as Examples.


def write_arrow(
    batches: Any,
    path_or_prefix: PathLike,
    *,
    features: Mapping[str, Feature] | None = None,
    num_shards: int | None = None,
    max_shard_bytes: int | None = None,
    **writer_options: Any,
) -> list[str]:
    """Write the rows of an Arrow table, or of whatever gives one, as Examples.

    Bool and integers become an int64_list, floats a float_list, strings and binary a bytes_list;
    lists one of these, those of fixed size in row-major order. A null is a feature that the record
    lacks, an empty list one without values. A column has one kind in all rows, which its type says.

    Args:
        batches: A pyarrow Table or RecordBatchReader; a DataFrame of pandas or polars, or anything
            else with ``__arrow_c_stream__``; or tables and record batches, one after the other
            (``pyarrow.dataset.dataset(...).to_batches()``, ``hf.with_format("arrow").iter(1000)``).
        path_or_prefix: The file; with `num_shards` or `max_shard_bytes` the prefix of the shards.
        features: Specs to read the records with later, as for `TFRecordWriter`: they check and widen
            values, and turn arrays into bytes (`RawTensor`). Nulls and empty lists are left out.
        num_shards, max_shard_bytes: See `ShardedTFRecordWriter`.
        writer_options: Further options of the writer: ``compression_type``, ``write_index``, ...

    Returns:
        The paths written.

    Raises:
        TypeError: A column's type has no list: dates, decimals, structs, lists of lists of any
            length; the message names it. Cast it, or select other columns.
        ValueError: A list has a null, or an integer is outside int64; nothing remains.

    Example:
        >>> write_arrow(pandas.DataFrame({"label": [1, 2]}), "train.tfrecord")  # doctest: +SKIP
        ['train.tfrecord']
    """
    _check_pyarrow()
    writer: TFRecordWriter | ShardedTFRecordWriter
    if num_shards is None and max_shard_bytes is None:
        writer = TFRecordWriter(path_or_prefix, features=features, **writer_options)
    else:
        writer = ShardedTFRecordWriter(
            path_or_prefix,
            num_shards=num_shards,
            max_shard_bytes=max_shard_bytes,
            features=features,
            **writer_options,
        )
    rounded: set[str] = set()
    with writer:
        for batch in _record_batches(batches):
            if features is None:
                columns = zip(batch.schema.names, batch.columns, strict=True)
                found = {name: _written(name, column, rounded) for name, column in columns}
                writer.write_columns(found, len(batch) if found else 0)
            else:
                for row in batch.to_pylist():
                    writer.write(row)
    if rounded:
        warn(
            f"float64 columns were rounded to float32, the floats of TFRecord files: {', '.join(sorted(rounded))}; "
            "cast them to float32 where that is meant"
        )
    return [writer.path] if isinstance(writer, TFRecordWriter) else writer.paths


def _record_batches(batches: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(batches, pa.RecordBatch):
        # Encoded at once, or a Python object for a moment.
        step = 1 + _WRITTEN_BYTES // (128 + batches.nbytes // (len(batches) or 1))
        for begin in range(0, len(batches), step):
            yield batches.slice(begin, step)
    elif hasattr(batches, "__arrow_c_stream__"):
        yield from chain.from_iterable(
            map(_record_batches, pa.RecordBatchReader.from_stream(batches))
        )
    elif isinstance(batches, Iterable) and not isinstance(batches, (str, bytes, Mapping)):
        yield from chain.from_iterable(map(_record_batches, batches))
    else:
        raise TypeError(
            f"expected a table, a DataFrame, or record batches one after the other, got {type(batches).__name__} "
            "(Hugging Face: dataset.with_format('arrow').iter(1000); dicts: pyarrow.Table.from_pylist(rows))"
        )


def _written(name: str, column: pa.Array, rounded: set[str]) -> _Lists:
    """What each row's Example stores for a column; see `TFRecordWriter.write_columns`."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    is_null, num_rows = column.is_null().to_numpy(zero_copy_only=False), len(column)
    splits, inner = np.arange(num_rows + 1), column
    if isinstance(column.type, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        splits, inner = splits_of(lengths), column.flatten()
        while pa.types.is_fixed_size_list(inner.type):
            splits, inner = splits * inner.type.list_size, inner.flatten()
        if inner.null_count:
            raise ValueError(f"column {name!r}: expected lists without nulls, got one")
    kind, values, offsets = _flat_values(name, inner, rounded)
    return kind, values, offsets, splits, is_null


def _flat_values(name: str, values: pa.Array, rounded: set[str]) -> tuple[str, Any, Ints | None]:
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        if pa.types.is_boolean(kind):
            values = values.cast(pa.uint8())
        numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
        if kind == pa.uint64() and (numbers > _MOST_INTEGER).any():
            raise ValueError(
                f"column {name!r}: integer outside int64: an int64_list holds -2**63 to 2**63 - 1, got {numbers.max()}"
            )
        return "int64_list", numbers.astype(np.int64, copy=False), None
    if pa.types.is_floating(kind):
        if kind == pa.float16():
            values = values.cast(pa.float32())
        exact = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            single = exact.astype(np.float32, copy=False)
        if kind == pa.float64():
            if (np.isinf(single) & np.isfinite(exact)).any():
                raise ValueError(
                    f"column {name!r}: a value is outside float32, the floats of TFRecord files"
                )
            if (single != exact)[~np.isnan(exact)].any():
                rounded.add(name)
        return "float_list", single, None
    # for texts and bytes
    with suppress(pa.ArrowNotImplementedError):
        found = values.cast(pa.large_binary())
        _, places, data = found.buffers()
        offsets = np.frombuffer(places or bytes(8), np.int64)[found.offset :][: len(found) + 1]
        return "bytes_list", memoryview(data or b""), offsets
    raise TypeError(
        f"column {name!r}: no list of an Example holds {kind}: cast it to integers, floats, strings or binary, or "
        "select other columns"
    )
