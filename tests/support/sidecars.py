"""Sidecars taken apart, and put together again with a right checksum: what a deceiver could
write.
"""

import json
import os
import struct

import numpy as np
from crc32c import crc32c

_DTYPES = {"I64": "<i8", "F64": "<f8", "U64": "<u8", "U32": "<u4", "U8": "u1"}


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


def mended(header, arrays, lazy=""):
    """The header with the checksum that it and the arrays need."""
    metadata = {name: text for name, text in header["__metadata__"].items() if name != "checksum"}
    described = {name: [array.dtype.name, len(array)] for name, array in arrays.items()}
    crc = crc32c(json.dumps([metadata, described], sort_keys=True).encode())
    for name in sorted(arrays.keys() - {lazy}):
        crc = crc32c(arrays[name].tobytes(), crc)
    return {**header, "__metadata__": {**metadata, "checksum": f"{crc:08x}"}}


def put_together(header, arrays, lazy=""):
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
    text = json.dumps(mended(described, arrays, lazy), separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def changed(content, arrays=None, *, lazy="", **metadata):
    """With other metadata (None takes one away) and arrays, and a right checksum."""
    header, own = taken_apart(content)
    merged = {**header["__metadata__"], **metadata}
    header["__metadata__"] = {name: value for name, value in merged.items() if value is not None}
    own.update(arrays or {})
    return put_together(
        header, {name: array for name, array in own.items() if array is not None}, lazy
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
