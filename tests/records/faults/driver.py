"""Run under the preloaded library of faults.c: every writer and reader, with every fault; prints
what went wrong.

Usage: LD_PRELOAD=faults.so python driver.py FOLDER (write | kill ROUNDS | moments ROUNDS | read)
"""

import contextlib
import ctypes
import errno
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

from torch_tfrecord import (
    RecordIndex,
    ShardedTFRecordWriter,
    TFRecordDataset,
    TFRecordError,
    TFRecordWriter,
    build_index,
    find_files,
    read_records,
    tfds,
)

NONE, FAIL, KILL, SHORT, INTERRUPT = range(5)
LIBRARY = ctypes.CDLL(None)
LIBRARY.faults_set.argtypes = [
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_int,
]
LIBRARY.faults_fired.restype = ctypes.c_long
FAULTS = [
    ("write", errno.ENOSPC),
    ("write", errno.EIO),
    ("fsync", errno.EIO),
    ("rename", errno.EIO),
    ("link", errno.EIO),
    ("link", errno.EPERM),
    ("open", errno.EIO),
    ("open", errno.EMFILE),
    ("mkdir", errno.ENOSPC),
    ("unlink", errno.EIO),
    ("read", errno.EIO),
]
OLD, NEW = [b"old%020d" % n for n in range(20)], [b"new%020d" % n for n in range(20)]
FEATURES = {"x": tfds.features.Text()}


def write_one(folder, records, **options):
    with TFRecordWriter(folder / "x", **options) as writer:
        for record in records:
            writer.write(record)
        writer.flush()


def write_set(folder, records, **options):
    with ShardedTFRecordWriter(folder / "x", write_index=True, **options) as writer:
        for record in records:
            writer.write(record)


def write_dataset(folder, records):
    with contextlib.suppress(FileExistsError):
        tfds.write(
            folder / "1.0.0", {"s": [{"x": r} for r in records]}, FEATURES, name="d", num_shards=3
        )


def save_index(folder, records):
    RecordIndex([], [], 0, mtime_ns=int(records is NEW)).save(folder / "x")


def saved_index(folder):
    return [OLD, NEW][RecordIndex.load(folder / "x").mtime_ns]


def set_records(folder):
    dataset = TFRecordDataset(folder / "x-*", index="require")
    return sorted(dataset.raw(n) for n in range(len(dataset)))


def dataset_records(folder):
    return [sample["x"].encode() for sample in tfds.load(folder / "1.0.0", "s", index="memory")]


# Kind -> (write, read); each file there is whole, or that raises.
KINDS = {
    "file": (write_one, lambda folder: list(read_records(folder / "x"))),
    "file with index": (
        lambda folder, records: write_one(folder, records, write_index=True),
        lambda folder: list(map(TFRecordDataset(folder / "x").raw, range(20))),
    ),
    "shards in turn": (
        lambda folder, records: write_set(folder, records, num_shards=3),
        set_records,
    ),
    "shards by size": (
        lambda folder, records: write_set(folder, records, max_shard_bytes=300),
        set_records,
    ),
    "dataset": (write_dataset, dataset_records),
    "index": (save_index, saved_index),
}
problems = []
cases = 0


def hidden(folder):
    names = os.listdir(folder)
    return [n for n in names if n.startswith(("incomplete.", ".")) and n != ".torch_index"]


def arm(folder, call, at, mode, number=0):
    LIBRARY.faults_set(os.fsencode(folder), call.encode(), at, mode, number)


def check(case, folder, kind, existing, *, killed=False):
    """Old or new, whole, and of a set whose writer was killed each shard; the next run clears
    everything.
    """
    global cases
    cases += 1
    write, read = KINDS[kind]
    is_cut = killed and kind.startswith("shards")
    left = [] if killed else hidden(folder)
    try:
        found = read(folder)
    except (OSError, TFRecordError) as error:
        found = None if is_cut or not existing else error
    is_mixed = is_cut and isinstance(found, list) and set(found) <= {*OLD, *NEW}
    allowed = [NEW, *([None] if is_cut else [])] + ([OLD] if existing else [None])
    if found not in allowed and not is_mixed:
        problems.append(f"{case}: found {found!r}"[:300])
    if left:
        problems.append(f"{case}: left {left}")
    write(folder, NEW)
    if read(folder) != NEW or hidden(folder) or any(n.startswith(".") for n in _indexes(folder)):
        problems.append(f"{case}: after the next run: {os.listdir(folder)} {_indexes(folder)}")


def _indexes(folder):
    return os.listdir(folder / ".torch_index") if (folder / ".torch_index").is_dir() else []


def fresh(folder, kind, existing):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if existing:
        KINDS[kind][0](folder, OLD)


def kinds():
    return [
        (kind, existing)
        for kind in KINDS
        for existing in (False, True)
        if not (existing and kind == "dataset")
    ]


def write_under_faults(folder):
    for (kind, existing), (call, number) in itertools.product(kinds(), FAULTS):
        for at in itertools.count():
            case = f"{kind}, {'existing' if existing else 'new'}, {call} {at} {errno.errorcode[number]}"
            fresh(folder, kind, existing)
            error = None
            arm(folder, call, at, FAIL, number)
            try:
                KINDS[kind][0](folder, NEW)
            except (OSError, TFRecordError) as caught:
                error = caught
            if not LIBRARY.faults_fired():
                break
            if error is not None and str(folder) not in str(error):
                problems.append(f"{case}: the error names no path: {error!r}")
            if error is None and KINDS[kind][1](folder) != NEW:
                problems.append(f"{case}: no error, and no new data")
            left = hidden(folder) if error is None else []
            if left and call not in (
                "open",
                "unlink",
                "read",
            ):  # of clearing, which the next run does again
                problems.append(f"{case}: no error, and left {left}")
            if call in ("open", "unlink"):
                check_after_clearing_failed(case, folder, kind, existing)
            else:
                check(case, folder, kind, existing)
    for (kind, existing), mode in itertools.product(kinds(), (SHORT, INTERRUPT)):
        for call in ("read", "write", "open", "fsync"):
            if mode == SHORT and call in ("open", "fsync"):
                continue
            fresh(folder, kind, existing)
            arm(folder, call, 0, mode)
            try:
                KINDS[kind][0](folder, NEW)
            except OSError as error:
                problems.append(f"{kind}, {call}, mode {mode}: {error!r}")
            LIBRARY.faults_fired()
            check(f"{kind}, {call}, mode {mode}", folder, kind, existing)


def check_after_clearing_failed(case, folder, kind, existing):
    """Opening or unlinking is a part of clearing, too: where that failed, the next run clears."""
    check(case, folder, kind, existing, killed=bool(hidden(folder)))


def in_child(work):
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            work()
        os._exit(0)
    return child


def kill_at_calls(folder, rounds):
    rng = random.Random(1)
    for number in range(rounds):
        kind, existing = kinds()[number % len(kinds())]
        at = rng.randrange(130 if "shards" in kind or kind == "dataset" else 25)
        fresh(folder, kind, existing)

        def work(kind=kind, at=at):
            arm(folder, "any", at, KILL)
            KINDS[kind][0](folder, NEW)

        os.waitpid(in_child(work), 0)
        check(
            f"{kind}, existing {existing}, killed at call {at}", folder, kind, existing, killed=True
        )


def kill_at_moments(folder, rounds):
    rng = random.Random(2)
    for number in range(rounds):
        kind, existing = kinds()[number % len(kinds())]
        fresh(folder, kind, False)
        started = time.monotonic()
        os.waitpid(in_child(lambda kind=kind: KINDS[kind][0](folder, NEW)), 0)
        duration = time.monotonic() - started
        fresh(folder, kind, existing)
        child = in_child(lambda kind=kind: KINDS[kind][0](folder, NEW))
        time.sleep(rng.random() * duration * 1.2)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        check(f"{kind}, existing {existing}, moment {number}", folder, kind, existing, killed=True)


def read_all(folder, index):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = TFRecordDataset(folder / "x-*", index=index)
        yield [dataset.raw(n) for n in range(20)]
        yield list(TFRecordDataset(folder / "x-*", index=index).__getitems__([*range(20)]))
        yield [record for path in find_files(folder / "x-*") for record in read_records(path)]
        yield (
            [dataset.raw(n) for n in range(20)]
            if build_index(folder / "x-00000-of-00003.tfrecord")
            else []
        )


def read_under_faults(folder):
    global cases
    for index, options in itertools.product(
        ("auto", "require", "memory"), ({}, {"compression_type": "GZIP"})
    ):
        for call, number in (
            ("read", errno.EIO),
            ("open", errno.EIO),
            ("open", errno.EMFILE),
            ("read", None),
        ):
            for at in itertools.count():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                write_set(folder, sorted(NEW), num_shards=3, **options)
                case = f"{index}, {options}, {call} {at} {number}"
                steps = read_all(folder, index)
                expected = [
                    record for path in find_files(folder / "x-*") for record in read_records(path)
                ]
                modes = (FAIL,) if number else (SHORT, INTERRUPT)
                if number is None and at >= len(modes):
                    break
                arm(folder, call, at, modes[0] if number else modes[at], number or 0)
                try:
                    for found in steps:
                        if found != expected:
                            problems.append(f"{case}: wrong records")
                except (OSError, TFRecordError) as error:
                    if str(folder) not in str(error):
                        problems.append(f"{case}: the error names no path: {error!r}")
                    if number is None:
                        problems.append(f"{case}: {error!r}")
                if not LIBRARY.faults_fired() and number:
                    break
                cases += 1


if __name__ == "__main__":
    place = Path(sys.argv[1]) / "d"
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    match sys.argv[2]:
        case "write":
            write_under_faults(place)
        case "kill":
            kill_at_calls(place, rounds)
        case "moments":
            kill_at_moments(place, rounds)
        case "read":
            read_under_faults(place)
    print(json.dumps({"cases": cases, "problems": problems}))
