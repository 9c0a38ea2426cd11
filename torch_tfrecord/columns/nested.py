"""The Nested spec (an Example inside a bytes feature), and its reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch_tfrecord.arguments import one_of
from torch_tfrecord.columns.dtypes import BYTES_LIST
from torch_tfrecord.columns.feature import Feature
from torch_tfrecord.columns.parsers import InnerParser, packed
from torch_tfrecord.columns.reading import Column, Reader, Want, labelled, read_each
from torch_tfrecord.protobuf.example import encode_example
from torch_tfrecord.protobuf.json_text import example_of_json
from torch_tfrecord.records.packed_records import PackedRecords

__all__ = ["Nested"]


@dataclass(frozen=True, repr=False)
class Nested(Feature):
    """A serialized Example in one bytes value of another Example.

    A sample is a dict of the inner features' values, a batch a dict of their columns. Records that
    are JSON themselves: give the spec alone, ``TFRecordDataset(path, Nested(features,
    format="json"))``.

    Args:
        features: Output name -> spec, for the inner Example; a spec may be a Nested again.
        format: ``"proto"`` for the usual bytes, ``"json"`` for protobuf's JSON form of an Example,
            as ``tf.io.decode_json_example`` reads it.
        key: Name of the feature in the record, if it differs from the output's name.

    Raises:
        TypeError: ``features`` is not a mapping of str to specs.
        ValueError: ``features`` is empty, or ``format`` is unknown.

    Example:
        >>> import torch
        >>> from torch_tfrecord.columns.lists import FixedLenFeature
        >>> Nested({"age": FixedLenFeature((), torch.int64)}, key="user")
        Nested({'age': FixedLenFeature((), torch.int64)}, key='user')
    """

    decodes = True  # pictures among its features

    features: Mapping[str, Feature]
    format: Literal["proto", "json"] = field(default="proto", kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields, and copy the mapping."""
        super().__post_init__()
        one_of("format", self.format, "proto", "json")
        object.__setattr__(self, "features", InnerParser(self.features).features)

    def __hash__(self) -> int:
        return hash((frozenset(self.features.items()), self.format, self.key))

    def reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples."""
        return _NestedReader(name, self, pads=pads)

    def stored(self, value: object) -> object:
        """A row of the inner features as a serialized Example; bytes are one already."""
        if isinstance(value, Mapping) and self.format == "proto":
            return encode_example(value, self.features)
        return value

    def context_reader(self, name: str) -> Reader:
        """Build the reader for a context; random crops are not supported."""
        reader = _NestedReader(name, self, pads=False)
        if reader.keyed:
            raise ValueError(
                f"crop in {name!r}: a SequenceExample has no random crops; crop in the transform"
            )
        return reader


class _NestedReader:
    """Reads a Nested: a dict of columns. With a random crop among them, it takes the records'
    random keys.
    """

    def __init__(self, name: str, spec: Nested, *, pads: bool) -> None:
        self._want = Want(
            name, spec.key_of(name), BYTES_LIST, "Nested", num_values=1, is_required=True
        )
        self._parser, self._is_json = InnerParser(spec.features, pads=pads), spec.format == "json"
        self.wants, self.keyed = (self._want,), self._parser.needs_keys

    def read(self, columns: Sequence[Column], keys: Any = None) -> dict[str, Any]:
        """The batch's columns, by name."""
        return labelled(self._want, self._read, columns[0], keys)

    def _read(self, column: Column, keys: Any) -> dict[str, Any]:
        records = PackedRecords(column.buffer, column.values[:, 0], column.values[:, 1])
        if self._is_json:
            records = packed(read_each(example_of_json, records))
        return self._parser.batch(records, keys)
