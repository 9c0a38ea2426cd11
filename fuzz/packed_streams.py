"""Compressed files of many kinds: what zlib can make, and the members of other tools and ours."""

import contextlib
import importlib
import os
import struct
import zlib
from itertools import pairwise

import numpy as np
from crc32c import crc32c
from tools import FOLDER

from torch_tfrecord import TFRecordWriter

BITS = {"GZIP": 31, "ZLIB": 15}


def parts(rng, data, most):
    """The data in pieces, up to so many bytes each."""
    at = 0
    while at < len(data):
        size = rng.choice([rng.randrange(1, most), rng.randrange(most // 2, most)])
        yield data[at : at + size]
        at += size


# The inputs of fuzz/corpus name streams by what draws them: whoever changes how they are drawn makes
# other streams of them.


def _packer(rng, bits):
    level, memory = rng.randrange(-1, 10), rng.choice([1, 2, 3, 4, 5, 6, 8, 9])
    strategy = rng.choice([zlib.Z_DEFAULT_STRATEGY] * 4 + [zlib.Z_FILTERED, *_ODD_STRATEGIES])
    if rng.random() < 0.3 and (other := _other_module(rng)) is not None:
        return other.compressobj(rng.randrange(4), 8, bits)
    if bits == 15 and rng.random() < 0.3:
        bits = rng.randrange(9, 16)
    return zlib.compressobj(level, zlib.DEFLATED, bits, memory, strategy)


_ODD_STRATEGIES = [zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]


def _other_module(rng):
    with contextlib.suppress(ImportError):
        return importlib.import_module(rng.choice(["isal.isal_zlib", "zlib_ng.zlib_ng"]))
    return None


def deflated(rng, data, bits):
    """One stream, of any level, strategy and memory, and of other libraries."""
    packer = _packer(rng, bits)
    return packer.compress(data) + packer.flush()


def flushed(rng, data, bits):
    """One stream with flushes of all kinds."""
    packer = zlib.compressobj(rng.randrange(10), zlib.DEFLATED, bits, rng.choice([1, 4, 6, 9]))
    modes = [zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_BLOCK]
    packed = [
        packer.compress(part) + packer.flush(rng.choice(modes))
        for part in parts(rng, data, rng.choice([100_000, 9_000]))
    ]
    return b"".join(packed) + packer.flush()


def _header(rng, fields=b""):
    """Of a gzip member, with any of the fields of RFC 1952."""
    flags, extra = rng.randrange(32), fields
    if rng.random() < 0.5:
        name = rng.choice([b"AB", b"TR", b"RA", b"IG", b"BC"])
        size = rng.choice([0, 1, 3, 40, 5000])  # of none that says a size
        other = struct.pack("<2sH", name, size) + rng.randbytes(size)
        extra = rng.choice([other + extra, extra + other])
    flags = flags | 4 if fields else flags
    found = b"\x1f\x8b\x08" + bytes([flags]) + rng.randbytes(6)
    if flags & 4:
        found += struct.pack("<H", len(extra)) + extra
    if flags & 8:
        found += b"a name of a file\0"
    if flags & 16:
        found += bytes(rng.choices(range(1, 256), k=rng.randrange(3000))) + b"\0"
    if flags & 2:
        found += struct.pack("<H", zlib.crc32(found) & 0xFFFF)
    return found


def _member(rng, data, name=b""):
    """A gzip member, whose header says its size where a field of bgzip's or pgzip's is named."""
    body = deflated(rng, data, -15) + struct.pack("<II", zlib.crc32(data), len(data))
    if not name:
        return _header(rng) + body
    form = {b"BC": "<H", b"IG": rng.choice(["<I", "<Q"])}[name]
    state = rng.getstate()
    size = 0
    for _ in range(2):  # the second time its size is known
        rng.setstate(state)
        field = struct.pack(form, max(size - (name == b"BC"), 0))
        head = _header(rng, struct.pack("<2sH", name, len(field)) + field)
        size = len(head) + len(body)
    return head + body


def members(rng, data, most, name=b""):
    """Gzip members, up to so many bytes in each."""
    found = [_member(rng, part, name) for part in parts(rng, data, most)]
    if name == b"BC" or rng.random() < 0.3:  # empty ones, as at the end of bgzip's files
        for _ in range(rng.randrange(1, 4)):
            found.insert(rng.randrange(len(found) + 1), _member(rng, b"", name))
    return b"".join(found)


def written(rng, records, suffix):
    """What `TFRecordWriter` makes of records."""
    path = os.path.join(FOLDER, f"written{suffix}")
    with TFRecordWriter(
        path,
        compression_level=rng.randrange(10),
        member_bytes=rng.choice([1, 3000, 20_000, 60_000, 1 << 20, None]),
    ) as writer:
        for number, record in enumerate(records):
            writer.write(record)
            if rng.random() < 0.002 and number:
                writer.flush()
    with open(path, "rb") as file:
        return file.read()


def with_lying_sizes(rng, content):
    """A gzip file with other sizes in the headers of some members."""
    places = member_places(content)
    sizes = np.diff([*places, len(content)]).tolist()
    content = bytearray(content)
    for number in rng.sample(range(len(places)), min(len(places), rng.choice([1, 2, 9, 999]))):
        begin, true, left = places[number], sizes[number], len(content) - places[number]
        two = sum(sizes[number : number + 2])
        lies = [0, 1, 12, 18, true - 1, true + 1, two, two + 1, left, left + 1, true // 2]
        lie = rng.choice([*lies, 1 << 16, 1 << 24, 1 << 31, (1 << 32) - 1, (1 << 63) - 1])
        for name, at, size in _subfields(content, begin):
            if (name, size) == (b"BC", 2):
                content[at : at + 2] = struct.pack("<H", max(lie - 1, 0) & 0xFFFF)
            elif name == b"IG" and size in (4, 8):
                content[at : at + size] = struct.pack("<Q", lie)[:size]
            elif name == b"TR" and size >= 8:
                content[at + 4 : at + 8] = struct.pack("<Q", lie)[:4]
                crc = crc32c(content[at + 4 : at + size])
                content[at : at + 4] = struct.pack("<I", crc)
        _mend_header(content, begin)
    return bytes(content)


def with_lying_lengths(rng, content):
    """What we wrote, with other lengths of records in the headers of some members."""
    how, found = rng.randrange(4), b""
    for begin, end in pairwise([*member_places(content), len(content)]):
        member = content[begin:end]
        lengths = _lengths(member)
        if lengths is not None and len(lengths) > 1 and rng.random() < 0.5:
            number = rng.randrange(len(lengths) - 1)
            if how == 0:
                lengths[number : number + 2] = [sum(lengths[number : number + 2]) + 16]
            elif how == 1:
                lengths[number], lengths[number + 1] = lengths[number + 1], lengths[number]
            elif how == 2:
                lengths[number] = rng.choice([0, 1, 1 << 31, (1 << 32) - 1])
            else:
                del lengths[number]
            body = member[12 + _short(member, 10) :]
            planes = np.array(lengths, "<u4").view(np.uint8).reshape(-1, 4).T.tobytes()
            field = zlib.compress(planes)
            sizes = struct.pack("<I", 24 + len(field) + len(body)) + field
            extra = struct.pack("<2sHI", b"TR", 4 + len(sizes), crc32c(sizes)) + sizes
            member = member[:10] + struct.pack("<H", len(extra)) + extra + body
        found += member
    return found


def _lengths(member):
    """The lengths of its records that the header of a member of ours says."""
    for name, at, size in _subfields(member, 0):
        with contextlib.suppress(zlib.error, ValueError):
            if name == b"TR":
                planes = np.frombuffer(zlib.decompress(member[at + 8 : at + size]), np.uint8)
                return planes.reshape(4, -1).T.copy().view("<u4")[:, 0].tolist()
    return None


def _subfields(content, begin):
    """Name, place and size of each in the extra field of the member at a place."""
    at = begin + 12
    end = at + _short(content, begin + 10) if content[begin + 3] & 4 else at
    while at + 4 <= end:
        size = _short(content, at + 2)
        yield bytes(content[at : at + 2]), at + 4, size
        at += 4 + size


def _mend_header(content, begin):
    """Give a member's header its checksum, if it has one."""
    flags, at = content[begin + 3], begin + 10
    if flags & 4:
        at += 2 + _short(content, at)
    for flag in (8, 16):
        at = content.index(0, at) + 1 if flags & flag else at
    if flags & 2:
        content[at : at + 2] = struct.pack("<H", zlib.crc32(content[begin:at]) & 0xFFFF)


def _short(data, at):
    return int.from_bytes(data[at : at + 2], "little")


def member_places(content):
    """Where members begin, one behind the other."""
    places, at = [], 0
    while at < len(content):
        places.append(at)
        inflater = zlib.decompressobj(31)
        inflater.decompress(content[at:])
        at = len(content) - len(inflater.unused_data)
    return places
