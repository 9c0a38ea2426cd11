"""Gzip members whose headers have their sizes: what we write as other programs read it, and headers
that lie.

`TENSORFLOW_PYTHON` and `BEAM_PYTHON` name Pythons with tensorflow and with apache-beam[tfrecord],
which then read it, too.
"""

import gzip
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from crc32c import crc32c
from helpers import collect, framed, gzip_member, run_python
from torch.utils.data import DataLoader

from torch_tfrecord import (
    RecordIndex,
    ShardedTFRecordWriter,
    TFRecordDataset,
    TFRecordError,
    TFRecordIterableDataset,
    TFRecordWriter,
    build_index,
    read_records,
)
from torch_tfrecord.records import IndexKeeper

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded", "ignore:no file has a record"
)

SUPPORT = Path(__file__).parents[1] / "support"


def texts(count):
    """Records that compress to half, of lengths that do not."""
    rng = random.Random(0)
    words = [rng.randbytes(rng.randrange(2, 9)) for _ in range(500)]
    return [
        b"%d " % n + b"".join(rng.choices(words, k=rng.randrange(20, 80))) for n in range(count)
    ]


TEXTS = texts(1500)
SAME = [b"%06d" % number + bytes(94) for number in range(1500)]
LONG = [b"first", random.Random(1).randbytes(5000), b"a" * 300_000, b"", b"last"]

# Arguments of the writer; `flush` says behind how many records to flush.
WAYS = {
    "default.gz": (TEXTS * 3, {}),
    "default.zlib": (TEXTS * 3, {}),
    "small.gz": (TEXTS, {"member_bytes": 20_000}),
    "small.zlib": (TEXTS, {"member_bytes": 20_000}),
    "lengths.gz": (SAME, {"member_bytes": 10_000}),
    "each.gz": (SAME[:200], {"member_bytes": 1}),
    "each.zlib": (SAME[:200], {"member_bytes": 1}),
    "one.gz": (TEXTS, {"member_bytes": None}),
    "one.zlib": (TEXTS, {"member_bytes": None}),
    "empty.gz": ([], {}),
    "empty.zlib": ([], {}),
    "long.gz": (LONG, {"member_bytes": 1000}),
    "long.zlib": (LONG, {"member_bytes": 1000}),
    "flushed.gz": (TEXTS, {"member_bytes": 50_000, "flush": {1, 2, 100, 700, 1500}}),
    "flushed.zlib": (TEXTS, {"member_bytes": 50_000, "flush": {1, 2, 100, 700, 1500}}),
    "nothing.gz": ([b""] * 3000, {"member_bytes": 1000}),
    "nothing.zlib": ([b""] * 3000, {"member_bytes": 1000}),
    **{
        f"level{level}.{kind}": (TEXTS, {"member_bytes": 50_000, "compression_level": level})
        for level in (0, 1, 9)
        for kind in ("gz", "zlib")
    },
}
GZIP_WAYS = [name for name in WAYS if name.endswith(".gz")]


def write(path, records, flush=(), **options):
    with TFRecordWriter(path, **options) as writer:
        for number, record in enumerate(records, 1):
            writer.write(record)
            if number in flush:
                writer.flush()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    for name, (records, options) in WAYS.items():
        write(folder / name, records, **options)
    return folder


@pytest.fixture(scope="module")
def streams():
    """What each file holds."""
    once = {id(records): framed(*records) for records, _ in WAYS.values() if len(records) < 4500}
    many = framed(*TEXTS) * 3
    return {name: once.get(id(records), many) for name, (records, _) in WAYS.items()}


class Member(NamedTuple):
    packed: bytes
    fields: dict[bytes, bytes]
    data: bytes


def members(content):
    """By zlib, which checks the trailers, and by RFC 1952."""
    found = []
    while content:
        inflater = zlib.decompressobj(31)
        data, fields = inflater.decompress(content), {}
        assert inflater.eof and content[3] in (0, 4)
        if content[3]:
            at, end = 12, 12 + int.from_bytes(content[10:12], "little")
            while at < end:
                name, size = struct.unpack("<2sH", content[at : at + 4])
                fields[name] = content[at + 4 : at + 4 + size]
                at += 4 + size
            assert at == end
        size = len(content) - len(inflater.unused_data)
        found.append(Member(content[:size], fields, data))
        content = inflater.unused_data
    return found


def lengths_of(member):
    """Those in its header: low bytes first."""
    planes = zlib.decompress(member.fields[b"TR"][8:])
    count = len(planes) // 4
    return [sum(planes[n + count * p] << 8 * p for p in range(4)) for n in range(count)]


# What others read.


@pytest.mark.parametrize("name", WAYS)
def test_python_and_we_read_it(name, written, streams):
    path, (records, _) = written / name, WAYS[name]
    inflate = gzip.decompress if name.endswith(".gz") else zlib.decompress
    assert inflate(path.read_bytes()) == streams[name]
    assert list(read_records(path)) == records
    assert list(TFRecordIterableDataset(path)) == records
    ds = TFRecordDataset(path, index="memory")
    order = random.Random(2).sample(range(len(records)), min(len(records), 100))
    assert [ds[number] for number in order] == [records[number] for number in order]
    assert list(ds[::-1]) == records[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["gzip -dc", "zcat", "pigz -dc", "pigz -p 4 -dc"])
def test_programs_read_it(command, written, streams):
    program = command.split()[0]
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}")
    for name in GZIP_WAYS:
        done = subprocess.run([*command.split(), written / name], capture_output=True, check=True)
        assert done.stdout == streams[name], name


@pytest.mark.slow
@pytest.mark.parametrize("name", GZIP_WAYS)
def test_rapidgzip_reads_it(name, written, streams):
    rapidgzip = pytest.importorskip("rapidgzip")
    with rapidgzip.open(str(written / name), parallelization=2) as file:
        assert file.read() == streams[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", GZIP_WAYS)
def test_pgzip_reads_it(name, written, streams, request):
    pgzip = pytest.importorskip("pgzip")
    found = members((written / name).read_bytes())
    why = None
    if any(member.fields for member in found):
        why = "pgzip 0.4 cannot read an extra field that is not its own"
    if why is not None:
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    with pgzip.open(str(written / name), "rb", thread=2) as file:
        assert file.read() == streams[name]


TENSORFLOW = """
import hashlib, json, sys, tensorflow as tf
def digest(records):
    return hashlib.sha256(b"".join(hashlib.sha256(record).digest() for record in records)).hexdigest()
found = {}
for name in sys.argv[2:]:
    path, kind = f"{sys.argv[1]}/{name}", {"gz": "GZIP", "zlib": "ZLIB"}[name.split(".")[1]]
    options = tf.io.TFRecordOptions(kind)
    found[name] = [
        digest(tf.data.TFRecordDataset(path, kind).as_numpy_iterator()),
        digest(tf.data.TFRecordDataset(path, kind, buffer_size=1000).as_numpy_iterator()),
        digest(tf.compat.v1.io.tf_record_iterator(path, options)),
    ]
print(json.dumps(found))
"""
BEAM = """
import hashlib, json, sys
import apache_beam as beam
from apache_beam.io.filesystem import CompressedFile, CompressionTypes
from apache_beam.io.tfrecordio import _TFRecordUtil, ReadFromTFRecord
def digest(records):
    return hashlib.sha256(b"".join(hashlib.sha256(record).digest() for record in records)).hexdigest()
def read(path, kind, size):
    with CompressedFile(open(path, "rb"), kind, size) as file:
        while (record := _TFRecordUtil.read_record(file)) is not None:
            yield record
found = {}
for name in sys.argv[2:]:
    path, types = f"{sys.argv[1]}/{name}", CompressionTypes
    kind = {"gz": types.GZIP, "zlib": types.DEFLATE}[name.split(".")[1]]
    found[name] = [digest(read(path, kind, 1 << 24)), digest(read(path, kind, 1000))]
    with beam.Pipeline() as pipeline:
        records = pipeline | ReadFromTFRecord(path, compression_type=kind)
        lines = records | beam.Map(lambda record: record.hex())
        lines | beam.io.WriteToText(path, shard_name_template="", file_name_suffix=".beam")
print(json.dumps(found))
"""


def digest(records):
    one_each = b"".join(hashlib.sha256(record).digest() for record in records)
    return hashlib.sha256(one_each).hexdigest()


def run_other(variable, program, folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [os.environ[variable], "-c", program, str(folder), *WAYS]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(
    "TENSORFLOW_PYTHON" not in os.environ,
    reason="TENSORFLOW_PYTHON names no Python with tensorflow",
)
def test_tensorflow_reads_it(written):
    found = run_other("TENSORFLOW_PYTHON", TENSORFLOW, written)
    assert found == {name: [digest(records)] * 3 for name, (records, _) in WAYS.items()}


@pytest.mark.slow
@pytest.mark.skipif(
    "BEAM_PYTHON" not in os.environ, reason="BEAM_PYTHON names no Python with apache-beam[tfrecord]"
)
def test_beam_reads_it(written):
    found = run_other("BEAM_PYTHON", BEAM, written)
    assert found == {name: [digest(records)] * 2 for name, (records, _) in WAYS.items()}
    for name, (records, _) in WAYS.items():
        lines = (written / f"{name}.beam").read_text().splitlines()
        assert sorted(lines) == sorted(record.hex() for record in records)


# What headers say.


@pytest.mark.parametrize("name", GZIP_WAYS)
def test_headers(name, written):
    records, options = WAYS[name]
    content = (written / name).read_bytes()
    found = members(content)
    # No time, no level, Unix; TensorFlow's header where there is one member.
    assert {one.packed[:3] + one.packed[4:10] for one in found} == {
        bytes.fromhex("1f8b08 00000000 00 03")
    }
    most = options.get("member_bytes", 1 << 20)
    position = 0
    for number, one in enumerate(found):
        held = split(one.data)
        assert held == records[position : position + len(held)]
        position += len(held)
        if number + 1 < len(found):  # as many records as are needed
            assert len(one.data) >= most > len(one.data) - len(held[-1]) - 16
        if "flush" not in options:
            assert list(one.fields) == ([b"TR"] if len(found) > 1 else [])
        field = one.fields.get(b"TR", b"")
        if field:
            crc, size = struct.unpack_from("<II", field)
            assert (crc, size) == (crc32c(field[4:]), len(one.packed))
        if field[8:]:
            assert lengths_of(one) == [len(record) for record in held]
            assert len(field) - 8 <= max(64, 0.0075 * len(one.packed))
    assert position == len(records)
    have_lengths = [len(one.fields.get(b"TR", b"")) > 8 for one in found]
    assert all(have_lengths) if name in ("lengths.gz", "each.gz", "nothing.gz") else True
    assert not any(have_lengths) if name in ("small.gz", "one.gz", "empty.gz") else True
    if "flush" in options:  # what was handed over cannot say its size any more
        flushed = [not one.fields for one in found]
        assert 1 < sum(flushed) < len(flushed)


def split(data):
    found, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        found.append(data[at + 12 : at + 12 + length])
        at += 16 + length
    return found


@pytest.mark.parametrize("name", GZIP_WAYS)
def test_lengths_from_headers_are_those_of_a_scan(name, written):
    path = written / name
    scanned = build_index(path)
    assert scanned.lengths.tolist() == [len(record) for record in WAYS[name][0]]
    trusted = build_index(path, verify_crc=False)
    assert trusted == scanned
    if scanned._points is not None:
        assert trusted._points.to_bytes() == scanned._points.to_bytes()


# Headers that lie.


def tried(call, *arguments, **options):
    """What a call returns; None for an error of ours."""
    try:
        return call(*arguments, **options)
    except TFRecordError:
        return None


def check(path, records):
    """All records or an error: no others, and none lost."""
    got, error = collect(read_records(path), TFRecordError)
    assert got == records[: len(got)]
    assert error is not None or len(got) == len(records)
    for verify in (True, False):
        index = tried(build_index, path, verify_crc=verify)
        assert index is None or index.lengths.tolist() == [len(record) for record in records]
    ds = tried(TFRecordDataset, path, index="memory")
    if ds is not None:
        assert len(ds) == len(records)
        for number in random.Random(0).sample(range(len(records)), len(records)):
            assert tried(ds.__getitem__, number) in (None, records[number])


FEW = [b"%04d" % number + random.Random(number).randbytes(60) for number in range(60)]


def few(tmp_path, **options):
    """Members of 10 records, with sizes and lengths, and where each begins."""
    path = tmp_path / "x.gz"
    write(path, FEW, member_bytes=800, **options)
    found = members(path.read_bytes())
    assert len(found) == 6 and all(len(one.fields[b"TR"]) > 8 for one in found)
    begins = [sum(len(one.packed) for one in found[:number]) for number in range(len(found))]
    return path, found, begins


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("mask", [1, 2, 4, 8, 16, 32, 64, 128, 255])
@pytest.mark.parametrize("number", [0, 2, 5])
def test_each_changed_byte_of_the_extra_field(number, mask, tmp_path):
    path, found, begins = few(tmp_path)
    content = path.read_bytes()
    extra = 2 + int.from_bytes(found[number].packed[10:12], "little")
    for at in range(extra):
        changed = bytearray(content)
        changed[begins[number] + 10 + at] ^= mask
        path.write_bytes(changed)
        check(path, FEW)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_wrong_checksum_or_length_of_a_member(number, tmp_path):
    """What it holds is decompressed by a thread, and then again in order, to say what is wrong."""
    path, found, begins = few(tmp_path)
    content = path.read_bytes()
    end = begins[number] + len(found[number].packed)
    for at in range(end - 8, end):
        changed = bytearray(content)
        changed[at] ^= 4
        path.write_bytes(changed)
        got, error = collect(read_records(path), TFRecordError)
        assert got == FEW[: 10 * number + 10]
        what = "data" if at < end - 4 else "length"
        assert (
            f"gzip: the stream is damaged: Error -3 while decompressing data: incorrect {what} check"
            in str(error)
        )
        index = tried(build_index, path, verify_crc=False)
        assert index is None or index.lengths.tolist() == [64] * 60
        assert tried(build_index, path) is None


def claims(sizes, number):
    """Sizes that a member may claim, by what they reach."""
    own, rest = sizes[number], sum(sizes[number:])
    return {
        "0": 0,
        "1": 1,
        "half a header": 11,
        "a header": 12,
        "a byte more": 13,
        "too small": own - 1,
        "too large": own + 1,
        "the next one": own + sum(sizes[number + 1 : number + 2]),
        "into the next one": own + 30,
        "all but the last": sum(sizes[number:-1]),
        "the end": rest,
        "behind the end": rest + 1,
        "far behind it": (1 << 24) - 1,
        "just kept": 1 << 24,
        "much": (1 << 24) + 1,
        "most": (1 << 32) - 1,
    }


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("claim", claims([0], 0))
@pytest.mark.parametrize("number", [0, 2, 5])
@pytest.mark.parametrize("name", ["IG", "TR", "TR with lengths"])
def test_a_size_that_lies(number, claim, name, tmp_path):
    path = tmp_path / "x.gz"
    lengths = field_of([64] * 10) if name == "TR with lengths" else b""
    sizes = [
        len(with_size(framed(*FEW[at : at + 10]), name[:2], lengths)) for at in range(0, 60, 10)
    ]
    lies = [*sizes]
    lies[number] = claims(sizes, number)[claim]
    for claimed in (sizes, lies):
        path.write_bytes(
            b"".join(
                with_size(framed(*FEW[10 * at : 10 * at + 10]), name[:2], lengths, claimed[at])
                for at in range(6)
            )
        )
        if claimed == sizes:
            assert list(read_records(path)) == FEW
    # A checksum that fits a wrong size and lengths was made on purpose.
    if name != "TR with lengths":
        check(path, FEW)
    else:
        got, error = collect(read_records(path), TFRecordError)
        assert got == FEW[: len(got)]
        assert error is not None or got == FEW


def blocked(records, sizes):
    """As bgzip writes it, with these sizes."""
    stream = framed(*records)
    parts = [stream[at : at + 700] for at in range(0, len(stream), 700)]
    return b"".join(
        gzip_member(part, extra=b"BC\x02\x00" + struct.pack("<H", (size - 1) & 0xFFFF))
        for part, size in zip(parts, sizes, strict=True)
    )


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("claim", claims([0], 0))
@pytest.mark.parametrize("number", [0, 3, 6])
def test_a_size_of_bgzip_that_lies(number, claim, tmp_path):
    path = tmp_path / "x.gz"
    sizes = [len(one.packed) for one in members(blocked(FEW, [0] * 7))]
    path.write_bytes(blocked(FEW, sizes))
    assert list(read_records(path)) == FEW
    lies = [*sizes]
    lies[number] = claims(sizes, number)[claim]
    path.write_bytes(blocked(FEW, lies))
    check(path, FEW)


def with_size(data, name, lengths=b"", size=None):
    """A member with a size, its own or another, as pgzip or we say it, and lengths of records."""

    def extra(size):
        said = struct.pack("<I", size) + lengths
        field = said if name == "IG" else crc32c(said).to_bytes(4, "little") + said
        return name.encode() + struct.pack("<H", len(field)) + field

    own = len(gzip_member(data, extra=extra(0)))
    return gzip_member(data, extra=extra(own if size is None else size))


def field_of(lengths):
    """The lengths of records as a header has them."""
    return zlib.compress(np.array(lengths, "<u4").view(np.uint8).reshape(-1, 4).T.tobytes())


LYING = {
    "none": [],
    "one less": [64] * 9,
    "one more": [64] * 11,
    "one without bytes more": [64] * 10 + [0],
    "another": [63] + [64] * 9,
    "two others": [63, 65] + [64] * 8,
    "large": [1 << 31, (1 << 32) - 1] + [64] * 8,
    "of 2^62 together": [(1 << 32) - 1] * (1 << 20),
}


@pytest.mark.parametrize("lie", LYING)
@pytest.mark.parametrize("number", [0, 2, 5])
def test_lengths_that_lie(number, lie, tmp_path):
    """No honest writer makes them: whoever reads a record finds out."""
    path = tmp_path / "x.gz"
    lengths = [[64] * 10 for _ in range(6)]
    lengths[number] = LYING[lie]
    parts = [framed(*FEW[10 * part : 10 * part + 10]) for part in range(6)]
    path.write_bytes(
        b"".join(
            with_size(part, "TR", field_of(of)) for part, of in zip(parts, lengths, strict=True)
        )
    )
    assert list(read_records(path)) == FEW
    ds = TFRecordDataset(path, index="memory")
    assert len(ds) == len(FEW)
    for position in range(len(ds)):
        assert tried(ds.__getitem__, position) in (None, FEW[position])


@pytest.mark.parametrize("field", [b"", b"abc", bytes(4), bytes(8), bytes(70_000 % 997)])
def test_fields_that_are_none(field, tmp_path):
    path = tmp_path / "x.gz"
    extra = b"TR" + struct.pack("<H", len(field)) + field
    path.write_bytes(
        gzip_member(framed(*FEW[:10]), extra=extra) + with_size(framed(*FEW[10:]), "TR")
    )
    check(path, FEW)


@pytest.mark.parametrize(
    "lengths", [b"xyz", zlib.compress(b"12345"), field_of([64] * 10)[:-1], field_of([]) * 9]
)
def test_lengths_that_are_none(lengths, tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(
        with_size(framed(*FEW[:10]), "TR", lengths) + with_size(framed(*FEW[10:]), "TR")
    )
    check(path, FEW)


BOMB = """
import resource, struct, sys, zlib
sys.path.insert(0, sys.argv[1])
from crc32c import crc32c
from helpers import header
from torch_tfrecord import per_process
per_process.num_processors = lambda: 8
from torch_tfrecord import read_records, build_index, TFRecordDataset, TFRecordError
kind, path = sys.argv[2:]

def member(data, copies, size=None, lengths=b""):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = [packer.compress(data) for _ in range(copies)] + [packer.flush()]
    body = b"".join(packed) + struct.pack("<II", 0, len(data) * copies & 0xFFFFFFFF)
    own = 24 + len(lengths) + len(body)
    said = struct.pack("<I", own if size is None else size) + lengths
    field = b"TR" + struct.pack("<HI", 4 + len(said), crc32c(said)) + said
    head = b"\\x1f\\x8b\\x08\\x04\\0\\0\\0\\0\\0\\x03" + struct.pack("<H", len(field))
    return head + field + body

start = header(1 << 30)
zeros = start + bytes((1 << 20) - len(start))
many = zlib.compress(bytes(4 * 16_000_000), 9)
with open(path, "wb") as file:
    file.write({
        "small size": lambda: member(zeros, 1024, 10),
        "own size": lambda: member(zeros, 1024),
        "many": lambda: member(zeros, 480) * 9,
        "many small": lambda: member(zeros, 15) * 300,
        "lengths": lambda: member(b"", 1, None, many) * 4,
    }[kind]())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for call in (lambda: list(read_records(path)), lambda: build_index(path),
             lambda: build_index(path, verify_crc=False), lambda: TFRecordDataset(path, index="memory")[0]):
    try:
        call()
        print("no error")
    except (TFRecordError, UserWarning, IndexError) as error:
        print(type(error).__name__, error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.daily
@pytest.mark.parametrize("kind", ["small size", "own size", "many", "many small", "lengths"])
def test_bombs_take_little_memory(kind, tmp_path):
    path = tmp_path / "bomb.gz"
    done = run_python(BOMB, SUPPORT, kind, path)
    assert done.returncode == 0, done.stderr
    *lines, kilobytes = done.stdout.splitlines()
    assert path.stat().st_size < 6 << 20
    assert len(lines) == 4
    if kind == "lengths":  # the members hold nothing
        assert lines[:3] == ["no error"] * 3
    else:
        assert all(re.match("LimitExceededError|UserWarning", line) for line in lines)
    # Sixteen members ahead of 15 MiB each, and what is kept.
    assert int(kilobytes) < 600 << 10


# Processes and threads.


def read_on(records, queue):
    queue.put(digest(records))


@pytest.mark.slow
def test_a_forked_process_reads_on(written):
    records = read_records(written / "lengths.gz")
    assert [next(records) for _ in range(300)] == SAME[:300]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=read_on, args=(records, queue))
    process.start()
    assert queue.get(timeout=60) == digest(SAME[300:])
    process.join(60)
    assert process.exitcode == 0
    assert list(records) == SAME[300:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.daily)]
)
def test_workers_read_it(method, written):
    names = ("small.gz", "lengths.gz", "flushed.gz", "small.zlib")
    ds = TFRecordDataset([written / name for name in names], index="memory")
    records = [record for name in names for record in WAYS[name][0]]
    order = random.Random(3).sample(range(len(records)), 500)
    assert [ds[number] for number in order[:20]] == [records[number] for number in order[:20]]
    options = {"batch_size": None, "num_workers": 1, "multiprocessing_context": method}
    assert list(DataLoader(ds, sampler=order, **options)) == [records[number] for number in order]
    assert list(DataLoader(TFRecordIterableDataset(written / "lengths.gz"), **options)) == SAME


LATE = """
import sys, threading
from torch_tfrecord import read_records, TFRecordDataset

def work():
    threading.main_thread().join()
    print(len(list(read_records(sys.argv[1]))), len(TFRecordDataset(sys.argv[1], index="memory")))

threading.Thread(target=work).start()
"""


@pytest.mark.daily
@pytest.mark.parametrize("name", ["lengths.gz", "default.zlib"])
def test_a_thread_reads_on_behind_the_end_of_the_program(name, written):
    done = run_python(LATE, written / name)
    count = len(WAYS[name][0])
    assert (done.stdout, done.stderr) == (f"{count} {count}\n", "")


# The writer.


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0, ValueError, "0"),
        (-1, ValueError, "-1"),
        (True, TypeError, r"True \(bool\)"),
        ("x", TypeError, r"'x' \(str\)"),
        (1.5, TypeError, r"1.5 \(float\)"),
    ],
)
def test_wrong_member_bytes(value, error, text, tmp_path):
    text = f"^member_bytes must be an integer of at least 1, got {text}"
    for suffix in ("", ".gz", ".zlib"):
        with pytest.raises(error, match=text):
            TFRecordWriter(tmp_path / f"x{suffix}", member_bytes=value)
        with pytest.raises(error, match=text):
            ShardedTFRecordWriter(tmp_path / "x", num_shards=1, suffix=suffix, member_bytes=value)
    assert os.listdir(tmp_path) == []


def test_records_without_bytes(written):
    found = members((written / "nothing.gz").read_bytes())
    assert [lengths_of(one) for one in found] == [[0] * 63] * 47 + [[0] * 39]


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_a_flush_makes_it_readable_so_far(kind, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with TFRecordWriter(path, compression_type=kind, member_bytes=800) as writer:
            content = b""
            for number, record in enumerate(FEW, 1):
                writer.write(record)
                if number % 7 == 0:
                    writer.flush()
                    writer.flush()
                    content += os.read(reading, 1 << 16)
                    rest, data = content, b""
                    while rest:
                        inflater = zlib.decompressobj(31 if kind == "GZIP" else 15)
                        data += inflater.decompress(rest)
                        rest = inflater.unused_data
                    assert data == framed(*FEW[:number])
        content += os.read(reading, 1 << 16)
    finally:
        os.close(reading)
    (tmp_path / "x").write_bytes(content)
    assert list(read_records(tmp_path / "x")) == FEW


@pytest.mark.parametrize("name", WAYS)
def test_the_index_beside_it_is_that_of_a_second_pass(name, tmp_path):
    records, options = WAYS[name]
    path = tmp_path / name
    write(path, records, write_index=True, **options)
    index, built = RecordIndex.load(IndexKeeper.place(str(path))), build_index(path)
    assert index == built
    assert index.offsets.tolist() == built.offsets.tolist()
    assert index.lengths.tolist() == [len(record) for record in records]
    assert {*index._seek_points().offsets} <= {0, *index.offsets.tolist()}
    ds = TFRecordDataset(path, index="require")
    order = random.Random(1).sample(range(len(records)), min(len(records), 100))
    assert [ds[number] for number in order] == [records[number] for number in order]


def test_other_subfields_are_passed_over(tmp_path):
    path = tmp_path / "x.gz"
    first, other = b"AB\x08\x00anything", b"ZZ" + struct.pack("<H", 60_000) + bytes(60_000)
    own = with_size(framed(*FEW[:30]), "TR", field_of([64] * 30))
    (extra_bytes,) = struct.unpack_from("<H", own, 10)
    size = len(own) + len(first) + len(other)
    said = struct.pack("<I", size) + field_of([64] * 30)
    field = b"TR" + struct.pack("<HI", 4 + len(said), crc32c(said)) + said
    extra = first + field + other
    assert len(field) == extra_bytes
    path.write_bytes(
        own[:10]
        + struct.pack("<H", len(extra))
        + extra
        + own[12 + extra_bytes :]
        + with_size(framed(*FEW[30:]), "TR", field_of([64] * 30))
    )
    check(path, FEW)
    assert list(read_records(path)) == FEW
