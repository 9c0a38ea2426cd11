"""Examples: each spec by a few lines over protobuf's own messages, by the single parser, in a batch
by the compiled core and by its Python fallback. The first byte of an input chooses the specs, the
rest is one record among good ones.
"""

import torch
from google.protobuf.message import DecodeError
from targets.columns import field, random_feature, varint
from tools import damage, outcome, same

from torch_tfrecord import FixedLenFeature, Text, VarLenFeature, decode_example, encode_example
from torch_tfrecord.columns import as_plain
from torch_tfrecord.columns.parsers import ExampleParser
from torch_tfrecord.loading.sample import take_apart
from torch_tfrecord.protobuf.messages import Example

COMPILED = True
_KINDS = {
    bytes: "bytes_list",
    str: "bytes_list",
    torch.float32: "float_list",
    torch.int64: "int64_list",
}
_GOOD = {
    "i": 5,
    "j": [1, 300],
    "f": [1.5, -2.0],
    "g": [0.25],
    "b": b"bytes",
    "t": "text ü",
    "v": [1, 2, 3],
    "w": [b"", b"x"],
}
_SPECS = [
    {"i": FixedLenFeature((), torch.int64), "j": FixedLenFeature((2,), torch.int64)},
    {"f": FixedLenFeature((2,), torch.float32, default_value=[3.0, 4.0]), "t": Text()},
    {"v": VarLenFeature(torch.int64), "g": VarLenFeature(torch.float32), "w": VarLenFeature(bytes)},
    {"b": FixedLenFeature((), bytes), "i": FixedLenFeature((), torch.int64, default_value=7)},
    {
        "x": FixedLenFeature((), torch.int64, key="i"),
        "y": VarLenFeature(torch.float32, key="f"),
        "z": Text(key="b"),
    },
    {
        "w": FixedLenFeature((2,), bytes),
        "v": FixedLenFeature((3,), torch.int64),
        "g": VarLenFeature(torch.float32),
    },
]


def _parsers(features):
    compiled, twin = ExampleParser(features), ExampleParser(features)
    twin._plan.core = None
    return compiled, twin


_PARSERS = [_parsers(features) for features in _SPECS]
_RECORD = encode_example(_GOOD)


def seeds():
    return [
        bytes([number]) + record
        for number in range(len(_SPECS))
        for record in (_RECORD, encode_example({}))
    ]


def mutate(rng, data):
    chosen = bytes([rng.randrange(len(_SPECS))])
    if rng.random() < 0.5:
        return chosen + damage(rng, data[1:], 3)
    entries = []
    for key, value in _GOOD.items():
        if rng.random() < 0.7:
            kind = {int: 3, float: 2}.get(
                type(value[0]) if isinstance(value, list) else type(value), 1
            )
            kind = kind if rng.random() < 0.9 else rng.randrange(1, 4)
            feature = random_feature(rng, kind, rng.choice([-1, 0, 1, 1, 2, 3]))
            name = field(1, key.encode()) if rng.random() < 0.97 else b""
            entries.append(field(1, name + field(2, feature)))
    # a key twice: the last one counts
    entries += rng.sample(entries, len(entries) and rng.randrange(2))
    unknown = (
        varint(rng.randrange(1, 99) << 3) + varint(rng.getrandbits(50))
        if rng.random() < 0.1
        else b""
    )
    record = field(1, b"".join(entries)) + unknown
    return chosen + (damage(rng, record, 2) if rng.random() < 0.3 else record)


def check(data):
    number, record = (data[0] if data else 0) % len(_SPECS), data[1:]
    wanted = _expected(record, _SPECS[number])
    compiled, twin = _PARSERS[number]
    single, error = outcome(compiled.single, record)
    assert (wanted is None) == (error is not None)
    assert wanted is None or same(_plain(single), wanted)
    _, error = outcome(decode_example, record)
    assert wanted is None or error is None
    rows = [_RECORD, record, _RECORD, _RECORD, record]
    for parser in (compiled, twin):
        batch, batch_error = outcome(parser.batch, rows)
        assert (wanted is None) == (batch_error is not None)
        if wanted is None:
            assert batch_error.position == 1
            continue
        samples = take_apart(batch, len(rows))  # as datasets hand them out
        for name, column in as_plain(batch).items():
            rows_of = column.unbind() if isinstance(column, torch.Tensor) else column
            assert all(same(_plain(rows_of[row]), wanted[name]) for row in (1, 4)), name
            assert same(_plain(rows_of[3]), _plain(_FIRST[number][name])), name
        assert all(same(_plain(samples[row]), wanted) for row in (1, 4))
        assert same(_plain(samples[2]), _plain(_FIRST[number]))


def _plain(value):
    """With all NaNs alike: protobuf's own values, Python's floats, do not keep their bits."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return (
        value.where(value == value, float("nan"))
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
    )


def _expected(record, features):
    """The values by protobuf's messages; None where an error is right."""
    try:
        message = Example.FromString(record).features.feature
        return {name: _value(message, spec.key or name, spec) for name, spec in features.items()}
    except (DecodeError, ValueError):
        return None


def _value(message, key, spec):
    dtype = str if isinstance(spec, Text) else spec.dtype
    kind = message[key].WhichOneof("kind") if key in message else None
    shape = getattr(spec, "shape", ())
    if kind is None:
        if isinstance(spec, VarLenFeature):
            return [] if dtype is bytes else torch.zeros(0, dtype=dtype)
        if getattr(spec, "default_value", None) is None:
            raise ValueError("missing")
        return torch.tensor(spec.default_value, dtype=dtype).expand(shape)
    if kind != _KINDS[dtype]:
        raise ValueError("another kind")
    values = list(getattr(message[key], kind).value)
    if not isinstance(spec, VarLenFeature) and len(values) != torch.Size(shape).numel():
        raise ValueError("another number of values")
    values = [value.decode() for value in values] if dtype is str else values
    if dtype in (str, bytes):
        return values if isinstance(spec, VarLenFeature) or shape else values[0]
    tensor = _plain(torch.tensor(values, dtype=dtype))
    return tensor if isinstance(spec, VarLenFeature) else tensor.reshape(shape)


_FIRST = [_expected(_RECORD, features) for features in _SPECS]
