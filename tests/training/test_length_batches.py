"""Batches by length, and packs, under Lightning and Accelerate on several ranks: every record, the
same steps on all ranks; resumed exactly.

Each test is one job with many trainings, and one where other ranks go on.
"""

import importlib.util
import json
import re
from bisect import bisect_right
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from jobs import run_job, torchrun
from length_loaders import BY_LENGTH, LENGTHS, PACKED, ROW_LENGTH, LengthLoaders, N, rows, write

pytest.importorskip("accelerate")
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState, GradientState, PartialState

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "trainers"
needs_lightning = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="needs Lightning"
)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    return tmp_path


def printed(num_ranks, script, *arguments, **options):
    """By a job of ranks."""
    done = torchrun(num_ranks, script, *arguments, **options)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def flat(steps):
    return [number for ids, *_ in steps for number in ids]


def check_epochs(folder, name, ranks):
    """`ranks`: of each rank, of each of two epochs, [ids, shape of the tokens] of each step."""
    loaders = LengthLoaders(folder)
    boundaries = loaders.sampler().batch_sampler.boundaries
    for rank, epochs in enumerate(ranks):
        make = loaders.packed if name == "packed" else loaders.padded
        alone = make(rank=rank, world_size=len(ranks))
        assert epochs == [rows(alone), rows(alone)], (name, rank)
    for epoch in range(2):
        received = Counter(number for epochs in ranks for number in flat(epochs[epoch]))
        assert set(received) == set(range(N)), (name, epoch)
        # The last row may have to be repeated, so that each rank has one.
        assert name == "packed" or received.total() == N, (name, epoch)
        for step in zip(*(epochs[epoch] for epochs in ranks), strict=True):
            if name == "packed":
                assert all(shape[0] <= PACKED["batch_size"] * ROW_LENGTH for _, shape in step)
                continue
            assert len({bisect_right(boundaries, LENGTHS[number]) for number in flat(step)}) == 1
            for numbers, shape in step:
                longest = -(-max(LENGTHS[number] for number in numbers) // 8) * 8
                assert shape == [len(numbers), longest]
                assert len(numbers) * longest <= BY_LENGTH["max_tokens"]
    assert ranks[0][0] != ranks[0][1]


def check_together(name, before, after, most):
    """The records of an epoch, by those that stopped and by those that went on."""
    received = Counter(chain.from_iterable(before + after))
    assert set(received) == set(range(N)), name
    assert received.total() <= most, name


@pytest.mark.daily
def test_accelerate(folder):
    def found(job, num_ranks):
        printed(num_ranks, HERE / "length_accelerate_job.py", job, folder)
        files = [folder / f"{job}-{num_ranks}-{rank}.json" for rank in range(num_ranks)]
        return [json.loads(file.read_text()) for file in files]

    ranks = found("every_record", 2)
    assert len(ranks[0]) == 6
    for case in ranks[0]:
        check_epochs(folder, case.split(", ")[0], [rank[case] for rank in ranks])
    ranks = found("resume", 2)
    for rank in ranks:
        for case, left in rank.items():
            whole = left.pop("all")
            rank[case] = whole
            assert len(left) == 5
            for place, rest in left.items():
                epoch, step = json.loads(place)
                assert rest == whole[epoch * len(whole) // 2 + step :], (case, place)
    (alone,) = found("elsewhere", 1)
    assert len(alone) == 6
    for case, rest in alone.items():
        name, way, place = case.split(", ", 2)
        epoch, step = json.loads(place)
        wholes = [
            [ids for now, *ids in rank[f"{name}, {way}, 0"] if now == epoch] for rank in ranks
        ]
        taken = [ids for whole in wholes for ids in whole[:step]]
        check_together(case, taken, [ids for now, *ids in rest if now == epoch], most=N)


@pytest.mark.slow
def test_a_loaded_state_of_another_epoch_than_accelerates(folder):
    """It is told, not thrown away; two of its processes in this one."""
    loader, before = LengthLoaders(folder).sampler(), LengthLoaders(folder).sampler().batch_sampler
    before.set_epoch(1)
    first = next(iter(before))
    loader.batch_sampler.load_state_dict(before.state_dict())
    PartialState(cpu=True)
    try:
        both = [
            prepare_data_loader(loader, num_processes=2, process_index=rank, even_batches=False)
            for rank in (0, 1)
        ]
        with pytest.raises(ValueError, match=r"the loaded state is of epoch 1, .* begins epoch 0"):
            rows(both[0])
        state, left = before.state_dict(num_received=1), []
        for prepared in both:
            loader.batch_sampler.load_state_dict(state)
            prepared.set_epoch(1)
            left += flat(rows(prepared))
    finally:
        for shared in (AcceleratorState, GradientState, PartialState):
            shared._reset_state()
    ids = [loader.dataset[position]["id"].item() for position in first]
    assert sorted(left + ids) == list(range(N))


@pytest.mark.daily
def test_the_example_by_length_with_accelerate(tmp_path):
    example = EXAMPLES / "accelerate_lengths.py"
    folder = tmp_path / "new"  # made by the example
    every = r"epoch {}: \[(\d+), \1\] steps on the processes, 503 texts, 503 different ones"
    stopped = printed(2, example, folder, "--stop-after", 20)
    pattern = (
        r"epoch 0: \[20, 20\] steps on the processes, (\d+) texts, (?P<before>\d+) different ones\n"
    )
    before = int(re.fullmatch(pattern, stopped)["before"])
    resuming, rest, whole = printed(1, example, folder).splitlines()
    left = int(re.fullmatch(r"resuming in epoch 0, (\d+) batches left", resuming)[1])
    assert rest == (
        f"epoch 0: [{left}] steps on the processes, {503 - before} texts, {503 - before} different ones"
    )
    assert whole.endswith(" steps on the processes, 503 texts, 503 different ones")
    lines = printed(2, example, folder, "--prepare").splitlines()
    assert len(lines) == 2
    for epoch, line in enumerate(lines):
        assert re.fullmatch(every.format(epoch), line)


@pytest.mark.daily
@needs_lightning
def test_the_example_by_length_with_lightning(tmp_path):
    done = run_job(EXAMPLES / "lightning_lengths.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *epochs, most = [
        line for line in done.stdout.splitlines() if line.startswith(("epoch", "batches"))
    ]
    for epoch, line in enumerate(epochs):
        assert re.fullmatch(
            rf"epoch {epoch}: \[(\d+), \1\] steps on the ranks, each text once", line
        )
    assert len(epochs) == 2
    assert int(re.fullmatch(r"batches of up to (\d+) tokens", most)[1]) <= 512
