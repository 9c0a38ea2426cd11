"""JSON and messages in records: `json` and protobuf's own `json_format`, and protobuf's parser; or
ParseError.

The first byte of an input chooses the spec, the rest is the value.
"""

import base64
import json
import math

import torch
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tools import damage, damage_json, outcome, same

from torch_tfrecord import (
    FixedLenFeature,
    Json,
    NestedExample,
    Proto,
    VarLenFeature,
    encode_example,
)
from torch_tfrecord.columns.parsers import ExampleParser
from torch_tfrecord.protobuf.json_examples import example_of_json
from torch_tfrecord.protobuf.messages import Example

COMPILED = False
_INNER = {
    "n": FixedLenFeature((), torch.int64, default_value=-1),
    "f": VarLenFeature(torch.float32),
    "b": VarLenFeature(bytes),
}
_SPECS = [
    Json(),
    Proto(Example),
    NestedExample(_INNER, format="json"),
    NestedExample(_INNER),
    NestedExample({"x": NestedExample(_INNER)}),
]
_PARSERS = [ExampleParser({"v": spec}) for spec in _SPECS]
_DIRECT = ExampleParser(_INNER)
_EXAMPLE = {"n": 3, "f": [0.5, -1.5], "b": [b"\xff\x00", b"text"]}
_TEXT = {
    "features": {
        "feature": {
            "n": {"int64List": {"value": ["3"]}},
            "f": {"floatList": {"value": [0.5, -1.5, "NaN", "-Infinity", 1e-3]}},
            "b": {"bytesList": {"value": ["/wA=", base64.b64encode(b"text").decode()]}},
        }
    }
}
_FREE = {"a": [1, -2.5, None, True, "ü\ud83d\ude00"], "b": {"c": {}, "": []}, "n": 1 << 70}


def seeds():
    record = encode_example(_EXAMPLE)
    texts = [json.dumps(_FREE).encode(), json.dumps(_TEXT).encode()]
    kinds = [
        (0, texts[0]),
        (0, texts[1]),
        (2, texts[1]),
        (1, record),
        (3, record),
        (4, encode_example({"x": record})),
    ]
    return [bytes([kind]) + content for kind, content in kinds]


def mutate(rng, data):
    kind, content = data[:1], data[1:]
    if kind in b"\0\x02" and rng.random() < 0.7:
        try:
            text = json.dumps(
                damage_json(rng, json.loads(content)), ensure_ascii=rng.random() < 0.5
            )
        except (ValueError, RecursionError):
            return kind + damage(rng, content)
        if rng.random() < 0.1:
            count = rng.randrange(195, 205)
            text = rng.choice(['["]", ', '[ "\\"", ', "["]) * count + text + "]" * count
        if rng.random() < 0.05:
            text = text.replace(
                "{",
                rng.choice(['{"features":', "[", "{"])
                * rng.choice([2, 90, 190, 200, 210, 1100, 100_000]),
                1,
            )
        if rng.random() < 0.1:
            text = text.replace(
                "3",
                "9" * rng.choice([19, 39, 401, 5000]) + rng.choice(["", "e400", ".0", "e-9"]),
                1,
            )
        content = text.encode("utf-8", "surrogatepass")
    return kind + (damage(rng, content, 3) if rng.random() < 0.4 else content)


def check(data):
    number, content = (data[0] if data else 0) % len(_SPECS), data[1:]
    records = [encode_example({"v": content})] * 2
    single, error = outcome(_PARSERS[number].single, records[0])
    batch, batch_error = outcome(_PARSERS[number].batch, records)
    assert type(error) is type(batch_error)
    value = None if single is None else single["v"]
    (_check_json, _check_message, _check_text, _check_nested, _check_nested)[number](
        content, value, number
    )
    assert batch is None or isinstance(batch["v"], (list, dict, torch.Tensor))


def _check_json(content, value, _):
    try:
        wanted = json.loads(content.decode(), parse_constant=lambda name: 1 // 0)
    except (ValueError, ZeroDivisionError, RecursionError):
        assert value is None
        return
    assert (value is None and _levels(wanted) > 200) or same(_bare(value), _bare(wanted)), (
        value,
        wanted,
    )


def _levels(value):
    parts = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if parts is None else 1 + max(map(_levels, parts), default=0)


def _bare(value):
    if isinstance(value, dict):
        return {name: _bare(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_bare(part) for part in value]
    return value.item() if isinstance(value, torch.Tensor) else value


def _check_message(content, value, _):
    try:
        wanted = Example.FromString(content)
    except DecodeError:
        assert value is None
        return
    assert value.SerializeToString(deterministic=True) == wanted.SerializeToString(
        deterministic=True
    )


def _check_text(content, value, _):
    serialized, error = outcome(example_of_json, content)
    assert value is None or error is None
    if error is not None:
        return
    try:
        wanted = json_format.Parse(content, Example())
    except json_format.ParseError:
        return  # we take "1e3" as text, and what TensorFlow takes
    assert serialized == wanted.SerializeToString(deterministic=True)


def _check_nested(content, value, number):
    """The inner Example by itself gives the same."""
    if number == 4:
        try:
            feature = Example.FromString(content).features.feature
            (content,) = feature["x"].bytes_list.value if "x" in feature else ()
        except (DecodeError, ValueError):
            assert value is None
            return
        value = None if value is None else value["x"]
    wanted, _ = outcome(_DIRECT.single, content)
    assert (wanted is None) == (value is None)
    assert wanted is None or all(same(_nan(value[name]), _nan(wanted[name])) for name in _INNER)


def _nan(value):
    return (
        value.nan_to_num(math.pi)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
    )
