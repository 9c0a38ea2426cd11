"""The parser for each kind of records: Examples and what contains several, or one value of any
kind; and the Source spec, which datasets answer, since no bytes of a record do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np
import torch

from torch_tfrecord.arguments import one_of
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, Buffer, Keys
from torch_tfrecord.columns.containers import as_plain, rows_of
from torch_tfrecord.columns.dtypes import BYTES_LIST
from torch_tfrecord.columns.example_lists import ExampleListParser, ListFeatures
from torch_tfrecord.columns.feature import Feature, Layout, SequenceFeatures, make_reader
from torch_tfrecord.columns.parsers import ExampleParser, Parser, PartParser
from torch_tfrecord.columns.reading import NO_OFFSETS, Column, Reader, read_columns
from torch_tfrecord.columns.sequences import SequenceExampleParser
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.samples import RecordPlace, Value

__all__ = [
    "RecordFeatures",
    "Source",
    "make_parser",
    "parse_example",
    "parse_sequence_example",
    "parse_single_example",
    "parse_single_sequence_example",
]

# Without parameters, so that `isinstance` takes it.
RecordFeatures: TypeAlias = Mapping | SequenceFeatures | ListFeatures | Feature  # type: ignore[type-arg]
"""What to read from records: features of Examples by name, or the spec of another kind of record."""


def make_parser(
    features: RecordFeatures | None, *, pads: bool = True, max_batch_bytes: int = MAX_BATCH_BYTES
) -> Parser[Value, Value, Value]:
    """Build the parser for the kind of records that ``features`` describes.

    Raises:
        TypeError, ValueError: See the parsers.
    """
    kind: Callable[..., Parser[Value, Value, Value]] = (
        SequenceExampleParser
        if isinstance(features, SequenceFeatures)
        else ExampleListParser
        if isinstance(features, ListFeatures)
        else ValueParser
        if isinstance(features, Feature)
        else ExampleParser
    )
    return kind(features, pads=pads, max_batch_bytes=max_batch_bytes)


class ValueParser(PartParser):
    """Parses records that are one value each, such as an image, a message or JSON: what a bytes
    feature could hold.

    Args:
        features: The spec.
        pads, max_batch_bytes: See `ExampleParser`.

    Raises:
        ValueError: The spec needs more than one bytes value.
    """

    def __init__(
        self, features: Feature, *, pads: bool = True, max_batch_bytes: int = MAX_BATCH_BYTES
    ) -> None:
        super().__init__(max_batch_bytes)
        self.features, self._pads = features, pads
        self._reader = make_reader("record", features, pads=pads)
        want, *others = self._reader.wants
        # A record is always there and one value: a default, or no value, could never come true.
        takes_one = want.is_required and want.num_values in (1, None)
        if others or want.kind is not BYTES_LIST or not takes_one or features.key is not None:
            raise ValueError(
                f"features must be a mapping of names to specs, or one spec that reads the record's bytes alone, got "
                f"{features!r}"
            )
        # There is no key to name: the record is the value.
        want.label = want.what
        self.needs_keys = getattr(self._reader, "keyed", False)

    def _row(self, record: PackedRecords, keys: Keys) -> Value:
        return rows_of(self._column(record, keys))[0]

    def _read(self, found: PackedRecords, num_records: int, keys: Keys) -> Value:
        return self._column(found, keys)

    def _column(self, records: PackedRecords, keys: Keys) -> Value:
        spans = np.stack([records.starts, records.lengths], axis=1)
        # A spec that takes several strings (RawTensor) sees a list of one.
        offsets = NO_OFFSETS if self._reader.wants[0].num_values == 1 else np.arange(len(spans) + 1)
        return read_columns(self._reader, [Column(spans, offsets, None, records.buffer)], keys)


_P = TypeVar("_P")
_Specs: TypeAlias = tuple[RecordFeatures | None, ...]

# The parsers built last, as these functions are usually called for each record with the same specs:
# by the identity of each spec, as comparing their fields would take time for each record.
_kept: dict[object, tuple[_Specs, Value]] = {}
_MOST_KEPT = 8


def _parser(kind: Callable[..., _P], specs: _Specs, max_batch_bytes: int) -> _P:
    """The parser for some specs, which are immutable."""
    identities = [
        tuple((name, id(spec)) for name, spec in each.items())
        if isinstance(each, Mapping)
        else id(each)
        for each in specs
    ]
    # True and 1.0 equal 1, but as a limit they are errors, which only a new parser raises.
    key = kind, type(max_batch_bytes), max_batch_bytes, *identities
    known = _kept.get(key)
    if known is None:
        parser = kind(*specs, max_batch_bytes=max_batch_bytes)
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        # With the specs, whose identities would else become those of others.
        copies = tuple(dict(each) if isinstance(each, Mapping) else each for each in specs)
        known = _kept[key] = copies, parser
    return known[1]


@dataclass(frozen=True, repr=False)
class Source(Feature):
    """The file and place of a sample's record, as errors name it; for the features of a dataset.

    The path is a str as in the dataset's `files`; the position (the record's number in that file,
    from 0) and the offset (of its first byte; in the decompressed stream for a compressed file; -1
    in an ArrayRecord file) are int64 scalars. In a batch they are a list, and tensors [B].

    Args:
        what: "path", "position" or "offset" for one of them; None for a dict of all three.
        key: Not supported.

    Raises:
        ValueError: ``what`` is something else, or ``key`` is given.

    Example:
        >>> Source("path")
        Source(what='path')
    """

    what: Literal["path", "position", "offset"] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        one_of("what", self.what, None, "path", "position", "offset")
        if self.key is not None:
            raise ValueError("key is not supported by Source: nothing is read from the record")

    def _layout(self) -> Layout | dict[str, Any]:
        parts: dict[str, Layout] = {
            "path": (str, ()),
            "position": (torch.int64, ()),
            "offset": (torch.int64, ()),
        }
        return parts if self.what is None else parts[self.what]

    def _reader(self, name: str, *, pads: bool = False) -> Reader:
        """Raise ValueError: there is nothing to read."""
        raise ValueError(
            f"Source for {name!r}: the bytes of a record do not say which file they are from; expected it in the "
            "features of a TFRecordDataset, TFRecordIterableDataset or make_dataloader, or the context of "
            "SequenceFeatures there"
        )

    def _context_reader(self, name: str) -> Reader:
        """Raise ValueError, as `reader`."""
        return self._reader(name)

    def _of_places(self, places: Sequence[RecordPlace]) -> Value:
        """The column of a batch: a dataset asks a spec that has this for it, and no record."""
        offsets = [-1 if place.offset is None else place.offset for place in places]
        columns = {
            "path": [place.path for place in places],
            "position": torch.tensor(
                [place.position for place in places], dtype=torch.int64, device="cpu"
            ),
            "offset": torch.tensor(offsets, dtype=torch.int64, device="cpu"),
        }
        return columns if self.what is None else columns[self.what]


def _sequence_parser(*specs: Any, max_batch_bytes: int) -> SequenceExampleParser:
    return SequenceExampleParser(SequenceFeatures(*specs), max_batch_bytes=max_batch_bytes)


@overload
def parse_single_example(serialized: Buffer, features: Mapping[str, Feature]) -> dict[str, Any]: ...
@overload
def parse_single_example(serialized: Buffer, features: RecordFeatures) -> Any: ...
def parse_single_example(serialized: Buffer, features: RecordFeatures | None = None) -> Any:
    """Parse one serialized tf.train.Example with a mapping of feature specs, like
    ``tf.io.parse_single_example``.

    The specs are prepared on first use: pass the same spec objects for each record.

    Args:
        serialized: The bytes of the record.
        features: Output name -> feature spec; for other records than Examples, what a dataset takes
            as ``features``.

    Returns:
        Name -> value, in the order of ``features``. The spec decides the type: a tensor, str, bytes
        or list.

    Raises:
        ImageDecodeError: An image cannot be decoded.
        LimitExceededError: A serialized tensor would expand to far more bytes than it has.
        ParseError: The bytes are not an Example, or do not fit the specs.
        TypeError: ``serialized`` is not bytes-like, or a value of ``features`` is not a feature
            spec.
        ValueError: ``features`` is empty or None.

    Example:
        >>> import torch
        >>> from torch_tfrecord import VarLenFeature
        >>> parse_single_example(bytes.fromhex("0a0c0a0a0a016112051a030a0105"), {"a": VarLenFeature(torch.int64)})
        {'a': tensor([5])}
    """
    parser = _parser(make_parser, (features,), MAX_BATCH_BYTES)
    return parser.single(serialized)


@overload
def parse_example(
    serialized_list: Iterable[Buffer] | Buffer,
    features: Mapping[str, Feature],
    *,
    max_batch_bytes: int = ...,
) -> dict[str, Any]: ...
@overload
def parse_example(
    serialized_list: Iterable[Buffer] | Buffer,
    features: RecordFeatures,
    *,
    max_batch_bytes: int = ...,
) -> Any: ...
def parse_example(
    serialized_list: Iterable[Buffer] | Buffer,
    features: RecordFeatures | None = None,
    *,
    max_batch_bytes: int = MAX_BATCH_BYTES,
) -> Any:
    """Parse several serialized tf.train.Examples into a batch, like ``tf.io.parse_example``.

    Args:
        serialized_list: A list of the records' bytes. The bytes of a single record are parsed as in
            :func:`parse_single_example`.
        features: Output name -> feature spec; for other records than Examples, what a dataset takes
            as ``features``.
        max_batch_bytes: Memory limit in bytes for the batch: its columns and the parts they are
            built from. For strings, only their list slots count, as their bytes are in the records.

    Returns:
        Name -> column of B values. Fixed-size numbers are one tensor [B, ...]; rows of equal shape
        are padded to the longest; numbers of varying length are a jagged nested tensor, with more
        ragged dimensions a RaggedTensor; sparse features ``torch.sparse_coo``; images and arrays
        one stacked tensor if all shapes are equal, else a list; bytes and str a list.

    Raises:
        LimitExceededError: The batch needs more than ``max_batch_bytes``; raised before the memory
            is allocated.
        TFRecordError: See :func:`parse_single_example`; ``position`` is that of the first bad
            record.
        TypeError: See :func:`parse_single_example`; also if ``serialized_list`` is not a list of
            bytes.
        ValueError: ``features`` is empty or None.

    Example:
        >>> import torch
        >>> from torch_tfrecord import FixedLenFeature
        >>> parse_example([bytes.fromhex("0a0c0a0a0a016112051a030a0105")] * 2, {"a": FixedLenFeature((), torch.int64)})
        {'a': tensor([5, 5])}
    """
    parser = _parser(make_parser, (features,), max_batch_bytes)
    if isinstance(serialized_list, (bytes, bytearray, memoryview)):
        return parser.single(serialized_list)
    return as_plain(parser.batch(serialized_list))


def parse_single_sequence_example(
    serialized: Buffer,
    context_features: Mapping[str, Feature] | None = None,
    sequence_features: Mapping[str, Feature] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse one serialized tf.train.SequenceExample, like ``tf.io.parse_single_sequence_example``.

    The specs are prepared on first use: pass the same spec objects for each record.

    Args:
        serialized: The bytes of the record.
        context_features: Output name -> FixedLenFeature, VarLenFeature, RaggedFeature, Image,
            RawTensor, SerializedTensor or Text.
        sequence_features: Output name -> FixedLenSequenceFeature, VarLenFeature, RaggedFeature,
            Image, RawTensor (an entry of its shape may name a feature list or a feature of the
            context), SerializedTensor or Text.

    Returns:
        ``(context, sequences)``, in the order of the specs. For T steps, a FixedLenSequenceFeature
        is a tensor [T, *shape]; a VarLenFeature a jagged nested tensor [T, *], or a list of T lists
        for strings; images are one ``tv_tensors.Video`` [T, C, H, W] and arrays one tensor [T, ...]
        if all steps have the same shape, else a list; text is a list of str.

    Raises:
        ImageDecodeError: An image cannot be decoded.
        LimitExceededError: A serialized tensor would expand to far more bytes than it has.
        ParseError: The bytes are not a SequenceExample, or do not fit the specs.
        TypeError: ``serialized`` is not bytes-like, or a value of a mapping is not a feature spec.
        ValueError: Both mappings are None or empty, or a spec cannot be read from a context or a
            feature list.

    Example:
        >>> import torch
        >>> from torch_tfrecord import FixedLenSequenceFeature
        >>> record = bytes.fromhex("120e0a0c0a017812070a051a030a0105")
        >>> parse_single_sequence_example(record, None, {"x": FixedLenSequenceFeature((), torch.int64)})
        ({}, {'x': tensor([5])})
    """
    specs = context_features, sequence_features
    parser = _parser(_sequence_parser, specs, MAX_BATCH_BYTES)
    return parser.single(serialized)


def parse_sequence_example(
    serialized_list: Iterable[Buffer] | Buffer,
    context_features: Mapping[str, Feature] | None = None,
    sequence_features: Mapping[str, Feature] | None = None,
    *,
    max_batch_bytes: int = MAX_BATCH_BYTES,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]]:
    """Parse several serialized tf.train.SequenceExamples into a batch, like
    ``tf.io.parse_sequence_example``.

    Args:
        serialized_list: A list of the records' bytes. The bytes of a single record give values
            without the batch dimension.
        context_features: See :func:`parse_single_sequence_example`.
        sequence_features: See :func:`parse_single_sequence_example`.
        max_batch_bytes: See :func:`parse_example`.

    Returns:
        ``(context, sequences, lengths)``. The context is as from :func:`parse_example`. Among the
        sequences, a FixedLenSequenceFeature is a tensor [B, longest T, *shape], padded at the end
        with 0, ``b""`` or ``""``, and ``lengths`` has its numbers of steps, int64 [B]; a
        VarLenFeature is a :class:`RaggedTensor` [B, *, *]; others are stacked if all samples have
        the same shape, else a list.

    Raises:
        LimitExceededError: See :func:`parse_example`.
        TFRecordError: See :func:`parse_single_sequence_example`; ``position`` is that of the first
            bad record.
        TypeError: See :func:`parse_single_sequence_example`; also if ``serialized_list`` is not a
            list of bytes.
        ValueError: See :func:`parse_single_sequence_example`.
    """
    specs = context_features, sequence_features
    parser = _parser(_sequence_parser, specs, max_batch_bytes)
    if isinstance(serialized_list, (bytes, bytearray, memoryview)):
        return parser.scalar(serialized_list)
    return as_plain(parser.batch(serialized_list))
