"""All stored results of TensorFlow's parsers, bit for bit; what differs on purpose is one list,
asserted both ways.
"""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from batches import bits as bits_of
from golden_cases import CASES, golden_dtype, golden_specs, golden_values, unbase64

from torch_tfrecord import (
    ParseError,
    RaggedTensor,
    SparseList,
    TFRecordError,
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)
from torch_tfrecord.columns import make_parser, rows_of

DTYPES = "any torch dtype is read, from the list that holds it"
COUNTS = "values and indices that do not fit are the data's fault: ParseError, not TensorFlow's ValueError"
RANGE = "an index outside the size is ParseError: torch would read foreign memory"
TWICE = "the same index twice is ParseError, unless validate=False"
INVALID = "partitions that do not fit the values are ParseError, unless validate=False"
SHARED = "several specs may read the same key"
EMPTY = "what is empty is read as empty, in a batch and alone"
CLIPPED = "without validation rows end where the values end, where TensorFlow keeps row splits beyond them"


def both(names, reason, group):
    return {f"{group}/{name}/{form}": reason for name in names for form in ("single", "batch")}


# What differs from TensorFlow on purpose: accepted where TensorFlow raises, or raised where it
# returns.
ACCEPTED = {
    "fixed_len/batch_names_wrong_length/batch": "there is no example_names: positions name the record",
    **both(
        [f"unsupported_dtype_{d}" for d in ("int32", "float64", "bool", "uint8", "float16")],
        DTYPES,
        "fixed_len",
    ),
    **both(["unsupported_dtype_int32"], DTYPES, "var_len"),
    **both(["list_unsupported_dtype", "context_unsupported_dtype"], DTYPES, "sequence"),
    **both(["same_key_dense_and_ragged", "same_key_sparse_and_ragged"], SHARED, "ragged"),
    "ragged/RowSplits_all_missing/single": EMPTY,
    "sequence/batch_of_none/batch": EMPTY,
}
RAISED = {
    **both(["index_too_large", "index_negative"], RANGE, "sparse"),
    **both(["duplicate_index"], TWICE, "sparse"),
    **both(["RowStarts_partition_missing_validate"], INVALID, "ragged"),
    "ragged/inconsistent_splits_start_not_zero_validate/batch": INVALID,
}
OTHER_ERROR = {
    **both(["unsupported_dtype_int32"], DTYPES + ": here the values do not fit", "ragged"),
    "sparse/batch_length_mismatch/batch": COUNTS,
    **both(["length_mismatch", "value_missing", "index_missing"], COUNTS, "sparse"),
    **both(["ValueRowIds_partition_missing_validate"], COUNTS, "ragged"),
}
OTHER_VALUE = both(["inconsistent_lengths_no_validate"], CLIPPED, "ragged")


def run_golden(case, **more):
    """Our result in the form of the stored one: outputs, or context, sequence and lengths."""
    rows = [unbase64(text) for text in case["serialized"]]
    serialized = {0: lambda: rows[0], 1: lambda: rows, 2: lambda: [rows]}[case["serialized_rank"]]()
    if "features" in case:
        parse = parse_single_example if case["api"] == "parse_single_example" else parse_example
        return {"outputs": parse(serialized, golden_specs(case, "features", **more))}
    single = case["api"] == "parse_single_sequence_example"
    parse = parse_single_sequence_example if single else parse_sequence_example
    specs = [golden_specs(case, name, **more) for name in ("context_features", "sequence_features")]
    return dict(zip(("context", "sequence", "lengths"), parse(serialized, *specs), strict=False))


def bits(values):
    return np.asarray(values).tobytes()


def flat(value):
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, list) else [value]


def check_dense(got, expected):
    wanted, shape = golden_values(expected), expected["shape"]
    if expected["dtype"] == "string":
        assert flat(got) == wanted
        check_list_shape(got, shape)
        return
    assert got.dtype == golden_dtype(expected["dtype"])
    assert list(got.shape) == shape
    assert bits(got) == bits(wanted)


def check_list_shape(got, shape):
    assert isinstance(got, list) == bool(shape)
    if shape:
        assert len(got) == shape[0]
        for item in got:
            check_list_shape(item, shape[1:])


def check_sparse(got, expected, is_sparse_spec):
    values, indices, shape = golden_values(expected), expected["indices"], expected["dense_shape"]
    if is_sparse_spec and isinstance(got, SparseList):
        assert got.indices.T.tolist() == indices
        assert (got.values, list(got.shape)) == (values, shape)
    elif is_sparse_spec:
        assert got.layout == torch.sparse_coo
        assert list(got.shape) == shape
        assert got._indices().T.tolist() == indices
        assert bits(got._values()) == bits(values)
        ordered = sorted({tuple(index) for index in indices})
        assert got.is_coalesced() == (ordered == [tuple(index) for index in indices])
        dense = np.zeros(shape, values.dtype)
        np.add.at(dense, tuple(np.array(indices, int).reshape(-1, len(shape)).T), values)
        assert bits(got.to_dense()) == bits(dense)
    elif isinstance(got, list):
        assert flat(got) == values
        assert sorted_places(got) == [tuple(index) for index in indices]
    else:
        check_rows(got, values, indices, shape)


def sorted_places(got, place=()):
    if not isinstance(got, list):
        return [place]
    return [
        found for number, item in enumerate(got) for found in sorted_places(item, (*place, number))
    ]


def check_rows(got, values, indices, shape):
    """A var-length result against a stored sparse one: 1-D, jagged, or ragged twice."""
    if len(shape) == 1:
        assert list(got.shape) == shape
        assert bits(got) == bits(values)
        return
    flat_values = got.flat_values if isinstance(got, RaggedTensor) else got.values()
    assert bits(flat_values) == bits(values)
    rows = (
        got.to_list() if isinstance(got, RaggedTensor) else [row.tolist() for row in got.unbind()]
    )
    assert len(rows) == shape[0]
    assert sorted_places(rows) == [tuple(index) for index in indices]
    assert isinstance(got, RaggedTensor) == (len(shape) == 3)
    if len(shape) == 3:
        assert max(map(len, rows), default=0) == shape[1]


def check_ragged(got, expected):
    values, splits = golden_values(expected["flat_values"]), expected["row_splits"]
    if isinstance(got, list):
        nested = np.empty(len(values), object)
        nested[:] = values
        rows = nested.reshape(expected["flat_values"]["shape"]).tolist()
        for level in reversed(splits):
            rows = [rows[low:high] for low, high in pairwise(level)]
        assert got == rows
        return
    if len(splits) == 1:
        assert got.layout is torch.jagged
        got_values, got_splits = got.values(), [got.offsets()]
    else:
        assert isinstance(got, RaggedTensor)
        got_values, got_splits = got.flat_values, got.row_splits
        assert len(got.shape) == len(expected["static_shape"])
    assert got_values.dtype == golden_dtype(expected["flat_values"]["dtype"])
    assert list(got_values.shape) == expected["flat_values"]["shape"]
    assert bits(got_values) == bits(values)
    assert [level.tolist() for level in got_splits] == splits
    assert all(level.dtype == torch.int64 for level in got_splits)


def check_result(case, got, expected):
    specs = {"outputs": "features", "context": "context_features", "sequence": "sequence_features"}
    for part, outputs in expected.items():
        assert got[part].keys() == outputs.keys(), part
        for name, value in outputs.items():
            if value["type"] == "ragged":
                check_ragged(got[part][name], value)
            elif value["type"] == "dense":
                check_dense(got[part][name], value)
            else:
                check_sparse(got[part][name], value, case[specs[part]][name]["kind"] == "Sparse")
    assert got.keys() == expected.keys()


PHRASES = (
    "is required but could not be found",
    "Data types don't match",
    "Could not parse example input",
    "is not a multiple of stride length",
    "number of elements should be divisible by",
    "do not form a valid RaggedTensor",
    "Unexpected number of elements",
    "are not compatible",
)
# Where TensorFlow's words differ for what we say in one way.
SAME_PHRASE = {"sequence": ("Unexpected number of elements",)}


def check_error(case, error, ours):
    text = str(ours)
    if "Could not parse" in text or case["differs_from_protobuf"]:
        return
    for phrase in PHRASES:
        if phrase in error["message"] and phrase not in SAME_PHRASE.get(case["group"], ()):
            assert phrase in text, (error["message"], text)
    if "Index: " in error["message"] and case["group"] not in ("sequence", "fuzz"):
        assert ours.position == int(error["message"].split("Index: ")[1].split(".")[0])
    if "Index: " in error["message"] and case["group"] == "sequence":
        assert f"step {error['message'].split('Index: ')[1].split('.')[0]}: " in text


def allowed_errors(case):
    if case["name"] in OTHER_ERROR:
        return (ParseError,)
    if case.get("error_is_about_the_call") or case["serialized_rank"] == 2:
        return (ValueError, TypeError)
    if any(
        part in case["name"]
        for part in ("/missing_default_", "default_wrong_length", "default_scalar_for_vector")
    ):
        return (ValueError,)  # a default of the wrong count is refused when the spec is built
    if any(part in case["name"] for part in ("/default_two_elements", "list_shape_none_dim")):
        return (ValueError,)  # so are two elements to pad with, and an unknown dimension
    return (TFRecordError,)


def judge(case):
    """ "same" or "deliberate"; anything else fails."""
    name, expected = case["name"], case["expected"]
    if case["differs_from_protobuf"]:
        expected = case.get(
            "expected_on_canonical", {"error": {"message": "protobuf refuses these bytes"}}
        )
    if name in ACCEPTED:
        assert "error" in expected
        run_golden(case)
        return "deliberate"
    if name in RAISED:
        assert "error" not in expected
        with pytest.raises(ParseError):
            run_golden(case)
        if RAISED[name] != RANGE:
            unchecked = run_golden(case, validate=False)
            if RAISED[name] == TWICE:
                check_result(case, unchecked, expected)
        return "deliberate"
    if "error" in expected:
        with pytest.raises(allowed_errors(case)) as caught:
            run_golden(case)
        check_error(case, expected["error"], caught.value)
        return "deliberate" if name in OTHER_ERROR else "same"
    got = run_golden(case)
    if name in OTHER_VALUE:
        with pytest.raises(AssertionError):
            check_result(case, got, expected)
        wanted = golden_values(next(iter(expected["outputs"].values()))["flat_values"]).tolist()
        (value,) = got["outputs"].values()
        rows = (
            value.to_list()[0]
            if isinstance(value, RaggedTensor)
            else [row.tolist() for row in value.unbind()]
        )
        assert rows == [[], wanted]  # what TensorFlow's to_list() gives too
        return "deliberate"
    check_result(case, got, expected)
    return "same"


@pytest.mark.daily
def test_every_stored_result_of_tensorflow(capsys):
    verdicts, failed = Counter(), []
    for case in CASES:
        try:
            verdicts[judge(case)] += 1
        except (Exception, pytest.fail.Exception) as error:
            failed.append(f"{case['name']}: {type(error).__name__}: {str(error)[:300]}")
    deliberate = {**ACCEPTED, **RAISED, **OTHER_ERROR, **OTHER_VALUE}
    with capsys.disabled():
        print(f"\nexample_cases: {dict(verdicts)}, else: {len(failed)}, of {len(CASES)}")
    assert not failed, "\n".join(failed)
    assert len(CASES) == 1135
    assert verdicts == {"same": len(CASES) - len(deliberate), "deliberate": len(deliberate)}
    assert {case["name"] for case in CASES} >= deliberate.keys()


@pytest.mark.daily
def test_a_sample_is_the_row_of_a_batch():
    """Each record of each case alone, in a batch of one and in a batch of three: the same values
    and errors.
    """
    seen = Counter()
    for case in CASES:
        try:
            parser = (
                make_parser(golden_specs(case, "features"), pads=False)
                if "features" in case
                else None
            )
        except (ValueError, TypeError):
            continue
        if parser is None or case["serialized_rank"] == 2:
            continue
        for row in map(unbase64, case["serialized"]):
            single = sample_or_error(lambda row=row, parser=parser: parser.single(row))
            for count in (1, 3):
                batch = sample_or_error(
                    lambda n=count, row=row, parser=parser: last_row(parser.batch([row] * n))
                )
                assert batch == single, case["name"]
            seen[type(single)] += 1
    assert seen[tuple] > 50
    assert seen[dict] > 600


def sample_or_error(read):
    try:
        return bits_of(read())
    except TFRecordError as error:
        return type(error), error.args


def last_row(batch):
    return {name: rows_of(column)[-1] for name, column in batch.items()}


def test_what_tensorflow_questions_is_read_or_listed():
    # Cases that the data's README calls questionable may raise; each is in a list above, with its
    # reason.
    questionable = {case["name"] for case in CASES if case.get("questionable")}
    assert questionable <= {**ACCEPTED, **RAISED, **OTHER_VALUE}.keys()
