"""Sidecars taken apart, and put together again with a right checksum: what a deceiver could
write.
"""

import json
import os
import re
import struct

import numpy as np

from torch_tfrecord.files.checksum import crc32c

_DTYPES = {"I64": "<i8", "F64": "<f8", "U32": "<u4", "U8": "u1"}


def taken_apart(content):
    """The header as a dict, and the arrays."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    arrays = {
        name: np.frombuffer(
            content[end:][slice(*entry["data_offsets"])], _DTYPES[entry["dtype"]]
        ).copy()
        for name, entry in header.items()
        if name != "__metadata__"
    }
    return header, arrays


def mended(content):
    """The same bytes with the checksum that they need."""
    found = re.search(rb'"checksum":"(.{8})"', content, re.DOTALL)
    begin, end = found.span(1)
    return (
        content[:begin] + b"%08x" % crc32c(content[end:], crc32c(content[:begin])) + content[end:]
    )


def put_together(header, arrays):
    """A sidecar of these metadata and arrays, with a right checksum; dtypes are those of the
    arrays.
    """
    described, data = {"__metadata__": header["__metadata__"]}, b""
    for name, array in arrays.items():
        dtype = next(
            (key for key, value in _DTYPES.items() if np.dtype(value) == array.dtype),
            array.dtype.name.upper(),
        )
        end = len(data) + array.nbytes
        described[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), end],
        }
        data += array.tobytes()
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return mended(struct.pack("<Q", len(text)) + text + data)


def changed(content, arrays=None, **metadata):
    """With other metadata (None takes one away) and arrays, and a right checksum."""
    header, own = taken_apart(content)
    merged = {**header["__metadata__"], **metadata}
    header["__metadata__"] = {name: value for name, value in merged.items() if value is not None}
    return put_together(
        header,
        {name: array for name, array in {**own, **(arrays or {})}.items() if array is not None},
    )


def flips(content, bits):
    """The content with one bit flipped, for each of some bits."""
    for bit in bits:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def flipped_in_place(path, bits):
    """Flips one bit of a file after the other, each back before the next; quicker than writing the
    file each time.
    """
    content = path.read_bytes()
    with open(path, "r+b") as file:
        for bit in bits:
            at = bit // 8
            os.pwrite(file.fileno(), bytes([content[at] ^ 1 << bit % 8]), at)
            yield bit
            os.pwrite(file.fileno(), content[at : at + 1], at)
