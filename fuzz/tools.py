"""What several targets share: damage to bytes and to JSON, files in memory, outcomes."""

import atexit
import copy
import os
import shutil
import struct
import tempfile

import numpy as np
import torch
from crc32c import crc32c

from torch_tfrecord import TFRecordError

FOLDER = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None, prefix="fuzz")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
_BYTES = [0, 1, 0x0A, 0x12, 0x7F, 0x80, 0xFF]
NASTY = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    5,
    2**31,
    2**63 - 1,
    2**63,
    10**30,
    1.5,
    float("inf"),
    float("nan"),
    -0.0,
]
NASTY += [
    "",
    "1",
    "-1",
    "x" * 3000,
    "../x",
    "/etc/passwd",
    "\ud800",
    "\0",
    [],
    {},
    [[]],
    [0] * 50,
    {"": None},
]


class File:
    """One file in memory, written again for each input."""

    def __init__(self, name):
        self.path = os.path.join(FOLDER, name)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT)

    def write(self, data):
        os.ftruncate(self._fd, len(data))
        os.pwrite(self._fd, data, 0)
        return self.path


def outcome(function, *args, errors=TFRecordError, **kwargs):
    """What a call returns, and the promised error that it raised instead, whose text is short and
    printable.
    """
    try:
        return function(*args, **kwargs), None
    except errors as error:
        assert 0 < len(os.fsencode(str(error))) <= 2048, len(str(error))
        return None, error


def same(one, two):
    """Whether two results are equal: values bit for bit, dtypes, types and structure."""
    if isinstance(one, dict):
        return (
            type(two) is type(one)
            and list(one) == list(two)
            and all(same(one[key], two[key]) for key in one)
        )
    if isinstance(one, (list, tuple)):
        return type(two) is type(one) and len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, torch.Tensor):
        if not isinstance(two, torch.Tensor) or (one.dtype, one.shape) != (two.dtype, two.shape):
            return False
        bits = [
            each.contiguous().reshape(-1).view(torch.uint8) for each in (one, two) if each.numel()
        ]
        return not bits or torch.equal(*bits)
    if isinstance(one, np.ndarray):
        return (
            isinstance(two, np.ndarray)
            and one.dtype == two.dtype
            and one.tobytes() == two.tobytes()
        )
    return type(one) is type(two) and one == two


def damage(rng, data, most=5):
    """Some bytes changed, bits flipped, parts cut out, doubled or moved."""
    data = bytearray(data)
    for _ in range(rng.randrange(1, most + 1)):
        at, size = rng.randrange(len(data) + 1), min(rng.choice([1, 2, 4, 8, 30]), len(data))
        how = rng.randrange(8)
        if how < 2 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how < 5 and at < len(data):
            data[at] = rng.choice([*_BYTES, rng.randrange(256)])
        elif how == 5:
            del data[at : at + size]
        elif how == 6:
            begin = rng.randrange(len(data) + 1)
            data[at:at] = data[begin : begin + size]
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def damage_json(rng, value, most=3):
    """Some values of a nest of dicts and lists changed, removed, doubled or put one level
    deeper.
    """
    value = copy.deepcopy(value)
    for _ in range(rng.randrange(1, most + 1)):
        places = list(_places(value))
        if not places:
            return rng.choice(NASTY)
        holder, key = rng.choice(places)
        how = rng.randrange(10)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(rng.choice(holder)))
        elif how == 2:
            other, place = rng.choice(places)
            holder[key] = copy.deepcopy(other[place])
        elif how == 3:
            holder[key] = [holder[key]] if rng.random() < 0.5 else {"x": holder[key]}
        elif how == 4 and isinstance(holder[key], (int, float)):
            holder[key] += rng.choice(
                [-2, -1, 1, 2, 0.5] if abs(holder[key]) < 1 << 53 else [-2, -1, 1, 2]
            )
        elif how == 5 and isinstance(holder[key], str):
            holder[key] = damage(rng, holder[key].encode("utf-8", "surrogatepass")).decode(
                errors="replace"
            )
        else:
            holder[key] = copy.deepcopy(rng.choice(NASTY))
    return value


def _places(value):
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield value, key
        yield from _places(item)


# The format of records, as its description says; nothing of the library's.


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def header(length):
    field = struct.pack("<Q", length)
    return field + struct.pack("<I", masked(field))


def framed(payloads):
    return b"".join(header(len(each)) + each + struct.pack("<I", masked(each)) for each in payloads)


def record_at(data, at):
    """The payload of the good record at a place, or None."""
    head = data[at : at + 12]
    if len(head) < 12 or struct.unpack("<I", head[8:])[0] != masked(head[:8]):
        return None
    length = struct.unpack("<Q", head[:8])[0]
    payload, footer = data[at + 12 : at + 12 + length], data[at + 12 + length : at + 16 + length]
    if (
        len(payload) < length
        or len(footer) < 4
        or struct.unpack("<I", footer)[0] != masked(payload)
    ):
        return None
    return payload


def good_records(data):
    """The payloads in front of any damage, and whether they are all."""
    at, payloads = 0, []
    while at < len(data):
        payload = record_at(data, at)
        if payload is None:
            return payloads, False
        payloads.append(payload)
        at += len(payload) + 16
    return payloads, True
