"""From what a user writes (a path, a glob, ``name@N``, a directory, a list of these) to a sorted
list of files.

Shards are named ``<base>-00003-of-00010<suffix>``: five digits or more, numbered from 0.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import posixpath
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeAlias

from torch_tfrecord.arguments import PathLike, Paths, StorageOptions, nearest, shard_name
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.extensions import attached
from torch_tfrecord.files import Access, RemoteInfo, is_remote, local_path, open_file, open_path
from torch_tfrecord.per_process import each_at_once
from torch_tfrecord.records.codecs import open_stream
from torch_tfrecord.records.framing import guess_content, is_header
from torch_tfrecord.records.sidecar import visible_sidecar_path
from torch_tfrecord.shown import printable, without_secrets

__all__ = [
    "find_files",
    "found_files",
    "named_manifest",
    "without_companions",
]

_SHARD = re.compile(
    r"(?P<base>.*)-(?P<number>\d{5,})-of-(?P<total>\d{5,})(?P<suffix>(?:\.[^/]*)?)", re.DOTALL
)
_COUNTED = re.compile(r"(?P<base>.+)@(?P<total>\d+|\*)(?P<suffix>(?:\.[^/]*)?)", re.DOTALL)
_TFRECORD_NAME = re.compile(
    r"(\.tfrec(ords?)?|\.array_record|-\d{5,}-of-\d{5,})(\.(gz|gzip|zlib))?$", re.IGNORECASE
)
_TFRECORD_NAME_PART = re.compile(r"\.tfrec(ord)?", re.IGNORECASE)
_SIDECAR_SUFFIX = ".safetensors"  # what is in this form has no records
# Index files and manifests of ours, index files of DALI and of vahidk/tfrecord.
_INDEX_SUFFIXES = (_SIDECAR_SUFFIX, ".idx", ".tfindex", ".index")
# Class names that `tfrecord from-images` writes, and as it named them before.
_LABELS_NAME = re.compile(r"labels-.*\.txt|.*-labels\.txt", re.DOTALL)
# Bytes looked at to tell what a file is.
_GUESS_BYTES = 64
_MAX_NAMED = 10
_MOST_ASKED = 100_000  # names of missing shards that a pattern is compared with
_MAX_NAME = 80


def is_companion(path: str) -> bool:
    """Whether a file's name says that it is beside data but is none: an index, a manifest,
    another tool's, labels.
    """
    if path.endswith(_INDEX_SUFFIXES):
        return True
    return path.endswith(".txt") and _LABELS_NAME.fullmatch(posixpath.basename(path)) is not None


def without_companions(paths: Sequence[str]) -> list[str]:
    """Leave out the indexes, manifests and labels that a glob expanded by a shell includes; but a
    manifest that is named alone means its files.
    """
    return [path for path in paths if not is_companion(path) or [*paths] == [named_manifest(path)]]


def named_manifest(paths: Paths) -> str | None:
    """The manifest that `paths` names alone, or None."""
    item = paths[0] if isinstance(paths, (list, tuple)) and len(paths) == 1 else paths
    path = local_path(item) if isinstance(item, (str, os.PathLike)) else ""
    return path if _is_manifest_file(path) else None


def _is_manifest_file(path: str) -> bool:
    return (
        path.endswith(_SIDECAR_SUFFIX)
        and not path.endswith(visible_sidecar_path(""))
        and not glob.has_magic(path)
        and (is_remote(path) or not os.path.isdir(path))
    )


def find_files(paths: Paths, *, storage_options: StorageOptions = None) -> list[str]:
    """The files that the datasets read for `paths`, sorted by their bytes.

    Names are all that is looked at, so that a set of any size is listed at once: no file is read or
    indexed. Only of a directory's files whose names do not say what they are (not ``x.tfrecord``,
    not ``x-00000-of-00010``) the first bytes are read.

    Args:
        paths: One of these, or a list of them: a path of a file; a glob (``*``, ``?``, ``[ab]``,
            ``**``; names that begin with a dot, indexes and the class names of `tfrecord
            from-images` are left out); ``name@N`` or ``name@N.suffix``, the N shards of a set
            (``name@*``: however many there are); a directory, of which all TFRecord files are
            taken; a manifest (``.safetensors``; see `build_manifest`), whose files are taken
            without looking whether they are there. Local, or with a ``scheme://``. Where a storage
            lists nothing, as most servers of ``https://``, files, ``name@N`` and manifests are found.
        storage_options: See `TFRecordDataset`.

    Returns:
        At least one path, as `paths` writes them: relative ones stay relative.

    Raises:
        FileNotFoundError: nothing there, no match, or a shard of a set that is missing (all missing
            ones are named).
        RemoteError: a storage does not answer as it should.
        ValueError: a file is named twice, or sets of shards are mixed.
        IndexMismatchError: a manifest is damaged, or a file that is none.
        TypeError: not a path, or a list in a list.

    Example:
        >>> find_files("data/train-*")  # doctest: +SKIP
        ['data/train-00000-of-00002', 'data/train-00001-of-00002']
    """
    return found_files(paths, Access(storage_options))[0]


def found_files(
    paths: Paths, access: Access, *, are_whole: bool = True
) -> tuple[list[str], Mapping[str, RemoteInfo]]:
    """`find_files`, and what storages said of files on the way; sets of shards may lack some if
    they need not be whole.
    """
    check = _check_shards if are_whole else lambda found, *_: found
    items = [
        local_path(item)
        for item in ([paths] if isinstance(paths, (str, os.PathLike)) else _checked(paths))
    ]
    local = _Local(access)
    remote: _StorageNames | None = None
    if any(map(is_remote, items)):
        remote = attached("remote", "STORAGES").names(access)
        remote.ask(
            item
            for item in items
            if is_remote(item) and not remote.is_pattern(item) and not _COUNTED.fullmatch(item)
        )
    found = [
        file
        for item in items
        for file in _expand(item, remote if remote and is_remote(item) else local, check)
    ]
    if not found:
        raise ValueError("paths must name at least one file, got an empty list")
    # One pattern writes a file in one way.
    names = (
        found
        if len(items) == 1
        else (path if is_remote(path) else os.path.abspath(path) for path in found)
    )
    counts = Counter(names)
    repeated = [path for path, count in counts.items() if count > 1]
    if repeated:
        raise ValueError(
            f"each file may be named once, got {len(repeated)} of them more than once: {_some(repeated)}"
        )
    # Letters of ASCII sort as their bytes do, and do not have to be made into them.
    return sorted(
        found, key=None if all(map(str.isascii, found)) else os.fsencode
    ), remote.infos if remote else {}


def _checked(paths: object) -> Iterable[PathLike]:
    if isinstance(paths, (bytes, bytearray)) or not isinstance(paths, Iterable):
        raise TypeError(f"paths must be a path or a list of paths, got {type(paths).__name__}")
    items = list(paths)
    for item in items:
        if not isinstance(item, (str, os.PathLike)):
            raise TypeError(
                f"paths must be a flat list of str or os.PathLike, got an item of type {type(item).__name__}; several "
                "datasets are joined by torch.utils.data.ConcatDataset, or by Mixture"
            )
    return items


def _expand(path: str, files: _Names, check: Callable[..., list[str]]) -> list[str]:
    if _is_manifest_file(path):
        return attached("manifests", "ManifestTable").files_of(path, files.access)
    counted = _COUNTED.fullmatch(path)
    if not files.is_pattern(path) and not (counted and is_remote(path)) and files.exists(path):
        if not files.is_dir(path):
            return [path]
        return check(_directory_content(files, path), path)
    try:
        if counted:
            return _counted_shards(files, path, counted, check)
        if not glob.has_magic(path):
            raise _not_there(path, os.strerror(errno.ENOENT))
        matches = [match for match in files.glob(path) if not is_companion(match)]
        if not matches:
            raise _not_there(path, "no file matches the pattern")
        return check(matches, path, posixpath.basename(path))
    except FileNotFoundError:
        # a name that only looks like a pattern
        if is_remote(path) and files.exists(path) and not files.is_dir(path):
            return [path]
        raise


def _not_there(path: str, text: str) -> FileNotFoundError:
    """The error for what is not there, with a local name that is like it."""
    folder, name = os.path.split(path)
    if not is_remote(path) and not glob.has_magic(folder):
        if os.path.isdir(folder or os.curdir):
            there = [
                one for one in sorted(os.listdir(folder or os.curdir)) if not is_companion(one)
            ]
            # without a suffix, or the name of a set
            longer = next((one for one in there if one.startswith(name)), None)
            if longer is not None:
                there = [name := f"{name}-*" if _SHARD.fullmatch(longer) else longer]
            text += nearest(name, there)
        else:
            text += f"; there is no folder {folder!r}"
    return FileNotFoundError(errno.ENOENT, text, without_secrets(path))


class _Local:
    """Questions about local names."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def is_pattern(self, path: str) -> bool:
        return False  # a file of that name comes first

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def glob(self, pattern: str) -> list[str]:
        folder, slash, last = pattern.rpartition("/")
        if not glob.has_magic(folder) and "**" not in last:
            return _matching_files(folder + slash, last)
        # glob takes what it cannot open for an empty folder
        with open_path(lambda _: os.scandir(os.curdir), pattern):
            pass
        return [match for match in glob.glob(pattern, recursive=True) if not os.path.isdir(match)]

    glob_if_listed = glob

    def listing(self, path: str) -> list[str]:
        with open_path(os.scandir, path) as entries:
            return [entry.path for entry in entries if entry.is_file()]


def _matching_files(folder: str, pattern: str) -> list[str]:
    """The names that `glob` finds in one folder, without a look at each file."""
    try:
        with open_path(os.scandir, folder or os.curdir) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return []
    if not pattern.startswith("."):
        names = [name for name in names if not name.startswith(".")]
    return [folder + name for name in fnmatch.filter(names, pattern)]


class _StorageNames(Protocol):
    """Questions about names in storages, whose answers are kept."""

    access: Access
    infos: Mapping[str, RemoteInfo]

    def ask(self, paths: Iterable[str]) -> None:
        """Ask for several files at once."""

    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...

    def is_pattern(self, path: str) -> bool:
        """Whether a path is looked at as a pattern first."""

    def listing(self, path: str) -> list[str]:
        """The files of a folder."""

    def glob(self, pattern: str) -> list[str]: ...

    def glob_if_listed(self, pattern: str) -> list[str]:
        """As `glob`; nothing where the storage lists nothing."""

    def suffixes(self, suffix: str) -> tuple[str, ...]:
        """Which suffixes a set may have, of which one is said or none."""

    def shards(self, names: Sequence[Sequence[str]]) -> tuple[list[str], list[int]] | None:
        """The shards of a set that are there, and the numbers of those that are not.

        Args:
            names: Each shard's names, one for each suffix that the set may have.

        Returns:
            None where the first shard has none of the names.
        """


_Names: TypeAlias = "_Local | _StorageNames"


def _directory_content(files: _Names, path: str) -> list[str]:
    """The files of a directory that are TFRecord files by name, or by their first record."""
    names = [name for name in files.listing(path) if not posixpath.basename(name).startswith(".")]
    names_of_data = [name for name in names if not is_companion(name)]
    look = partial(_looks_like_tfrecord, files.access)
    flags = each_at_once(look, names_of_data) if is_remote(path) else map(look, names_of_data)
    found = [name for name, flag in zip(names_of_data, flags, strict=True) if flag]
    if not found:
        raise FileNotFoundError(
            errno.ENOENT,
            f"no TFRecord file among the {len(names)} files of the directory",
            without_secrets(path),
        )
    return found


def _looks_like_tfrecord(access: Access, path: str) -> bool:
    name = posixpath.basename(path)
    if _TFRECORD_NAME.search(name):
        return True
    try:
        source = open_file(path, access)
        first_bytes = open_stream(source, "auto")[0].read(_GUESS_BYTES, 0)
    except (OSError, TFRecordError):
        return False
    if is_header(first_bytes):
        return True
    # A damaged file must not vanish, but `x.tfrecord.json` is none.
    return bool(
        _TFRECORD_NAME_PART.search(name) and first_bytes and guess_content(first_bytes) is None
    )


class _Shard(NamedTuple):
    base: str
    number: int
    total: int
    suffix: str


def _shard_of(path: str) -> _Shard | None:
    match = _SHARD.fullmatch(path)
    return match and _Shard(match[1], int(match[2]), int(match[3]), match[4])


def _check_shards(found: list[str], asked: str, pattern: str = "*") -> list[str]:
    """Every set of shards must be whole, as far as `pattern` would match its names."""
    if _is_whole_set(found):  # a set of 100,000 is found to be whole at once
        return found
    sets: defaultdict[tuple[str, str], list[_Shard]] = defaultdict(list)
    for shard in filter(None, map(_shard_of, found)):
        sets[shard.base, shard.suffix].append(shard)
    for (base, suffix), shards in sets.items():
        totals = sorted({shard.total for shard in shards})
        if len(totals) > 1:
            text = f"expected one set of shards, got {base}-*{suffix} of {totals} shards mixed"
            raise ValueError(printable(f"{asked}: {text}"))
        total, numbers = totals[0], sorted({shard.number for shard in shards})
        name_of = partial(shard_name, total=total, suffix=suffix)
        extra = [name_of(base, number) for number in numbers[bisect_left(numbers, total) :]]
        if extra:
            raise ValueError(
                f"{printable(asked)}: expected shards 0 to {total - 1} of {total}, got {_some(extra)}"
            )
        name = posixpath.basename(base)  # missing ones would be where the others are
        # A name may claim any number of shards: it is asked for as many as there are, and some.
        there = {*numbers}
        absent = (number for number in range(total) if number not in there)
        missing = (
            number
            for number in islice(absent, _MOST_ASKED + 10 * len(numbers))
            if fnmatch.fnmatchcase(name_of(name, number), pattern)
        )
        if len(numbers) < total:
            present = [name_of(base, number) for number in numbers]
            _raise_missing(base, suffix, missing, total, present)
    return found


def _is_whole_set(found: list[str]) -> bool:
    """Whether these files are all shards of one set; False in doubt."""
    first = min(found)
    match = _SHARD.fullmatch(first)
    if match is None or int(match["total"]) != len(found):
        return False
    begin, end = first[: match.start("number")], first[match.end("number") :]
    width = len(match["number"])
    return {f"{begin}{number:0{width}d}{end}" for number in range(len(found))} == {*found}


def _counted_shards(
    files: _Names, asked: str, counted: re.Match[str], check: Callable[..., list[str]]
) -> list[str]:
    """The shards of ``base@N``; a suffix that all of them have may be left out."""
    base, suffix = counted["base"], counted["suffix"]
    number = "" if counted["total"] == "*" else f"{int(counted['total']):05d}"
    total = int(number or 0)
    if not isinstance(files, _Local) and total:
        found = _asked_shards(files, base, suffix, total)
        if found is not None:
            return found
    pattern = f"{glob.escape(base)}-*-of-{number}*"
    present = [name for name in files.glob_if_listed(pattern) if not is_companion(name)]
    shards = {
        name: shard
        for name in present
        if (shard := _shard_of(name)) and (not suffix or shard.suffix == suffix)
    }
    suffixes = sorted({shard.suffix for shard in shards.values()})
    if len(suffixes) > 1:
        raise ValueError(f"{printable(asked)}: expected shards with one suffix, got {suffixes}")
    if not shards:
        if not total:
            raise FileNotFoundError(errno.ENOENT, "no shard of this set", without_secrets(asked))
        # in other sets
        near = filter(
            _shard_of, files.glob_if_listed(f"{glob.escape(base)}-*-of-*{glob.escape(suffix)}")
        )
        _raise_missing(base, suffix, range(total), total, sorted(near))
    return check(list(shards), asked)


def _asked_shards(files: _StorageNames, base: str, suffix: str, total: int) -> list[str] | None:
    """The shards by their names, without a listing; None where the first is not there."""
    suffixes = files.suffixes(suffix)
    names = ([shard_name(base, number, total, end) for end in suffixes] for number in range(total))
    found = None if total > _MOST_ASKED else files.shards([*names])
    if found is None:
        return None
    present, missing = found
    shard = _shard_of(present[0])
    _raise_missing(base, suffix if shard is None else shard.suffix, missing, total, present)
    return present


def _raise_missing(
    base: str, suffix: str, numbers: Iterable[int], total: int, present: Sequence[str]
) -> None:
    # No further than a message can show: a name may claim any number of shards. They are in one
    # folder.
    missing = [
        shard_name(base, number, total, suffix) for number in islice(numbers, _MAX_NAMED + 1)
    ]
    if missing:
        count = str(len(missing)) if len(missing) <= _MAX_NAMED else f"more than {_MAX_NAMED}"
        there = (
            f"there are {len(present)}: {_some([*map(_short, present)])}"
            if present
            else "there is none"
        )
        raise FileNotFoundError(
            errno.ENOENT,
            f"{count} of {total} shards missing: {_some([missing[0], *map(_short, missing[1:])])}; {there}",
            without_secrets(missing[0]),
        )


def _short(path: str) -> str:
    """The name alone, and of a very long one its end: two lists of them stay below 2 KB."""
    name = posixpath.basename(without_secrets(path))
    return name if len(name) <= _MAX_NAME else f"...{name[3 - _MAX_NAME :]}"


def _some(names: Sequence[str]) -> str:
    shown = printable(", ".join(map(str, names[:_MAX_NAMED])))
    return shown if len(names) <= _MAX_NAMED else f"{shown} and more"
