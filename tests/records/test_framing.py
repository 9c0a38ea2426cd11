"""Framing and the search for headers, against an independent implementation."""

import base64
import json
import struct

import pytest
from helpers import RECORDS, framed, header, slow_masked
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord import CorruptRecordError
from torch_tfrecord.records import framing

GOLDEN = json.loads((RECORDS / "framing.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["framed"], ids=lambda case: case["framed"][:24])
def test_golden_frames(case):  # robustness 3
    payload, bytes_ = base64.b64decode(case["payload"]), bytes.fromhex(case["framed"])
    assert framing.frame(payload) == bytes_
    assert framed(payload) == bytes_  # the tests' own framing is right, too


def test_golden_bytes_of_the_specification():
    assert framing.frame(b"abc").hex() == "0300000000000000b099490e6162636e57f121"
    assert framing.frame(b"").hex() == "000000000000000029039807d8ea82a2"


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
def test_headers(length):
    assert framing.encode_header(length) == header(length)
    assert framing.is_header(header(length))
    assert framing.payload_length(header(length)) == length


def test_length_out_of_range():
    with pytest.raises(struct.error):
        framing.encode_header(2**64)


def test_a_flipped_bit_is_no_header():
    for bit in range(96):
        damaged = bytearray(header(3))
        damaged[bit // 8] ^= 1 << bit % 8
        assert not framing.is_header(bytes(damaged))
        with pytest.raises(
            CorruptRecordError, match=r"expected length checksum 0x[0-9a-f]{8} \(of len"
        ):
            framing.payload_length(bytes(damaged))


def _slow_find_headers(data):
    return [
        at
        for at in range(len(data) - 11)
        if data[at + 8 : at + 12] == struct.pack("<I", slow_masked(data[at : at + 8]))
    ]


@pytest.mark.daily
@given(
    st.lists(st.one_of(st.binary(max_size=30), st.integers(0, 2**48 - 1).map(header)), max_size=8)
)
def test_find_headers_against_a_slow_search(parts):
    data = b"".join(parts)
    for step in (1, 5, 12, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(framing, "_SEARCH_BYTES", step)
            assert framing.find_headers(data) == _slow_find_headers(data)
    assert framing.find_headers(data) == _slow_find_headers(data)


GUESSES = [
    (b"version https://git-lfs.github.com/spec/v1\n", "git-LFS"),
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG image"),
    (b"\xff\xd8\xff\xe0\0\x10JFIF", "a JPEG image"),
    (b"GIF89a\1\0", "a GIF image"),
    (b"PAR1\x15\x04", "a parquet file"),
    (b"PK\x03\x04\x14", "a zip archive"),
    (b"BZh91AY", "a bzip2 stream"),
    (b"\x28\xb5\x2f\xfd\x04", "a zstd stream"),
    (b"<!DOCTYPE html>", "an HTML page"),
    (b"\n  <HTML lang='de'>", "an HTML page"),
    (b"<?xml version='1.0'?>", "an XML file"),
    (b"\0" * 64, "zeros"),
    (b"label,image\n3,a.png\n", "text"),
]


@pytest.mark.parametrize(("data", "name"), GUESSES, ids=[name for _, name in GUESSES])
def test_guess_content(data, name):  # robustness 13
    assert name in framing.guess_content(data)
