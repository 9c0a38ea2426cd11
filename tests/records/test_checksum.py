"""Checksums against an independent implementation."""

import base64
import json

import numpy as np
import pytest
from helpers import RECORDS, slow_crc32c, slow_masked
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.files import checksum

GOLDEN = json.loads((RECORDS / "framing.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["crc32c"], ids=lambda case: case["crc32c"])
def test_golden_checksums(case):  # robustness 3
    data = base64.b64decode(case["data"])
    assert f"{checksum.crc32c(data):08x}" == case["crc32c"]
    assert f"{checksum.masked_crc32c(data):08x}" == case["masked"]


@given(st.binary(max_size=300))
def test_checksum_is_crc32c(data):
    assert checksum.masked_crc32c(data) == slow_masked(data)
    assert checksum.crc32c(data[5:], checksum.crc32c(data[:5])) == slow_crc32c(data)


def test_masks_of_an_array_keep_its_type():
    crcs = np.array([0, 1, 0xDEADBEEF, 0xFFFFFFFF], np.uint32)
    masked = checksum.mask(crcs)
    assert masked.dtype == np.uint32
    assert masked.tolist() == [checksum.mask(crc) for crc in crcs.tolist()]
