"""Compressed files read at random, entered at their seek points: each record is the one that was
written, or an error.

An input is 4 bytes and edits. "w": a stream made anew, in the way of the second byte, is read in
all ways; the rest draws how. "d": one that is kept, with its index, is damaged where the edits say:
the stream after it was indexed, the points, the index file.
"""

import contextlib
import functools
import gzip
import io
import os
import random
import zlib
from typing import NamedTuple

import numpy as np
from packed_streams import (
    BITS,
    deflated,
    flushed,
    members,
    parts,
    with_lying_lengths,
    with_lying_sizes,
    written,
)
from tools import (
    SET,
    Edit,
    File,
    edited,
    edits_of,
    framed,
    inflated,
    limited_memory,
    mutated_program,
    outcome,
    random_edit,
)

from torch_tfrecord import (
    IndexMismatchError,
    RecordIndex,
    TFRecordDataset,
    build_index,
    read_records,
)
from torch_tfrecord.compression import gzip_members, seek_points
from torch_tfrecord.compression import inflated as inflated_module
from torch_tfrecord.compression.codecs import InflatedFile, InflatedFiles
from torch_tfrecord.compression.seek_points import SeekPoints
from torch_tfrecord.files import open_file
from torch_tfrecord.loading.record_files import RecordFiles
from torch_tfrecord.records import RecordTable
from torch_tfrecord.records.sidecar import sidecar_path

COMPILED = True
_FILE = File("stream")
_INDEX_PATH = sidecar_path(_FILE.path)
_MOST_BYTES = 1 << 30  # that a check may ask for
STREAM, POINTS, INDEX, LIE = 0, 1, 4, 5  # as in the inputs of the corpus
POINT_BYTES = 32


class Data(NamedTuple):
    """Records, no two of which have the same length: what is taken for another is another length,
    too.
    """

    records: list[bytes]
    content: bytes
    offsets: list[int]


class Stream(NamedTuple):
    """A compressed file.

    Attributes:
        kind: "GZIP" or "ZLIB".
        content: Its bytes.
        data: What is in it.
        lies: Whether a header says another size of its member, or of its records.
    """

    kind: str
    content: bytes
    data: Data
    lies: bool = False


@functools.cache
def _data(name):
    rng = random.Random(name)
    words = [rng.randbytes(rng.randrange(2, 9)) for _ in range(60 if name == "text" else 500)]
    lengths = rng.sample(range(1400), 1400 if name == "many" else 700)
    if name == "long":
        lengths = [*lengths[:300], 90_001, 40_000, 33_000, 1 << 16]
        rng.shuffle(lengths)

    def payload(size):
        if name == "noise":
            return rng.randbytes(size)
        found = b""
        while len(found) < size:
            found += b"".join(rng.choices(words, k=20))
            found += b"" if name == "text" else rng.randbytes(rng.randrange(100))
        return found[:size]

    records = [payload(size) for size in lengths]
    ends = np.cumsum([size + 16 for size in lengths])
    return Data(records, framed(records), [0, *ends[:-1].tolist()])


WAYS = {
    "gzip": ("GZIP", lambda rng, data: deflated(rng, data.content, 31)),
    "zlib": ("ZLIB", lambda rng, data: deflated(rng, data.content, 15)),
    "gzip6": ("GZIP", lambda rng, data: gzip.compress(data.content, 6, mtime=0)),
    "zlib9": ("ZLIB", lambda rng, data: zlib.compress(data.content, 9)),
    "gzip flushed": ("GZIP", lambda rng, data: flushed(rng, data.content, 31)),
    "zlib flushed": ("ZLIB", lambda rng, data: flushed(rng, data.content, 15)),
    "members": ("GZIP", lambda rng, data: members(rng, data.content, 90_000)),
    "small members": ("GZIP", lambda rng, data: members(rng, data.content, 3000)),
    "zlib streams": (
        "ZLIB",
        lambda rng, data: b"".join(
            deflated(rng, part, 15) for part in parts(rng, data.content, 50_000)
        ),
    ),
    "bgzip": ("GZIP", lambda rng, data: members(rng, data.content, 40_000, b"BC")),
    "pgzip": ("GZIP", lambda rng, data: members(rng, data.content, 90_000, b"IG")),
    "ours": ("GZIP", lambda rng, data: written(rng, data.records, ".gz")),
    "our zlib": ("ZLIB", lambda rng, data: written(rng, data.records, ".zlib")),
    "bgzip lies": (
        "GZIP",
        lambda rng, data: with_lying_sizes(rng, members(rng, data.content, 40_000, b"BC")),
    ),
    "pgzip lies": (
        "GZIP",
        lambda rng, data: with_lying_sizes(rng, members(rng, data.content, 90_000, b"IG")),
    ),
    "ours lies": (
        "GZIP",
        lambda rng, data: with_lying_sizes(rng, written(rng, data.records, ".gz")),
    ),
    "our lengths lie": (
        "GZIP",
        lambda rng, data: with_lying_lengths(rng, written(rng, data.records, ".gz")),
    ),
}
_NAMES = [*WAYS]
_DATA = ["words", "noise", "text", "long"]


def _made(number, rng, large=0.1):
    name = _NAMES[number % len(_NAMES)]
    kind, write = WAYS[name]
    data = _data("many" if rng.random() < large else rng.choice(_DATA))
    return Stream(kind, write(rng, data), data, name.endswith((" lies", " lie")))


@contextlib.contextmanager
def _close_points(rng):
    """Many points in little data."""
    chosen = {
        (inflated_module, "_INPUT_BYTES"): rng.choice([4, 14, 14, 30, 70]) << 10,
        (inflated_module, "_OUTPUT_BYTES"): rng.choice([4, 14, 14, 256]) << 10,
        (seek_points, "_BLOCK_SPACING"): rng.choice([1 << 13, 1 << 15, 1 << 16]),
        (seek_points, "_MEMBER_SPACING"): rng.choice([1, 1 << 12, 1 << 14]),
        (seek_points, "_LEAST_BYTES"): rng.choice([1 << 20, 1 << 20, 1 << 20, 300, 9000]),
    }
    before = {place: getattr(*place) for place in chosen}
    try:
        for place, value in chosen.items():
            setattr(*place, value)
        yield
    finally:
        for place, value in before.items():
            setattr(*place, value)


@contextlib.contextmanager
def _no_sizes():
    """Without a look at the sizes that headers of members say."""
    before = gzip_members._read_sizes
    try:
        gzip_members._read_sizes = lambda *_: None
        yield
    finally:
        gzip_members._read_sizes = before


@contextlib.contextmanager
def _engine(is_zlib):
    """Decompress by zlib in place of the fastest."""
    before = inflated_module.fastest
    try:
        if is_zlib:
            inflated_module.fastest = gzip_members.fastest = lambda: zlib
        yield
    finally:
        inflated_module.fastest = gzip_members.fastest = before


class Kept(NamedTuple):
    """A stream with its index."""

    stream: Stream
    index: RecordIndex
    index_bytes: bytes


NUM_KEPT = 2 * len(WAYS)


@functools.cache
def _kept(number):
    rng, found = random.Random(number), []
    while len(found) < 4 and (not found or len(found[-1].index._points) < 6):
        stream = _made(number, rng, 0.5)
        path = _FILE.write(stream.content)
        os.utime(path, ns=(1, 1))
        with _close_points(rng), _no_sizes():
            index = build_index(path)
        found.append(Kept(stream, index, index.to_bytes()))
    return max(found, key=lambda each: len(each.index._points))


# The target.


def seeds():
    ways = [b"w" + bytes([number, 0, 0]) for number in range(len(WAYS))]
    return [*ways, *(b"d" + bytes([number, 0, 0]) for number in range(NUM_KEPT))]


def mutate(rng, data):
    is_whole = rng.random() < 0.03
    if is_whole:
        return b"w" + bytes([rng.randrange(len(WAYS)), rng.randrange(4), 0]) + rng.randbytes(6)
    number = data[1] % NUM_KEPT if data[:1] == b"d" else rng.randrange(NUM_KEPT)
    program = data[4:] if data[:1] == b"d" else b""
    program = mutated_program(rng, program, lambda rng: _new_edit(rng, number))
    return b"d" + bytes([number, rng.randrange(4), rng.randrange(256)]) + program


def _new_edit(rng, number):
    kept = _kept(number)
    area = rng.choice([STREAM] * 5 + [POINTS] * 6 + [INDEX, LIE])
    points = kept.index._points
    if area == STREAM:
        places = [points.byte(each) for each in range(len(points))]
        return random_edit(rng, len(kept.stream.content), STREAM, places)
    if area == INDEX:
        return random_edit(rng, len(kept.index_bytes), INDEX)
    if area == POINTS:  # mostly their table, which is in front of the windows
        table = POINT_BYTES * len(points)
        size = rng.choice([table, table, len(points.to_bytes())])
        return random_edit(rng, size, POINTS, range(0, table, 8))
    # the record, what is added to it
    row = rng.randrange(1 << 16)
    return Edit(area, SET, rng.randrange(256), rng.randrange(1 << 16), row, rng.randrange(1 << 32))


def check(data):
    if len(data) < 4:
        return
    with limited_memory(_MOST_BYTES), _engine(data[2] % 4 == 3):
        if data[:1] == b"w":
            _check_whole(data[1], random.Random(data[3:]))
        else:
            _check_damaged(_kept(data[1] % NUM_KEPT), data[3], edits_of(data[4:]))


def _check_whole(number, rng):
    """All ways to read a stream give what zlib gives, and so what was written."""
    stream = _made(number, rng)
    data = stream.data
    assert inflated(stream.content, BITS[stream.kind]) == (data.content, True)
    path = _FILE.write(stream.content)
    assert list(read_records(path)) == data.records
    assert list(read_records(io.BytesIO(stream.content))) == data.records
    lengths = [len(record) for record in data.records]
    with _close_points(rng):
        index = build_index(path)
        quick, error = outcome(build_index, path, verify_crc=False)
    assert (index.offsets.tolist(), index.lengths.tolist()) == (data.offsets, lengths)
    if not stream.lies:
        assert error is None and quick == index
    order = rng.sample(range(len(data.records)), 40)
    for found in filter(None, (index, quick)):
        _put(_INDEX_PATH, found.to_bytes())
        ds = TFRecordDataset(path, index="require")
        points = found._points.to_bytes()
        assert ds._record_files.table.facts(0)._seek_points().to_bytes() == points
        is_true = found == index
        for position in order:
            if is_true:
                assert ds[position] == data.records[position]
            elif position < len(ds):
                record, error = outcome(ds.raw, position)
                assert error is not None or record in data.records
        if is_true:
            assert list(ds.__getitems__(order)) == [data.records[each] for each in order]
            file = InflatedFile(
                open_file(path), stream.kind, len(data.content), found._points, InflatedFiles(), 0
            )
            for _ in range(5):
                at, size = rng.randrange(len(data.content) + 9), rng.choice([1, 99, 9999, 1 << 20])
                assert file.read(size, at) == data.content[at : at + size]


def _check_place(ds, position, data):
    """Where an index lies, a record is the one that is there, or none is."""
    record, error = outcome(ds.raw, position)
    if error is None:
        _, offset = ds.locate(position)
        assert offset in data.offsets and record == data.records[data.offsets.index(offset)]


def _check_damaged(kept, salt, edits):
    stream, index, data = kept.stream, kept.index, kept.stream.data
    by_area = {
        area: [edit for edit in edits if edit.area == area] for area in (STREAM, POINTS, INDEX, LIE)
    }
    content, places = stream.content, []
    for edit in by_area[STREAM]:
        content, (begin, _) = edited(content, edit)
        places.append(begin)
    points, error = outcome(
        _damaged_points, index._points, by_area[POINTS], len(stream.content), places
    )
    if error is not None:
        assert isinstance(error, IndexMismatchError)
        return
    path = _FILE.write(content)
    os.utime(path, ns=(1, 1))
    rng = random.Random(salt)
    positions = _positions(rng, index._points, data, places)
    if by_area[INDEX] or by_area[LIE]:
        _put(_INDEX_PATH, _damaged_index(index, points, by_area))
        ds, _ = outcome(TFRecordDataset, path, index="require", errors=IndexMismatchError)
        if ds is None:
            return
        positions = [min(each, len(ds) - 1) for each in positions]
    else:
        files = RecordFiles(RecordTable([path], [index]))
        facts = stream.kind, len(data.content), points, InflatedFiles()
        file, _ = outcome(InflatedFile, open_file(path), *facts, 0, errors=IndexMismatchError)
        if file is None:
            return
        files._sources.find(0, lambda _: file)
        ds = TFRecordDataset._from_source(files)
        for position in positions[:2]:
            at = max(data.offsets[position] - rng.randrange(99), 0)
            found, error = outcome(file.read, 5000, at)
            assert error is not None or len(found) <= 5000
    is_lie = bool(by_area[LIE])
    for position in positions:
        if is_lie:
            _check_place(ds, position, data)
        else:
            record, error = outcome(ds.__getitem__, position)
            assert error is not None or record == data.records[position]
    if not is_lie:
        records, error = outcome(ds.__getitems__, positions)
        assert error is not None or list(records) == [data.records[each] for each in positions]


def _positions(rng, points, data, places):
    """Records near the damage, some behind the borders of their stretches, and any."""
    begins = [points.byte(number) for number in range(len(points))]
    found = [rng.randrange(len(data.records))]
    for place in [*places, rng.choice(begins)][:3]:
        number = max(int(np.searchsorted(begins, place, "right")) - 1, 0)
        first, last = (
            int(np.searchsorted(data.offsets, offset, "right")) - 1
            for offset in (points.offsets[number], [*points.offsets, len(data.content)][number + 1])
        )
        found += [first, rng.randint(first, last), last]
    return found


def _damaged_points(points, edits, file_size, places):
    content = points.to_bytes()
    for edit in edits:
        content, (begin, _) = edited(content, edit)
        places.append(points.byte(min(begin // POINT_BYTES, len(points) - 1)))
    return SeekPoints.from_bytes(content, len(points), file_size)


def _damaged_index(index, points, by_area):
    """The bytes of an index that lies with every checksum right, or of a damaged one."""
    offsets, lengths = index.offsets.copy(), index.lengths.copy()
    facts = {"points": points}
    for edit in by_area[LIE]:
        number, delta = edit.at % len(lengths), 1 << edit.size % 62
        delta = -1 if edit.value % 5 == 0 else delta
        if edit.value < 128:
            lengths[number] += delta
            offsets[number + 1 :] += delta
        elif edit.value < 160:
            offsets[number] += delta
        elif edit.value < 190:
            offsets, lengths = offsets[: number + 1], lengths[: number + 1]
        elif edit.value < 220:
            facts["file_size"] = index.file_size + delta
        else:
            facts["points"] = _LyingPoints(points, edit)
    content = index._with_facts(offsets=offsets, lengths=lengths, **facts).to_bytes()
    for edit in by_area[INDEX]:
        content = edited(content, edit)[0]
    return content


class _LyingPoints:
    """Points of which there are said to be more, or less."""

    def __init__(self, points, edit):
        self._points, self._count = points, edit.other % (2 * len(points))

    def __len__(self):
        return self._count

    def to_bytes(self):
        return self._points.to_bytes()


def _put(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
