"""Damaged files that are read past their damage: what comes out was there before, and all that a
single damage has not touched in a plain file; the report says where it is.

An input is 4 bytes (the file, the compression that is said, two that are free) and edits.
"""

import contextlib
import functools
import gc
import io
import os
import random
import tempfile
import zlib
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from packed_streams import BITS, member_places, members, written
from tools import (
    COPY,
    FOLDER,
    MOVE,
    TWICE,
    File,
    collected,
    edited,
    edits_of,
    framed,
    good_records,
    inflated,
    limited_memory,
    mutated_program,
    outcome,
    random_edit,
    record_at,
)

from torch_tfrecord import (
    CompressionError,
    CorruptRecordError,
    RecordIndex,
    TFRecordDataset,
    TFRecordError,
    read_records,
    salvage,
)
from torch_tfrecord.files import open_file
from torch_tfrecord.records.sidecar import sidecar_path

COMPILED = True
_FILE = File("damaged")
_OUT = os.path.join(FOLDER, "out")
_TEMPORARY = os.path.join(FOLDER, "temporary")
os.mkdir(_OUT)
os.mkdir(_TEMPORARY)
_GOOD = os.path.join(_OUT, "good.tfrecord")
_MOST_BYTES = 1 << 30
_KINDS = {"header CRC", "payload CRC", "cut", "trailing bytes"}
_GAPS = {"cut", "trailing bytes", "gzip CRC", "gzip data", "zlib CRC", "zlib data"}


class Data(NamedTuple):
    """Records: no payload is another one, or a part of it."""

    records: list[bytes]
    content: bytes
    offsets: list[int]


class Whole(NamedTuple):
    """A file that is not damaged yet.

    Attributes:
        kind: "", "GZIP" or "ZLIB".
        content: Its bytes.
        data: What is in it.
        places: Where something in it begins.
        parts: Pieces that are found without the others, and the records in each.
    """

    kind: str
    content: bytes
    data: Data
    places: list[int]
    parts: list[tuple[int, int, list[bytes]]]


@functools.cache
def _data(name):
    rng = random.Random(name)
    words = [rng.randbytes(rng.randrange(2, 9)) for _ in range(300)]
    sizes = {
        "small": [rng.randrange(8, 300) for _ in range(150)],
        "middle": [rng.choice([rng.randrange(8, 99), rng.randrange(6000)]) for _ in range(40)],
        "large": [30, 90_000, 5000, 600_000, 40, 33_000, 700],
        "alike": [60] * 300,
    }[name]
    records = []
    for number, size in enumerate(sizes):
        found = b"%05d " % number
        while len(found) < size:
            found += b"".join(rng.choices(words, k=20)) + rng.randbytes(rng.randrange(60))
        records.append(found[: max(size, 6)])
    if name == "alike":  # their numbers tell them apart
        records = [b"\n\x3c label %05d of many alike, %05d" % (n, n * n) for n in range(300)]
    else:
        records.insert(len(records) // 2, b"")
    ends = np.cumsum([len(record) + 16 for record in records])
    return Data(records, framed(records), [0, *ends[:-1].tolist()])


def _streams(rng, data, bits, count):
    """Streams or members one behind the other, which do not begin where records do."""
    level, memory = rng.randrange(10), rng.choice([1, 3, 6, 9])
    size, found = len(data) // count + 1, b""
    for at in range(0, len(data), size):
        packer = zlib.compressobj(level, zlib.DEFLATED, bits, memory)
        found += packer.compress(data[at : at + size]) + packer.flush()
    return found


def _by_records(rng, data):
    """A member for some records each."""
    borders = [*sorted({0, *rng.choices(data.offsets, k=9)}), len(data.content)]
    parts = pairwise(borders)
    return b"".join(_streams(rng, data.content[begin:end], 31, 1) for begin, end in parts)


WAYS = {
    "plain": ("", lambda rng, data: data.content),
    "gzip": ("GZIP", lambda rng, data: _streams(rng, data.content, 31, 1)),
    "gzip again": ("GZIP", lambda rng, data: _streams(rng, data.content, 31, 1)),
    "members": ("GZIP", lambda rng, data: _streams(rng, data.content, 31, rng.randrange(2, 30))),
    "members of records": ("GZIP", _by_records),
    "ours": ("GZIP", lambda rng, data: written(rng, data.records, ".gz")),
    "bgzip": ("GZIP", lambda rng, data: members(rng, data.content, 20_000, b"BC")),
    "pgzip": ("GZIP", lambda rng, data: members(rng, data.content, 30_000, b"IG")),
    "zlib": ("ZLIB", lambda rng, data: _streams(rng, data.content, 15, 1)),
    "zlib streams": ("ZLIB", lambda rng, data: _streams(rng, data.content, 15, 5)),
    "our zlib": ("ZLIB", lambda rng, data: written(rng, data.records, ".zlib")),
}
_FILES = [(way, name) for name in ("small", "middle", "alike") for way in WAYS]
_FILES += [(way, "large") for way in ("plain", "gzip", "ours", "our zlib")]


@functools.cache
def _whole(number):
    way, name = _FILES[number]
    kind, write = WAYS[way]
    data, rng = _data(name), random.Random(number)
    content = write(rng, data)
    if kind == "GZIP":
        places = member_places(content)
        sizes = [
            len(zlib.decompress(content[begin:end], 31))
            for begin, end in pairwise([*places, len(content)])
        ]
        borders = [0, *np.cumsum(sizes).tolist()]
    else:
        places = borders = data.offsets if not kind else [0]
        borders = [*borders, len(data.content)]
    ends = [*data.offsets[1:], len(data.content)]
    records = [] if kind == "ZLIB" else [*zip(data.offsets, ends, data.records, strict=True)]
    parts = [
        (begin, end, [each for at, behind, each in records if first <= at and behind <= last])
        for (begin, end), (first, last) in zip(
            pairwise([*places, len(content)]), pairwise(borders), strict=True
        )
    ]
    places = sorted({0, *places, len(content)})
    return Whole(kind, content, data, places, parts)


def seeds():
    return [b"s" + bytes([number, 0, 0]) for number in range(len(_FILES))]


def mutate(rng, data):
    number = data[1] % len(_FILES) if len(data) > 3 else 0
    whole = _whole(number)

    def new_edit(rng):
        return random_edit(rng, len(whole.content), 0, whole.places)

    program = mutated_program(rng, data[4:], new_edit, 3)
    return b"s" + bytes([number, rng.randrange(8), 0]) + program


def check(data):
    if len(data) < 4:
        return
    whole, edits = _whole(data[1] % len(_FILES)), edits_of(data[4:])
    content = whole.content
    for edit in edits:
        content, place = edited(content, edit)
    has_copies = any(edit.how in (COPY, TWICE) for edit in edits)
    allowed = _allowed(whole, content)
    declared = (whole.kind, whole.kind, "auto", "auto", "GZIP", "ZLIB")[data[2] % 6]
    path = _FILE.write(content)
    os.utime(path, ns=(1, 1))
    with limited_memory(_MOST_BYTES), _temporary_files():
        first, is_sound = _read_strictly(whole.kind, content, path, declared)
        allowed |= Counter(first) if is_sound else Counter()
        found, error = collected(read_records(path, compression_type=declared, on_error="skip"))
        _is_refusal(error)
        _check_records(found, allowed)
        if not whole.kind and not has_copies and not any(edit.how == MOVE for edit in edits):
            numbers = [whole.data.records.index(record) for record in found]
            assert numbers == sorted(numbers), "in another order"
        if error is None:
            assert found[: len(first)] == first, "less than before the damage"
        report = _salvage(path, content, declared, found, error)
        if error is None and declared == whole.kind:
            if report is not None and not whole.kind:
                _check_cover(content, report, found)
            # Copied pieces of a compressed file decompress, too, and lead past what is whole.
            if len(edits) == 1 and (not whole.kind or edits[0].how not in (COPY, TWICE, MOVE)):
                _check_untouched(whole, place, found)
        _read_dataset(path, declared, found)
    with open(path, "rb") as file:
        assert file.read() == content, "the file was changed"
    assert os.stat(path).st_mtime_ns == 1
    assert not os.path.exists(sidecar_path(path))


def _allowed(whole, content):
    """How often each record may come: damage may make a compressed stream repeat itself."""
    records = whole.data.records
    if whole.kind:
        return Counter(dict.fromkeys(records, 1000))
    return Counter({record: content.count(framed([record])) for record in records})


@contextlib.contextmanager
def _temporary_files():
    """Whoever makes temporary files makes them in a folder where none may stay."""
    before, tempfile.tempdir = tempfile.tempdir, _TEMPORARY
    try:
        yield
    finally:
        tempfile.tempdir = before
    for generation in (1, 2):  # a dataset's errors lead to it, and its log goes when it does
        if os.listdir(_TEMPORARY):
            gc.collect(generation)
    assert not os.listdir(_TEMPORARY), "a temporary file stayed"


def _is_refusal(error):
    """The only error: the first bytes are of another kind than was said."""
    if error is not None:
        assert isinstance(error, CompressionError) and "compression_type=" in str(error)


def _check_records(found, allowed):
    counts = Counter(found)
    invented = counts - Counter(dict.fromkeys(allowed, len(found)))
    assert not invented, f"invented {len(invented)}"
    twice = counts - allowed
    assert not twice, f"{len(twice)} came again"


def _read_strictly(kind, content, path, declared):
    """All in front of the damage, then an error; or what there is of an undamaged file."""
    found, error = collected(read_records(path, compression_type=declared))
    if not found and error is not None and declared != kind:
        return [], False
    if content:
        plain, is_sound = inflated(content, BITS[kind]) if kind else (content, True)
        payloads, is_whole = good_records(plain)
        assert found == payloads, "not all in front of the damage"
        assert (error is None) == (is_sound and is_whole)
    piped, _ = collected(read_records(io.BytesIO(content), compression_type=declared))
    assert piped == found
    return found, error is None


def _salvage(path, content, declared, found, refusal):
    report, error = outcome(salvage, path, _GOOD, compression_type=declared)
    try:
        if error is not None:
            is_empty = isinstance(error, CorruptRecordError) and "no good record" in str(error)
            assert (is_empty and not found) or (refusal is not None and _is_refusal(error) is None)
            assert not os.listdir(_OUT)
            return None
        assert refusal is None
        assert list(read_records(_GOOD, compression_type="")) == found
        index = RecordIndex.load(sidecar_path(_GOOD))
        index.check_fresh(open_file(_GOOD))
        assert index.lengths.tolist() == [*map(len, found)]
        names = {os.path.basename(_GOOD), os.path.basename(os.path.dirname(sidecar_path(_GOOD)))}
        assert set(os.listdir(_OUT)) == names
    finally:
        for place in (_GOOD, sidecar_path(_GOOD)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(os.path.dirname(sidecar_path(_GOOD)))
    assert report.num_records == len(found) and 0 <= report.num_behind <= len(found)
    assert bool(report.error) == bool(report.lost or report.gaps)
    assert len(report.kinds) == len(report.lost) and set(report.kinds) <= _KINDS
    at = 0
    for begin, end in report.lost:
        assert at <= begin < end, "lost ranges that do not ascend"
        at = end
    at = 0
    for begin, end, kind in report.gaps:
        assert at <= begin <= end <= len(content) and kind in _GAPS, "gaps that do not ascend"
        at = begin
    return report


def _check_cover(content, report, found):
    """The good records and what is lost are all of a plain file."""
    at, records = 0, []
    lost = [*report.lost, (len(content), len(content))]
    for begin, end in lost:
        while at < begin:
            record = record_at(content, at)
            assert record is not None, "neither a record nor lost"
            records.append(record)
            at += len(record) + 16
        assert at == begin, "a record and lost"
        at = end
    assert records == found
    if report.lost:
        behind = sum(begin > report.lost[0][0] for begin in _begins(report.lost, content))
        assert report.num_behind == behind


def _begins(lost, content):
    at, found, lost = 0, [], dict(lost)
    while at < len(content):
        if at in lost:
            at = lost[at]
        else:
            found.append(at)
            at += len(record_at(content, at)) + 16
    return found


def _check_untouched(whole, place, found):
    """One damage costs the records of the pieces that it touches, and no other."""
    first, last = place
    for begin, end, records in whole.parts:
        if end <= first or begin >= last:
            assert set(records) <= set(found), "a record that nothing touched is lost"


def _read_dataset(path, declared, wanted):
    """A dataset has the records of the stream."""
    made = outcome(
        TFRecordDataset, path, compression_type=declared, on_error="skip", index="memory"
    )
    ds, error = made
    if error is not None:
        _is_refusal(error)
        return
    found = [outcome(ds.__getitem__, position)[0] for position in range(len(ds))]
    found = [record for record in found if record is not None]
    assert found == wanted, "a dataset of other records"
    together, error = outcome(ds.__getitems__, [*range(len(ds))])
    if error is None:
        assert [*together] == found
    else:
        assert type(error) is TFRecordError and "left out" in str(error) and not found
    del ds, made
