"""RecordBatchSampler: batches over any number of epochs, and resuming at every one of them.

Covers order/steps.
"""

import itertools
import json
import re

import pytest
from helpers import for_each
from torch.utils.data import DistributedSampler, SequentialSampler

from torch_tfrecord import RecordSampler, make_dataloader

pytestmark = pytest.mark.usefixtures("random_states_untouched")


def make(n, batch_size, **options):
    return make_dataloader(range(n), batch_size, seed=3, **options).batch_sampler


def slow_batches(n, batch_size, epochs, **options):
    """Epoch by epoch by a RecordSampler, cut up in plain Python."""
    batches = []
    for epoch in epochs:
        sampler = RecordSampler(range(n), seed=3, **options)
        sampler.set_epoch(epoch)
        positions = list(sampler)
        cut = [
            positions[begin : begin + batch_size] for begin in range(0, len(positions), batch_size)
        ]
        batches += [
            batch for batch in cut if len(batch) == batch_size or not options.get("drop_last")
        ]
    return batches


CASES = [
    (n, batch_size, world_size, drop_last)
    for n in (0, 1, 2, 7, 50)
    for batch_size in (1, 3, 64)
    for world_size in (1, 2, 5)
    for drop_last in (False, True)
]


@pytest.mark.daily
@for_each(("n", "batch_size", "world_size", "drop_last"), CASES)
@for_each("num_epochs", [0, 1, 3])
def test_iterations_go_on_from_epoch_to_epoch(n, batch_size, world_size, drop_last, num_epochs):
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "drop_last": drop_last}
        sampler = make(n, batch_size, num_epochs=num_epochs, **options)
        for iteration in range(3):
            epochs = range(iteration * num_epochs, (iteration + 1) * num_epochs)
            expected = slow_batches(n, batch_size, epochs, **options)
            assert len(sampler) == len(expected)
            assert list(sampler) == expected


@pytest.mark.daily
@for_each(("n", "batch_size", "world_size", "drop_last"), CASES)
@for_each("num_epochs", [1, 3])
def test_resume_at_every_batch_is_the_uninterrupted_run(
    n, batch_size, world_size, drop_last, num_epochs
):
    rank = world_size - 1
    options = {
        "num_epochs": num_epochs,
        "rank": rank,
        "world_size": world_size,
        "drop_last": drop_last,
    }
    sampler = make(n, batch_size, **options)
    list(sampler)  # the second iteration
    after = make(n, batch_size, **options)
    after.set_epoch(2 * num_epochs)
    third = list(after)
    iterator, taken, states = iter(sampler), [], []
    for batch in iterator:
        taken.append(batch)
        states.append(json.loads(json.dumps(sampler.state_dict())))
    for number, state in enumerate(states, 1):
        assert sampler._running.state_dict(number) == state  # what a loader asks that counts
        fresh = make(n, batch_size, **options)
        fresh.load_state_dict(state)
        assert fresh.state_dict() == state
        assert len(fresh) == len(taken) - number
        assert list(fresh) == taken[number:]
        assert list(fresh) == third
    # After its end the state is the next iteration's beginning.
    fresh = make(n, batch_size, **options)
    fresh.load_state_dict(sampler.state_dict())
    assert list(fresh) == third


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    ("n", "batch_size", "world_size"), [(1, 3, 2), (7, 3, 1), (7, 2, 2), (50, 3, 4), (50, 64, 1)]
)
def test_endless(n, batch_size, world_size, drop_last):
    options = {"rank": 0, "world_size": world_size, "drop_last": drop_last}
    sampler = make(n, batch_size, num_epochs=None, **options)
    with pytest.raises(TypeError, match="num_epochs=None has no length"):
        len(sampler)
    expected = slow_batches(n, batch_size, range(40), **options)[:30]
    iterator = iter(sampler)
    if not expected:
        message = f"expected at least {batch_size * world_size} samples, got {n}"
        with pytest.raises(ValueError, match=message):
            next(iterator)
        return
    found, states = [], []
    for batch in itertools.islice(iterator, 20):
        found.append(batch)
        states.append(sampler.state_dict())
    assert found == expected[:20]
    for number, state in enumerate(states, 1):
        fresh = make(n, batch_size, num_epochs=None, **options)
        fresh.load_state_dict(state)
        assert list(itertools.islice(fresh, 10)) == expected[number : number + 10]


def test_nothing_forever_is_nothing():
    assert list(make(0, 3, num_epochs=None)) == []


def test_epochs_can_be_chosen():
    sampler = make(10, 4)
    sampler.set_epoch(5)
    assert list(sampler) == slow_batches(10, 4, [5])
    assert list(sampler) == slow_batches(10, 4, [6])
    state = {**sampler.state_dict(), "first_epoch": 2, "epoch": 2, "consumed": 4}
    sampler.load_state_dict(state)
    sampler.set_epoch(2)  # as a training loop does that continues in epoch 2
    assert list(sampler) == slow_batches(10, 4, [2])[1:]
    sampler.load_state_dict(state)
    sampler.set_epoch(3)
    assert list(sampler) == slow_batches(10, 4, [3])


def test_wrong_use():
    with pytest.raises(ValueError, match="Batch size must be greater than zero, got 0"):
        make(3, 0)
    sampler = make(9, 2)
    with pytest.raises(
        ValueError, match="num_received must be 0 before an iteration has begun, got 1"
    ):
        sampler.state_dict(num_received=1)
    next(iter(sampler))
    with pytest.raises(
        ValueError, match="num_received=2, but the sampler has yielded only 1 batches"
    ):
        sampler.state_dict(num_received=2)
    with pytest.raises(ValueError, match="first_epoch=1 is after epoch=0 in the state"):
        sampler.load_state_dict({**sampler.state_dict(), "first_epoch": 1})
    with pytest.raises(ValueError, match="seed is 4 in the state, 3 here"):
        sampler.load_state_dict({**sampler.state_dict(), "seed": 4})
    with pytest.raises(ValueError, match="expected a state with the keys"):
        sampler.load_state_dict(RecordSampler(range(9), seed=3).state_dict())


@pytest.mark.parametrize(
    "sampler", [SequentialSampler(range(9)), RecordSampler(range(9))], ids=["torch's", "ours"]
)
def test_a_sampler_in_place_of_the_dataset(sampler):
    """It would split once more, or give positions of positions."""
    error = re.escape(
        f"dataset must be a dataset, got a sampler, {type(sampler).__name__}; if Lightning passed it, set "
        "Trainer(use_distributed_sampler=False), since this sampler already splits records over the ranks"
    )
    with pytest.raises(TypeError, match=error):
        RecordSampler(sampler)


def test_what_lightning_makes_of_it():
    """By the names that its _reinstantiate_wrapped_cls reads."""
    batches = make_dataloader(range(9), 4, seed=3, drop_last=True).batch_sampler
    kwargs = getattr(batches, "__pl_saved_kwargs")
    assert (getattr(batches, "__pl_saved_args"), set(kwargs)) == (
        (),
        {"sampler", "drop_last", "explicit_cls"},
    )
    make = kwargs["explicit_cls"]
    splitting = DistributedSampler(range(9), num_replicas=2, rank=0)
    assert make(sampler=splitting, drop_last=None) is batches
    predicting = make(sampler=SequentialSampler(range(9)), drop_last=False)
    assert list(predicting) == list(make_dataloader(range(9), 4, seed=3).batch_sampler)
    assert make(sampler=splitting, drop_last=True) is batches
    overfitting = make(sampler=SequentialSampler(range(9)), drop_last=None)
    assert [list(overfitting), list(overfitting)] == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 2
    overfitting.sampler.set_epoch(5)
    assert (overfitting.epoch, batches.epoch) == (5, 0)
