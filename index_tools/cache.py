"""``tfrecord cache``: what is in the disk cache of remote data, and emptying it."""

from __future__ import annotations

import argparse
import json
import os

from index_tools._terminal import Verb, add_json, escape, format_size, pluralize
from torch_tfrecord.files import Access
from torch_tfrecord.remote import cache_info

__all__ = ["CACHE"]

_DESCRIPTION = """\
Prints how much of its cap a cache uses, of how many files, and how much of what was read came from
it, up to half a minute ago. --clear removes all of it, also while programs use it: they fetch
again what they need.

The folder is the one given as cache_dir=; without it that of the user's cache, which cache_bytes=
alone uses.

examples:
  tfrecord cache
  tfrecord cache /scratch/cache --clear"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", metavar="DIR", help="the cache's folder (default: in the user's cache)"
    )
    parser.add_argument("--clear", action="store_true", help="remove all copies")
    add_json(parser)


def _run(folder: str | None, clear: bool, as_json: bool) -> int:
    folder = folder or os.path.join(Access.user_cache(), "remote")
    info, name = cache_info(folder, clears=clear), escape(folder)
    if as_json:
        print(json.dumps({"folder": folder, **(info._asdict() if info else {})}))
        return 0
    if info is None:
        print(f"{name}: no cache")
        return 0
    files = pluralize(info.num_files, "remote file")
    content = f"{format_size(info.disk_bytes)} on the disk, of {files}"
    if clear:
        print(f"{name}: removed {content}")
        return 0
    print(f"{name}: {content}, at most {format_size(info.max_bytes)}")
    total = info.hit_bytes + info.fetched_bytes
    share = f", {100 * info.hit_bytes / total:.0f} % of it from the cache" if total else ""
    print(f"read through it: {format_size(total)}{share}")
    return 0


CACHE = Verb(_DESCRIPTION, _add_arguments, _run)
