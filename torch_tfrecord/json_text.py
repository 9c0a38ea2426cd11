"""JSON text as Python objects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from torch_tfrecord.errors import ParseError

__all__ = ["parse_json"]

_Pairs: TypeAlias = list[tuple[str, object]]

# A worker's queue cannot send what has some 490 levels, and would leave the loader waiting for ever.
_MOST_LEVELS = 200
_TOO_DEEP = (
    f"expected JSON of at most {_MOST_LEVELS} levels, got lists or objects nested more deeply"
)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes({*range(256)} - {*b"[]{}"})
_NO_MARKS = bytes({*_NO_BRACKETS} - {*b'"\\'})
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


def parse_json(text: bytes | memoryview, make_object: Callable[[_Pairs], object] = dict) -> Any:
    """Parse JSON in UTF-8 (RFC 8259) to dicts, lists, str, int, float, bool and None.

    Unlike Python's own parser, this one does not take NaN and Infinity, which are not JSON.

    Args:
        text: The text.
        make_object: Makes an object of its names and values. With the default the last value of a
            name counts.

    Raises:
        ParseError: It is not JSON, or nested more than 200 levels deep.
    """
    try:
        found = json.loads(
            str(text, "utf-8"), parse_constant=_no_constant, object_pairs_hook=make_object
        )
    except UnicodeDecodeError as error:
        raise ParseError(
            f"expected UTF-8 text, got an invalid byte at {error.start} of {len(error.object)}"
        ) from None
    except json.JSONDecodeError as error:
        raise ParseError(f"expected JSON, got something else at character {error.pos}") from None
    except RecursionError:
        raise ParseError(_TOO_DEEP) from None
    except ValueError:  # Python limits the digits of an int
        raise ParseError("expected JSON, got an integer of too many digits") from None
    # Python's own limit is higher, and another one in each version.
    if _is_deep(bytes(text)):
        raise ParseError(_TOO_DEEP)
    return found


def _is_deep(text: bytes) -> bool:
    """Whether lists and objects of JSON have more than `_MOST_LEVELS`; a walk takes 9 times as
    long.
    """
    if text.count(b"[") + text.count(b"{") <= _MOST_LEVELS:
        return False
    left = text.translate(None, _NO_MARKS).replace(b'""', b"")
    left = (_STRING.sub(b"", text) if b'"' in left else left).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(_MOST_LEVELS):
        left = left.replace(b"[]", b"")  # the innermost level of each
    return bool(left)


def _no_constant(name: str) -> NoReturn:
    raise ParseError(f"expected JSON, got {name}")
