"""One key of a record that a reader wants; finds its list in protobuf's messages, and words what is wrong with it."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.values.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST, DType, ListKind, dtype_name, list_kind

__all__ = ["LackingError", "Want", "at_step", "list_want"]

_SHOWN_KEYS = 8
_KINDS = {kind.field: kind for kind in (BYTES_LIST, FLOAT_LIST, INT64_LIST)}


class Want:
    """What a reader wants of each record: a key's list, its number of values, and whether it must be there.

    Args:
        name: Name of the output.
        key: Name in the record.
        kind: The list that should hold the values.
        what: The dtype or spec, as the label shows it.
        num_values: How many each record has; None for any number.
        is_required: Whether a record that lacks it is an error.
        shape: Of the values, as errors show it.

    Attributes:
        label: What begins the errors.
    """

    def __init__(
        self,
        name: str,
        key: str,
        kind: ListKind,
        what: str,
        *,
        num_values: int | None = None,
        is_required: bool = False,
        shape: tuple[int, ...] = (),
    ) -> None:
        self.key = key
        self.kind, self.what = kind, what
        self.num_values, self.is_required, self.shape = num_values, is_required, shape
        self.label = f"feature {name!r} ({what})" if name == key else f"feature {name!r} ({what}, key {key!r})"
        self._field = kind.field
        self._list_of = attrgetter(kind.field)

    def take(self, record: Any) -> Any | None:
        """The list message of a record, which is the map of key to Feature message.

        Returns:
            None where the record lacks the key, or its kind is not set.

        Raises:
            ParseError: The record does not fit what is wanted.
        """
        found = self.find(record)
        if found is None:
            if self.is_required:
                raise self.missing(record)
        elif self.num_values is not None and len(found.value) != self.num_values:
            raise self.wrong_count(len(found.value))
        return found

    def find(self, record: Any) -> Any | None:
        """As :meth:`take`, of any number of values, and none.

        Raises:
            ParseError: The values are in another kind of list.
        """
        feature = record.get(self.key)
        return None if feature is None else self.list_in(feature)

    def list_in(self, feature: Any) -> Any | None:
        """The list message of a Feature message, maybe empty; None where its kind is not set.

        Raises:
            ParseError: The values are in another kind of list.
        """
        if feature.HasField(self._field):
            return self._list_of(feature)
        stored = feature.WhichOneof("kind")
        if stored is not None:
            raise self.wrong_kind(_KINDS[stored])
        return None

    def require(self, record: Any) -> Any:
        """The list message.

        Raises:
            ParseError: The key is missing, its kind is not set, or the values are in another kind of list.
        """
        found = self.find(record)
        if found is None:
            raise self.missing(record)
        return found

    def missing(self, record: Any) -> ParseError:
        """The error for a record that lacks the feature; it names the record's keys, since a misspelt key is common."""
        there = "it is there without a value" if self.key in record else f"the record has {_shown_keys(record)}"
        return self.error(f"key {self.key!r} is required but could not be found: {there}")

    def lacking(self) -> LackingError:
        """The error for whoever sees the columns only: the parser, which sees the record, makes it `missing`."""
        return LackingError(self)

    def missing_list(self, lists: Any) -> ParseError:
        """The error for a SequenceExample that lacks the feature list."""
        return self.error(
            f"Feature list {self.key!r} is required but could not be found: the record has "
            f"{_shown_keys(lists)}. Did you mean to give allow_missing=True?"
        )

    def wrong_count(self, found: int) -> ParseError:
        """The error for a list with another number of values."""
        return self.error(
            f"Number of {self.kind.counted} values != expected: got {found}, expected {self.num_values} "
            f"for shape {[*self.shape]}"
        )

    def wrong_kind(self, found: ListKind) -> ParseError:
        """The error for values in another kind of list."""
        return self.error(f"Data types don't match. Data type: {found.tf_name} but expected type: {self.kind.tf_name}")

    def error(self, text: str) -> ParseError:
        """An error of this feature."""
        return ParseError(f"{self.label}: {text}")

    def labelled(self, error: TFRecordError) -> TFRecordError:
        """The same error, with this feature's label before its text."""
        return type(error)(f"{self.label}: {error.args[0]}", position=error.position)


class LackingError(ParseError):
    """A record lacks what a reader needs, as columns show it: without the record's keys."""

    def __init__(self, want: Want) -> None:
        super().__init__(f"{want.label}: key {want.key!r} is required but could not be found")
        self.want = want


def list_want(name: str, key: str, dtype: DType, **options: Any) -> Want:
    """The Want of a list that holds a dtype; options as of `Want`."""
    kind = list_kind(dtype)
    if kind is None:
        raise TypeError(f"no list holds {dtype_name(dtype)}")
    return Want(name, key, kind, dtype_name(dtype), **options)


def at_step(error: TFRecordError, step: int) -> TFRecordError:
    """The same error, with the number of the feature list's step before its text."""
    return type(error)(f"step {step}: {error.args[0]}")


def _shown_keys(record: Any) -> str:
    keys = sorted(key if len(key) <= 60 else key[:57] + "..." for key in record)
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return ", ".join(map(repr, keys[:_SHOWN_KEYS])) + more or "no features"
