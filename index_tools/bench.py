"""``tfrecord bench``: what bounds a loader on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter, perf_counter_ns
from timeit import repeat, timeit
from typing import Any

from crc32c import crc32c

from index_tools._features import load_code
from index_tools._terminal import Verb, data_paths
from torch_tfrecord import Image, RecordLoader, make_dataloader
from torch_tfrecord.files import open_file
from torch_tfrecord.native import has_native
from torch_tfrecord.phases import PHASES

__all__ = ["BENCH"]

_DESCRIPTION = """\
Reads with make_dataloader, in random order, for some seconds or one epoch; prints how fast that is, and
in one line what bounds it and what to change: disk, network, decompression, checksums, parse, python,
decode, transform, collate or transport. Nothing trains meanwhile. Data that fits into the system's memory
comes from there the second time: for what the disk does, take more, or restart the machine. Missing
indexes are built and kept first.

The options are those of make_dataloader. FILE.py may also assign its `transform` and `collate_fn`.

examples:
  tfrecord bench 'data/train-*'
  tfrecord bench data/ --features features.py --num-workers 4 --json"""

_SEVERAL_SIZES = """\
pictures or arrays of several sizes: batches are lists of samples; --features with Image(crop=...) measures yours"""
_CROP, _CORE = "crop in the feature, Image(crop=...)", "get the compiled core (tfrecord doctor)"
_COLLATE = "make collate_fn cheaper (collate and PaddedCollate take columns)"
_WORKERS = "run it in worker processes (num_workers)"
# The best advice first; what is there already is left out.
_ADVICE = {
    "disk": ["copy the files to a faster disk", 'read neighbours together: shuffle="blocks"'],
    "network": [
        "keep what was read in a cache_dir",
        'read whole blocks: shuffle="blocks"',
        "raise num_threads",
    ],
    "decompression": ["write the files uncompressed: tfrecord reshard --compression NONE"],
    "checksums": [_CORE, "read unchecked bytes: verify_crc=False"],
    "parse": [
        "read fewer features",
        "store long lists as RawTensor or SerializedTensor",
        "make batches larger",
    ],
    "python": [
        "read fewer values: each bytes or str is a Python object",
        "store several as one (RawTensor, Json)",
    ],
    "decode": [_CROP, "store smaller pictures (tfrecord reencode)", "use more cores"],
    "transform": [_WORKERS, "make it cheaper"],
    "collate": [_COLLATE, _WORKERS, "read fewer or smaller features"],
    "transport": ["use fewer workers, or none: sending batches costs more than making them"],
}


def _measure(
    paths: Sequence[str], options: dict[str, Any], seconds: float, **changes: Any
) -> RecordLoader:
    """A loader that has read for some seconds or an epoch, at least a batch."""
    end = perf_counter() + seconds
    options = options | changes
    loader = make_dataloader(
        paths,
        # another seed, other records: those of an earlier run are in memory
        seed=perf_counter_ns(),
        # functions of a file of code cannot be pickled
        multiprocessing_context="fork" if options["num_workers"] else None,
        **options,
    )
    for _ in loader:
        if perf_counter() >= end:
            break
    return loader


def _bound(loader: Any, measure: partial[RecordLoader]) -> str:
    """Find out what bounds a loader that has read; `measure` gives one that reads in one thread."""
    # Threads and processes wait for each other: only one thread shows how much each part costs.
    alone = measure().stats()
    if loader.num_workers and loader.stats()["wait"] > 1.2 * alone["wait"]:
        return "transport"
    costs = {name: alone[name] for name in PHASES}
    # These are done by all threads, the others by the one that iterates.
    for name in () if loader.num_workers else ("read", "parse", "decode"):
        costs[name] /= loader.num_threads or 1
    worst = max(costs, key=costs.__getitem__)
    specs = loader.dataset.features
    if not isinstance(specs, Mapping):
        specs = {"": specs}
    rest = {
        name: spec for name, spec in specs.items() if not getattr(spec, "_makes_objects", False)
    }
    if worst == "parse" and len(rest) < len(specs):
        found = measure(features=rest or None, transform=None, collate_fn=list).stats()
        return "python" if 2 * found["parse"] < alone["parse"] else worst
    if worst != "read":
        return worst
    # The time of a batch's checksums alone, and of its compressed bytes where they are in order.
    files, num_bytes = loader.dataset._record_files, int(alone["bytes"])
    if 2 * min(repeat(lambda: crc32c(bytes(num_bytes)), number=1)) > alone["read"]:
        return "checksums"
    if files.first_compressed is not None:
        file = open_file(files.table.files[0], files.access)
        num_bytes = num_bytes * file.file_size // max(files.table.file_bytes[0], 1)
        if 2 * timeit(lambda: file.read(num_bytes, 0), number=1) < alone["read"]:
            return "decompression"
    return "network" if files.is_remote else "disk"


def _advice(bound: str, loader: RecordLoader, options: Mapping[str, Any]) -> str:
    """The advice for a bound, without what is there already."""
    specs = options["features"]
    images = [
        spec
        for spec in (specs.values() if isinstance(specs, Mapping) else [specs])
        if isinstance(spec, Image)
    ]
    there = {
        _CROP: all(spec.crop for spec in images),
        _CORE: has_native(),
        _COLLATE: "collate_fn" not in options,
        _WORKERS: bool(loader.num_workers),
    }
    return "; or ".join(advice for advice in _ADVICE[bound] if not there.get(advice))


def _run(
    paths: Sequence[str], features: str | None, seconds: float, as_json: bool, **options: Any
) -> int:
    code = load_code(features, paths := data_paths(paths))
    for name in {"features", "transform", "collate_fn"} & code.keys():
        options[name] = code[name]
    try:
        facts = _bench(paths, options, seconds)
    except ValueError as error:
        if features or "cannot batch" not in str(error):
            raise
        print(_SEVERAL_SIZES, file=sys.stderr)
        facts = _bench(paths, options | {"collate_fn": list}, seconds)
    line = "{2:,.0f} samples/s, {3:,.1f} MB/s, waiting {4:.0%}\nbound by {0}: {1}"
    print(json.dumps(facts) if as_json else line.format(*facts.values()))
    return 0


def _bench(paths: Sequence[str], options: dict[str, Any], seconds: float) -> dict[str, Any]:
    measure = partial(_measure, paths, options)
    # It imports the decoders, and builds indexes.
    if not measure(0).stats()["batches"]:
        raise ValueError("expected records to read, got none")
    loader = measure(seconds)
    bound = _bound(loader, partial(measure, seconds / 4, num_workers=0, num_threads=0))
    stats = loader.stats()
    rate = stats["batches"] / stats["seconds"]
    return {
        "bound_by": bound,
        "advice": _advice(bound, loader, options),
        "samples_per_second": stats["samples"] / stats["seconds"],
        "megabytes_per_second": stats["bytes"] * rate / 1e6,
        "waiting": stats["wait"] * rate,
        **stats,
    }


_number = {"type": int, "metavar": "N", "help": "default: %(default)s"}
BENCH = Verb(
    _DESCRIPTION,
    _run,
    "paths --features --json",
    {
        "--batch-size": {**_number, "default": 64},
        "--num-workers": {**_number, "default": 0},
        "--num-threads": _number,
        "--seconds": {
            "type": float,
            "default": 5,
            "help": "of the longest run (default: %(default)s)",
        },
    },
)
