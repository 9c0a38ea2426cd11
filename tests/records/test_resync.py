"""The search for the next record: by its definition, and in a number of steps that grows with the
stream alone.
"""

import gzip
import io
import random
import struct
import sys

import pytest
from helpers import compressed, framed, header

from torch_tfrecord import read_records
from torch_tfrecord.compression import deflate, inflated
from torch_tfrecord.compression.inflated import InflatedSource
from torch_tfrecord.files import LocalFile, SequentialSource
from torch_tfrecord.records import scan


class Forward:
    name = "pipe"

    def __init__(self, content):
        self.content, self.at = content, 0

    def read(self, num_bytes):
        piece = self.content[self.at : self.at + min(num_bytes, 100)]
        self.at += len(piece)
        return piece


def length_at(data, place):
    """What a header at a place says, or None."""
    head = data[place : place + 12]
    length = int.from_bytes(head[:8], "little")
    return length if header(length) == head else None


def is_payload(data, begin, end):
    """Whether a payload and its checksum are between a header and an end."""
    return end <= len(data) and framed(data[begin + 12 : end - 4])[-4:] == data[end - 4 : end]


def record_end(data, place):
    """Where the good record at a place ends, or None."""
    length = length_at(data, place)
    if length is None or length > len(data):
        return None
    end = place + length + 16
    return end if is_payload(data, place, end) else None


def next_record(data, begin):
    """What docs/damaged.md promises, one place after the other."""
    end = begin + 16 + int.from_bytes(data[begin : begin + 8], "little")
    is_border = begin + 12 <= len(data) and (
        end == len(data) or (end < len(data) and length_at(data, end) is not None)
    )
    is_good = length_at(data, begin) is not None
    if is_border and not is_good and is_payload(data, begin, end):
        return end
    places = range(begin + 1, end if is_border and is_good else len(data))
    found = next((at for at in places if record_end(data, at) is not None), places.stop)
    if found < places.stop and is_border and is_good:
        at = found
        while at is not None and at < end:
            at = record_end(data, at)
        return end if at is None else found
    return found


def hostile(rng):
    """Records, nested ones, damage, junk, headers that claim what follows or more."""
    parts, size = [], rng.randrange(200, 3000)
    while sum(map(len, parts)) < size:
        how = rng.randrange(7)
        good = framed(
            *[rng.randbytes(rng.choice([0, 1, 8, 30, 200])) for _ in range(rng.randrange(1, 4))]
        )
        if how == 0:
            parts.append(framed(rng.choice([good, b"junk" + good, good + b"junk", framed(good)])))
        elif how == 1:
            parts.append(header(rng.choice([0, 1, 5, 100, 700, 2**40, 2**47, 2**63])))
        elif how == 2:
            parts.append(bytes(rng.randrange(40)))
        elif how == 3:  # a payload in place of another: the header seems right
            parts += [header(len(good) + 4), good, rng.choice([b"", b"more", framed(b"")])]
        else:
            parts.append(good)
        if rng.random() < 0.5:
            damaged = bytearray(parts[-1] or b"x")
            damaged[
                rng.choice([0, 8, len(damaged) - 1, rng.randrange(len(damaged))]) % len(damaged)
            ] ^= 1
            parts[-1] = bytes(damaged)
    data = b"".join(parts)
    for _ in range(rng.randrange(4)):  # a long one that closes, around others
        begin, end = sorted(rng.sample(range(len(data)), 2))
        data = data[:begin] + framed(data[begin:end]) + data[end:]
    return data


@pytest.fixture
def small(monkeypatch):
    """Pieces of a few bytes, so that records are across them."""

    def change(piece, step):
        monkeypatch.setattr("torch_tfrecord.records.scan._PIECE_BYTES", piece)
        monkeypatch.setattr("torch_tfrecord.records.scan._STEP_BYTES", step)

    return change


def check_reader(small, way, seed, path):
    small(200, 40)
    data = hostile(random.Random(seed))
    expected, at = [], 0
    while at < len(data):
        end = record_end(data, at)
        if end is not None:
            expected.append(data[at + 12 : end - 4])
        at = next_record(data, at) if end is None else end
    kind = "" if way in ("plain", "pipe") else way
    path.write_bytes(compressed(data, kind))
    file = Forward(data) if way == "pipe" else path
    assert list(read_records(file, compression_type=kind, on_error="skip")) == expected


@pytest.mark.parametrize("chunk_bytes", [30, 1000, 1 << 19])
@pytest.mark.parametrize("way", ["plain", "pipe", "GZIP"])
@pytest.mark.parametrize("seed", range(4))
def test_a_reader_has_what_is_defined(
    tmp_path, monkeypatch, recwarn, small, way, seed, chunk_bytes
):
    monkeypatch.setattr(LocalFile, "chunk_bytes", chunk_bytes)
    check_reader(small, way, seed, tmp_path / "a")


@pytest.mark.daily
@pytest.mark.parametrize("way", ["plain", "pipe", "GZIP"])
@pytest.mark.parametrize("seed", range(30))
def test_every_reader_has_what_is_defined(tmp_path, recwarn, small, way, seed):
    for number in range(20):
        check_reader(small, way, 100 * seed + number, tmp_path / "a")


# Work.


def flipped(frames, places=(0,), every=2):
    """Frames of which some have a changed byte."""
    parts = [bytearray(frame) for frame in frames]
    for number, part in enumerate(parts):
        if number % every == 0:
            part[places[number // every % len(places)]] ^= 1
    return b"".join(parts)


def records(count):
    return [framed(random.Random(number).randbytes(60)) for number in range(count)]


def claiming(count, left, between=b""):
    """Damage, then good headers that each claim what `left` makes of the bytes behind them, with
    something behind each, then a record.
    """
    end, size = b"\xee" * 20 + framed(b"the record"), 12 + len(between)
    headers = [header(left(size * (count - at) - 12 + len(end))) for at in range(count)]
    return b"\xff" * 13 + b"".join(head + between for head in headers) + end


def nested(count):
    """Damage in front of each record, with headers that claim a part of what follows."""
    claims = b"".join(header(40 * number) for number in range(1, 20))
    return b"".join(b"\xff" * 13 + claims + framed(bytes(30)) for _ in range(count))


def to_borders(count):
    """Headers that each claim all up to one of the headers at the end, with a record behind each."""
    one, last = framed(b"one"), header(5)
    size, parts = 12 + len(one), []
    for number in range(count):
        parts.append(header(size * (count - number) - 28 + 12 * number) + one)
    return b"".join(parts) + last * count


ONE = framed(b"one")
KINDS = {
    "payloads": lambda size: flipped(records(size), [20]),
    "lengths": lambda size: flipped(records(size)),
    "length checksums": lambda size: flipped(records(size), [9]),
    "tiny": lambda size: (framed(b"a")[:-1] + b"\0" + framed(b"b")) * (2 * size),
    "empty": lambda size: flipped([framed(b"")] * 4 * size, [0, 9, 13]),
    "equal": lambda size: flipped([framed(b"x" * 60)] * size, [0, 9, 20, 73]),
    "alternating": lambda size: flipped([framed(b"x" * 300), framed(b"")] * size, [0, 9, 13], 7),
    "few damaged": lambda size: flipped([framed(b"")] * 9 * size, [0, 9, 13], size),
    "all that follows": lambda size: claiming(3 * size, lambda behind: behind - 16),
    "half of what follows": lambda size: claiming(3 * size, lambda behind: behind // 2),
    "more than follows": lambda size: claiming(3 * size, lambda behind: behind + 1),
    "all, with records": lambda size: claiming(size, lambda behind: behind - 16, ONE),
    "half, with records": lambda size: claiming(size, lambda behind: behind // 2, ONE),
    "more, with records": lambda size: claiming(size, lambda behind: behind + 1, ONE),
    "to borders": to_borders,
    "nested": lambda size: nested(size // 4),
}


@pytest.fixture
def work(tmp_path, monkeypatch, small):
    """Counts what reading a file takes: bytes read, searched and summed, and calls."""
    small(1 << 13, 1 << 6)
    monkeypatch.setattr(LocalFile, "chunk_bytes", 1 << 10)
    counts = {}

    def count(module, name, what, size):
        function = getattr(module, name)

        def counting(*args, **options):
            found = function(*args, **options)
            counts[what] += found if name == "read_into" else size(found, *args)
            return found

        monkeypatch.setattr(module, name, counting)

    for source in (LocalFile, SequentialSource):
        count(source, "read", "read", lambda found, *args: len(found))
    count(LocalFile, "read_into", "read", int)
    count(scan, "find_headers", "searched", lambda found, data: len(data))
    count(scan, "crc32c", "summed", lambda found, data, *before: len(data))
    count(scan, "walk", "summed", lambda found, data: len(data))
    count(deflate, "_block_bits", "searched", lambda found, data, num_bytes: num_bytes)
    inflate = InflatedSource._inflate

    def counting(source, inflater):
        before = source._consumed - len(source._input)
        try:
            piece = inflate(source, inflater)
        finally:
            counts["inflated"] += max(source._consumed - len(source._input) - before, 1)
        counts["produced"] += len(piece)
        return piece

    monkeypatch.setattr(InflatedSource, "_inflate", counting)

    def measure(data, way):
        counts.update(read=0, searched=0, summed=0, inflated=0, produced=0, calls=0)
        (tmp_path / "a").write_bytes(data)
        path = io.BytesIO(data) if way == "pipe" else tmp_path / "a"
        kind = "" if way in ("file", "pipe") else way

        def see(frame, event, argument):
            counts["calls"] += event in ("call", "c_call")

        sys.setprofile(see)
        try:
            found = sum(1 for _ in read_records(path, compression_type=kind, on_error="skip"))
        finally:
            sys.setprofile(None)
        return found, dict(counts)

    return measure


@pytest.mark.slow
@pytest.mark.parametrize("way", ["file", "pipe"])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_the_work_grows_with_the_file(work, recwarn, make, way):
    """Whatever a file has and claims."""
    for size in (60, 240):
        data = make(size)
        _, took = work(data, way)
        assert took["searched"] <= 1.1 * len(data) + (1 << 13)
        assert took["summed"] <= 25 * len(data) + (1 << 14)
        assert took["read"] <= 20 * len(data) + (1 << 14)
        assert took["calls"] <= 7 * len(data) + 2000


def compressed_records(kind, size):
    if kind == "texts":
        return b"".join(framed(b"%d" % number**9 * 9) for number in range(20 * size))
    unit = {"equal": framed(b"x" * 60), "alternating": framed(b"x" * 300) + framed(b"")}
    return unit.get(kind, framed(b"")) * 800 * size


@pytest.mark.slow
@pytest.mark.parametrize("way", ["GZIP", "ZLIB"])
@pytest.mark.parametrize("kind", ["texts", "empty", "equal", "alternating"])
def test_the_work_grows_with_a_compressed_file(work, recwarn, kind, way):
    for size in (5, 20):
        content = bytearray(compressed(compressed_records(kind, size), way))
        for number in range(size // 5):
            content[(number + 1) * len(content) // (size // 5 + 1)] ^= 0x55
        _, took = work(bytes(content), way)
        size = len(content) + took["produced"]
        assert took["inflated"] <= 3 * len(content) + (1 << 18)
        assert took["searched"] <= 3 * size + (1 << 18)
        assert took["summed"] <= 8 * size + (1 << 14)
        assert took["read"] <= 8 * size + (1 << 18)


def test_members_in_a_member_are_not_all_tried(work, monkeypatch, recwarn):
    """A member without compression, of headers that each lead to the same place."""
    monkeypatch.setattr(inflated, "_MOST_AGAIN_BYTES", 1 << 15)
    head = gzip.compress(b"", mtime=0)[:10]
    for count in (100, 400):
        payload = b""
        for number in range(count):
            length = 15 * number + 1000
            payload = head + struct.pack("<BHH", 0, length, length ^ 0xFFFF) + payload
        content = bytearray(gzip.compress(payload + b"\xff" * 2000, 0, mtime=0))
        content[-5] ^= 1
        content += gzip.compress(framed(b"the record"), mtime=0)
        found, took = work(bytes(content), "GZIP")
        assert found == 1
        assert took["produced"] <= 20 * len(content)


def test_headers_that_claim_what_follows(tmp_path, recwarn):
    path = tmp_path / "a"
    path.write_bytes(claiming(300, lambda behind: behind - 16))
    assert list(read_records(path, on_error="skip")) == [b"the record"]
    assert "skipped 3633 damaged bytes" in str(recwarn.list[0].message)
