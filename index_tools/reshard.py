"""``tfrecord reshard``, ``split``, ``merge``, ``head`` and ``sample``: the same records in other
files, byte for byte.

Which record goes where is a pure function of the seed and the number of records, so that each output
file reads its own, some at a time: however many there are, some hundred MB are in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from index_tools._outputs import FileWriter, Output, add_output, check_outputs, create_folders
from index_tools._terminal import (
    Verb,
    data_files,
    escape,
    format_size,
    integer,
    pluralize,
)
from torch_tfrecord import (
    IndexMismatchError,
    TFRecordError,
    build_manifest,
    read_records,
)
from torch_tfrecord.files import is_remote, open_file
from torch_tfrecord.loading import RecordFiles
from torch_tfrecord.order import Permutation
from torch_tfrecord.per_process import each_at_once
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records import OVERHEAD_BYTES, IndexKeeper, RecordTable
from torch_tfrecord.shown import without_secrets

if TYPE_CHECKING:
    from torch_tfrecord import TFRecordDataset

__all__ = ["HEAD", "MERGE", "RESHARD", "SAMPLE", "SPLIT", "draw_sets", "hash_sets"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

_STRETCH_BYTES = 1 << 26  # records of so much of a file are read together
_BATCH_BYTES = 1 << 27  # a batch of records: two or three of them are in memory
_HEAD_BYTES = 1 << 20  # its first records most likely are in so much of a remote file

_SET = re.compile(r"([\w.+-]+)=(\d*\.?\d+)")


# Which records.


def _select(paths: Sequence[str], where: Sequence[str]) -> tuple[RecordFiles, _Integers]:
    """The files, and the positions of the wanted records."""
    found = data_files(paths)
    with warnings.catch_warnings():  # a verb prints what is damaged or missing
        warnings.simplefilter("ignore")
        try:
            table = RecordTable.open(found, IndexKeeper("require"))
        except IndexMismatchError:
            table = RecordTable.open(found, IndexKeeper("memory"))
    files = RecordFiles.of(table)
    files.has_warned = True  # neighbours are read together
    positions = np.arange(len(table))
    for name, _, values in (condition.partition("=") for condition in where):
        column = _dataset(files)._searched(name).take(positions)
        wanted = [column.parse(text, name) for text in values.split(",")]
        positions = positions[column.matches(wanted, name)]
    if where and not len(positions):
        raise ValueError(f"no record has {' and '.join(where)}")
    return files, positions


@lru_cache(1)
def _dataset(files: RecordFiles) -> TFRecordDataset:
    """The dataset of the files, which keeps the columns that were read."""
    from torch_tfrecord import TFRecordDataset  # imports torch

    return TFRecordDataset._from_source(files)


def _shuffle(positions: _Integers, seed: int) -> _Integers:
    order = Permutation(len(positions), seed, 0)
    return positions[order.positions(np.arange(len(positions)))]


def draw_sets(classes: npt.NDArray[Any], fractions: Sequence[float], *seeds: int) -> _Integers:
    """The set of each record, at random: each set has its fraction of all records, up to one, and
    that of each class, up to two.

    Args:
        classes: [N]: something that sorts for each record.
        fractions: Those of the sets; their sum is 1.
        seeds: Integers of any size.

    Returns:
        int64 [N]: numbers of sets.

    Example:
        >>> draw_sets(np.array([7, 7, 7, 7, 9, 9, 9, 9]), [0.75, 0.25], 0)
        array([0, 0, 0, 1, 1, 0, 0, 0])
    """
    numbers = np.arange(len(classes))
    order = Permutation(len(classes), *seeds).positions(numbers)
    sizes = np.diff(np.rint(np.cumsum([0.0, *fractions]) * len(classes)).astype(int))
    # The sets take turns, each as often as it is large, through all classes one after the other.
    turns = np.concatenate([(numbers[:size] + 0.5) / size for size in sizes])
    drawn = np.repeat(np.arange(len(sizes)), sizes)[np.argsort(turns, kind="stable")]
    sets = np.empty_like(numbers)
    sets[order[np.argsort(classes[order], kind="stable")]] = drawn
    return sets


def hash_sets(values: Iterable[object], fractions: Sequence[float], seed: int) -> _Integers:
    """The set of each value, by nothing but the value, the fractions and the seed.

    Args:
        values: Integers, floats or bytes.
        fractions: Those of the sets; their sum is 1.
        seed: An integer of any size.

    Returns:
        int64 [N]: numbers of sets.

    Example:
        >>> hash_sets([b"house 1", b"house 2", b"house 3"], [0.5, 0.5], 0)
        array([0, 1, 1])
    """
    digests = [hashlib.blake2b(f"{seed} {value!r}".encode(), digest_size=8) for value in values]
    shares = [int.from_bytes(digest.digest(), "little") / 2**64 for digest in digests]
    return np.searchsorted(np.cumsum(fractions)[:-1], shares, side="right")


# Reading and writing.


def _read(files: RecordFiles, positions: _Integers) -> list[bytes | memoryview]:
    """Records in the order of their positions, read in that of the files."""
    order = np.argsort(positions)
    # Neighbours stay where they were read; else only the records are kept, not what is between.
    is_whole = bool((np.diff(positions) == 1).all())
    found: list[bytes | memoryview] = [b""] * len(order)
    for part in np.split(order, files.table.block_starts(positions[order], _STRETCH_BYTES)[1:]):
        try:
            read = files.read_batch(positions[part])
            records: Iterable[bytes | memoryview] = [*read] if is_whole else read.tolist()
        except TFRecordError:
            records = map(files.read, positions[part].tolist())  # whose error names the record
        for number, record in zip(part.tolist(), records, strict=True):
            found[number] = record
    return found


def _write(
    files: RecordFiles,
    sets: Mapping[str, _Integers],
    as_json: bool,
    force: bool,
    **shards: Any,
) -> int:
    """Write records to shards of these prefixes; without options of shards, to files."""
    table = files.table

    def sizes(positions: _Integers) -> _Integers:
        return table.find(positions)[2] + OVERHEAD_BYTES

    outputs = {path: len(positions) for path, positions in sets.items()}
    if shards:
        shards["compression_type"] = shards["compression_type"] or table.facts(0).compression_type
        named = [Output(path, **shards, force=force).shards(sizes(sets[path])) for path in sets]
        outputs = dict(chain.from_iterable(map(dict.items, named)))
    order = np.concatenate([*sets.values()])
    batches = np.cumsum(sizes(order)) // _BATCH_BYTES
    parts = np.split(order, np.flatnonzero(np.diff(batches)) + 1)
    records = chain.from_iterable(each_at_once(partial(_read, files), parts, 2))
    return _fill(table.files, outputs, records, as_json, force)


def _fill(
    inputs: Sequence[str],
    outputs: Mapping[str, int],
    records: Iterable[bytes | memoryview],
    as_json: bool,
    force: bool,
) -> int:
    """Write files of so many records, and print what is in them."""
    check_outputs(outputs, force, inputs)
    first = next(iter(outputs))
    with (
        create_folders(first),
        ProgressBar(records, "writing", sum(outputs.values()), unit="record") as bar,
        FileWriter(first, len(outputs)) as writer,
    ):
        stream = iter(bar)
        files = [
            (path, *writer.fill(path, islice(stream, count))) for path, count in outputs.items()
        ]
    if inputs and os.path.exists(_manifest_path(inputs)):
        build_manifest([*outputs])
    if as_json:
        names = ("path", "records", "bytes")
        print(json.dumps([dict(zip(names, file, strict=True)) for file in files]))
        return 0
    for path, num_records, size in files:
        text = f"{pluralize(num_records, 'record')} of {format_size(size)}"
        print(f"wrote {text}: {escape(without_secrets(path))}")
    return 0


def _manifest_path(inputs: Sequence[str]) -> str:
    """Where `build_manifest` keeps the manifest of local files."""
    folders = [os.path.dirname(os.path.abspath(path)) for path in inputs]
    return os.path.join(os.path.commonpath(folders), ".torch_index", "manifest.safetensors")


# The verbs.

_OPTIONS: dict[str, dict[str, Any]] = {
    "sets": {
        "nargs": "*",
        "metavar": "PATH... OUT_PREFIX NAME=FRACTION",
        "help": "files, as for the other verbs; a folder, or the first part of the shards' paths; the sets, with "
        "fractions that sum to 1",
    },
    "out": {
        "metavar": "OUT",
        "help": "path of the file, which is compressed if it ends so; of shards, the first part of their paths",
    },
    "--shuffle": {
        "action": "store_true",
        "help": "in the order of make_dataloader(shuffle=True, seed=S), random over all records",
    },
    "--where": {
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE[,VALUE]",
        "help": "only records with one of these values; fast where the index keeps the feature (`tfrecord index "
        "--columns`); with several --where, those that fulfil all",
    },
    "--by": {
        "metavar": "FEATURE",
        "help": "records with the same value of it go to the same set, by a hash of the value and the seed: also next "
        "year, when there are more",
    },
    "--stratify": {"metavar": "FEATURE", "help": "keep the shares of its values in all sets"},
    "--fraction": {
        "type": float,
        "default": 0.0,
        "metavar": "F",
        "help": "of the records, in place of -n",
    },
    "-n": {"type": integer(1), "dest": "num_records", "metavar": "N", "help": "number of records"},
}

_COMMON = """
Records are copied byte for byte; a damaged one ends the command (see `tfrecord salvage`). The inputs are
only read. What is written is read back and compared, then all of it appears, with indexes, and with a
manifest if the inputs have one; or nothing."""


def _verb(run: Callable[..., int], shared: str, names: str, text: str) -> Verb:
    """A verb with these arguments; `text` ends with its examples."""
    own = {name: _OPTIONS[name] for name in names.split()}
    return Verb(
        text.replace("\n\n", f"\n{_COMMON}\n\n"),
        run,
        shared,
        own,
        [add_output] * ("--shuffle" in own),
    )


def _run_copy(
    paths: Sequence[str],
    out: str,
    where: Sequence[str],
    shuffle: bool = False,
    seed: int = 0,
    num_records: int | None = None,
    fraction: float | None = None,
    **options: Any,
) -> int:
    """Write all, or, with `fraction`, some of the records."""
    files, positions = _select(paths, where)
    order = _shuffle(positions, seed) if shuffle or fraction is not None else positions
    if fraction is not None:
        count = num_records or round(fraction * len(order))
        if (num_records and fraction) or not 0 < count <= len(order):
            raise ValueError(
                f"expected either -n or --fraction, for 1 to {len(order)} records, got {count}"
            )
        order = np.sort(order[:count])
    return _write(files, {out: order}, **options)


RESHARD = _verb(
    _run_copy,
    "paths --json --seed",
    "out --shuffle --where",
    """\
Writes OUT_PREFIX-00000-of-00004.tfrecord ... : each shard has neighbouring records, in the order of the
inputs or, with --shuffle, in one that the seed and the number of records decide. Needs some hundred MB of
memory, however large the data are.

examples:
  tfrecord reshard 'data/train-*' shuffled/train --num-shards 64 --shuffle --seed 1
  tfrecord reshard data/ some/train --max-shard-bytes 50MB --where label=3,4""",
)


def _run_split(
    sets: Sequence[str],
    by: str | None,
    stratify: str | None,
    where: Sequence[str],
    shuffle: bool,
    seed: int,
    **options: Any,
) -> int:
    matches = [match for match in map(_SET.fullmatch, sets) if match]
    fractions = {match[1]: float(match[2]) for match in matches}
    *paths, prefix = sets[: -len(matches)] or [""]
    total = sum(fractions.values())
    if not paths or (by and stratify) or abs(total - 1) > 1e-6:
        *_, last = fractions or ["test"]
        left = 1 - total + fractions.get(last, 0)
        advice = f"{last}={left:g} would do" if left > 0 else "80 percent are 0.8"
        hint = f": they sum to {total:g}; {advice}" if fractions else ""
        raise ValueError(
            "expected PATH... OUT_PREFIX NAME=FRACTION..., with fractions that sum to 1, and not both --by and "
            f"--stratify, got {' '.join(sets)}{hint}"
        )
    files, positions = _select(paths, where)
    shares, classes = [*fractions.values()], np.zeros(len(positions), np.int64)
    if name := by or stratify:
        column = _dataset(files)._searched(name).take(positions)
        classes = column.values
        if column.missing is not None and column.missing.any():
            raise ValueError(
                f"expected {name} in each record, got {column.missing.sum()} without it"
            )
    if by:
        known, places = np.unique(classes, return_inverse=True)
        values = [column.strings[one] if column.strings else one for one in known.tolist()]
        numbers = hash_sets(values, shares, seed)[places]
    else:
        numbers = draw_sets(classes, shares, seed, 1)
    base = os.path.join(prefix, "") if os.path.isdir(prefix) else prefix
    base += "" if base.endswith("/") else "-"
    parts = {f"{base}{name}": positions[numbers == number] for number, name in enumerate(fractions)}
    if shuffle:
        parts = {name: _shuffle(part, seed) for name, part in parts.items()}
    return _write(files, parts, **options)


SPLIT = _verb(
    _run_split,
    "--json --seed",
    "sets --by --stratify --shuffle --where",
    """\
Writes OUT_PREFIX-train-00000-of-00004.tfrecord ... for a set train; if OUT_PREFIX is a folder or ends with
a slash, OUT_PREFIX/train-00000-of-00004.tfrecord. The seed decides which record goes to which set. In a set
they have the order of the inputs, unless --shuffle is given. --num-shards is the number of each set's.

examples:
  tfrecord split data/ sets/ train=0.8 validation=0.1 test=0.1 --shuffle
  tfrecord split data/ sets/ train=0.9 test=0.1 --by patient
  tfrecord split data/ sets/ train=0.9 test=0.1 --stratify label""",
)


MERGE = _verb(
    _run_copy,
    "paths --json --force",
    "out --where",
    """\
Writes all records to one file, in the order of the inputs.

example:
  tfrecord merge 'data/train-*' train.tfrecord""",
)


def _run_head(paths: Sequence[str], out: str, num_records: int | None, **options: Any) -> int:
    count, first = num_records or 10, list[bytes]()
    if len(paths) == 1 and is_remote(paths[0]):
        # Where this fails, the usual way says why.
        with contextlib.suppress(Exception):
            begin = io.BytesIO(open_file(paths[0]).read(_HEAD_BYTES, 0))
            first += islice(read_records(begin), count)
    if len(first) == count:
        return _fill([], {out: count}, first, **options)
    inputs = data_files(paths)
    records = islice(chain.from_iterable(map(read_records, inputs)), count)
    return _fill(inputs, {out: count}, records, **options)


HEAD = _verb(
    _run_head,
    "paths --json --force",
    "out -n",
    """\
Writes the first records, 10 without -n. Reads no more than these; of a remote file the first MiB, if
they are in it.

example:
  tfrecord head https://example.com/train.tfrecord first.tfrecord -n 100""",
)


SAMPLE = _verb(
    _run_copy,
    "paths --json --force --seed",
    "out -n --fraction --where",
    """\
Writes records drawn at random, each at most once, in the order of the inputs.

example:
  tfrecord sample data/ some.tfrecord -n 1000 --seed 1""",
)
