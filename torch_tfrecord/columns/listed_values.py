"""Values that a batch keeps whole, in a list: protobuf messages, and objects and lists from
JSON.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

__all__ = ["WHOLE_KINDS", "JsonList", "JsonObject"]


class JsonObject(dict[str, Any]):
    """An object from JSON: a dict that a batch does not take apart."""


class JsonList(list[Any]):
    """A list from JSON, which a batch does not take apart."""


WHOLE_KINDS = (Message, JsonObject, JsonList)
