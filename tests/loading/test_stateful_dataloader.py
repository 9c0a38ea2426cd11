"""torchdata's StatefulDataLoader: resuming at every batch, with any workers, and again after
that.
"""

import json

import pytest
import torch

from torch_tfrecord import RecordSampler, make_dataloader

stateful = pytest.importorskip("torchdata.stateful_dataloader")
StatefulDataLoader = stateful.StatefulDataLoader

pytestmark = [
    # torchdata 0.11 with torch 2.15
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


N = 25


def by_sampler(num_workers, **options):
    sampler = RecordSampler(range(N), seed=1, rank=1, world_size=2)
    return StatefulDataLoader(
        range(N), 3, sampler=sampler, num_workers=num_workers, **options
    ), sampler


def by_batches(num_workers, **options):
    sampler = make_dataloader(range(N), 3, seed=1, rank=1, world_size=2, num_epochs=2).batch_sampler
    return StatefulDataLoader(
        range(N), batch_sampler=sampler, num_workers=num_workers, **options
    ), sampler


def by_samples(num_workers, **options):
    sampler = RecordSampler(range(N), seed=1, rank=1, world_size=2)
    return StatefulDataLoader(
        range(N), batch_size=None, sampler=sampler, num_workers=num_workers, **options
    ), sampler


def received(loader, states=None):
    batches = []
    for batch in loader:
        batches.append(batch.tolist() if torch.is_tensor(batch) else batch)
        if states is not None:
            states.append(json.loads(json.dumps(loader.state_dict())))
    return batches


@pytest.mark.daily
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("make", [by_sampler, by_batches, by_samples])
def test_resume_at_every_batch(make, num_workers):
    loader, sampler = make(num_workers)
    runs = []
    states = []
    for epoch in range(3):
        if make is not by_batches:  # that one continues by itself
            sampler.set_epoch(epoch)
        runs.append(received(loader, states if epoch == 1 else None))
        if epoch == 1:
            states.append(json.loads(json.dumps(loader.state_dict())))
    assert runs[0] != runs[1] != runs[2]
    assert len(states) == len(runs[1]) + 1
    # With workers not all: each takes a second to start them.
    places = range(len(states)) if num_workers == 0 else [0, 3, len(states) - 2, len(states) - 1]
    for place in places:
        again, other = make(num_workers)
        again.load_state_dict(states[place])
        rest = received(again)
        if place == len(states) - 1:
            # Saved after the end of the iteration: torchdata begins the next one.
            assert rest == (runs[2] if make is by_batches else runs[1])
        else:
            assert rest == runs[1][place + 1 :]
        if make is not by_batches:
            other.set_epoch(2)
        following = received(again)
        if make is by_batches and place == len(states) - 1:
            continue
        assert following == runs[2]


@pytest.mark.slow
def test_a_state_of_another_world_size():
    # Two ranks received 2 batches of 3 each; one rank continues with the places from 12.
    states = []
    received(by_sampler(2)[0], states)
    whole = list(RecordSampler(range(N), seed=1))
    alone = StatefulDataLoader(
        range(N), 4, sampler=RecordSampler(range(N), seed=1, rank=0, world_size=1), num_workers=2
    )
    alone.load_state_dict(states[1])
    assert sum(received(alone), []) == whole[12:]  # noqa: RUF017
