"""``tfrecord cache``: what the disk cache of remote data holds, and emptying it."""

from __future__ import annotations

import argparse

from index_tools._terminal import Verbs, add_verb, escape, format_size, pluralize
from torch_tfrecord.files.access import remote_folder
from torch_tfrecord.files.disk_cache import CacheInfo, cache_info, clear_cache

__all__ = ["add_parser"]

_DESCRIPTION = """\
Prints how much of its cap a cache uses, of how many files, and how much of what was read came from
it, up to half a minute ago. --clear removes all of it, also while programs use it: they fetch
again what they need.

The folder is the one given as cache_dir=; without it that of the user's cache, which cache_bytes=
alone uses.

examples:
  tfrecord cache
  tfrecord cache /scratch/cache --clear"""


def add_parser(verbs: Verbs, summary: str) -> None:
    """Add the verb to the command line."""
    parser = add_verb(verbs, "cache", summary, _DESCRIPTION, _run)
    parser.add_argument(
        "folder", nargs="?", metavar="DIR", help="the cache's folder (default: in the user's cache)"
    )
    parser.add_argument("--clear", action="store_true", help="remove all copies")


def _run(options: argparse.Namespace) -> int:
    folder = options.folder or remote_folder()
    info = cache_info(folder)
    if info is not None and options.clear:
        clear_cache(folder)
        print(f"{escape(folder)}: removed {_content(info)}")
    elif info is not None:
        _print(folder, info)
    else:
        print(f"{escape(folder)}: no cache")
    return 0


def _print(folder: str, info: CacheInfo) -> None:
    print(f"{escape(folder)}: {_content(info)}, at most {format_size(info.max_bytes)}")
    total = info.hit_bytes + info.fetched_bytes
    share = f", {100 * info.hit_bytes / total:.0f} % of it from the cache" if total else ""
    print(f"read through it: {format_size(total)}{share}")


def _content(info: CacheInfo) -> str:
    return (
        f"{format_size(info.disk_bytes)} on the disk, of {pluralize(info.num_files, 'remote file')}"
    )
