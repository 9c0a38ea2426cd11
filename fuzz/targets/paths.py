"""find_files on strange names: what a folder's listing says, or FileNotFoundError or ValueError
with a short text.

An input is lines: the pattern, then the names of the files that are there.
"""

import fnmatch
import glob
import os
import shutil

from tools import FOLDER, damage, outcome

from torch_tfrecord import find_files
from torch_tfrecord.records.paths import is_companion

COMPILED = False
_FOLDER = f"{FOLDER}/paths"
_NAMES = [
    "a.tfrecord",
    "b",
    "x-00000-of-00002",
    "x-00001-of-00002",
    "x-00000-of-1000000000",
    "x-00007-of-00002.gz",
]
_NAMES += [
    "[ab]",
    "@",
    "é",
    "-00000-of-00001",
    ".hidden",
    "a.idx",
    "labels-a.txt",
    "y@2",
    "\udcff.tfrecord",
    "x" * 200,
]
_NAMES += [
    "x-00001-of-00002.tfrecord",
    "x-99999999999999999999-of-99999999999999999999",
    "x-٠٠٠٠٠-of-٠٠٠٠٢",
]
_PATTERNS = [
    "*",
    "x-*",
    "x@2",
    "x@*",
    "x@999999999",
    "x@99999999999999999999999",
    "",
    ".",
    "[ab]*",
    "[",
    "**",
    "x-?????-of-*",
]


def seeds():
    return [_joined([pattern, *_NAMES[:4]]) for pattern in _PATTERNS]


def _joined(lines):
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def mutate(rng, data):
    if rng.random() < 0.3:
        return damage(rng, data, 2)
    names = rng.sample(_NAMES, rng.randrange(6))
    number, total = (
        rng.choice([0, 1, 2, 10**6, 10**9, 10**25]),
        rng.choice([1, 2, 3, 99999, 10**9, 10**30]),
    )
    names += [f"x-{number:05d}-of-{total:05d}{rng.choice(['', '.tfrecord', '.gz'])}"] * (
        rng.random() < 0.5
    )
    pattern = rng.choice([*_PATTERNS, *_NAMES, f"x@{total}"])
    return _joined([pattern + rng.choice(["", "", "", "*", "@1", "/"]), *names])


def check(data):
    pattern, *names = os.fsdecode(data).replace("\0", "").split("\n")
    if "://" in pattern or any(
        len(os.fsencode(name)) > 255 or name in ("", ".", "..") or "/" in name for name in names
    ):
        return
    shutil.rmtree(_FOLDER, ignore_errors=True)
    os.mkdir(_FOLDER)
    for name in names:
        os.close(os.open(os.path.join(_FOLDER, name), os.O_CREAT | os.O_WRONLY))
    if ".." in pattern:
        return
    found, _ = outcome(
        find_files, os.path.join(glob.escape(_FOLDER), pattern), errors=(OSError, ValueError)
    )
    for name in found or ():
        assert os.path.lexists(name), name
    found = None if found is None else [os.path.relpath(name, _FOLDER) for name in found]
    assert found is None or (found == sorted(set(found), key=os.fsencode) and found), found
    if pattern in names:
        assert found == [pattern]
    elif (
        found is not None
        and "/" not in pattern
        and "@" not in pattern
        and "**" not in pattern
        and pattern not in ("", ".")
    ):
        wanted = {
            name for name in names if fnmatch.fnmatchcase(name, pattern) and not is_companion(name)
        }
        assert set(found) == {name for name in wanted if name[:1] != "." or pattern[:1] == "."}
