"""Damaged Examples to the compiled core alone: meant for the sanitizers.

Each batch lies in memory of exactly its size, so that one byte too far is seen. Results are only
checked for their bounds here; that they are right is what the target `examples` holds. An input is
the number that a batch is drawn from.
"""

import ctypes
import random
from itertools import chain

from tools import damage

from torch_tfrecord.native import columns, jobs

COMPILED = True


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number, body):
    return varint(number << 3 | 2) + varint(len(body)) + body


def random_values(rng, kind, count):
    """The fields of a list of so many values."""
    if kind == 1:
        return b"".join(field(1, rng.randbytes(rng.choice([0, 3, 150]))) for _ in range(count))
    if kind == 2:
        return (
            field(1, rng.randbytes(4 * count))
            if rng.random() < 0.8
            else (b"\x0d" + rng.randbytes(4)) * count
        )
    widths = rng.choice([[7], [16], [21, 28], [1, 7, 14, 16, 40, 64]])
    numbers = [varint(rng.getrandbits(rng.choice(widths))) for _ in range(count)]
    return (
        field(1, b"".join(numbers))
        if rng.random() < 0.8
        else b"".join(b"\x08" + number for number in numbers)
    )


def random_feature(rng, kind, count):
    if rng.random() < 0.03:
        return b""
    if count == -1:
        return field(
            kind,
            b"".join(random_values(rng, kind, rng.randrange(90)) for _ in range(rng.randrange(3))),
        )
    return field(kind, random_values(rng, kind, count))


def random_example(rng, keys):
    chosen = keys if rng.random() < 0.8 else rng.sample(sorted(keys), rng.randrange(len(keys) + 1))
    return field(
        1,
        b"".join(
            field(1, field(1, key) + field(2, random_feature(rng, *keys[key]))) for key in chosen
        ),
    )


def array(kind, count):
    """Zeros of exactly that many bytes, as a flat memoryview."""
    code = {ctypes.c_uint8: "B", ctypes.c_int64: "q"}[kind]
    return memoryview((kind * count)()).cast("B").cast(code)


def ints(numbers):
    values = array(ctypes.c_int64, len(numbers))
    for place, number in enumerate(numbers):
        values[place] = number
    return values


def packed(records):
    """The records in one buffer, where each begins, and their lengths."""
    lengths = [len(record) for record in records]
    buffer = array(ctypes.c_uint8, sum(lengths))
    buffer[:] = b"".join(records)
    return buffer, ints([sum(lengths[:place]) for place in range(len(lengths))]), ints(lengths)


def damaged(rng, records, share):
    return [damage(rng, record) if rng.random() < share else record for record in records]


def one_batch(core, rng):
    names = [b"a", b"label", b"\xc3\xa9", b"k" * 60, b"image/class/label"]
    keys = {
        rng.choice(names) + b"%d" % number: (
            rng.randrange(1, 4),
            rng.choice([-1, 0, 1, 1, 1, 2, 70]),
        )
        for number in range(rng.randrange(1, 9))
    }
    records = [random_example(rng, keys) for _ in range(rng.randrange(1, 5))]
    records = damaged(rng, records, 0.5)
    slots = [(key, *keys[key], rng.random() < 0.1) for key in keys if rng.random() < 0.7]
    slots.sort(key=lambda slot: slot[1] == 2)
    count, (buffer, starts, lengths) = len(records), packed(records)
    size = sum(
        max(number, 0) * count * (16 if kind == 1 else 4 if kind == 2 else 8)
        for _, kind, number, _ in slots
    )
    num_any = sum(number < 0 for _, _, number, _ in slots)
    block = array(ctypes.c_uint8, size)
    offsets = (
        array(ctypes.c_int64, num_any * (count + 1)).cast("B").cast("q", (num_any, count + 1))
        if num_any
        else None
    )
    missing = (
        array(ctypes.c_uint8, len(slots) * count).cast("B", (len(slots), count)) if slots else None
    )
    if offsets is None or missing is None:
        return False  # a memoryview has no empty dimensions
    others = damaged(rng, [random_example(rng, keys) for _ in records], 0.1)
    canonical = rng.choice([None, others.__getitem__])
    job = core.ParseJob(core.Plan(slots), buffer, starts, lengths, block, offsets, missing)
    if rng.random() < 0.5:
        jobs.run([job])
    found = job.finish(canonical)
    for record in records:
        one = array(ctypes.c_uint8, len(record))
        one[:] = record
        core.Plan(slots).parse_one(one)
    if found is None:
        return False
    if found[2]:
        whole = bytes(buffer) + b"".join(found[2])
        buffer = array(ctypes.c_uint8, len(whole))
        buffer[:] = whole
    of_any = [slot for slot in slots if slot[2] < 0]
    for place, (memory, (_, kind, _, _)) in enumerate(zip(found[0], of_any, strict=True)):
        values = memoryview(memory)
        if kind == 1:
            spans = values.cast("q") if len(values) else memoryview(b"").cast("q")
            strings = core.copies(buffer, spans)
            assert sum(map(len, strings)) <= len(buffer)
            rows = core.copies(
                buffer, spans, ints([offsets[place, row] for row in range(count + 1)])
            )
            assert [*chain(*rows)] == strings and len(rows) == count
    return True


def random_lists(rng, keys):
    """The feature lists of a SequenceExample."""
    entries = []
    for key, (kind, count) in keys.items():
        steps = b"".join(
            field(1, random_feature(rng, kind, count)) for _ in range(rng.choice([0, 1, 3, 80]))
        )
        entries.append(field(1, field(1, key) + field(2, steps)))
    return field(2, b"".join(entries))


def one_sequence_batch(core, rng):
    keys = {
        name: (rng.randrange(1, 4), rng.choice([-1, 1, 2]))
        for name in (b"a", b"step/image", b"k" * 60)
    }

    def one():
        parts = [random_example(rng, keys), random_lists(rng, keys)]
        return b"".join(parts[: rng.choice([1, 2, 2, 2])])

    records = damaged(rng, [one() for _ in range(rng.randrange(1, 5))], 0.5)
    slots = [(key, kind) for key, (kind, _) in keys.items() if rng.random() < 0.7] or [(b"a", 1)]
    count, (buffer, starts, lengths) = len(records), packed(records)
    contexts = array(ctypes.c_int64, 2 * count).cast("B").cast("q", (count, 2))
    borders = (
        array(ctypes.c_int64, len(slots) * (count + 1)).cast("B").cast("q", (len(slots), count + 1))
    )
    missing = array(ctypes.c_uint8, len(slots) * count).cast("B", (len(slots), count))
    others = damaged(rng, [one() for _ in records], 0.1)
    canonical = rng.choice([None, others.__getitem__])
    found = core.SequencePlan(slots).parse(
        buffer, starts, lengths, contexts, borders, missing, canonical
    )
    if found is None:
        return False
    whole = bytes(buffer) + b"".join(found[1])
    assert all(
        0 <= contexts[row, 0] <= contexts[row, 0] + contexts[row, 1] <= len(whole)
        for row in range(count)
    )
    for number, ((_, kind), (values, ends)) in enumerate(zip(slots, found[0], strict=True)):
        ends = memoryview(ends).cast("q").tolist()
        steps = [borders[number, row] for row in range(count + 1)]
        assert steps == sorted(steps) and steps[0] == ends[0] == 0 and steps[-1] == len(ends) - 1
        assert (
            ends == sorted(ends)
            and ends[-1] * {1: 16, 2: 4, 3: 8}[kind] == memoryview(values).nbytes
        )
        if kind == 1 and ends[-1]:
            assert sum(map(len, core.copies(whole, memoryview(values).cast("q")))) <= len(whole)
    return True


def seeds():
    return [b"0"]


def mutate(rng, _):
    return b"%d" % rng.getrandbits(48)


def check(data):
    rng = random.Random(data)
    (one_batch if rng.random() < 0.6 else one_sequence_batch)(columns, rng)
