"""The Proto and Json specs (a message of your own class, any JSON text), and their readers."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import reduce
from typing import Any

from google.protobuf.message import Message
from torch.utils.data import get_worker_info

from torch_tfrecord.columns.feature import Feature
from torch_tfrecord.columns.one_value import OneValueReader, OneValueSpec
from torch_tfrecord.columns.stacking import JsonList, JsonObject
from torch_tfrecord.protobuf.json_text import parse_json
from torch_tfrecord.protobuf.messages import parse_message

__all__ = ["Json", "Proto"]


@dataclass(frozen=True, repr=False)
class Proto(OneValueSpec, Feature):
    """A protobuf message in one bytes value, parsed with your generated class.

    A sample is the message, a batch a list of messages. Records that are such messages themselves:
    give the spec alone, ``TFRecordDataset(path, Proto(Scenario))``.

    Args:
        message_class: The class, as ``protoc`` generates it. DataLoader workers send messages by
            the name of their class, which must be importable.
        key: Name of the feature in the record, if it differs from the output's name.

    Raises:
        TypeError: ``message_class`` is not a class of messages.

    Example:
        >>> from scenario_pb2 import Scenario  # doctest: +SKIP
        >>> TFRecordDataset("data/scenarios-*", Proto(Scenario))[0].scenario_id  # doctest: +SKIP
    """

    message_class: type[Message]

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if not isinstance(self.message_class, type) or not issubclass(self.message_class, Message):
            raise TypeError(
                f"message_class must be a generated protobuf class, got {self.message_class!r}"
            )

    def reader(self, name: str, *, pads: bool = False) -> OneValueReader:
        """Build the reader for Examples."""
        kind, what = self.message_class, self.message_class.DESCRIPTOR.full_name
        if _is_importable(kind):
            return OneValueReader(name, self, lambda data, shape: parse_message(data, kind, what))
        return OneValueReader(name, self, self._read_unnamed)

    def stored(self, value: object) -> object:
        """A message as its bytes."""
        return value.SerializeToString() if isinstance(value, self.message_class) else value

    def _read_unnamed(self, data: memoryview, shape: object) -> Message:
        kind, what = self.message_class, self.message_class.DESCRIPTOR.full_name
        # a queue that cannot send it would leave the loader waiting forever
        if get_worker_info() is not None:
            raise TypeError(
                f"Proto: a DataLoader worker sends messages by the name of their class, and {what} cannot be imported: "
                "take the class from a module that protoc generated, or use num_workers=0"
            )
        message: Message = parse_message(data, kind, what)
        return message


def _is_importable(kind: type) -> bool:
    try:
        found: Any = reduce(getattr, kind.__qualname__.split("."), sys.modules[kind.__module__])
    except (AttributeError, KeyError):
        return False
    return found is kind


@dataclass(frozen=True, repr=False)
class Json(OneValueSpec, Feature):
    """JSON text in one bytes value, as Python objects.

    A sample is what the text says (dict, list, str, int, float, bool or None). A batch holds the
    same: a tensor of numbers (int64, or float64 if one is a float) or of bools; else a list, so
    also where bools stand among numbers, an integer exceeds int64, or one beside a float exceeds
    float64's 53 bits. `parse_example` gives a list.

    Records that are JSON themselves: give the spec alone, ``TFRecordDataset(path, Json())``. For
    the JSON form of Examples: ``NestedExample(features, format="json")``.

    The text must be JSON in UTF-8, of 200 levels at most: NaN and Infinity, which Python writes,
    raise ParseError.

    Args:
        key: Name of the feature in the record, if it differs from the output's name.
    """

    def reader(self, name: str, *, pads: bool = False) -> OneValueReader:
        """Build the reader for Examples."""
        return OneValueReader(name, self, _read_json)

    def stored(self, value: object) -> object:
        """A value as JSON text; bytes are the text already."""
        return value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)


def _read_json(data: memoryview, shape: object) -> Any:
    value = parse_json(data)
    return (
        JsonObject(value)
        if isinstance(value, dict)
        else JsonList(value)
        if isinstance(value, list)
        else value
    )
