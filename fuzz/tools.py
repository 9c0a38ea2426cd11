"""What several targets share: damage to bytes and to JSON, files in memory, outcomes."""

import atexit
import contextlib
import copy
import os
import random
import resource
import shutil
import struct
import tempfile
import zlib
from typing import NamedTuple

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


def collected(iterator):
    """The items of an iterator before it ends, and the promised error by which it does."""
    found = []
    _, error = outcome(lambda: [found.append(each) for each in iterator])
    return found, error


@contextlib.contextmanager
def limited_memory(num_bytes):
    """Make it a MemoryError where a check asks for so many bytes more than there are now."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


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


# Damage told in 12 bytes, of content that is made once: inputs stay small, and their checks know
# where it is.

EDIT_BYTES = 12
FLIP, SET, FILL, NOISE, CUT, INSERT, COPY, TWICE, MOVE, END, ADD = range(11)


class Edit(NamedTuple):
    """One change.

    Attributes:
        area: Of what; the target says which there are.
        how: One of those above, or beyond.
        value: A bit, or a byte.
        size, at: The bytes that it concerns.
        other: Where a piece comes from, or what chooses random bytes.
    """

    area: int
    how: int
    value: int
    size: int
    at: int
    other: int

    def to_bytes(self):
        return struct.pack("<BBHII", self.area << 4 | self.how, self.value, *self[3:])


def edits_of(program):
    """The edits that bytes tell, one behind the other."""
    found = struct.iter_unpack("<BBHII", program[: len(program) // EDIT_BYTES * EDIT_BYTES])
    return [Edit(kind >> 4, kind & 15, *rest) for kind, *rest in found]


def random_edit(rng, num_bytes, area=0, places=()):
    """An edit of so many bytes, which is often at one of some places."""

    def place():
        near = rng.choice(places) + rng.choice([-1, 0, 0, 0, 1, 4, 8, 12, 16]) if places else -1
        return near if near >= 0 and rng.random() < 0.5 else rng.randrange(num_bytes + 1)

    how = rng.choice([FLIP, FLIP, SET, FILL, NOISE, CUT, INSERT, COPY, TWICE, MOVE, END, ADD])
    size = rng.choice([1, 2, 4, 16, rng.randrange(1, 300), rng.randrange(1, 1 << 13)])
    if how in (COPY, TWICE, MOVE, CUT) and rng.random() < 0.5:
        size = rng.choice([rng.randrange(1, 1 << 16), abs(place() - place())])
    return Edit(area, how, rng.randrange(256), min(size, 0xFFFF), place(), place())


def mutated_program(rng, program, new_edit, most=4):
    """The same edits with one more, one less, or one that is changed a little."""
    edits, how = edits_of(program), rng.randrange(8)
    if edits and (how == 0 or len(edits) > most):
        edits.pop(rng.randrange(len(edits)))
    elif edits and how < 3:
        number = rng.randrange(len(edits))
        name = rng.choice(["value", "size", "at", "other"])
        least, most = {"value": (0, 255), "size": (0, 0xFFFF)}.get(name, (0, 0xFFFFFFFF))
        changed = getattr(edits[number], name) + rng.choice([-16, -8, -1, 1, 2, 8, 16])
        edits[number] = edits[number]._replace(**{name: min(max(changed, least), most)})
    else:
        edits.append(new_edit(rng))
    return b"".join(each.to_bytes() for each in edits)


def edited(data, edit):
    """The changed bytes, and the range of the old ones that are others now: none where something
    was put in.
    """
    at, size = edit.at % (len(data) + 1), min(edit.size, len(data))
    end = min(at + size, len(data))
    begin = min(edit.other % (len(data) + 1), len(data) - size)
    piece = data[begin : begin + size]
    if edit.how == FLIP and at < len(data):
        end, new = at + 1, bytes([data[at] ^ 1 << edit.value % 8])
    elif edit.how == SET and at < len(data):
        end, new = at + 1, bytes([edit.value])
    elif edit.how == FILL:  # half of them by zeros
        new = bytes([edit.value if edit.value % 2 else 0]) * (end - at)
    elif edit.how == NOISE:
        new = random.Random(edit.other).randbytes(end - at)
    elif edit.how == CUT:
        new = b""
    elif edit.how == INSERT:
        end, new = at, random.Random(edit.other).randbytes(size)
    elif edit.how == COPY:
        end, new = at, piece
    elif edit.how == TWICE:
        new = data[at:end] * 2
    elif edit.how == MOVE:
        left = data[:begin] + data[begin + size :]
        at %= len(left) + 1
        return left[:at] + piece + left[at:], (min(at, begin), len(data))
    elif edit.how == END:
        end, new = len(data), b""
    elif edit.how == ADD:
        at = end = len(data)
        new = bytes(size) if edit.value % 2 else random.Random(edit.other).randbytes(size)
    else:
        return data, (at, at)
    return data[:at] + new + data[end:], (at, end)


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


def inflated(stream, bits):
    """All that zlib gives of streams one behind the other, in front of any damage, and whether there
    is none.
    """
    out, inflater, at = bytearray(), None, 0
    while at < len(stream):
        inflater = zlib.decompressobj(bits) if inflater is None else inflater
        before, piece = inflater.copy(), stream[at : at + (1 << 12)]
        try:
            out += inflater.decompress(piece)
        except zlib.error:  # the call loses what is in front of the damage
            with contextlib.suppress(zlib.error):
                for byte in piece:
                    out += before.decompress(bytes([byte]))
            return bytes(out), False
        at += len(piece) - len(inflater.unused_data)
        inflater = None if inflater.eof else inflater
    return bytes(out), inflater is None
