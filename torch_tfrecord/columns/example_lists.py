"""Parse records that contain a context and a list of Examples, as TF-Ranking's do.

The Examples of all lists of a batch are parsed together, like the records of one large batch.
Padding is an Example of no bytes, as in TF-Ranking. Source: ``tensorflow_ranking/python/data.py``,
0.5.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import at_least, one_of, true_or_false
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, Ints, Keys, reserve, splits_of
from torch_tfrecord.columns.containers import Nested, rows_of, split_lists, stack
from torch_tfrecord.columns.dtypes import Values
from torch_tfrecord.columns.feature import Feature, copy_mappings
from torch_tfrecord.columns.lists import FixedLenFeature, VarLenFeature
from torch_tfrecord.columns.one_value import OneValueSpec
from torch_tfrecord.columns.parsers import ExampleParser, PartParser, packed
from torch_tfrecord.columns.ragged import SparseFeature
from torch_tfrecord.columns.reading import Column, Reader, Want, labelled, locate_row
from torch_tfrecord.errors import ParseError, TFRecordError, read_each
from torch_tfrecord.protobuf import (
    RowEncoder,
    example_of_json,
    parse_message,
)
from torch_tfrecord.random_stream import shuffled
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.samples import Value
from torch_tfrecord.shown import features_code
from torch_tfrecord.torch_internals import as_kind_of

__all__ = ["ExampleListParser", "ListFeatures", "NestedExample"]


@dataclass(frozen=True, repr=False)
class NestedExample(Feature):
    """A serialized Example in one bytes value of another Example.

    A sample is a dict of the inner features' values, a batch a dict of their columns. Records that
    are JSON themselves: give the spec alone, ``TFRecordDataset(path, NestedExample(features,
    format="json"))``.

    Args:
        features: Output name -> spec, for the inner Example; a spec may be a NestedExample again.
        format: ``"proto"`` for the usual bytes, ``"json"`` for protobuf's JSON form of an Example,
            as ``tf.io.decode_json_example`` reads it.
        key: Name of the feature in the record, if it differs from the output's name.

    Raises:
        TypeError: ``features`` is not a mapping of str to specs.
        ValueError: ``features`` is empty, or ``format`` is unknown.

    Example:
        >>> import torch
        >>> from torch_tfrecord import FixedLenFeature
        >>> NestedExample({"age": FixedLenFeature((), torch.int64)}, key="user")
        NestedExample({'age': FixedLenFeature((), torch.int64)}, key='user')
    """

    _decodes = True  # pictures among its features

    features: Mapping[str, Feature]
    _: KW_ONLY
    format: Literal["proto", "json"] = "proto"

    def __post_init__(self) -> None:
        """Check the fields, and copy the mapping."""
        super().__post_init__()
        one_of("format", self.format, "proto", "json")
        object.__setattr__(self, "features", ExampleParser(self.features).features)

    def __hash__(self) -> int:
        return hash((frozenset(self.features.items()), self.format, self.key))

    def _layout(self) -> dict[str, Any]:
        return {name: spec._layout() for name, spec in self.features.items()}

    def _undecoded(self, *, is_step: bool = False, but_images: bool = False) -> Feature:
        inner = self.features.items()
        features = {name: spec._undecoded(but_images=but_images) for name, spec in inner}
        return NestedExample(features, format=self.format, key=self.key)

    @property
    def _has_pictures(self) -> bool:
        return any(spec._has_pictures for spec in self.features.values())

    def _reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples."""
        return _NestedReader(name, self, pads=pads)

    def _stored(self, value: object) -> object:
        """A row of the inner features as a serialized Example; bytes are one already."""
        if isinstance(value, Mapping) and self.format == "proto":
            return RowEncoder(self.features).encode(value)
        return value

    def _context_reader(self, name: str) -> Reader:
        """Build the reader for a context; random crops are not supported."""
        reader = _NestedReader(name, self, pads=False)
        if reader.keyed:
            raise ValueError(
                f"crop in {name!r}: a SequenceExample has no random crops; crop in the transform"
            )
        return reader


class _NestedReader:
    """Reads a NestedExample: a dict of columns. With a random crop among them, it takes the records'
    random keys.
    """

    def __init__(self, name: str, spec: NestedExample, *, pads: bool) -> None:
        self._want = Want(
            name, spec._key_of(name), bytes, "NestedExample", num_values=1, is_required=True
        )
        self._parser, self._is_json = ExampleParser(spec.features, pads=pads), spec.format == "json"
        self.wants, self.keyed = (self._want,), self._parser.needs_keys

    def read(self, columns: Sequence[Column], keys: Keys | None = None) -> Values:
        """The batch's columns, by name."""
        return labelled(self._want, self._read, columns[0], keys)

    def _read(self, column: Column, keys: Keys | None) -> Values:
        records = PackedRecords(column.buffer, column.values[:, 0], column.values[:, 1])
        if self._is_json:
            records = packed(read_each(example_of_json, records))
        return self._parser.batch(records, keys)


@dataclass(frozen=True)
class ListFeatures:
    """The features to read from an ExampleListWithContext (TF-Ranking's ELWC); pass it to a dataset as
    ``features``.

    Each sample is ``(context, examples)``, two dicts of values. A feature of the examples has one
    more dimension than its spec says, the list's: [n, ...], in a batch [B, *, ...], jagged. Give
    ``list_size`` for lists of one length: [list_size, ...], in a batch [B, list_size, ...]. Padding
    is what an empty Example gives: ``default_value``, or no values. The values are those of
    ``tfr.data.parse_from_example_list``.

    Args:
        context_features: Output name -> spec, for the context; a record without a context has an
            empty one.
        example_features: Output name -> spec, for each Example of the list: any spec but
            SparseFeature.
        list_size: Number of Examples of every list: longer ones are cut, shorter ones padded. None
            keeps all.
        size_feature_name: Name, among the examples' features, of the number of Examples in the
            record: int64, also if the list was cut.
        mask_feature_name: Name, among the examples' features, of a mask: bool, True for Examples of
            the record, False for padding.
        shuffle_examples: Shuffle each list before it is cut, in another order in each epoch;
            ``parse_example`` always gives the same order.
        format: ``"elwc"``, or ``"eie"`` for Examples whose features ``serialized_context`` and
            ``serialized_examples`` contain serialized Examples.

    Raises:
        TypeError: A mapping or an option has another type.
        ValueError: ``example_features`` is empty, an option is out of range, or a name is there
            twice.

    Example:
        >>> from torch_tfrecord import FixedLenFeature
        >>> spec = ListFeatures({}, {"label": FixedLenFeature((), torch.float32, -1.0)}, list_size=10)
    """

    context_features: Mapping[str, Feature] | None
    example_features: Mapping[str, Feature]
    _: KW_ONLY
    list_size: int | None = None
    size_feature_name: str | None = None
    mask_feature_name: str | None = None
    shuffle_examples: bool = False
    format: Literal["elwc", "eie"] = "elwc"

    def __post_init__(self) -> None:
        """Check the fields, and copy the mappings."""
        copy_mappings(self, "context_features", "example_features")
        if not self.example_features:
            raise ValueError("example_features must name at least one feature")
        if self.list_size is not None:
            at_least(1, "list_size", self.list_size)
        true_or_false("shuffle_examples", self.shuffle_examples)
        one_of("format", self.format, "elwc", "eie")
        self._check_names()

    def __str__(self) -> str:
        """Show the Python code that builds it, with its imports."""
        return features_code(self)

    def _check_names(self) -> None:
        taken: set[str | None] = set(self.example_features)
        for argument in ("size_feature_name", "mask_feature_name"):
            name = getattr(self, argument)
            if name is not None and not isinstance(name, str):
                raise TypeError(f"{argument} must be str or None, got {type(name).__name__}")
            if name is not None and name in taken:
                raise ValueError(
                    f"{argument} must be a name of its own, got {name!r}, which is there already"
                )
            taken.add(name)

    __hash__ = None  # type: ignore[assignment]


_EIE = {
    "serialized_context": FixedLenFeature((), bytes),
    "serialized_examples": VarLenFeature(bytes),
}


class _Lists(NamedTuple):
    """The Examples of N lists in a row, which may be padded.

    Attributes:
        examples: The Examples' bytes.
        offsets: int64 [N + 1]: where each list begins and ends among them. One tensor for all
            features, as torch lets only jagged tensors of the same offsets meet.
        sizes: int64 [N]: how many Examples each record has.
        is_own: bool [M]: which of them are the records', not padding.
        width: Length of each list; None if they differ.
    """

    examples: PackedRecords
    offsets: torch.Tensor
    sizes: Ints
    is_own: npt.NDArray[np.bool_]
    width: int | None


class ExampleListParser(PartParser):
    """Parses such records, like `ExampleParser`.

    Args:
        features: What to read.
        pads: Whether the lists of a batch are padded to its longest without a `list_size`; else
            they are jagged.
        max_batch_bytes: See `ExampleParser`.

    Raises:
        ValueError: A spec cannot be read from a list of Examples.
    """

    def __init__(
        self,
        features: ListFeatures,
        *,
        pads: bool = True,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        super().__init__(max_batch_bytes)
        self.features, self._pads = features, pads
        self.needs_keys = features.shuffle_examples
        # A sample is not padded, unless every list is.
        self._examples = {
            each: _inner(features.example_features, pads=each) for each in {False, pads}
        }
        self._context = (
            _inner(features.context_features, pads=pads) if features.context_features else None
        )
        _check(features.example_features)

    def _row(self, record: PackedRecords, keys: Keys) -> tuple[Values, Values]:
        context, examples = self._columns(record, keys, pads=False)
        return rows_of(context)[0] if context else {}, rows_of(examples)[0]

    def _read(self, found: PackedRecords, num_records: int, keys: Keys) -> tuple[Values, Values]:
        return self._columns(found, keys, pads=self._pads)

    def _columns(self, records: PackedRecords, keys: Keys, *, pads: bool) -> tuple[Values, Values]:
        contexts, lists = _READ[self.features.format](records)
        context: Values = {}
        if self._context is not None:
            try:
                context = self._context.batch(contexts)
            except TFRecordError as error:
                raise type(error)(
                    f"context: {error.args[0]}", position=error.position
                ) from error.__cause__
        return context, self._read_lists(self._packed(lists, keys, pads=pads), self._examples[pads])

    def _packed(self, lists: Sequence[Sequence[bytes]], keys: Keys, *, pads: bool) -> _Lists:
        """All lists in a row, shuffled, cut and padded."""
        sizes = np.array([*map(len, lists)], np.int64)
        # Before the cut, so that each Example may be among those that are kept.
        if self.features.shuffle_examples:
            lists = [
                shuffled(examples, key) for examples, key in zip(lists, keys.tolist(), strict=True)
            ]
        limit = self.features.list_size
        examples = packed([example for each in lists for example in each[:limit]])
        width = int(sizes.max(initial=0)) if limit is None and pads else limit
        if width is None:
            is_own = np.ones(len(examples), np.bool_)
            return _Lists(examples, torch.from_numpy(splits_of(sizes)), sizes, is_own, None)
        # A long list makes all of a batch long: checked before the arrays of places are made.
        reserve(2 * 8 * len(lists) * width)
        is_own = np.arange(width) < sizes[:, None]
        # Padding is an Example of no bytes: start 0, length 0.
        starts, lengths = np.zeros((2, *is_own.shape), np.int64)
        starts[is_own], lengths[is_own] = examples.starts, examples.lengths
        examples = PackedRecords(examples.buffer, starts.reshape(-1), lengths.reshape(-1))
        offsets = torch.arange(len(lists) + 1, device="cpu") * width
        return _Lists(examples, offsets, sizes, is_own.reshape(-1), width)

    def _read_lists(self, lists: _Lists, parser: ExampleParser) -> Values:
        try:
            columns = parser.batch(lists.examples)
        except TFRecordError as error:
            raise _at_example(error, lists) from error.__cause__
        features = self.features
        found = _in_lists(features.example_features, columns, lists)
        if features.size_feature_name is not None:
            found[features.size_feature_name] = torch.from_numpy(lists.sizes)
        if features.mask_feature_name is not None:
            found[features.mask_feature_name] = _tensor(torch.from_numpy(lists.is_own), lists)
        return found


def _inner(features: Mapping[str, Feature], *, pads: bool) -> ExampleParser:
    parser = ExampleParser(features, pads=pads)
    if parser.needs_keys:
        raise ValueError(
            "crop: images of a list of Examples have no random crop; crop them in the transform"
        )
    return parser


def _check(features: Mapping[str, Feature]) -> None:
    for name, spec in features.items():
        if isinstance(spec, SparseFeature):
            raise ValueError(
                f"Unsupported SparseFeature for key {name!r} of a list of Examples: read it as VarLenFeature"
            )
        # An inner Example may contain one, too.
        if isinstance(spec, NestedExample):
            _check(spec.features)


# From records to the bytes of their contexts and Examples.


def _read_elwc(records: PackedRecords) -> tuple[list[bytes], list[list[bytes]]]:
    messages = [
        parse_message(record, "ExampleListWithContext", "example list") for record in records
    ]
    return [message.context for message in messages], [[*message.examples] for message in messages]


def _read_eie(records: PackedRecords) -> tuple[list[bytes], list[list[bytes]]]:
    found = ExampleParser(_EIE).batch(records)
    return found["serialized_context"], found["serialized_examples"]


_READ = {"elwc": _read_elwc, "eie": _read_eie}


# From the columns of all Examples to those of the lists.


def _at_example(error: TFRecordError, lists: _Lists) -> TFRecordError:
    """The error with its list as position, and with the Example's number in it as prefix."""
    if error.position is None:
        return error
    row, number = locate_row(lists.offsets.numpy(), error.position)
    size = int(lists.sizes[row])
    if number < size:
        return type(error)(f"example {number}: {error.args[0]}", position=row)
    # After the Examples of the record there is only padding: an Example without any feature.
    return ParseError(
        f"expected a default_value to pad a list of {size} examples to {lists.width}: {error.args[0]}",
        position=row,
    )


def _in_lists(features: Mapping[str, Feature], columns: Values, lists: _Lists) -> Values:
    return {name: _column(spec, columns[name], lists) for name, spec in features.items()}


def _column(spec: Feature, column: Value, lists: _Lists) -> Value:
    if isinstance(spec, NestedExample):
        return _in_lists(spec.features, column, lists)
    if isinstance(column, Nested):
        return column._replace(row_splits=(lists.offsets, *column.row_splits))
    if isinstance(column, torch.Tensor):
        is_whole = isinstance(spec, OneValueSpec) and lists.width is None
        # A tensor of images or arrays has no ragged form: one value a list.
        return _parts(column, lists) if is_whole else _tensor(column, lists)
    if isinstance(spec, OneValueSpec):
        return _parts(column, lists)
    return split_lists(column, [lists.offsets.tolist()])


def _tensor(column: torch.Tensor, lists: _Lists) -> torch.Tensor | Nested:
    """One tensor if the lists have one length, else ragged rows."""
    if lists.width is None:
        return Nested(column, column.dtype, (lists.offsets,))
    return as_kind_of(column.reshape(len(lists.sizes), lists.width, *column.shape[1:]), column)


def _parts(column: Value, lists: _Lists) -> list[Value]:
    """One value for each list: what of images and arrays is not ragged, but stacked or listed, as
    in a batch.
    """
    rows = rows_of(column)
    return [stack([*rows[begin:end]]) for begin, end in pairwise(lists.offsets.tolist())]
