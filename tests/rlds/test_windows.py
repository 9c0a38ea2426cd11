"""Windows of steps, against a plain walk over every place; many as one batch, against each by
itself.
"""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlds_episodes import LENGTHS, action, state, write_episodes

from torch_tfrecord import collate
from torch_tfrecord.tfds import RLDSDataset

SIZES = st.integers(1, 7)
NUMBERS = ["steps/action", "steps/observation/state", "episode_metadata/name"]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("rlds") / "drawn" / "1.0.0")


def rows(value, number, places, pad):
    """The values at these places, and which of them are steps."""
    last = LENGTHS[number] - 1
    is_real = [0 <= place <= last for place in places]
    near = [value(number, min(max(place, 0), last)) for place in places]
    if pad == "zero":
        near = [row if real else row * 0 for row, real in zip(near, is_real, strict=True)]
    return torch.stack(near).tolist(), is_real


@pytest.mark.slow
@settings(deadline=None, max_examples=10, suppress_health_check=list(HealthCheck))
@given(SIZES, SIZES, st.sampled_from(["repeat", "zero", None]))
def test_every_window_is_that_of_a_plain_walk(drawn, window_size, action_horizon, pad):
    ds = RLDSDataset(
        drawn, features=NUMBERS, window_size=window_size, action_horizon=action_horizon, pad=pad
    )
    positions = []
    for number, length in enumerate(LENGTHS):
        for step in range(length):
            past = range(step - window_size + 1, step + 1)
            future = range(step, step + action_horizon)
            if pad is None and (past[0] < 0 or future[-1] >= length):
                continue
            positions.append((number, step))
            sample = ds[len(positions) - 1]
            seen, seen_is_real = rows(state, number, past, pad)
            done, done_is_real = rows(action, number, future, pad)
            observation = sample["observation"]
            assert observation["state"].tolist() == seen
            assert observation["pad_mask"].tolist() == seen_is_real
            assert observation["timestep"].tolist() == [min(max(at, 0), length - 1) for at in past]
            assert sample["action"].tolist() == done
            assert sample["action_pad_mask"].tolist() == done_is_real
    assert [ds.locate(position) for position in range(len(ds))] == positions


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
        RLDSDataset("nowhere", **arguments)


# Batches.

OTHERS = {
    "dtype": lambda rows: rows.double(),
    "size": lambda rows: rows[:, :2],
    "rank": lambda rows: rows[:, 0],
    "no array": lambda rows: rows.to(torch.bfloat16),
    "Fortran's order": lambda rows: np.asfortranarray(rows.numpy()),
    "no values": lambda rows: rows[:, :0],
    "list": lambda rows: [b"a"] * len(rows),
}


def of_one_episode(change):
    def transform(episode):
        if episode["episode_metadata"]["name"] == "episode 2":
            episode["action"] = change(episode["action"])
        return episode

    return transform


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


@pytest.mark.parametrize("pad", ["repeat", "zero"])
@pytest.mark.parametrize("other", OTHERS)
def test_columns_that_differ(drawn, other, pad):
    ds = RLDSDataset(
        drawn,
        features=NUMBERS,
        action_horizon=3,
        pad=pad,
        episode_transform=of_one_episode(OTHERS[other]),
    )
    for positions in ([0, 8], [8, 0], [0, 4, 44, 45], [44, 45]):
        found = ds.__getitems__(positions)
        for position, sample in zip(positions, found, strict=True):
            assert equal(sample["action"], ds[position]["action"])


def test_names_that_differ(drawn):
    def rename(episode):
        if episode["episode_metadata"]["name"] == "episode 2":
            episode["more"] = {"rows": episode["action"]}
        return episode

    ds = RLDSDataset(drawn, features=NUMBERS, episode_transform=rename)
    assert ["more" in sample for sample in ds.__getitems__([0, 8, 9])] == [False, True, True]
    assert collate(ds.__getitems__([8, 9]))["more"]["rows"].shape == (2, 3)
