"""Loaders as Accelerate rebuilds them, two of its processes in this one: who deals out the records.

Covers order/ranks.
"""

import pytest
import torch
from test_accelerate import N, flat, write
from test_plain_loops import check_different, crops, ds, path  # noqa: F401
from torch.utils.data import DataLoader, IterableDataset
from trainer_loaders import BATCH_SIZE, FEATURES, Loaders, ids

from torch_tfrecord import RecordSampler, TFRecordIterableDataset, collate, make_dataloader

pytest.importorskip("accelerate")
from accelerate.data_loader import (
    DataLoaderDispatcher,
    prepare_data_loader,
    skip_first_batches,
)
from accelerate.state import AcceleratorState, GradientState, PartialState

pytestmark = pytest.mark.slow


@pytest.fixture
def loaders(tmp_path):
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
        received |= {
            int(number) for batch in prepared(DataLoader(stream, 8), process) for number in batch
        }
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
    plain = [
        make_dataloader(loader.dataset, BATCH_SIZE, seed=3).batch_sampler,
        RecordSampler(loader.dataset, seed=3),
    ]
    for number, _ in enumerate(prepared(loader, 1), 1):
        state = loader.batch_sampler.state_dict(num_received=number)
        assert state["consumed"] == min(16 * number, N)
    plain[0].load_state_dict(state)
    assert len(plain[0]) == 0
    loader = loaders.sampler()
    for number, _ in enumerate(prepared(loader, 0), 1):
        assert loader.sampler.state_dict(num_received=8 * number)["consumed"] == min(16 * number, N)
    with pytest.raises(ValueError, match=r"prefetches: expected num_received, the samples that"):
        loader.sampler.state_dict()


def test_split_batches_are_counted_whole(loaders):
    loader = loaders.make_dataloader()
    for number, _ in enumerate(prepared(loader, 1, split_batches=True), 1):
        assert loader.batch_sampler.state_dict(num_received=number)["consumed"] == min(
            8 * number, N
        )


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
    stream, later = loaders.stream(), loaders.stream()
    later.dataset.set_epoch(2)
    next(iter(later.dataset))
    stream.dataset.load_state_dict(later.dataset.state_dict())
    with pytest.raises(
        ValueError,
        match=r"the loaded state is of epoch 2, the loader that Accelerate prepared begins",
    ):
        ids(prepared(stream, 0))


@pytest.mark.parametrize("name", ["make_dataloader", "sampler"])
@pytest.mark.parametrize("how", ["stateful", "skipping"])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
def test_a_loaded_state_of_another_epoch_than_accelerates(loaders, name, how):
    """Where its own count decides: it is told, not thrown away."""
    first, second = getattr(loaders, name)(), getattr(loaders, name)()
    order, resumed = (
        loader.batch_sampler if name == "make_dataloader" else loader.sampler
        for loader in (first, second)
    )
    order.set_epoch(1)
    next(iter(order))
    resumed.load_state_dict(order.state_dict())
    loader = prepared(second, 0, use_stateful_dataloader=how == "stateful")
    skipping = loader if how == "stateful" else skip_first_batches(loader, 0)
    with pytest.raises(
        ValueError,
        match=r"the loaded state is of epoch 1, .* begins epoch 0: call its set_epoch\(1\)",
    ):
        ids(skipping)
    loader.set_epoch(1)
    skipping = loader if how == "stateful" else skip_first_batches(loader, 0)
    assert flat(ids(skipping))
    assert resumed.state_dict(num_received=0)["consumed"] == order.state_dict()["consumed"]


def test_set_epoch_of_the_prepared_loader(loaders):
    for name in ("make_dataloader", "batch_sampler", "sampler", "stream"):
        loader, other = (prepared(getattr(loaders, name)(), 0) for _ in range(2))
        loader.set_epoch(1)
        assert ids(loader) == [ids(other), ids(other)][1], name


@pytest.mark.parametrize("num_processes", [1, 2])
def test_set_epoch_counts_iterations_of_several_epochs(loaders, num_processes):
    """As Hugging Face's Trainer calls it."""
    options = {"num_epochs": 2, "drop_last": True}
    all_of_it, chosen, resumed = (loaders.make_dataloader(**options) for _ in range(3))
    one, two, three = (
        prepare_data_loader(loader, num_processes=num_processes, process_index=0)
        for loader in (all_of_it, chosen, resumed)
    )
    second = [ids(one), ids(one)][1]
    two.set_epoch(1)
    assert ids(two) == second
    num_received = len(second) // 2 + 1  # in the iteration's second epoch
    resumed.load_state_dict(chosen.batch_sampler.state_dict(num_received=num_received))
    assert resumed.epoch == 3
    three.set_epoch(1)
    assert ids(three) == second[num_received:]
    two.set_epoch(0)
    assert (
        ids(two)[0]
        == ids(
            prepare_data_loader(
                loaders.make_dataloader(), num_processes=num_processes, process_index=0
            )
        )[0]
    )


@pytest.mark.daily
@pytest.mark.parametrize("num_workers", [0, 1])
def test_crops(loaders, ds, num_workers):  # noqa: F811
    """New in each epoch, though Accelerate sets none of a dataset; those of the epoch where our
    samplers know it.
    """
    options = {"collate_fn": collate, "num_workers": num_workers}
    options["multiprocessing_context"] = "fork" if num_workers else None
    both = [prepared(plain(ds, options), process) for process in (0, 1)]
    check_different([crops(batch for loader in both for batch in loader) for _ in range(3)])
    for make in (by_batches, by_positions):
        both = [prepared(make(ds, options), process) for process in (0, 1)]
        alone = make(ds, options)
        for epoch in range(3):
            alone.sampler.set_epoch(
                epoch
            ) if make is by_positions else alone.batch_sampler.set_epoch(epoch)
            assert crops(batch for loader in both for batch in loader) == crops(alone)


def plain(dataset, options):
    # Accelerate's processes share the generator's state.
    return DataLoader(
        dataset, 5, shuffle=True, generator=torch.Generator().manual_seed(5), **options
    )


def by_batches(dataset, options):
    return DataLoader(
        dataset, batch_sampler=make_dataloader(dataset, 5, seed=3).batch_sampler, **options
    )


def by_positions(dataset, options):
    return DataLoader(dataset, 5, sampler=RecordSampler(dataset, seed=3), **options)


def test_what_would_be_lost_is_refused(loaders):
    with pytest.raises(
        ValueError,
        match=r"^num_epochs=None: Accelerate takes a batch that is not full to be the last",
    ):
        ids(prepared(loaders.make_dataloader(num_epochs=None), 0))
    with pytest.raises(
        ValueError, match=r"^rank=1 and world_size=2 were given, but Accelerate splits this rank's"
    ):
        ids(prepared(loaders.make_dataloader(rank=1, world_size=2), 1))
    with pytest.raises(
        ValueError, match=r"^with dispatch_batches=False Accelerate splits samples, and this"
    ):
        ids(prepared(loaders.batched_stream(), 0))
    assert len(flat(ids(prepared(loaders.make_dataloader(rank=0, world_size=1), 0)))) == 56


def test_all_ranks_refuse_a_stream(loaders, monkeypatch):
    """Where rank 0 alone takes batches, the others would wait for them for ever."""
    monkeypatch.delattr(DataLoaderDispatcher, "_fetch_batches")
    monkeypatch.setitem(PartialState._shared_state, "num_processes", 2)
    stream = TFRecordIterableDataset(loaders.paths, FEATURES, rank=1, world_size=2)
    with pytest.raises(ValueError, match=r"^rank=1 and world_size=2 were given, but Accelerate"):
        next(iter(prepared(DataLoader(stream, 5), 1, dispatch_batches=True, put_on_device=True)))
