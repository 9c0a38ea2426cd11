"""Compressed streams: what zlib gives of them byte by byte, or cramjam block by block, then a walk
in plain Python.
"""

import gzip
import io
import zlib

import cramjam
from packed_streams import BITS
from targets import frames
from tools import collected, damage, framed, good_records, inflated

from torch_tfrecord import read_records

COMPILED = True


def seeds():
    plain = [framed([b"a", b"bc" * 20, b""]), framed([b"text " * 40] * 9), b"", b"no record at all"]
    streams = [b"G" + gzip.compress(each, mtime=0) for each in plain] + [
        b"Z" + zlib.compress(each) for each in plain
    ]
    streams += [b"S" + _snappy(each, size) for each in plain for size in (16, 100)]
    return [*streams, streams[0] + streams[1][1:], streams[4] + streams[5][1:]]


def _snappy(data, size):
    blocks = [
        bytes(cramjam.snappy.compress_raw(data[at : at + size])) for at in range(0, len(data), size)
    ]
    return b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def mutate(rng, data):
    if rng.random() < 0.3:
        inner = frames.mutate(rng, rng.choice(frames.seeds()))
        if rng.random() < 0.3:
            return b"S" + _snappy(inner, rng.randrange(12, 99))
        return (
            b"Z" + zlib.compress(inner)
            if rng.random() < 0.5
            else b"G" + gzip.compress(inner, mtime=0)
        )
    return data[:1] + damage(rng, data[1:], 2)


def check(data):
    kind, stream = {b"G": "GZIP", b"S": "SNAPPY"}.get(data[:1], "ZLIB"), data[1:]
    content, is_sound = _unsnapped(stream) if kind == "SNAPPY" else inflated(stream, BITS[kind])
    payloads, is_whole = good_records(content)
    found, error = collected(read_records(io.BytesIO(stream), compression_type=kind))
    # by its first bytes
    is_refused = error is not None and not found and f"compression_type='{kind}'" in str(error)
    assert found == payloads or is_refused
    assert (error is None) == (is_sound and is_whole)


def _unsnapped(stream):
    """All bytes of blocks, each after its length, in front of any damage, and whether there is none."""
    out, at = bytearray(), 0
    while at < len(stream):
        block = stream[at + 4 : at + 4 + int.from_bytes(stream[at : at + 4], "big")]
        if len(stream) < at + 4 or len(block) < int.from_bytes(stream[at : at + 4], "big"):
            return bytes(out), False
        try:
            out += bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError:
            return bytes(out), False
        at += 4 + len(block)
    return bytes(out), True
