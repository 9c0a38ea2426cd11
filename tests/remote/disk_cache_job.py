"""Processes that share a cache; run by test_disk_cache.py."""

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import namedtuple
from importlib import import_module

from torch_tfrecord.remote import STORAGES, cache_info

warnings.simplefilter("error")
DiskCache = STORAGES.cache
RemotePart = namedtuple("RemotePart", "path size etag mtime_ns", defaults=(None, 0))
FileRange = namedtuple("FileRange", "file begin end")
SIZES = [700_001, 300_000, 1_000_000, 12_345]  # bytes of the files


def small_sectors():
    """As if these files were a hundred times larger."""
    import_module("torch_tfrecord.remote.disk_cache")._SECTOR_BYTES = 4092


def read_through(cache, ranges, fetch):
    """The bytes of ranges; what is missing is fetched at once, or nothing."""
    missing, finish = cache.start(ranges)
    return finish(fetch(missing) if missing else ())


class Storage:
    """Remote files of random bytes; counts what is fetched."""

    def __init__(self, sizes, version="1", path="s3://bucket/data"):
        self.files = [RemotePart(f"{path}/{i}", size, version) for i, size in enumerate(sizes)]
        self.contents = {
            file: random.Random(f"{version}/{file.path}").randbytes(file.size)
            for file in self.files
        }
        self.asked = []

    def bytes_of(self, wanted):
        return self.contents[wanted.file][wanted.begin : wanted.end]

    def fetch(self, ranges):
        self.asked += ranges
        assert all(0 <= one.begin < one.end <= one.file.size for one in ranges), ranges
        return [self.bytes_of(one) for one in ranges]

    def fetched_bytes(self):
        asked, self.asked = self.asked, []
        return sum(one.end - one.begin for one in asked)

    def check(self, cache, ranges):
        for wanted, data in zip(ranges, read_through(cache, ranges, self.fetch), strict=True):
            assert bytes(data) == self.bytes_of(wanted), wanted[1:]

    def some(self, rng, number, most=60_000):
        """Random ranges, also empty ones."""
        ranges = []
        for _ in range(number):
            file = rng.choice(self.files)
            begin = rng.randrange(file.size + 1)
            ranges.append(FileRange(file, begin, min(begin + rng.randrange(most), file.size)))
        return ranges


def folder_bytes(folder):
    """What a folder's files take on the disk: at one moment, the end of the first walk, at least so
    much, for a copy grows until it is deleted, and those deleted meanwhile are left out.
    """
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(file := os.path.join(path, name))
                found[file] = status.st_ino, status.st_blocks * 512
    total = 0
    for file, (number, num_bytes) in found.items():
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(file)
            if status.st_ino == number:  # a new file may have got the number: then it is smaller
                total += min(num_bytes, status.st_blocks * 512)
    return total


def work(folder, max_bytes, seed, seconds, versions):
    rng = random.Random(seed)
    storages = [Storage(SIZES, version) for version in versions]
    cache = DiskCache(folder, max_bytes, group=rng.choice(["a", "b"]))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        storage = rng.choice(storages)
        storage.check(cache, storage.some(rng, rng.randrange(1, 20)))


def watch(folder, max_bytes, stopped, seen):
    while not stopped.is_set():
        seen.append(folder_bytes(folder))
        assert seen[-1] <= max_bytes, seen[-1]
        time.sleep(0.0005)


def rounds(folder, max_bytes, number):
    """8 processes on one cache, one of them killed at a random moment, again and again."""
    rng = random.Random(number)
    context = multiprocessing.get_context("fork")
    stopped, seen, failed = threading.Event(), [], []
    os.makedirs(folder, mode=0o700)

    def watching():
        try:
            watch(folder, max_bytes, stopped, seen)
        except BaseException as error:
            failed.append(error)

    for turn in range(number):
        versions = [str(turn // 5), str(turn // 5 + 1)] if turn % 2 else [str(turn // 5)]
        processes = [
            context.Process(target=work, args=(folder, max_bytes, f"{turn} {i}", 0.4, versions))
            for i in range(8)
        ]
        for process in processes:
            process.start()
        # started behind the forks, and ended before the next ones
        watcher = threading.Thread(target=watching)
        watcher.start()
        time.sleep(rng.random() * 0.5)
        victim = rng.choice(processes)
        os.kill(victim.pid, signal.SIGKILL)
        for process in processes:
            process.join(200)
            assert process.exitcode == 0 or (
                process is victim and process.exitcode == -signal.SIGKILL
            ), process
        stopped.set()
        watcher.join()
        stopped.clear()
    assert not failed, failed
    info = cache_info(folder)
    assert len(seen) > 10 * number and max(seen) > max_bytes * 0.9, info
    # The folder is full of what the processes kept, each for one of two data sets.
    caches = [DiskCache(folder, max_bytes, group=group) for group in "ab"]
    num_bytes = num_fetched = 0
    for version in reversed(versions):
        storage = Storage(SIZES, version)
        for cache in caches:
            for _ in range(50):
                ranges = storage.some(rng, 10)
                num_bytes += sum(one.end - one.begin for one in ranges)
                storage.check(cache, ranges)
        num_fetched += storage.fetched_bytes()
    assert num_fetched < num_bytes
    print(f"{len(seen)} samples, at most {max(seen)} of {max_bytes} bytes, {info}")


def full_disk(folder):
    """A disk of 4 MB and a cache of 100: reading continues, with one warning."""
    storage = Storage(SIZES * 4)
    cache = DiskCache(folder, 100_000_000)
    rng = random.Random(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(300):
            storage.check(cache, storage.some(rng, 10))
    texts = [str(one.message) for one in caught]
    assert len(texts) == 1, texts
    assert "remote data is read, but no more of it is cached" in texts[0], texts
    wanted, storage.asked = storage.some(rng, 200), []
    storage.check(cache, wanted)
    assert storage.fetched_bytes() < sum(one.end - one.begin for one in wanted)
    print(texts[0])


if __name__ == "__main__":
    what, folder, *numbers = sys.argv[1:]
    small_sectors()
    {"rounds": rounds, "full": full_disk}[what](folder, *map(int, numbers))
