"""Checksums against an independent implementation, and those of a stream up to any of its bytes."""

import base64
import json

import numpy as np
import pytest
from helpers import RECORDS, slow_crc32c, slow_masked
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.files import checksum
from torch_tfrecord.files.checksum import RunningChecksums, crc32c, moved, moved_by

GOLDEN = json.loads((RECORDS / "framing.json").read_text())

BUFFER = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()


@pytest.mark.parametrize("case", GOLDEN["crc32c"], ids=lambda case: case["crc32c"])
def test_golden_checksums(case):  # robustness 3
    data = base64.b64decode(case["data"])
    assert f"{checksum.crc32c(data):08x}" == case["crc32c"]
    assert f"{checksum.masked_crc32c(data):08x}" == case["masked"]
    assert checksum.unmask(int(case["masked"], 16)) == int(case["crc32c"], 16)


@given(st.binary(max_size=300))
def test_checksum_is_crc32c(data):
    assert checksum.masked_crc32c(data) == slow_masked(data)
    assert checksum.crc32c(data[5:], checksum.crc32c(data[:5])) == slow_crc32c(data)


@given(st.integers(0, 2**32 - 1))
def test_mask_and_unmask(crc):
    assert checksum.unmask(checksum.mask(crc)) == crc
    assert int(checksum.mask(np.array([crc], dtype=np.uint32))[0]) == checksum.mask(crc)


def read(num_bytes, offset):
    return BUFFER[offset : offset + num_bytes]


@pytest.mark.parametrize("begin", [0, 1, 63, 64, 65, 4990, 5000])
def test_up_to_any_points(monkeypatch, begin):
    monkeypatch.setattr(checksum, "MARK_BYTES", 64)
    sums = RunningChecksums(read)
    sums.start(begin)
    for seed in range(3):
        points = np.random.default_rng(seed).integers(begin, 5001, 400)
        points[:3] = [begin, 5000, begin]
        assert sums.up_to(points).tolist() == [
            crc32c(BUFFER[begin:point]) for point in points.tolist()
        ]
    assert sums.extend(9000) == 5000
    assert sums.up_to(np.zeros(0, np.int64)).tolist() == []


def test_beginning_later_keeps_what_is_known(monkeypatch):
    monkeypatch.setattr(checksum, "MARK_BYTES", 64)
    asked = []
    sums = RunningChecksums(
        lambda num_bytes, offset: asked.append(num_bytes) or read(num_bytes, offset)
    )
    sums.extend(4500)
    for begin in (100, 128, 700):
        asked.clear()
        sums.start(begin)
        at_begin, at_end = sums.up_to(np.array([begin, 4400]))
        assert sum(asked) <= 3 * 64
        assert at_end ^ moved_by(int(at_begin), 4400 - begin) == crc32c(BUFFER[begin:4400])
    sums.start(4700)  # not known yet
    assert sums.up_to(np.array([4900])).tolist() == [crc32c(BUFFER[4700:4900])]


def test_zeros_are_added_and_taken_off():
    crcs = np.array([0, 1, 0xDEADBEEF, 0xFFFFFFFF], np.uint32)
    for count in (0, 1, 5, 1 << 20, 2**31 - 2, 2**31 - 1, 2**31, 10**12):
        counts = np.full(4, count)
        there = moved(crcs, counts)
        assert moved(there, -counts).tolist() == crcs.tolist()
        assert there.tolist() == [moved_by(crc, count) for crc in crcs.tolist()]
    assert moved_by(crc32c(b"ab"), 3) ^ crc32c(b"cde") == crc32c(b"abcde")
    masked = checksum.mask(crcs)
    assert masked.dtype == np.uint32
    assert checksum.unmask(masked).tolist() == crcs.tolist()
