"""Propose a feature spec from records, and print it as Python code.

The proposal is the narrowest spec that reads every record seen. Ambiguous data stays general: bytes
that may be several things are ``bytes``, and a feature that has a varying number of values, or is
missing from some record, is a ``VarLenFeature``.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from torch_tfrecord.arguments import Paths, StorageOptions, at_least, nearest
from torch_tfrecord.batch_memory import splits_of
from torch_tfrecord.columns import (
    ColumnPlan,
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    ListFeatures,
    RawTensor,
    SequenceFeatures,
    SerializedTensor,
    Text,
    VarLenFeature,
    Want,
    make_parser,
)
from torch_tfrecord.error_log import ErrorLog
from torch_tfrecord.errors import ParseError, TFRecordError, warn
from torch_tfrecord.files import Access, is_remote
from torch_tfrecord.order import Rank
from torch_tfrecord.protobuf import (
    decode_sequence_example,
    parse_message,
)
from torch_tfrecord.records import PackedRecords, found_files
from torch_tfrecord.samples import DType
from torch_tfrecord.shown import dtype_name, features_code, shown_keys
from torch_tfrecord.tables.found_records import (
    Decoded,
    FoundRecord,
    Values,
    all_read,
    guess_message,
    read_text,
    spread_records,
)
from torch_tfrecord.tables.index_columns import DTYPES

__all__ = [
    "KeyCheck",
    "Survey",
    "infer_features",
]

# Common names for the sizes stored next to an array, outermost dimension first.
_SIZE_NAMES = (("height", "rows"), ("width", "cols"), ("depth", "channels"))
# Only these dtypes can be recognised from bytes: one byte is an image's uint8, and float bits are
# distinctive.
_RAW_DTYPES = (
    (torch.uint8, None),
    (torch.float32, np.dtype("<f4")),
    (torch.float64, np.dtype("<f8")),
)
# Most other bytes, read as floats, give some number that is far larger or smaller than this.
_PLAUSIBLE_FLOAT = 1e15
# Looked at for a key that the first record lacks.
_MOST_RECORDS = 1000


class InferredFeatures(dict[str, Feature]):
    """Output name -> spec; printed, it is the code that builds it.

    Example:
        >>> print(InferredFeatures({"image": Image(), "label": FixedLenFeature((), torch.int64)}))
        import torch
        from torch_tfrecord import FixedLenFeature, Image
        <BLANKLINE>
        features = {
            "image": Image(),
            "label": FixedLenFeature((), torch.int64),
        }
    """

    # `repr` stays the dict's, an expression, which errors and the repr of a dataset quote.
    def __str__(self) -> str:
        return features_code(self)


def infer_features(
    paths: Paths, *, num_records: int = 100, storage_options: StorageOptions = None
) -> dict[str, Feature] | SequenceFeatures | ListFeatures:
    """Propose a feature spec for the records in some files, to paste into your code.

    Args:
        paths: See `TFRecordDataset`.
        num_records: Number of records of large files to look at, spread over all files and over
            each file. Files below 64 MiB in all, also decompressed, are read whole. From others at
            most 256 MiB are read, so fewer of records longer than 1 MiB, and of a compressed file
            only what that reaches. A record that was not looked at may still differ: then give a
            larger number.
        storage_options: See `TFRecordDataset`.

    Returns:
        Key -> spec, SequenceFeatures if a record has feature lists, or ListFeatures for lists of
        Examples. Printed, it is Python code to paste, with its imports. An equal number of values
        in all records gives a FixedLenFeature, anything else a VarLenFeature; one bytes value an
        Image, a SerializedTensor, a RawTensor or a Text, by its content.

    Raises:
        ParseError: A record is not an Example: says what it looks like and which spec reads it. Or
            a key has several kinds. Names the file, the record and its first byte.
        TFRecordError: A file is damaged in the part that is read, or is no TFRecord file.
        ValueError: ``num_records`` is below 1, or the files have no record.

    Example:
        >>> infer_features("train-*")  # doctest: +SKIP
        {'image/encoded': Image(), 'image/class/label': FixedLenFeature((), torch.int64)}
    """
    return Survey(paths, Access(storage_options), num_records).features()


class Survey:
    """Some records of files, and the features that read them.

    Args:
        paths, num_records: See `infer_features`.
        access: How the files are read.
        until_damage: At a damaged part, keep the records before it, and the error, in place of
            raising it.

    Attributes:
        records: They may be replaced by some of them.
        damage: The error that ended the search, or None.

    Raises:
        TFRecordError: A file is damaged in the part that is read, or is no TFRecord file.
    """

    def __init__(
        self,
        paths: Paths,
        access: Access = Access.DEFAULT,
        num_records: int = 100,
        *,
        until_damage: bool = False,
    ) -> None:
        at_least(1, "num_records", num_records)
        self._files, _ = found_files(paths, access.without_cache())
        self._access = access.for_files(self._files)
        self.records: list[FoundRecord] = []
        self.damage: TFRecordError | None = None
        try:
            for record in spread_records(self._files, num_records, self._access):
                self.records.append(record)
        except TFRecordError as error:
            if not until_damage:
                raise
            self.damage = error

    def features(self) -> dict[str, Feature] | SequenceFeatures | ListFeatures:
        """The narrowest spec that reads all of the records, as `infer_features` proposes it.

        A RawTensor is one whose size matches the height, width and depth stored next to it. A key
        whose kind is never set is left out. In feature lists, a constant number of values in all
        steps gives a FixedLenSequenceFeature.

        Raises:
            ParseError, ValueError: See there.
        """
        records = self.records
        if not records:
            raise ValueError(
                f"expected at least one record to look at, got none in {len(self._files)} files: "
                f"{self._files[0]}, ..."
            )
        try:
            return _propose_any(records)
        except ParseError as error:
            # The first that does not fit those before it.
            number = bisect_left(
                range(len(records)), True, key=lambda last: not _agree(records[: last + 1])
            )
            path, position, offset, _ = records[number]
            with suppress(TFRecordError):  # in a record before it
                if position is None:
                    before = FoundRecord.all_of(path, self._access)
                    position = next(one.position for one in before if one.offset == offset)
            raise error.locate(path=path, position=position, offset=offset) from error.__cause__


def _agree(samples: Sequence[FoundRecord]) -> bool:
    try:
        _propose_any(samples)
    except ParseError:
        return False
    return True


def _propose_any(
    samples: Sequence[FoundRecord],
) -> dict[str, Feature] | SequenceFeatures | ListFeatures:
    if "ELWC" in str(guess_message(samples[0].payload)):
        what = "ExampleListWithContext", "example list"
        lists = [parse_message(sample.payload, *what) for sample in samples]
        # An Example is a SequenceExample without steps.
        contexts = [decode_sequence_example(each.context)[0] for each in lists]
        examples = [decode_sequence_example(one)[0] for each in lists for one in each.examples]
        return ListFeatures(_propose_samples(contexts), _propose_samples(examples))
    with suppress(TFRecordError):  # whose error is worded below
        columns = _read_columns([sample.payload for sample in samples])
        if columns is not None:
            return _propose_mapping(columns, columns.get)
    decoded = [sample.decode() for sample in samples]
    context = _propose_samples([context for context, _ in decoded])
    keys = sorted(set[str]().union(*(lists for _, lists in decoded)))
    if not keys:
        return context
    steps = {key: _propose_steps(key, decoded) for key in keys}
    sequences = {key: spec for key, spec in steps.items() if spec is not None}
    return SequenceFeatures(context, sequences) if sequences else context


class _Found(NamedTuple):
    """Some records at a key: the dtypes of their lists, each number of values that a record
    has, and the values themselves where they are bytes, or one in each record.
    """

    dtypes: set[DType]
    counts: set[int]
    values: Any


_Find: TypeAlias = Callable[[str], "_Found | None"]


def _read_columns(records: Sequence[bytes]) -> dict[str, _Found] | None:
    """The values of Examples at each key, read together; None where a record may be something else.

    Raises:
        TFRecordError: A record is damaged, or has another kind of list than one before.
    """
    dtypes: dict[str, DType] = {}
    for record in records:
        # An Example is a SequenceExample without steps: field 1 means the same in both.
        message = parse_message(record, "SequenceExample")
        if message.feature_lists.feature_list:
            return None
        features = message.context.feature
        for key in [key for key in features if key not in dtypes]:
            if kind := features[key].WhichOneof("kind"):
                dtypes[key] = DTYPES[kind]
    plan = ColumnPlan([[Want(key, key, dtype) for key, dtype in dtypes.items()]])
    ends = splits_of([*map(len, records)])
    packed = PackedRecords(b"".join(records), ends[:-1], np.diff(ends))
    ((columns,),) = plan.read(packed, [0, len(records)])
    found, num_values = {}, np.zeros(len(records), np.int64)
    for (key, dtype), column in zip(dtypes.items(), columns, strict=True):
        counts = np.diff(column.offsets)
        num_values += counts
        values = column.strings(dtype) if dtype is bytes else column.values
        found[key] = _Found({dtype}, {*np.unique(counts).tolist()}, values)
    # A message of another kind may pass for an Example without values.
    return found if num_values.all() else None


def _find_in(samples: Sequence[Mapping[str, Values]], key: str) -> _Found:
    stored = [sample[key] for sample in samples if key in sample]
    # An empty list may have any kind (kind not set), so it gives no evidence.
    dtypes = {_dtype(values) for values in stored if isinstance(values, np.ndarray) or values}
    # A record that lacks the key counts as one with an empty list: both need a VarLenFeature.
    counts = {*map(len, stored)} | ({0} if len(stored) < len(samples) else set())
    are_looked_at = dtypes == {bytes} or counts == {1}
    return _Found(dtypes, counts, [*chain.from_iterable(stored)] if are_looked_at else ())


def _propose_samples(samples: Sequence[Mapping[str, Values]]) -> dict[str, Feature]:
    return _propose_mapping(set[str]().union(*samples), partial(_find_in, samples))


def _propose_mapping(keys: Iterable[str], find: _Find) -> dict[str, Feature]:
    specs = ((key, _propose(key, find)) for key in sorted(keys))
    return InferredFeatures((key, spec) for key, spec in specs if spec is not None)


def _propose_steps(key: str, samples: Sequence[Decoded]) -> Feature | None:
    """Propose the spec of a feature list by treating each step as an Example, with sizes from the
    context.
    """
    steps = [step for sample in samples for step in _steps_as_examples(key, *sample)]
    spec = _propose(key, partial(_find_in, steps))
    # A list that some record lacks needs a spec that takes none.
    lacking = any(key not in lists for _, lists in samples)
    if isinstance(spec, FixedLenFeature):
        return FixedLenSequenceFeature(spec.shape, spec.dtype, allow_missing=lacking)
    # Specs of one value, such as Image, refuse a record without the list.
    if lacking and spec is not None and not isinstance(spec, VarLenFeature):
        return FixedLenSequenceFeature(
            (), str if isinstance(spec, Text) else bytes, allow_missing=True
        )
    return spec


def _steps_as_examples(
    key: str, context: Mapping[str, Values], lists: Mapping[str, list[Values]]
) -> Iterator[Mapping[str, Values]]:
    for number in range(len(lists.get(key, ()))):
        yield {
            **context,
            **{name: steps[number] for name, steps in lists.items() if number < len(steps)},
        }


class KeyCheck:
    """Warns once of optional keys that no record has: perhaps they are misspelt.

    Args:
        parser: What records are parsed with; it may have `Parser.optional`.
    """

    def __init__(self, parser: object) -> None:
        self._optional: Mapping[tuple[int, str], str] = getattr(parser, "optional", {})
        self._log = ErrorLog("skip" if self._optional else "raise")

    def __call__(
        self, records: Sequence[bytes] | PackedRecords, files: Sequence[str], access: Access
    ) -> None:
        """At the first of these calls, look for the keys that the first record lacks in others of
        the files.
        """
        optional, self._optional = self._optional, {}
        # Only the first worker of the first rank warns.
        if not optional or Rank.here(None, None).consumer()[0]:
            return
        # It is no Example, or there is damage, which reading will find.
        with suppress(TFRecordError):
            there = _places(bytes(records[0]))
            lacking = {place: label for place, label in optional.items() if place not in there}
            # A pipe cannot be read twice.
            if (
                not lacking
                or self._log.report().errors
                or not all(is_remote(file) or os.path.isfile(file) for file in files)
            ):
                return
            number = 0
            for found in spread_records(files, _MOST_RECORDS, access):
                number += 1
                for place in _places(found.payload):
                    lacking.pop(place, None)
                if not lacking:
                    break
            self._log.add("key", "looked for")
            if lacking:
                names = {key for _, key in there}
                hints = "".join(nearest(key, names) for _, key in lacking)
                warn(
                    f"none of {number} records looked at, of {len(files)} files, has the key of "
                    f"{', '.join(lacking.values())}: the first has {shown_keys(names)}. Correct the key, leave the "
                    f"feature out, or ignore this warning{hints}"
                )


def _places(record: bytes) -> set[tuple[int, str]]:
    """The keys of a record, as in `Parser.optional`."""
    message = parse_message(record, "SequenceExample")
    lists = message.feature_lists.feature_list
    return {(0, key) for key in message.context.feature} | {(1, key) for key in lists}


def _propose(key: str, find: _Find) -> Feature | None:
    found = find(key)
    if found is None or not found.dtypes:
        return None
    if len(found.dtypes) > 1:
        names = " and ".join(sorted(map(dtype_name, found.dtypes)))
        raise ParseError(f"feature {key!r}: Data types don't match: {names} in different records")
    (dtype,) = found.dtypes
    if dtype is bytes:
        if found.counts == {1}:
            return _propose_bytes(key, found.values, find)
        dtype = str if all_read(read_text, found.values) else bytes
    if len(found.counts) > 1 or found.counts == {0}:
        return VarLenFeature(dtype)
    (count,) = found.counts
    return FixedLenFeature(() if count == 1 else (count,), dtype)


def _dtype(values: Values) -> DType:
    if not isinstance(values, np.ndarray):
        return bytes
    return torch.int64 if values.dtype == np.int64 else torch.float32


def _propose_bytes(key: str, values: Sequence[bytes], find: _Find) -> Feature:
    from torch_tfrecord import media  # whose Image imports torchvision, in a second

    # First what has a header: bytes without one could be an array or a text by chance.
    if all_read(media.image_size, values):
        return media.Image()
    if all_read(make_parser(SerializedTensor()).single, values):
        return SerializedTensor()
    raw = _propose_raw(key, values, find)
    if raw is not None:
        return raw
    return Text() if all_read(read_text, values) else FixedLenFeature((), bytes)


def _propose_raw(key: str, values: Sequence[bytes], find: _Find) -> RawTensor | None:
    sizes = _sizes(key, find)
    if len(sizes) < 2:  # a single size matches too many things
        return None
    # Each record's byte count must follow from its own sizes, with one item size for all records.
    counts = [math.prod(map(int, each)) for each in zip(*sizes.values(), strict=True)]
    for dtype, floats in _RAW_DTYPES:
        if all(
            len(value) == count * dtype.itemsize
            for value, count in zip(values, counts, strict=True)
        ):
            plausible = floats is None or all(
                _plausible(np.frombuffer(value, floats)) for value in values
            )
            return RawTensor(tuple(sizes), dtype) if plausible else None
    return None


def _sizes(key: str, find: _Find) -> dict[str, Any]:
    """The sizes next to a key, by their keys: with the same prefix ("image/height" for "image/raw"),
    else without prefix.
    """
    # Writers put the sizes beside the array: "image/raw" and "image/height".
    prefixes = dict.fromkeys((key[: key.rfind("/") + 1], ""))
    sizes = {}
    for names in _SIZE_NAMES:
        for name in (prefix + name for prefix in prefixes for name in names):
            found = find(name)
            if found and found[:2] == ({torch.int64}, {1}) and np.min(found.values) > 0:
                sizes[name] = found.values
                break
    return sizes


def _plausible(values: np.ndarray[Any, Any]) -> bool:
    sizes = np.abs(values[values != 0])
    return bool(
        np.isfinite(sizes).all()
        and (sizes < _PLAUSIBLE_FLOAT).all()
        and (sizes > 1 / _PLAUSIBLE_FLOAT).all()
    )
