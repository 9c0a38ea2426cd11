"""Finds one feature's list in a record, and words what is wrong with it."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.values.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST, ListKind

__all__ = ["Lookup", "at_step"]

_SHOWN_KEYS = 8
_TF_NAMES = {kind.field: kind.tf_name for kind in (BYTES_LIST, FLOAT_LIST, INT64_LIST)}


class Lookup:
    """One feature of a record: its key, the list that should hold it, and the label that begins its errors.

    A record is the map of key to Feature message.

    Args:
        name: Name of the output.
        key: Name in the record.
        kind: The list that should hold the values.
        what: The dtype or spec, as the label shows it.
    """

    def __init__(self, name: str, key: str, kind: ListKind, what: str) -> None:
        self.key = key
        self.kind = kind
        self.label = f"feature {name!r} ({what})" if name == key else f"feature {name!r} ({what}, key {key!r})"
        self._field = kind.field
        self._list_of = attrgetter(kind.field)

    def find(self, record: Any) -> Any | None:
        """The list message, maybe empty; None where the key is missing or its kind is not set.

        Raises:
            ParseError: The values are in another kind of list.
        """
        feature = record.get(self.key)
        if feature is None:
            return None
        if feature.HasField(self._field):
            return self._list_of(feature)
        self._check_unset(feature)
        return None

    def list_in(self, feature: Any) -> Any | None:
        """The list message of a Feature message, maybe empty; None where its kind is not set.

        Raises:
            ParseError: The values are in another kind of list.
        """
        if feature.HasField(self._field):
            return self._list_of(feature)
        self._check_unset(feature)
        return None

    def _check_unset(self, feature: Any) -> None:
        stored = feature.WhichOneof("kind")
        if stored is not None:
            raise self.error(
                f"Data types don't match. Data type: {_TF_NAMES[stored]} but expected type: {self.kind.tf_name}"
            )

    def require(self, record: Any) -> Any:
        """The list message.

        Raises:
            ParseError: The key is missing, its kind is not set, or the values are in another kind of list.
        """
        found = self.find(record)
        if found is None:
            raise self.missing(record)
        return found

    def one(self, record: Any) -> Any:
        """The only value of the list.

        Raises:
            ParseError: As :meth:`require`, or there is not exactly one value.
        """
        values = self.require(record).value
        if len(values) != 1:
            raise self.wrong_count(len(values), 1, ())
        return values[0]

    def missing(self, record: Any) -> ParseError:
        """The error for a record that lacks the feature; it names the record's keys, since a misspelt key is common."""
        there = "it is there without a value" if self.key in record else f"the record has {_shown_keys(record)}"
        return self.error(f"key {self.key!r} is required but could not be found: {there}")

    def missing_list(self, lists: Any) -> ParseError:
        """The error for a SequenceExample that lacks the feature list."""
        return self.error(
            f"Feature list {self.key!r} is required but could not be found: the record has "
            f"{_shown_keys(lists)}. Did you mean to give allow_missing=True?"
        )

    def wrong_count(self, found: int, expected: int, shape: tuple[int, ...]) -> ParseError:
        """The error for a list with another number of values."""
        counted = self.kind.counted
        return self.error(
            f"Number of {counted} values != expected: got {found}, expected {expected} for shape {[*shape]}"
        )

    def error(self, text: str) -> ParseError:
        """An error of this feature."""
        return ParseError(f"{self.label}: {text}")

    def labelled(self, error: TFRecordError) -> TFRecordError:
        """The same error, with this feature's label before its text."""
        return type(error)(f"{self.label}: {error.args[0]}", position=error.position)


def at_step(error: TFRecordError, step: int) -> TFRecordError:
    """The same error, with the number of the feature list's step before its text."""
    return type(error)(f"step {step}: {error.args[0]}")


def _shown_keys(record: Any) -> str:
    keys = sorted(key if len(key) <= 60 else key[:57] + "..." for key in record)
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return ", ".join(map(repr, keys[:_SHOWN_KEYS])) + more or "no features"
