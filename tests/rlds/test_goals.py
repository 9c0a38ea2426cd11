"""Goals: which steps are drawn, that only their frames are read, and what decides the draws."""

import pickle

import numpy as np
import pytest
import torch
from rlds_episodes import LENGTHS, pixels, state, write_episodes
from torch.utils.data import DataLoader
from torchvision import tv_tensors

from torch_tfrecord import Mixture, collate
from torch_tfrecord.tfds import RLDSDataset, UniformGoals

STEPS = [(number, at) for number, length in enumerate(LENGTHS) for at in range(length)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    directory = write_episodes(tmp_path_factory.mktemp("goals") / "drawn" / "1.0.0")
    RLDSDataset(directory)
    return directory


def goals_of(samples):
    return {
        (sample["_traj_index"], sample["_frame_index"]): sample["task"]["timestep"]
        for sample in samples
    }


def drawn_goals(batches):
    found = {}
    for batch in batches:
        columns = (batch["_traj_index"], batch["_frame_index"], batch["task"]["timestep"])
        found |= {
            (number, at): goal
            for number, at, goal in zip(*(each.tolist() for each in columns), strict=True)
        }
    return found


def test_a_goal_is_the_observation_of_a_later_step(drawn):
    ds = RLDSDataset(drawn, goals=UniformGoals(), window_size=2)
    ds.set_epoch(0)
    for sample, (number, at) in zip(ds, STEPS, strict=True):
        task = sample["task"]
        goal = task["timestep"]
        assert at <= goal < LENGTHS[number]
        assert torch.equal(task["image"], pixels(number, goal))
        assert isinstance(task["image"], tv_tensors.Image)
        assert torch.equal(task["wrist_image"], pixels(number, goal, 16, 16))
        assert torch.equal(task["state"], state(number, goal))
        assert task["language_instruction"] == f"task {number} ü"
        assert sample["observation"]["image"].shape == (2, 3, 32, 40)
    assert "timestep" not in RLDSDataset(drawn)[0]["task"]


def test_batches_have_the_goals_of_their_samples(drawn):
    ds = RLDSDataset(drawn, goals=UniformGoals(seed=5))
    ds.set_epoch(3)
    positions = [44, 0, 20, 5, 20, -1]
    batch, samples = collate(ds.__getitems__(positions)), [ds[position] for position in positions]
    assert batch["task"]["timestep"].tolist() == [sample["task"]["timestep"] for sample in samples]
    for name in ("image", "wrist_image", "state"):
        assert torch.equal(
            batch["task"][name], torch.stack([sample["task"][name] for sample in samples])
        )
    assert batch["task"]["language_instruction"] == [
        sample["task"]["language_instruction"] for sample in samples
    ]


@pytest.mark.parametrize(("least", "most"), [(0, None), (1, None), (0, 3), (2, 2), (1, 4)])
def test_distances(drawn, least, most):
    ds = RLDSDataset(drawn, goals=UniformGoals(least, most), decode_images=False)
    distances = set()
    for epoch in range(60):
        ds.set_epoch(epoch)
        goals = drawn_goals([collate(ds.__getitems__(range(len(ds))))])
        for (number, at), goal in goals.items():
            last = LENGTHS[number] - 1
            assert min(at + least, last) <= goal <= (last if most is None else min(at + most, last))
            if number == 2 and at < 20:
                distances.add(goal - at)
    assert distances >= set(range(least, 20 if most is None else most + 1))


def test_draws_are_uniform():
    steps, lengths = np.zeros(60_000, np.int64), np.full(60_000, 6, np.int64)
    keys = np.random.default_rng(0).integers(0, 1 << 64, 60_000, np.uint64, endpoint=False)
    counts = np.bincount(UniformGoals().draw(steps, lengths, keys), minlength=6)
    assert len(counts) == 6
    assert abs(counts - 10_000).max() < 500
    ends = np.array([0, (1 << 64) - 1], np.uint64)
    assert UniformGoals().draw(steps[:2], np.full(2, 3), ends).tolist() == [0, 2]
    assert UniformGoals().draw(steps[:2], np.full(2, 3 << 40), ends).tolist() == [0, (3 << 40) - 1]


def test_seed_epoch_and_step_decide(drawn):
    def goals(seed=0, epoch=0, **options):
        ds = RLDSDataset(drawn, goals=UniformGoals(seed=seed), decode_images=False, **options)
        ds.set_epoch(epoch)
        return goals_of(map(ds.__getitem__, range(len(ds))))

    first = goals()
    assert first == goals()
    assert first != goals(seed=1)
    assert first != goals(epoch=1)
    # Not the other steps that are positions.
    kept = goals(keep={"2": [[3, 9]]}, keep_key="{_traj_index}")
    assert kept == {place: goal for place, goal in first.items() if place in kept}
    assert len(kept) == 6
    inner = goals(window_size=2, pad=None)
    assert inner == {place: goal for place, goal in first.items() if place in inner}
    ds = RLDSDataset(drawn, goals=UniformGoals(), decode_images=False)[7:30:3]
    ds.set_epoch(0)
    assert goals_of(map(ds.__getitem__, range(len(ds)))) == {
        STEPS[at]: first[STEPS[at]] for at in range(7, 30, 3)
    }


def test_a_plain_loader_draws_anew_by_torchs_seed(drawn):
    ds = RLDSDataset(drawn, goals=UniformGoals(), decode_images=False)
    loader = DataLoader(ds, batch_size=10)
    torch.manual_seed(3)
    passes = [drawn_goals(loader) for _ in range(2)]
    assert passes[0] != passes[1]
    torch.manual_seed(3)
    assert [drawn_goals(loader) for _ in range(2)] == passes


def test_persistent_workers_and_copies_follow_set_epoch(drawn):
    ds = RLDSDataset(drawn, goals=UniformGoals(), decode_images=False)
    ds.set_epoch(0)
    loader = DataLoader(
        ds, batch_size=10, num_workers=1, persistent_workers=True, collate_fn=collate
    )
    first = drawn_goals(loader)
    assert first == drawn_goals(loader)
    ds.set_epoch(1)
    second = drawn_goals(loader)
    assert second != first
    copy = pickle.loads(pickle.dumps(ds))
    assert goals_of(map(copy.__getitem__, range(len(copy)))) == second


def test_a_mixture_draws_anew_in_each_pass(drawn):
    ds = RLDSDataset(drawn, goals=UniformGoals(), decode_images=False)
    mixture = Mixture([ds, ds], stop="never", num_samples=4 * len(ds), shuffle=False)
    mixture.set_epoch(0)
    both = [
        mixture[position] for position in range(len(mixture)) if mixture.locate(position)[0] == 0
    ]
    passes = [goals_of(both[: len(ds)]), goals_of(both[len(ds) : 2 * len(ds)])]
    for epoch, expected in enumerate(passes):
        ds.set_epoch(epoch)
        assert goals_of(map(ds.__getitem__, range(len(ds)))) == expected


def test_observations_that_are_no_dict_and_transforms(drawn):
    def only_state(episode):
        return {"observation": episode["observation"]["state"], "action": episode["action"]}

    ds = RLDSDataset(drawn, goals=UniformGoals(), episode_transform=only_state)
    ds.set_epoch(2)
    sample = ds[10]
    assert torch.equal(sample["task"]["observation"], state(2, sample["task"]["timestep"]))
    batch = collate(ds.__getitems__([10, 11]))
    assert torch.equal(batch["task"]["observation"][0], sample["task"]["observation"])
    ds = RLDSDataset(
        drawn, goals=UniformGoals(), step_transform=lambda sample: sample["task"]["timestep"]
    )
    ds.set_epoch(2)
    assert ds[10] == sample["task"]["timestep"] == next(iter(ds.__getitems__([10])))


def test_errors(drawn):
    with pytest.raises(
        TypeError, match=r"goals must be a tfds\.UniformGoals or None, got 'uniform'"
    ):
        RLDSDataset(drawn, goals="uniform")
    with pytest.raises(ValueError, match="min_distance must be an integer of at least 0, got -1"):
        UniformGoals(-1)
    with pytest.raises(ValueError, match="max_distance must be an integer of at least 2, got 1"):
        UniformGoals(2, 1)
    with pytest.raises(TypeError, match=r"seed must be an integer, got 1\.5"):
        UniformGoals(seed=1.5)
    with pytest.raises(ValueError, match="epoch must be an integer of at least 0, got -1"):
        RLDSDataset(drawn).set_epoch(-1)
