"""Write files that appear complete or not at all.

On Linux, data goes to an unnamed file (``O_TMPFILE``), which the kernel drops with the process:
even ``kill -9`` leaves nothing behind. On other systems, and briefly while a file is replaced, it
has a hidden temporary name in the same directory, which the next writer of that file removes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from torch_tfrecord.errors import name_path, os_error
from torch_tfrecord.files.local_file import open_path

__all__ = ["AtomicFile", "HiddenFolder"]

_BUFFER_BYTES = 1 << 18
_ATTEMPTS = 3  # at a name that others remove meanwhile
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOTSUP)


class AtomicFile:
    """A file being written: `write`, then `prepare` (all data is on disk), then `publish` (it gets
    its name).

    An existing path that is not a regular file (``/dev/full``, a FIFO) is written directly. A
    symbolic link is kept: the file it points to is replaced.

    Args:
        path: The final path. Its directory must exist.

    Attributes:
        is_regular: Whether the target is a regular file, not a device or pipe.

    Raises:
        OSError: See `open`; names the path.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._target = _target(path)
        self._temporary: Path | None = None
        self._pid = os.getpid()
        self.is_regular = True
        # One call, as another process may replace it.
        with suppress(OSError):
            self.is_regular = stat.S_ISREG(self._target.stat().st_mode)
        self._buffer = bytearray()
        with name_path(path):
            self._fd = self._open()

    def _open(self) -> int:
        if self._target.is_dir():
            raise os_error(errno.EISDIR, self.path)
        if not self.is_regular:
            # O_NONBLOCK: a FIFO without a reader is an error, not a wait.
            fd = open_path(os.open, self._target, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            os.set_blocking(fd, True)
            return fd
        _clear_dead(_temporary_names(self._target))
        flags = os.O_RDWR | os.O_CLOEXEC
        if hasattr(os, "O_TMPFILE"):
            try:
                fd = open_path(os.open, self._target.parent, flags | os.O_TMPFILE, 0o666)
                if os.path.lexists(_fd_path(fd)):
                    return fd
                os.close(fd)  # without /proc, it could never be given a name
            except OSError as error:
                if error.errno not in _NO_TMPFILE or not self._target.parent.is_dir():
                    raise
        flags |= os.O_CREAT | os.O_EXCL
        self._temporary, fd = _claim(
            _temporary_names(self._target), lambda path: open_path(os.open, path, flags, 0o666)
        )
        return fd

    @classmethod
    def save(cls, path: str, content: bytes) -> None:
        """Write a whole file; it appears complete or not at all.

        Raises:
            OSError: See `publish`: the old or the new content is there, never a part of it.
        """
        file = cls(path)
        try:
            file.write(content)
            file.prepare()
            file.publish()
        except BaseException:
            file.discard()
            raise

    @staticmethod
    def hidden_name(key: str, ending: str) -> str:
        """A hidden name without the final one in it, as ``*train*`` in TensorFlow and pathlib
        matches hidden names.
        """
        return f".{hashlib.sha256(os.fsencode(key)).hexdigest()[:16]}.{ending}"

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes, possibly buffered."""
        if len(data) < _BUFFER_BYTES:
            self._buffer += data
            if len(self._buffer) >= _BUFFER_BYTES:
                self.flush()
        else:
            self.flush()
            self._write_all(memoryview(data))

    def flush(self) -> None:
        """Pass all buffered bytes to the operating system."""
        buffer, self._buffer = self._buffer, bytearray()
        self._write_all(memoryview(buffer))

    def _write_all(self, data: memoryview) -> None:
        with name_path(self.path):
            while data:
                data = data[os.write(self._fd, data) :]

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Read back bytes that were flushed; fewer only at the end."""
        data = b""
        with name_path(self.path):
            while piece := os.pread(self._fd, num_bytes - len(data), offset + len(data)):
                data += piece
        return data

    def prepare(self) -> os.stat_result:
        """Flush and sync to disk, and return the file's status. Nothing appears under the final
        path yet.
        """
        self.flush()
        with name_path(self.path):
            if self.is_regular:
                os.fsync(self._fd)
            return os.fstat(self._fd)

    def publish(self, path: str | None = None) -> None:
        """Give the prepared file its name, replacing an existing file atomically; then sync the
        directory.

        Args:
            path: Another final path in the same directory, for names that are only known at the
                end.

        Raises:
            OSError: The old file is unchanged. Only if syncing the directory failed, the complete
                new file is in place, but may not survive a crash of the machine.
        """
        if path is not None:
            self.path, self._target = path, _target(path)
        if self.is_regular:
            with name_path(self.path):
                _clear_dead(_temporary_names(self._target))
                is_new = self._link(self._target)
                try:
                    _sync_directory(self._target.parent)
                except OSError:
                    if is_new:  # restore the absence of the file
                        self._target.unlink()
                    raise
        self._close_fd()

    def put(self, place: Path) -> None:
        """Give the prepared file a name on the same disk and close it, without syncing.

        Raises:
            OSError: Nothing was changed at that name.
        """
        with name_path(self.path):
            self._link(place)
        self._close_fd()

    def _link(self, place: Path) -> bool:
        """Give the file a name; return whether the name was free."""
        if self._temporary is None:
            try:
                self._link_unnamed(place)
                return True
            except FileExistsError:
                with suppress(OSError):  # a file system without locks
                    # before it has a name that others may remove
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._temporary, _ = _claim(_temporary_names(place), self._link_unnamed)
        is_free = not os.path.lexists(place)
        self._temporary.replace(place)
        self._temporary = None
        return is_free

    def _link_unnamed(self, path: Path) -> int:
        # Python follows the link only with linkat, which it calls only if given a directory
        # descriptor; the kernel ignores that for an absolute path.
        os.link(_fd_path(self._fd), path, src_dir_fd=self._fd, follow_symlinks=True)
        return self._fd

    def discard(self) -> None:
        """Remove everything; safe to call at any time, and in a forked child (where it does
        nothing).
        """
        if self._temporary is not None and self._pid == os.getpid():
            with suppress(OSError):
                self._temporary.unlink()
        self._temporary = None
        self._close_fd()

    def _close_fd(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)


def _target(path: str) -> Path:
    # Not Path.resolve, which raises RuntimeError for a link to itself.
    return Path(os.path.realpath(path))


def _fd_path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


# Temporary names: hidden, locked while in use, and removed by the next user after a kill. They are
# derived from the final name, so the next run finds them without listing the folder.


def _temporary_names(path: Path) -> Iterator[Path]:
    """Yield the temporary names for a path, in the order in which they are used."""
    return (
        path.parent / AtomicFile.hidden_name(f"{number}/{path.name}", "tmp")
        for number in itertools.count()
    )


def _claim(names: Iterator[Path], create: Callable[[Path], int]) -> tuple[Path, int]:
    """Create and lock a file or folder under the first free name.

    Args:
        names: Names from `_temporary_names`.
        create: Creates it and returns its descriptor; raises FileExistsError if the name is taken.

    Raises:
        OSError: See `create`.
    """
    for path in names:
        for attempt in range(_ATTEMPTS):
            try:
                descriptor = create(path)
            except FileExistsError:
                if not _remove_dead(path):
                    break
            except FileNotFoundError:  # another process removed it before it was locked
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                if _lock(descriptor, path):
                    return path, descriptor
                os.close(descriptor)
    raise AssertionError("names never end")


def _make_folder(path: Path) -> int:
    path.mkdir()
    try:
        return open_path(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except BaseException:
        _remove_folder(path)
        raise


class HiddenFolder:
    """A folder under a hidden name beside a final path, locked while it is in use: a process that
    was killed leaves one behind, which the next one removes.

    Args:
        path: The final path.
        name_of: The folder's name for each of the temporary ones of that path; None for these.
    """

    def __init__(self, path: Path, name_of: Callable[[Path], str] | None = None) -> None:
        self._path, self._name_of = path, name_of
        self._folder: Path | None = None
        self._descriptor, self._pid = -1, os.getpid()

    def _names(self) -> Iterator[Path]:
        for path in _temporary_names(self._path):
            yield path if self._name_of is None else path.parent / self._name_of(path)

    def clear(self) -> None:
        """Remove what killed processes left."""
        _clear_dead(self._names())

    def make(self) -> Path:
        """The folder, which is made if it is not there yet."""
        if self._folder is None:
            self._folder, self._descriptor = _claim(self._names(), _make_folder)
        return self._folder

    def sync(self, *others: Path) -> None:
        """Write the names in it, or in other folders, to the disk.

        Raises:
            OSError: The disk failed; names the folder.
        """
        for folder in others or (self.make(),):
            _sync_directory(folder)

    def publish(self) -> None:
        """Give it its final name, and unlock it.

        Raises:
            OSError: It could not be; names the final path.
        """
        self.sync()  # the names of the files, before the folder gets its own
        with name_path(self._path):
            os.replace(self.make(), self._path)
        self.sync(self._path.parent)
        self.keep()

    def keep(self) -> None:
        """Unlock it; what is in it stays."""
        self._folder = None
        self.discard()

    def discard(self) -> None:
        """Remove it with its content, as far as possible, and unlock it; in a forked child it
        stays.
        """
        folder, self._folder = self._folder, None
        if folder is not None and self._pid == os.getpid():
            _remove_folder(folder)
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _remove_folder(path: Path) -> None:
    """Remove a folder and its content, as far as possible."""
    with suppress(OSError):  # rmtree lets some errors through
        shutil.rmtree(path, ignore_errors=True)


def _clear_dead(names: Iterator[Path]) -> None:
    """Remove what killed processes left under these names, up to the first name that is free or in
    use.
    """
    for path in names:
        if not _remove_dead(path):
            return


def _remove_dead(path: Path) -> bool:
    """Remove a file or folder that nobody has locked; return whether it was removed."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(OSError):  # in use, or a file system without locks
        descriptor = open_path(os.open, path, flags)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                shutil.rmtree(path) if stat.S_ISDIR(os.fstat(descriptor).st_mode) else path.unlink()
                return True
        finally:
            os.close(descriptor)
    return False


def _lock(descriptor: int, path: Path) -> bool:
    """Lock a new file or folder; return whether it still exists."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, where nobody can remove it as abandoned
        return True
    try:
        return _is_at(descriptor, path)
    except OSError:
        return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _sync_directory(folder: Path) -> None:
    """Sync the names in a folder to disk, if possible: a folder that may not be listed cannot be
    opened.

    Raises:
        OSError: The disk failed; names the folder.
    """
    with name_path(folder):
        try:
            descriptor = open_path(os.open, folder, os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            return
        try:
            os.fsync(descriptor)
        except OSError as error:
            # file systems that cannot sync a directory
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)
