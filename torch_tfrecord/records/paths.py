"""From what a user writes (a path, a glob, ``name@N``, a directory, a list of these) to a sorted list of files.

Shards are named ``<base>-00003-of-00010<suffix>``: five digits or more, numbered from 0.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import NamedTuple, TypeAlias

from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.records.compression import open_stream
from torch_tfrecord.records.descriptors import opened
from torch_tfrecord.records.file_set import check_whole
from torch_tfrecord.records.framing import HEADER_BYTES, guess_content, is_header
from torch_tfrecord.records.manifest import MANIFEST_SUFFIX, Manifest, is_manifest
from torch_tfrecord.records.manifest_files import shard_paths
from torch_tfrecord.records.storage import filesystem, is_remote, local_path, open_file
from torch_tfrecord.shown import printable

__all__ = ["Paths", "find_files", "is_companion", "labels_name", "named_manifest", "shard_name"]

PathLike: TypeAlias = "str | os.PathLike[str]"
Paths: TypeAlias = "PathLike | Sequence[PathLike]"

_SHARD = re.compile(r"(?P<base>.*)-(?P<number>\d{5,})-of-(?P<total>\d{5,})(?P<suffix>(?:\.[^/]*)?)", re.DOTALL)
_COUNTED = re.compile(r"(?P<base>.+)@(?P<total>\d+|\*)(?P<suffix>(?:\.[^/]*)?)", re.DOTALL)
_TFRECORD_NAME = re.compile(r"(\.tfrec(ords?)?|-\d{5,}-of-\d{5,})(\.(gz|gzip|zlib))?$", re.IGNORECASE)
_TFRECORD_NAME_PART = re.compile(r"\.tfrec(ord)?", re.IGNORECASE)
# Index files and manifests of ours, index files of DALI and of vahidk/tfrecord.
_INDEX_SUFFIXES = (MANIFEST_SUFFIX, ".idx", ".tfindex", ".index")
# Class names that `tfrecord from-images` writes, and as it named them before.
_LABELS_NAME = re.compile(r"labels-.*\.txt|.*-labels\.txt", re.DOTALL)
# Bytes looked at to tell what a file is.
_GUESS_BYTES = 64
_MAX_NAMED = 10
_MOST_ASKED = 100_000  # names of missing shards that a pattern is held against
_MAX_NAME = 80
_MOST_ASKED_SINGLY = 100


def shard_name(base: str, number: int, total: int, suffix: str = "") -> str:
    """Name of one shard of a set.

    Example:
        >>> shard_name("train", 3, 10, ".tfrecord")
        'train-00003-of-00010.tfrecord'
    """
    return f"{base}-{number:05d}-of-{total:05d}{suffix}"


def labels_name(name: str) -> str:
    """Name of the class names' file of a set of shards: no pattern that begins with the set's name matches it.

    Example:
        >>> labels_name("train")
        'labels-train.txt'
    """
    return f"labels-{name}.txt"


def is_companion(path: str) -> bool:
    """Whether a file's name says that it lies beside data but is none: an index, a manifest, another tool's, labels."""
    if path.endswith(_INDEX_SUFFIXES):
        return True
    return path.endswith(".txt") and _LABELS_NAME.fullmatch(posixpath.basename(path)) is not None


def named_manifest(paths: Paths) -> str | None:
    """The manifest that `paths` names alone, or None."""
    item = paths[0] if isinstance(paths, (list, tuple)) and len(paths) == 1 else paths
    path = local_path(item) if isinstance(item, (str, os.PathLike)) else ""
    return path if _is_manifest_file(path) else None


def _is_manifest_file(path: str) -> bool:
    return is_manifest(path) and not glob.has_magic(path) and (is_remote(path) or not os.path.isdir(path))


def find_files(paths: Paths) -> list[str]:
    """The files that the datasets read for `paths`, sorted by their bytes.

    Names are all that is looked at, so that a set of any size is listed at once: no file is read or indexed. Only of a
    directory's files whose names do not say what they are (not ``x.tfrecord``, not ``x-00000-of-00010``) the first
    bytes are read.

    Args:
        paths: One of these, or a list of them: a path of a file; a glob (``*``, ``?``, ``[ab]``, ``**``; names that
            begin with a dot, indexes and the class names of `tfrecord from-images` are left out); ``name@N`` or
            ``name@N.suffix``, the N shards of a set (``name@*``: however many there are); a directory, of which all
            TFRecord files are taken; a manifest (``.safetensors``; see `build_manifest`), whose files are taken without
            looking whether they are there. Local, or with a ``scheme://`` that fsspec knows.

    Returns:
        At least one path, as `paths` writes them: relative ones stay relative.

    Raises:
        FileNotFoundError: nothing there, no match, or a shard of a set that is missing (all missing ones are named).
        OSError: a set of shards that a writer is replacing, or was killed while it did.
        ValueError: a file is named twice, or sets of shards are mixed.
        IndexMismatchError: a manifest is damaged, or a file that is none.
        TypeError: not a path, or a list in a list.

    Example:
        >>> find_files("data/train-*")  # doctest: +SKIP
        ['data/train-00000-of-00002', 'data/train-00001-of-00002']
    """
    single = isinstance(paths, (str, os.PathLike))
    found: list[str] = []
    for item in [paths] if single else _checked(paths):
        found += _expand(local_path(item))  # type: ignore[arg-type]
    if not found:
        raise ValueError("paths must name at least one file, got an empty list")
    # One pattern writes a file in one way.
    names = found if single else (path if is_remote(path) else os.path.abspath(path) for path in found)
    counts = Counter(names)
    repeated = [path for path, count in counts.items() if count > 1]
    if repeated:
        raise ValueError(f"each file may be named once, got {len(repeated)} of them more than once: {_some(repeated)}")
    return sorted(found, key=os.fsencode)


def _checked(paths: object) -> Iterable[str | os.PathLike[str]]:
    if isinstance(paths, (bytes, bytearray)) or not isinstance(paths, Iterable):
        raise TypeError(f"paths must be a path or a list of paths, got {type(paths).__name__}")
    items = list(paths)
    for item in items:
        if not isinstance(item, (str, os.PathLike)):
            raise TypeError(
                f"paths must be a flat list of str or os.PathLike, got an item of type {type(item).__name__}"
            )
    return items


def _expand(path: str) -> list[str]:
    if _is_manifest_file(path):
        return shard_paths(path, Manifest(path).names())
    files = _Remote(path) if is_remote(path) else _Local()
    if files.exists(path):
        if not files.is_dir(path):
            _check_finished(filter(None, [_shard_of(path)]))
            return [path]
        return _check_shards(_directory_content(files, path), path)
    counted = _COUNTED.fullmatch(path)
    if counted:
        return _counted_shards(files, path, counted)
    if glob.has_magic(path):
        matches = [match for match in files.glob(path) if not is_companion(match)]
        if not matches:
            raise FileNotFoundError(errno.ENOENT, "no file matches the pattern", path)
        return _check_shards(matches, path, posixpath.basename(path))
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class _Local:
    """Questions about local names."""

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def glob(self, pattern: str) -> list[str]:
        with opened(lambda _: os.scandir(os.curdir), pattern):  # glob takes what it cannot open for an empty folder
            pass
        matches = glob.glob(pattern, recursive=True)
        folders = set(_folders_among(matches))
        return [match for match in matches if match not in folders]

    def listing(self, path: str) -> list[str]:
        with opened(os.scandir, path) as entries:
            return [entry.path for entry in entries if entry.is_file()]


def _folders_among(paths: Iterable[str]) -> Iterator[str]:
    """Which of these are folders; many of one folder are told by a listing, in place of a look at each."""
    for folder, group in groupby(paths, lambda path: path[: path.rfind("/") + 1]):
        inside = list(group)
        if len(inside) <= _MOST_ASKED_SINGLY:
            yield from filter(os.path.isdir, inside)
            continue
        with opened(os.scandir, folder or os.curdir) as entries:
            yield from (f"{folder}{entry.name}" for entry in entries if entry.is_dir())


class _Remote(_Local):
    """The same questions to an fsspec file system."""

    def __init__(self, path: str) -> None:
        self._filesystem, _ = filesystem(path)

    def exists(self, path: str) -> bool:
        return bool(self._filesystem.exists(path))

    def is_dir(self, path: str) -> bool:
        return bool(self._filesystem.isdir(path))

    def glob(self, pattern: str) -> list[str]:
        hidden = posixpath.basename(pattern).startswith(".")
        return [
            self._full(name)
            for name in self._filesystem.glob(pattern)
            if (hidden or not posixpath.basename(name).startswith(".")) and not self._filesystem.isdir(name)
        ]

    def listing(self, path: str) -> list[str]:
        return [
            self._full(entry["name"]) for entry in self._filesystem.ls(path, detail=True) if entry["type"] == "file"
        ]

    def _full(self, name: str) -> str:
        return str(self._filesystem.unstrip_protocol(name))


def _directory_content(files: _Local, path: str) -> list[str]:
    """The files of a directory that are TFRecord files by name, or by their first record."""
    names = [name for name in files.listing(path) if not posixpath.basename(name).startswith(".")]
    found = [name for name in names if not is_companion(name) and _looks_like_tfrecord(name)]
    if not found:
        raise FileNotFoundError(errno.ENOENT, f"no TFRecord file among the {len(names)} files of the directory", path)
    return found


def _looks_like_tfrecord(path: str) -> bool:
    name = posixpath.basename(path)
    if _TFRECORD_NAME.search(name):
        return True
    try:
        source = open_file(path)
        first_bytes = open_stream(source, "auto")[0].read(_GUESS_BYTES, 0)
    except (OSError, TFRecordError):
        return False
    if is_header(first_bytes[:HEADER_BYTES]):
        return True
    # A damaged file must not vanish, but `x.tfrecord.json` is none.
    return bool(_TFRECORD_NAME_PART.search(name) and first_bytes and guess_content(first_bytes) is None)


class _Shard(NamedTuple):
    base: str
    suffix: str
    number: int
    total: int


def _shard_of(path: str) -> _Shard | None:
    match = _SHARD.fullmatch(path)
    if match is None:
        return None
    base, number, total, suffix = match.groups()
    return _Shard(base, suffix, int(number), int(total))


def _check_finished(shards: Iterable[_Shard]) -> None:
    """No writer may be in the middle of replacing a set."""
    for base, suffix in {(shard.base, shard.suffix) for shard in shards if not is_remote(shard.base)}:
        check_whole(base, suffix)


def _check_shards(found: list[str], asked: str, pattern: str = "*") -> list[str]:
    """Every set of shards must be whole, as far as `pattern` would match its names."""
    sets: dict[tuple[str, str], dict[int, set[int]]] = {}
    shards = list(filter(None, map(_shard_of, found)))
    _check_finished(shards)
    for shard in shards:
        sets.setdefault((shard.base, shard.suffix), {}).setdefault(shard.total, set()).add(shard.number)
    for (base, suffix), totals in sets.items():
        if len(totals) > 1:
            raise ValueError(
                printable(f"{asked}: expected one set of shards, got {base}-*{suffix} of {sorted(totals)} shards mixed")
            )
        ((total, numbers),) = totals.items()
        extra = [shard_name(base, number, total, suffix) for number in sorted(numbers) if number >= total]
        if extra:
            raise ValueError(f"{printable(asked)}: expected shards 0 to {total - 1} of {total}, got {_some(extra)}")
        name = posixpath.basename(base)  # missing ones would lie where the others do
        if len(numbers) < total:
            missing = _missing(name, suffix, total, numbers, pattern)
            present = sorted(shard_name(base, number, total, suffix) for number in numbers)
            _raise_missing(base, suffix, missing, total, present)
    return found


def _missing(name: str, suffix: str, total: int, numbers: set[int], pattern: str) -> Iterator[int]:
    """Numbers of missing shards whose names match a pattern; asks for as many names as there are files, and some."""
    most = _MOST_ASKED + 10 * len(numbers)  # a name may claim any number of shards
    asked = 0
    for number in range(total):
        if number in numbers:
            continue
        asked += 1
        if fnmatch.fnmatchcase(shard_name(name, number, total, suffix), pattern):
            yield number
        elif asked > most:
            return


def _counted_shards(files: _Local, asked: str, counted: re.Match[str]) -> list[str]:
    """The shards of ``base@N``; a suffix that all of them have may be left out."""
    base, suffix = counted["base"], counted["suffix"]
    any_number = counted["total"] == "*"
    total = 0 if any_number else int(counted["total"])
    pattern = f"{glob.escape(base)}-*-of-{'' if any_number else f'{total:05d}'}*"
    present = [name for name in files.glob(pattern) if not is_companion(name)]
    shards = {name: shard for name in present if (shard := _shard_of(name)) and (not suffix or shard.suffix == suffix)}
    suffixes = sorted({shard.suffix for shard in shards.values()})
    if len(suffixes) > 1:
        raise ValueError(f"{printable(asked)}: expected shards with one suffix, got {suffixes}")
    if not shards:
        if any_number or not total:
            raise FileNotFoundError(errno.ENOENT, "no shard of this set", asked)
        near = filter(_shard_of, files.glob(f"{glob.escape(base)}-*-of-*{glob.escape(suffix)}"))  # in other sets
        _raise_missing(base, suffix, range(total), total, sorted(near))
    return _check_shards(list(shards), asked)


def _raise_missing(base: str, suffix: str, numbers: Iterable[int], total: int, present: Sequence[str]) -> None:
    # No further than a message can show: a name may claim any number of shards. They lie in one folder.
    missing = [shard_name(base, number, total, suffix) for number in islice(numbers, _MAX_NAMED + 1)]
    if missing:
        count = str(len(missing)) if len(missing) <= _MAX_NAMED else f"more than {_MAX_NAMED}"
        there = f"there are {len(present)}: {_some([*map(_short, present)])}" if present else "there is none"
        text = f"{count} of {total} shards missing: {_some([missing[0], *map(_short, missing[1:])])}; {there}"
        raise FileNotFoundError(errno.ENOENT, text, missing[0])


def _short(path: str) -> str:
    """The name alone, and of a very long one its end: two lists of them stay below 2 KB."""
    name = posixpath.basename(path)
    return name if len(name) <= _MAX_NAME else f"...{name[3 - _MAX_NAME :]}"


def _some(names: Sequence[str]) -> str:
    shown = printable(", ".join(map(str, names[:_MAX_NAMED])))
    return shown if len(names) <= _MAX_NAMED else f"{shown} and more"
