"""Loaders as Accelerate rebuilds them, two of its processes in this one: who deals out the records."""

import copy

import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from accelerate.state import AcceleratorState, GradientState, PartialState
from test_accelerate import N, flat, write
from torch.utils.data import DataLoader, IterableDataset
from trainer_loaders import BATCH_SIZE, Loaders, ids

from torch_tfrecord import RecordBatchSampler, RecordSampler, make_dataloader
from torch_tfrecord.order.position_batch import PositionBatch


@pytest.fixture
def loaders(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path)
    PartialState(cpu=True)
    yield Loaders(tmp_path)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def prepared(loader, process, **options):
    return prepare_data_loader(loader, num_processes=2, process_index=process, **options)


@pytest.mark.parametrize("name", ["make_dataloader", "batch_sampler", "sampler", "stream"])
@pytest.mark.parametrize("options", [{}, {"split_batches": True}], ids=str)
def test_every_record(loaders, name, options, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # as of a rank that torchrun started
    received = []
    for process in (0, 1):
        monkeypatch.setenv("RANK", str(process))
        loader = prepared(getattr(loaders, name)(), process, **options)
        received.append([ids(loader), ids(loader)])
    for one, other in zip(*received, strict=True):
        assert set(flat(one)) | set(flat(other)) == set(range(N))
        assert len(flat(one)) == len(flat(other)) == (52 if options else 56)


def test_a_stream_inside_a_dataset_of_the_users(loaders, monkeypatch):
    class Doubled(IterableDataset):
        def __init__(self, stream):
            self.stream = stream

        def __iter__(self):
            for sample in self.stream:
                yield 2 * sample["id"]

    monkeypatch.setenv("WORLD_SIZE", "2")
    received = set()
    for process in (0, 1):
        monkeypatch.setenv("RANK", str(process))
        stream = Doubled(loaders.stream().dataset)
        received |= {int(number) for batch in prepared(DataLoader(stream, 8), process) for number in batch}
    assert received == {2 * number for number in range(N)}


def test_skip_first_batches_of_a_loader_that_is_not_prepared(loaders, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    received = []
    for process in (0, 1):
        monkeypatch.setenv("RANK", str(process))
        received += flat(ids(skip_first_batches(loaders.make_dataloader(), 0)))
    assert sorted(set(received)) == [*range(N)]
    assert len(received) == N + 1


def test_the_state_counts_what_all_processes_received(loaders):
    """By the batches or samples that one of two processes received."""
    loader = loaders.make_dataloader()
    plain = [RecordBatchSampler(loader.dataset, BATCH_SIZE, seed=3), RecordSampler(loader.dataset, seed=3)]
    for number, _ in enumerate(prepared(loader, 1), 1):
        state = loader.batch_sampler.state_dict(num_received=number)
        assert state["consumed"] == min(16 * number, N)
    plain[0].load_state_dict(state)
    assert len(plain[0]) == 0
    loader = loaders.sampler()
    for number, _ in enumerate(prepared(loader, 0), 1):
        assert loader.sampler.state_dict(num_received=8 * number)["consumed"] == min(16 * number, N)
    with pytest.raises(ValueError, match=r"reads ahead of the training: expected num_received, the samples that"):
        loader.sampler.state_dict()


def test_split_batches_are_counted_whole(loaders):
    loader = loaders.make_dataloader()
    for number, _ in enumerate(prepared(loader, 1, split_batches=True), 1):
        assert loader.batch_sampler.state_dict(num_received=number)["consumed"] == min(8 * number, N)


def test_a_loaded_state(loaders):
    """It is gone on with, though Accelerate begins to count its iterations from 0."""
    first, second = loaders.make_dataloader(), loaders.make_dataloader()
    first.set_epoch(1)
    rows = [batch["id"].tolist() for batch in first]
    first.set_epoch(1)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    second.load_state_dict(first.state_dict())
    assert ids(prepare_data_loader(second)) == rows[3:]
    stream = loaders.stream()
    stream.dataset.load_state_dict(stream.dataset.state_dict() | {"epoch": 2})
    with pytest.raises(ValueError, match=r"the loaded state is of epoch 2, the loader that Accelerate prepared begins"):
        ids(prepared(stream, 0))


def test_set_epoch_of_the_prepared_loader(loaders):
    for name in ("make_dataloader", "batch_sampler", "sampler", "stream"):
        loader, other = (prepared(getattr(loaders, name)(), 0) for _ in range(2))
        loader.set_epoch(1)
        assert ids(loader) == [ids(other), ids(other)][1], name


def test_what_would_be_lost_is_refused(loaders):
    with pytest.raises(ValueError, match=r"^num_epochs=None: Accelerate takes a batch that is not full for the last"):
        ids(prepared(loaders.make_dataloader(num_epochs=None), 0))
    with pytest.raises(ValueError, match=r"^rank=1 and world_size=2 were given, and Accelerate splits this rank's"):
        ids(prepared(loaders.make_dataloader(rank=1, world_size=2), 1))
    with pytest.raises(ValueError, match=r"^with dispatch_batches=False Accelerate deals out samples, and this"):
        ids(prepared(loaders.batched_stream(), 0))
    assert len(flat(ids(prepared(loaders.make_dataloader(rank=0, world_size=1), 0)))) == 56


def test_lightning_gives_a_sampler_for_the_dataset():
    error = (
        r"dataset must be what the positions are of, got a sampler, SequentialSampler; where Lightning gives it, set "
        r"Trainer\(use_distributed_sampler=False\): records are split over the ranks here"
    )
    sampler = torch.utils.data.SequentialSampler(range(5))
    with pytest.raises(TypeError, match=error):
        RecordBatchSampler(sampler, batch_size=2, drop_last=False)
    with pytest.raises(TypeError, match=error):
        RecordSampler(sampler)


def test_a_part_of_a_batch_keeps_its_epoch():
    batch = PositionBatch([4, 2, 7], epoch=3)
    filled = batch[1:] + [5]  # noqa: RUF005
    assert (filled, filled.epoch, batch[0]) == ([2, 7, 5], 3, 4)
    assert copy.copy(batch).epoch == 3


def test_the_rank_is_looked_up_when_an_iteration_begins(loaders, monkeypatch):
    loader = make_dataloader(loaders.paths, BATCH_SIZE)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(loader) == 7
