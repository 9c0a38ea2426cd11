"""Arguments and text of all verbs. In the text one line stays one line, and no file content can
control the terminal.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from torch_tfrecord import find_files
from torch_tfrecord.records import without_companions

__all__ = [
    "PATHS_HELP",
    "Verb",
    "align",
    "byte_size",
    "data_files",
    "data_paths",
    "error_text",
    "escape",
    "format_size",
    "integer",
    "pluralize",
]

PATHS_HELP = "a file, a glob (quoted), a directory, or name@N for the N shards of a set; indexes and labels are skipped"

_MAX_WIDTH = 42  # the widest column
_UNITS = ("KB", "MB", "GB", "TB")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|([KMGT])(I?)B)?", re.IGNORECASE)


class Verb(NamedTuple):
    """A verb of the command.

    Attributes:
        description: What `--help` says, below the summary and the arguments.
        run: Called with these as keywords; returns the exit status.
        shared: Arguments that several verbs have, by their names in `_SHARED`.
        own: Other arguments: name -> what `add_argument` takes.
        more: Add further ones to a parser.
    """

    description: str
    run: Callable[..., int]
    shared: str = ""
    own: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    more: Sequence[Callable[[argparse.ArgumentParser], object]] = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments to a parser."""
        options = {name: _SHARED[name] for name in self.shared.split()} | dict(self.own)
        for name, option in options.items():
            parser.add_argument(name, **option)
        for add in self.more:
            add(parser)


def _executor(text: str) -> str:
    if text != "processes" and not re.fullmatch("dask=.+", text):
        raise argparse.ArgumentTypeError(f"expected processes or dask=ADDRESS, got {text!r}")
    return text


def data_paths(paths: Sequence[str]) -> list[str]:
    """`without_companions` of what the user names.

    Raises:
        ValueError: There is nothing else.
    """
    wanted = without_companions(paths)
    if paths and not wanted:
        raise ValueError(
            f"expected data files, got only index files or labels: {', '.join(paths[:3])}"
        )
    return wanted


def data_files(paths: Sequence[str]) -> list[str]:
    """`find_files` of `data_paths`; raises its errors, too."""
    return find_files(data_paths(paths))


def integer(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argument type: an integer from `least` to `most` inclusive."""
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"expected an integer {allowed}, got {text!r}")
        return number

    return parse


def byte_size(text: str) -> int:
    """An argument type: a number of bytes such as 1000000, 100MB (powers of 1000) or 64MiB (powers
    of 1024).

    Example:
        >>> byte_size("1.5MB"), byte_size("1KiB")
        (1500000, 1024)
    """
    match = _SIZE.fullmatch(text.strip())
    size = 0
    if match:
        power = " KMGT".index((match[3] or " ").upper())
        size = int(float(match[1]) * (1024 if match[4] else 1000) ** power)
    # also "0.5B", of which no whole byte is left
    if size < 1:
        raise argparse.ArgumentTypeError(
            f"expected a number of bytes, such as 1000000, 100MB or 64MiB (units B, KB, MB, GB, TB, KiB, MiB, GiB, "
            f"TiB), got {text!r}"
        )
    return size


_SHARED: dict[str, dict[str, Any]] = {
    "paths": {"nargs": "+", "metavar": "PATH", "help": PATHS_HELP},
    "--jobs": {
        "type": integer(1),
        "metavar": "N",
        "help": "processes or threads (default: depends on the data, at most one per processor)",
    },
    "--executor": {
        "type": _executor,
        "default": "processes",
        "metavar": "processes|dask=ADDRESS",
        "help": "what does the work: processes of this machine, or the workers of a Dask scheduler, which have the "
        "same paths (default: %(default)s)",
    },
    "--features": {
        "metavar": "FILE.py",
        "help": "Python code that assigns `features`, such as `tfrecord show` prints; it is run "
        "(default: inferred from some records)",
    },
    "--force": {"action": "store_true", "help": "write over the file"},
    "--seed": {
        "type": int,
        "default": 0,
        "metavar": "S",
        "help": "of what is random (default: %(default)s)",
    },
    "--json": {"dest": "as_json", "action": "store_true", "help": "print JSON"},
}


# Text.


def escape(text: str, *, escape_backslash: bool = False) -> str:
    r"""The text with everything unprintable escaped; bytes of a file name that are not UTF-8 as
    ``\xNN``.

    Args:
        text: Any text, also with lone surrogates.
        escape_backslash: Double each backslash, so that the result is unambiguous.

    Example:
        >>> print(escape("a\x1b[31m\n"))
        a\x1b[31m\n
    """
    if escape_backslash:
        text = text.replace("\\", "\\\\")
    return text if text.isprintable() else "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    if 0xDC80 <= ord(character) <= 0xDCFF:  # Python's form of a byte of a name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def error_text(error: BaseException) -> str:
    """One line that says what is wrong; for an OSError, the file and then the reason."""
    text = str(error)
    # str(error) begins with the number of the error
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
        if isinstance(error.filename, str | bytes | os.PathLike):  # not the number of an open file
            text = f"{os.fsdecode(error.filename)}: {text}"
    return escape(text or type(error).__name__)


def align(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Rows as lines of aligned columns.

    Args:
        rows: The cells of each row; long ones overflow their column.
        sides: Where each column is flush: "<" or ">".

    Example:
        >>> align([("a", "10"), ("bcd", "9")], "<>")
        ['a    10', 'bcd   9']
    """
    widths = [min(max(map(len, column)), _MAX_WIDTH) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def format_size(num_bytes: int) -> str:
    """A number of bytes in readable units; KB, MB and GB are powers of 1000.

    Example:
        >>> format_size(812), format_size(61234)
        ('812 bytes', '61.2 KB')
    """
    if num_bytes < 1000:
        return pluralize(num_bytes, "byte")
    size, unit = num_bytes / 1000, 0
    # 999,950 is not shown as 1000.0 KB
    while size >= 999.95 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}"


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun, in the plural unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
