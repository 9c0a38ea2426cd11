"""TensorProto: TensorFlow's stored results, hostile messages, round trips.

Covers columns/dtypes.
"""
# ruff: noqa: E501 - tables of whole texts read better in one line each.

import base64
import contextlib
import gzip
import itertools
import json
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_tfrecord import LimitExceededError, ParseError, parse_tensor, serialize_tensor

CASES = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "data/tensorproto_cases.json.gz").read_bytes())
)
SERIALIZE, PARSE = CASES["serialize"], CASES["parse"]


def stored_dtype(name):
    return bytes if name == "string" else getattr(torch, name)


def stored_value(array):
    """A stored array as tensor, or as object array of bytes."""
    name, values, shape = array["dtype"], array["values"], array["shape"]
    if name == "string":
        flat = np.empty(len(values), dtype=object)
        flat[:] = [base64.b64decode(value) for value in values]
        return flat.reshape(shape)
    if name.startswith("complex"):
        raw = b"".join(bytes.fromhex(part)[::-1] for value in values for part in value)
    elif name.startswith(("float", "bfloat")):
        raw = b"".join(bytes.fromhex(value)[::-1] for value in values)
    else:
        raw = np.array(values, dtype=name).tobytes()
    dtype = stored_dtype(name)
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def bits(tensor):
    return (
        tensor.dtype,
        tuple(tensor.shape),
        bytes(tensor.reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []),
    )


def same(got, want):
    if isinstance(want, np.ndarray):
        return got == want.tolist()
    return bits(got) == bits(want)


def message(enum, shape, *fields):
    """A TensorProto by hand: enum, sizes (None: no shape message), then (number, wire type,
    bytes).
    """
    dims = b"".join(field(2, 2, field(1, 0, varint(size))) for size in shape or ())
    parts = [field(1, 0, varint(enum))] + ([] if shape is None else [field(2, 2, dims)])
    return b"".join([*parts, *(field(*item) for item in fields)])


def field(number, wire_type, body):
    tag = varint(number << 3 | wire_type)
    return tag + (varint(len(body)) if wire_type == 2 else b"") + body


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@for_each("case", SERIALIZE, ids=itemgetter("name"))
def test_bytes_are_tensorflows(case):
    value, serialized = stored_value(case["tensor"]), base64.b64decode(case["serialized"])
    assert serialize_tensor(value) == serialized
    assert same(parse_tensor(serialized, stored_dtype(case["out_type"])), value)
    assert same(parse_tensor(serialized), value)


@for_each("case", PARSE, ids=itemgetter("name"))
def test_reading_is_tensorflows(case):
    serialized, dtype = base64.b64decode(case["serialized"]), stored_dtype(case["out_type"])
    if "error" not in case["expected"]:
        assert same(parse_tensor(serialized, dtype), stored_value(case["expected"]))
        return
    with pytest.raises(ParseError) as caught:
        parse_tensor(serialized, dtype)
    text = case["expected"]["error"]["message"]
    phrase = "Cannot parse tensor from proto" if "resource" in text else text.split(", base64")[0]
    assert phrase in str(caught.value)


def test_counts(capsys):
    errors = sum("error" in case["expected"] for case in PARSE)
    with capsys.disabled():
        print(
            f"\ntensorproto_cases: {len(SERIALIZE)} written and read, {len(PARSE)} read ({errors} errors), all the same"
        )
    assert (len(SERIALIZE), len(PARSE), errors) == (138, 303, 65)


@pytest.mark.parametrize(
    ("serialized", "dtype", "text"),
    [
        (message(1, [2], (4, 2, b"1234567")), None, "Cannot parse tensor from proto: expected 8 bytes of content for shape [2] of float, got 7"),
        (message(1, [-1]), None, "Cannot parse tensor from proto: shape [-1] has a negative dimension"),
        (message(1, [1 << 40, 1 << 40]), None, "Cannot parse tensor from proto: shape [1099511627776, 1099511627776] has more bytes than an int64 counts"),
        (message(1, [1] * 255), None, "Cannot parse tensor from proto: expected at most 254 dimensions, got 255"),
        (message(0, []), None, "Cannot parse tensor from proto: expected a dtype that torch has, got no dtype (0)"),
        (message(27, []), None, "Cannot parse tensor from proto: expected a dtype that torch has, got dtype 27"),
        (message(103, []), None, "Cannot parse tensor from proto: expected a dtype that torch has, got a reference type (103)"),
        (message(20, []), None, "Cannot parse tensor from proto: expected a dtype that torch has, got dtype 20"),
        (message(10, [1], (4, 2, b"\x02")), None, "Cannot parse tensor from proto: expected bool bytes of 0 or 1, got another value"),
        (message(1, []), torch.int32, "Type mismatch between parsed tensor (float) and dtype (int32)"),
        (message(7, []), torch.float16, "Type mismatch between parsed tensor (string) and dtype (half)"),
        (message(1, []), str, "Type mismatch between parsed tensor (float) and dtype (string)"),
        (message(7, [], (8, 2, b"\xff")), str, "expected UTF-8 text, got an invalid byte at 0 of 1"),
        (message(7, [2], (4, 2, b"\x01\x80")), None, "Cannot parse tensor from proto: expected the length of a string, got a truncated or overlong one"),
        (b"\xffSECRET", None, "Could not parse `serialized` as TensorProto: expected one TensorProto message, got 7 bytes that are not one"),
        (b"", None, "Cannot parse tensor from proto: expected a dtype that torch has, got no dtype (0)"),
    ],
)  # fmt: skip
def test_error_texts(serialized, dtype, text):
    with pytest.raises(ParseError) as caught:
        parse_tensor(serialized, dtype)
    assert str(caught.value) == text


BOMBS = {
    "1 GiB of zeros": message(1, [1 << 28]),
    "1 GiB of ones": message(1, [1 << 28], (5, 5, b"\x00\x00\x80\x3f")),
    "just above the cap": message(4, [(1 << 26) + 1]),
    "strings": message(7, [1 << 28]),
    "lists of no strings": message(7, [1 << 40, 0]),
    "lists in lists": message(7, [1 << 16] + [1] * 253),
    "lists in lists, with content": message(7, [1 << 16] + [1] * 253, (4, 2, b"\x00" * (1 << 16))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_messages_that_grow_are_limited(name):
    with pytest.raises(
        LimitExceededError,
        match=r"^the tensor would grow to \d+ bytes that the message does not hold; ",
    ):
        parse_tensor(BOMBS[name])


@pytest.mark.slow
def test_the_limit_is_the_callers():
    small = message(1, [100])
    assert parse_tensor(small).numel() == 100
    with pytest.raises(
        LimitExceededError, match="400 bytes that the message does not hold; the limit is 399"
    ):
        parse_tensor(small, max_bytes=399)
    assert parse_tensor(message(4, [(1 << 26) + 1]), max_bytes=None).numel() == (1 << 26) + 1
    held = serialize_tensor(torch.zeros(1000))
    assert parse_tensor(held, max_bytes=0).numel() == 1000  # what the message holds has no limit


def test_results_are_writable_and_own_their_memory():
    for serialized in (
        serialize_tensor(torch.arange(3)),
        message(9, [3], (10, 2, b"\x00\x01\x02")),
        message(9, [3]),
    ):
        source = bytearray(serialized)
        first, second = parse_tensor(source), parse_tensor(source)
        want = first.tolist()
        first.fill_(7)
        source[:] = bytes(len(source))
        assert second.tolist() == want


def test_what_can_be_written():
    assert serialize_tensor(torch.tensor([[1, 2], [3, 4]]).T) == serialize_tensor(
        torch.tensor([[1, 3], [2, 4]])
    )
    assert serialize_tensor(torch.tensor([1 + 2j]).conj()) == serialize_tensor(
        torch.tensor([1 - 2j])
    )
    assert serialize_tensor(torch.tensor([1.0], requires_grad=True)) == serialize_tensor(
        torch.tensor([1.0])
    )
    assert serialize_tensor(np.array([1, 2], dtype=">u2")) == serialize_tensor(
        torch.tensor([1, 2], dtype=torch.uint16)
    )
    assert (
        serialize_tensor(np.float32(1.5))
        == serialize_tensor(np.array(1.5, "f4"))
        == serialize_tensor(torch.tensor(1.5))
    )
    assert serialize_tensor(np.array([[1, 2], [3, 4]])[:, ::-1]) == serialize_tensor(
        torch.tensor([[2, 1], [4, 3]])
    )
    assert serialize_tensor("x") == serialize_tensor(b"x") == serialize_tensor(np.array("x"))
    assert serialize_tensor([["a"], [b"b"]]) == serialize_tensor(np.array([["a"], ["b"]]))
    assert parse_tensor(serialize_tensor([["a"], ["é"]]), str) == [["a"], ["é"]]
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        tensor = torch.tensor([1.5, -2.0]).to(getattr(torch, name))
        assert bits(parse_tensor(serialize_tensor(tensor), tensor.dtype)) == bits(tensor)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (
            1.5,
            TypeError,
            "expected a torch tensor, a numpy array, or bytes or str in lists, got float",
        ),
        (
            [1, 2],
            TypeError,
            "expected a torch tensor, a numpy array, or bytes or str in lists, got int",
        ),
        (None, TypeError, "got NoneType"),
        (
            [["a"], "b"],
            ValueError,
            "nested lists of different lengths (ragged) do not form a tensor",
        ),
        (
            np.zeros(1, dtype="M8[s]"),
            TypeError,
            "a TensorProto cannot hold numpy dtype datetime64[s]",
        ),
        (torch.zeros(2, 2).to_sparse(), TypeError, "layout torch.sparse_coo"),
        (
            torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
            TypeError,
            "dtype torch.float4_e2m1fn_x2",
        ),
        (
            torch.nested.as_nested_tensor([torch.zeros(1)], layout=torch.jagged),
            TypeError,
            "layout torch.jagged",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_written(value, kind, text):
    with pytest.raises(kind) as caught:
        serialize_tensor(value)
    assert text in str(caught.value)


def test_wrong_arguments():
    for serialized in ("text", [b""], None):
        with pytest.raises(TypeError, match="Input serialized must be a scalar"):
            parse_tensor(serialized)
    for dtype in (int, "int32", torch.qint8, torch.complex32):
        with pytest.raises(TypeError, match="dtype must be one of float32, float64, "):
            parse_tensor(b"", dtype)


ENUMS = {
    1: "f4",
    2: "f8",
    3: "i4",
    4: "u1",
    5: "i2",
    6: "i1",
    8: "c8",
    9: "i8",
    14: "",
    17: "u2",
    18: "c16",
    22: "u4",
}


@for_each(("enum", "count", "have"), list(itertools.product(ENUMS, (0, 1, 3), (0, 1, 2, 3, 5))))
def test_content_has_exactly_the_right_size(enum, count, have):
    itemsize = np.dtype(ENUMS[enum] or "u2").itemsize
    serialized = message(enum, [count], (4, 2, bytes(have * itemsize)))
    if have in (0, count) or count == 0:
        assert parse_tensor(serialized).shape == (count,)
    else:
        with pytest.raises(
            ParseError,
            match=f"expected {count * itemsize} bytes of content .* got {have * itemsize}$",
        ):
            parse_tensor(serialized)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SERIALIZE + PARSE), st.data())
def test_damaged_messages_raise_only_our_errors(case, data):
    damaged = bytearray(base64.b64decode(case["serialized"]) or b"\x00")
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ParseError, LimitExceededError):
        parse_tensor(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]), max_bytes=1 << 20)
