"""Values that a batch keeps whole, in a list: protobuf messages, and objects and lists from JSON."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from torch.utils.data._utils import collate as torchs

__all__ = ["WHOLE_KINDS", "JsonList", "JsonObject", "register_whole_values"]


class JsonObject(dict[str, Any]):
    """An object from JSON: a dict that a batch does not take apart."""


class JsonList(list[Any]):
    """A list from JSON, which a batch does not take apart."""


WHOLE_KINDS = (Message, JsonObject, JsonList)


def register_whole_values() -> None:
    """Let torch's ``default_collate`` make a list of them, too."""
    for kind in WHOLE_KINDS:
        torchs.default_collate_fn_map.setdefault(kind, _listed)


def _listed(values: Any, *, collate_fn_map: Any = None) -> list[Any]:
    return list(values)
