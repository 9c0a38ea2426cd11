"""Encoding and decoding of messages: golden bytes, protobuf as oracle (a pool of its own), hostile
bytes.

Covers protobuf/messages.
"""
# ruff: noqa: E501 - tables of whole texts read better in one line each.

import os
import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from google.protobuf.message import DecodeError
from helpers import run_program, run_python
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_examples import (
    FLOATS,
    WIRE_EXAMPLE,
    Example,
    SequenceExample,
    oracle_feature,
)

from torch_tfrecord import (
    ParseError,
    decode_example,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
)


def oracle_decode(serialized):
    features = Example.FromString(serialized).features.feature
    return {
        key: (features[key].WhichOneof("kind"), oracle_feature(features[key])) for key in features
    }


def kinds_and_values(decoded):
    def one(values):
        if isinstance(values, list):
            return values
        assert values.flags.writeable
        assert values.flags.owndata
        return values.tolist()

    return {key: one(values) for key, values in decoded.items()}


def same(left, right):
    """Equal, where NaN equals NaN."""
    return repr(left) == repr(right)


GOLDEN = {
    "0a0c0a0a0a016112051a030a0101": {"a": 1},
    "0a170a150a016112101a0e0a0cffffffffffffffffff01ac02": {"a": [-1, 300]},
    "0a0f0a0d0a0161120812060a040000c03f": {"a": [1.5]},
    "0a0f0a0d0a016112080a060a0261620a00": {"a": ["ab", ""]},
    "0a090a070a016112021a00": {"a": np.zeros(0, np.int64)},
    "0a090a070a016112021200": {"a": np.zeros(0, np.float32)},
    "0a090a070a016112020a00": {"a": np.zeros(0, "S1")},
    "0a310a0a0a015a12051a030a01030a0a0a016112051a030a01020a0a0a016212051a030a01010a0b0a02c3a912051a030a0104": {
        "é": 4, "b": 1, "a": 2, "Z": 3,
    },
    "0a00": {},
}  # fmt: skip


@pytest.mark.parametrize("hex_bytes", GOLDEN)
def test_golden_bytes(hex_bytes):
    assert encode_example(GOLDEN[hex_bytes]).hex() == hex_bytes


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        (True, [1]),
        (-(1 << 63), [-(1 << 63)]),
        ((1 << 63) - 1, [(1 << 63) - 1]),
        (np.int8(-3), [-3]),
        (np.uint64((1 << 63) - 1), [(1 << 63) - 1]),
        (np.bool_(True), [1]),
        (1.5, [1.5]),
        (float("-inf"), [float("-inf")]),
        (np.float64(0.25), [0.25]),
        (np.float16(0.5), [0.5]),
        ("é", ["é".encode()]),
        (b"\x00\xff\x00", [b"\x00\xff\x00"]),
        (bytearray(b"x"), [b"x"]),
        # its repr is an address, another one each time
        pytest.param(memoryview(b"xy"), [b"xy"], id="memoryview"),
        (np.str_("u"), [b"u"]),
        (np.bytes_(b"n\x00"), [b"n\x00"]),
        ([True, 2, np.int32(3)], [1, 2, 3]),
        ((1.0, np.float32(2.0)), [1.0, 2.0]),
        (range(3), [0, 1, 2]),
        (["a", b"b"], [b"a", b"b"]),
        ([[1, 2], [3, 4]], [1, 2, 3, 4]),
        ([[1.0], [2.0]], [1.0, 2.0]),
        ([["a"], ["b"]], [b"a", b"b"]),
        ([np.array([1, 2]), np.array([3, 4])], [1, 2, 3, 4]),
        ([torch.tensor(1), torch.tensor(2)], [1, 2]),
        (np.array([[1, 2], [3, 4]])[:, ::-1], [2, 1, 4, 3]),
        (np.asfortranarray([[1, 2], [3, 4]]), [1, 2, 3, 4]),
        (np.array([True, False]), [1, 0]),
        (np.array(7), [7]),
        (np.array([1, 2], dtype=">i4"), [1, 2]),
        (np.array([0.5], dtype=">f8"), [0.5]),
        (np.array([0.5], dtype=np.longdouble), [0.5]),
        (np.array([b"a\x00b", b"a"]), [b"a\x00b", b"a"]),
        (np.array([b"a\x00"]), [b"a"]),  # numpy's own value: "S" has no trailing NULs
        (np.array([b"a\x00", "u"], dtype=object), [b"a\x00", b"u"]),
        (np.array([["é", "b"]]), ["é".encode(), b"b"]),
        (torch.tensor([[1, 2], [3, 4]]).T, [1, 3, 2, 4]),
        (torch.tensor([1, 2], dtype=torch.uint8), [1, 2]),
        (torch.tensor([True]), [1]),
        (torch.tensor([1.5, -2.0], dtype=torch.bfloat16), [1.5, -2.0]),
        (torch.tensor([1.5], dtype=torch.float8_e5m2), [1.5]),
        (torch.tensor([1.5], requires_grad=True), [1.5]),
        (torch.tensor(2.0, dtype=torch.float64), [2.0]),
        (torch.zeros(0, dtype=torch.int32), []),
        (np.zeros((2, 0)), []),
        (np.zeros(0, "U3"), []),
    ],
    ids=repr,
)
def test_values(value, decoded):
    got = decode_example(encode_example({"a": value}))["a"]
    assert (got if isinstance(got, list) else got.tolist()) == decoded


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, TypeError, "got NoneType; leave out the key if there is no value"),
        (1j, TypeError, "got complex"),
        ({"x": 1}, TypeError, "got dict"),
        ({1, 2}, TypeError, "got set"),
        (np.array([1j]), TypeError, "got an array of dtype complex128"),
        (np.array(["2020-01-01"], dtype="M8[D]"), TypeError, "got an array of dtype datetime64[D]"),
        (np.array([5], dtype="m8[s]"), TypeError, "got an array of dtype timedelta64[s]"),
        (np.timedelta64(5, "s"), TypeError, "got an array of dtype timedelta64[s]"),
        (torch.tensor([1j]), TypeError, "got an array of dtype complex64"),
        ([True, 2.0], TypeError, "mixed types in one list: bool, float"),
        ([1, "a"], TypeError, "mixed types in one list: int, str"),
        ([1, None], TypeError, "mixed types in one list: NoneType, int"),
        ([1, [2]], TypeError, "mixed types in one list: int, list"),
        ([[1], [2.0]], TypeError, "mixed types in one list: it holds float_list and int64_list"),
        (np.array([1, "a"], dtype=object), TypeError, "mixed types in one list: int, str"),
        ([2**24 + 1, 0.5], ValueError, "expected integers among floats that float32 holds, got 16777217, which it would"),
        ([[0.5, 2**53 + 1], [1, 2]], ValueError, "got 9007199254740993, which it would round"),
        ([np.int64(2**63 - 1), 0.5], ValueError, "got 9223372036854775807, which it would round"),
        (np.array([0.5, -(2**24) - 1], dtype=object), ValueError, "got -16777217, which it would round"),
        ([2**200, 0.5], ValueError, "a finite float is outside float32"),
        ([], ValueError, "an empty list has no type: use an empty typed array, such as numpy.zeros(0, numpy.int64)"),
        ((), ValueError, "an empty list has no type"),
        ([[], []], ValueError, "an empty list has no type"),
        (np.zeros(0, object), ValueError, "an empty list has no type"),
        ([[1, 2], [3]], ValueError, "nested lists of different lengths (ragged) do not fit one feature"),
        (1 << 63, ValueError, "integer outside int64: an int64_list holds -2**63 to 2**63 - 1"),
        ([0, -(1 << 63) - 1], ValueError, "integer outside int64"),
        (np.array([1 << 63], dtype=np.uint64), ValueError, "integer outside int64"),
        (1e39, ValueError, "a finite float is outside float32, which a float_list holds"),
        ([1.0, -1e300], ValueError, "a finite float is outside float32"),
        (np.array([1e39]), ValueError, "a finite float is outside float32"),
        ("\ud800", ValueError, "text that is not valid Unicode has no UTF-8 form"),
        (np.ma.masked_array([1, 2], mask=[False, True]), ValueError, "a masked array has masked values: fill them first"),
    ],
    ids=repr,
)  # fmt: skip
def test_values_that_do_not_fit(value, kind, text):
    with pytest.raises(kind) as caught:
        encode_example({"good": 1, "the/key": value})
    assert str(caught.value).startswith("feature 'the/key': ")
    assert text in str(caught.value)
    with pytest.raises(kind) as caught:
        encode_sequence_example({}, {"steps": [1, value]})
    assert str(caught.value).startswith("feature list 'steps', step 1: ")


def test_wrong_arguments():
    with pytest.raises(TypeError, match="features must be a mapping of keys to values, got list"):
        encode_example([1])
    with pytest.raises(TypeError, match="a key must be str, got int: 5"):
        encode_example({5: 1})
    with pytest.raises(ValueError, match="is not valid Unicode text"):
        encode_example({"\udc00": 1})
    for steps in ("abc", b"abc", 5, {"a": 1}):
        with pytest.raises(TypeError, match="feature list 'x' must be a list of steps"):
            encode_sequence_example({}, {"x": steps})
    for serialized in ("text", None, [b""], np.zeros(3)):
        with pytest.raises(
            TypeError, match=r"Input serialized must be a scalar: bytes, bytearray or memoryview"
        ):
            decode_example(serialized)


def test_float_bits_pass():
    patterns = np.array(
        [0x7FA00001, 0xFFC12345, 0x80000000, 1, 0x7F800000, 0xFF7FFFFF], dtype=np.uint32
    )
    for count in (1, 6, 6 * 40):
        values = np.resize(patterns, count)
        record = encode_example({"a": values.view(np.float32)})
        assert values.tobytes() in record
        assert decode_example(record)["a"].tobytes() == values.tobytes()


def test_float_lists_with_unknown_fields():
    # FloatList: unknown field 9 ("x"), then [1.0], then unknown again; and unknown alone.
    for lists, want in (
        ("4a0178" + "0a040000803f" + "4a0178", [1.0]),
        ("4a0178", []),
        ("4a0400000000", []),
    ):
        body = bytes.fromhex(lists)
        feature = b"\x12" + bytes([len(body)]) + body
        entry = b"\x0a\x01a\x12" + bytes([len(feature)]) + feature
        record = b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
        assert decode_example(record)["a"].tolist() == want == oracle_decode(record)["a"][1]


def test_kind_not_set_keeps_the_key():
    assert decode_example(bytes.fromhex("0a070a050a01611200")) == {"a": []}
    assert decode_example(b"") == {}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_likes(kind):
    record = encode_example({"a": [1, 2], "b": b"x"})
    source = kind(bytearray(record)) if kind is memoryview else kind(record)
    decoded = decode_example(source)
    if kind is not bytes:
        memoryview(source)[:] = bytes(len(record))
    assert decoded["a"].tolist() == [1, 2]
    assert decoded["b"] == [b"x"]


def test_sequence_examples():
    # The bytes of the reference table: c = 7, x = [1], [2].
    record = bytes.fromhex(
        "0a0c0a0a0a016312051a030a010712150a130a0178120e0a051a030a01010a051a030a0102"
    )
    assert encode_sequence_example({"c": 7}, {"x": [1, [2]]}) == record
    context, lists = decode_sequence_example(record)
    assert kinds_and_values(context) == {"c": [7]}
    assert [step.tolist() for step in lists["x"]] == [[1], [2]]
    rows = np.arange(6).reshape(3, 2)
    assert encode_sequence_example({}, {"x": rows}) == encode_sequence_example(
        {}, {"x": rows.tolist()}
    )
    mixed = decode_sequence_example(
        encode_sequence_example({}, {"x": [], "y": [1, 2.0, "a", np.zeros(0, int)]})
    )[1]
    assert mixed["x"] == []
    assert [list(step) for step in mixed["y"]] == [[1], [2.0], [b"a"], []]


@pytest.mark.parametrize("decode", [decode_example, decode_sequence_example])
def test_malformed_bytes(decode):
    name = "Example" if decode is decode_example else "SequenceExample"
    for bad in (b"\xffSECRET", b"\x0a\x7fSECRET"):
        with pytest.raises(ParseError) as caught:
            decode(bad)
        assert str(caught.value) == (
            f"Could not parse example input: expected one {name} message, got {len(bad)} bytes that are not one"
        )


# --- protobuf as oracle
# ---------------------------------------------------------------------------------------------

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
LISTS = {
    "int64_list": st.lists(INT64),
    "float_list": st.lists(FLOATS),
    "bytes_list": st.lists(st.binary(max_size=5)),
}
FEATURES = st.dictionaries(
    st.text(max_size=4),
    st.one_of(*(st.tuples(st.just(kind), values) for kind, values in LISTS.items())),
    max_size=6,
)
EMPTY = {
    "int64_list": np.zeros(0, int),
    "float_list": np.zeros(0, "f4"),
    "bytes_list": np.zeros(0, "S1"),
}


def encodable(kind, values):
    return values if values else EMPTY[kind]


def fill_oracle(target, features):
    for key, (kind, values) in features.items():
        getattr(target[key], kind).SetInParent()
        getattr(target[key], kind).value.extend(values)


@pytest.mark.daily
@settings(max_examples=150, deadline=None)
@given(FEATURES)
def test_encoded_bytes_are_protobufs(features):
    oracle = Example()
    oracle.features.SetInParent()
    fill_oracle(oracle.features.feature, features)
    record = encode_example({key: encodable(*value) for key, value in features.items()})
    assert record == oracle.SerializeToString(deterministic=True)
    assert same(
        kinds_and_values(decode_example(record)),
        {key: features[key][1] for key in sorted(features)},
    )


@pytest.mark.daily
@settings(max_examples=80, deadline=None)
@given(FEATURES, st.dictionaries(st.text(max_size=3), st.lists(FEATURES, max_size=3), max_size=3))
def test_encoded_sequence_bytes_are_protobufs(context, lists):
    oracle = SequenceExample()
    oracle.context.SetInParent()
    oracle.feature_lists.SetInParent()
    fill_oracle(oracle.context.feature, context)
    steps = {
        key: [value for features in rows for value in features.values()]
        for key, rows in lists.items()
    }
    for key, values in steps.items():
        target = oracle.feature_lists.feature_list[key]
        for kind, value in values:
            feature = target.feature.add()
            getattr(feature, kind).SetInParent()
            getattr(feature, kind).value.extend(value)
    record = encode_sequence_example(
        {key: encodable(*value) for key, value in context.items()},
        {key: [encodable(*value) for value in values] for key, values in steps.items()},
    )
    assert record == oracle.SerializeToString(deterministic=True)
    got_context, got_lists = decode_sequence_example(record)
    assert same(kinds_and_values(got_context), {key: context[key][1] for key in sorted(context)})
    assert {key: len(values) for key, values in got_lists.items()} == {
        key: len(steps[key]) for key in steps
    }


def agree_with_oracle(record):
    """Our result is protobuf's, value for value, or both refuse."""
    try:
        wanted = oracle_decode(record)
    except DecodeError:
        with pytest.raises(ParseError):
            decode_example(record)
        return False
    got = decode_example(record)
    assert got.keys() == wanted.keys()
    for key, (kind, values) in wanted.items():
        assert isinstance(got[key], np.ndarray) == (kind in ("int64_list", "float_list"))
        assert same(list(got[key]) if isinstance(got[key], list) else got[key].tolist(), values)
    return True


@pytest.mark.daily
@settings(max_examples=300, deadline=None)
@given(WIRE_EXAMPLE)
def test_any_wire_form_reads_as_protobuf_does(record):
    assert agree_with_oracle(record)


@pytest.mark.daily
@settings(max_examples=300, deadline=None)
@given(WIRE_EXAMPLE, st.data())
def test_damaged_bytes_read_as_protobuf_does(record, data):
    damaged = bytearray(record or b"\x0a\x00")
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    agree_with_oracle(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


def test_every_truncation_and_many_concatenations():
    rng = random.Random(0)
    for seed in range(40):
        values = {
            f"k{rng.randrange(30)}": rng.choice([[1, 300], [0.5] * 3, ["a"]])
            for _ in range(rng.randrange(1, 30))
        }
        parts = [encode_example(values)] * (1 + seed % 4)
        agree_with_oracle(b"".join(parts))
    record = encode_example({"a": [1, 300], "b": "text", "c": 1.5})
    assert [agree_with_oracle(record[:end]) for end in range(len(record))].count(True) >= 1


# --- no clash
# --------------------------------------------------------------------------------------------------------

CLASH = """
import warnings
warnings.simplefilter("error")
from google.protobuf import descriptor_pb2, descriptor_pool
file = descriptor_pb2.FileDescriptorProto(
    name="tensorflow/core/example/example.proto", package="tensorflow", syntax="proto3")
file.message_type.add(name="Example").field.add(name="features", number=1, label=1, type=9)
file.message_type.add(name="TensorProto").field.add(name="dtype", number=1, label=1, type=9)
{before}
from torch_tfrecord.protobuf import decode_example, encode_example

{after}
record = encode_example({{"a": [1, 2]}})
print(decode_example(record)["a"].tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_no_clash_with_another_packages_messages(first):
    register = "descriptor_pool.Default().AddSerializedFile(file.SerializeToString())"
    code = CLASH.format(before=register if first else "", after="" if first else register)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("[1, 2]\n", "")


@pytest.mark.daily
@pytest.mark.parametrize("first", [True, False])
def test_no_clash_with_the_package_tfrecord(first):
    pytest.importorskip("tfrecord.example_pb2")
    ours, theirs = (
        "from torch_tfrecord.protobuf import encode_example",
        "from tfrecord import example_pb2",
    )
    code = f"""
    {theirs if first else ours}
    {ours if first else theirs}
    print(example_pb2.Example.FromString(encode_example({{"a": [1, 2]}})).features.feature["a"].int64_list.value)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert run.stdout == "[1, 2]\n", run.stderr


def test_integers_among_floats_are_floats():
    # [0, 0.5, 1] is what JSON makes of three floats.
    decoded = decode_example(encode_example({"box": [0, 0.5, 1]}))
    assert decoded["box"].dtype == np.float32
    assert decoded["box"].tolist() == [0.0, 0.5, 1.0]
    exact = [2**24, 2**60, -(2**24) - 2, 0.1]  # a float is rounded
    assert decode_example(encode_example({"x": exact}))["x"].tolist() == [
        *exact[:3],
        float(np.float32(0.1)),
    ]


def test_what_decode_gives_encode_takes():
    kinds = {
        "ints": [1, -(2**63)],
        "floats": [0.5, float("nan")],
        "bytes": [b"", b"\xff"],
        "no ints": np.zeros(0, np.int64),
        "no floats": np.zeros(0, np.float32),
    }
    record = encode_example(kinds)
    assert encode_example(decode_example(record)) == record
    bare = Example()
    bare.features.feature["x"].SetInParent()
    # neither says its kind any more
    for unknown in (bare.SerializeToString(), encode_example({"x": np.zeros(0, np.bytes_)})):
        assert decode_example(unknown) == {"x": []}
        with pytest.raises(ValueError, match="feature 'x': an empty list has no type"):
            encode_example(decode_example(unknown))


@pytest.mark.slow
def test_text_that_is_none_for_protobuf_without_its_compiled_part():
    """Free-threaded Pythons get that one; it raises UnicodeDecodeError."""
    program = """
from google.protobuf.internal import api_implementation
from torch_tfrecord import ParseError
from torch_tfrecord.protobuf import parse_message
assert api_implementation.Type() == "python"
try:
    parse_message(bytes([0x1A, 1, 0xFF]), "Event")
except ParseError as error:
    print(error)
"""
    variables = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    done = run_python(program, env=variables)
    assert done.stdout.startswith("Could not parse example input: expected one Event"), done.stderr


# The pool that all generated classes of a process share, where another package has registered
# TensorFlow's messages under the same names, and one of its own with other fields.
BESIDE_OTHERS = """
import sys
from google.protobuf import descriptor_pb2, descriptor_pool

def register(name, field):
    file = descriptor_pb2.FileDescriptorProto(
        name=name, package="tensorflow", message_type=[{"name": "Example", "field": [field]}]
    )
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())

FIELD = dict(name="other", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")

def read():
    from torch_tfrecord import decode_example, encode_example
    return decode_example(encode_example({"label": 3}))["label"].tolist()

if sys.argv[1] == "before":
    register("tensorflow/core/example/example.proto", FIELD)
    print(read())
else:
    print(read())
    register("tensorflow/core/example/example.proto", FIELD)
print(read())
try:
    register("other/example.proto", FIELD)
except TypeError as error:
    print("duplicate symbol" in str(error), "tensorflow.Example" in str(error))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_messages_of_other_packages_do_not_meet_ours(tmp_path, when):
    """Two of theirs do: docs/install.md quotes that error."""
    done = run_program(BESIDE_OTHERS, tmp_path, when)
    assert (done.stdout, done.stderr) == ("[3]\n[3]\nTrue True\n", "")
