"""One request, asked again where that can help, and the errors that it ends with."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from typing import TypeVar

from torch_tfrecord.errors import CorruptRecordError, RemoteError
from torch_tfrecord.files.access import Access
from torch_tfrecord.files.store import Store, StoreError
from torch_tfrecord.files.stores import store_of
from torch_tfrecord.shown import without_secrets

__all__ = ["MOST_ATTEMPTS", "Attempts"]

_Answer = TypeVar("_Answer")

MOST_ATTEMPTS = 6
_FIRST_WAIT = 0.1  # seconds, then twice as long each time, each a random part of it at least a half
_LONGEST_WAIT = 10.0
_MOST_RETRY_AFTER = 60.0
_REFUSALS = (429, 503)
_FORBIDDEN = (401, 403)
_OTHER_FILE = (412, 416)


class Attempts:
    """Asks a storage, and again after errors that pass.

    Args:
        wait: Called with seconds; whether nobody wants the answer any more.
        on_refusal: Called where the storage asks for fewer requests.
    """

    def __init__(self, wait: Callable[[float], bool], on_refusal: Callable[[], None]) -> None:
        self._wait, self._on_refusal = wait, on_refusal
        self._random = random.SystemRandom()  # the user's random state is not ours

    def ask(
        self, path: str, access: Access, what: str, call: Callable[[Store, str], _Answer]
    ) -> _Answer | None:
        """What `call` gives for the store of a path and the name there; None where nobody wants it
        any more.

        Args:
            path: With its scheme.
            access: How it is reached.
            what: Which part of it, for errors: "bytes 0 to 100".
            call: Asks once.

        Raises:
            FileNotFoundError, PermissionError: As the storage says.
            CorruptRecordError: The file is another one than before.
            RemoteError: No good answer, after all attempts where that could help; names path, part,
                status, attempts.
        """
        store, name = store_of(path, access)
        path = without_secrets(path)
        for attempt in range(1, MOST_ATTEMPTS + 1):
            try:
                return call(store, name)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
                kinds = {IsADirectoryError: errno.EISDIR, NotADirectoryError: errno.ENOTDIR}
                code = kinds.get(type(error), errno.ENOENT)
                raise OSError(code, os.strerror(code), path) from None
            except PermissionError:
                raise _forbidden(what, path) from None
            except StoreError as error:
                if not error.is_passing or attempt == MOST_ATTEMPTS:
                    raise _final(error, path, what, attempt) from None
                if error.status in _REFUSALS:
                    self._on_refusal()
                if self._wait(self._seconds(error, attempt)):
                    return None
        return None

    def _seconds(self, error: StoreError, attempt: int) -> float:
        seconds: float = min(
            _FIRST_WAIT * 2 ** (attempt - 1), _LONGEST_WAIT
        ) * self._random.uniform(0.5, 1.0)
        return max(seconds, min(error.retry_after or 0.0, _MOST_RETRY_AFTER))


def _forbidden(what: str, path: str) -> PermissionError:
    return PermissionError(errno.EACCES, f"the storage forbids it ({what})", path)


def _final(error: StoreError, path: str, what: str, attempts: int) -> Exception:
    if error.status in _FORBIDDEN:
        return PermissionError(
            errno.EACCES, f"the storage forbids it ({what}, {error.reason})", path
        )
    if error.status in _OTHER_FILE:
        text = f"expected the file that was opened, got another one in its place ({what}, {error.reason})"
        return CorruptRecordError(text, path=path)
    times = f"{attempts} attempt{'s' if attempts > 1 else ''}"
    return RemoteError(f"{what}: {error.reason} ({times})", path=path).answered(
        error.status, attempts
    )
