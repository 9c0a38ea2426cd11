"""PaddedCollate: every rule of tf.data's padded_batch, and what PyTorch's samples have beside."""

import math
import pickle
from collections import namedtuple

import numpy as np
import pytest
import torch
from helpers import for_each
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchvision import tv_tensors

from torch_tfrecord import (
    LimitExceededError,
    PaddedCollate,
)

ROWS = [torch.tensor(row, dtype=torch.int64) for row in ([0], [0, 1, 2], [0, 1], [])]
PHRASE = "Attempted to pad to a smaller size than the input element."


# The vectors of tf.data (spec/pipeline.md section 3).
@pytest.mark.parametrize(
    ("size", "arguments", "expected"),
    [
        (3, {}, [[[0, 0, 0], [0, 1, 2], [0, 1, 0]], [[]]]),
        (2, {"padding_values": -1}, [[[0, -1, -1], [0, 1, 2]], [[0, 1], [-1, -1]]]),
        (2, {"padded_shapes": [4]}, [[[0, 0, 0, 0], [0, 1, 2, 0]], [[0, 1, 0, 0], [0, 0, 0, 0]]]),
        (2, {"padded_shapes": 4}, [[[0, 0, 0, 0], [0, 1, 2, 0]], [[0, 1, 0, 0], [0, 0, 0, 0]]]),
        (2, {"padded_shapes": torch.Size([3])}, [[[0, 0, 0], [0, 1, 2]], [[0, 1, 0], [0, 0, 0]]]),
        (2, {"padded_shapes": [None]}, [[[0, 0, 0], [0, 1, 2]], [[0, 1], [0, 0]]]),
        (2, {"padded_shapes": (-1,)}, [[[0, 0, 0], [0, 1, 2]], [[0, 1], [0, 0]]]),
    ],
)
def test_vectors_of_tf_data(size, arguments, expected):
    batches = list(DataLoader(ROWS, size, collate_fn=PaddedCollate(**arguments)))
    assert [batch.tolist() for batch in batches] == expected
    assert {batch.dtype for batch in batches} == {torch.int64}


def test_never_truncates():
    with pytest.raises(ValueError) as caught:
        PaddedCollate({"x": [2]})([{"x": ROWS[0]}, {"x": ROWS[1]}])
    assert (
        # The feature, the sample, the sizes.
        str(caught.value)
        == f"['x']: sample 1: {PHRASE} Its shape is [3], padded_shapes asks for [2]"
    )


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 2), r"\['x'\]: The padded shape \(2, 2\) is not compatible with the shape \(None,\)"),
        ((), r"\['x'\]: The padded shape \(\) is not compatible with the shape \(None,\)"),
        ({"y": [2]}, r"padded_shapes\['x'\]: expected a shape, nested like the samples"),
        (([2],), r"padded_shapes\['x'\]: expected a shape, nested like the samples"),
    ],
)
def test_wrong_rank_or_nesting(shape, message):
    with pytest.raises(ValueError, match=message):
        PaddedCollate({"x": shape})([{"x": row} for row in ROWS])


def test_samples_of_unequal_rank_or_dtype():
    with pytest.raises(
        ValueError,
        match=r"samples: expected tensors of one rank, got shape \[1\] in sample 0, \[2, 2\]",
    ):
        PaddedCollate()([torch.zeros(1), torch.zeros(2, 2)])
    with pytest.raises(
        TypeError,
        match=r"\['x'\]: expected one dtype, got float32 in sample 0, float64 in sample 1",
    ):
        PaddedCollate()([{"x": torch.zeros(1)}, {"x": torch.zeros(2, dtype=torch.float64)}])


@pytest.mark.parametrize(
    ("shape", "multiple_of", "expected"),
    [
        (None, 1, [2, 3]),
        (None, 2, [2, 4]),
        (None, 8, [8, 8]),
        ((None, 3), 8, [8, 3]),
        ((-1, -1), 3, [3, 3]),
        ((2, 5), 8, [2, 5]),
    ],
)
def test_multiple_of(shape, multiple_of, expected):
    pad = PaddedCollate({"x": shape}, {"x": -1}, multiple_of=multiple_of, return_lengths=True)
    values = [torch.arange(2).reshape(2, 1), torch.arange(3).reshape(1, 3)]
    batch, lengths = pad([{"x": value} for value in values])
    full = torch.full((2, *expected), -1)
    full[0, :2, :1], full[1, :1, :3] = values
    assert batch["x"].tolist() == full.tolist()
    assert lengths["x"].tolist() == [[2, 1], [1, 3]]


def test_multiple_of_every_kind():
    """Strings, nested features and equal lengths, too; what is empty in all samples stays empty."""
    pad = PaddedCollate(multiple_of=4)
    sample = {
        "a": [b"x"] * 3,
        "b": (torch.ones(4), torch.ones(0)),
        "c": 1,
        "d": {"e": torch.ones(5)},
    }
    assert pad([sample])["a"] == [[b"x"] * 3 + [b""]]
    assert pad([sample])["b"][0].tolist() == [[1.0] * 4]
    assert pad([sample])["b"][1].shape == (1, 0)
    assert pad([sample])["c"].tolist() == [1]
    assert pad([sample])["d"]["e"].tolist() == [[1.0] * 5 + [0.0] * 3]
    rows = pad([torch.ones(2), torch.ones(5)])
    assert rows.tolist() == [[1.0] * 2 + [0.0] * 6, [1.0] * 5 + [0.0] * 3]
    with pytest.raises(LimitExceededError, match="needs 64"):  # the bytes after rounding
        PaddedCollate(multiple_of=8, max_batch_bytes=63)([torch.ones(1, dtype=torch.int64)])


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError)])
def test_wrong_multiple_of(value, error):
    with pytest.raises(error, match="multiple_of must be an integer of at least 1"):
        PaddedCollate(multiple_of=value)


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
]


@for_each("dtype", DTYPES)
@for_each("value", [0, 1])
def test_every_dtype(dtype, value):
    batch = PaddedCollate(padding_values=value)(
        [torch.tensor([1]).to(dtype), torch.tensor([0, 1]).to(dtype)]
    )
    assert batch.dtype == dtype
    assert batch.to(torch.complex128).tolist() == [[1, value], [0, 1]]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (-1.0, torch.int64),
        (True, torch.int64),
        (1.0, torch.bool),
        (np.int32(-1), torch.int64),
        (torch.tensor(-1, dtype=torch.int8), torch.int64),
        (2**63 - 1, torch.int64),
        (2**64 - 1, torch.uint64),
        (255, torch.uint8),
        (2**24, torch.float32),
        (0.5, torch.float16),
        (-math.inf, torch.float32),
        (2, torch.complex64),
    ],
)
def test_exact_values_are_taken(value, dtype):
    batch = PaddedCollate(padding_values={"x": value})(
        [{"x": torch.zeros(0).to(dtype)}, {"x": torch.zeros(1).to(dtype)}]
    )
    held = batch["x"][0, 0]
    assert held.dtype == dtype
    assert held.item() == (value.item() if isinstance(value, torch.Tensor) else value)


def test_nan_pads_floats():
    batch = PaddedCollate(padding_values=math.nan)([torch.zeros(1), torch.zeros(2)])
    assert batch.isnan().tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, torch.int64),
        (math.nan, torch.int64),
        (math.inf, torch.int32),
        (2**63, torch.int64),
        (-1, torch.uint8),
        (256, torch.uint8),
        (2, torch.bool),
        (2**24 + 1, torch.float32),
        (1e300, torch.float32),
        (0.1, torch.float32),
        (1j, torch.float32),
        (b"", torch.int64),
        ("0", torch.int64),
    ],
)
def test_other_values_are_type_errors(value, dtype):
    samples = [{"x": torch.zeros(1).to(dtype)}, {"x": torch.zeros(2).to(dtype)}]
    with pytest.raises(
        TypeError, match=r"\['x'\]: Invalid `padding_values`. \w+ cannot hold .* exactly"
    ):
        PaddedCollate(padding_values={"x": value})(samples)
    # Not only when something is padded: a batch of equal sizes must not hide the mistake.
    with pytest.raises(TypeError, match=r"Invalid `padding_values`"):
        PaddedCollate(padding_values={"x": value})(samples[:1])


def test_the_error_names_the_nearest_value():
    with pytest.raises(
        TypeError, match=r"float32 cannot hold 0\.1 exactly; the nearest is 0\.10000000149011612$"
    ):
        PaddedCollate(padding_values=0.1)([torch.zeros(1)])
    PaddedCollate(padding_values=0.10000000149011612)([torch.zeros(1)])


def test_bytes_and_str():
    samples = [
        {"b": [b"a"], "s": ["x", "y"], "one": "p"},
        {"b": [b"b", b"c"], "s": [], "one": "q"},
    ]
    assert PaddedCollate()(samples) == {
        "b": [[b"a", b""], [b"b", b"c"]],
        "s": [["x", "y"], ["", ""]],
        "one": ["p", "q"],
    }
    pad = PaddedCollate({"b": [3]}, {"b": b"<pad>"})
    assert pad(samples)["b"] == [[b"a", b"<pad>", b"<pad>"], [b"b", b"c", b"<pad>"]]
    with pytest.raises(ValueError, match=rf"\['b'\]: sample 1: {PHRASE}"):
        PaddedCollate({"b": 1})(samples)
    with pytest.raises(
        TypeError, match=r"\['b'\]: Invalid `padding_values`. bytes cannot hold 'x'"
    ):
        PaddedCollate(padding_values={"b": "x"})(samples)
    with pytest.raises(TypeError, match=r"samples: expected only bytes, got str, too"):
        PaddedCollate()([[b"a"], ["a"]])


def test_nested_lists_of_bytes():
    samples = [[[b"a"], [b"b"], [b"c"]], [[b"d", b"e"]], []]
    assert PaddedCollate()(samples) == [
        [[b"a", b""], [b"b", b""], [b"c", b""]],
        [[b"d", b"e"], [b"", b""], [b"", b""]],
        [[b"", b""], [b"", b""], [b"", b""]],
    ]
    with pytest.raises(ValueError, match="expected lists of equal length within sample 1"):
        PaddedCollate()([[[b"a"]], [[b"a"], [b"a", b"b"]]])


def test_padding_of_nested_lists_is_not_shared():
    batch = PaddedCollate()([[[b"a"], [b"b"], [b"c"]], []])
    batch[1][0][0] = b"changed"
    assert batch[1] == [[b"changed"], [b""], [b""]]


def test_numbers_lists_and_arrays():
    samples = [
        {
            "i": 1,
            "f": 0.5,
            "b": True,
            "ids": [1, 2],
            "a": np.float32([1]),
            "n": np.int16(3),
            "w": [0.5],
        },
        {
            "i": 2,
            "f": 1.5,
            "b": False,
            "ids": [],
            "a": np.float32([2, 3]),
            "n": np.int16(4),
            "w": [1],
        },
    ]
    batch = PaddedCollate()(samples)
    expected = {
        "i": torch.tensor([1, 2]),
        "f": torch.tensor([0.5, 1.5], dtype=torch.float64),
        "b": torch.tensor([True, False]),
        "ids": torch.tensor([[1, 2], [0, 0]]),
        "a": torch.tensor([[1.0, 0.0], [2.0, 3.0]]),
        "n": torch.tensor([3, 4], dtype=torch.int16),
        "w": torch.tensor([[0.5], [1.0]], dtype=torch.float64),
    }
    for name, tensor in expected.items():
        assert (batch[name].dtype, batch[name].tolist()) == (tensor.dtype, tensor.tolist()), name
    with pytest.raises(
        TypeError, match=r"\['m'\]: expected only numbers, in lists of equal length"
    ):
        PaddedCollate()([{"m": [[1], [1, 2]]}])


def test_single_bytes_str_and_none_are_lists():
    samples = [{"name": b"a", "text": "x", "none": None}, {"name": b"b", "text": "y", "none": None}]
    batch = PaddedCollate(padding_values=-1)(samples)
    assert batch == {"name": [b"a", b"b"], "text": ["x", "y"], "none": [None, None]}
    assert [type(batch[key][0]) for key in ("name", "text")] == [bytes, str]


def test_one_value_for_all_features():
    samples = [
        {"x": torch.zeros(1), "y": torch.zeros(1, dtype=torch.int64), "label": True, "name": b"a"}
    ]
    samples.append(
        {"x": torch.zeros(2), "y": torch.zeros(2, dtype=torch.int64), "label": False, "name": b"b"}
    )
    batch = PaddedCollate(padding_values=-1)(samples)
    assert (batch["x"][0].tolist(), batch["y"][0].tolist()) == ([0, -1], [0, -1])


def test_tuples_and_named_tuples():
    Pair = namedtuple("Pair", ["x", "y"])
    samples = [Pair(ROWS[1], torch.tensor(1)), Pair(ROWS[0], torch.tensor(2))]
    batch = PaddedCollate(([4], []), (9, None))(samples)
    assert isinstance(batch, Pair)
    assert batch.x.tolist() == [[0, 1, 2, 9], [0, 9, 9, 9]]
    assert batch.y.tolist() == [1, 2]
    labelled = PaddedCollate(({"x": [4]}, None))([({"x": ROWS[0]}, 3), ({"x": ROWS[1]}, 4)])
    assert labelled[0]["x"].shape == (2, 4)
    assert labelled[1].tolist() == [3, 4]
    with pytest.raises(ValueError, match="padded_shapes: expected 2 parts"):
        PaddedCollate([[4]])(samples)
    with pytest.raises(ValueError, match="padding_values: expected 2 parts"):
        PaddedCollate(padding_values=(1, 2, 3))(samples)
    with pytest.raises(
        ValueError, match="samples: expected 2 parts in each, got others in sample 1"
    ):
        PaddedCollate()([samples[0], (1,)])


def test_lists_of_tensors_are_taken_apart():
    batch = PaddedCollate()([[torch.zeros(1), torch.ones(2)], [torch.zeros(3), torch.ones(1)]])
    assert [list(part.shape) for part in batch] == [[2, 3], [2, 2]]


def test_keys():
    samples = [{"x": ROWS[0], "y": ROWS[0]}, {"x": ROWS[1], "y": ROWS[1]}]
    assert PaddedCollate({"x": [5]}, {"y": 7})(samples)["y"].tolist() == [[0, 7, 7], [0, 1, 2]]
    with pytest.raises(
        ValueError,
        match=r"padded_shapes: expected some of the samples' keys \['x', 'y'\], got \['z'\]",
    ):
        PaddedCollate({"z": [5]})(samples)
    with pytest.raises(
        ValueError,
        match=r"padding_values\['in'\]: expected some of the samples' keys .* got \['z'\]",
    ):
        PaddedCollate(padding_values={"in": {"z": 5}})([{"in": sample} for sample in samples])
    with pytest.raises(ValueError, match="padded_shapes: expected a mapping of"):
        PaddedCollate([3])(samples)
    with pytest.raises(ValueError, match=r"expected the keys .* in each, got others in sample 1"):
        PaddedCollate()([samples[0], {"x": ROWS[0]}])


@pytest.mark.parametrize("kind", [tv_tensors.Image, tv_tensors.Mask])
def test_a_batch_of_pictures_is_a_plain_tensor(kind):
    shapes = [(3, 2, 4), (3, 5, 1)]
    batch = PaddedCollate(padding_values=255)(
        [kind(torch.zeros(shape, dtype=torch.uint8)) for shape in shapes]
    )
    assert type(batch) is torch.Tensor
    assert batch.shape == (2, 3, 5, 4)
    assert batch[1, 0, :, 0].tolist() == [0] * 5
    assert batch[0, 0, 2:].unique().tolist() == [255]


def test_jagged_and_sparse_are_type_errors():
    jagged = torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)], layout=torch.jagged)
    for value in (jagged, torch.eye(2).to_sparse(), object()):
        with pytest.raises(
            TypeError, match=r"\['x'\]: padding is only supported for dense tensors, numbers, bytes"
        ):
            PaddedCollate()([{"x": value}])


def test_lengths():
    samples = [
        {
            "ids": ROWS[1],
            "image": torch.zeros(2, 3),
            "label": torch.tensor(1),
            "tags": [b"a"],
            "name": b"n",
        },
        {
            "ids": ROWS[3],
            "image": torch.zeros(1, 4),
            "label": torch.tensor(2),
            "tags": [],
            "name": b"m",
        },
    ]
    batch, lengths = PaddedCollate(return_lengths=True)(samples)
    assert batch["ids"].shape == (2, 3)
    assert list(lengths) == list(batch)
    assert (lengths["ids"].tolist(), lengths["ids"].dtype) == ([3, 0], torch.int64)
    assert lengths["image"].tolist() == [[2, 3], [1, 4]]
    assert lengths["tags"].tolist() == [1, 0]
    assert (lengths["label"], lengths["name"]) == (None, None)
    (_, label), lengths = PaddedCollate(return_lengths=True)([(ROWS[0], 1), (ROWS[1], 2)])
    assert label.tolist() == [1, 2]
    assert lengths[0].tolist() == [1, 3]
    assert lengths[1] is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"padded_shapes": [2.0]}, TypeError, "padded_shapes must hold ints, None and -1"),
        ({"padded_shapes": {"x": [True]}}, TypeError, "got bool"),
        ({"padded_shapes": "x"}, TypeError, "got str"),
        ({"padded_shapes": [-2]}, ValueError, "at least 0, or None or -1 for the maximum, got -2"),
        (
            {"padding_values": object()},
            TypeError,
            "a padding value must be a number, bytes, str or None, got object",
        ),
        (
            {"padding_values": {"x": torch.zeros(2)}},
            ValueError,
            r"must be a scalar, got shape \[2\]",
        ),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        PaddedCollate(**arguments)


def test_no_samples():
    with pytest.raises(ValueError, match="at least one sample"):
        PaddedCollate()([])


def test_pickles_prints_and_compares():
    pad = PaddedCollate({"x": [None, 4]}, {"x": -1}, return_lengths=True)
    assert pickle.loads(pickle.dumps(pad)) == pad != PaddedCollate()
    assert (
        repr(pad)
        == "PaddedCollate(padded_shapes={'x': [None, 4]}, padding_values={'x': -1}, return_lengths=True, "
        "multiple_of=1)"
    )


@pytest.mark.slow
@given(
    shapes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5),
    value=st.integers(-5, 5),
)
def test_equals_a_plain_loop(shapes, value):
    tensors = [torch.arange(1, h * w + 1).reshape(h, w) for h, w in shapes]
    height, width = (max(sizes) for sizes in zip(*shapes, strict=True))
    expected = [
        [
            [int(t[y, x]) if y < t.shape[0] and x < t.shape[1] else value for x in range(width)]
            for y in range(height)
        ]
        for t in tensors
    ]
    batch, lengths = PaddedCollate(padding_values=value, return_lengths=True)(tensors)
    assert batch.tolist() == expected
    assert lengths.tolist() == [list(shape) for shape in shapes]
