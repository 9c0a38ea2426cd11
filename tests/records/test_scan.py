"""Walking a stream: damage of every kind, read sizes, large records, and going on behind damage."""

import itertools
import random
import re
import struct
import tracemalloc

import numpy as np
import pytest
from helpers import collect, compressed, for_each, framed, header, random_payloads, slow_masked
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_tfrecord import (
    CompressionError,
    CorruptRecordError,
    IndexMismatchError,
    LimitExceededError,
    TFRecordError,
    build_index,
    read_records,
)
from torch_tfrecord.files import FileSource, LocalFile, open_file
from torch_tfrecord.records import (
    RecordReader,
    RecordScanner,
    SkippedBytes,
    open_stream,
)

THREE = [b"abc", b"", bytes(range(20))]
BORDERS = [0, 19, 35, 71]
CHUNKS = [*range(1, 21), 64, 65536]


class MemorySource(FileSource):
    """A stream of known size, in memory; counts what is asked for."""

    path = "m"
    max_record_bytes = None

    def __init__(self, content, chunk_bytes=1 << 19, cut=None):
        self.content = content if cut is None else content[:cut]
        self.size = len(content)
        self.chunk_bytes = chunk_bytes
        self.most_asked = 0

    def read(self, num_bytes, offset):
        self.most_asked = max(self.most_asked, num_bytes)
        return self.content[offset : offset + num_bytes]

    def check_end(self):
        pass


def scan_all(source, **options):
    """Payloads, offsets, and the error that ended the scan."""
    blocks, error = collect(RecordScanner(source, **options), TFRecordError)
    payloads = [payload for block in blocks for payload in block.payloads or ()]
    offsets = [offset for block in blocks for offset in block.offsets]
    numbers = [block.position + number for block in blocks for number in range(len(block.offsets))]
    assert numbers == list(range(len(offsets))) or options.get("skipped") is not None
    return payloads, offsets, error


@pytest.fixture
def file(tmp_path):
    """Writes bytes to a new file and returns its path."""
    numbers = itertools.count()

    def write(content):
        path = tmp_path / f"f{next(numbers)}"
        path.write_bytes(content)
        return str(path)

    return write


# Read sizes, options, large records.


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
@pytest.mark.parametrize("verify_crc", [False, True])
@pytest.mark.parametrize("keep_payloads", [False, True])
# robustness 1, 2
def test_every_read_size(file, monkeypatch, chunk_bytes, verify_crc, keep_payloads):
    monkeypatch.setattr(LocalFile, "chunk_bytes", chunk_bytes)
    payloads = [*THREE, b"x" * 300, *random_payloads(40, 1), b""]
    source = open_file(file(framed(*payloads)))
    assert source.chunk_bytes == chunk_bytes
    blocks = list(RecordScanner(source, verify_crc=verify_crc, keep_payloads=keep_payloads))
    lengths = [length for block in blocks for length in block.lengths]
    assert lengths == list(map(len, payloads))
    ends = list(itertools.accumulate(length + 16 for length in lengths))
    assert [offset for block in blocks for offset in block.offsets] == [0, *ends[:-1]]
    if keep_payloads:
        assert [payload for block in blocks for payload in block.payloads] == payloads
    else:
        assert all(block.payloads is None for block in blocks)


def test_an_empty_stream():  # robustness 1
    assert scan_all(MemorySource(b"")) == ([], [], None)


def test_a_hundred_thousand_small_records(file):  # robustness 4
    record = framed(b"abcdef")
    path = file(record * 100_000)
    assert sum(payload == b"abcdef" for payload in read_records(path)) == 100_000
    assert build_index(path).offsets[-1] == 99_999 * len(record)


@pytest.mark.parametrize("verify_crc", [False, True])
@pytest.mark.parametrize("keep_payloads", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_large_records_in_groups(seed, verify_crc, keep_payloads):  # robustness 5
    rng = random.Random(seed)
    sizes = [rng.choice([0, 5, 39, 40, 41, 60, 199, 200, 201, 700]) for _ in range(60)]
    payloads = [rng.randbytes(size) for size in sizes]
    source = MemorySource(framed(*payloads), chunk_bytes=100)
    read, offsets, error = scan_all(source, verify_crc=verify_crc, keep_payloads=keep_payloads)
    assert error is None
    assert len(offsets) == 60
    assert read == (payloads if keep_payloads else [])


def _large_damage():
    sizes = [10, 80, 90, 100, 5, 300, 60, 70, 80, 90, 50]
    begins = [0, *itertools.accumulate(size + 16 for size in sizes)]
    for number, size in enumerate(sizes):
        begin = begins[number]
        for place, at in [
            ("length", 1),
            ("length CRC", 9),
            ("payload", 12 + size // 2),
            ("footer", 15 + size),
        ]:
            yield pytest.param(sizes, number, begin, begin + at, place, id=f"{number}-{place}")


@pytest.mark.parametrize(("sizes", "number", "begin", "at", "place"), [*_large_damage()])
def test_damage_among_large_records(sizes, number, begin, at, place):  # robustness 8
    payloads = [bytes([n]) * size for n, size in enumerate(sizes)]
    content = bytearray(framed(*payloads))
    content[at] ^= 0x10
    read, _, error = scan_all(MemorySource(bytes(content), chunk_bytes=64))
    assert read == payloads[:number]
    assert (error.path, error.offset, error.position) == ("m", begin, number)
    what = "length checksum" if place.startswith("length") else "payload checksum"
    assert f"m: record {number} at byte {begin}: corrupted record: expected {what} 0x" in str(error)
    # Only a damaged first header raises the question what the file is.
    assert ("(Is this even a TFRecord file?" in str(error)) == (
        number == 0 and place.startswith("length")
    )
    # Without checksums of payloads the damage is none.
    read, _, error = scan_all(MemorySource(bytes(content), chunk_bytes=64), verify_crc=False)
    assert (error is None) == (not place.startswith("length"))


def test_a_first_large_record_with_a_damaged_payload_is_still_a_tfrecord_file():
    content = bytearray(framed(b"x" * 50, b"y" * 50))
    content[20] ^= 1
    _, _, error = scan_all(MemorySource(bytes(content)))
    assert "payload checksum" in str(error)
    assert "Is this even" not in str(error)


@pytest.mark.parametrize("keep_payloads", [False, True])
@pytest.mark.parametrize("verify_crc", [False, True])
def test_every_truncation_among_large_records(verify_crc, keep_payloads):
    payloads = [b"a" * 50, b"b" * 60, b"c", b"d" * 45]
    content = framed(*payloads)
    ends = [0, *itertools.accumulate(len(payload) + 16 for payload in payloads)]
    for cut in range(len(content)):
        for source in (MemorySource(content[:cut], 32), MemorySource(content, 32, cut=cut)):
            _, offsets, error = scan_all(source, verify_crc=verify_crc, keep_payloads=keep_payloads)
            if keep_payloads or verify_crc or source.size == cut:
                assert len(offsets) == sum(end <= cut for end in ends[1:]), cut
            # A stream cut since it was opened is an error at record borders, too.
            if source.size == cut:
                assert (error is None) == (cut in ends), cut
            elif keep_payloads or verify_crc or cut < ends[3]:
                assert isinstance(error, CorruptRecordError), cut
                assert "truncated" in str(error)


# Truncation and flipped bits of a file of three records, front to back and by index.


@pytest.mark.parametrize("wanted", [(1, 1), (3, 7), (40, 64), (1000, 1000)])
@pytest.mark.parametrize("damaged", [None, 50, 199])
def test_blocks_of_as_many_as_are_wanted(file, wanted, damaged):
    draw = random.Random(5)
    sizes = [*draw.choices([0, 1, 100, 5000, 70_000], k=120), 900_000, *[5000] * 80]
    payloads = [draw.randbytes(size) for size in sizes]
    content = bytearray(framed(*payloads))
    whole = len(payloads) if damaged is None else damaged
    if damaged is not None:
        content[sum(sizes[:damaged]) + 16 * damaged + 12] ^= 1
    source = open_file(file(bytes(content)))
    found, error = collect(RecordScanner(source, wanted=lambda: wanted), TFRecordError)
    assert [payload for block in found for payload in block.payloads] == payloads[:whole]
    assert [block.position for block in found] == [
        sum(len(block.offsets) for block in found[:number]) for number in range(len(found))
    ]
    assert (error is None) == (damaged is None)


def test_iterating_again_goes_on(file):
    payloads = random_payloads(200, 3)
    source = MemorySource(framed(*payloads), chunk_bytes=256)
    scanner = RecordScanner(source)
    read = []
    for _ in range(1000):
        for block in scanner:
            read += block.payloads
            break
        else:
            break
    assert read == payloads


def test_every_truncation(file):  # robustness 6
    for cut in range(BORDERS[-1] + 1):
        check_every_truncation(file, cut)


def check_every_truncation(file, cut):
    whole = framed(*THREE)
    path = file(whole[:cut])
    before = sum(0 < border <= cut for border in BORDERS)
    read, error = collect(read_records(path), TFRecordError)
    assert read == THREE[:before]
    if cut in BORDERS:
        assert error is None
        return
    begin = BORDERS[before]
    assert type(error) is CorruptRecordError
    assert (error.path, error.offset, error.position) == (path, begin, before)
    left, length = cut - begin, len(THREE[before])
    what = (
        f"truncated header: {left} of 12 bytes"
        if left < 12
        else f"truncated record: expected {length + 16} bytes (payload {length}), got {left} up to the end"
    )
    assert str(error).startswith(f"{path}: record {before} at byte {begin}: {what}")
    with pytest.raises(CorruptRecordError, match=re.escape(what)):
        build_index(path)


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_every_truncation_through_an_index_of_the_whole(file, kind):  # robustness 6, 66
    whole = compressed(framed(*THREE), kind)
    index = build_index(file(whole))
    for cut in range(len(whole)):
        source = open_file(file(whole[:cut]))
        with pytest.raises(
            IndexMismatchError, match=f"expected a file of {len(whole)} bytes, got {cut}"
        ):
            index.check_fresh(source)
        try:
            stream, _ = open_stream(source, kind)
        except CompressionError:
            assert cut < 2
            continue
        for number, payload in enumerate(THREE):
            try:
                read = RecordReader().read(
                    stream, int(index.offsets[number]), int(index.lengths[number])
                )
            except (CorruptRecordError, CompressionError) as error:
                assert error.path == source.path
                assert error.offset == index.offsets[number]
            else:
                assert read == payload


@pytest.mark.slow
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "auto"])
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_every_flipped_bit_of_a_compressed_file(file, kind, declared):  # robustness 31
    whole = compressed(framed(*THREE), kind)
    index = build_index(file(whole))
    silent = []
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path = file(bytes(damaged))
        read, error = collect(
            read_records(path, compression_type=kind if declared else "auto"), TFRecordError
        )
        assert read == THREE[: len(read)], bit
        if error is None:
            assert read == THREE, bit
            silent.append(bit)
        else:
            assert isinstance(error, (CorruptRecordError, CompressionError)), bit
            assert path in str(error)
        try:
            source, _ = open_stream(open_file(path), kind)
        except CompressionError:
            continue
        for number in (2, 0, 1):
            try:
                got = RecordReader().read(
                    source, int(index.offsets[number]), int(index.lengths[number])
                )
            except (CorruptRecordError, CompressionError, IndexMismatchError):
                continue
            assert got == THREE[number], bit
    # Bits that carry no data: gzip's text flag, time, hints and system, and what fills up the last
    # byte of the body.
    trailer = {"GZIP": 8, "ZLIB": 4}[kind]
    fill = range(8 * (len(whole) - trailer - 1) + 1, 8 * (len(whole) - trailer))
    harmless = {*fill, 8 * 3, *range(8 * 4, 8 * 10)} if kind == "GZIP" else set(fill)
    assert set(silent) <= harmless


@pytest.mark.parametrize(("kind", "extra"), [(b"\0", 512), (b"\xa5\x3c\x99", 171), (b"junk", 10)])
def test_bytes_behind_the_last_record(file, kind, extra):  # robustness 11
    junk = kind * extra
    for count in [*range(1, 65), len(junk)]:
        tail = junk[:count]
        path = file(framed(*THREE) + tail)
        read, error = collect(read_records(path), TFRecordError)
        assert read == THREE
        what = (
            f"truncated header: {len(tail)} of 12 bytes"
            if len(tail) < 12
            else "corrupted record: expected length"
        )
        assert str(error).startswith(f"{path}: record 3 at byte 71: {what}")


# Lengths that no honest file has.

HUGE = [
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 16,
    2**64 - 4,
    2**64 - 1,
]


class Pipe:
    """A binary file object that can only be read forward, a few bytes at a time."""

    name = "pipe"

    def __init__(self, content, piece=7):
        self._content, self._at, self._piece = content, 0, piece

    def read(self, num_bytes):
        data = self._content[self._at : self._at + min(num_bytes, self._piece)]
        self._at += len(data)
        return data


@for_each("verify_crc", [False, True])
@for_each("before", [[], [b"abc"]])
@for_each("way", ["plain", "GZIP", "ZLIB", "pipe", "pipe+GZIP"])
@for_each("length", HUGE)
# robustness 9, 10, 17
def test_huge_lengths_with_a_good_checksum(file, length, way, before, verify_crc):
    content = framed(*before) + header(length) + b"some bytes of a payload"
    kind = way.removeprefix("pipe").removeprefix("+").replace("plain", "")
    data = compressed(content, kind)
    source = Pipe(data) if way.startswith("pipe") else file(data)
    tracemalloc.start()
    try:
        read, error = collect(read_records(source, verify_crc=verify_crc), TFRecordError)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert read == before
    offset = 19 * len(before)
    if way == "plain":
        assert type(error) is CorruptRecordError
        what = f"truncated record: expected {length + 16} bytes (payload {length}), got 35 up to the end"
    else:
        assert type(error) is LimitExceededError
        what = f"expected a record of at most {1 << 29} bytes in a stream, got a length of {length}"
    note = " (offset in the decompressed stream)" if kind else ""
    path = "pipe" if isinstance(source, Pipe) else source
    assert str(error) == f"{path}: record {len(before)} at byte {offset}: {what}{note}"


@pytest.mark.parametrize("length", [1000, 10**6, 2**29])
@pytest.mark.parametrize("way", ["GZIP", "pipe"])
# robustness 10
def test_lengths_below_the_limit_of_a_stream_take_no_more_than_is_there(way, length):
    content = framed(b"abc") + header(length) + b"some bytes"
    source = Pipe(compressed(content, "GZIP") if way == "GZIP" else content)
    tracemalloc.start()
    try:
        read, error = collect(read_records(source), TFRecordError)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert read == [b"abc"]
    assert (
        f"truncated record: expected {length + 16} bytes (payload {length}), got 22 up to the end"
        in str(error)
    )


def test_huge_lengths_by_index():
    source = MemorySource(framed(b"abc") + header(2**40) + b"x")
    with pytest.raises(CorruptRecordError, match="truncated record"):
        RecordReader().read(source, 19, 2**40)


def test_plain_reads_never_ask_for_more_than_is_left():
    content = framed(b"abc", b"y" * 300) + header(2**50)
    source = MemorySource(content, chunk_bytes=64)
    scan_all(source)
    assert source.most_asked <= 316


# Going on behind damage.


def skip_all(content, **options):
    skipped = SkippedBytes()
    payloads, _, error = scan_all(MemorySource(content, **options), skipped=skipped)
    assert error is None
    return payloads, skipped


def damage(content, *places):
    damaged = bytearray(content)
    for place in places:
        damaged[place] ^= 0xFF
    return bytes(damaged)


FIVE = [b"first", b"second", b"", b"the fourth", b"x" * 40]
STARTS = [0, 21, 43, 59, 85, 141]


@for_each("chunk_bytes", [1, 7, 16, 64, 65536])
@for_each("part", ["length", "length CRC", "payload", "payload CRC"])
@for_each("number", range(5))
def test_skipping_loses_exactly_the_damaged_record(number, part, chunk_bytes):  # robustness 21
    begin, length = STARTS[number], len(FIVE[number])
    if part == "payload" and not length:
        return  # an empty payload cannot be damaged
    at = begin + {"length": 0, "length CRC": 10, "payload": 12, "payload CRC": 12 + length}[part]
    payloads, skipped = skip_all(damage(framed(*FIVE), at), chunk_bytes=chunk_bytes)
    assert payloads == FIVE[:number] + FIVE[number + 1 :]
    assert skipped.ranges == [(begin, STARTS[number + 1])]
    assert skipped.num_records == 1
    assert (skipped.errors[0].offset, skipped.errors[0].position) == (begin, number)


@for_each("cut", range(STARTS[-1] + 1))
def test_skipping_a_cut_tail(cut):
    payloads, skipped = skip_all(framed(*FIVE)[:cut])
    count = sum(start <= cut for start in STARTS[1:])
    assert payloads == FIVE[:count]
    assert skipped.ranges == ([] if cut in STARTS else [(STARTS[count], cut)])


@pytest.mark.parametrize("count", [1, 11, 12, 13, 100])
def test_skipping_junk(count):
    junk = bytes(range(100, 200))[:count]
    payloads, skipped = skip_all(framed(*FIVE) + junk)
    assert (payloads, skipped.ranges) == (FIVE, [(141, 141 + count)])
    payloads, skipped = skip_all(junk + framed(*FIVE))
    assert (payloads, skipped.ranges) == (FIVE, [(0, count)])
    payloads, skipped = skip_all(framed(*FIVE) + junk + framed(*FIVE))
    assert (payloads, skipped.ranges) == (FIVE * 2, [(141, 141 + count)])


NESTED = {
    "one record": framed(b"inner"),
    "two records": framed(b"inner", b"more"),
    "at its end": b"junk" + framed(b"inner"),
    "in its middle": b"junk" + framed(b"inner") + b"junk",
    "itself nested": framed(framed(b"inner")),
    "many": framed(*[b"inner"] * 50),
}


@for_each("place", [10, -1])
@for_each("around", ["first", "middle", "last"])
@for_each("inner", NESTED.values())
# robustness 15
def test_records_inside_a_payload_are_never_taken_for_records(inner, around, place):
    before = [] if around == "first" else [b"before"]
    after = [] if around == "last" else [b"after", b"end"]
    content = framed(*before, inner, *after)
    assert scan_all(MemorySource(content))[0] == [*before, inner, *after]
    begin = len(framed(*before))
    end = begin + len(inner) + 16
    payloads, skipped = skip_all(damage(content, end - 1 if place == -1 else begin + place))
    assert payloads == [*before, *after]
    assert skipped.ranges == [(begin, end)]


@pytest.mark.parametrize("way", ["pipe", "GZIP"])
def test_skipping_goes_only_forward(tmp_path, way):
    """A pipe cannot be read again: the search must do with what it still holds."""
    rng = random.Random(5)
    parts = [
        framed(rng.randbytes(3000)) if n % 3 else damage(framed(rng.randbytes(3000)), 3)
        for n in range(30)
    ]
    content = b"".join(parts)
    with pytest.warns(UserWarning, match="in 10 places"):
        read = list(
            read_records(Pipe(compressed(content, way.replace("pipe", "")), 1000), on_error="skip")
        )
    assert len(read) == 20


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_skipping_the_cut_end_of_a_compressed_stream(file, kind):
    whole = compressed(framed(*FIVE), kind)
    for cut in range(2, len(whole)):
        read = [*read_records(file(whole[:cut]), compression_type=kind, on_error="skip")]
        assert read == FIVE[: len(read)]


def test_what_a_reader_holds_of_a_pipe_is_searched_again(recwarn):
    """Also where it has read on: a record that does not fit into what was read."""
    good, bad = framed(bytes(range(250)) * 1400), damage(framed(b"x" * 300_000), 99)
    content = good + bad + framed(b"behind") + bad + framed(b"end")
    assert [*read_records(Pipe(content, 1000), on_error="skip")][1:] == [b"behind", b"end"]


def test_the_one_warning_of_a_skipping_reader(file):  # robustness 21
    path = file(damage(framed(*FIVE), 12, 43) + b"tail")
    with pytest.warns(UserWarning) as caught:
        assert list(read_records(path, on_error="skip")) == [FIVE[1], FIVE[3], FIVE[4]]
    assert len(caught) == 1
    text = str(caught[0].message)
    assert text.startswith(
        f"{path}: skipped 41 damaged bytes (at least 3 records) in 3 places: [0, 21), [43, 59), [141, 145); "
        f"the first: {path}: record 0 at byte 0: corrupted record: expected payload checksum "
    )


def test_the_warning_names_ten_ranges_at_most(file):
    path = file(b"".join(damage(framed(b"a"), 12) + framed(b"b") for _ in range(15)))
    with pytest.warns(UserWarning, match=r"in 15 places: .*\[306, 323\) and 5 more; the first"):
        assert list(read_records(path, on_error="skip")) == [b"b"] * 15


def test_nothing_damaged_nothing_said(file):
    assert list(read_records(file(framed(*FIVE)), on_error="skip")) == FIVE


def _is_subsequence(part, whole):
    rest = iter(whole)
    return all(item in rest for item in part)


@pytest.mark.daily
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_damage_never_gives_a_wrong_record(data):  # fuzz target "record stream, plain"
    seed = data.draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    # Each payload begins with its number, so that no two are the same.
    payloads = [
        struct.pack("<I", n) + rng.randbytes(rng.choice([0, 5, 60, 300]))
        for n in range(rng.randrange(1, 30))
    ]
    content = bytearray(framed(*payloads))
    starts = [0, *itertools.accumulate(len(payload) + 16 for payload in payloads)]
    hit = set()
    for _ in range(rng.randrange(1, 5)):
        at, count = rng.randrange(len(content)), rng.choice([1, 1, 2, 8, 50])
        for place in range(at, min(at + count, len(content))):
            content[place] ^= rng.randrange(1, 256)
        hit |= {n for n in range(len(payloads)) if starts[n] < at + count and at < starts[n + 1]}
    read, offsets, error = scan_all(
        MemorySource(bytes(content), chunk_bytes=rng.choice([1, 30, 1000]))
    )
    assert isinstance(error, CorruptRecordError) or content == framed(*payloads)
    assert read == payloads[: len(read)]
    assert offsets == starts[: len(read)]
    read, skipped = skip_all(bytes(content), chunk_bytes=rng.choice([1, 30, 1000]))
    assert _is_subsequence(read, payloads)
    assert {payload for n, payload in enumerate(payloads) if n not in hit} <= set(read)
    # The ranges and the records together are the file, without a gap.
    covered = sum(end - begin for begin, end in skipped.ranges) + sum(
        len(payload) + 16 for payload in read
    )
    assert covered == len(content)


@pytest.mark.daily
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_random_insertions_and_deletions(data):
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    payloads = [
        struct.pack("<I", n) + rng.randbytes(rng.choice([0, 5, 60]))
        for n in range(rng.randrange(1, 20))
    ]
    content = bytearray(framed(*payloads))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(content) + 1)
        if rng.random() < 0.5:
            content[at:at] = rng.randbytes(rng.randrange(1, 40))
        else:
            del content[at : at + rng.randrange(1, 40)]
    read, _, _ = scan_all(MemorySource(bytes(content)))
    assert set(read) <= set(payloads)
    read, _ = skip_all(bytes(content))
    assert _is_subsequence(read, payloads)


@pytest.mark.daily
@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([1, 64, 4096]))
def test_any_bytes_at_all(content, chunk_bytes):
    """Only our errors; what is read frames to the bytes that were read."""
    read, _, error = scan_all(MemorySource(content, chunk_bytes=chunk_bytes))
    assert content.startswith(framed(*read))
    assert (error is None) == (content == framed(*read))
    assert _framed_in_order(skip_all(content)[0], content)


def _framed_in_order(payloads, content):
    at = 0
    for payload in payloads:
        at = content.find(framed(payload), at)
        if at < 0:
            return False
        at += len(payload) + 16
    return True


def test_footers_are_checked_with_the_right_mask():
    """An unmasked checksum, as a foreign writer may store it, is damage."""
    content = header(3) + b"abc" + struct.pack("<I", slow_masked(b"abc") ^ 1)
    assert isinstance(scan_all(MemorySource(content))[2], CorruptRecordError)


@pytest.mark.parametrize("num_bytes", [1, 17, 100, 5000, 1 << 24])
@pytest.mark.parametrize("num_records", [1, 2, 7, 1 << 14])
def test_index_scans_in_windows_of_any_size(tmp_path, monkeypatch, num_records, num_bytes):
    # The compiled core looks at so many records and bytes by one call.
    monkeypatch.setattr("torch_tfrecord.records.scan._QUICK_RECORDS", num_records)
    monkeypatch.setattr("torch_tfrecord.records.scan._QUICK_BYTES", num_bytes)
    monkeypatch.setattr(LocalFile, "chunk_bytes", 1000)
    payloads = [b"x" * size for size in (0, 5, 300, 983, 984, 985, 3000, 1, 0, 0, 40, 2000, 7)]
    path = tmp_path / "a"
    path.write_bytes(framed(*payloads))
    starts = np.cumsum([0, *(len(payload) + 16 for payload in payloads)]).tolist()
    blocks = list(RecordScanner(LocalFile(str(path)), keep_payloads=False))
    assert [offset for block in blocks for offset in block.offsets.tolist()] == starts[:-1]
    assert [length for block in blocks for length in block.lengths.tolist()] == [
        *map(len, payloads)
    ]
    positions = [block.position for block in blocks]
    assert positions == np.cumsum([0, *(len(block.offsets) for block in blocks)]).tolist()[:-1]
    for number, start in enumerate(starts[:-1]):
        for at in (start, start + 8, start + 12 + len(payloads[number])):
            damaged = bytearray(framed(*payloads))
            damaged[at] ^= 4
            path.write_bytes(damaged)
            found, error = [], None
            try:
                for block in RecordScanner(LocalFile(str(path)), keep_payloads=False):
                    found += block.offsets.tolist()
            except CorruptRecordError as caught:
                error = caught
            assert (found, error.position, error.offset) == (starts[:number], number, start)
