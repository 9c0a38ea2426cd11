"""Reading ahead with threads: the same batches, errors and random draws as without, and nothing
left behind.
"""

import gc
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import assert_same
from torch.utils.data import DataLoader, Subset, default_collate

from torch_tfrecord import (
    CorruptRecordError,
    FixedLenFeature,
    PaddedCollate,
    ParseError,
    Text,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    build_index,
    encode_example,
    make_dataloader,
)
from torch_tfrecord.loading import ReadAheadLoader

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)

NUM_RECORDS = 40
FEATURES = {
    "n": FixedLenFeature((), torch.int64),
    "ids": VarLenFeature(torch.int64),
    "name": FixedLenFeature((), bytes),
}


def write(path, payloads):
    with TFRecordWriter(path, write_index=True) as writer:
        for payload in payloads:
            writer.write(payload)
    return str(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    records = [{"n": n, "ids": torch.arange(n % 4), "name": b"%d" % n} for n in range(NUM_RECORDS)]
    return write(tmp_path_factory.mktemp("ahead") / "a", records)


def numbers(loader):
    return [batch["n"].tolist() for batch in loader]


def our_threads():
    return [
        thread for thread in threading.enumerate() if thread.name.startswith("tfrecord-read-ahead")
    ]


@pytest.fixture(autouse=True)
def _no_thread_stays():
    yield
    gc.collect()
    end = time.monotonic() + 30
    while our_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert our_threads() == []


def draw(sample):
    """A transform that draws from every global random state."""
    return {
        "n": sample["n"],
        "drawn": torch.rand(()),
        "np": torch.tensor(np.random.random()),
        "py": torch.tensor(random.random()),
        "thread": threading.get_ident(),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_threads", "options"),
    [
        (1, {}),
        (5, {}),
        (2, {"label_key": "n"}),
        (5, {"collate_fn": PaddedCollate()}),
        (2, {"transform": dict}),
    ],
)
def test_the_same_batches_as_without_threads(path, num_threads, options):
    plain = make_dataloader(path, 7, FEATURES, num_epochs=2, num_threads=0, **options)
    loader = make_dataloader(path, 7, FEATURES, num_epochs=2, num_threads=num_threads, **options)
    assert isinstance(loader, DataLoader)
    assert (len(loader), loader.num_threads, loader.num_workers) == (12, num_threads, 0)
    for _ in range(2):
        for got, expected in zip(loader, plain, strict=True):
            assert_same(got, expected)


def test_transforms_draw_in_this_thread_in_order(path):
    drawn = []
    for num_threads in (0, 3):
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(0)
        loader = make_dataloader(path, 7, FEATURES, transform=draw, num_threads=num_threads)
        batches = list(loader)
        assert {ident for batch in batches for ident in batch["thread"].tolist()} == {
            threading.get_ident()
        }
        drawn.append(
            [batch[key].tolist() for batch in batches for key in ("n", "drawn", "np", "py")]
        )
    assert drawn[0] == drawn[1]


def test_the_users_collate_fn_runs_in_this_thread(path):
    threads = []

    def join(samples):
        threads.append(threading.get_ident())
        return default_collate([sample["n"] for sample in samples])

    found = [
        batch.tolist()
        for batch in make_dataloader(path, 7, FEATURES, shuffle=False, collate_fn=join)
    ]
    assert list(itertools.chain.from_iterable(found)) == list(range(NUM_RECORDS))
    assert set(threads) == {threading.get_ident()}


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 4])
def test_reads_a_bounded_number_of_batches_ahead(path, most, monkeypatch):
    begun = []
    load = TFRecordDataset._load_batches
    monkeypatch.setattr(
        TFRecordDataset,
        "_load_batches",
        lambda ds, batches: begun.extend(batches) or load(ds, batches),
    )
    monkeypatch.setattr("torch_tfrecord.loading.read_ahead._MOST_BATCHES", most)
    monkeypatch.setattr("torch_tfrecord.loading.read_ahead.thread_time", lambda: 0)
    running = iter(make_dataloader(path, 1, FEATURES, num_threads=2))
    assert begun == []  # nothing before the first batch is asked for
    for taken in range(1, 12):
        next(running)
        time.sleep(0.02)
        assert taken <= len(begun) <= taken + 4 * most - 2
    assert (most == 1) == (len(begun) <= 13)


def test_what_a_sampler_gave_before_it_failed_is_not_lost(path):
    class Failing:
        def __iter__(self):
            yield from ([number] for number in range(9))
            raise RuntimeError("no more")

    loader = ReadAheadLoader(
        TFRecordDataset(path, FEATURES), batch_sampler=Failing(), num_threads=2
    )
    running, found = iter(loader), []
    while len(found) < 10:
        try:
            found.append(int(next(running)["n"][0]))
        except RuntimeError as error:
            found.append(str(error))
        except StopIteration:
            break
    assert sorted(map(str, found)) == [*map(str, range(9)), "no more"]
    assert [value for value in found if value != "no more"] == [*range(9)]


def test_a_task_may_load_only_its_first_batches(path, monkeypatch):
    """A dataset does so where they are much larger than usual."""
    load, sizes = TFRecordDataset._load_batches, []

    def load_half(ds, batches):
        sizes.append(len(batches))
        return load(ds, batches[: -(-len(batches) // 2)])

    monkeypatch.setattr(TFRecordDataset, "_load_batches", load_half)
    monkeypatch.setattr("torch_tfrecord.loading.read_ahead.thread_time", lambda: 0)
    for dataset in (
        TFRecordDataset(path, FEATURES),
        Subset(TFRecordDataset(path, FEATURES), range(40)),
    ):
        loader = make_dataloader(dataset, 1, shuffle=False, num_threads=2)
        assert numbers(loader) == [[n] for n in range(NUM_RECORDS)]
        assert max(sizes) > 1


def test_threads_start_none_of_torchs(path, monkeypatch):
    """torch gives the number that was set last to threads that begin later: not ours to the user's."""
    seen = []
    load = TFRecordDataset._load_batches

    def look(ds, batches):
        seen.append(torch.get_num_threads())
        return load(ds, batches)

    monkeypatch.setattr(TFRecordDataset, "_load_batches", look)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert len(list(make_dataloader(path, 4, FEATURES, num_threads=4))) == 10
        assert set(seen) == {1}
        assert torch.get_num_threads() == 3
        found = []  # a thread of ours that no batch was left for may begin only now
        while found[-1:] != [3] and len(found) < 100:
            with ThreadPoolExecutor(1) as executor:
                found.append(executor.submit(torch.get_num_threads).result())
            time.sleep(0.01)
        assert found[-1] == 3
    finally:
        torch.set_num_threads(before)


def test_errors_come_at_their_batch_and_it_goes_on(tmp_path):
    path = write(
        tmp_path / "a",
        [encode_example({"n": number if number != 5 else 1.5}) for number in range(12)],
    )
    data = bytearray((tmp_path / "a").read_bytes())
    offset = int(build_index(path).offsets[8])
    data[offset + 15] ^= 1
    (tmp_path / "a").write_bytes(data)
    build_index(path, verify_crc=False).save(f"{path}.index.safetensors")
    running = iter(make_dataloader(path, 2, {"n": FEATURES["n"]}, shuffle=False, num_threads=3))
    assert [next(running)["n"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(ParseError, match=f"^{path}: record 5 at byte "):
        next(running)
    assert next(running)["n"].tolist() == [6, 7]
    with pytest.raises(CorruptRecordError, match=f"^{path}: record 8 at byte {offset}: "):
        next(running)
    assert next(running)["n"].tolist() == [10, 11]
    with pytest.raises(StopIteration):
        next(running)
    with pytest.raises(StopIteration):
        next(running)


@pytest.mark.parametrize("leave", [StopIteration, RuntimeError, KeyboardInterrupt])
def test_leaving_early_ends_the_threads(path, leave):
    loader = make_dataloader(path, 1, FEATURES, num_threads=3)
    try:
        for count, _ in enumerate(loader):
            assert our_threads()
            if count == 2:
                raise leave
    except leave:
        pass  # the fixture looks for threads
    assert len(numbers(loader)) == NUM_RECORDS


def test_two_iterations_at_once_and_one_inside_another(path):
    loader = make_dataloader(path, 10, FEATURES, shuffle=False)
    assert [outer["n"][0] + inner["n"][0] for outer in loader for inner in loader] == [
        first + second for first in range(0, 40, 10) for second in range(0, 40, 10)
    ]
    first, second = iter(loader), iter(loader)
    assert numbers(zip_first(first, second)) == numbers(zip_first(loader, loader))


def zip_first(one, two):
    for left, right in zip(one, two, strict=True):
        assert torch.equal(left["n"], right["n"])
        yield left


@pytest.mark.slow
def test_a_fork_in_the_middle(path):
    running = iter(make_dataloader(path, 4, FEATURES, shuffle=False, num_threads=2))
    next(running)
    child = os.fork()
    if not child:  # continues by itself, with threads of its own
        right = False
        try:
            right = numbers(running) == [
                list(range(low, low + 4)) for low in range(4, NUM_RECORDS, 4)
            ]
        finally:
            os._exit(0 if right else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert numbers(running)[-1] == [36, 37, 38, 39]


ENDINGS = {
    "exit in the middle": "next(running)",
    "an error": "next(running); raise SystemExit(3)",
    "left in a global": "batches = [next(running) for _ in range(3)]",
    "exit from the middle of a loop": "\nfor batch in running: sys.exit(0)",
}


@pytest.mark.daily
def test_the_interpreter_ends(path):
    """In a fork for each ending: importing takes longer."""
    code = (
        "import os, sys, torch\nfrom torch_tfrecord import *\nmake_dataloader\n"
        f"for ending in {[*ENDINGS.values()]!r}:\n"
        "    if not os.fork():\n"
        f"        running = iter(make_dataloader({path!r}, 1, num_threads=3, num_epochs=None))\n"
        "        exec(ending)\n"
        "        sys.exit()\n"
        "    print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    command = [sys.executable, "-W", "error", "-W", "ignore:This process", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    codes = ["3" if ending == "an error" else "0" for ending in ENDINGS]
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, codes, "")


@pytest.mark.daily
def test_an_interrupt_ends_an_endless_loop(path):
    code = (
        "import signal, sys, torch\nfrom torch_tfrecord import *\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"for number, batch in enumerate(make_dataloader({path!r}, 1, num_threads=3, num_epochs=None)):\n"
        "    if number == 5: print('running', flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "running\n"
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=250)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert child.returncode in (-signal.SIGINT, 1)


def test_an_interrupt_ends_the_threads_and_the_iteration(path, monkeypatch):
    running = iter(make_dataloader(path, 4, FEATURES, num_threads=2))
    next(running)
    monkeypatch.setattr(Future, "result", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(running)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="was interrupted: begin a new one"):
        next(running)
    for thread in our_threads():  # though `running` lives on
        thread.join(120)
    assert our_threads() == []


def raise_interrupt(future, timeout=None):
    raise KeyboardInterrupt


def test_global_random_states_stay(path, random_states_untouched):
    numbers(make_dataloader(path, 4, FEATURES))


@pytest.mark.slow
def test_workers_go_without_threads(path):
    loader = make_dataloader(path, 4, FEATURES, shuffle=False, num_workers=1, num_threads=2)
    assert list(itertools.chain.from_iterable(numbers(loader))) == list(range(NUM_RECORDS))
    assert our_threads() == []


@pytest.mark.parametrize("num_threads", [-1, "2", 1.5])
def test_wrong_numbers_of_threads(path, num_threads):
    with pytest.raises((TypeError, ValueError)):
        make_dataloader(path, 4, FEATURES, num_threads=num_threads)


WORDS = {"ids": VarLenFeature(bytes), "name": FixedLenFeature((), bytes), "n": FEATURES["n"]}


@pytest.mark.parametrize(
    ("features", "size", "expected"),
    [
        (FEATURES, 10, 3),
        (WORDS, 10, 2),  # small objects keep the lock
        (WORDS, 10_000, 3),
        (None, 10, 2),
        (None, 10_000, 3),
        ({**WORDS, "text": Text(), "a": FEATURES["n"]}, 10, 2),
        ({"name": WORDS["name"], "n": FEATURES["n"]}, 10, 3),
    ],
)
def test_threads_that_pay(tmp_path, monkeypatch, features, size, expected):
    """A rule from the features, the same in each run."""
    monkeypatch.setattr("torch_tfrecord.loading.map_dataset.has_native", lambda: True)
    monkeypatch.setattr("torch_tfrecord.loading.map_dataset.num_processors", lambda: 3)
    dataset = TFRecordDataset(write(tmp_path / "a", [bytes(size)] * 4), features)
    for each in (dataset, Subset(dataset, [1, 2])):
        assert ReadAheadLoader(each).num_threads == expected
    assert make_dataloader(dataset, 2).num_threads == expected
    assert make_dataloader(dataset, 2, num_threads=2).num_threads == 2


@pytest.fixture
def cores(monkeypatch, path):
    """Says which cores each process may use: this one, the one that started it, and others."""
    own, starter = set(range(64)), set(range(64))
    monkeypatch.setattr("torch_tfrecord.loading.map_dataset.has_native", lambda: True)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    of = {0: own, os.getpid(): own, os.getppid(): starter}
    monkeypatch.setattr(os, "sched_getaffinity", of.__getitem__, raising=False)
    dataset = TFRecordDataset(path, {"n": FEATURES["n"]})
    return own, starter, lambda: ReadAheadLoader(dataset).num_threads


def test_torchruns_ranks_divide_what_they_share(monkeypatch, cores):
    own, starter, usual_num_threads = cores
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert usual_num_threads() == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    assert usual_num_threads() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    own -= {*range(32, 64)}  # two ranks each are bound to one half of the cores
    assert usual_num_threads() == 16
    own -= {*range(16, 32)}  # each to its own
    assert usual_num_threads() == 16
    own -= {*range(5, 16)}  # others are left free
    assert usual_num_threads() == 5
    own |= {*range(16)}
    starter -= {*range(16, 64)}  # all of the job or container are
    assert usual_num_threads() == 4
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # macOS
    assert usual_num_threads() == 16


def test_a_groups_ranks_divide_what_they_share(monkeypatch, cores):
    own, _, usual_num_threads = cores
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr("torch_tfrecord.order.ranks.in_process_group", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 16, raising=False)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    assert usual_num_threads() == 4
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)  # on two machines
    assert usual_num_threads() == 8
    own -= {*range(16, 64)}  # bound, as by srun
    assert usual_num_threads() == 16


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux's")
def test_a_rank_that_is_bound_to_its_own_core():
    """By real processes: two ranks, one of them bound."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    code = (
        "import os; from torch_tfrecord.order.ranks import Rank; print(Rank.num_on_host());"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); print(Rank.num_on_host())"
    )
    environment = {**os.environ, "LOCAL_WORLD_SIZE": "2"}
    found = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert found.split() == ["2", "1"]


@pytest.mark.daily
@pytest.mark.parametrize(
    "options", [{"num_workers": 2, "persistent_workers": True}, {"num_threads": 2}]
)
def test_memory_stays_flat_over_20_epochs(tmp_path, options):
    path = write(
        tmp_path / "a", ({"x": torch.full((100,), n), "name": b"n" * 500} for n in range(20_000))
    )
    # A process of its own: what other tests have left behind grows, too.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        resident = executor.submit(resident_bytes, path, options).result()
    # 20,000 records of 1.3 KB: keeping them, or an object of 50 bytes for each and epoch, would
    # take more than that.
    assert resident[-1] - resident[4] < 8 << 20, resident


def resident_bytes(path, options):
    """After each of 20 epochs, with the workers'."""
    sys.modules[
        "torch_tfrecord.loading.read_ahead"
    ]._MOST_BATCHES = 4  # else what is ready differs by as much as the file has
    features = {"x": FixedLenFeature((100,), torch.int64), "name": FixedLenFeature((), bytes)}
    loader = make_dataloader(path, 256, features, **options)
    resident = []
    for _ in range(20):
        processes = set()
        for count, _ in enumerate(loader):
            if count == 40 and options.get("num_workers"):
                processes = set(children())
        resident.append(sum(map(private_bytes, [os.getpid(), *processes])))
    return resident


def children():
    return [
        int(number)
        for number in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ]


def private_bytes(pid):
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(lines["RssAnon"].split()[0]) << 10
