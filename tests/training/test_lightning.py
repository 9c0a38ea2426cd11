"""Lightning's Trainer and Fabric: every record of an epoch, equally on all ranks; resumed, exactly
what is left.

Each test is one job with many trainings (tests/lightning_job.py): its imports take longer than they
do.
"""

import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest
from jobs import run_job, torchrun

from torch_tfrecord import ShardedTFRecordWriter, TFRecordDataset, make_dataloader

# Not imported: only the jobs need it, and it takes two seconds in each process of the tests.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="needs Lightning"
)

N = 103  # with batches of 8: 13 batches on one rank, 7 on each of two, with one record twice
HERE = Path(__file__).parent
EVERY_STEP = {"every_n_train_steps": 1}


@pytest.fixture
def folder(tmp_path):
    with ShardedTFRecordWriter(tmp_path / "train", num_shards=4, write_index=True) as writer:
        for number in range(N):
            writer.write({"id": number})
    return tmp_path


def job(folder, ranks, fits, *, start=None):
    """Run the trainings; `start`: by torchrun where there are several ranks."""
    (folder / "fits.json").write_text(json.dumps(fits))
    start = start or (run_job if ranks == 1 else partial(torchrun, ranks))
    done = start(HERE / "lightning_job.py", folder, ranks, folder / "fits.json", cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]


def batches(folder, name, rank=0, stage="train"):
    """(epoch, ids) of each batch."""
    lines = [json.loads(line) for line in (folder / f"{name}-{rank}").read_text().splitlines()]
    return [(epoch, ids) for what, epoch, ids in lines if what == stage]


def assert_all_records(
    folder, name, *, stage="train", epochs=(0, 1), ranks=2, evenly=True, passes=1
):
    """Every record in each epoch, and as many on each rank; with `evenly` one record twice."""
    for epoch in epochs:
        each = [
            [i for e, ids in batches(folder, name, r, stage) if e == epoch for i in ids]
            for r in range(ranks)
        ]
        together = sorted(i for ids in each for i in ids)
        assert set(together) == set(range(N)), (name, stage, epoch)
        assert len(together) == (passes * ranks * -(-N // ranks) if evenly else N), (
            name,
            stage,
            epoch,
        )
        if evenly:
            assert len({len(ids) for ids in each}) == 1, (name, stage, epoch)


def whole_and_resumed(name, kind, steps, *, checkpoints=EVERY_STEP, **options):
    """A training that saves, and those that continue from its checkpoints."""
    yield {"name": name, "kind": kind, "checkpoints": checkpoints, **options}
    for step in steps:
        yield {
            "name": f"{name} from {step}",
            "kind": kind,
            "resume": f"{name}/step={step}",
            **options,
        }


def assert_resumed(folder, name, steps, ranks=2):
    for rank in range(ranks):
        whole = batches(folder, name, rank)
        for step in steps:
            assert batches(folder, f"{name} from {step}", rank) == whole[step:], (name, step, rank)


KINDS = (
    "make_dataloader",
    "batch_sampler",
    "sampler",
    "stateful sampler",
    "stateful batch_sampler",
)
THEIRS = ("plain", "read ahead", "distributed")  # Lightning's or torch's order


@pytest.mark.daily
def test_every_record(folder):
    """In one job: all ways to train; the other stages; settings; Fabric."""
    checks = [in_fit, in_other_stages, with_settings, with_fabric]
    fits, asserts = zip(*(check(folder) for check in checks), strict=True)
    job(folder, 2, [fit for some in fits for fit in some])
    for holds in asserts:
        holds()


def in_fit(folder):
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

    def holds():
        for fit in fits:
            name, kind = fit["name"], fit["kind"]
            for stage in ("train", "validate"):
                assert_all_records(folder, name, stage=stage, evenly=kind != "stream")
            assert len(batches(folder, name, stage="sanity")) == 2
            if kind in KINDS:
                assert batches(folder, name) == batches(folder, "make_dataloader False")
            if kind != "stream":
                order = batches(folder, name)
                assert order[0][1] != order[7][1]
        assert [ids for _, ids in batches(folder, "make_dataloader False")][:7] == two_epochs(
            folder
        )[:7]

    return fits, holds


def in_other_stages(folder):
    runs, kinds = (
        ("validate", "test", "predict"),
        ("make_dataloader", "batch_sampler", "sampler", "plain"),
    )
    fits = [
        # Lightning draws another random order on each rank, where it predicts from a plain
        # DataLoader.
        {"name": f"{kind} {run}", "kind": kind, "run": run, "loader": {"shuffle": kind != "plain"}}
        for kind in kinds
        for run in runs
    ]
    short = {
        "kind": "make_dataloader",
        "run": "predict",
        "loader": {"drop_last": True, "num_workers": 1},
    }
    fits += [{"name": "predict without drop_last", "hooks": True, **short}]

    def holds():
        for kind in kinds:
            for run in runs:
                evenly = (kind, run) != ("plain", "predict")
                assert_all_records(folder, f"{kind} {run}", stage=run, epochs=[0], evenly=evenly)
        assert_all_records(folder, "predict without drop_last", stage="predict", epochs=[0])

    return fits, holds


def with_settings(folder):
    kinds = ("make_dataloader", "sampler")
    fits = [{"name": f"{kind} overfit", "kind": kind, "overfit_batches": 3} for kind in kinds]
    fits += [{"name": "two epochs", "kind": "make_dataloader", "loader": {"num_epochs": 2}}]
    fits += [{"name": "limited", "kind": "make_dataloader", "limit_train_batches": 3}]

    def holds():
        first = [in_files(range(2 * number, 2 * number + 16, 2)) for number in (0, 8, 16)]
        for kind in kinds:
            assert batches(folder, f"{kind} overfit") == [
                (epoch, ids) for epoch in (0, 1) for ids in first
            ]
        assert_all_records(folder, "two epochs", passes=2)
        order = [ids for _, ids in batches(folder, "two epochs")]
        assert order[:14] == two_epochs(folder)
        assert order[14] not in order[:14]  # the second iteration is epochs 2 and 3
        assert [ids for _, ids in batches(folder, "limited")] == order[:3] + order[7:10]

    return fits, holds


def with_fabric(folder):
    kinds = ("make_dataloader", "batch_sampler", "sampler", "plain")
    fits = [{"fabric": True, "name": f"fabric {kind}", "kind": kind} for kind in kinds]
    cases = [(num_workers, stop) for num_workers in (0, 1) for stop in (3, 7, 10)]
    for num_workers, stop in cases:
        case = {"fabric": True, "kind": "make_dataloader", "num_workers": num_workers}
        fits += [{**case, "name": f"to {stop}, {num_workers}", "stop": stop}]
        fits += [
            {**case, "name": f"from {stop}, {num_workers}", "resume": f"to {stop}, {num_workers}"}
        ]

    def holds():
        for kind in kinds:
            assert_all_records(folder, f"fabric {kind}", epochs=(0, 1, 2))
            if kind != "plain":
                assert batches(folder, f"fabric {kind}") == batches(
                    folder, "fabric make_dataloader"
                )
        for num_workers, stop in cases:
            for rank in (0, 1):
                before, after = (
                    batches(folder, f"{part} {stop}, {num_workers}", rank)
                    for part in ("to", "from")
                )
                assert before + after == batches(folder, "fabric make_dataloader", rank)

    return fits, holds


def in_files(places):
    """The records at places of the order of four files, which were written in turn."""
    order = [number for first in range(4) for number in range(first, N, 4)]
    return [order[place] for place in places]


def two_epochs(folder):
    """The ids of each batch of rank 0, by the sampler alone."""
    dataset = TFRecordDataset(f"{folder}/train-*")
    return [
        in_files(batch)
        for batch in make_dataloader(
            dataset, 8, seed=3, num_epochs=2, rank=0, world_size=2
        ).batch_sampler
    ]


STEPS, ENDS = (
    {"max_steps": 14, "max_epochs": -1},
    {"checkpoints": {"every_n_epochs": 1}, "max_epochs": 3},
)
# What is trained, and from which steps on it is resumed. With workers not all: each takes a second
# to start them.
RESUMED = {
    "make_dataloader": ("make_dataloader", range(1, 15), {}),
    "make_dataloader, 1": ("make_dataloader", (1, 6, 7, 8), {"loader": {"num_workers": 1}}),
    "make_dataloader, 2": ("make_dataloader", (3, 7, 13), {"loader": {"num_workers": 2}}),
    "stateful": ("stateful sampler", range(1, 15), {}),
    "stateful, 1": ("stateful sampler", (1, 6, 8), {"loader": {"num_workers": 1}}),
    "stateful batches": ("stateful batch_sampler", range(1, 15), {}),
    "stateful batches, 2": ("stateful batch_sampler", (1, 6, 8), {"loader": {"num_workers": 2}}),
    "two epochs": (
        "make_dataloader",
        (1, 6, 7, 8, 13, 14, 15, 22, 27),
        {"loader": {"num_epochs": 2}},
    ),
    "two epochs, 1": ("make_dataloader", (8, 14), {"loader": {"num_epochs": 2, "num_workers": 1}}),
    "steps": ("make_dataloader", (3, 6, 7, 8, 13), STEPS),
    "steps, 1": ("make_dataloader", (6, 7), {**STEPS, "loader": {"num_workers": 1}}),
    "validation": ("make_dataloader", (2, 3, 4, 7, 9), {"validate": {}, "val_check_interval": 3}),
    "ends": ("make_dataloader", (7, 14), ENDS),
    "ends, 1": ("make_dataloader", (7, 14), {**ENDS, "loader": {"num_workers": 1}}),
    "ends, sampler": ("sampler", (7, 14), ENDS),
    "ends, batch_sampler": ("batch_sampler", (7, 14), ENDS),
    "hooks": ("make_dataloader", (3, 7, 9), {"hooks": True, "loader": {"num_workers": 1}}),
}
# As above, with a schedule that asks for the number of steps before Lightning loads a checkpoint.
RESUMED |= {
    f"{name}, schedule": (kind, steps, {**more, "schedule": True})
    for name, steps in {
        "make_dataloader": (1, 4, 6, 7, 8, 13),
        "make_dataloader, 2": (3, 7),
        "stateful": (1, 4, 7, 8),
        "stateful, 1": (1, 6),
        "stateful batches, 2": (1, 6),
        "two epochs": (1, 8, 15),
        "validation": (2, 4, 9),
        "ends": (7, 14),
        "hooks": (3, 9),
    }.items()
    for kind, _, more in [RESUMED[name]]
}
ON_ONE = {
    "one": ("make_dataloader", range(1, 27), {}),
    "one, 1": ("make_dataloader", (5, 13, 14), {"loader": {"num_workers": 1}}),
    "one, stateful": ("stateful sampler", (5, 13, 14), {}),
}


@pytest.mark.daily
def test_resumed(folder):
    """On two ranks at every batch, on one, and from as many ranks to others; also where
    `estimated_stepping_batches` was read before Lightning loads the checkpoint (its issue 20550).
    """

    def fits(cases):
        return [
            fit
            for name, (kind, steps, more) in cases.items()
            for fit in whole_and_resumed(name, kind, steps, **more)
        ]

    def elsewhere(name, steps):
        return [
            {
                "name": f"{name} at {step}",
                "kind": "make_dataloader",
                "resume": f"{name}/step={step}",
                "anew": True,
            }
            for step in steps
        ]

    from_two, from_one = range(1, 14), (1, 2, 6, 12, 13, 14, 24)
    job(folder, 2, fits(RESUMED))
    job(folder, 1, fits(ON_ONE) + elsewhere("make_dataloader", from_two))
    job(folder, 2, elsewhere("one", from_one))
    for name, (_, steps, _) in RESUMED.items():
        assert_resumed(folder, name, steps)
    for name, (_, steps, _) in ON_ONE.items():
        assert_resumed(folder, name, steps, ranks=1)
    for name in ("make_dataloader", "one"):
        assert_all_records(folder, name, ranks=1 if name == "one" else 2)
    for before, after, name, steps in (
        (2, 1, "make_dataloader", from_two),
        (1, 2, "one", from_one),
    ):
        for step in steps:
            parts = [batches(folder, name, rank)[:step] for rank in range(before)]
            parts += [batches(folder, f"{name} at {step}", rank) for rank in range(after)]
            for epoch in (0, 1):
                found = [i for part in parts for e, ids in part if e == epoch for i in ids]
                assert set(found) == set(range(N)), (name, step, epoch)
                assert len(found) <= N + 1, (name, step, epoch)


@pytest.mark.daily
def test_processes_that_lightning_starts(folder):
    """The loaders are made before there is a process group, or an environment that tells the
    rank.
    """
    fits = [
        {
            "name": f"{kind} {workers}",
            "kind": kind,
            "max_epochs": 1,
            "loader": {"num_workers": workers},
        }
        for kind in ("make_dataloader", "sampler", "batch_sampler", "stream")
        for workers in (0, 1)
    ]
    job(folder, 2, fits, start=run_job)
    for fit in fits:
        assert_all_records(folder, fit["name"], epochs=[0], evenly=fit["kind"] != "stream")
