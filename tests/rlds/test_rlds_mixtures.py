"""Weighted mixtures of RLDS datasets: exactly the samples that the order says, over ranks and
workers.
"""

from collections import Counter

import pytest
import torch
from rlds_episodes import action, write_episodes
from torch.utils.data import DataLoader

import torch_tfrecord
from torch_tfrecord import collate
from torch_tfrecord.tfds import RLDSDataset

pytestmark = pytest.mark.skipif(
    not all(hasattr(torch_tfrecord, name) for name in ("Mixture", "RecordSampler")),
    reason="samplers are not there yet",
)
LENGTHS = {"pick": (20, 30), "push": (40, 5, 5)}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    return [
        RLDSDataset(write_episodes(folder / name / "1.0.0", lengths, name=name), action_horizon=2)
        for name, lengths in LENGTHS.items()
    ]


def keys_of(dataset, num_workers, **options):
    sampler = torch_tfrecord.RecordSampler(dataset, seed=3, **options)
    loader = DataLoader(
        dataset, batch_size=6, sampler=sampler, num_workers=num_workers, collate_fn=collate
    )
    found = []
    for batch in loader:
        first = batch["action"][:, 0]
        for name, episode, step, row in zip(
            batch["dataset_name"],
            batch["_traj_index"].tolist(),
            batch["_frame_index"].tolist(),
            first,
            strict=True,
        ):
            assert torch.equal(row, action(episode, step))
            found.append((name, episode, step))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_step_once_over_ranks(datasets, num_workers):
    dataset = datasets[0]
    ranks = [keys_of(dataset, num_workers, rank=rank, world_size=2) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == 25
    steps = [
        ("pick", number, at)
        for number, length in enumerate(LENGTHS["pick"])
        for at in range(length)
    ]
    assert sorted(ranks[0] + ranks[1]) == steps


@pytest.mark.slow
def test_a_mixture_has_its_weights_and_its_order_over_workers_and_ranks(datasets):
    mixture = torch_tfrecord.Mixture(datasets, [3, 1], num_samples=60, seed=1)
    whole = keys_of(mixture, 0)
    assert keys_of(mixture, 2) == whole
    counts = Counter(name for name, _, _ in whole)
    assert counts == {"pick": 45, "push": 15}
    ranks = [keys_of(mixture, 0, rank=rank, world_size=2) for rank in range(2)]
    assert Counter(ranks[0] + ranks[1]) == Counter(whole)
