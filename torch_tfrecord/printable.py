"""Names of files as text that can be printed."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""The text as any terminal, log or JSON can take it: bytes of a file's name that are no UTF-8 as ``\xNN``.

    Example:
        >>> print(printable("caf" + chr(0xDCE9) + ".tfrecord"))
        caf\xe9.tfrecord
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(map(_printable_letter, text))
    return text


def _printable_letter(letter: str) -> str:
    number = ord(letter)
    if 0xDC80 <= number <= 0xDCFF:  # how Python holds such a byte
        return f"\\x{number - 0xDC00:02x}"
    return f"\\u{number:04x}" if 0xD800 <= number <= 0xDFFF else letter
