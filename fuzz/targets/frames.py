"""Plain files of records: walk, scan, stream, random access and skipping, against a walk in plain
Python.
"""

import io

import numpy as np
from tools import File, collected, damage, framed, good_records, header, outcome, record_at

from torch_tfrecord import build_index, read_records
from torch_tfrecord.files import open_file
from torch_tfrecord.records.packed_records import _walk, walk
from torch_tfrecord.records.reader import RecordReader
from torch_tfrecord.records.scan import RecordScanner

COMPILED = True
_FILE = File("records")


def seeds():
    small = [b"", b"a", b"bc" * 5, bytes(40)]
    return [
        b"",
        framed(small),
        framed([framed(small), b"x"]),
        framed([b"r" * 300] * 4),
        framed([bytes(9)] * 90),
    ]


def mutate(rng, data):
    at = rng.randrange(len(data) + 1)
    how = rng.randrange(6)
    if how == 0:  # a good header that lies
        length = rng.choice(
            [0, 1, 7, 100, len(data), 2**31, 2**47, 2**62, 2**63 - 16, 2**63, 2**64 - 1]
        )
        return data[:at] + header(length) + data[at:]
    if how == 1:
        return data[:at] + framed([rng.randbytes(rng.randrange(30))]) + data[at:]
    if how == 2 and len(data) > 16:
        begin = data.find(header(1)) if rng.random() < 0.5 else 0
        return damage(rng, data[begin:], 1)
    return damage(rng, data, 3) if rng.random() < 0.9 else data


def _read(data, **options):
    found, error = collected(read_records(data, compression_type="", **options))
    return found, error is None


def _read_ahead(path, chunk):
    source = open_file(path)
    source.chunk_bytes = chunk
    blocks, error = collected(RecordScanner(source, wanted=lambda: (1, 3), is_ahead=True))
    return [payload for block in blocks for payload in block.payloads], error is None


def check(data):
    wanted = payloads, is_whole = good_records(data)
    native, twin = walk(data, verify_crc=True), _walk(data, True)
    for found in (native, twin):
        assert [
            data[start : start + size]
            for start, size in zip(found.starts, found.lengths, strict=True)
        ] == payloads
        assert not is_whole or (found.problem is None and found.used == len(data))
    assert native[2:4] == twin[2:4] and str(native.problem) == str(twin.problem)
    assert _read(io.BytesIO(data)) == wanted
    path = _FILE.write(data)
    assert _read(path) == wanted
    for chunk in (32, 1 << 19):  # most blocks are read ahead; the first never is
        assert _read_ahead(path, chunk) == wanted
    index, error = outcome(build_index, path, compression_type="")
    assert (error is None) == is_whole
    _read_at_random(path, payloads, index)
    skipped, _ = _read(path, on_error="skip")
    assert skipped[: len(payloads)] == payloads
    at = 0  # whatever comes behind damage is a good record, in order
    for each in skipped:
        at = (
            next(place for place in range(at, len(data)) if record_at(data, place) == each)
            + len(each)
            + 16
        )


def _read_at_random(path, payloads, index):
    sizes = np.array([len(each) for each in payloads], np.int64)
    offsets = np.cumsum(sizes + 16) - sizes - 16
    if index is not None:
        assert (
            index.offsets.tolist() == offsets.tolist() and index.lengths.tolist() == sizes.tolist()
        )
    source, reader = open_file(path), RecordReader()
    order = np.arange(len(sizes))[::-2]
    records = reader.read_batch(
        lambda _: source, np.zeros(len(order), np.int64), offsets[order], sizes[order]
    )
    assert records.tolist() == [payloads[number] for number in order]
    for number in order[:2].tolist():
        assert reader.read(source, int(offsets[number]), int(sizes[number])) == payloads[number]
