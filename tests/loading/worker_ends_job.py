"""A trainer whose workers, or which itself, is killed; run by test_worker_ends.py."""

import contextlib
import ctypes
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from torch_tfrecord import collate, shared_memory

warnings.simplefilter("error")
ROWS = 4


class Numbers(Dataset):
    """Row i is all i: 256 KiB."""

    def __len__(self):
        return 100_000

    def __getitem__(self, position):
        return {"x": torch.full((1 << 15,), position)}


def train(loader, until, first=0):
    """Batches until that moment, of which the first has a number; each must be right."""
    kept = []
    for number, batch in enumerate(loader, first):
        kept = [*kept[-3:], (number, batch["x"])]
        for expected, x in kept:
            assert x[:, 100].tolist() == [*range(expected * ROWS, expected * ROWS + ROWS)], (
                expected,
                x[:, 100],
            )
        if time.monotonic() > until:
            return


def loader(num_workers=2):
    return DataLoader(Numbers(), ROWS, num_workers=num_workers, collate_fn=collate)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def mappings():
    return Path("/proc/self/maps").read_text().count("memfd:torch_tfrecord")


def threads_end():
    """Wait for the threads of torch's queues, which end by themselves, a moment later, with what
    they hold open.
    """
    until = time.monotonic() + 30
    while (threads := len(os.listdir("/proc/self/task"))) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    return threads


def kill_workers(rounds):
    """Kill one of two workers at random moments: the trainer says which, and nothing stays."""
    rng = random.Random(5)
    train(loader(), time.monotonic() + 0.2)
    threads_end()
    before = descriptors(), mappings()
    for _ in range(rounds):
        batches = iter(loader())
        next(batches)
        victim = rng.choice(batches._workers)
        killer = os.fork()
        if killer == 0:
            time.sleep(rng.random() * 0.2)
            os.kill(victim.pid, signal.SIGKILL)
            os._exit(0)
        text = ""
        try:
            train(batches, time.monotonic() + 60, 1)
        except RuntimeError as error:
            text = str(error)
        assert f"pid {victim.pid}" in text or f"pid(s) {victim.pid}" in text, text
        # The queue may have told of the worker's end before the signal's handler does, again.
        with contextlib.suppress(RuntimeError):
            os.waitpid(killer, 0)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(killer, 0)
        del batches, victim
    threads_end()
    assert (descriptors(), mappings()) == before
    assert not shared_memory._ATTACHED


def kill_trainers(rounds):
    """Kill trainers at random moments: their workers end by themselves, and nothing stays."""
    # PR_SET_CHILD_SUBREAPER: the workers become children of this process
    ctypes.CDLL(None).prctl(36, 1)
    rng = random.Random(6)
    for _ in range(rounds):
        began, begins = os.pipe()
        trainer = os.fork()
        if trainer == 0:
            batches = iter(loader())
            # of each worker: one that does not know its trainer yet waits for ever (torch's)
            (
                next(batches),
                next(batches),
            )
            os.write(begins, b"x")
            train(batches, time.monotonic() + 60, 2)
            os._exit(1)
        os.read(began, 1)
        os.close(began)
        os.close(begins)
        time.sleep(rng.random() * 0.3)
        os.kill(trainer, signal.SIGKILL)
        assert os.waitpid(trainer, 0)[1] == signal.SIGKILL
    until = time.monotonic() + 60  # workers look every few seconds whether their trainer lives
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
        except ChildProcessError:
            return
    raise AssertionError("expected no process to stay")


def epochs(rounds):
    """Many epochs, some left in the middle: memory, mappings, descriptors and threads stay as they
    were.
    """
    sizes = []
    for number in range(rounds):
        batches = iter(loader())
        for _ in range(30 if number % 2 else 3):
            kept = next(batches)
        del batches, kept
        if number % 10 == 9:
            threads = threads_end()
            status = Path("/proc/self/status").read_text()
            resident = int(status.split("VmRSS:")[1].split()[0])
            sizes.append((descriptors(), mappings(), threads, resident))
    first, last = sizes[0], sizes[-1]
    assert last[:3] == first[:3], sizes
    assert last[3] < first[3] + 20_000, sizes  # KB
    print(sizes)


def large(rounds):
    """Batches that are larger than all of /dev/shm, and kept: they need no room there."""
    free = os.statvfs("/dev/shm")
    assert free.f_bavail * free.f_bsize <= 1 << 26
    rows = DataLoader(Numbers(), 96, num_workers=2, collate_fn=collate)  # 24 MiB
    kept = [batch["x"] for _, batch in zip(range(rounds), rows, strict=False)]
    assert [x[:, 7].tolist() for x in kept] == [
        [*range(96 * n, 96 * n + 96)] for n in range(rounds)
    ]


if __name__ == "__main__":
    {"workers": kill_workers, "trainers": kill_trainers, "epochs": epochs, "large": large}[
        sys.argv[1]
    ](int(sys.argv[2]))
