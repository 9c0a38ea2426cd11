"""Which part a process reads: given, from torch.distributed, or from torchrun's environment."""

import json
import pickle

import pytest
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.data import DataLoader

from torch_tfrecord import TFRecordIterableDataset, TFRecordWriter
from torch_tfrecord.order import Rank

RECORDS = [b"%d:%d" % (file, number) for file in range(3) for number in range(4)]


@pytest.fixture
def folder(tmp_path):
    for file in range(3):
        with TFRecordWriter(tmp_path / f"part-{file}") as writer:
            for record in RECORDS[4 * file : 4 * file + 4]:
                writer.write(record)
    return tmp_path


@pytest.fixture
def process_group(monkeypatch):
    """Pretends that torch.distributed is initialised; the slow tests below do not pretend."""

    def enter(rank, world_size):
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: world_size)

    yield enter


def environment(monkeypatch, rank, world_size):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


def part(folder, rank, world_size):
    return list(TFRecordIterableDataset(folder / "part-*", rank=rank, world_size=world_size))


def test_what_is_given_comes_first_then_the_process_group_then_the_environment(
    monkeypatch, process_group
):
    environment(monkeypatch, 1, 2)
    assert Rank.here(None, None) == (1, 2)
    process_group(2, 3)
    assert Rank.here(None, None) == (2, 3)
    assert Rank.here(3, 4) == (3, 4)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("source", ["arguments", "process group", "environment"])
def test_every_record_once(folder, monkeypatch, process_group, source, world_size):
    ds = TFRecordIterableDataset(folder / "part-*")
    seen = []
    for rank in range(world_size):
        if source == "arguments":
            mine = part(folder, rank, world_size)
        else:
            # The rank is looked up when iteration begins: a dataset may be built before it is
            # known.
            if source == "process group":
                process_group(rank, world_size)
            else:
                environment(monkeypatch, rank, world_size)
            mine = list(ds)
        assert mine == part(folder, rank, world_size)
        seen += mine
    assert sorted(seen) == RECORDS


def test_environment_of_one_variable_alone_says_nothing(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert Rank.here(None, None) == (0, 1)
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Rank.here(None, None) == (0, 1)


@pytest.mark.parametrize(
    ("rank", "world_size", "text"),
    [
        (
            "2",
            "2",
            "the environment's RANK='2', WORLD_SIZE='2': rank must be from 0 to world_size - 1",
        ),
        (
            "-1",
            "2",
            "the environment's RANK='-1', WORLD_SIZE='2': rank must be from 0 to world_size - 1",
        ),
        ("one", "2", "the environment's RANK='one', WORLD_SIZE='2': "),
        ("0", "", "the environment's RANK='0', WORLD_SIZE='': "),
        (
            "0",
            "0",
            "the environment's RANK='0', WORLD_SIZE='0': rank must be from 0 to world_size - 1",
        ),
    ],
)
def test_wrong_environment(folder, monkeypatch, rank, world_size, text):
    environment(monkeypatch, rank, world_size)
    with pytest.raises(ValueError, match=f"^{text}"):
        list(TFRecordIterableDataset(folder / "part-*"))


def test_a_pickle_made_in_a_process_group_keeps_the_rank(folder, process_group, monkeypatch):
    process_group(1, 3)
    data = pickle.dumps(TFRecordIterableDataset(folder / "part-*"))
    monkeypatch.setattr(dist, "is_initialized", lambda: False)  # as in a spawned DataLoader worker
    assert list(pickle.loads(data)) == part(folder, 1, 3)


def test_a_pickle_made_outside_takes_the_rank_where_it_is_used(folder, process_group):
    # torch.multiprocessing.spawn hands the same dataset to all ranks, before any of them has a
    # group.
    data = pickle.dumps(TFRecordIterableDataset(folder / "part-*"))
    process_group(1, 3)
    assert list(pickle.loads(data)) == part(folder, 1, 3)


def run_rank(rank, world_size, folder, ds, loaders):
    """One training process; reads once in each of the ways and writes down what it saw."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size
    )
    seen = []
    for num_workers, context in loaders:
        loader = DataLoader(
            ds, batch_size=None, num_workers=num_workers, multiprocessing_context=context
        )
        seen.append([record.decode() for record in loader])
    dist.barrier()
    dist.destroy_process_group()
    (folder / f"seen-{rank}.json").write_text(json.dumps(seen))


@pytest.mark.daily
@pytest.mark.parametrize(
    ("world_size", "loaders"),
    [(2, [(0, None), (2, "fork"), (1, "spawn")]), (3, [(0, None), (2, "fork"), (5, "fork")])],
    ids=["2 ranks", "3 ranks"],
)
def test_processes_of_a_real_group(folder, world_size, loaders):
    ds = TFRecordIterableDataset(folder / "part-*", shuffle=True, shuffle_buffer_size=3)
    arguments = (world_size, folder, ds, loaders)
    torch.multiprocessing.start_processes(
        run_rank, arguments, nprocs=world_size, start_method="forkserver"
    )
    seen = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(world_size)]
    for way in range(len(loaders)):
        parts = [of_rank[way] for of_rank in seen]
        assert sorted(record.encode() for mine in parts for record in mine) == RECORDS, loaders[way]
        # without workers a third of three equal files each, or one file and half of another
        if way == 0:
            assert [len(mine) for mine in parts] == [12 // world_size] * world_size
