"""Normalisation: the formulas in float64 by hand, what they are of (episodes, samples, batches),
and the inverse.

`tests/docs/test_docs_robots.py` compares with what OpenVLA's and Octo's own code gave.
"""

import pickle

import numpy as np
import pytest
import torch
from rlds_episodes import LENGTHS, write_episodes
from torch.utils.data import DataLoader

from torch_tfrecord import collate
from torch_tfrecord.tfds import Normalize, RLDSDataset, dataset_statistics

STATISTICS = {
    "action": {
        "mean": [1.0, -2.0, 0.5, 3.0],
        "std": [2.0, 0.0, 0.5, 0.0],
        "min": [-3.0, -2.0, 0.0, 3.0],
        "max": [5.0, 6.0, 1.0, 3.0],
        "q01": [-2.0, -1.5, 0.0, 3.0],
        "q99": [4.0, 5.0, 1.0, 3.0],
    },
    "proprio": {
        name: [at, 0.25] for at, name in enumerate(["mean", "std", "min", "max", "q01", "q99"])
    },
    "num_transitions": 9,
}
ACTIONS = torch.tensor([[[0.5, 4.0, 1.0, 3.0], [-9.0, 9.0, 0.0, 3.0]]])
MASK = [True, True, False, True]


def by_hand(normalization, epsilon=1e-8, clip=True, zero=True, mask=MASK):
    of = {name: np.array(values) for name, values in STATISTICS["action"].items()}
    x = ACTIONS.double().numpy()
    if normalization == "normal":
        return np.where(mask, (x - of["mean"]) / (of["std"] + epsilon), x)
    low, high = ("min", "max") if normalization == "bounds" else ("q01", "q99")
    scaled = 2 * (x - of[low]) / (of[high] - of[low] + epsilon) - 1
    scaled = np.where(mask, scaled.clip(-1, 1) if clip else scaled, x)
    return np.where(of["min"] == of["max"], 0, scaled) if zero else scaled


@pytest.mark.parametrize("normalization", ["normal", "bounds", "bounds_q99"])
@pytest.mark.parametrize(
    "options", [{}, {"epsilon": 1e-6}, {"clip": False}, {"zero_unchanging": False}]
)
def test_the_formulas(normalization, options):
    normalize = Normalize(STATISTICS, normalization, mask=MASK, **options)
    found = normalize({"action": ACTIONS, "observation": {"image": 3}, "task": "left"} | PROPRIO)
    expected = by_hand(
        normalization,
        **{name.removesuffix("_unchanging"): value for name, value in options.items()},
    )
    assert found["action"].dtype == torch.float32
    np.testing.assert_allclose(found["action"].numpy(), expected, rtol=1e-6)
    assert found["task"] == "left"


PROPRIO = {"observation": {"proprio": torch.tensor([[2.0, 0.25]]), "image": 3}}


def test_states():
    found = Normalize(STATISTICS, "normal")({"action": ACTIONS} | PROPRIO)
    assert found["observation"]["proprio"].tolist() == [[2.0, 0.0]]
    assert found["observation"]["image"] == 3
    assert PROPRIO["observation"]["proprio"].tolist() == [[2.0, 0.25]]  # the argument stays
    bounded = Normalize(STATISTICS, "bounds")(
        {"action": ACTIONS, "observation": {"state": torch.tensor([2.75, 9.0])}}
    )
    assert bounded["observation"]["state"].tolist() == [0.5, 0.0]
    named = Normalize(STATISTICS, "bounds", proprio="robot/joints")(
        {"action": ACTIONS, "robot": {"joints": torch.tensor([2.25, 1.0])}} | PROPRIO
    )
    assert named["robot"]["joints"].tolist() == [-0.5, 0.0]
    assert named["observation"]["proprio"].tolist() == [[2.0, 0.25]]
    without = Normalize({"action": STATISTICS["action"]})({"action": ACTIONS} | PROPRIO)
    assert without["observation"]["proprio"].tolist() == [[2.0, 0.25]]


@pytest.mark.parametrize("normalization", ["normal", "bounds", "bounds_q99"])
def test_the_inverse(normalization):
    normalize = Normalize(STATISTICS, normalization, mask=MASK, clip=False)
    values = {"action": ACTIONS.double()} | PROPRIO
    again = normalize.inverse(normalize(values))
    np.testing.assert_allclose(again["action"].numpy(), values["action"].numpy(), rtol=1e-12)
    assert again["observation"]["proprio"].tolist() == [[2.0, 0.25]]
    assert torch.equal(normalize.inverse(normalize(values)["action"]), again["action"])
    assert normalize.inverse(torch.zeros(2), "proprio").shape == (2,)


def test_a_mask_of_the_statistics_and_octos_names():
    action = STATISTICS["action"]
    octo = {name.replace("q", "p"): values for name, values in action.items()} | {
        "mask": [False, True, True, True]
    }
    found = Normalize({"action": octo}, "bounds_q99", zero_unchanging=False)({"action": ACTIONS})
    np.testing.assert_allclose(
        found["action"].numpy(), by_hand("bounds_q99", zero=False, mask=octo["mask"]), rtol=1e-6
    )
    # the argument counts
    found = Normalize({"action": octo}, "normal", mask=MASK)({"action": ACTIONS})
    np.testing.assert_allclose(found["action"].numpy(), by_hand("normal"), rtol=1e-6)


def test_dtypes():
    normalize = Normalize({"action": STATISTICS["action"]}, "bounds", mask=MASK)
    assert normalize({"action": ACTIONS.double()})["action"].dtype == torch.float64
    assert normalize({"action": ACTIONS.bfloat16()})["action"].dtype == torch.bfloat16
    found = normalize({"action": ACTIONS.long()})["action"]
    np.testing.assert_allclose(found[0, 1].numpy(), by_hand("bounds")[0, 1], rtol=1e-6)


def test_other_devices():
    """The numbers follow the values; "meta" refuses any that are elsewhere."""
    normalize = Normalize(STATISTICS, "bounds", mask=MASK)
    values = {"action": ACTIONS.to("meta"), "observation": {"state": torch.zeros(2, device="meta")}}
    found = normalize(values)
    assert (found["action"].device.type, found["action"].shape) == ("meta", ACTIONS.shape)
    assert normalize.inverse(found)["observation"]["state"].device.type == "meta"


def test_episodes_samples_and_batches_are_normalised_alike(tmp_path):
    directory = write_episodes(tmp_path / "drawn" / "1.0.0")
    normalize = Normalize(dataset_statistics(directory), "bounds_q99", mask=[True, True, False])
    plain = RLDSDataset(directory, action_horizon=3, decode_images=False)
    by_episode = RLDSDataset(
        directory, action_horizon=3, decode_images=False, episode_transform=normalize
    )
    by_sample = RLDSDataset(
        directory, action_horizon=3, decode_images=False, step_transform=normalize
    )
    loaders = [
        DataLoader(ds, batch_size=7, collate_fn=collate) for ds in (plain, by_episode, by_sample)
    ]
    num_steps = 0
    for raw, episodes, samples in zip(*loaders, strict=True):
        expected = normalize(raw)
        for batch in (episodes, samples):
            assert torch.equal(batch["action"], expected["action"])
            assert torch.equal(batch["observation"]["state"], expected["observation"]["state"])
            assert batch["observation"]["image"] == raw["observation"]["image"]
        assert expected["action"].abs().max() <= 1
        num_steps += len(raw["action"])
    assert num_steps == sum(LENGTHS)
    copy = pickle.loads(pickle.dumps(normalize))
    assert torch.equal(copy(raw)["action"], expected["action"])
    assert repr(copy) == "Normalize('bounds_q99', action, proprio)"


def test_errors():
    with pytest.raises(
        ValueError, match="normalization must be 'normal', 'bounds' or 'bounds_q99', got 'gaussian'"
    ):
        Normalize(STATISTICS, "gaussian")
    with pytest.raises(
        ValueError, match=r"statistics must be a dict with 'action', got \{'bridge'"
    ):
        Normalize({"bridge": STATISTICS})
    with pytest.raises(ValueError, match="statistics: 'action' lacks 'std', there are 'mean'"):
        Normalize({"action": {"mean": [0.0]}})
    with pytest.raises(
        ValueError, match=r"mask must have 4 values, as 'action' of the statistics, got \[True\]"
    ):
        Normalize(STATISTICS, mask=[True])
    normalize = Normalize(STATISTICS)
    with pytest.raises(KeyError, match="no 'action' to normalise; there are 'observation'"):
        normalize(PROPRIO)
    with pytest.raises(
        KeyError, match="no 'observation/proprio' or 'observation/state' to normalise; set proprio"
    ):
        normalize({"action": ACTIONS})
    with pytest.raises(
        ValueError,
        match=r"action: expected a tensor \[\.\.\., 4\], as the statistics, got shape \[2\]",
    ):
        normalize.inverse(torch.zeros(2))
    with pytest.raises(
        ValueError, match=r"action: expected a tensor \[\.\.\., 4\], as the statistics, got dict"
    ):
        normalize({"action": {"x": ACTIONS}} | PROPRIO)
