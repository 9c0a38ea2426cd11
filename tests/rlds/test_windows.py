"""Windows of steps, against a plain walk over every place; many as one batch, against each by
itself.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.rlds.episode_columns import NumberColumn, ValueColumn
from torch_tfrecord.rlds.step_samples import (
    DifferentNamesError,
    StepBatch,
    shared_names,
    together,
    window,
)
from torch_tfrecord.rlds.windows import Windows, lay_out

SIZES = st.integers(1, 7)


@pytest.mark.slow
@given(SIZES, SIZES, st.integers(1, 20), st.data())
def test_spans_hold_the_steps_of_the_window(window_size, action_horizon, num_steps, data):
    windows = Windows(window_size, action_horizon)
    step = data.draw(st.integers(0, num_steps - 1))
    seen, done = windows.observations(step), windows.actions(step, num_steps)
    past = range(step - window_size + 1, step + 1)
    future = range(step, step + action_horizon)
    for span, places in ((seen, past), (done, future)):
        [steps], [is_real] = lay_out([span])
        assert is_real.tolist() == [0 <= place < num_steps for place in places]
        assert steps.tolist() == [min(max(place, 0), num_steps - 1) for place in places]
        assert list(range(span.first, span.stop)) == [
            place for place in places if 0 <= place < num_steps
        ]


@pytest.mark.slow
@given(SIZES, SIZES, st.lists(st.integers(0, 20), min_size=1))
def test_without_padding_positions_are_the_steps_that_fit(window_size, action_horizon, lengths):
    windows = Windows(window_size, action_horizon, pad=None)
    counts = windows.num_positions(np.array(lengths))
    for count, length in zip(counts.tolist(), lengths, strict=True):
        fitting = [
            step
            for step in range(length)
            if step - window_size + 1 >= 0 and step + action_horizon <= length
        ]
        assert [windows.step(number) for number in range(count)] == fitting
        for step in fitting:
            assert lay_out([windows.observations(step)])[1].all()
            assert lay_out([windows.actions(step, length)])[1].all()


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"window_size": 0}, ValueError, "window_size must be an integer of at least 1, got 0"),
        (
            {"action_horizon": -1},
            ValueError,
            "action_horizon must be an integer of at least 1, got -1",
        ),
        (
            {"window_size": 1.5},
            TypeError,
            r"window_size must be an integer of at least 1, got 1.5 \(float\)",
        ),
        (
            {"action_horizon": True},
            TypeError,
            r"action_horizon must be an integer of at least 1, got True \(bool\)",
        ),
        ({"pad": "reflect"}, ValueError, "pad must be 'repeat', 'zero' or None, got 'reflect'"),
    ],
)
def test_wrong_arguments(arguments, kind, text):
    with pytest.raises(kind, match=f"^{text}$"):
        Windows(**arguments)


# Batches.


def windows_of(columns, size, pad, seed=0):
    """A window of past steps and one of future steps of each column, as batches."""
    rng = np.random.default_rng(seed)
    windows = Windows(size, size, pad)
    steps = [int(rng.integers(0, len(column))) for column in columns]
    seen = [windows.observations(step) for step in steps]
    done = [windows.actions(step, len(column)) for step, column in zip(steps, columns, strict=True)]
    order = rng.permutation(len(columns)).tolist()
    return [(spans, StepBatch(spans, order, pad)) for spans in (seen, done)]


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.integers(1, 4),
    st.sampled_from(["repeat", "zero"]),
    st.sampled_from([(), (3,), (2, 2), (0,), (2, 0)]),
    st.sampled_from([np.float32, np.int64, np.bool_, np.uint8]),
    st.booleans(),
)
def test_numbers_of_a_batch_are_those_of_each_window(lengths, size, pad, shape, dtype, by_columns):
    rng = np.random.default_rng(len(lengths))
    arrays = [rng.integers(0, 100, (length, *shape)).astype(dtype) for length in lengths]
    columns = [NumberColumn(np.asfortranarray(array) if by_columns else array) for array in arrays]
    for spans, batch in windows_of(columns, size, pad):
        expected = [window(column, span, pad) for column, span in zip(columns, spans, strict=True)]
        found = batch.take(columns)
        assert found.dtype == expected[0].dtype and found.is_contiguous()
        assert torch.equal(found, torch.stack(expected))
        singles = StepBatch(
            [span._replace(stop=span.first + 1, before=0, behind=0) for span in spans],
            [0],
            pad,
            is_step=True,
        )
        assert torch.equal(
            singles.take(columns),
            torch.stack([c.at(span.first) for c, span in zip(columns, spans, strict=True)]),
        )


@pytest.mark.parametrize("pad", ["repeat", "zero"])
@pytest.mark.parametrize(
    "other",
    [
        NumberColumn(np.arange(8, dtype=np.float64).reshape(4, 2)),
        NumberColumn(np.arange(12, dtype=np.float32).reshape(4, 3)),
        NumberColumn(np.arange(4, dtype=np.float32)),
        NumberColumn(np.arange(4, dtype=np.float32).reshape(4, 1)),
        NumberColumn(torch.arange(8).view(4, 2).to(torch.bfloat16)),
        ValueColumn([b"a", b"b", b"c", b"d"], is_list=True),
    ],
)
def test_columns_that_differ_give_a_list(other, pad):
    usual = NumberColumn(np.arange(8, dtype=np.float32).reshape(4, 2))
    for columns in ([usual, other], [other, usual], [usual, usual, other]):
        for spans, batch in windows_of(columns, 3, pad):
            found = batch.take(columns)
            assert type(found) is list
            for value, column, span in zip(found, columns, spans, strict=True):
                expected = window(column, span, pad)
                assert type(value) is type(expected)
                assert (
                    torch.equal(value, expected)
                    if isinstance(value, torch.Tensor)
                    else value == expected
                )


def test_trees_of_other_names():
    assert together([{"x": {"y": 1}}, {"x": {"y": 2}}], sum) == {"x": {"y": 3}}
    assert dict(shared_names([{"a": 1, "b": 2}, {"b": 4, "a": 3}])) == {"a": [1, 3], "b": [2, 4]}
    for trees in (
        [{"x": 1}, {"y": 1}],
        [{"x": 1}, {"x": 1, "y": 2}],
        [{"x": 1}, 3],
        [3, {"x": 1}],
        [3, 4],
    ):
        with pytest.raises(DifferentNamesError):
            list(shared_names(trees))
    for trees in ([{"x": 1}, 3], [3, {"x": 1}], [{"x": {"y": 1}}, {"x": 1}]):
        with pytest.raises(DifferentNamesError):
            together(trees, list)
