"""Ranking lists (ELWC and EIE): protobuf's parser, then each Example by itself; alone, and in a
batch among good ones.

The first byte of an input chooses the format and the options, the rest is one record.
"""

import numpy as np
import torch
from google.protobuf.message import DecodeError
from targets.columns import field
from targets.examples import _plain
from tools import damage, outcome, same

from torch_tfrecord import FixedLenFeature, ListFeatures, VarLenFeature, encode_example
from torch_tfrecord.columns import as_plain
from torch_tfrecord.columns.example_lists import ExampleListParser
from torch_tfrecord.columns.parsers import ExampleParser
from torch_tfrecord.protobuf import parse_message

Example, ExampleListWithContext = (
    type(parse_message(b"", name)) for name in ("Example", "ExampleListWithContext")
)

COMPILED = True
_CONTEXT = {"q": FixedLenFeature((), bytes, default_value=b"?"), "w": VarLenFeature(torch.int64)}
_EXAMPLES = {
    "score": FixedLenFeature((2,), torch.float32, default_value=[-1.0, 5.0]),
    "ids": VarLenFeature(torch.int64),
}
_OPTIONS = [
    {"format": kind, "list_size": size} for kind in ("elwc", "eie") for size in (None, 1, 3)
]
_PARSERS = [
    ExampleListParser(
        ListFeatures(
            _CONTEXT, _EXAMPLES, size_feature_name="size", mask_feature_name="mask", **options
        ),
        pads=False,
    )
    for options in _OPTIONS
]
_INNER = [ExampleParser(features) for features in (_CONTEXT, _EXAMPLES)]


def _record(kind, context, examples):
    if kind == "elwc":
        return b"".join(field(1, each) for each in examples) + field(2, context)
    return encode_example(
        {"serialized_context": [context], "serialized_examples": examples or np.zeros(0, bytes)}
    )


def _good(kind):
    examples = [
        encode_example({"score": [0.5, 1.0], "ids": [number] * number}) for number in range(1, 4)
    ]
    return _record(kind, encode_example({"q": b"query", "w": [1, 300]}), examples)


_GOOD = [_good(options["format"]) for options in _OPTIONS]


def seeds():
    return [bytes([number]) + record for number, record in enumerate(_GOOD)]


def mutate(rng, data):
    number = rng.randrange(len(_OPTIONS))
    if rng.random() < 0.5:
        return bytes([number]) + damage(rng, _GOOD[number] if rng.random() < 0.5 else data[1:], 3)
    examples = [
        encode_example(
            {"score": [0.5, 1.0][: rng.choice([1, 2, 2, 2])], "ids": np.full(rng.randrange(3), 7)}
        )
    ]
    examples += [encode_example({}), damage(rng, examples[0], 2), b"", examples[0]]
    context = rng.choice(
        [b"", encode_example({"q": b"x"}), damage(rng, encode_example({"q": b"xy"}), 1)]
    )
    chosen = [rng.choice(examples) for _ in range(rng.randrange(5))]
    return bytes([number]) + _record(_OPTIONS[number]["format"], context, chosen)


def check(data):
    number, record = (data[0] if data else 0) % len(_OPTIONS), data[1:]
    wanted = _expected(record, **_OPTIONS[number])
    single, error = outcome(_PARSERS[number].single, record)
    assert (wanted is None) == (error is not None), (error, wanted)
    assert wanted is None or _same(single, wanted)
    good = _GOOD[number]
    batch, error = outcome(_PARSERS[number].batch, [good, record, good])
    assert (wanted is None) == (error is not None)
    assert error is None or error.position == 1
    if batch is not None:
        batch = as_plain(batch)
        for row, sample in ((0, _expected(good, **_OPTIONS[number])), (1, wanted)):
            assert _same(
                tuple({name: _row(part[name], row) for name in part} for part in batch), sample
            )


def _row(column, row):
    return column.unbind()[row] if isinstance(column, torch.Tensor) else column[row]


def _same(found, wanted):
    return all(
        list(one) == list(two) and all(same(_flat(one[name]), _flat(two[name])) for name in one)
        for one, two in zip(found, wanted, strict=True)
    )


def _flat(value):
    """Nested lists, with all NaNs alike."""
    if isinstance(value, torch.Tensor):
        rows = (
            [_flat(row) for row in value.unbind()]
            if value.dim() > 1 or value.is_nested
            else _plain(value).tolist()
        )
        return ["nan" if row != row else row for row in rows] if isinstance(rows, list) else rows
    if hasattr(value, "to_list"):
        return _flat(value.to_list())
    return (
        [_flat(each) for each in value]
        if isinstance(value, list)
        else "nan"
        if value != value
        else value
    )


def _expected(record, format, list_size):
    try:
        context, examples = _parts(record, format)
    except (DecodeError, ValueError):
        return None
    rows = [*examples[:list_size], *[b""] * (0 if list_size is None else list_size - len(examples))]
    context, error = outcome(_INNER[0].single, context)
    found = [outcome(_INNER[1].single, each) for each in rows]
    if error is not None or any(error is not None for _, error in found):
        return None
    columns = {name: [_flat(row[name]) for row, _ in found] for name in _EXAMPLES}
    columns |= {"size": len(examples), "mask": [at < len(examples) for at in range(len(rows))]}
    return context, columns


def _parts(record, format):
    if format == "elwc":
        message = ExampleListWithContext.FromString(record)
        return message.context, [*message.examples]
    feature = Example.FromString(record).features.feature
    (context,) = (
        feature["serialized_context"].bytes_list.value if "serialized_context" in feature else ()
    )
    if "serialized_examples" in feature and feature["serialized_examples"].WhichOneof(
        "kind"
    ) not in (
        None,
        "bytes_list",
    ):
        raise ValueError("another kind")
    return context, [*feature["serialized_examples"].bytes_list.value]
