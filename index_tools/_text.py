"""Text for terminals: one line stays one line, and no file content can control the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = ["counted", "error_text", "escape", "format_size", "format_table"]

_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


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
    if text.isprintable() and not (escape_backslash and "\\" in text):
        return text
    return "".join(_escaped(character, escape_backslash) for character in text)


def _escaped(character: str, escape_backslash: bool) -> str:
    if character == "\\" and not escape_backslash:
        return character
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if character.isprintable():
        return character
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # how Python represents a byte of a file name that is not UTF-8
        number -= 0xDC00
    return (
        f"\\x{number:02x}"
        if number < 0x100
        else f"\\u{number:04x}"
        if number < 0x10000
        else f"\\U{number:08x}"
    )


def error_text(error: BaseException) -> str:
    """One line that says what is wrong; for an OSError, the file and then the reason."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
        if error.filename is not None:
            text = f"{os.fsdecode(error.filename)}: {text}" if _is_path(error.filename) else text
    return escape(text or type(error).__name__)


def _is_path(name: object) -> bool:
    return isinstance(name, (str, bytes, os.PathLike))


def format_size(num_bytes: int) -> str:
    """A number of bytes in readable units; KB, MB and GB are powers of 1000.

    Example:
        >>> format_size(812), format_size(61234)
        ('812 bytes', '61.2 KB')
    """
    if num_bytes < 1000:
        return counted(num_bytes, "byte")
    size = float(num_bytes)
    for unit in ("KB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun, in the plural unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column is left-aligned, the others, numbers, right; the first row
    is the header.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
