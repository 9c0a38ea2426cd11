"""Gzip and zlib files as other programs write them: 100 and 20, each read at random as in order.

Covers compression/deflate, compression/codecs. Those of TensorFlow are in tests/data/compressed; the
others are made here, by Python's zlib and gzip and by the commands gzip and pigz.
"""

import functools
import gzip
import io
import random
import runpy
import shutil
import struct
import subprocess
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers import BGZIP_END, framed, pure_python, run_python
from torch.utils.data import DataLoader

from torch_tfrecord import TFRecordDataset, TFRecordWriter, build_index, read_records
from torch_tfrecord.native import has_native, optional_module

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded", "ignore:no file has a record"
)

FOLDER = Path(__file__).parents[1] / "data/compressed"
OF_TENSORFLOW = runpy.run_path(str(FOLDER / "oracle.py"))["contents"]()


def drawn():
    """Texts of random words, and runs that repeat four bytes: at zlib's defaults a block is 20 KB."""
    rng = random.Random(0)
    words = [rng.randbytes(rng.randrange(2, 9)) for _ in range(500)]
    found = []
    for number in range(700):
        if number % 7:
            runs = [rng.randbytes(4) * rng.randrange(2, 8) for _ in range(rng.randrange(1, 61))]
        else:
            runs = rng.choices(words, k=rng.randrange(5, 80))
        found.append(b"%d " % number + b"".join(runs))
    return found


RECORDS = [*drawn(), b"", b"x" * 70_000, b"", b"end"]


@functools.cache
def stream():
    return framed(*RECORDS)


def parts(size):
    data = stream()
    return [data[at : at + size] for at in range(0, len(data), size)]


# Ways to write the stream. Each returns the file.


def packed(bits, level=-1, mem_level=8, strategy=0):
    def write(_):
        packer = zlib.compressobj(level, zlib.DEFLATED, bits, mem_level, strategy)
        return packer.compress(stream()) + packer.flush()

    return write


def flushed(bits, size, *modes, level=6, again=1):
    """Each part is followed by flushes, of the modes in turn."""

    def write(_):
        packer, found = zlib.compressobj(level, zlib.DEFLATED, bits), []
        for number, part in enumerate(parts(size)):
            found.append(packer.compress(part))
            found += [packer.flush(modes[number % len(modes)]) for _ in range(again)]
        return b"".join(found) + packer.flush()

    return write


def by_python(level, name=""):
    def write(_):
        file = io.BytesIO()
        with gzip.GzipFile(name, "wb", level, file, mtime=1_700_000_000) as packer:
            packer.write(stream())
        return file.getvalue()

    return write


def by_command(*command):
    def write(_):
        if shutil.which(command[0]) is None:
            pytest.skip(f"there is no {command[0]}")
        return subprocess.run(command, input=stream(), capture_output=True, check=True).stdout

    return write


def by_file_command(*options):
    """The header then has a name and a time."""

    def write(folder):
        if shutil.which("gzip") is None:
            pytest.skip("there is no gzip")
        path = folder / "train.tfrecord"
        path.write_bytes(stream())
        subprocess.run(["gzip", *options, path], check=True)
        return path.with_name("train.tfrecord.gz").read_bytes()

    return write


def as_pigz(level, is_independent=False):
    """One stream whose parts are compressed by themselves, with the end of the part before."""

    def write(_):
        found, before = [], b""
        for part in parts(1 << 17):
            window = {"zdict": before} if before and not is_independent else {}
            packer = zlib.compressobj(level, zlib.DEFLATED, -15, **window)
            mode = zlib.Z_FULL_FLUSH if is_independent else zlib.Z_SYNC_FLUSH
            found += [packer.compress(part), packer.flush(mode)]
            before = part[-(1 << 15) :]
        data = stream()
        end = b"\x03\x00" + struct.pack("<II", zlib.crc32(data), len(data))
        return b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + b"".join(found) + end

    return write


def member(data, level=6, *, extra=None, name=None, comment=None, has_checksum=False):
    """With any fields of a header."""
    flags = 2 * has_checksum + 4 * (extra is not None) + 8 * (name is not None)
    flags += 16 * (comment is not None)
    head = b"\x1f\x8b\x08" + bytes([flags]) + struct.pack("<IBB", 1_600_000_000, 2, 11)
    if extra is not None:
        head += struct.pack("<H", len(extra)) + extra
    head += b"".join(text + b"\0" for text in (name, comment) if text is not None)
    if has_checksum:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    body = packer.compress(data) + packer.flush()
    return head + body + struct.pack("<II", zlib.crc32(data), len(data))


FIELDS = {
    "extra": {"extra": b"AB\x04\x00wxyz"},
    "empty extra": {"extra": b""},
    "long extra": {"extra": b"AB\xfb\xff" + bytes(65_531)},
    "extra that is cut": {"extra": b"IG\x04"},
    "name": {"name": b"train.tfrecord"},
    "comment": {"comment": b"a comment " * 500},
    "checksum": {"has_checksum": True},
    "all fields": {"extra": b"", "name": b"n", "comment": b"", "has_checksum": True},
}


def members(size, **options):
    return lambda _: b"".join(member(part, **options) for part in parts(size))


def empty_members(*, begin=0, between=0, end=0, size=40_000):
    def write(_):
        empty = gzip.compress(b"")
        found = (empty * between).join(member(part) for part in parts(size))
        return empty * begin + found + empty * end

    return write


def each_record(_):
    return b"".join(member(framed(record)) for record in RECORDS)


def of_levels(bits):
    """Streams one behind the other."""

    def write(_):
        found = []
        for number, part in enumerate(parts(60_000)):
            packer = zlib.compressobj(number % 10, zlib.DEFLATED, bits, 1 + number % 9, number % 5)
            found.append(packer.compress(part) + packer.flush())
        return b"".join(found)

    return write


def with_size(part, subfield, size, **options):
    """A member with its size in its extra field."""
    found = member(part, extra=subfield + struct.pack("<H", size) + bytes(size), **options)
    value = len(found) - (subfield == b"BC")
    return found[:16] + value.to_bytes(size, "little") + found[16 + size :]


def with_sizes(subfield, num_bytes, size, end=b"", **options):
    def write(_):
        return (
            b"".join(with_size(part, subfield, num_bytes, **options) for part in parts(size)) + end
        )

    return write


def ours(count=None, flush=0, **options):
    """What our writer makes of the first records."""

    def write(folder):
        path = folder / "ours.gz"
        with TFRecordWriter(path, **options) as writer:
            for number, record in enumerate(RECORDS[:count], 1):
                writer.write(record)
                if flush and number % flush == 0:
                    writer.flush()
        return path.read_bytes()

    return write


def mixed(folder):
    """Ours, then what others wrote, and ours again."""
    middle = b"".join(member(framed(record)) for record in RECORDS[500:600])
    sized = with_size(framed(*RECORDS[600:700]), b"IG", 4)
    rest = gzip.compress(framed(*RECORDS[700:]))
    return ours(500, member_bytes=20_000)(folder) + middle + sized + rest


class Case(NamedTuple):
    """How a file is written.

    Attributes:
        write: Makes it of the stream, in an empty folder; None where it is in tests/data.
        has_points: Whether it can be entered: not where it is empty or one member with its size.
    """

    write: object = None
    has_points: bool = True


SYNC, FULL, PARTIAL = zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH
STRATEGIES = {"filtered": 1, "huffman": 2, "rle": 3, "fixed": 4}

GZIP = {
    **{
        f"tensorflow {name[5:]}": Case(None, "empty" not in name)
        for name in OF_TENSORFLOW
        if name.startswith("gzip")
    },
    **{f"gzip -{level}": Case(by_command("gzip", f"-{level}")) for level in range(1, 10)},
    "gzip FILE": Case(by_file_command("-6")),
    "gzip --best -N FILE": Case(by_file_command("--best", "-N")),
    **{
        f"pigz {options}": Case(by_command("pigz", *options.split()))
        for options in ("-0", "-1", "-9", "-i -p 4", "-b 32 -p 4")
    },
    **{f"as pigz -{level}": Case(as_pigz(level)) for level in (0, 1, 3, 6, 9)},
    **{f"as pigz -i -{level}": Case(as_pigz(level, True)) for level in (1, 6, 9)},
    "as beam": Case(packed(31)),
    "as beam, twice": Case(lambda _: b"".join(map(gzip.compress, parts(200_000)))),
    **{f"python {level}": Case(by_python(level)) for level in (0, 1, 2, 5, 6, 7, 9)},
    "python with a name": Case(by_python(6, "train.tfrecord")),
    **{f"memory {level}": Case(packed(31, 6, level)) for level in (1, 2, 4, 6, 9)},
    **{name: Case(packed(31, 6, 8, value)) for name, value in STRATEGIES.items()},
    **{f"window {bits}": Case(packed(16 + bits)) for bits in (9, 10, 12, 14)},
    "sync flushes": Case(flushed(31, 30_000, SYNC)),
    "full flushes": Case(flushed(31, 30_000, FULL)),
    "partial flushes": Case(flushed(31, 30_000, PARTIAL)),
    "block flushes": Case(flushed(31, 30_000, zlib.Z_BLOCK)),
    "many sync flushes": Case(flushed(31, 700, SYNC)),
    "many full flushes": Case(flushed(31, 700, FULL)),
    "many partial flushes": Case(flushed(31, 700, PARTIAL)),
    "all flushes": Case(flushed(31, 5000, SYNC, FULL, PARTIAL, zlib.Z_BLOCK)),
    "flushes of what is stored": Case(flushed(31, 20_000, SYNC, FULL, level=0)),
    "repeated flushes": Case(flushed(31, 20_000, SYNC, FULL, PARTIAL, again=5)),
    **{f"members of {size}": Case(members(size)) for size in (1000, 5000, 20_000, 70_000)},
    "members of other levels": Case(of_levels(31)),
    "a member for each record": Case(each_record),
    "stored members": Case(members(30_000, level=0)),
    "empty member first": Case(empty_members(begin=1)),
    "empty members between": Case(empty_members(between=2)),
    "empty members behind": Case(empty_members(end=3)),
    "empty members everywhere": Case(empty_members(begin=2, between=1, end=1, size=5000)),
    **{f"{name}": Case(members(1 << 30, **fields)) for name, fields in FIELDS.items()},
    "members with all fields": Case(members(20_000, **FIELDS["all fields"])),
    "bgzip": Case(with_sizes(b"BC", 2, 0xFF00, BGZIP_END)),
    "bgzip, small": Case(with_sizes(b"BC", 2, 3000, BGZIP_END)),
    "bgzip of level 0": Case(with_sizes(b"BC", 2, 30_000, BGZIP_END, level=0)),
    "pgzip": Case(with_sizes(b"IG", 4, 50_000, name=b"train.tfrecord")),
    "pgzip, one": Case(with_sizes(b"IG", 4, 1 << 30), False),
    "sizes of 8 bytes": Case(with_sizes(b"IG", 8, 50_000)),
    "ours": Case(ours(member_bytes=30_000)),
    "ours, one member": Case(ours()),
    "ours, small": Case(ours(member_bytes=1)),
    "ours, flushed": Case(ours(flush=40, member_bytes=30_000)),
    "mixed": Case(mixed),
}
ZLIB = {
    **{
        f"tensorflow {name[5:]}": Case(None, "empty" not in name)
        for name in OF_TENSORFLOW
        if name.startswith("zlib")
    },
    "level 0": Case(packed(15, 0)),
    "level 6": Case(packed(15, 6)),
    "memory 2": Case(packed(15, 9, 2)),
    "huffman": Case(packed(15, 6, 8, STRATEGIES["huffman"])),
    "window 9": Case(packed(9)),
    "sync flushes": Case(flushed(15, 20_000, SYNC)),
    "full flushes": Case(flushed(15, 20_000, FULL)),
    "streams of other levels": Case(of_levels(15)),
}
FILES = {
    f"{kind} {name}": case
    for kind, of in (("GZIP", GZIP), ("ZLIB", ZLIB))
    for name, case in of.items()
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture
def file(request, folder, tmp_path, monkeypatch):
    return put(request.param, folder, tmp_path / "x", monkeypatch)


def put(name, folder, path, monkeypatch):
    """Write a file; its records and what it is. Seek points are then as close as it needs."""
    kind, way = name.split(" ", 1)
    case = FILES[name]
    if case.write is None:
        stored = f"{kind.lower()}_{way.split()[1]}"
        records = OF_TENSORFLOW[stored]
        content = (FOLDER / f"{stored}.tfrecord").read_bytes()
    else:
        records, content = RECORDS, made(name, folder)
    room = "torch_tfrecord.compression"
    # a block begins in few pieces
    monkeypatch.setattr(f"{room}.inflated._OUTPUT_BYTES", 1 << 14)
    monkeypatch.setattr(f"{room}.seek_points._BLOCK_SPACING", 1 << 14)
    monkeypatch.setattr(f"{room}.seek_points._MEMBER_SPACING", 1 << 13)
    monkeypatch.setattr(f"{room}.seek_points._LEAST_BYTES", 1 << 20)
    path.write_bytes(content)
    return path, records, case


@functools.cache
def made(name, folder):
    own = folder / str(list(FILES).index(name))
    own.mkdir(exist_ok=True)
    return FILES[name].write(own)


@pytest.fixture(params=["native", "twin"])
def core(request):
    if request.param == "native" and not has_native():
        pytest.skip("the core is not built")
    with pure_python(request.param == "twin"):
        yield request.param


def test_there_are_as_many_as_are_said():
    assert (len(GZIP), len(ZLIB)) == (100, 20)


@pytest.mark.parametrize("file", FILES, indirect=True)
def test_at_random_as_in_order(file):
    check(*file, count=100)


@pytest.mark.slow
@pytest.mark.usefixtures("engine", "core")
@pytest.mark.parametrize("file", FILES, indirect=True)
def test_with_each_engine_and_core(file):
    check(*file)


def check(path, records, case, count=None):
    """All records, or so many."""
    assert list(read_records(path)) == records
    index = build_index(path)
    assert index.lengths.tolist() == [len(record) for record in records]
    assert build_index(path, verify_crc=False) == index
    if case.has_points and optional_module("inflate") is not None:
        assert len(index._points) > 1
    ds = TFRecordDataset(path, index="memory")
    order = random.Random(1).sample(range(len(records)), len(records))[:count]
    assert [ds[number] for number in order] == [records[number] for number in order]
    if count is None:
        assert list(ds[::-1]) == records[::-1]


# Processes and threads.

SOME = [
    "GZIP tensorflow default",
    "GZIP python 6",
    "GZIP as pigz -6",
    "GZIP many sync flushes",
    "GZIP bgzip, small",
    "GZIP mixed",
    "ZLIB tensorflow level9",
    "ZLIB level 6",
]


@pytest.fixture
def dataset(folder, tmp_path, monkeypatch):
    """Some files with their indexes beside them, and their records."""
    paths, found = [], []
    for number, name in enumerate(SOME):
        path, records, _ = put(name, folder, tmp_path / f"{number}", monkeypatch)
        assert len(TFRecordDataset(path)) == len(records)  # keeps the index
        paths.append(path)
        found += records
    return TFRecordDataset(paths, index="require"), found


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.daily)]
)
def test_in_workers(method, dataset):
    ds, records = dataset
    order = random.Random(3).sample(range(len(records)), 1000)
    assert [ds[number] for number in order[:50]] == [records[number] for number in order[:50]]
    loader = DataLoader(
        ds, batch_size=None, sampler=order, num_workers=1, multiprocessing_context=method
    )
    assert list(loader) == [records[number] for number in order]


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
def test_in_threads(dataset):
    ds, records = dataset
    order = random.Random(4).choices(range(len(records)), k=2000)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ds.__getitem__, order))
    assert found == [records[number] for number in order]


# A large one.

LARGE = """
import random, resource, sys, warnings, zlib
sys.path.insert(0, sys.argv[1])
from helpers import framed
from torch_tfrecord import TFRecordDataset, build_index

warnings.filterwarnings("ignore", "(?s).*random access in a compressed file")

path, same = sys.argv[2], b"0123456789abcdef" * 1280
count = (1 << 31) // (len(same) + 16) + 1
packer, rest = zlib.compressobj(6), framed(same)
with open(path, "wb") as file:
    for number in range(count):
        file.write(packer.compress(framed(b"%d" % number) + rest))
    file.write(packer.flush())

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

before = most()
ds = TFRecordDataset(path)
assert len(ds) == 2 * count, len(ds)
points = build_index(path, verify_crc=False)._points
print("points", len(points))
print("MiB of the index", most() - before)
rng = random.Random(0)
for _ in range(50):
    number = rng.randrange(2 * count)
    assert ds[number] == (same if number % 2 else b"%d" % (number // 2)), number
print("MiB", most() - before)
"""


@pytest.mark.slow
@pytest.mark.daily
def test_two_gibibytes_in_one_zlib_stream(tmp_path):
    path = tmp_path / "x.zlib"
    done = run_python(LARGE, FOLDER.parents[1] / "support", path, timeout=280)
    assert done.returncode == 0, done.stderr
    found = {
        line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in done.stdout.splitlines()
    }
    assert path.stat().st_size < 20 << 20
    assert found["points"] > 5
    assert found["MiB of the index"] < 100
    assert found["MiB"] < 400  # 256 MiB are kept
