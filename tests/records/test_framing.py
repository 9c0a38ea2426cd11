"""The records of a buffer, by the core and by its Python fallback: both against the tests' own
framing, then equal.
"""

import io
import random
import struct

import numpy as np
import pytest
from helpers import collect, framed, header, pure_python, slow_masked
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_tfrecord import TFRecordError, read_records
from torch_tfrecord.native import has_native
from torch_tfrecord.records import PackedRecords

MODES = [True, False] if has_native() else [True]


@pytest.fixture(params=MODES, ids=["twin", "native"][: len(MODES)], autouse=True)
def pure(request):
    with pure_python(request.param):
        yield request.param


def outcome(action):
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


def both(action):
    """What an action does in the two modes, which must be the same."""
    results = []
    for mode in MODES:
        with pure_python(mode):
            results.append(outcome(action))
    assert all(result == results[0] for result in results), results
    return results[0]


def scanned(data, **options):
    """The records of a file, and the error that ends it."""
    return collect(read_records(io.BytesIO(data), compression_type="", **options), TFRecordError)


def test_every_flipped_bit():
    for bit in range(8 * 71):
        check_flipped_bit(bit)


def check_flipped_bit(bit):
    payloads = [b"abc", b"", bytes(range(20))]
    borders = [0, 19, 35, 71]
    damaged = bytearray(framed(*payloads))
    damaged[bit // 8] ^= 1 << bit % 8
    number = sum(border <= bit // 8 for border in borders) - 1
    at = bit // 8 - borders[number]
    record = bytes(damaged[borders[number] : borders[number + 1]])
    if at < 12:
        stored = struct.unpack("<QI", record[:12])
        text = f"length checksum {slow_masked(record[:8]):#010x} (of length {stored[0]}), got {stored[1]:#010x}"
    else:
        stored = int.from_bytes(record[-4:], "little")
        text = f"payload checksum {slow_masked(record[12:-4]):#010x}, got {stored:#010x}"
    found, error = scanned(bytes(damaged))
    assert found == payloads[:number]
    assert f"record {number} at byte {borders[number]}: corrupted record: expected {text}" in str(
        error
    )
    found, error = scanned(bytes(damaged), verify_crc=False)
    assert (len(found), error is None) == ((number, False) if at < 12 else (3, True))


buffers = st.lists(
    st.one_of(
        st.binary(max_size=40).map(framed),
        st.binary(max_size=20),
        st.integers(0, 2**64 - 1).map(header),
        st.sampled_from([framed(b"x" * 700), framed(b"y" * 3000)]),
    ),
    max_size=8,
).map(b"".join)


@pytest.mark.daily
@settings(max_examples=500)
@given(
    buffers,
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=3),
)
def test_both_walks_are_the_same(data, verify, flips):
    damaged = bytearray(data)
    for place, mask in flips if data else []:
        damaged[place % len(data)] ^= mask
    both(
        lambda: (lambda found, error: (found, str(error)))(
            *scanned(bytes(damaged), verify_crc=verify)
        )
    )


def test_the_checksum_of_every_size_at_every_address():
    frames = pytest.importorskip("torch_tfrecord.native.frames")
    from crc32c import crc32c as reference

    data = memoryview(random.Random(0).randbytes(20_000))
    sizes = [
        *range(300),
        *range(500, 2000, 17),
        1023,
        1024,
        1279,
        1280,
        6143,
        6144,
        6145,
        12_288 + 191,
        19_000,
    ]
    for size in sizes:
        for at in {0, 1, size % 64}:
            assert frames.crc32c(data[at : at + size]) == reference(data[at : at + size]), (
                size,
                at,
            )
            assert frames.crc32c(data[at : at + size], 0x1234ABCD) == reference(
                data[at : at + size], 0x1234ABCD
            )
    assert frames.crc32c(b"123456789") == 0xE3069283  # the published check value
    assert frames.checksum_by in ("avx512", "sse4.2", "armv8", "tables")


@pytest.mark.parametrize("part", [(-1, 2), (3, 8), (11, 0), (0, 11), (0, -1), (2**62, 2**62)])
def test_parts_outside_the_buffer_are_refused(part):
    starts, lengths = np.array([(1, 2), part], dtype=np.int64).T
    text = f"expected parts of a buffer of 10 bytes, got {part[1]} bytes from {part[0]}"
    assert both(PackedRecords(b"0123456789", starts, lengths).tolist) == (ValueError, text)


def test_one_payload_alone_is_not_copied():
    payload = b"x" * 100
    assert PackedRecords(payload, np.array([0]), np.array([100])).tolist()[0] is payload
    assert PackedRecords(payload, np.array([0]), np.array([99])).tolist() == [payload[:99]]
