"""Lightning's Trainer and Fabric: every record of an epoch, equally on all ranks; resumed, exactly what is left.

Each test is one job with many trainings (tests/lightning_job.py): its imports take longer than they do.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_tfrecord import RecordBatchSampler, ShardedTFRecordWriter, TFRecordDataset

pytest.importorskip("lightning")

N = 103  # with batches of 8: 13 batches on one rank, 7 on each of two, with one record twice
HERE = Path(__file__).parent
EVERY_STEP = {"every_n_train_steps": 1}


@pytest.fixture
def folder(tmp_path):
    with ShardedTFRecordWriter(tmp_path / "train", num_shards=4, write_index=True) as writer:
        for number in range(N):
            writer.write({"id": number})
    return tmp_path


def job(folder, ranks, fits, *, torchrun=True):
    """Run the trainings."""
    (folder / "fits.json").write_text(json.dumps(fits))
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    command = [sys.executable, *(start if ranks > 1 and torchrun else []), str(HERE / "lightning_job.py")]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    environment = {key: value for key, value in os.environ.items() if key not in names}
    done = subprocess.run(
        [*command, folder, str(ranks), folder / "fits.json"],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def batches(folder, name, rank=0, stage="train"):
    """(epoch, ids) of each batch."""
    lines = [json.loads(line) for line in (folder / f"{name}-{rank}").read_text().splitlines()]
    return [(epoch, ids) for what, epoch, ids in lines if what == stage]


def assert_all_records(folder, name, *, stage="train", epochs=(0, 1), ranks=2, evenly=True, passes=1):
    """Every record in each epoch, and as many on each rank; with `evenly` one record twice."""
    for epoch in epochs:
        each = [[i for e, ids in batches(folder, name, r, stage) if e == epoch for i in ids] for r in range(ranks)]
        together = sorted(i for ids in each for i in ids)
        assert set(together) == set(range(N)), (name, stage, epoch)
        assert len(together) == (passes * ranks * -(-N // ranks) if evenly else N), (name, stage, epoch)
        if evenly:
            assert len({len(ids) for ids in each}) == 1, (name, stage, epoch)


def whole_and_resumed(name, kind, steps, *, checkpoints=EVERY_STEP, **options):
    """A training that saves, and those that go on from its checkpoints."""
    yield {"name": name, "kind": kind, "checkpoints": checkpoints, **options}
    for step in steps:
        yield {"name": f"{name} from {step}", "kind": kind, "resume": f"{name}/step={step}", **options}


def assert_resumed(folder, name, steps, ranks=2):
    for rank in range(ranks):
        whole = batches(folder, name, rank)
        for step in steps:
            assert batches(folder, f"{name} from {step}", rank) == whole[step:], (name, step, rank)


def test_every_record_and_resumed(folder):
    """A part of what the slow tests show."""
    fits = [
        *whole_and_resumed("make_dataloader", "make_dataloader", (3, 7)),
        {"name": "sampler", "kind": "sampler", "validate": {}, "num_sanity_val_steps": 2},
        {"name": "batch_sampler", "kind": "batch_sampler", "max_epochs": 1},
    ]
    job(folder, 2, fits)
    assert_all_records(folder, "make_dataloader")
    assert_all_records(folder, "sampler")
    assert_all_records(folder, "sampler", stage="validate")
    assert_all_records(folder, "batch_sampler", epochs=[0])
    assert_resumed(folder, "make_dataloader", (3, 7))
    # The same order in all of them, another one in each epoch.
    assert batches(folder, "make_dataloader") == batches(folder, "sampler")
    assert batches(folder, "make_dataloader")[:7] == batches(folder, "batch_sampler")
    assert batches(folder, "make_dataloader")[0][1] != batches(folder, "make_dataloader")[7][1]


KINDS = ("make_dataloader", "batch_sampler", "sampler", "stateful sampler", "stateful batch_sampler")
THEIRS = ("plain", "read ahead", "distributed")  # Lightning's or torch's order


@pytest.mark.slow
def test_every_record_in_fit(folder):
    """From hooks or not, with validation and the sanity check before it, with workers or not."""
    fits = [
        {
            "name": f"{kind} {hooks}",
            "kind": kind,
            "hooks": hooks,
            "validate": {},
            "num_sanity_val_steps": 2,
            "loader": {"num_workers": int(hooks)},
            "reload_dataloaders_every_n_epochs": int(hooks),
        }
        for kind in (*KINDS, *THEIRS, "stream")
        for hooks in (False, True)
    ]
    job(folder, 2, fits)
    for kind in (*KINDS, *THEIRS, "stream"):
        for hooks in (False, True):
            for stage in ("train", "validate"):
                assert_all_records(folder, f"{kind} {hooks}", stage=stage, evenly=kind != "stream")
            assert len(batches(folder, f"{kind} {hooks}", stage="sanity")) == 2
            if kind in KINDS:
                assert batches(folder, f"{kind} {hooks}") == batches(folder, "make_dataloader False")
            if kind != "stream":
                orders = batches(folder, f"{kind} {hooks}")
                assert orders[0][1] != orders[7][1]


@pytest.mark.slow
def test_other_stages_and_settings(folder):
    runs = ("validate", "test", "predict")
    kinds = ("make_dataloader", "batch_sampler", "sampler", "plain")
    fits = [
        # Lightning draws another random order on each rank, where it predicts from a plain DataLoader.
        {"name": f"{kind} {run}", "kind": kind, "run": run, "loader": {"shuffle": kind != "plain"}}
        for kind in kinds
        for run in runs
    ]
    short = {"kind": "make_dataloader", "run": "predict", "loader": {"drop_last": True, "num_workers": 1}}
    fits += [{"name": "predict without drop_last", "hooks": True, **short}]
    fits += [{"name": f"{kind} overfit", "kind": kind, "overfit_batches": 3} for kind in ("make_dataloader", "sampler")]
    fits += [{"name": "two epochs", "kind": "make_dataloader", "loader": {"num_epochs": 2}}]
    fits += [{"name": "limited", "kind": "make_dataloader", "limit_train_batches": 3}]
    job(folder, 2, fits)
    for kind in kinds:
        for run in runs:
            evenly = (kind, run) != ("plain", "predict")
            assert_all_records(folder, f"{kind} {run}", stage=run, epochs=[0], evenly=evenly)
    assert_all_records(folder, "predict without drop_last", stage="predict", epochs=[0])
    for kind in ("make_dataloader", "sampler"):
        first = [[place * 2 for place in range(number, number + 8)] for number in (0, 8, 16)]
        assert batches(folder, f"{kind} overfit") == [(epoch, in_files(ids)) for epoch in (0, 1) for ids in first]
    assert_all_records(folder, "two epochs", passes=2)
    order = [ids for _, ids in batches(folder, "two epochs")]
    assert order[:14] == two_epochs(folder)
    assert order[14][:4] not in [ids[:4] for ids in order[:14]]  # the second iteration is epochs 2 and 3
    limited = [ids for _, ids in batches(folder, "limited")]
    assert limited == order[:3] + order[7:10]


def in_files(places):
    """The records at places of the order of four files, which were written in turn."""
    order = [number for first in range(4) for number in range(first, N, 4)]
    return [order[place] for place in places]


def two_epochs(folder):
    """The ids of each batch of rank 0, by the sampler alone."""
    dataset = TFRecordDataset(f"{folder}/train-*")
    return [in_files(batch) for batch in RecordBatchSampler(dataset, 8, seed=3, num_epochs=2, rank=0, world_size=2)]


@pytest.mark.slow
def test_resumed_at_every_batch_on_two_ranks(folder):
    cases = {
        ("make_dataloader", 0): range(1, 15),
        ("make_dataloader", 1): (1, 6, 7, 8),
        ("make_dataloader", 2): (3, 7, 13),
        ("stateful sampler", 0): range(1, 15),
        ("stateful batch_sampler", 0): range(1, 15),
        ("stateful sampler", 1): (1, 6, 8),
        ("stateful batch_sampler", 2): (1, 6, 8),
    }
    fits = []
    for (kind, num_workers), steps in cases.items():
        loader = {"num_workers": num_workers}
        fits += whole_and_resumed(f"{kind} {num_workers}", kind, steps, loader=loader)
    job(folder, 2, fits)
    for (kind, num_workers), steps in cases.items():
        name = f"{kind} {num_workers}"
        assert_all_records(folder, name)
        assert batches(folder, name) == batches(folder, "make_dataloader 0")
        assert_resumed(folder, name, steps)


@pytest.mark.slow
def test_resumed_with_other_settings_on_two_ranks(folder):
    by_steps = {"max_steps": 14, "max_epochs": -1}
    at_ends = {"checkpoints": {"every_n_epochs": 1}, "max_epochs": 3}
    workers = {"loader": {"num_workers": 1}}
    cases = {
        "two epochs": ("make_dataloader", (1, 6, 7, 8, 13, 14, 15, 22, 27), {"loader": {"num_epochs": 2}}),
        "two epochs, workers": ("make_dataloader", (8, 14), {"loader": {"num_epochs": 2, "num_workers": 1}}),
        "steps": ("make_dataloader", (3, 6, 7, 8, 13), by_steps),
        "steps, workers": ("make_dataloader", (6, 7), {**by_steps, **workers}),
        "validation": ("make_dataloader", (2, 3, 4, 7, 9), {"validate": {}, "val_check_interval": 3}),
        "ends": ("make_dataloader", (7, 14), at_ends),
        "ends, workers": ("make_dataloader", (7, 14), {**at_ends, **workers}),
        "ends, sampler": ("sampler", (7, 14), at_ends),
        "ends, batch_sampler": ("batch_sampler", (7, 14), at_ends),
        "hooks": ("make_dataloader", (3, 7, 9), {"hooks": True, **workers}),
    }
    fits = []
    for name, (kind, steps, options) in cases.items():
        fits += whole_and_resumed(name, kind, steps, **options)
    job(folder, 2, fits)
    for name, (_, steps, _) in cases.items():
        assert_resumed(folder, name, steps)


@pytest.mark.slow
def test_resumed_on_one_rank_and_on_other_ranks(folder):
    one = [*whole_and_resumed("one", "make_dataloader", range(1, 27))]
    one += whole_and_resumed("one, worker", "make_dataloader", (5, 13, 14), loader={"num_workers": 1})
    one += whole_and_resumed("one, stateful", "stateful sampler", (5, 13, 14))
    steps = {1: (1, 2, 6, 12, 13, 14, 24), 2: range(1, 14)}  # by the ranks of the checkpoint
    two = [{"name": "two", "kind": "make_dataloader", "checkpoints": EVERY_STEP}]
    job(folder, 2, two)
    for ranks, resumed in ((1, "two"), (2, "one")):
        anew = [
            {"name": f"{resumed} to {ranks}, {step}", "kind": "make_dataloader", "resume": f"{resumed}/step={step}"}
            for step in steps[3 - ranks]
        ]
        job(folder, ranks, (one if ranks == 1 else []) + [{**fit, "anew": True} for fit in anew])
    assert_resumed(folder, "one", range(1, 27), ranks=1)
    assert_resumed(folder, "one, worker", (5, 13, 14), ranks=1)
    assert_resumed(folder, "one, stateful", (5, 13, 14), ranks=1)
    for before, after, name in ((2, 1, "two"), (1, 2, "one")):
        for step in steps[before]:
            parts = [batches(folder, name, rank)[:step] for rank in range(before)]
            parts += [batches(folder, f"{name} to {after}, {step}", rank) for rank in range(after)]
            for epoch in (0, 1):
                found = [i for part in parts for e, ids in part if e == epoch for i in ids]
                assert set(found) == set(range(N)), (name, step, epoch)
                assert len(found) <= N + before + after - 2, (name, step, epoch)


@pytest.mark.slow
def test_fabric(folder):
    kinds = ("make_dataloader", "batch_sampler", "sampler", "plain")
    fits = [{"fabric": True, "name": kind, "kind": kind} for kind in kinds]
    cases = [(num_workers, stop) for num_workers in (0, 1) for stop in (3, 7, 10)]
    for num_workers, stop in cases:
        case = {"fabric": True, "kind": "make_dataloader", "num_workers": num_workers}
        fits += [{**case, "name": f"to {stop}, {num_workers}", "stop": stop}]
        fits += [{**case, "name": f"from {stop}, {num_workers}", "resume": f"to {stop}, {num_workers}"}]
    job(folder, 2, fits)
    for kind in kinds:
        assert_all_records(folder, kind, epochs=(0, 1, 2))
        if kind != "plain":
            assert batches(folder, kind) == batches(folder, "make_dataloader")
    for num_workers, stop in cases:
        for rank in (0, 1):
            before, after = (batches(folder, f"{part} {stop}, {num_workers}", rank) for part in ("to", "from"))
            assert before + after == batches(folder, "make_dataloader", rank)


@pytest.mark.slow
def test_processes_that_lightning_starts(folder):
    """The loaders are made before there is a process group, or an environment that tells the rank."""
    fits = [
        {"name": f"{kind} {workers}", "kind": kind, "max_epochs": 1, "loader": {"num_workers": workers}}
        for kind in ("make_dataloader", "sampler", "batch_sampler", "stream")
        for workers in (0, 1)
    ]
    job(folder, 2, fits, torchrun=False)
    for fit in fits:
        assert_all_records(folder, fit["name"], epochs=[0], evenly=fit["kind"] != "stream")


@pytest.mark.slow
def test_example(tmp_path):
    done = subprocess.run(
        [sys.executable, HERE.parent / "examples" / "trainers" / "lightning_fit.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith(("steps", "epoch"))]
    assert printed == [
        "steps so far: 9",
        "steps so far: 14",
        "epoch 0: 103 records, [52, 52] samples on the ranks",
        "epoch 1: 103 records, [52, 52] samples on the ranks",
    ]
