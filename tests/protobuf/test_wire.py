"""Wire forms of SequenceExamples and of what specs read, against protobuf (a pool of its own);
hostile messages.

Covers protobuf/messages.
"""

import math
import time
import tracemalloc

import numpy as np
import pytest
import torch
from google.protobuf.message import DecodeError
from helpers import for_each, inferred
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_examples import (
    UNKNOWN,
    WIRE_EXAMPLE,
    WIRE_FEATURE,
    Example,
    SequenceExample,
    length_delimited,
    oracle_feature,
    varint,
)

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    ParseError,
    RaggedFeature,
    RaggedTensor,
    RawTensor,
    SerializedTensor,
    SparseFeature,
    Text,
    TFRecordError,
    VarLenFeature,
    decode_example,
    decode_sequence_example,
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)

DTYPES = {"int64_list": torch.int64, "float_list": torch.float32, "bytes_list": bytes}


def feature_of(kind, number=1):
    """A Feature message with one list of a kind: values 1 and 2, or b"1"."""
    body = {
        "int64_list": length_delimited(1, b"\x01\x02"),
        "float_list": length_delimited(1, np.array([1, 2], "<f4").tobytes()),
        "bytes_list": length_delimited(1, b"1"),
    }[kind]
    return length_delimited({"bytes_list": 1, "float_list": 2, "int64_list": 3}[kind], body)


def example_of(feature, key=b"a"):
    return length_delimited(
        1, length_delimited(1, length_delimited(1, key) + length_delimited(2, feature))
    )


def as_list(values):
    return values if isinstance(values, list) else values.tolist()


def same(left, right):
    """Equal, where NaN equals NaN."""
    return repr(left) == repr(right)


# --- random wire forms
# -----------------------------------------------------------------------------------------------

WIRE_STEPS = st.lists(
    st.one_of(WIRE_FEATURE.map(lambda body: length_delimited(1, body)), UNKNOWN), max_size=4
)
WIRE_LIST_ENTRY = st.tuples(
    st.sampled_from([b"x", b"y", b""]), WIRE_STEPS.map(b"".join), st.integers(0, 3)
).map(
    lambda item: length_delimited(
        1,
        [
            length_delimited(1, item[0]) + length_delimited(2, item[1]),
            length_delimited(2, item[1]) + length_delimited(1, item[0]),
            length_delimited(1, item[0]),
            length_delimited(1, item[0])
            + length_delimited(2, item[1])
            + length_delimited(2, item[1]),
        ][item[2]],
    )
)
WIRE_LISTS = st.lists(st.one_of(WIRE_LIST_ENTRY, UNKNOWN), max_size=4).map(
    lambda p: length_delimited(2, b"".join(p))
)
WIRE_SEQUENCE = st.lists(st.one_of(WIRE_EXAMPLE, WIRE_LISTS, UNKNOWN), max_size=4).map(b"".join)


def check_example_specs(record, features, parse):
    """What VarLen and Ragged specs read of each key is what protobuf reads of it."""
    for key, feature in features.items():
        kind = feature.WhichOneof("kind")
        for name, dtype in DTYPES.items():
            for spec in (VarLenFeature(dtype, key=key), RaggedFeature(dtype, key)):
                if kind in (None, name):
                    assert same(as_list(parse(record, {"x": spec})["x"]), oracle_feature(feature))
                else:
                    with pytest.raises(ParseError, match="Data types don't match"):
                        parse(record, {"x": spec})


def check_step_specs(record, lists):
    for key, feature_list in lists.items():
        kinds = {feature.WhichOneof("kind") for feature in feature_list.feature} - {None}
        for name, dtype in DTYPES.items():
            spec = {"x": VarLenFeature(dtype, key=key)}
            if kinds <= {name}:
                got = parse_single_sequence_example(record, None, spec)[1]["x"]
                rows = got if isinstance(got, list) else [row.tolist() for row in got.unbind()]
                assert same(rows, [oracle_feature(feature) for feature in feature_list.feature])
            else:
                with pytest.raises(ParseError, match="Data types don't match"):
                    parse_single_sequence_example(record, None, spec)


def check_sequence(record):
    """Our result is protobuf's, value for value, or both refuse."""
    try:
        wanted = SequenceExample.FromString(record)
    except DecodeError:
        for parse in (
            decode_sequence_example,
            lambda r: parse_sequence_example([r], None, {"x": VarLenFeature(bytes)}),
        ):
            with pytest.raises(ParseError, match="Could not parse example input"):
                parse(record)
        return
    context, lists = decode_sequence_example(record)
    features, feature_lists = wanted.context.feature, wanted.feature_lists.feature_list
    assert {key: repr(as_list(value)) for key, value in context.items()} == {
        key: repr(oracle_feature(features[key])) for key in features
    }
    assert {key: [repr(as_list(step)) for step in steps] for key, steps in lists.items()} == {
        key: [repr(oracle_feature(step)) for step in feature_lists[key].feature]
        for key in feature_lists
    }
    check_example_specs(record, features, lambda r, spec: parse_single_sequence_example(r, spec)[0])
    check_step_specs(record, feature_lists)


@pytest.mark.daily
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(WIRE_SEQUENCE)
def test_any_wire_form_of_a_sequence_reads_as_protobuf_does(record):
    check_sequence(record)


@pytest.mark.daily
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(WIRE_SEQUENCE, st.data())
def test_damaged_sequences_read_as_protobuf_does(record, data):
    damaged = bytearray(record or b"\x12\x00")
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    check_sequence(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


@pytest.mark.slow
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(WIRE_EXAMPLE)
def test_specs_read_any_wire_form_of_an_example_as_protobuf_does(record):
    check_example_specs(record, Example.FromString(record).features.feature, parse_single_example)


# --- encode, then parse
# ----------------------------------------------------------------------------------------------

EXTREME_INTS = st.sampled_from([0, 1, -1, 127, 128, (1 << 63) - 1, -(1 << 63), 1 << 32])
EXTREME_FLOATS = st.sampled_from(
    [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -3.4028234663852886e38, 0.5]
)
EXTREMES = {
    "int64_list": st.one_of(EXTREME_INTS, st.integers(-(1 << 63), (1 << 63) - 1)),
    "float_list": st.one_of(EXTREME_FLOATS, st.floats(width=32)),
    "bytes_list": st.binary(max_size=5),
}
STEPS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda kind: st.tuples(
        st.just(kind), st.lists(st.lists(EXTREMES[kind], max_size=3), max_size=4)
    )
)


@pytest.mark.daily
@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("xyz"), STEPS), max_size=4))
def test_batches_of_sequences_are_what_protobuf_wrote(rows):
    records = []
    for row in rows:
        message = SequenceExample()
        for key, (kind, steps) in row.items():
            feature_list = message.feature_lists.feature_list[key]
            for step in steps:
                values = getattr(feature_list.feature.add(), kind)
                values.SetInParent()
                values.value.extend(step)
        records.append(message.SerializeToString())
    for key in "xyz":
        kinds = {row[key][0] for row in rows if key in row and row[key][1]}
        for kind, dtype in DTYPES.items():
            if kinds <= {kind}:
                got = parse_sequence_example(records, None, {key: VarLenFeature(dtype)})[1][key]
                wanted = [row[key][1] if key in row else [] for row in rows]
                assert same(
                    got.to_list() if isinstance(got, RaggedTensor) else got,
                    single_precision(wanted),
                )


def single_precision(value):
    if isinstance(value, list):
        return [single_precision(item) for item in value]
    return float(np.float32(value)) if isinstance(value, float) else value


# --- hostile messages
# ------------------------------------------------------------------------------------------------

INTS = {"a": VarLenFeature(torch.int64)}
EVERYTHING = {
    "fixed": FixedLenFeature((2,), torch.int64, [0, 0], key="a"),
    "rows": FixedLenSequenceFeature((2,), torch.int64, allow_missing=True, key="a"),
    "ragged": RaggedFeature(
        torch.int64, "a", [RaggedFeature.RowLengths("b"), RaggedFeature.ValueRowIds("c")]
    ),
    "loose": RaggedFeature(
        torch.int64,
        "a",
        [RaggedFeature.RowSplits("b"), RaggedFeature.ValueRowIds("c")],
        validate=False,
    ),
    "starts": RaggedFeature(
        torch.int64, "a", [RaggedFeature.RowStarts("b"), RaggedFeature.RowLimits("c")]
    ),
    "sparse": SparseFeature(["b", "c"], "a", torch.int64, [5, 5]),
    "repeated": SparseFeature(["b", "c"], "a", torch.int64, [5, 5], validate=False),
    "text": Text(key="a"),
    "image": Image(key="a"),
    "raw": RawTensor(("b", -1), torch.uint8, key="a"),
    "tensor": SerializedTensor(key="a"),
}
LIST_SPECS = {
    name: spec
    for name, spec in EVERYTHING.items()
    if not isinstance(spec, (FixedLenFeature, SparseFeature))
} | {"rows": FixedLenSequenceFeature((2,), torch.int64, key="a")}
NUMBERS = st.lists(st.one_of(st.integers(-1, 5), EXTREMES["int64_list"]), max_size=4)


@pytest.mark.daily
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), NUMBERS), st.data())
def test_mutated_bytes_raise_only_our_errors_in_bounded_time_and_memory(row, data):
    step = {key: np.array(values, dtype=np.int64) for key, values in row.items()}
    message = SequenceExample()
    for key, values in step.items():
        message.context.feature[key].int64_list.value.extend(values.tolist())
        message.feature_lists.feature_list[key].feature.add().int64_list.value.extend(
            values.tolist()
        )
    record = bytearray(message.SerializeToString() or b"\x0a\x00")
    for _ in range(data.draw(st.integers(0, 2))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    for name, spec in EVERYTHING.items():
        only_our_errors(lambda spec=spec, name=name: parse_example([bytes(record)], {name: spec}))
    for name, spec in LIST_SPECS.items():
        only_our_errors(
            lambda spec=spec, name=name: parse_sequence_example([bytes(record)], None, {name: spec})
        )
    only_our_errors(lambda: inferred([bytes(record)]))


def only_our_errors(parse):
    tracemalloc.start()
    begin = time.process_time()
    try:
        parse()
    except TFRecordError as error:
        assert str(error)
    finally:
        spent, peak = time.process_time() - begin, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert spent < 5
    assert peak < 400 << 20


@for_each("extra", range(10))
@for_each("number", [0, 5, 127, 128, 1 << 35, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_varints_minimal_overlong_and_cut(number, extra):
    # robustness 38: up to ten bytes are read modulo 2**64, eleven are an error, a cut one is an
    # error at every byte.
    encoded = varint(number, extra)
    for chunk in (length_delimited(1, encoded), b"\x08" + encoded):
        record = example_of(length_delimited(3, chunk))
        if len(encoded) > 10:
            with pytest.raises(ParseError):
                decode_example(record)
            continue
        wanted = [(number + (1 << 63)) % (1 << 64) - (1 << 63)]
        assert decode_example(record)["a"].tolist() == wanted
        assert parse_single_example(record, INTS)["a"].tolist() == wanted
    for end in range(1, len(encoded)):
        cut = example_of(length_delimited(3, length_delimited(1, encoded[:end])))
        with pytest.raises(ParseError):
            parse_single_example(cut, INTS)


@pytest.mark.parametrize(
    "tail",
    [
        "0200",
        "0e",
        "0f",
        "3c",
        "3b",
        "3b44",
        "3b3b3c",
        "38",
        "3980",
        "4a05ff",
        "4a",
        "3d000000",
        "faffffff7f00",
        "8000",
    ],
)
def test_what_no_message_has(tail):
    # robustness 37: field number 0, wire types 6 and 7, unmatched groups, ends inside unknown
    # fields, a tag too high.
    record = example_of(feature_of("int64_list")) + bytes.fromhex(tail)
    for message, parse in (
        (Example, lambda: parse_single_example(record, INTS)),
        (SequenceExample, lambda: parse_single_sequence_example(record, INTS)),
    ):
        try:
            message.FromString(record)
        except DecodeError:
            with pytest.raises(ParseError):
                parse()
        else:
            parse()


def test_truncation_at_every_byte():
    record = b"".join(example_of(feature_of(kind), kind.encode()) for kind in DTYPES)
    lists = length_delimited(
        2,
        length_delimited(
            1,
            length_delimited(1, b"x")
            + length_delimited(2, length_delimited(1, feature_of("int64_list"))),
        ),
    )
    for end in range(len(record + lists)):
        check_sequence((record + lists)[:end])


def test_unknown_groups():
    # robustness 39: protobuf's limit is 100 levels; nothing may recurse without one.
    record = example_of(feature_of("int64_list"))
    for depth, is_read in ((1, True), (99, True), (101, False), (10**5, False)):
        group = b"\x3b" * depth + b"\x3c" * depth
        for parse in (
            lambda group=group: parse_single_example(record + group, INTS)["a"],
            lambda group=group: decode_example(group + record)["a"],
            lambda group=group: parse_single_sequence_example(group + record, INTS)[0]["a"],
        ):
            if is_read:
                assert parse().tolist() == [1, 2]
            else:
                with pytest.raises(ParseError):
                    parse()
    for group in (b"\x3b" * 10**5, b"\x3b\x44", b"\x3c"):
        with pytest.raises(ParseError):
            parse_single_example(record + group, INTS)


def seconds(parse):
    begin = time.process_time()
    parse()
    return time.process_time() - begin


@pytest.mark.daily
@pytest.mark.parametrize("what", ["keys", "values", "strings", "duplicate keys", "steps", "rows"])
def test_large_messages_take_linear_time(what):
    # robustness 40
    build = {
        "keys": lambda n: b"".join(
            example_of(feature_of("int64_list"), b"%d" % i) for i in range(n)
        ),
        "values": lambda n: example_of(length_delimited(3, length_delimited(1, b"\x01" * n)), b"0"),
        "strings": lambda n: example_of(length_delimited(1, length_delimited(1, b"s") * n), b"0"),
        "duplicate keys": lambda n: example_of(feature_of("int64_list"), b"0") * n,
        "steps": lambda n: length_delimited(
            2,
            length_delimited(
                1,
                length_delimited(1, b"0")
                + length_delimited(2, length_delimited(1, feature_of("int64_list")) * n),
            ),
        ),
        "rows": lambda n: example_of(length_delimited(3, length_delimited(1, b"\x00" * n)), b"0"),
    }[what]
    dtype = bytes if what == "strings" else torch.int64
    spec = VarLenFeature(dtype)
    if what == "rows":
        spec = RaggedFeature(dtype, "v", [RaggedFeature.RowLengths("0")])

    def parse(record):
        if what == "steps":
            return parse_single_sequence_example(record, None, {"0": spec})
        return parse_single_example(record, {"0": spec})

    small, large = (build(n) for n in (10**5, 10**6))
    parse(small)
    limit = 30 * min(seconds(lambda: parse(small)) for _ in range(3)) + 0.5
    # once more where the machine was busy
    assert any(seconds(lambda: parse(large)) < limit for _ in range(2))
