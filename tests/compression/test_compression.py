"""Gzip and zlib streams: members, cuts, garbage, wrong types, bombs.

Covers compression/inflated, compression/codecs, records/codecs, files/storage.
"""

import gzip
import itertools
import random
import re
import struct
import zlib
from pathlib import Path

import pytest
from helpers import (
    BGZIP_END,
    BGZIP_EXTRA,
    collect,
    compressed,
    for_each,
    framed,
    gzip_member,
    header,
    random_payloads,
    run_python,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_tfrecord import (
    CompressionError,
    TFRecordError,
    TFRecordWriter,
    build_index,
    read_records,
)
from torch_tfrecord.arguments import check_compression_type
from torch_tfrecord.compression import CODECS
from torch_tfrecord.files import FileSource
from torch_tfrecord.records import RecordScanner, open_stream

PAYLOADS = [b"abc", b"", b"defg" * 5]
STREAM = framed(*PAYLOADS)
ENDS = [0, *itertools.accumulate(len(payload) + 16 for payload in PAYLOADS)]
NOTE = " (offset in the decompressed stream)"


class MemorySource(FileSource):
    path = "m"
    max_record_bytes = None
    chunk_bytes = 1 << 19

    def __init__(self, content):
        self.content, self.size = content, len(content)
        self.reads = []

    def read(self, num_bytes, offset):
        self.reads.append(offset)
        return self.content[offset : offset + num_bytes]

    def check_end(self):
        pass


def read_all(content, compression_type="auto"):
    """Payloads, and the error that ended reading."""

    def records():
        stream, _ = open_stream(MemorySource(content), check_compression_type(compression_type))
        for block in RecordScanner(stream):
            yield from block.payloads

    return collect(records(), TFRecordError)


@pytest.fixture(params=[(1 << 17, 1 << 20), (1, 1 << 20), (3, 7), (1 << 17, 1)], ids=str)
def steps(request, monkeypatch):
    """Bytes fed to zlib at a time, and the most it may put out."""
    inflated = "torch_tfrecord.compression.inflated"
    monkeypatch.setattr(f"{inflated}._INPUT_BYTES", request.param[0])
    monkeypatch.setattr(f"{inflated}._OUTPUT_BYTES", request.param[1])


# Several members.


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_two_members_with_the_border_at_every_byte(kind):  # robustness 23, 26
    one = {"GZIP": gzip_member, "ZLIB": zlib.compress}[kind]
    for border in range(len(STREAM) + 1):
        for declared in (kind, "auto"):
            assert read_all(one(STREAM[:border]) + one(STREAM[border:]), declared) == (
                PAYLOADS,
                None,
            ), border


@pytest.mark.usefixtures("steps")
@for_each("kind", ["GZIP", "ZLIB"])
@for_each("places", [[0], [1], [2], [3], [0, 0, 0, 1, 2, 3, 3]])
def test_empty_members(kind, places):  # robustness 24
    one = {"GZIP": gzip_member, "ZLIB": zlib.compress}[kind]
    members = [one(framed(payload)) for payload in PAYLOADS]
    for place in sorted(places, reverse=True):
        members.insert(place, one(b""))
    assert read_all(b"".join(members)) == (PAYLOADS, None)
    assert read_all(one(b"") * 3) == ([], None)


@pytest.mark.usefixtures("steps")
def test_bgzip_files():  # robustness 25
    payloads = random_payloads(50, 1)
    stream = framed(*payloads)
    blocks = [
        gzip_member(stream[at : at + 700], extra=BGZIP_EXTRA) for at in range(0, len(stream), 700)
    ]
    bgzip = b"".join(blocks) + BGZIP_END
    assert gzip.decompress(bgzip) == stream
    assert read_all(bgzip) == (payloads, None)
    assert read_all(bgzip + bgzip, "GZIP") == (payloads * 2, None)


@pytest.mark.parametrize("level", range(10))
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_levels(kind, level, tmp_path):  # robustness 22
    path = tmp_path / "x"
    payloads = random_payloads(30, level)
    with TFRecordWriter(path, compression_type=kind, compression_level=level) as writer:
        for payload in payloads:
            writer.write(payload)
    content = path.read_bytes()
    assert {"GZIP": gzip.decompress, "ZLIB": zlib.decompress}[kind](content) == framed(*payloads)
    assert list(read_records(path)) == payloads
    ours = {"GZIP": gzip.compress, "ZLIB": zlib.compress}[kind](framed(*payloads), level)
    assert read_all(ours, kind) == (payloads, None)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("mode", [zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH])
@pytest.mark.parametrize("bits", [15, 31])
def test_flushes_after_every_byte(bits, mode):  # robustness 33
    deflater = zlib.compressobj(6, zlib.DEFLATED, bits)
    parts = [
        deflater.compress(STREAM[at : at + 1]) + deflater.flush(mode) for at in range(len(STREAM))
    ]
    content = b"".join(parts) + deflater.flush(mode) * 3 + deflater.flush()
    assert read_all(content) == (PAYLOADS, None)


# Cuts and damage.


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("level", [0, 6])
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_every_cut(kind, level, members):  # robustness 27
    def one(data):
        return gzip_member(data, level) if kind == "GZIP" else zlib.compress(data, level)

    parts = [one(STREAM)] if members == 1 else [one(framed(payload)) for payload in PAYLOADS]
    content = b"".join(parts)
    borders = list(itertools.accumulate(map(len, parts)))
    for cut in range(1, len(content)):
        if cut in borders:
            assert read_all(content[:cut], kind) == (PAYLOADS[: borders.index(cut) + 1], None)
            continue
        # What can be had: everything that zlib makes of the bytes in front of the cut.
        can_be_read, rest = b"", content[:cut]
        while rest:
            inflater = zlib.decompressobj(31 if kind == "GZIP" else 15)
            can_be_read += inflater.decompress(rest)
            rest = inflater.unused_data
        whole = sum(end <= len(can_be_read) for end in ENDS[1:])
        for declared in (kind, "auto"):
            read, error = read_all(content[:cut], declared)
            assert read == PAYLOADS[:whole], cut
            assert type(error) is CompressionError, cut
            # the first of two bytes that tell a zlib stream
            if kind == "ZLIB" and cut - 1 in borders:
                assert "expected the end of the file or another ZLIB stream" in str(error)
            else:
                assert str(error) == (
                    f"m: record {whole} at byte {ENDS[whole]}: {kind.lower()}: the stream is truncated: expected its "
                    f"end marker and checksum, got the end of the file (near compressed byte {cut}){NOTE}"
                ), cut


@pytest.mark.usefixtures("steps")
@for_each(
    ("kind", "place", "text"),
    [
        ("GZIP", -8, "incorrect data check"),
        ("GZIP", -5, "incorrect data check"),
        ("GZIP", -4, "incorrect length check"),
        ("GZIP", -1, "incorrect length check"),
        ("ZLIB", -4, "incorrect data check"),
        ("ZLIB", -1, "incorrect data check"),
    ],
)
@for_each("after", [b"", b"more"])
def test_wrong_checksums(kind, place, text, after):  # robustness 28
    content = bytearray(compressed(STREAM, kind))
    content[place] ^= 1
    content += compressed(framed(after), kind) if after else b""
    read, error = read_all(bytes(content))
    assert read == PAYLOADS  # each has its own checksum; nothing behind the damage is trusted
    assert type(error) is CompressionError
    assert str(error).startswith(
        f"m: record 3 at byte {len(STREAM)}: {kind.lower()}: the stream is damaged: "
    )
    assert text in str(error)
    assert isinstance(error.__cause__, zlib.error)


@pytest.mark.usefixtures("steps")
@for_each(
    "tail", [b"\0", b"\0" * 512, b"x", b"junk" * 9, b"\x1f", b"\x1f\x8b", b"\x78\x9c", b"\x78"]
)
@for_each("kind", ["GZIP", "ZLIB"])
def test_bytes_behind_the_stream(kind, tail):  # robustness 29
    for declared in (kind, "auto"):
        read, error = read_all(compressed(STREAM, kind) + tail, declared)
        assert read == PAYLOADS
        assert type(error) is CompressionError
        assert f"m: record 3 at byte {len(STREAM)}: {kind.lower()}: " in str(error)
        begins_a_member = tail[:2] in ((b"\x1f", b"\x1f\x8b") if kind == "GZIP" else (b"\x78\x9c",))
        what = (
            "the stream is truncated"
            if begins_a_member
            else f"expected the end of the file or another {kind} stream"
        )
        assert what in str(error)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(["GZIP", "ZLIB"]))
def test_random_damage_to_streams(data, kind):  # fuzz target "gzip and zlib stream"
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    payloads = [
        struct.pack("<I", n) + rng.randbytes(rng.randrange(60)) for n in range(rng.randrange(1, 20))
    ]
    content = bytearray(compressed(framed(*payloads), kind))
    for _ in range(rng.randrange(1, 4)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    read, error = read_all(bytes(content), kind)
    assert read == payloads[: len(read)]
    if error is None:  # never fewer than a plain decompression gives
        assert read == payloads
    else:
        assert str(error).startswith("m: ")


# Types.

NAMES = {"": "an uncompressed TFRecord file", "GZIP": "a gzip stream", "ZLIB": "a zlib stream"}


@pytest.mark.parametrize("declared", NAMES)
@pytest.mark.parametrize("actual", NAMES)
def test_wrong_types_name_what_was_found(actual, declared, tmp_path):  # robustness 30
    path = tmp_path / "x"
    path.write_bytes(compressed(STREAM, actual))
    if declared == actual:
        assert list(read_records(path, compression_type=declared)) == PAYLOADS
        return
    text = f"{path}: at byte 0: expected {NAMES[declared]} (compression_type={declared!r}), got {NAMES[actual]}"
    for call in (
        lambda: list(read_records(path, compression_type=declared.lower())),
        lambda: build_index(path, compression_type=declared),
    ):
        with pytest.raises(CompressionError) as caught:
            call()
        assert str(caught.value) == text


@pytest.mark.parametrize("name", ["BZ2", "gz", "none", " ", "GZIP ", "deflate", 0, b"GZIP", True])
def test_unknown_types_are_refused_before_anything_is_opened(name, tmp_path):
    missing = tmp_path / "missing" / "x.tfrecord"
    read, written = "'GZIP', 'ZLIB' or 'SNAPPY'", "'GZIP' or 'ZLIB'"
    for call, types in ((read_records, read), (build_index, read), (TFRecordWriter, written)):
        text = re.escape(f"compression_type must be 'auto', None, '', {types}, got {name!r}")
        with pytest.raises(ValueError, match=text):
            call(missing, compression_type=name)


def test_snappy_is_not_written(tmp_path):
    with pytest.raises(
        ValueError,
        match="compression_type must be 'auto', None, '', 'GZIP' or 'ZLIB', got 'SNAPPY'",
    ):
        TFRecordWriter(tmp_path / "a", compression_type="SNAPPY")


@pytest.mark.parametrize("length", [35_615, 40_056, 0x0800008B1F, 55928])
def test_a_plain_file_that_begins_like_a_compressed_one(length, tmp_path):
    assert CODECS.detect(header(length)) == ""
    if length < 2**20:
        path = tmp_path / "x"
        path.write_bytes(framed(bytes(length), b"end"))
        assert [len(record) for record in read_records(path)] == [length, 3]
        assert build_index(path).compression_type == ""


@pytest.mark.parametrize(
    ("first_bytes", "kind"),
    [
        (b"", ""),
        (header(0), ""),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0", "GZIP"),
        (b"\x1f\x8b\x08", "GZIP"),
        (b"\x1f\x8b\x07\0\0\0\0\0\0\x03\x03\0", ""),  # no known method
        (b"\x78\x01abcdefghij", "ZLIB"),
        (b"\x78\x9cabcdefghij", "ZLIB"),
        (b"\x08\x1dabcdefghij", "ZLIB"),
        (b"\x78\x9dabcdefghij", ""),  # no multiple of 31
        (b"\x88\x1cabcdefghij", ""),  # a window that is too large
        (b"\x78\xbbabcdefghij", ""),  # a preset dictionary
        (b"abcdefghijkl", ""),
    ],
)
def test_detection(first_bytes, kind):
    assert CODECS.detect(first_bytes) == kind


# Reading by offset.


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_any_range_in_any_order(kind):  # robustness 34
    source, _ = open_stream(MemorySource(compressed(STREAM, kind)), kind)
    rng = random.Random(0)
    for _ in range(200):
        offset, count = rng.randrange(len(STREAM) + 20), rng.randrange(30)
        assert source.read(count, offset) == STREAM[offset : offset + count]
    source.check_end()


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_a_failed_read_can_be_repeated(kind):  # robustness 16, 72
    content = compressed(STREAM, kind)

    class Flaky(MemorySource):
        fail_at = -1

        def read(self, num_bytes, offset):
            if len(self.reads) == self.fail_at:
                self.fail_at = -1
                raise OSError(5, "injected")
            return super().read(num_bytes, offset)

    for count, offset in [(len(STREAM), 0), (5, 40), (10, len(STREAM) - 3)]:
        for fail_at in range(len(content) + 3):
            file = Flaky(content)
            source, _ = open_stream(file, kind)
            file.reads, file.fail_at = [], fail_at
            source_read = 0
            for _ in range(3):
                try:
                    assert source.read(count, offset) == STREAM[offset : offset + count]
                    source_read += 1
                except OSError as error:
                    assert "injected" in str(error)
            assert source_read >= 2
            source.check_end()


# Bombs.


BOMB = """
import io, resource, struct, sys, zlib
sys.path.insert(0, sys.argv[1])
from helpers import header
from torch_tfrecord import read_records, build_index, TFRecordError
kind, path = sys.argv[2:]
deflater = zlib.compressobj(9, zlib.DEFLATED, 31)
with open(path, "wb") as file:
    file.write(deflater.compress(header(1 << 30) if kind == "framed" else b""))
    for _ in range(1024):
        file.write(deflater.compress(bytes(1 << 20)))
    file.write(deflater.compress(bytes(4)) + deflater.flush())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for call in (lambda: list(read_records(path)), lambda: build_index(path), lambda: build_index(path, verify_crc=False),
             lambda: list(read_records(open(path, "rb"))), lambda: list(read_records(path, on_error="skip"))):
    try:
        call()
        print("no error")
    except (TFRecordError, UserWarning) as error:
        print(type(error).__name__, error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.daily
@pytest.mark.parametrize("kind", ["zeros", "framed"])
def test_a_gibibyte_in_a_megabyte(kind, tmp_path):  # robustness 32
    path = tmp_path / "bomb.gz"
    done = run_python(BOMB, Path(__file__).parents[1] / "support", kind, path)
    assert done.returncode == 0, done.stderr
    *lines, kilobytes = done.stdout.splitlines()
    assert path.stat().st_size < 2 << 20
    assert int(kilobytes) < 64 << 10
    assert len(lines) == 5
    for line in lines[:4]:
        if kind == "framed":
            assert line.startswith("LimitExceededError")
            assert (
                "expected a record of at most 536870912 bytes in a stream, got a length of 1073741824"
                in line
            )
        else:
            assert line.startswith("CorruptRecordError")
            assert "It looks like zeros" in line
    assert "skipped" in lines[4]


# What we write.


def test_gzip_output_is_reproducible(tmp_path, monkeypatch):
    def write(path):
        with TFRecordWriter(path, compression_type="GZIP") as writer:
            for payload in PAYLOADS:
                writer.write(payload)
        return path.read_bytes()

    first = write(tmp_path / "a.tfrecord.gz")
    monkeypatch.setattr("time.time", lambda: 2e9)
    second = write(tmp_path / "another name")
    assert first == second
    assert first[:10].hex() == "1f8b0800000000000003"  # no time, no name: as TensorFlow writes it


def test_a_zlib_stream_whose_stored_block_looks_like_snappy(tmp_path):
    content = framed(*(bytes([number]) * 295 for number in range(9)))
    packer = zlib.compressobj(0)
    # The length of the block, 0x040f, and its complement make a header of Snappy's.
    stored = packer.compress(content[:0x40F]) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert stored[2:7] == b"\x00\x0f\x04\xf0\xfb"
    path = tmp_path / "x"
    path.write_bytes(stored + packer.compress(content[0x40F:]) + packer.flush())
    assert build_index(path).compression_type == "ZLIB"
    assert [*read_records(path)] == [bytes([number]) * 295 for number in range(9)]
