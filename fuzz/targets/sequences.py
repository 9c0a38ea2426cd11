"""SequenceExamples: each spec by a few lines over protobuf's own messages; one, a batch by core and
fallback.
"""

import torch
from google.protobuf.message import DecodeError
from targets.columns import field, random_feature
from targets.examples import _plain, _value
from tools import damage, outcome, same

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    SequenceFeatures,
    Text,
    VarLenFeature,
    encode_sequence_example,
)
from torch_tfrecord.columns import as_plain
from torch_tfrecord.columns.sequences import SequenceExampleParser
from torch_tfrecord.protobuf.messages import SequenceExample

COMPILED = False
_CONTEXT = {"i": FixedLenFeature((), torch.int64), "v": VarLenFeature(torch.float32)}
_STEPS = {
    "s": FixedLenSequenceFeature((2,), torch.int64),
    "f": FixedLenSequenceFeature((), torch.float32),
    "t": Text(),
    "b": FixedLenSequenceFeature((), bytes),
    "w": VarLenFeature(torch.int64),
}
_KINDS = {"i": 3, "v": 2, "s": 3, "f": 2, "t": 1, "b": 1, "w": 3}
_PARSER, _TWIN = (SequenceExampleParser(SequenceFeatures(_CONTEXT, _STEPS)) for _ in range(2))
_TWIN._plan.core = None
_RECORD = encode_sequence_example(
    {"i": 4, "v": [0.5]},
    {"s": [[1, 2], [3, 400]], "f": [1.0, 2.0], "t": ["ü", "x"], "b": [b"", b"yz"], "w": [[1, 2]]},
)


def seeds():
    return [_RECORD, encode_sequence_example({"i": 1}, {name: [] for name in _STEPS})]


def mutate(rng, data):
    if rng.random() < 0.5:
        return damage(rng, data, 3)
    context = b"".join(
        field(1, field(1, key.encode()) + field(2, _feature(rng, key))) for key in "iv"
    )
    lists = []
    for key in _STEPS:
        steps = b"".join(field(1, _feature(rng, key)) for _ in range(rng.choice([0, 1, 2, 2, 3])))
        lists.append(
            field(1, field(1, key.encode()) + field(2, steps)) if rng.random() < 0.95 else b""
        )
    record = field(1, context) + field(2, b"".join(lists))
    return damage(rng, record, 2) if rng.random() < 0.3 else record


def _feature(rng, key):
    kind = _KINDS[key] if rng.random() < 0.97 else rng.randrange(1, 4)
    if kind == 1 and rng.random() < 0.9:
        return field(1, field(1, rng.choice([b"text", b"", "ü".encode()])))
    return random_feature(rng, kind, {"s": 2, "w": rng.randrange(4)}.get(key, 1))


def check(data):
    wanted = _expected(data)
    single, error = outcome(_PARSER.single, data)
    assert (wanted is None) == (error is not None)
    _, batch_error = outcome(_PARSER.batch, [_RECORD, data, _RECORD])
    assert (wanted is None) == (batch_error is not None)
    if wanted is None:
        assert batch_error.position == 1 and str(batch_error) == f"record 1: {error}"
        return
    single[1]["w"] = list(single[1]["w"].unbind())
    assert same([_plain(each) for each in single], [_plain(each) for each in wanted])
    for parser in (_PARSER, _TWIN):
        _check_batch(as_plain(parser.batch([_RECORD, data, _RECORD])), wanted)


def _check_batch(batch, wanted):
    context, sequences, lengths = batch
    assert all(
        same(_plain(context[name].unbind()[1]), _plain(wanted[0][name])) for name in _CONTEXT
    )
    for name in _STEPS:
        steps = wanted[1][name]
        own = list(sequences[name][1].unbind()) if name == "w" else sequences[name][1][: len(steps)]
        assert name not in lengths or lengths[name][1] == len(steps)
        assert same(_plain(own), _plain(steps)), name


def _expected(data):
    """The values by protobuf's messages; None where an error is right."""
    try:
        message = SequenceExample.FromString(data)
        context = {
            name: _value(message.context.feature, name, spec) for name, spec in _CONTEXT.items()
        }
        return context, {
            name: _steps(message.feature_lists.feature_list, name, spec)
            for name, spec in _STEPS.items()
        }
    except (DecodeError, ValueError):
        return None


def _steps(lists, name, spec):
    if name == "w":
        return [
            _value({name: feature}, name, spec)
            for feature in (lists[name].feature if name in lists else ())
        ]
    if name not in lists:
        raise ValueError("missing")
    one = FixedLenFeature(spec.shape, spec.dtype) if name != "t" else spec
    rows = [_value({name: feature}, name, one) for feature in lists[name].feature]
    if one is spec or spec.dtype is bytes:
        return rows
    return torch.stack(rows) if rows else torch.zeros(0, *spec.shape, dtype=spec.dtype)
