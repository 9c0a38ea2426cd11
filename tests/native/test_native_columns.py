"""The compiled core for Examples, alone: what it reads is what protobuf reads, and what it does not
read it leaves.
"""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from helpers import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_examples import UNKNOWN, WIRE_EXAMPLE, Example, length_delimited, oracle_feature, varint

from torch_tfrecord import encode_example

core = pytest.importorskip(
    "torch_tfrecord.native.columns", reason="the compiled core was not built"
)
jobs = pytest.importorskip("torch_tfrecord.native.jobs")

KINDS = {"bytes_list": 1, "float_list": 2, "int64_list": 3}
DTYPES = {1: np.int64, 2: np.float32, 3: np.int64}


def run(slots, records, gap=b"\x8f\x0a", canonical=None):
    """Column by key: (values of each record, missing), or None where the core leaves the records to
    protobuf.

    The last record ends where the buffer ends.
    """
    slots = sorted(slots, key=lambda slot: slot[1] == 2)
    buffer = b"".join(gap + record for record in records)
    lengths = np.array([len(record) for record in records], np.int64)
    starts = np.cumsum(lengths + len(gap)) - lengths
    count = len(records)
    sizes = [
        max(slot[2], 0) * count * (16 if slot[1] == 1 else 4 if slot[1] == 2 else 8)
        for slot in slots
    ]
    block = np.full(sum(sizes), 0xEE, np.uint8)
    offsets = np.full((sum(slot[2] < 0 for slot in slots), count + 1), -9, np.int64)
    missing = np.zeros((len(slots), count), np.uint8)
    plan = core.Plan(slots)
    job = core.ParseJob(
        plan, np.frombuffer(buffer, np.uint8), starts, lengths, block, offsets, missing
    )
    jobs.run([job])  # what it leaves is done by `finish`
    found = job.finish(canonical)
    if found is None:
        assert len(records) != 1 or plan.parse_one(records[0]) is None
        return None
    memories, has_missing, extras = found
    assert (has_missing or [False] * len(slots)) == missing.any(axis=1).tolist()
    assert (has_missing is None) == (not missing.any())
    assert canonical or not extras
    if len(records) == 1 and not extras:
        check_one(plan, slots, records[0], block, [*map(memoryview, memories)], missing)
    buffer += b"".join(extras)
    dense = iter(np.split(block, np.cumsum(sizes)))
    ragged = iter(zip(memories, offsets, strict=True))
    columns = {}
    for slot, size, lacks in zip(slots, sizes, missing.tolist(), strict=True):
        key, kind, number, _ = slot
        memory, ends = next(ragged) if number < 0 else (None, None)
        raw = next(dense) if number < 0 else next(dense)[:size]
        values = np.frombuffer(
            memoryview(memory).tobytes() if number < 0 else raw.tobytes(), DTYPES[kind]
        )
        if kind == 1:
            in_rows = core.copies(buffer, values, ends)
            values = np.array([*map(bytes, core.copies(buffer, values))], dtype=object)
            assert ends is None or in_rows == [
                values[begin:end].tolist() for begin, end in pairwise(ends)
            ]
        ends = ends if number < 0 else np.arange(count + 1) * number
        rows = [values[begin:end] for begin, end in pairwise(ends)]
        columns[key.decode()] = [
            None if lack else row for row, lack in zip(rows, lacks, strict=True)
        ]
    return columns


def check_one(plan, slots, record, block, memories, missing):
    """A record alone is read to the same bytes, but for where its strings begin."""
    dense, others, lacking = plan.parse_one(record)
    assert lacking == (bytes(missing) if missing.any() else None)
    spans = np.frombuffer(dense, np.int64, 2) if slots[0][1] == 1 and slots[0][2] == 1 else None
    if spans is not None:
        assert [core.string_at(record, dense, 0, False)] == core.copies(record, spans)
    if all(slot[1] != 1 for slot in slots):
        assert bytes(memoryview(dense)) == block.tobytes()
        assert [*map(bytes, others)] == [*map(bytes, memories)]


def same_values(got, feature):
    """Whether a row of a column holds what protobuf reads of a feature."""
    kind = feature.WhichOneof("kind")
    if got is None or kind is None:
        return got is None and kind is None
    wanted = oracle_feature(feature)
    if kind == "float_list":
        wanted = np.array(wanted, np.float32)
        return len(got) == len(wanted) and all(
            a == b or (a != a and b != b) for a, b in zip(got, wanted, strict=True)
        )
    return got.tolist() == wanted


def check(slots, records):
    """What the core reads is what protobuf reads; returns whether it read the records."""
    columns = run(slots, records)
    if columns is None:
        return False
    for position, record in enumerate(records):
        # whatever the core reads, protobuf reads
        features = Example.FromString(record).features.feature
        for key, kind, count, is_required in slots:
            got = columns[key.decode()][position]
            feature = (
                features[key.decode()]
                if key.decode() in features
                else Example().features.feature["x"]
            )
            assert same_values(got, feature)
            assert feature.WhichOneof("kind") is None or KINDS[feature.WhichOneof("kind")] == kind
            assert got is None or count in (-1, len(got))
            assert not (is_required and got is None)
    return True


def entry(key, feature):
    return length_delimited(1, length_delimited(1, key) + length_delimited(2, feature))


def example(*entries):
    return length_delimited(1, b"".join(entries))


def ints(*chunks):
    return length_delimited(3, b"".join(chunks))


def packed(*numbers):
    return length_delimited(1, b"".join(varint(number % (1 << 64)) for number in numbers))


ANY_INTS, ANY_FLOATS, ANY_BYTES = (b"i", 3, -1, False), (b"f", 2, -1, False), (b"b", 1, -1, False)
ONE_INT, TWO_INTS = (b"i", 3, 1, False), (b"i", 3, 2, False)
EXTREMES = [
    0,
    1,
    127,
    128,
    16383,
    16384,
    1 << 21,
    1 << 35,
    (1 << 56) - 1,
    1 << 56,
    (1 << 63) - 1,
    -1,
    -(1 << 63),
]


# --- what is plain is read
# -----------------------------------------------------------------------------------------


@for_each("count", [0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 72, 73, 130, 2048])
@for_each("largest", [0, 1, 3, 8, 13, 56, 63, None])
def test_integers_of_every_length(count, largest):
    rng = np.random.default_rng(count)
    values = (
        rng.choice(EXTREMES, count)
        if largest is None
        else rng.integers(0, (1 << largest) - 1, count, endpoint=True)
    )
    records = [encode_example({"i": values}), encode_example({"x": 1, "i": values[::-1].copy()})]
    for slots in ([ANY_INTS], [(b"i", 3, count, True)], []):
        assert check(slots, records)
    assert run([(b"i", 3, count + 1, True)], records) is None


@for_each("number", EXTREMES)
@for_each("extra", range(4))
def test_overlong_varints(number, extra):
    encoded = varint(number % (1 << 64), extra)
    for slots in ([ONE_INT], [ANY_INTS], []):
        for chunk in (length_delimited(1, encoded), b"\x08" + encoded):
            records = [example(entry(b"i", ints(chunk)))] * 2
            if len(encoded) <= 10:
                assert check(slots, records)
            else:
                assert run(slots, records) is None


def test_packed_unpacked_and_both():
    chunks = [packed(1, 300), b"\x08\x05", packed(), b"\x08" + varint((1 << 64) - 1), packed(7)]
    floats = [
        length_delimited(1, np.array([1.5, np.nan], "<f4").tobytes()),
        b"\x0d\x00\x00\x80\x7f",
        b"\x0a\x00",
    ]
    records = [
        example(entry(b"i", ints(*chunks)), entry(b"f", length_delimited(2, b"".join(floats)))),
        example(
            entry(b"i", ints(*chunks[::-1])),
            entry(b"f", length_delimited(2, b"".join(floats[::-1]))),
        ),
    ]
    assert check([ANY_INTS, ANY_FLOATS], records)
    assert check([(b"i", 3, 5, True), (b"f", 2, 3, True)], records)
    assert check([], records)


def test_what_lacks_and_what_is_empty():
    unset, empty = entry(b"i", b""), entry(b"i", ints())
    records = [
        example(unset),
        example(empty),
        example(),
        b"",
        example(entry(b"i", ints(packed(5)))),
        example(empty),
    ]
    assert check([ANY_INTS], records)
    assert check([(b"i", 3, 0, False)], records[:4])
    assert check([ONE_INT], [records[place] for place in (0, 2, 4, 3)])
    assert check([], records)
    for place in (0, 2, 3):
        assert run([(b"i", 3, -1, True)], [records[place]]) is None
    assert run([ONE_INT], records[:2]) is None


def test_keys_in_any_order_and_of_any_number():
    rng = np.random.default_rng(0)
    keys = [f"key{number}" for number in range(300)] + ["é" * 10, "long" * 30, ""]
    slots = [(key.encode(), 3, 1, False) for key in keys[::3]]
    records = []
    for _ in range(12):
        chosen = rng.permutation(keys)[: rng.integers(1, len(keys))]
        entries = [
            entry(str(key).encode(), ints(packed(int(rng.integers(0, 1 << 40))))) for key in chosen
        ]
        records.append(example(*entries))
    assert check(slots, records)
    assert check(slots, [record for record in records for _ in range(2)])


@pytest.mark.parametrize("level", [0, 1, 2])
def test_each_decoder_of_varints(level):
    rng = np.random.default_rng(level)
    for bits_of in (
        [7],
        [14],
        [16],
        [14, 21],
        [28],
        [7, 28],
        [29],
        [35, 7],
        [63, 7],
        [64],
        [56, 64, 7],
    ):
        for count in (1, 15, 16, 17, 40, 300):
            numbers = [
                int(rng.integers(0, 1 << 63)) * 2 >> (64 - bits_of[i % len(bits_of)])
                for i in range(count)
            ]
            for gap in (0, 1, count // 2):
                data = b"".join(
                    varint(n, 1 if gap and i % gap == 0 and n < 1 << 56 else 0)
                    for i, n in enumerate(numbers)
                )
                values = np.full(count, -9, np.int64)
                taken = core.varints(data, values, level)
                if taken is None:
                    pytest.skip("not on this processor")
                assert taken
                assert values.view(np.uint64).tolist() == numbers
    for bad in (
        b"\x80" * 10 + b"\x01",
        b"\xff" * 9 + b"\x02",
        b"\x01" * 100 + b"\x80" * 12 + b"\x00",
    ):
        assert (
            core.varints(bad, np.zeros(sum(byte < 0x80 for byte in bad), np.int64), level) is False
        )


# --- what is not plain is left
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        example(entry(b"i", ints(packed(1))), entry(b"i", ints(packed(2)))),
        example(entry(b"i", b""), entry(b"i", ints(packed(2)))),
        example(entry(b"i", length_delimited(2, b""))),
        example(entry(b"i", ints(packed(1)) + ints(packed(2)))),
        example(
            length_delimited(1, length_delimited(2, ints(packed(1))) + length_delimited(1, b"i"))
        ),
        example(length_delimited(1, length_delimited(1, b"i"))),
        example(entry(b"i", ints(b"\x10\x01"))),
        example(entry(b"i", ints(length_delimited(1, b"\x80")))),
        example(entry(b"i", ints(length_delimited(1, b"\xff" * 9 + b"\x7f")))),
        example(entry(b"\xff", ints(packed(1)))),
        example(entry(b"\xed\xa0\x80", ints(packed(1)))),
        example(entry(b"skipped", length_delimited(2, length_delimited(1, b"123")))),
        example(entry(b"skipped", ints(length_delimited(1, b"\x80")))),
        example(entry(b"skipped", length_delimited(4, b""))),
        example(b"\x10\x01"),
        example() + b"\x10\x01",
        b"\x0a",
        b"\x0a\x01",
        b"\x8a\x00\x00",
        b"\x0a\x80\x00",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0a\xff\xff\xff\xff\x7f",
        b"\x0b\x0c",
        b"\x00",
    ],
)
def test_other_forms_are_left_to_protobuf(record):
    plain = encode_example({"i": 4, "skipped": 3})
    for records in ([record], [plain, record], [plain, plain, record, plain]):
        assert run([ANY_INTS], records) is None


@pytest.mark.parametrize(
    "text",
    [
        b"\xc2\x80",
        b"\xdf\xbf",
        b"\xe0\xa0\x80",
        b"\xed\x9f\xbf",
        b"\xee\x80\x80",
        b"\xf0\x90\x80\x80",
        b"\xf4\x8f\xbf\xbf",
        b"\xc1\xbf",
        b"\xe0\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\x80",
        b"\xc2",
        b"\xe1\x80",
        b"\xf1\x80\x80",
        b"\xe1\x80\xc0",
        b"\xc2\xc0",
        b"a\xfe",
    ],
)
def test_keys_are_strict_utf_8(text):
    record = example(entry(text, ints(packed(1))))
    try:
        Example.FromString(record)
    except DecodeError:
        assert run([ANY_INTS], [record]) is None
    else:
        assert check([ANY_INTS], [record, record])


@pytest.mark.parametrize("where", [[0], [3], [1, 2], [0, 1, 2, 3]])
def test_a_plain_form_is_read_in_place_of_a_record(where):
    values = [
        {"i": [number, 300], "b": ["text" * number, "x"], "f": 0.5, "s": number}
        for number in range(4)
    ]
    values[2].pop("i")
    plain = [encode_example(value) for value in values]
    records = [
        record + b"\x0b" if number in where else record for number, record in enumerate(plain)
    ]
    asked = []

    def canonical(row):
        asked.append(row)
        return plain[row]

    slots = [ANY_INTS, (b"b", 1, 2, True), ANY_FLOATS, (b"s", 3, 1, False), (b"none", 1, -1, False)]
    found = run(slots, records, canonical=canonical)
    assert asked == where
    wanted = run(slots, plain)
    assert {key: [*map(repr, column)] for key, column in found.items()} == {
        key: [*map(repr, column)] for key, column in wanted.items()
    }
    assert run(slots, records, canonical=lambda row: b"\x0b") is None

    def refuse(row):
        raise LookupError(f"row {row}")

    with pytest.raises(LookupError, match=f"^row {where[0]}$"):
        run(slots, records, canonical=refuse)
    with pytest.raises(TypeError):
        run(slots, records, canonical=lambda row: 5)


# --- any bytes
# -----------------------------------------------------------------------------------------------------

SLOT_CHOICES = st.tuples(
    *(
        st.tuples(
            st.just(key), st.integers(1, 3), st.sampled_from([-1, -1, 0, 1, 2]), st.booleans()
        )
        for key in (b"a", b"b", "é".encode())
    )
).map(list)
PLAIN_FEATURE = st.one_of(
    st.lists(st.one_of(st.sampled_from(EXTREMES), st.integers(0, 300)), max_size=90).map(
        lambda v: np.array(v, np.int64)
    ),
    st.lists(st.floats(width=32), max_size=3).map(lambda values: np.array(values, np.float32)),
    st.lists(st.binary(max_size=4), min_size=1, max_size=3),
)
PLAIN = st.dictionaries(st.sampled_from(["a", "b", "é", "skipped"]), PLAIN_FEATURE).map(
    encode_example
)
LENIENT = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.mark.daily
@settings(LENIENT, max_examples=300)
@given(st.lists(st.one_of(PLAIN, WIRE_EXAMPLE, UNKNOWN), max_size=5), SLOT_CHOICES)
def test_what_is_read_is_what_protobuf_reads(records, slots):
    check(slots, records)


@pytest.mark.daily
@settings(LENIENT, max_examples=300)
@given(st.lists(PLAIN, min_size=1, max_size=4), SLOT_CHOICES, st.data())
def test_damaged_bytes_are_read_as_protobuf_reads_them_or_left(records, slots, data):
    for place, record in enumerate(records):
        damaged = bytearray(record or b"\x0a\x00")
        for _ in range(data.draw(st.integers(0, 2))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        records[place] = bytes(
            damaged[: data.draw(st.one_of(st.none(), st.integers(0, len(damaged))))]
        )
    check(slots, records)


def test_truncation_at_every_byte():
    plain = encode_example({"a": [1, 300, -1], "b": [0.5, 2.0], "é": ["x", ""], "skipped": 77})
    slots = [(b"a", 3, 3, False), (b"b", 2, -1, False), ("é".encode(), 1, 2, False)]
    assert check(slots, [plain, plain])
    for end in range(len(plain)):
        assert run(slots, [plain, plain[:end]]) is None or end == 0


# --- arguments
# -----------------------------------------------------------------------------------------------------


def test_arguments_that_do_not_fit():
    plan = core.Plan([(b"i", 3, 1, True)])
    buffer, block, offsets, missing = (
        np.zeros(4, np.uint8),
        np.zeros(8, np.uint8),
        np.zeros((0, 2), int),
        np.zeros((1, 1), np.uint8),
    )

    def parse(starts, lengths, block=block, offsets=offsets, missing=missing):
        arrays = np.array(starts), np.array(lengths), block, offsets, missing
        return core.ParseJob(plan, buffer, *arrays).finish()

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
    with pytest.raises(ValueError, match="expected a block of 8 bytes, got 7"):
        parse([0], [0], block=np.zeros(7, np.uint8))
    for change in ({"offsets": np.zeros((1, 2), int)}, {"missing": np.zeros((1, 2), np.uint8)}):
        with pytest.raises(ValueError, match="the shape of offsets or missing"):
            parse([0], [0], **change)
    unaligned = np.zeros(16, np.uint8)[1:9]
    with pytest.raises(ValueError, match="at an address that eight divides"):
        parse([0], [0], block=unaligned)
    for slot in ((b"i", 0, 1, True), (b"i", 4, 1, True), (b"i", 3, -2, True)):
        with pytest.raises(
            ValueError, match="expected a kind from 1 to 3 and a count of at least -1"
        ):
            core.Plan([slot])
    with pytest.raises(ValueError, match="float columns of a number must come last"):
        core.Plan([(b"f", 2, 1, True), (b"i", 3, 1, True)])
    with pytest.raises(ValueError, match="a key occurs twice"):
        core.Plan([(b"i", 3, 1, True), (b"i", 3, 2, True)])
    for spans in ([0, 5], [-1, 1], [0, -1], [4, 1], [huge, huge]):
        for read in (core.copies, core.texts):
            with pytest.raises(ValueError, match="a value lies outside the buffer"):
                read(buffer, np.array(spans))
    with pytest.raises(UnicodeDecodeError):
        core.texts(b"a\xff", np.array([0, 1, 0, 2]))
    text = encode_example({"t": "ä"})
    block, _, _ = core.Plan([(b"t", 1, 1, True)]).parse_one(text)
    with pytest.raises(UnicodeDecodeError):
        core.string_at(text[:-1] + b"a", block, 0, True)
    with pytest.raises(
        ValueError, match=f"a value lies outside the buffer of {len(text) - 1} bytes"
    ):
        core.string_at(text[:-1], block, 0, False)
    for place in (-1, 1, huge):
        with pytest.raises(ValueError, match="a span lies outside the block of 16 bytes"):
            core.string_at(text, block, place, False)
    text = encode_example({"t": ["ä", ""]})
    _, [spans], _ = core.Plan([(b"t", 1, -1, True)]).parse_one(text)
    with pytest.raises(ValueError, match="a value lies outside the buffer of 5 bytes"):
        core.strings_in(text[:5], spans, False)
    with pytest.raises(UnicodeDecodeError):
        core.strings_in(text.replace("ä".encode(), b"\xc3a"), spans, True)
    spans = np.array([0, 1, 1, 3, 2, 0])
    for ends in ([-1, 1], [0, 4], [2, 1], [0, huge], [-huge, 0]):
        with pytest.raises(ValueError, match="list 0 lies outside the 3 values"):
            core.copies(b"abcd", spans, np.array(ends))


@pytest.mark.daily
def test_damaged_bytes_do_no_harm():
    # Some of what fuzz/targets/columns.py does, most of it under the sanitizers.
    engine = Path(__file__).parents[2] / "fuzz" / "engine.py"
    count = "3000" if "ASAN_OPTIONS" in os.environ else "300"
    done = subprocess.run(
        [sys.executable, engine, "columns", "--count", count], timeout=250, check=False
    )
    assert done.returncode == 0


class Adding(bytes):
    """A key that adds other slots to a list when its bytes are asked for."""

    slots = None

    def __bytes__(self):
        self.slots += [(b"more %d" % number, 3, 1, True) for number in range(20)]
        return b"key"


def test_slots_that_add_to_their_own_list_are_those_at_the_call():
    key = Adding(b"key")
    key.slots = slots = [(key, 3, 1, True)]
    plan = core.Plan(slots)
    assert len(slots) == 21
    one, block = np.array([0], np.int64), np.zeros(8, np.uint8)
    record = encode_example({"key": 7})
    missing, offsets = np.zeros((1, 1), np.uint8), np.zeros((0, 2), np.int64)
    job = core.ParseJob(plan, record, one, one + len(record), block, offsets, missing)
    assert job.finish() == ([], None, [])
    assert block.view(np.int64).tolist() == [7]
