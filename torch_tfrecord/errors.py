"""All exceptions of the package, and its warnings.

::

    Exception
    └── TFRecordError               anything wrong with data, never with arguments
        ├── CorruptRecordError      checksum, truncation, an impossible length
        ├── CompressionError        a damaged or differently compressed stream
        ├── IndexMismatchError      a stale, foreign or damaged index
        ├── ParseError              a record does not fit the features asked for
        ├── ImageDecodeError        bytes that are not a complete image
        ├── LimitExceededError      a size above a limit
        └── RemoteError             a storage that does not answer as it should

Wrong arguments are ``ValueError`` or ``TypeError``; a file that cannot be opened is Python's own
``OSError``.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

from torch_tfrecord.arguments import PathLike
from torch_tfrecord.shown import printable, shown_text, without_secrets

__all__ = [
    "CompressionError",
    "CorruptRecordError",
    "ImageDecodeError",
    "IndexMismatchError",
    "LimitExceededError",
    "ParseError",
    "RemoteError",
    "TFRecordError",
    "locate_value",
    "name_path",
    "needs_extra",
    "optional_import",
    "os_error",
    "raise_first",
    "read_each",
    "warn",
    "warn_once",
]

_MOST_BYTES = 2048
_FOLDER = os.path.dirname(__file__)
_TORCH_LOADER = os.path.join(os.sep, "torch", "utils", "data", "")

_Error = TypeVar("_Error", bound="TFRecordError")
_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


class TFRecordError(Exception):
    """Base class of the package's exceptions.

    ``str(error)`` reads ``<path>: record <position> at byte <offset>: <what was expected and
    found>``, with the parts that are known. The text contains everything, since only the text of an
    exception arrives from a DataLoader worker.

    Args:
        message: What was expected and what was found, never payload bytes. If it is longer than
            1,500 bytes, its middle is omitted; ``str(error)`` is at most 2 KB.
        path: The file; of a URL neither user, password nor query are kept.
        offset: First byte of the record (of its length field); in the decompressed stream for
            compressed files.
        position: Number of the record in its file, from 0.

    Example:
        >>> str(CorruptRecordError("truncated header", path="a.tfrecord", offset=38, position=2))
        'a.tfrecord: record 2 at byte 38: truncated header'
    """

    def __init__(
        self,
        message: str = "",
        *,
        path: PathLike | None = None,
        offset: int | None = None,
        position: int | None = None,
    ) -> None:
        # Not stored as `message`: torch rebuilds a worker's exception differently if it has such an
        # attribute.
        super().__init__(
            without_secrets(shown_text(message)) if isinstance(message, str) else message
        )
        self.path = path
        self.offset = offset
        self.position = position

    @property
    def path(self) -> str | None:
        """The file, without the user, password and query of a URL."""
        return self._path

    @path.setter
    def path(self, path: PathLike | None) -> None:
        self._path = None if path is None else without_secrets(os.fspath(path))

    def locate(
        self: _Error,
        *,
        path: PathLike | None = None,
        offset: int | None = None,
        position: int | None = None,
    ) -> _Error:
        """Fill in what a lower layer could not know, without changing what is set already; return
        the exception.
        """
        # the lowest layer that knew it was nearest to the fault
        if self.path is None:
            self.path = path
        if self.offset is None:
            self.offset = offset
        if self.position is None:
            self.position = position
        return self

    def __str__(self) -> str:
        number = "" if self.position is None else f"record {self.position}"
        begin = "" if self.offset is None else f"at byte {self.offset}"
        place, path, message = f"{number} {begin}".strip(), self.path or "", str(self.args[0])
        text = printable(": ".join(filter(None, (path, place, message))))
        # A letter has 4 bytes at most, so that most texts need not be encoded.
        if (
            len(text) <= _MOST_BYTES // 4
            or len(text.encode("utf-8", "surrogatepass")) <= _MOST_BYTES
        ):
            return text
        # Each part by itself: a long path must not push out what is wrong.
        shortened = shown_text(printable(path), 400), place, shown_text(printable(message))
        return ": ".join(filter(None, shortened))


class CorruptRecordError(TFRecordError):
    """A record's bytes are damaged or truncated: a checksum differs, the file ends early, or a
    length is impossible.
    """


class CompressionError(TFRecordError):
    """A compressed stream is damaged, truncated, followed by other bytes, or not compressed as
    declared.
    """


class IndexMismatchError(TFRecordError):
    """An index does not match the data file as it is now: it is stale, of another file, or
    damaged.
    """


class ParseError(TFRecordError):
    """A record's message is malformed or does not fit the features asked for."""


class ImageDecodeError(TFRecordError):
    """Bytes that should be an image are not one, are truncated, or have a format that is not
    supported.
    """


class LimitExceededError(TFRecordError):
    """A size is above a limit, as no valid file should have; nothing was allocated for it."""


class RemoteError(TFRecordError):
    """A storage did not answer a request as it should, also when it was asked again, where that
    could help.

    ``str(error)`` reads ``<path>: bytes <begin> to <end>: <what it answered> (<n> attempts)``, with
    no value of `storage_options`.

    Attributes:
        status: The HTTP status, where there was one.
        attempts: How often the storage was asked.
    """

    # in the class, so that the state that is pickled has them only where they were noted
    status: int | None = None
    attempts: int = 1

    def answered(self, status: int | None, attempts: int) -> RemoteError:
        """Note what came of it; returns the exception itself."""
        self.status, self.attempts = status, attempts
        return self


# The packages that are not installed.


@contextmanager
def needs_extra(what: str, extra: str, package: str | None = None) -> Iterator[None]:
    """Say how to install what an import within lacks.

    Args:
        what: Needs it.
        extra: Has it, perhaps with more.
        package: Its name; None for that of the module.
    """
    try:
        yield
    except ModuleNotFoundError as error:  # what is there, but broken, says itself how
        name = package or error.name
        raise ImportError(
            f"{what} needs the package {name}: pip install {name}, or all of its extra: "
            f"pip install 'torch-tfrecord[{extra}]', in a clone pip install -e '.[{extra}]'"
        ) from error


# Warnings.


def optional_import(name: str, instead: str) -> ModuleType | None:
    """A module that need not be there; where it is there but does not load, None and one warning.

    Args:
        name: Its full name.
        instead: What happens without it.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError) as error:
        if not isinstance(error, ModuleNotFoundError) or not name.startswith(str(error.name)):
            warn_once(f"{name} is installed, but does not load ({error}): {instead}")
        return None


@functools.cache
def warn_once(text: str) -> None:
    """Warn a process of something once."""
    warn(text, RuntimeWarning)


def warn(text: str, kind: type[Warning] = UserWarning) -> None:
    """Warn at the user's code: past the frames of this package, and of torch's DataLoader and Subset."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_FOLDER) or _TORCH_LOADER in frame.f_code.co_filename
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=level)


def read_each(read: Callable[[_Given], _Found], records: Iterable[_Given]) -> list[_Found]:
    """Read several records; if one exceeds what is left of the batch's budget, the error has its
    number.
    """
    values = []
    try:
        for record in records:
            # Not a comprehension: how many there are says which record is too large.
            values.append(read(record))
    except LimitExceededError as error:
        raise error.locate(position=len(values)) from error.__cause__
    return values


def raise_first(unit: str, count: int, read: Callable[[int], object]) -> None:
    """Read several things again one by one, so that the error is that of the first bad one."""
    for number in range(count):
        try:
            read(number)
        except TFRecordError as error:
            raise type(error)(f"{unit} {number}: {error.args[0]}") from error.__cause__


def locate_value(error: Exception, where: str) -> TypeError | ValueError:
    """An error of a value that also says where the value is."""
    return (TypeError if isinstance(error, TypeError) else ValueError)(f"{where}: {error}")


def os_error(number: int, path: str) -> OSError:
    """The system's error with this number about a path, of its own class, such as FileNotFoundError."""
    return OSError(number, os.strerror(number), without_secrets(path))


@contextmanager
def name_path(path: PathLike) -> Iterator[None]:
    """Re-raise OSErrors in the ``with`` block, whatever path they name, with the path that the user
    knows.
    """
    try:
        yield
    except OSError as error:
        # A new error: once the second file name is set, the text shows it even if None.
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
