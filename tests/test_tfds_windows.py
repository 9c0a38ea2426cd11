"""Windows of steps, against a plain walk over every place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.tfds.windows import Span, Windows, laid_out

SIZES = st.integers(1, 7)


@given(SIZES, SIZES, st.integers(1, 20), st.data())
def test_spans_hold_the_steps_of_the_window(window_size, action_horizon, num_steps, data):
    windows = Windows(window_size, action_horizon)
    step = data.draw(st.integers(0, num_steps - 1))
    seen, done = windows.observations(step), windows.actions(step, num_steps)
    past = range(step - window_size + 1, step + 1)
    future = range(step, step + action_horizon)
    for span, places in ((seen, past), (done, future)):
        assert span.mask().tolist() == [0 <= place < num_steps for place in places]
        assert span.repeated().tolist() == [min(max(place, 0), num_steps - 1) for place in places]
        assert list(range(span.first, span.stop)) == [place for place in places if 0 <= place < num_steps]


@given(SIZES, st.lists(st.tuples(st.integers(0, 19), st.integers(1, 20)), min_size=1, max_size=9))
def test_many_spans_are_each_of_them(size, chosen):
    windows = Windows(size, size)
    places = [(step % num_steps, num_steps) for step, num_steps in chosen]
    seen = [windows.observations(step) for step, _ in places]
    done = [windows.actions(step, num_steps) for step, num_steps in places]
    for spans in (seen, done):
        repeated, masks = laid_out(spans)
        assert masks.dtype == np.bool_ and repeated.dtype == np.int64
        assert masks.tolist() == [span.mask().tolist() for span in spans]
        assert repeated.tolist() == [span.repeated().tolist() for span in spans]
        assert masks.flags.c_contiguous and repeated.flags.c_contiguous


@given(SIZES, SIZES, st.lists(st.integers(0, 20), min_size=1))
def test_without_padding_positions_are_the_steps_that_fit(window_size, action_horizon, lengths):
    windows = Windows(window_size, action_horizon, pad=None)
    counts = windows.num_positions(np.array(lengths))
    for count, length in zip(counts.tolist(), lengths, strict=True):
        fitting = [step for step in range(length) if step - window_size + 1 >= 0 and step + action_horizon <= length]
        assert [windows.step(number) for number in range(count)] == fitting
        for step in fitting:
            assert windows.observations(step).mask().all()
            assert windows.actions(step, length).mask().all()


def test_with_padding_every_step_is_a_position():
    assert Windows(4, 9, "zero").num_positions(np.array([0, 1, 5])).tolist() == [0, 1, 5]
    assert Windows(4, 9, "repeat").step(3) == 3


def test_span_without_padding():
    assert Span(2, 5) == Span(2, 5, 0, 0)
    assert Span(2, 5).mask().tolist() == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"window_size": 0}, ValueError, "window_size must be an integer of at least 1, got 0"),
        ({"action_horizon": -1}, ValueError, "action_horizon must be an integer of at least 1, got -1"),
        ({"window_size": 1.5}, TypeError, r"window_size must be an integer of at least 1, got 1.5 \(float\)"),
        ({"action_horizon": True}, TypeError, r"action_horizon must be an integer of at least 1, got True \(bool\)"),
        ({"pad": "reflect"}, ValueError, "pad must be 'repeat', 'zero' or None, got 'reflect'"),
    ],
)
def test_wrong_arguments(arguments, kind, text):
    with pytest.raises(kind, match=f"^{text}$"):
        Windows(**arguments)
