"""encode_example and the writers: what goes in comes out again, by our decoder, protobuf's and a
plain walk.

An input is the text that the values are drawn from.
"""

import gzip
import os
import random

import numpy as np
import torch
from tools import FOLDER, good_records, outcome, same

from torch_tfrecord import (
    TFRecordWriter,
    decode_example,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
)
from torch_tfrecord.protobuf.messages import Example

COMPILED = False
_EDGES = [0, 1, -1, 127, 128, 2**31, 2**63 - 1, -(2**63)]
_STRANGE = [
    None,
    {},
    [],
    2**63,
    1j,
    [1, "a"],
    [[1], [2, 3]],
    "\ud800",
    float("nan"),
    1e39,
    [None],
    {1},
    object,
]


def seeds():
    return [b"0"]


def mutate(rng, _):
    return b"%d" % rng.getrandbits(48)


def _value(rng):
    """A value, and what must come back."""
    kind, count = rng.randrange(6), rng.choice([1, 1, 2, 3, 40])
    if kind == 0:
        numbers = [rng.choice([*_EDGES, rng.getrandbits(20)]) for _ in range(count)]
        return rng.choice(
            [numbers, tuple(numbers), np.array(numbers), torch.tensor(numbers)]
        ), np.array(numbers)
    if kind == 1:
        floats = np.frombuffer(rng.randbytes(4 * count), np.float32)
        return rng.choice([floats, torch.from_numpy(floats.copy())]), floats
    if kind == 2:
        values = [rng.randbytes(rng.randrange(9)) for _ in range(count)]
        return values, values
    if kind == 3:
        text = "".join(rng.choice("aü\0✓\n") for _ in range(rng.randrange(9)))
        return text, [text.encode()]
    if kind == 4:
        flags = rng.choice([torch.zeros(count, dtype=torch.bool), np.ones((2, count), np.int16)])
        return flags, np.asarray(flags).astype(np.int64).reshape(-1)
    return rng.random(), None


def _mapping(rng):
    pairs = {
        rng.choice(["", "a", "ü", "k" * 200, f"n{at}"]): _value(rng)
        for at in range(rng.randrange(6))
    }
    return {key: value for key, (value, _) in pairs.items()}, {
        key: pairs[key][1] for key in sorted(pairs, key=str.encode)
    }


def check(data):
    rng = random.Random(data)
    values, wanted = _mapping(rng)
    record = encode_example(values)
    assert record == encode_example(dict(reversed(values.items())))
    assert Example.FromString(record).SerializeToString(deterministic=True) == record
    wanted = {
        key: np.array([values[key]], np.float32) if each is None else each
        for key, each in wanted.items()
    }
    assert same(decode_example(record), dict(sorted(wanted.items())))
    sequence = encode_sequence_example(values, {key: [value] * 2 for key, value in values.items()})
    context, steps = decode_sequence_example(sequence)
    assert same(context, dict(sorted(wanted.items()))) and all(
        same(steps[key], [each] * 2) for key, each in wanted.items()
    )
    outcome(encode_example, {"x": rng.choice(_STRANGE)}, errors=(TypeError, ValueError))
    if rng.random() < 0.1:
        _write([record, sequence, rng.randbytes(rng.randrange(99))], rng)


def _write(records, rng):
    path, kind = f"{FOLDER}/written", rng.choice(["", "GZIP"])
    with TFRecordWriter(path, compression_type=kind, write_index=rng.random() < 0.3) as writer:
        for record in records:
            writer.write(record)
    with (gzip.open if kind else open)(path, "rb") as file:
        assert good_records(file.read()) == (records, True)
    os.unlink(path)
