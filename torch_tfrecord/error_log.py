"""The records that a dataset leaves out with ``on_error="skip"``, over all of its processes and
threads.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_tfrecord.arguments import OnError, at_least, one_of
from torch_tfrecord.errors import IndexMismatchError, RemoteError, TFRecordError, warn
from torch_tfrecord.shown import shown_files

__all__ = ["RAISES", "ErrorLog", "ErrorReport", "warn_of_no_records"]

_SHOWN = 10


@dataclass(frozen=True)
class ErrorReport:
    """Which records a dataset has left out with ``on_error="skip"``, each listed once.

    Attributes:
        counts: Kind -> number of errors: the name of the exception, or "None" for a transform that
            returned it.
        errors: The text of each error, which names file, record and byte, in the order in which
            they were found.
    """

    counts: Mapping[str, int]
    errors: tuple[str, ...]

    @property
    def num_errors(self) -> int:
        """How many there are."""
        return len(self.errors)

    def __str__(self) -> str:
        counts = ", ".join(f"{kind}: {count}" for kind, count in self.counts.items())
        shown = "".join(f"\n  {text}" for text in self.errors[:_SHOWN])
        more = f"\n  and {self.num_errors - _SHOWN} more" if self.num_errors > _SHOWN else ""
        return (
            f"skipped {self.num_errors} ({counts}){shown}{more}"
            if self.errors
            else "nothing skipped"
        )


class ErrorLog:
    """The records that were left out: a file of JSON lines, to which all processes that have a copy append.

    Lines are appended by one call each, so that they do not mix. A file needs no process that waits
    for messages, and survives fork, spawn and the end of a worker. The process that made the log
    removes it.

    Args:
        on_error: "raise" for no log: `add` must not be called.
        max_errors: The most errors before `add` raises; None for no limit.

    Attributes:
        is_attended: Whether a loader passes over empty batches, and calls `tell` at the end of an
            epoch.
    """

    def __init__(self, on_error: OnError = "raise", max_errors: int | None = None) -> None:
        one_of("on_error", on_error, "raise", "skip")
        self.skips = on_error == "skip"
        self.max_errors = None if max_errors is None else at_least(0, "max_errors", max_errors)
        if max_errors is not None and not self.skips:
            raise ValueError(
                f"max_errors needs on_error='skip', got {max_errors} with on_error={on_error!r}"
            )
        # The name is made here, the file by the first error: most runs have none.
        self.is_attended = False
        self._path = ""
        if self.skips:
            self._path = os.path.join(
                tempfile.gettempdir(), f"torch_tfrecord-errors-{uuid.uuid4().hex}"
            )
            weakref.finalize(self, _remove, self._path, os.getpid())

    def takes(self, error: Exception) -> bool:
        """Whether a record is left out for this error: it is of the record, not of a storage or an
        index.
        """
        return (
            self.skips
            and isinstance(error, TFRecordError)
            and not isinstance(error, (RemoteError, IndexMismatchError))
        )

    def add(self, kind: str, text: str) -> None:
        """Note a record that is left out.

        Raises:
            TFRecordError: There are more than ``max_errors``.
        """
        self._append([kind, text])
        if self.max_errors is not None and len(found := self._read()[0]) > self.max_errors:
            raise TFRecordError(
                f"more than max_errors={self.max_errors} records failed: {len(found)}, the last: {text}"
            )

    def report(self) -> ErrorReport:
        """The records left out so far, by all processes."""
        found, _ = self._read()
        return ErrorReport(dict(Counter(found.values())), tuple(found))

    def tell(self, *, once: bool = False) -> None:
        """Warn of what was left out, if that is more than at the last warning of any process; or
        only ``once``.
        """
        found, num_told = self._read()
        if self.skips and len(found) > num_told and not (once and num_told):
            # a line without a kind: the next process that warns begins after it
            self._append(["", ""])
            warn(f"on_error='skip': {self.report()}\nthe dataset's report lists all")

    def _append(self, line: list[str]) -> None:
        # O_NOFOLLOW: the folder for temporary files is everybody's
        descriptor = os.open(
            self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600
        )
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)

    def _read(self) -> tuple[dict[str, str], int]:
        """The kind of each error by its text, and how many were in a warning."""
        found: dict[str, str] = {}
        num_told = 0
        try:
            lines = Path(self._path).read_bytes().splitlines()
        except (FileNotFoundError, IsADirectoryError):  # nothing was left out
            lines = []
        for kind, text in map(json.loads, lines):
            # the same record may be met in each epoch and by each worker
            if kind:
                found.setdefault(text, kind)
            else:
                num_told = len(found)
        return found, num_told


def warn_of_no_records(files: Sequence[str]) -> None:
    """Warn that files have no records at all: perhaps their writer has failed."""
    warn(f"no file has a record: {shown_files(files)}")


RAISES = ErrorLog()
"""For ``on_error="raise"``."""


def _remove(path: str, pid: int) -> None:
    # a forked worker has a copy of the finalizer
    if pid == os.getpid():
        Path(path).unlink(missing_ok=True)
