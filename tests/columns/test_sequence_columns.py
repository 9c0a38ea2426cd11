"""SequenceExamples by the compiled core are those by protobuf's messages, and every way in gives
the same values.

Covers columns/sequences.
"""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_column_plan import bits, needs_core, outcome, packed
from test_golden import CASES, golden_specs, unbase64

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    ParseError,
    RaggedFeature,
    RawTensor,
    SequenceFeatures,
    SerializedTensor,
    Text,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    decode_sequence_example,
    encode_sequence_example,
    parse_sequence_example,
    parse_single_sequence_example,
    serialize_tensor,
)
from torch_tfrecord.columns import column_plan, sequences
from torch_tfrecord.columns.sequences import SequenceExampleParser
from torch_tfrecord.loading.sample import take_apart

I64, F32 = torch.int64, torch.float32
UNKNOWN = b"\x1a\x00"  # a field that no SequenceExample has: protobuf reads such a record, and writes it again

CONTEXT = {
    "id": FixedLenFeature((), I64),
    "pair": FixedLenFeature((2,), F32, (0.5, 1.5)),
    "name": Text(),
    "ids": VarLenFeature(torch.int32),
    "rows": RaggedFeature(I64, "ids", [RaggedFeature.RowLengths("lengths")]),
}
PARTITIONS = [RaggedFeature.RowLengths("n"), RaggedFeature.UniformRowLength(1)]
STEPS = {
    "x": FixedLenSequenceFeature((2,), F32),
    "maybe": FixedLenSequenceFeature((), torch.int16, allow_missing=True),
    "words": FixedLenSequenceFeature((), bytes, key="text"),
    "pairs": FixedLenSequenceFeature((1, 2), str, True, key="two"),
    "v": VarLenFeature(I64),
    "again": VarLenFeature(torch.int32, key="v"),
    "ragged": RaggedFeature(I64, "v", [RaggedFeature.RowLengths("n")]),
    "deep": RaggedFeature(I64, "v", PARTITIONS),
    "strings": RaggedFeature(str, "two", [RaggedFeature.UniformRowLength(1)]),
    "lists": VarLenFeature(bytes, key="two"),
    "text": Text(),
    "raw": RawTensor(("h", -1), torch.uint8),
    "tensor": SerializedTensor(),
}


def record(seed, num_steps=None):
    """A record that has it all."""
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(0, 5)) if num_steps is None else num_steps
    counts = [int(rng.integers(0, 4)) for _ in range(steps)]
    lists = {
        "x": rng.random((steps, 2)).astype("f4"),
        "text": [f"ü{rng.integers(1000)}" for _ in counts],
        "two": [["a" * int(rng.integers(20)), "é"] for _ in counts],
        "v": [rng.integers(0, 1 << 30, count) for count in counts],
        "n": [[count, 0] for count in counts],
        "raw": [rng.bytes(6) for _ in counts],
        # the others': the context's
        "h": [int(rng.choice([1, 2, 3])) for _ in counts[: steps // 2]],
        "tensor": [serialize_tensor(torch.tensor([number, 2])) for number in counts],
        "skipped": rng.random(steps),
    }
    if seed % 2:
        lists["maybe"] = rng.integers(-9, 9, steps)
    context = {
        "id": seed,
        "name": f"n{seed}",
        "ids": counts,
        "lengths": [len(counts)],
        "h": 2,
        "skipped": [0.5],
    }
    return encode_sequence_example(context | ({"pair": [seed, np.nan]} if seed % 3 else {}), lists)


def twin_of(context, steps, **options):
    """A parser that does not use the compiled core."""
    parser = SequenceExampleParser(context, steps, **options)
    parser._plan.core = None
    return parser


def check(context, steps, records):
    """Core and Python fallback agree on batches, padded or not, and one by one; the row of a batch
    is the sample.
    """
    for pads in (True, False):
        core, twin = (make(context, steps, pads=pads) for make in (SequenceExampleParser, twin_of))
        wanted = outcome(lambda twin=twin: twin.batch(records))
        for rows in (records, packed(records)):
            assert outcome(lambda core=core, rows=rows: core.batch(rows)) == wanted
    singles = []
    for row in records:
        singles.append(outcome(lambda row=row: twin.single(row)))
        assert outcome(lambda row=row: core.single(row)) == singles[-1]
    if not isinstance(wanted[0], type):
        return
    if wanted[0] is tuple:
        rows = take_apart(
            SequenceExampleParser(context, steps, pads=False).batch(records), len(records)
        )
        assert [bits((dict(first), dict(second))) for first, second in rows] == singles
    else:
        position = wanted[2]
        assert wanted == (
            *singles[position][:1],
            f"record {position}: {singles[position][1]}",
            position,
        )


@pytest.mark.daily
@needs_core
@pytest.mark.parametrize("seed", range(4))
def test_every_spec_alone_and_together(seed):
    records = [record(number) for number in range(seed, seed + 6)]
    odd = [row + UNKNOWN if number % 2 else row for number, row in enumerate(records)]
    for rows in (records, odd, records[:1], [], [record(1, 3), record(3, 3)]):
        check(CONTEXT, STEPS, rows)
        for name, spec in STEPS.items():
            check(None, {name: spec}, rows)
        for name, spec in CONTEXT.items():
            check({name: spec}, None, rows)


@needs_core
def test_plain_records_never_become_messages(monkeypatch):
    def fail(*args):
        raise AssertionError("protobuf was asked")

    records = [record(number) for number in range(5)]
    parser = SequenceExampleParser(CONTEXT, STEPS)
    wanted = bits(parser.batch(records)), bits(parser.single(records[3]))
    for module in (sequences, column_plan):
        monkeypatch.setattr(module, "parse_message", fail)
    assert (bits(parser.batch(records)), bits(parser.single(records[3]))) == wanted
    with pytest.raises(AssertionError):
        parser.batch([*records, records[0] + UNKNOWN])


BAD = {
    "malformed": b"\xff",
    "no list": encode_sequence_example({"id": 1, "h": 1}, {}),
    "kind": encode_sequence_example({"id": 1, "h": 1}, {"x": [1, 2], "raw": []}),
    "count": encode_sequence_example({"id": 1, "h": 1}, {"x": [[1.0, 2.0], [1.0]], "raw": []}),
    "no id": encode_sequence_example({"h": 1}, {"x": [], "raw": []}),
    "bytes": encode_sequence_example({"id": 1, "h": 4}, {"x": [], "raw": [bytes(4), bytes(5)]}),
    "no size": encode_sequence_example({"id": 1}, {"x": [], "raw": [b"1"]}),
    "size": encode_sequence_example({"id": 1, "h": [1, 2]}, {"x": [], "raw": [b"1"]}),
    "lengths": encode_sequence_example(
        {"id": 1, "h": 1}, {"x": [], "raw": [], "v": [1, 2], "n": [[1]]}
    ),
    "partition": encode_sequence_example(
        {"id": 1, "h": 1}, {"x": [], "raw": [], "v": [1, 2], "n": [[1], [2]]}
    ),
    "step unset": encode_sequence_example({"id": 1, "h": 1}, {"raw": []})
    + bytes.fromhex("12 09 0a070a017812020a00"),
}
SOME = {name: STEPS[name] for name in ("x", "raw", "ragged")}
GOOD = encode_sequence_example({"id": 7, "h": 2}, {"x": [[1.0, 2.0]], "raw": [b"1234"]})


@pytest.mark.slow
@needs_core
@pytest.mark.parametrize("name", BAD)
def test_the_first_bad_record_is_the_error(name):
    context = {"id": CONTEXT["id"]}
    for other in BAD.values():
        check(context, SOME, [GOOD, BAD[name], GOOD, other])
    if name not in ("partition", "lengths", "step unset"):
        assert isinstance(
            outcome(lambda: SequenceExampleParser(context, SOME).single(BAD[name]))[1], str
        )


def test_words_of_what_does_not_fit():
    texts = {
        "no list": "feature 'x' (float32): Feature list 'x' is required but could not be found: the record has no feat",
        "no id": "feature 'id' (int64): key 'id' is required but could not be found: the record has 'h'",
        "bytes": "step 1: feature 'raw' (RawTensor): expected a multiple of 4 bytes for shape [4, -1] of uint8, got 5",
        "no size": "step 0: feature 'raw' (size, key 'h'): key 'h' is required but could not be found: the record has",
        "size": "step 0: feature 'raw' (size, key 'h'): Number of int64 values != expected: got 2, expected 1 for sha",
        "lengths": "feature 'ragged' (int64, key 'v'): expected feature lists of equal length, got {'v': 2, 'n': 1}",
        "partition": "step 1: feature 'ragged' (RowLengths, key 'n'): the rows and the values do not form a valid Rag",
        "step unset": "step 0: feature 'x' (float32): Number of float values != expected: got 0, expected 2 for shape",
    }
    for name, text in texts.items():
        with pytest.raises(ParseError) as caught:
            parse_single_sequence_example(BAD[name], {"id": CONTEXT["id"]}, SOME)
        assert str(caught.value).startswith(text)


def test_a_size_that_no_step_asks_for_may_be_anything():
    spec = {"raw": STEPS["raw"]}
    for context, sizes in (({"h": "text"}, [2]), ({"h": [1, 2]}, [2, 3]), ({}, [1])):
        row = encode_sequence_example(context, {"raw": [b"1234"], "h": sizes})
        assert parse_single_sequence_example(row, None, spec)[1]["raw"].shape[0] == 1


# --- bits
# ------------------------------------------------------------------------------------------------------------

NANS = [0x7F800001, 0xFF812345, 0x7FC00001, 0xFFFFFFFF]


def nan_record(is_plain=True):
    values = np.array(NANS, np.uint32).view(np.float32)
    lists = {"x": values.reshape(2, 2), "v": [values[:3], values[3:]]}
    row = encode_sequence_example({"c": values[:1], "w": values}, lists)
    return row if is_plain else row + UNKNOWN


def raw_bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.int32).numpy().view(np.uint32).tolist()


@pytest.mark.parametrize("is_plain", [True, False])
def test_nans_keep_their_bits(is_plain):
    row = nan_record(is_plain)
    context = {"c": FixedLenFeature((), F32), "w": VarLenFeature(F32)}
    lists = {"x": FixedLenSequenceFeature((2,), F32), "v": VarLenFeature(F32)}
    single = parse_single_sequence_example(row, context, lists)
    batched = parse_sequence_example([row], context, lists)
    assert raw_bits(single[0]["c"]) == raw_bits(batched[0]["c"]) == NANS[:1]
    for got in (
        single[0]["w"],
        single[1]["x"],
        single[1]["v"].values(),
        batched[1]["x"],
        batched[1]["v"].flat_values,
    ):
        assert raw_bits(got) == NANS
    decoded = decode_sequence_example(row)
    assert decoded[0]["w"].view(np.uint32).tolist() == NANS
    assert np.concatenate(decoded[1]["v"]).view(np.uint32).tolist() == NANS


# --- datasets
# --------------------------------------------------------------------------------------------------------


def write(path, records):
    with TFRecordWriter(path) as writer:
        for row in records:
            writer.write(row)


@pytest.mark.daily
@pytest.mark.filterwarnings("ignore:none of .* records looked at")
@needs_core
def test_the_stored_cases_by_each_way_in(tmp_path):
    cases = [
        case for case in CASES if case["group"] == "sequence" and "error" not in case["expected"]
    ]
    cases = [case for case in cases if case["serialized"] and not case["differs_from_protobuf"]][
        ::2
    ]
    for number, case in enumerate(cases):
        rows = [unbase64(text) for text in case["serialized"]]
        specs = [golden_specs(case, name) for name in ("context_features", "sequence_features")]
        wanted = [
            outcome(lambda row=row, specs=specs: parse_single_sequence_example(row, *specs))
            for row in rows
        ]
        check(*specs, rows)
        path, places = tmp_path / str(number), range(len(rows))
        write(path, rows)
        features = SequenceFeatures(*specs)
        ds = TFRecordDataset(path, features, index="memory")
        assert [bits(ds[place]) for place in places] == wanted
        assert [*map(bits, ds.__getitems__(places))] == wanted
        assert [*map(bits, TFRecordIterableDataset(path, features))] == wanted
        assert bits(collate(ds.__getitems__([0] * 3))) == bits(collate([ds[0]] * 3))
    assert len(cases) > 20


# --- any bytes
# -------------------------------------------------------------------------------------------------------

FEATURE = {
    "i": st.lists(st.integers(-(1 << 40), 1 << 40), min_size=2, max_size=2).map(
        lambda v: np.array(v, np.int64)
    ),
    "v": st.lists(st.integers(0, 300), max_size=3).map(lambda v: np.array(v, np.int64)),
    "n": st.lists(st.integers(0, 2), max_size=2).map(lambda v: np.array(v, np.int64)),
    "f": st.floats(width=32).map(lambda v: np.array([v], np.float32)),
    "t": st.text(max_size=3),
}
LISTS = st.integers(0, 3).flatmap(
    lambda steps: st.fixed_dictionaries(
        {key: st.lists(FEATURE[key], min_size=steps, max_size=steps) for key in "if"},
        optional={key: st.lists(FEATURE[key], min_size=steps, max_size=steps + 1) for key in "vnt"},
    )
)
RECORD = st.builds(
    lambda context, lists, tail: encode_sequence_example(context, lists) + tail,
    st.fixed_dictionaries(
        {"i": st.integers(0, 9)}, optional={"v": FEATURE["v"], "t": st.text(max_size=2)}
    ),
    LISTS,
    st.sampled_from([b"", b"", UNKNOWN, b"\x0a\x00", b"\x12\x00", b"\x12\x05\x0a\x03\x0a\x01i"]),
)
ANY_CONTEXT = {
    "i": FixedLenFeature((), I64),
    "v": VarLenFeature(I64),
    "t": FixedLenFeature((), bytes, b"?"),
}
ANY_STEPS = {
    "i": FixedLenSequenceFeature((2,), I64),
    "f": FixedLenSequenceFeature((), F32, allow_missing=True),
    "v": VarLenFeature(I64),
    "t": FixedLenSequenceFeature((), bytes, True),
    "r": RaggedFeature(I64, "v", [RaggedFeature.RowLengths("n")], validate=False),
    "u": RaggedFeature(I64, "v"),
}
LENIENT = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.mark.daily
@needs_core
@settings(LENIENT, max_examples=40)
@given(st.lists(RECORD, max_size=4))
def test_any_records(records):
    check(ANY_CONTEXT, ANY_STEPS, records)


@pytest.mark.daily
@needs_core
@settings(LENIENT, max_examples=60)
@given(st.lists(RECORD, min_size=1, max_size=3), st.data())
def test_damaged_bytes(records, data):
    for place, row in enumerate(records):
        damaged = bytearray(row)
        for _ in range(data.draw(st.integers(0, 2))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        records[place] = bytes(
            damaged[: data.draw(st.one_of(st.none(), st.integers(0, len(damaged))))]
        )
    check(ANY_CONTEXT, ANY_STEPS, records)
