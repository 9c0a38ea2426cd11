"""Checksums of ranges; and that damage which claims what follows is gone through once."""

import numpy as np
from helpers import framed

from torch_tfrecord import read_records
from torch_tfrecord.records import resync
from torch_tfrecord.records.checksum import crc32c
from torch_tfrecord.records.range_checksums import range_checksums


def test_any_ranges():
    generator = np.random.default_rng(0)
    buffer = generator.integers(0, 256, 5000, np.uint8).tobytes()
    pairs = np.sort(generator.integers(0, 5001, (400, 2)), axis=1)
    pairs[:3] = [[0, 0], [5000, 5000], [0, 5000]]
    found = range_checksums(buffer, pairs[:, 0], pairs[:, 1])
    assert found.tolist() == [crc32c(buffer[begin:end]) for begin, end in pairs.tolist()]
    assert range_checksums(b"", np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []


def claiming(count):
    """Damage, then good headers that each claim all that follows, then a record."""
    end = framed(b"the record")
    left = [12 * (count - number) + 20 + len(end) for number in range(count)]  # from each header on
    headers = [framed(bytes(size - 16))[:12] for size in left]
    return b"\xff" * 13 + b"".join(headers) + b"\xee" * 20 + end


def test_headers_that_claim_what_follows_are_checked_once(tmp_path, recwarn, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(claiming(300))
    read = []
    whole = resync.whole_record_at
    monkeypatch.setattr(resync, "whole_record_at", lambda *where: read.append(where) or whole(*where))
    assert list(read_records(path, on_corrupt="skip")) == [b"the record"]
    assert len(read) < 5
    assert "skipped 3633 damaged bytes" in str(recwarn.list[0].message)
