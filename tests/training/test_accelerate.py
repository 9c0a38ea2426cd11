"""Accelerate and Hugging Face's Trainer themselves, on two gloo ranks: every record; resumed
exactly.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from jobs import torchrun

from torch_tfrecord import ShardedTFRecordWriter

N = 103
NAMES = ["make_dataloader", "batch_sampler", "sampler", "stream", "batched_stream"]


def printed(num_ranks, script, *arguments):
    """By a job of ranks."""
    done = torchrun(num_ranks, Path(__file__).parent / script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def results(folder, job, num_ranks):
    """What each rank found."""
    return [
        json.loads((folder / f"{job}-{num_ranks}-{rank}.json").read_text())
        for rank in range(num_ranks)
    ]


def write(folder):
    with ShardedTFRecordWriter(folder / "train", num_shards=5, write_index=True) as writer:
        for number in range(N):
            writer.write({"id": number})


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    return tmp_path


def flat(batches):
    return [number for batch in batches for number in batch]


def check_epochs(ranks, name, *, equal=True):
    """Two epochs of two ranks: all records in each, as many on both ranks, in another order."""
    first, second = (rank[name] for rank in ranks)
    assert len(first) == len(second) == 2, name
    for one, other in zip(first, second, strict=True):
        assert set(flat(one)) | set(flat(other)) == set(range(N)), name
        assert not equal or [*map(len, one)] == [*map(len, other)], name
        # of each worker two batches, and no more, are filled
        assert len(flat(one)) + len(flat(other)) <= N + 2 * 16, name
    assert first[0] != first[1], name


@pytest.mark.daily
def test_on_two_ranks(folder):
    """In one job: importing takes longer than any of them."""
    printed(2, "accelerate_job.py", "coverage,settings,resume_first", folder)
    check_every_record_under_every_setting(results(folder, "coverage", 2))
    check_settings(results(folder, "settings", 2))
    # Resumed after every batch of two epochs, in one way of those below; where two ranks stopped
    # one continues.
    ranks = results(folder, "resume_first", 2)
    check_one_rank_goes_on(folder, ranks, num_cases=2)
    check_resumed(ranks, num_cases=1)


def check_every_record_under_every_setting(ranks):
    configs = {"default", "dispatch", "no dispatch", "split", "dispatch and split", "uneven"}
    refused = {
        "batched_stream, no dispatch": "with dispatch_batches=False Accelerate splits samples, and this loader has "
        "only batches: expected DataLoader(..., batch_size=n) over a stream without batch_size, or dispatch_batches",
        "batched_stream, split": "In order to use `split_batches==True` you must have a `batch_size` attribute",
        "batched_stream, dispatch and split": "In order to use `split_batches==True` you must have a `batch_size`",
    }
    for name in (f"{name}, {config}" for name in NAMES for config in configs):
        if name in refused:
            assert all(rank[name].startswith(f"ValueError: {refused[name]}") for rank in ranks), (
                name
            )
        else:
            # even_batches=False is Accelerate's wish that they differ.
            check_epochs(ranks, name, equal=not name.endswith("uneven"))
    for name in ("make_dataloader", "batch_sampler"):
        check_epochs(ranks, f"{name}, not prepared")
        # Accelerate's rank 0 gets the first batch of eight of the one order, its rank 1 the second.
        assert ranks[0][f"{name}, default"] == ranks[0]["make_dataloader, no dispatch"]
        assert ranks[0][f"{name}, not prepared"] != ranks[0][f"{name}, default"]
    for name in ("sampler", "stream", "batched_stream"):  # whose epoch nobody sets there
        first, second = (rank[f"{name}, not prepared"][0] for rank in ranks)
        assert set(flat(first)) | set(flat(second)) == set(range(N))


@pytest.mark.daily
def test_workers(folder):
    printed(2, "accelerate_job.py", "workers", folder)
    ranks = results(folder, "workers", 2)
    for name in NAMES[:3]:
        check_epochs(ranks, f"{name}, default, fork")
        check_epochs(ranks, f"{name}, no dispatch, fork")
    check_epochs(ranks, "stream, no dispatch, fork")
    check_epochs(ranks, "stream, no dispatch, spawn")
    for name in ("stream", "batched_stream"):
        for rank in ranks:
            assert rank[f"{name}, default, fork"] == (
                "ValueError: Accelerate's dispatch_batches loses records of a stream if the last batch of a worker "
                "is not full: expected num_workers of at most 1 or dispatch_batches=False, got num_workers=2 "
                "(DataLoaderConfiguration in Accelerate, accelerator_config in a Trainer)"
            )


def check_settings(ranks):
    for name in NAMES:
        for config in ("default", "dispatch", "split"):
            if (name, config) == ("batched_stream", "split"):
                continue
            for rank in ranks:
                assert sorted(rank[f"{name}, {config}, gather"]) == [*range(N)]
                # Accelerate's skip_first_batches counts what rank 0 reads, not steps, where it
                # dispatches by position.
                if config != "dispatch" or "stream" in name:
                    whole, rest, following = rank[f"{name}, {config}, skip"]
                    assert rest == whole[3:]
                    assert following != whole
    check_few(ranks)


def check_few(ranks):
    for rank in ranks:
        assert len(set(rank["make_dataloader, default, gather, drop_last"])) == N // 16 * 16
        assert rank["len"] == [7, 7, 7]
        for name in NAMES[:3]:
            assert rank[f"{name}, set_epoch"][0] == rank["make_dataloader, set_epoch"][0]
        outer, inner = rank["two loaders"]
        assert len(outer) == len(inner) == 7
        assert rank["epochs"] == (
            "ValueError: num_epochs=2: Accelerate takes a batch that is not full to be the last, and loses records; "
            "expected num_epochs=1 or drop_last=True in a loader that it prepared"
        )
        assert [*map(len, rank["epochs, drop_last"])] == [8] * 12
        assert rank["state"] == (
            "ValueError: Accelerate's loader prefetches: expected num_received, the batches that this "
            "rank has received (make_dataloader's loader.batch_sampler.state_dict takes it, too), got None"
        )
        assert rank["loaded"] == (
            "ValueError: the loaded state is of epoch 1, the loader that Accelerate prepared begins epoch 0: call its "
            "set_epoch(1) first, and set_epoch at the beginning of each epoch"
        )
    for number, rank in enumerate(ranks):
        for name in ("rank", "rank of a stream"):
            assert rank[name] == (
                f"ValueError: rank={number} and world_size=2 were given, but Accelerate splits this rank's records "
                "again, over 2 processes: omit rank and world_size, or do not prepare this loader"
            )
    for part in (0, 1):  # the prepared loader, and the one that is not
        assert {number for rank in ranks for number in flat(rank["two loaders"][part])} == set(
            range(N)
        )


@pytest.mark.daily
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_resumed_in_every_way(folder, num_ranks):
    printed(num_ranks, "accelerate_job.py", "resume", folder)
    ranks = results(folder, "resume", num_ranks)
    if num_ranks == 2:
        check_one_rank_goes_on(folder, ranks, num_cases=6)
    check_resumed(ranks, num_cases=15 if num_ranks == 2 else 10)


def check_resumed(ranks, num_cases):
    for rank in ranks:
        assert len(rank) == num_cases
        for case, found in rank.items():
            rows = found.pop("all")
            an_epoch = 7 if len(ranks) == 2 else 13
            assert [row[0] for row in rows] == [0] * an_epoch + [1] * an_epoch
            assert len(found) == (
                2 * an_epoch if case.endswith(", 0") else len(range(1, 2 * an_epoch, 5))
            )
            for place, left in found.items():
                epoch, step = json.loads(place)
                expected = rows[epoch * an_epoch + step :]
                # other records fill the last batch of that epoch
                if "sampler, " in case[-12:] and len(ranks) == 2:
                    last = an_epoch - step - 1
                    expected, left = (
                        part[: max(last, 0)] + part[last + 1 :] for part in (expected, left)
                    )
                assert left == expected, (case, place)


def check_one_rank_goes_on(folder, before, num_cases):
    """Where two stopped: what was left, exactly."""
    printed(1, "accelerate_job.py", "other_ranks", folder)
    (left,) = results(folder, "other_ranks", 1)
    assert len(left) == num_cases
    for case, rows in left.items():
        name, way, place = case.split(", ", 2)
        epoch, step = json.loads(place)
        received = Counter(row_id for row in rows if row[0] == epoch for row_id in row[1:])
        for rank in before:
            taken = [row for row in rank[f"{name}, {way}, 0"]["all"] if row[0] == epoch][:step]
            received.update(row_id for row in taken for row_id in row[1:])
        assert received == Counter(range(N)), case


@pytest.mark.daily
def test_torchrun_without_a_process_group(folder):
    printed(2, "torchrun_job.py", folder)
    ranks = results(folder, "torchrun", 2)
    for name in NAMES:
        for num_workers in (0, 2):
            for epoch in range(2):
                one, other = (flat(rank[f"{name}, {num_workers}"][epoch]) for rank in ranks)
                received = Counter(one + other)
                assert set(received) == set(range(N))
                if "stream" in name:
                    assert received.total() == N
                else:  # one is repeated, so that the ranks have as many
                    assert (received.total(), len(one)) == (N + 1, len(other))


@pytest.mark.daily
def test_hugging_face_trainer(folder):
    """A dataset, resumed after every batch; our loader; a stream; what is evaluated."""
    printed(2, "hf_trainer_job.py", folder, "some")
    ranks = results(folder, "hf_trainer", 2)
    check_trained(ranks, {"dataset": 7, "stream": 7, "loader": 7})
    check_checkpoints(ranks, {"dataset": 13, "loader": 13})
    check_evaluated(ranks)


@pytest.mark.daily
def test_hugging_face_trainer_with_all_loaders(folder):
    printed(2, "hf_trainer_job.py", folder, "all")
    ranks = results(folder, "hf_trainer", 2)
    check_trained(ranks, {"dataset": 7, "stream": 7, "loader": 7, "two workers, each reads": 8})
    # A Trainer does not know the epoch of a stream, which has no length: only the first one is gone
    # on with.
    check_checkpoints(ranks, {"dataset": 13, "loader": 13, "stream": 7, "stream, each reads": 3})
    check_evaluated(ranks)
    for rank in ranks:
        assert (
            "expected num_workers of at most 1 or dispatch_batches=False, got num_workers=2"
            in rank["two workers"]
        )


def check_trained(ranks, batches_an_epoch):
    for name, an_epoch in batches_an_epoch.items():
        rows = [rank[name]["all"] if "all" in rank[name] else rank[name] for rank in ranks]
        for epoch in range(2):
            received = [flat(row[epoch * an_epoch : (epoch + 1) * an_epoch]) for row in rows]
            assert set(received[0]) | set(received[1]) == set(range(N)), name
            assert len(received[0]) == len(received[1]), name
        assert rows[0][:an_epoch] != rows[0][an_epoch:], name


def check_checkpoints(ranks, last_steps):
    for rank in ranks:
        for name, last in last_steps.items():
            rows = rank[name].pop("all")
            steps = [step for step in rank[name] if int(step) <= last]
            assert steps
            for step in steps:
                assert rank[name][step] == rows[int(step) :], (name, step)


def check_evaluated(ranks):
    for rank in ranks:
        for name in ("dataset", "stream"):
            assert sorted(rank[f"{name}, evaluated"]) == [*range(N)]


EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"


@pytest.mark.daily
def test_the_example_with_accelerate(tmp_path):
    example = EXAMPLES / "accelerate_loop.py"
    folder = tmp_path / "new"  # made by the example
    # 200 records: 13 steps of two ranks in an epoch, the last of them of 8 records
    stopped = printed(2, example, folder, "--stop-after", 18).splitlines()
    assert stopped[0].endswith(" of 100 records")
    assert stopped[1:] == ["stopped in epoch 1"]
    lines = printed(1, example, folder).splitlines()
    assert lines[0] == "resuming in epoch 1, 15 batches left"
    found = [
        re.fullmatch(r"epoch (\d): error ([\d.]+) of 100 records", line).groups()
        for line in lines[1:]
    ]
    assert [epoch for epoch, _ in found] == ["1", "2"]
    assert float(found[1][1]) < float(found[0][1]) / 2


@pytest.mark.daily
def test_the_example_with_the_trainer(tmp_path):
    example = EXAMPLES / "hf_trainer.py"
    folder = tmp_path / "new"  # made by the example
    first = printed(2, example, folder, 10)
    second = printed(2, example, folder, 26)
    pattern = r"from (\S+) to step (\d+)\nerror ([\d.]+) of 100 records"
    (before, _, error), (checkpoint, step, less) = (
        re.search(pattern, text).groups() for text in (first, second)
    )
    assert (before, checkpoint, step) == ("None", "checkpoint-10", "26")
    assert float(less) < float(error) / 2
