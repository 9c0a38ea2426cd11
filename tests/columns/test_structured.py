"""Sequences of rows, ragged rows and sparse values in Examples; the containers; errors word for
word.

Covers columns/ragged, columns/lists, columns/containers.
"""
# ruff: noqa: E501 - tables of whole texts read better in one line each.

import pickle

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    LimitExceededError,
    ParseError,
    RaggedFeature,
    RaggedTensor,
    SparseFeature,
    SparseList,
    VarLenFeature,
    encode_example,
    parse_example,
    parse_single_example,
)
from torch_tfrecord.columns import stack_samples

I64, F32 = torch.int64, torch.float32
R = RaggedFeature


def one(row, spec):
    return parse_single_example(encode_example(row), {"x": spec})["x"]


def many(rows, spec):
    return parse_example([encode_example(row) for row in rows], {"x": spec})["x"]


def lists(value):
    """Rows as nested lists, whatever holds them."""
    if isinstance(value, RaggedTensor):
        return value.to_list()
    if isinstance(value, torch.Tensor) and value.is_nested:
        return [row.tolist() for row in value.unbind()]
    return value.tolist() if isinstance(value, torch.Tensor) else value


# --- rows of one shape
# ----------------------------------------------------------------------------------------------


def test_rows():
    spec = FixedLenSequenceFeature((2,), torch.int16, True, -1)
    rows = [{"x": [1, 2, 3, 4]}, {}, {"x": [5, 6]}]
    assert one(rows[0], spec).tolist() == [[1, 2], [3, 4]]
    assert one({}, spec).shape == (0, 2)
    batch = many(rows, spec)
    assert batch.dtype == torch.int16
    assert batch.tolist() == [[[1, 2], [3, 4]], [[-1, -1], [-1, -1]], [[5, 6], [-1, -1]]]
    assert many(rows[:1] * 2, spec).tolist() == [[[1, 2], [3, 4]]] * 2
    assert many([], spec).shape == (0, 0, 2)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint16, torch.uint64, torch.bfloat16, torch.float64, torch.float8_e4m3fn],
)
def test_rows_of_every_dtype_are_padded(dtype):
    value = 1 if dtype.is_floating_point is False else 1.0
    batch = many(
        [{"x": [value, value]}, {}, {"x": value}],
        FixedLenSequenceFeature((), dtype, allow_missing=True),
    )
    assert batch.dtype == dtype
    assert batch.double().tolist() == [[1, 1], [0, 0], [1, 0]]


def test_rows_of_strings():
    rows = [{"x": ["a", "b", "c", "d"]}, {}]
    assert many(rows, FixedLenSequenceFeature((2,), str, True)) == [
        [["a", "b"], ["c", "d"]],
        [["", ""], ["", ""]],
    ]
    assert many(rows, FixedLenSequenceFeature((), bytes, True, "-")) == [
        [b"a", b"b", b"c", b"d"],
        [b"-"] * 4,
    ]
    assert one({}, FixedLenSequenceFeature((2,), bytes, True)) == []


def test_rows_with_a_zero_in_their_shape():
    spec = FixedLenSequenceFeature((0, 1 << 62), I64, allow_missing=True)
    assert one({"x": np.zeros(0, int)}, spec).shape == (0, 0, 1 << 62)
    assert many([{}, {}], spec).shape == (2, 0, 0, 1 << 62)
    with pytest.raises(ParseError, match="should be divisible by 0 for rows of shape"):
        one({"x": 1}, spec)
    assert one({"x": np.zeros(0, int)}, FixedLenFeature((0, 1 << 62), I64)).shape == (0, 1 << 62)


# --- ragged rows
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "stored"),
    [
        (R.RowSplits("p"), [0, 2, 2, 3]),
        (R.RowLengths("p"), [2, 0, 1]),
        (R.RowStarts("p"), [0, 2, 2]),
        (R.RowLimits("p"), [2, 2, 3]),
        (R.ValueRowIds("p"), [0, 0, 2]),
    ],
)
def test_partitions(partition, stored):
    row = {"v": [3, 1, 4], "p": stored}
    for validate in (True, False):
        spec = R(torch.int32, "v", [partition], validate=validate)
        value = one(row, spec)
        assert value.layout is torch.jagged
        assert value.dtype == torch.int32
        assert lists(value) == [[3, 1], [], [4]]
        batch = many([row, {}, row], spec)
        assert isinstance(batch, RaggedTensor)
        assert batch.to_list() == [[[3, 1], [], [4]], [], [[3, 1], [], [4]]]
        assert lists(many([], spec)) == []
    text = {"v": ["a", "b", "c"], "p": stored}
    assert one(text, R(str, "v", [partition])) == [["a", "b"], [], ["c"]]
    assert many([text, {}], R(bytes, "v", [partition])) == [[[b"a", b"b"], [], [b"c"]], []]


@pytest.mark.parametrize(
    ("partitions", "row", "rows", "shape"),
    [
        ((), {}, [1, 2, 3, 4], (4,)),
        ((R.UniformRowLength(2),), {}, [[1, 2], [3, 4]], (2, 2)),
        ((R.UniformRowLength(2), R.UniformRowLength(2)), {}, [[[1, 2], [3, 4]]], (1, 2, 2)),
        ((R.RowSplits("s"), R.UniformRowLength(2)), {"s": [0, 1, 2]}, [[[1, 2]], [[3, 4]]], None),
        ((R.UniformRowLength(2), R.RowSplits("s")), {"s": [0, 1, 2, 2, 4]}, [[[1], [2]], [[], [3, 4]]], (2, None, None)),
        ((R.RowLengths("a"), R.RowSplits("b"), R.RowLengths("c")), {"a": [1, 1], "b": [0, 2, 3], "c": [3, 0, 1]}, [[[[1, 2, 3], []]], [[[4]]]], (2, None, None, None)),
    ],
)  # fmt: skip
def test_nested_partitions(partitions, row, rows, shape):
    spec = R(F32, "v", partitions)
    value = one(row | {"v": [1.0, 2.0, 3.0, 4.0]}, spec)
    assert lists(value) == rows
    if shape is not None:
        assert tuple(value.shape) == shape
    text = {"v": ["1", "2", "3", "4"]} | row
    assert one(text, R(str, "v", partitions)) == strings(rows)
    batch = many([row | {"v": [1.0, 2.0, 3.0, 4.0]}, {}], spec)
    assert lists(batch) == [rows, []]
    samples = [one(row | {"v": [1.0, 2.0, 3.0, 4.0]}, spec), one({}, spec)]
    assert lists(stack_samples(samples)) == [rows, []]  # collating samples gives the same batch


def strings(rows):
    return [strings(row) if isinstance(row, list) else str(row) for row in rows]


V = [1, 2]
INVALID = "the rows and the values do not form a valid RaggedTensor"


@pytest.mark.parametrize(
    ("partition", "stored", "text", "rows"),
    [
        (R.RowLengths("p"), [0, 5], f"(RowLengths, key 'p'): {INVALID}: expected rows that end at 2, got 5", [[], [1, 2]]),
        (R.RowLengths("p"), [1], f"(RowLengths, key 'p'): {INVALID}: expected rows that end at 2, got 1", [[1]]),
        (R.RowLengths("p"), [3, -1], f"(RowLengths, key 'p'): {INVALID}: expected row ends that never decrease, got a row of negative length", [[1, 2], []]),
        (R.RowLengths("p"), [1 << 62] * 4 + [2], f"(RowLengths, key 'p'): {INVALID}: expected rows that end at 2, got 34359738370", [[1, 2], [], [], [], []]),
        (R.RowLengths("p"), None, f"(RowLengths, key 'p'): {INVALID}: expected rows that end at 2, got 0", []),
        (R.RowSplits("p"), [1, 2], f"(RowSplits, key 'p'): {INVALID}: expected the first row to start at 0, got 1", [[1, 2]]),
        (R.RowSplits("p"), [0, 2, 1, 2], f"(RowSplits, key 'p'): {INVALID}: expected row ends that never decrease, got a row of negative length", [[1, 2], [], []]),
        (R.RowSplits("p"), [0, (1 << 32) + 2], f"(RowSplits, key 'p'): {INVALID}: expected rows that end at 2, got 4294967298", [[1, 2]]),
        (R.RowSplits("p"), None, f"(RowSplits, key 'p'): {INVALID}: expected rows that end at 2, got 0", []),
        (R.RowStarts("p"), [0, 3], f"(RowStarts, key 'p'): {INVALID}: expected row ends that never decrease, got a row of negative length", [[1, 2], []]),
        (R.RowStarts("p"), None, f"(RowStarts, key 'p'): {INVALID}: expected the first row to start at 0, got 2", []),
        (R.RowLimits("p"), [-1, 2], f"(RowLimits, key 'p'): {INVALID}: expected row ends that never decrease, got a row of negative length", [[], [1, 2]]),
        (R.ValueRowIds("p"), [1, 0], f"(ValueRowIds, key 'p'): {INVALID}: expected row ids that never decrease", [[1], [2]]),
        (R.ValueRowIds("p"), [0], f"(ValueRowIds, key 'p'): {INVALID}: expected 2 row ids, one per value, got 1", None),
        (R.ValueRowIds("p"), [-1, 0], f"(ValueRowIds, key 'p'): {INVALID}: expected row ids of at least 0, got -1", None),
        (R.UniformRowLength(3), None, f"(UniformRowLength): {INVALID}: expected a multiple of 3 values or rows, got 2", None),
    ],
)  # fmt: skip
def test_partitions_that_do_not_fit(partition, stored, text, rows):
    row = {"v": V} | ({} if stored is None else {"p": stored})
    for dtype, values in ((I64, V), (str, ["SECRET", "b"])):
        with pytest.raises(ParseError) as caught:
            many([{}, row | {"v": values}], R(dtype, "v", [partition]))
        assert str(caught.value) == f"record 1: feature 'x' {text}"
    if rows is None:
        with pytest.raises(ParseError):
            one(row, R(I64, "v", [partition], validate=False))
    else:
        assert lists(one(row, R(I64, "v", [partition], validate=False))) == rows
        batch = many(
            [row, {"v": [9], "p": [0]}, row],
            R(I64, "v", [partition, R.UniformRowLength(1)], validate=False),
        )
        for got in (batch[0], batch[2]):
            assert [values.flatten().tolist() for values in got.unbind()] == rows


def test_unchecked_rows_of_rows_end_where_the_inner_rows_end():
    row = {"v": [1, 2, 3, 4], "a": [1], "b": [1, 1, 2]}
    spec = R(I64, "v", [R.RowLengths("a"), R.RowLengths("b")], validate=False)
    assert lists(one(row, spec)) == [[[1]]]
    assert lists(many([row, row], spec)) == [[[[1]]], [[[1]]]]
    assert one(row | {"v": ["1", "2", "3", "4"]}, R(str, "v", spec.partitions, validate=False)) == [
        [["1"]]
    ]


def test_a_few_row_ids_do_not_stand_for_many_rows():
    for ids in ([1 << 40], [1 << 62], [(1 << 63) - 1]):
        for validate in (True, False):
            with pytest.raises(
                LimitExceededError, match=r"^feature 'x' \(ValueRowIds, key 'p'\): 1 row ids imply"
            ):
                one({"v": 1, "p": ids}, R(I64, "v", [R.ValueRowIds("p")], validate=validate))
    assert len(one({"v": 1, "p": 1000}, R(I64, "v", [R.ValueRowIds("p")])).offsets()) == 1002


def test_several_specs_read_one_key():
    record = encode_example({"v": [1, 2], "p": [1, 1]})
    spec = {"a": R(I64, "v"), "b": R(F32, "f", [R.RowLengths("p")]), "v": FixedLenFeature(2, I64)}
    with pytest.raises(ParseError, match="feature 'b'"):
        parse_single_example(record, spec)
    spec["b"] = R(I64, key="v", partitions=[R.RowLengths("p")])
    got = parse_single_example(record, spec)
    assert [lists(got[name]) for name in "abv"] == [[1, 2], [[1], [2]], [1, 2]]


LENGTHS = st.lists(st.lists(st.lists(st.integers(-9, 9), max_size=3), max_size=3), max_size=3)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(LENGTHS, max_size=4), st.sampled_from(["lengths", "limits", "ids"]))
def test_a_batch_of_ragged_rows_is_its_samples(rows, how):
    records, make = [], {"lengths": R.RowLengths, "limits": R.RowLimits, "ids": R.ValueRowIds}[how]
    for row in rows:
        flat = [value for outer in row for inner in outer for value in inner]
        outer = [len(inner) for inner in row]
        inner = [len(values) for part in row for values in part]
        if how == "limits":
            inner = np.cumsum(inner, dtype=int)
        if how == "ids":
            assume(not inner or inner[-1])  # no value would tell of empty rows at the end
            inner = np.repeat(np.arange(len(inner)), inner)
        records.append(
            encode_example(
                {k: np.array(v, dtype=int) for k, v in (("v", flat), ("o", outer), ("i", inner))}
            )
        )
    spec = {"x": R(I64, "v", [R.RowLengths("o"), make("i")])}
    got = parse_example(records, spec)["x"]
    samples = [parse_single_example(record, spec)["x"] for record in records]
    assert got.to_list() == rows
    assert [sample.to_list() for sample in samples] == rows
    if samples:
        assert stack_samples(samples) == got
        assert [lists(got[number]) for number in range(len(samples))] == [
            sample.to_list() for sample in samples
        ]


ROWS = st.lists(st.lists(st.integers(-9, 9), max_size=3), max_size=4)


@pytest.mark.daily
@settings(max_examples=100, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4), st.booleans(), st.data())
def test_rows_of_a_batch_by_lengths_or_splits_are_those_of_each_record(rows, by_splits, data):
    spec = R(I64, "v", [R.RowSplits("p") if by_splits else R.RowLengths("p")])
    records, expected = [], []
    for row in rows:
        stored = np.array([len(values) for values in row], np.int64)
        if by_splits:
            stored = np.concatenate([[0], stored.cumsum()])
        if len(stored) and data.draw(st.booleans()):
            stored[data.draw(st.integers(0, len(stored) - 1))] += data.draw(
                st.sampled_from([0, 0, -1, 1, 1 << 62])
            )
        if by_splits and not row and data.draw(st.booleans()):
            stored = np.zeros(0, np.int64)
        values = np.array([value for values in row for value in values], np.int64)
        records.append(encode_example({"v": values, "p": stored}))
        ends = stored[1:] if by_splits else stored.cumsum()  # a change may give other valid rows
        expected.append(
            [part.tolist() for part in np.split(values, ends)[:-1]] if len(ends) else []
        )
    samples, error = [], None
    for number, record in enumerate(records):
        try:
            samples.append(lists(parse_single_example(record, {"x": spec})["x"]))
        except ParseError as found:
            error = f"record {number}: {found}"
            break
    if error is None:
        assert samples == expected
        assert lists(parse_example(records, {"x": spec})["x"]) == expected
    else:
        with pytest.raises(ParseError) as caught:
            parse_example(records, {"x": spec})
        assert str(caught.value) == error


# --- containers
# -----------------------------------------------------------------------------------------------------


def ragged():
    return RaggedTensor(
        torch.arange(6).reshape(3, 2), (torch.tensor([0, 2, 2]), torch.tensor([0, 1, 3]))
    )


def test_ragged_tensors():
    value = ragged()
    assert value.to_list() == [[[[0, 1]], [[2, 3], [4, 5]]], []]
    assert value.shape == (2, None, None, 2)
    assert [row.tolist() for row in value[0].unbind()] == [[[0, 1]], [[2, 3], [4, 5]]]
    assert value[-1].shape[0] == 0
    with pytest.raises(IndexError):
        value[2]
    deep = stack_samples([value, value])
    assert deep[1] == value
    assert len(deep) == 2
    assert value == ragged()
    assert value != value.to(torch.int32)
    assert value.to(torch.int32).row_splits[0].dtype == I64
    assert value != 5
    assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(TypeError, match="unhashable"):
        hash(value)
    with pytest.raises(TypeError, match="row_splits must be int64"):
        RaggedTensor(torch.zeros(1), (torch.zeros(2, dtype=torch.int32),))
    with pytest.raises(TypeError, match="must be tensors, got list"):
        RaggedTensor([1], (torch.zeros(2, dtype=I64),))
    with pytest.raises(ValueError, match="one or more 1-D tensors"):
        RaggedTensor(torch.zeros(1), ())


def test_samples_that_do_not_stack():
    with pytest.raises(ValueError, match="the same number of ragged dimensions"):
        stack_samples([ragged(), torch.zeros(2)])
    with pytest.raises(ValueError, match="sparse samples of equal size"):
        stack_samples([SparseList(torch.zeros(1, 0, dtype=I64), [], (size,)) for size in (1, 2)])


# --- sparse values
# --------------------------------------------------------------------------------------------------


def test_sparse_values():
    row = {"r": [3, 20, 3], "c": [1, 0, 0], "v": [1.5, 2.5, 3.5]}
    spec = SparseFeature(["r", "c"], "v", torch.float64, [34, 3])
    value = one(row, spec)
    assert (value.layout, value.dtype, value.shape) == (torch.sparse_coo, torch.float64, (34, 3))
    assert value.is_coalesced()
    assert value.indices().tolist() == [[3, 3, 20], [0, 1, 0]]
    assert value.values().tolist() == [3.5, 1.5, 2.5]
    batch = many([row, {}, row], spec)
    assert batch.is_coalesced()
    assert torch.equal(
        batch.to_dense(), torch.stack([value.to_dense(), torch.zeros(34, 3), value.to_dense()])
    )
    assert many([], spec).shape == (0, 34, 3)
    stored = one(row, SparseFeature(("r", "c"), "v", F32, (34, 3), already_sorted=True))
    assert stored._values().tolist() == [1.5, 2.5, 3.5]
    assert not stored.is_coalesced()
    assert torch.equal(stored.to_dense(), value.to_dense().float())


def test_sparse_strings():
    row = {"i": [4, 2], "v": ["a", "b"]}
    value = one(row, SparseFeature("i", "v", str, 9))
    assert value == SparseList(torch.tensor([[2, 4]]), ["b", "a"], (9,))
    batch = many([row, {}, row], SparseFeature("i", "v", bytes, 9))
    assert batch == SparseList(
        torch.tensor([[0, 0, 2, 2], [2, 4, 2, 4]]), [b"b", b"a", b"b", b"a"], (3, 9)
    )
    assert many([], SparseFeature("i", "v", bytes, 9)) == SparseList(
        torch.zeros(2, 0, dtype=I64), [], (0, 9)
    )
    assert value.to(torch.int32).indices.dtype == torch.int32
    assert value != "x"
    with pytest.raises(TypeError, match="unhashable"):
        hash(value)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"i": [50], "v": [1.0]}, "feature 'x' (index, key 'i'): expected indices from 0 to 9, got 50"),
        ({"i": [3, -1], "v": [1.0, 2.0]}, "feature 'x' (index, key 'i'): expected indices from 0 to 9, got -1"),
        ({"i": [3], "v": [1.0, 2.0]}, "feature 'x' (index, key 'i'): Dimensions 1 and 2 are not compatible: expected an index for each of the 2 values of key 'v', got 1"),
        ({"v": [1.0]}, "feature 'x' (index, key 'i'): Dimensions 0 and 1 are not compatible: expected an index for each of the 1 values of key 'v', got 0"),
        ({"i": [1]}, "feature 'x' (index, key 'i'): Dimensions 1 and 0 are not compatible: expected an index for each of the 0 values of key 'v', got 1"),
        ({"i": [1.0], "v": [1.0]}, "feature 'x' (index, key 'i'): Data types don't match. Data type: float but expected type: int64"),
        ({"i": [1], "v": [1]}, "feature 'x' (float32, key 'v'): Data types don't match. Data type: int64 but expected type: float; the record holds int64: read torch.int64, then convert"),
        ({"i": [2, 2, 2], "v": [1.0, 2.0, 3.0]}, "feature 'x' (float32, key 'v'): expected distinct indices, got 2 duplicates"),
    ],
)  # fmt: skip
def test_sparse_values_that_do_not_fit(row, text):
    spec = SparseFeature("i", "v", F32, 10)
    with pytest.raises(ParseError) as caught:
        many([{}, row], spec)
    assert str(caught.value) == f"record 1: {text}"
    if "duplicates" not in text:
        with pytest.raises(ParseError):
            one(row, SparseFeature("i", "v", F32, 10, validate=False))


def test_repeated_indices_are_kept_when_asked_for():
    row = {"i": [5, 2, 2], "v": [1.0, 2.0, 3.0]}
    for sort, want in ((False, [2.0, 3.0, 1.0]), (True, [1.0, 2.0, 3.0])):
        value = one(row, SparseFeature("i", "v", F32, 6, sort, validate=False))
        assert value._values().tolist() == want
        assert not value.is_coalesced()
        assert value.to_dense().tolist() == [0, 0, 5.0, 0, 0, 1.0]


def test_a_batch_that_no_tensor_can_be():
    spec = SparseFeature(["i", "j"], "v", F32, [1 << 31, 1 << 31])
    assert one({}, spec).shape == (1 << 31, 1 << 31)
    with pytest.raises(LimitExceededError, match="has more elements than an int64 counts"):
        many([{}] * 3, spec)


# --- specs
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "kind", "text"),
    [
        (lambda: FixedLenSequenceFeature((None,), I64), ValueError, "a dimension of shape (None,) is unknown. Consider using FixedLenSequenceFeature."),
        (lambda: FixedLenSequenceFeature((), None), ValueError, "Missing type: dtype must be a torch dtype, bytes or str"),
        (lambda: FixedLenSequenceFeature((2,), I64, True, [1, 2]), ValueError, "Cannot reshape a default_value with 2 elements to shape [] (1 elements); a scalar is not broadcast"),
        (lambda: FixedLenSequenceFeature((), I64, True, "x"), TypeError, "Cannot convert default_value 'x' to dtype int64"),
        (lambda: parse_single_example(b"", {"x": FixedLenSequenceFeature((), I64)}), ValueError, "Unsupported: FixedLenSequenceFeature requires allow_missing to be True. (Feature 'x', of an Example)"),
        (lambda: R("int64"), TypeError, "dtype must be a torch dtype, bytes or str, got 'int64'"),
        (lambda: R(I64, 5), TypeError, "value_key must be str, got int"),
        (lambda: R(I64, "a", key="b"), ValueError, "key and value_key must be equal, got 'b' and 'a'"),
        (lambda: R(I64, partitions=["p"]), TypeError, "a partition must be RaggedFeature.RowSplits, RowLengths or the like, got 'p'"),
        (lambda: R(I64, row_splits_dtype=F32), ValueError, "row_splits_dtype must be torch.int32 or torch.int64, got torch.float32"),
        (lambda: R.RowSplits(3), TypeError, "key must be str, got int"),
        (lambda: R.UniformRowLength(0), ValueError, "length must be at least 1, got 0"),
        (lambda: R.UniformRowLength("a"), TypeError, "a dimension must be an int, got str"),
        (lambda: SparseFeature(["i"], "v", I64, [4, 5]), ValueError, "index_key and size have to have equal lengths, at least 1, got 1 keys and 2 sizes"),
        (lambda: SparseFeature([], "v", I64, []), ValueError, "index_key and size have to have equal lengths, at least 1, got 0 keys and 0 sizes"),
        (lambda: SparseFeature("i", None, I64, 4), TypeError, "value_key must be str, got NoneType"),
        (lambda: SparseFeature([1], "v", I64, [4]), TypeError, "index_key must be str, got int"),
        (lambda: SparseFeature("i", "v", I64, -1), ValueError, "Dimension -1 must be >= 0"),
        (lambda: SparseFeature("i", "v", I64, 4, key="k"), ValueError, "key is not supported by SparseFeature: use index_key and value_key"),
    ],
)  # fmt: skip
def test_wrong_specs(build, kind, text):
    with pytest.raises(kind) as caught:
        build()
    assert str(caught.value) == text


def test_specs_that_port_as_they_are():
    # tf.io.RaggedFeature(dtype, value_key, partitions, row_splits_dtype, validate), in this order.
    spec = R(I64, "v", [R.RowLengths("p")], torch.int32, False)
    assert lists(one({"v": [1], "p": [1]}, spec)) == [[1]]
    assert VarLenFeature(I64) != R(I64)
