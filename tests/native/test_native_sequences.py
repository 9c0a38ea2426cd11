"""The compiled core for SequenceExamples, alone: what it reads is what protobuf reads, for the rest
it asks.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_native_columns import entry, example, ints, packed, same_values
from wire_examples import Example, SequenceExample, length_delimited, varint

from torch_tfrecord import encode_example, encode_sequence_example

core = pytest.importorskip(
    "torch_tfrecord.native.columns", reason="the compiled core was not built"
)

DTYPES = {1: np.int64, 2: np.float32, 3: np.int64}


class Parsed:
    """Records read by the core: each one's context as bytes, and its steps by key, None where it
    lacks the list.
    """

    def __init__(self, slots, records, canonical=None, gap=b"\x8f\x0a"):
        buffer = b"".join(gap + record for record in records)
        lengths = np.array([len(record) for record in records], np.int64)
        starts = np.cumsum(lengths + len(gap)) - lengths
        count = len(records)
        contexts = np.full((count, 2), -9, np.int64)
        borders = np.full((len(slots), count + 1), -9, np.int64)
        missing = np.zeros((len(slots), count), np.uint8)
        plan = core.SequencePlan(slots)
        found = plan.parse(
            np.frombuffer(buffer, np.uint8), starts, lengths, contexts, borders, missing, canonical
        )
        self.is_plain = found is not None
        if found is None:
            return
        parts, self.extras = found
        everything = buffer + b"".join(self.extras)
        self.contexts = [everything[start : start + size] for start, size in contexts.tolist()]
        self.lists = {}
        for (key, kind), (memory, ends), rows, lacks in zip(
            slots, parts, borders, missing, strict=True
        ):
            values = (
                np.frombuffer(memory, DTYPES[kind])
                if memoryview(memory).nbytes
                else np.zeros(0, DTYPES[kind])
            )
            if kind == 1:
                values = np.array([*map(bytes, core.copies(everything, values))], dtype=object)
            steps = [values[begin:end] for begin, end in pairwise(np.frombuffer(ends, np.int64))]
            each = [steps[begin:end] for begin, end in pairwise(rows)]
            self.lists[key] = [
                None if lack else row for row, lack in zip(each, lacks.tolist(), strict=True)
            ]


def check(slots, records):
    """What the core reads is what protobuf reads; returns whether it read the records."""
    parsed = Parsed(slots, records)
    if not parsed.is_plain:
        return False
    for position, record in enumerate(records):
        message = SequenceExample.FromString(record)  # whatever the core reads, protobuf reads
        assert Example.FromString(parsed.contexts[position]).features == message.context
        for key, kind in slots:
            got, lists = parsed.lists[key][position], message.feature_lists.feature_list
            assert (got is None) == (key.decode() not in lists)
            for values, feature in zip(
                got or (), lists[key.decode()].feature if got is not None else (), strict=True
            ):
                stored = feature.WhichOneof("kind")
                assert len(values) == 0 if stored is None else same_values(values, feature)
                assert stored in (None, ["bytes_list", "float_list", "int64_list"][kind - 1])
    return True


def lists(*entries):
    return length_delimited(2, b"".join(entries))


def steps(key, *features):
    return entry(key, b"".join(length_delimited(1, feature) for feature in features))


INTS, FLOATS, WORDS = (b"i", 3), (b"f", 2), (b"b", 1)


# --- what is plain is read
# -----------------------------------------------------------------------------------------


def test_steps_of_every_kind():
    rng = np.random.default_rng(0)
    records = []
    for count in (0, 1, 3, 63, 64, 65, 130):
        values = [rng.integers(-5, 1 << 40, rng.integers(0, 20)) for _ in range(count)]
        words = [
            [rng.bytes(rng.integers(0, 300)) for _ in range(rng.integers(1, 3))]
            for _ in range(count)
        ]
        floats = [rng.random(rng.integers(0, 90)).astype("f4") for _ in range(count)]
        lists = {
            "i": values,
            "b": words,
            "f": floats,
            "skipped": values,
            "words": words,
            "others": floats,
        }
        records.append(encode_sequence_example({"c": [1, 2], "t": "text"}, lists))
    for slots in ([INTS, FLOATS, WORDS], [WORDS], [], [INTS, (b"gone", 1)]):
        assert check(slots, records)
        assert check(slots, [])


def test_records_without_parts():
    unset = lists(steps(b"i", b"", ints(packed(1)), ints()), steps(b"b"))
    records = [
        b"",
        b"\x0a\x00",
        b"\x12\x00",
        example(),
        lists(),
        unset,
        unset + example(entry(b"c", b"")),
    ]
    records += [
        lists(steps(b"i", ints(packed(1)))) + lists(steps(b"f")) + example() + lists(steps(b"b"))
    ]
    assert check([INTS, FLOATS, WORDS], records)
    assert Parsed([INTS, WORDS], records).lists[b"i"][5][0].tolist() == []


# --- what is not plain is asked for
# --------------------------------------------------------------------------------

PLAIN = encode_sequence_example({"c": 3}, {"i": [4, 5], "skipped": [3, 0.5]})
ODD = [
    lists(steps(b"i", ints(packed(1))), steps(b"i", ints(packed(2)))),
    lists(steps(b"i", length_delimited(2, b""))),
    lists(steps(b"i", ints(packed(1)) + ints(packed(2)))),
    lists(steps(b"skipped", length_delimited(2, length_delimited(1, b"123")))),
    lists(steps(b"skipped", length_delimited(4, b""))),
    lists(length_delimited(1, length_delimited(2, b"") + length_delimited(1, b"i"))),
    lists(length_delimited(1, length_delimited(1, b"i"))),
    lists(entry(b"i", b"\x10\x01")),
    lists(entry(b"i", length_delimited(2, b""))),
    lists(steps(b"\xff", b"")),
    lists(b"\x10\x01"),
    example(entry(b"\xff", b"")),
    example(entry(b"c", ints(length_delimited(1, b"\x80")))),
    example() + example(),
    example() + b"\x1a\x00",
    b"\x12\x01",
    b"\x12",
    b"\x92\x00\x00",
    b"\x12\x80\x00",
    b"\x0b\x0c",
    b"\x00",
]


@pytest.mark.parametrize("record", ODD)
def test_other_forms_are_asked_for(record):
    for records in ([record], [PLAIN, record], [PLAIN, PLAIN, record, PLAIN]):
        assert not Parsed([INTS], records).is_plain
        asked = []
        parsed = Parsed([INTS], records, lambda row, asked=asked: asked.append(row) or PLAIN)
        assert asked == [records.index(record)]
        assert parsed.extras == [PLAIN]
        for got, context in zip(parsed.lists[b"i"], parsed.contexts, strict=True):
            assert [step.tolist() for step in got] == [[4], [5]]
            assert context == encode_example({"c": 3})
        assert not Parsed([INTS], records, lambda row, record=record: record).is_plain


def test_strings_of_records_that_are_asked_for_lie_behind_the_buffer():
    plain = [encode_sequence_example({}, {"b": ["x" * number, "y"]}) for number in range(5)]
    odd = [
        record + b"\x1a\x00" if number in (1, 2, 4) else record
        for number, record in enumerate(plain)
    ]
    got = Parsed([WORDS], odd, plain.__getitem__)
    assert [[*map(list, row)] for row in got.lists[b"b"]] == [
        [[b"x" * number], [b"y"]] for number in range(5)
    ]
    assert got.extras == [plain[1], plain[2], plain[4]]


def test_errors_of_who_is_asked_pass():
    def canonical(row):
        raise KeyError(row)

    with pytest.raises(KeyError, match="1"):
        Parsed([INTS, WORDS], [PLAIN, b"\x00", PLAIN], canonical)
    with pytest.raises(TypeError, match="bytes"):
        Parsed([INTS, WORDS], [PLAIN, b"\x00", PLAIN], lambda row: row)


# --- any bytes
# -----------------------------------------------------------------------------------------------------

FEATURE = st.one_of(
    st.just(np.zeros(0, np.int64)),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=70).map(
        lambda values: np.array(values, np.int64)
    ),
    st.lists(st.floats(width=32), max_size=3).map(lambda values: np.array(values, np.float32)),
    st.lists(st.binary(max_size=4), min_size=1, max_size=3),
)
KEYS = st.sampled_from(["a", "b", "é", "skipped"])
RECORD = st.builds(
    encode_sequence_example,
    st.dictionaries(KEYS, FEATURE, max_size=2),
    st.dictionaries(KEYS, st.lists(FEATURE, max_size=4)),
)
SLOTS = st.tuples(
    *(st.tuples(st.just(key), st.integers(1, 3)) for key in (b"a", b"b", "é".encode()))
).map(list)
LENIENT = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.mark.daily
@settings(LENIENT, max_examples=200)
@given(st.lists(RECORD, max_size=4), SLOTS)
def test_what_is_read_is_what_protobuf_reads(records, slots):
    check(slots, records)


@pytest.mark.daily
@settings(LENIENT, max_examples=300)
@given(st.lists(RECORD, min_size=1, max_size=4), SLOTS, st.data())
def test_damaged_bytes_are_read_as_protobuf_reads_them_or_asked_for(records, slots, data):
    for place, record in enumerate(records):
        damaged = bytearray(record)
        for _ in range(data.draw(st.integers(0, 2))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        records[place] = bytes(
            damaged[: data.draw(st.one_of(st.none(), st.integers(0, len(damaged))))]
        )
    check(slots, records)


def test_truncation_at_every_byte():
    lists = {"i": [[1, 300], [-1]], "f": [0.5, 2.0], "b": ["x", ""], "skipped": [77]}
    plain = encode_sequence_example({"c": [1, 300, -1]}, lists)
    context_end = len(encode_example({"c": [1, 300, -1]}))
    assert check([INTS, FLOATS, WORDS], [plain, plain])
    for end in range(len(plain)):
        assert Parsed([INTS, FLOATS, WORDS], [plain, plain[:end]]).is_plain == (
            end in (0, context_end)
        )


# --- arguments
# -----------------------------------------------------------------------------------------------------


def test_arguments_that_do_not_fit():
    plan = core.SequencePlan([INTS])
    buffer = np.zeros(4, np.uint8)

    def parse(starts, lengths, contexts=(1, 2), borders=(1, 2), missing=(1, 1)):
        arrays = (
            np.zeros(contexts, np.int64),
            np.zeros(borders, np.int64),
            np.zeros(missing, np.uint8),
        )
        return plan.parse(buffer, np.array(starts), np.array(lengths), *arrays)

    huge = (1 << 63) - 1
    for start, length in (
        (-1, 1),
        (0, -1),
        (0, 5),
        (5, 0),
        (4, 1),
        (huge, huge),
        (1, huge),
        (huge, 1),
        (-huge, huge),
    ):
        with pytest.raises(ValueError, match="record 0 lies outside the buffer of 4 bytes"):
            parse([start], [length])
    with pytest.raises(ValueError, match="as many lengths as starts"):
        parse([0], [0, 0])
    for change in (
        {"contexts": (2, 2)},
        {"contexts": (1, 3)},
        {"missing": (1, 2)},
        {"missing": (2, 1)},
    ):
        with pytest.raises(ValueError, match="the shape of contexts or missing"):
            parse([0], [0], **change)
    for shape in ((1, 1), (2, 2)):
        with pytest.raises(ValueError, match="the shape of borders"):
            parse([0], [0], borders=shape)
    for slots, text in (
        ([INTS, (b"i", 2)], "a key occurs twice"),
        ([(b"i", 4)], "expected a kind from 1 to 3"),
    ):
        with pytest.raises(ValueError, match=text):
            core.SequencePlan(slots)


def test_no_more_than_protobuf_takes():
    assert not Parsed([INTS], [b"\x12" + varint(1 << 31)]).is_plain
