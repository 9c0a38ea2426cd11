"""Text for errors and `repr`: printable, bounded in length, and without secrets of a dataset or
loader.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

__all__ = [
    "dtype_name",
    "features_code",
    "printable",
    "show_code",
    "shown_features",
    "shown_files",
    "shown_item",
    "shown_keys",
    "shown_list",
    "shown_text",
    "shown_transform",
    "shown_value",
    "without_secrets",
    "without_signature",
]

_T = TypeVar("_T")

_MOST_NAMES = 8
# A record may have thousands of keys, and its error should still be readable.
_SHOWN_KEYS = 8
_MOST_LETTERS = 120
_MOST_BYTES = 1500  # an error's message, without the path

# Parts of a URL that may contain secrets: user name and password before the host, and the query after
# `?`. The text before the host for Azure is a container, and `?` without `=` is a pattern, but
# for http.
_USER = re.compile(r"(?<=://)(?<!abfs://)(?<!abfss://)[^/?#\s]*@")
_QUERY = re.compile(
    r"(https?://[^?\n]*\?|https?://[^\s?#]*#|://[^\s?]*\?(?=\S*=))"
    r"(?!\.{3})[^\s)\]'\"`,:;]\S*?(?=[,:;'\")\]]*(?:\s|$))"
)


def without_secrets(text: str) -> str:
    """A path, or a text with paths in it, without what a URL may say about its user.

    Example:
        >>> without_secrets("https://me:password@host/a?sig=1b2c: record 3")
        'https://...@host/a?...: record 3'
    """
    return _QUERY.sub(r"\1...", _USER.sub("...@", text))


# Parts of a query that sign a request, and change while the file does not.
_SIGNED = ("x-amz-", "x-goog-")
_SIGNATURES = {
    "awsaccesskeyid",
    "expires",
    "googleaccessid",
    "key-pair-id",
    "policy",
    "signature",
    "token",
    # for Azure
    "se",
    "sig",
    "ske",
    "skoid",
    "sks",
    "skt",
    "sktid",
    "skv",
    "sp",
    "spr",
    "sr",
    "st",
    "sv",
}


def without_signature(path: str) -> str:
    """A path without user, password and what signs it."""
    parts = urlsplit(path)
    query = [
        (name, value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if not _signs(name)
    ]
    # Only there is it a user and a password: abfss has the container before the @.
    place = parts.netloc.rpartition("@")[2] if parts.scheme in ("http", "https") else parts.netloc
    return urlunsplit((parts.scheme, place, parts.path, urlencode(query), parts.fragment))


def _signs(name: str) -> bool:
    return name.lower().startswith(_SIGNED) or name.lower() in _SIGNATURES


def printable(text: str) -> str:
    r"""`without_secrets`, as any terminal, log or JSON accepts it; bytes of a file name that are
    not UTF-8 as ``\xNN``.

    Example:
        >>> print(printable("caf" + chr(0xDCE9) + ".tfrecord"))
        caf\xe9.tfrecord
    """
    text = without_secrets(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(map(_printable_letter, text))
    return text


def _printable_letter(letter: str) -> str:
    number = ord(letter)
    if 0xDC80 <= number <= 0xDCFF:  # how Python represents such a byte
        return f"\\x{number - 0xDC00:02x}"
    return f"\\u{number:04x}" if 0xD800 <= number <= 0xDFFF else letter


class _Short(reprlib.Repr):
    """Looks only at a part of a value, however large or deeply nested it is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxtuple, self.maxset = 3, 12, 12, 12, 12
        self.maxstring = self.maxother = self.maxlong = _MOST_LETTERS

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to convert much longer integers to text.
        return (
            repr(x)
            if x.bit_length() <= 4 * _MOST_LETTERS
            else f"an integer of {x.bit_length()} bits"
        )


def shown_value(value: object, limit: int = 4 * _MOST_LETTERS) -> str:
    """The repr of any value, as from a damaged file: it may be long, deeply nested, or a number of
    many digits.

    Example:
        >>> shown_value([3, {"a": 10**10000}])
        "[3, {'a': an integer of 33220 bits}]"
    """
    return _start_of(_Short().repr(value), limit)


def shown_files(files: Sequence[str]) -> str:
    """The number of files, and the first one.

    Example:
        >>> shown_files(["s3://me:password@bucket/a", "s3://me:password@bucket/b"])
        "2 files, 's3://...@bucket/a', ..."
    """
    # the end of a long path names the file
    first = without_secrets(files[0]) if files else None
    text = repr(first)
    limit = 4 * _MOST_LETTERS
    return f"{len(files)} files, {text if len(text) <= limit else f'...{text[3 - limit :]}'}, ..."


def shown_transform(name: str, transform: object) -> str:
    """A transform's name without its arguments, which may be secret or long; empty if there is
    none.
    """
    if transform is None:
        return ""
    return f", {name}={shown_callable(transform)}"


def shown_callable(value: object) -> str:
    """A callable's name without its arguments."""
    # Its repr would show the arguments of a functools.partial, or the contents of an object.
    inner = getattr(value, "func", value)
    return _start_of(getattr(inner, "__qualname__", type(inner).__qualname__))


def shown_features(features: object) -> str:
    """The features by name, or their names; empty if there are none."""
    if features is None:
        return ""
    if isinstance(features, Mapping):
        shown = shown_list(list(features.items()), lambda item: ": ".join(map(_shown_start, item)))
        return f", features={{{shown}}}"
    if isinstance(features, (list, tuple)):
        return f", features=[{shown_list(features, _shown_start)}]"
    return f", features={_shown_start(features)}"


def shown_item(item: object) -> str:
    """One of several datasets: ours by their repr, others, which may show anything, by their class."""
    kind = type(item)
    is_ours = kind.__module__.startswith("torch_tfrecord.")
    return _start_of(repr(item), 4 * _MOST_LETTERS) if is_ours else kind.__name__


def show_code(spec: Any, show: Callable[[object], str] = repr) -> str:
    """The Python code that builds a dataclass, without the arguments that have their default.

    Args:
        spec: The dataclass.
        show: The code of each argument.
    """
    arguments = [
        show(value)
        if item.default is MISSING and not item.kw_only
        else f"{item.name}={show(value)}"
        for item in sorted(fields(spec), key=lambda item: item.kw_only is True)
        if item.init and (value := getattr(spec, item.name)) != item.default
    ]
    return f"{type(spec).__name__}({', '.join(arguments)})"


def shown_text(text: str, limit: int = _MOST_BYTES) -> str:
    """A text, with its middle omitted if it is longer than `limit` bytes in UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= limit:
        return text
    # The end often says what to do about it.
    start, end = data[: limit * 2 // 3], data[-limit // 4 :]
    return f"{start.decode(errors='ignore')} ... {end.decode(errors='ignore')}"


def shown_list(items: Sequence[_T], show: Callable[[_T], str] = str) -> str:
    """The first few of some items."""
    shown = ", ".join(map(show, items[:_MOST_NAMES]))
    return shown if len(items) <= _MOST_NAMES else f"{shown}, and {len(items) - _MOST_NAMES} more"


def _shown_start(value: object) -> str:
    return _start_of(repr(value))


def _start_of(text: str, limit: int = _MOST_LETTERS) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def dtype_name(dtype: object) -> str:
    """The dtype's short name: "int64", "bytes", "str"."""
    return dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")


def shown_keys(record: Iterable[str]) -> str:
    """The first keys of a record, for errors."""
    keys = sorted(key if len(key) <= 60 else key[:57] + "..." for key in record)
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return ", ".join(map(repr, keys[:_SHOWN_KEYS])) + more or "no features"


def features_code(features: Any) -> str:
    """A program that builds some features, a mapping or a class of mappings, with its imports."""
    kinds: set[type] = set()
    mappings: list[Mapping[str, object]] = []
    if isinstance(features, Mapping):
        mappings.append(features)
        code = _mapping_code(features, "")
    else:
        kinds.add(type(features))
        indent, code = "    ", f"{type(features).__name__}(\n"
        for each in fields(features):
            value = getattr(features, each.name)
            if isinstance(value, Mapping):
                mappings.append(value)
                code += f"{indent}{each.name}={_mapping_code(value, indent)},\n"
            elif value != each.default:
                code += f"{indent}{each.name}={value!r},\n"
        code += ")"
    kinds.update(type(spec) for mapping in mappings for spec in mapping.values())
    lines = [f"features = {code}"]
    if kinds:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        lines = [f"from torch_tfrecord import {names}", "", *lines]
    return "\n".join(["import torch", *lines] if "torch." in code else lines)


def _mapping_code(features: Mapping[str, object], indent: str) -> str:
    if not features:
        return "{}"
    lines = [f"{indent}    {_quoted(name)}: {spec!r},\n" for name, spec in features.items()]
    return "".join(["{\n", *lines, indent, "}"])


def _quoted(name: str) -> str:
    # Double quotes, as formatters write code; a name that has one keeps what repr makes of it.
    text = repr(name)
    return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text
