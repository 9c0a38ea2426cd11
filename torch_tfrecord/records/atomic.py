"""Files that appear complete or not at all.

On Linux the data goes to an unnamed file (``O_TMPFILE``), which the kernel drops with the process: even ``kill -9``
leaves nothing. Elsewhere it goes to a hidden temporary name in the same directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

__all__ = ["AtomicFile", "write_atomically"]

_BUFFER_BYTES = 1 << 18
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOTSUP)


class AtomicFile:
    """A file being written: `write`, then `prepare` (everything is on the disk), then `publish` (it has its name).

    A path that exists and is no regular file (``/dev/full``, a FIFO) is written directly. A symbolic link stays one:
    the file it points to is replaced.

    Args:
        path: The final path. Its directory must exist.
        named: Use a hidden temporary name, so that the descriptor can be closed before `publish`.

    Raises:
        OSError: as `open` does, with the path.
    """

    def __init__(self, path: str, *, named: bool = False) -> None:
        self.path = path
        self._target = _target(path)
        self._temporary: Path | None = None
        self._pid = os.getpid()
        self._direct = _is_special(self._target)
        self._fd = self._open(named)
        self._buffer = bytearray()

    def _open(self, named: bool) -> int:
        try:
            if self._target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if self._direct:
                # O_NONBLOCK: a FIFO without a reader is an error, not a wait.
                fd = os.open(self._target, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                os.set_blocking(fd, True)
                return fd
            if not named and hasattr(os, "O_TMPFILE"):
                try:
                    fd = os.open(self._target.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
                    if os.path.lexists(_fd_path(fd)):
                        return fd
                    os.close(fd)  # without /proc it could never get its name
                except OSError as error:
                    if error.errno not in _NO_TMPFILE or not self._target.parent.is_dir():
                        raise
            return self._open_named()
        except OSError as error:
            # A new one: once the second name of a link is set, the text shows it even as None.
            raise OSError(error.errno, error.strerror, self.path) from error

    def _open_named(self) -> int:
        temporary = self._temporary_name()
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._temporary = temporary
        return fd

    def _temporary_name(self) -> Path:
        # Without the final name: TensorFlow's and pathlib's `*train*` match hidden names, too.
        return self._target.parent / f".{secrets.token_hex(8)}.tmp"

    @property
    def fd(self) -> int:
        """Descriptor of the open file; can be read from, except where the path is written directly."""
        return self._fd

    @property
    def is_regular(self) -> bool:
        """Whether a regular file is being written, not a device or pipe."""
        return not self._direct

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes; they may stay in a buffer."""
        if len(data) < _BUFFER_BYTES:
            self._buffer += data
            if len(self._buffer) >= _BUFFER_BYTES:
                self.flush()
        else:
            self.flush()
            self._write_all(memoryview(data))

    def flush(self) -> None:
        """Hand all bytes to the operating system."""
        buffer, self._buffer = self._buffer, bytearray()
        self._write_all(memoryview(buffer))

    def _write_all(self, data: memoryview) -> None:
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            error.filename = self.path
            raise

    def prepare(self) -> os.stat_result:
        """Flush and sync to the disk; returns the file's status. Nothing has appeared under the final path yet."""
        self.flush()
        try:
            if not self._direct:
                os.fsync(self._fd)
            return os.fstat(self._fd)
        except OSError as error:
            error.filename = self.path
            raise

    def release(self) -> None:
        """Close the descriptor of a prepared file that has a temporary name; `publish` still works."""
        if self._temporary is not None:
            self._close_fd()

    def publish(self, path: str | None = None) -> None:
        """Give the prepared file its name, replacing what was there in one step; then sync the directory.

        Args:
            path: Another final path in the same directory, for names that are known only at the end.
        """
        if path is not None:
            self.path, self._target = path, _target(path)
        try:
            if not self._direct:
                self._link()
                try:
                    self._sync_directory()
                except OSError:
                    self._target.unlink()  # it might not survive a crash
                    raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error
        self._close_fd()

    def _link(self) -> None:
        if self._temporary is None:
            try:
                self._link_unnamed(self._target)
                return
            except FileExistsError:
                temporary = self._temporary_name()
                self._link_unnamed(temporary)
                self._temporary = temporary
        self._temporary.replace(self._target)
        self._temporary = None

    def _link_unnamed(self, path: Path) -> None:
        # Python follows the link only with linkat, which it calls only with a directory descriptor; the kernel ignores
        # that for an absolute path.
        os.link(_fd_path(self._fd), path, src_dir_fd=self._fd, follow_symlinks=True)

    def _sync_directory(self) -> None:
        fd = os.open(self._target.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot sync a directory
                raise
        finally:
            os.close(fd)

    def discard(self) -> None:
        """Leave nothing behind; safe to call at any time, and in a forked child (which does nothing)."""
        if self._temporary is not None and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                self._temporary.unlink()
        self._temporary = None
        self._close_fd()

    def _close_fd(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def _target(path: str) -> Path:
    # Not Path.resolve, for which a link to itself is a RuntimeError.
    return Path(os.path.realpath(path))


def _is_special(path: Path) -> bool:
    """Whether something is there that is no regular file; in one look, since another process may replace it."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _fd_path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def write_atomically(path: str, data: bytes) -> None:
    """Write a whole file; it appears complete or not at all.

    Raises:
        OSError: nothing was changed under `path`.
    """
    file = AtomicFile(path)
    try:
        file.write(data)
        file.prepare()
        file.publish()
    except BaseException:
        file.discard()
        raise
