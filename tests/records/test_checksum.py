"""Checksums against an independent implementation."""

import base64
import json

import pytest
from crc32c import crc32c
from helpers import RECORDS, slow_crc32c, slow_masked
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.records.framing import masked_crc32c

GOLDEN = json.loads((RECORDS / "framing.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["crc32c"], ids=lambda case: case["crc32c"])
def test_golden_checksums(case):  # robustness 3
    data = base64.b64decode(case["data"])
    assert f"{crc32c(data):08x}" == case["crc32c"]
    assert f"{masked_crc32c(data):08x}" == case["masked"]


@given(st.binary(max_size=300))
def test_checksum_is_crc32c(data):
    assert masked_crc32c(data) == slow_masked(data)
    assert crc32c(data[5:], crc32c(data[:5])) == slow_crc32c(data)
