"""The cache of remote files: right bytes whatever happens, never above its cap, and worth its
space.

Covers files/access.
"""

import contextlib
import fcntl
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from disk_cache_job import SIZES, DiskCache, FileRange, Storage, folder_bytes, read_through
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_tfrecord.remote import cache_info

JOB = Path(__file__).with_name("disk_cache_job.py")
ENOUGH = 8_000_000
CACHE = "torch_tfrecord.remote.disk_cache"
STATE_NAME = "torch_tfrecord.cache"
LEAST_BYTES = 1 << 14


@pytest.fixture(autouse=True)
def small_sectors(monkeypatch):
    """As if these files were a hundred times larger."""
    monkeypatch.setattr(f"{CACHE}._SECTOR_BYTES", 4092)


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture
def storage():
    return Storage(SIZES)


def records(storage, size=10_016):
    return [
        FileRange(file, at, min(at + size, file.size))
        for file in storage.files
        for at in range(0, file.size, size)
    ]


def epoch(storage, cache, seed=None, batch=16):
    """Read all of it once; the bytes that were fetched, as a share of it."""
    ranges = records(storage)
    if seed is not None:
        random.Random(seed).shuffle(ranges)
    for at in range(0, len(ranges), batch):
        storage.check(cache, ranges[at : at + batch])
    return storage.fetched_bytes() / sum(file.size for file in storage.files)


@pytest.mark.daily
@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=3),
    cap=st.integers(LEAST_BYTES, 200_000),
    seed=st.integers(0, 1 << 30),
    versions=st.integers(1, 3),
)
def test_ranges(tmp_path_factory, sizes, cap, seed, versions):
    folder = tmp_path_factory.mktemp("cache")
    rng = random.Random(seed)
    storages = [Storage(sizes, str(version)) for version in range(versions)]
    for _ in range(3):
        cache = DiskCache(folder, cap)
        for _ in range(8):
            storage = rng.choice(storages)
            storage.check(
                cache, storage.some(rng, rng.randrange(8), most=rng.choice([10, 3000, 40_000]))
            )
            assert folder_bytes(folder) <= cap


def test_all_that_is_missing_is_fetched_together_and_joined(folder, storage):
    cache = DiskCache(folder, ENOUGH)
    calls = []

    def fetch(ranges):
        calls.append([(one.file.path[-1], one.begin, one.end) for one in ranges])
        return storage.fetch(ranges)

    first, second = storage.files[:2]
    wanted = [
        FileRange(second, 5000, 5001),
        FileRange(first, 16_000, 17_000),
        FileRange(first, 0, 100),
        FileRange(second, 5000, 7000),
    ]
    assert list(map(bytes, read_through(cache, wanted, fetch))) == list(
        map(storage.bytes_of, wanted)
    )
    assert sorted(calls[0]) == [("0", 0, 4092), ("0", 12276, 20460), ("1", 4092, 8184)]
    assert (
        read_through(
            cache, [FileRange(first, 13_000, 20_460), FileRange(second, 6000, 6000)], fetch
        )[1]
        == b""
    )
    assert len(calls) == 1


def test_a_sector_that_another_batch_fetches_is_not_fetched_whole_again(
    folder, storage, monkeypatch
):
    cache = DiskCache(folder, ENOUGH)
    one, other = (FileRange(storage.files[0], 5000 + at, 5100 + at) for at in (0, 200))
    first, finish_first = cache.start([one])
    second, finish_second = cache.start([other])
    assert [tuple(missing[0][1:]) for missing in (first, second)] == [(4092, 8184), (5200, 5300)]
    for wanted, missing, finish in ((other, second, finish_second), (one, first, finish_first)):
        assert bytes(finish(storage.fetch(missing))[0]) == storage.bytes_of(wanted)
    assert cache.start([one, other])[0] == []
    # One that is never finished is fetched by others, in a while.
    dropped = FileRange(storage.files[1], 0, 10)
    assert cache.start([dropped])[0][0].end == 4092
    assert cache.start([dropped])[0][0].end == 10
    monkeypatch.setattr(
        f"{CACHE}.time", SimpleNamespace(monotonic=lambda: time.monotonic() + 60, time=time.time)
    )
    assert cache.start([dropped])[0][0].end == 4092


# Versions and groups.


@pytest.mark.slow
def test_a_changed_file_is_fetched_again_and_its_old_blocks_go_first(folder):
    old, new = Storage(SIZES, "1"), Storage(SIZES, "2")
    cache = DiskCache(folder, sum(SIZES) // 2)
    epoch(old, cache)
    assert epoch(new, cache) == pytest.approx(1, abs=0.01)
    assert epoch(new, cache) < 0.56
    assert epoch(old, DiskCache(folder)) >= 1  # nothing of it is left to be taken for what it was


@pytest.mark.slow
def test_data_that_nobody_reads_gives_way_and_what_is_in_use_does_not(folder, monkeypatch):
    a, b = Storage(SIZES, path="s3://a"), Storage(SIZES, path="s3://b")
    cap = sum(SIZES) * 11 // 20
    of_a, of_b = DiskCache(folder, cap, group="a"), DiskCache(folder, cap, group="b")
    epoch(a, of_a)
    assert epoch(b, of_b) > 0.99
    assert epoch(b, of_b) > 0.9  # it has the room that was left
    assert epoch(a, of_a) < 0.51
    now = time.time()
    monkeypatch.setattr(f"{CACHE}._LOOK_SECONDS", -1.0)
    monkeypatch.setattr(time, "time", lambda: now + 601)
    of_b = DiskCache(folder, cap, group="b")
    epoch(b, of_b)
    assert epoch(b, of_b) < 0.5
    assert epoch(a, DiskCache(folder, cap, group="a")) > 0.9


# The cap.


@pytest.mark.slow
def test_the_cap_that_was_given_last_holds(folder, storage):
    first = DiskCache(folder, 3_000_000)
    epoch(storage, first)
    second = DiskCache(folder, 1_000_000)
    with pytest.warns(UserWarning, match=r"cache: emptied, as it had 2\d{6} bytes and .* 1000000;"):
        epoch(storage, second)
    for cache in (first, second, DiskCache(folder)):
        epoch(storage, cache)
        assert cache_info(folder).max_bytes == 1_000_000
        assert folder_bytes(folder) <= 1_000_000
    only = DiskCache(folder, 5_000_000)
    epoch(storage, only)
    assert cache_info(folder).max_bytes == 5_000_000
    assert epoch(storage, only) == 0


def test_without_a_cap_it_is_a_tenth_of_the_free_space(folder, storage, monkeypatch):
    disk = SimpleNamespace(free=50_000_000, total=100_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
    epoch(storage, DiskCache(folder))
    assert cache_info(folder).max_bytes == 5_000_000


# What may happen to the files.


def copies(folder):
    return sorted(path for path in Path(folder).rglob("*/*") if path.is_file())


def test_every_bit_of_a_copy_is_under_a_checksum(folder):
    storage = Storage([3000])
    wanted = [FileRange(storage.files[0], 0, 3000)]
    storage.check(DiskCache(folder, ENOUGH), wanted)
    (path,) = copies(folder)
    content = path.read_bytes()
    for at in (*range(0, 3000, 397), *range(3000, len(content))):
        for bit in range(8):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
            cache, storage.asked = DiskCache(folder, ENOUGH), []
            storage.check(cache, wanted)
            assert storage.asked, at


@pytest.mark.parametrize("length", [0, 16, 4096, 100_000, 9_000_000])
def test_a_file_that_was_cut_or_grew(folder, storage, length):
    cache = DiskCache(folder, ENOUGH)
    epoch(storage, cache)
    for path in (*copies(folder)[:2], Path(folder, STATE_NAME)):
        os.truncate(path, length)
    epoch(storage, cache)
    del cache
    cache = DiskCache(folder, ENOUGH)
    epoch(storage, cache)
    assert epoch(storage, cache) == 0
    assert folder_bytes(folder) <= ENOUGH


def test_sectors_that_go_after_they_were_checked_are_fetched_alone(folder, storage):
    cache = DiskCache(folder, ENOUGH)
    epoch(storage, cache)
    assert epoch(storage, cache) == 0
    gone, cut = copies(folder)[:2]
    gone.unlink()
    os.truncate(cut, 100)
    storage.fetched_bytes()
    assert epoch(storage, cache) == 2 * 4092 / sum(SIZES)
    assert epoch(storage, cache) == 0


@pytest.mark.parametrize("content", [b"precious" * 10_000, b"p", bytes(100_000), b"tfrecord"])
def test_another_file_in_its_place_is_left_alone(folder, storage, content):
    os.mkdir(folder)
    Path(folder, STATE_NAME).write_bytes(content)
    text = f"{STATE_NAME}: expected nothing or a cache, got another file.*: remote data is read, but no more of it"
    with pytest.warns(UserWarning, match=text):
        assert epoch(storage, DiskCache(folder, ENOUGH)) == 1
    for clears in (False, True):
        with pytest.raises(FileExistsError, match="got another file"):
            cache_info(folder, clears=clears)
    assert Path(folder, STATE_NAME).read_bytes() == content


@pytest.mark.parametrize("how", ["clear", "remove"])
def test_cleared_while_it_is_used(folder, storage, how, monkeypatch):
    monkeypatch.setattr(f"{CACHE}._LOOK_SECONDS", 0.0)
    cache = DiskCache(folder, ENOUGH)
    epoch(storage, cache)
    if how == "clear":
        cache_info(folder, clears=True)
        assert os.listdir(folder) == []
        assert cache_info(folder) is None
    else:
        os.unlink(os.path.join(folder, STATE_NAME))
    assert epoch(storage, cache) == (how == "clear")  # what is there without it is good
    assert epoch(storage, cache) == 0
    assert cache_info(folder).num_files == len(SIZES)


# Who may see it, and what it says.


def test_it_is_the_users_alone_and_names_nothing(tmp_path):
    folder = tmp_path / "a" / "cache"
    secret = Storage([50_000], path="https://me:password@host/secret?token=abcdef")
    cache = DiskCache(folder, 1_000_000, group="https://me:password@host")
    secret.check(cache, [FileRange(secret.files[0], 0, 50_000)])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 1 + -(-50_000 // 4092)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    content = b"".join(path.read_bytes() + bytes(path) for path in files)
    content = content.replace(secret.contents[secret.files[0]], b"")
    for word in (b"password", b"secret", b"token", b"abcdef", b"host"):
        assert word not in content
        assert word not in repr(cache).encode()


def test_a_link_in_its_place(folder, storage, tmp_path):
    os.mkdir(folder)
    target = tmp_path / "other"
    target.write_bytes(b"precious")
    os.symlink(target, os.path.join(folder, STATE_NAME))
    with pytest.warns(UserWarning, match="remote data is read, but no more of it is cached"):
        storage.check(DiskCache(folder, ENOUGH), records(storage)[:3])
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_file_with_a_second_name_in_its_place(folder, storage, tmp_path, is_ours):
    target = tmp_path / "other"
    if is_ours:  # a snapshot that a backup keeps
        epoch(storage, DiskCache(folder, ENOUGH))
        os.link(os.path.join(folder, STATE_NAME), target)
    else:
        os.mkdir(folder)
        target.touch()
        os.link(target, os.path.join(folder, STATE_NAME))
    before = target.read_bytes()
    with pytest.warns(UserWarning, match=f"{STATE_NAME}: expected a cache, got .* a second name"):
        storage.check(DiskCache(folder, ENOUGH * 2), records(storage)[:3])
    assert target.read_bytes() == before


def test_a_folder_that_cannot_be_one(tmp_path, storage):
    (tmp_path / "file").write_bytes(b"")
    cache = DiskCache(tmp_path / "file" / "cache", ENOUGH)
    with pytest.warns(
        UserWarning, match=r"/cache: Not a directory: remote data is read, but"
    ) as caught:
        assert epoch(storage, cache) == 1
    assert len(caught) == 1
    assert caught[0].filename == str(JOB)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_somebody_elses_file_is_not_believed(folder, storage):
    epoch(storage, DiskCache(folder, ENOUGH))
    os.chown(os.path.join(folder, STATE_NAME), 12345, -1)
    with pytest.warns(UserWarning, match="expected a file of this user's, got somebody else's"):
        assert epoch(storage, DiskCache(folder, ENOUGH)) == 1


def test_a_disk_with_little_left(folder, storage, monkeypatch):
    cache = DiskCache(folder, ENOUGH)
    storage.check(cache, records(storage)[:16])
    disk = SimpleNamespace(free=100, total=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
    monkeypatch.setattr(f"{CACHE}._LOOK_SECONDS", -1.0)
    with pytest.warns(UserWarning, match="the disk is nearly full, 100 bytes are left") as caught:
        assert epoch(storage, cache) > 0.8
    assert len(caught) == 1
    disk.free = 500_000  # there is room again
    epoch(storage, cache)
    assert epoch(storage, cache) == 0


@pytest.mark.slow
def test_a_full_disk(tmp_path):
    command = f"mount -t tmpfs -o size=4m tmpfs '{tmp_path}' && exec '{sys.executable}' '{JOB}' full '{tmp_path}/cache'"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("may not make a namespace for mounts")
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr


# Processes and threads.


def test_forked_while_it_is_used(folder, storage):
    cache = DiskCache(folder, ENOUGH)
    epoch(storage, cache)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                status = 0 if epoch(storage, cache) == 0 else 2
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert epoch(storage, cache) == 0


@pytest.mark.daily
def test_threads(folder):
    storages = [Storage(SIZES, str(number)) for number in range(8)]
    cache = DiskCache(folder, sum(SIZES))
    failed = []

    def read(storage, seed):
        rng = random.Random(seed)
        try:
            for _ in range(30):
                storage.check(cache, storage.some(rng, 8))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(storages[i % 2], i)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_all_that_threads_read_first_is_kept(folder, storage):
    cache, ranges = DiskCache(folder, ENOUGH), records(storage)
    threads = [
        threading.Thread(target=read_through, args=(cache, ranges[number::8], storage.fetch))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    storage.fetched_bytes()
    assert epoch(storage, cache) == 0


def test_a_lock_that_somebody_keeps(folder, storage, monkeypatch):
    monkeypatch.setattr(f"{CACHE}._LOCK_SECONDS", 0.05)
    cache = DiskCache(folder, ENOUGH)
    storage.check(cache, records(storage)[:32])
    fd = os.open(os.path.join(folder, STATE_NAME), os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        storage.fetched_bytes()
        assert 0 < epoch(storage, cache) < 0.9  # what is there is read
        assert epoch(storage, DiskCache(folder, ENOUGH)) == 1
    finally:
        os.close(fd)


def test_killed_in_the_midst_of_a_sector(folder, storage):
    cap = 40 * 4096
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        replace, written = os.replace, []

        def kill(*paths):
            written.append(1)
            if len(written) == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            return replace(*paths)

        os.replace = kill
        with contextlib.suppress(BaseException):
            epoch(storage, DiskCache(folder, cap))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert len(copies(folder)) == 20
    epoch(storage, DiskCache(folder, cap))
    assert len(copies(folder)) == 39  # and a page for what is shared
    assert cache_info(folder).disk_bytes == folder_bytes(folder) == cap


@pytest.mark.daily
@pytest.mark.parametrize(
    "rounds",
    [pytest.param(20, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.daily)],
)
def test_processes_of_which_one_is_killed(folder, rounds):
    command = [sys.executable, JOB, "rounds", folder, "1500000", str(rounds)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.daily
@pytest.mark.parametrize("seed", range(30))
def test_damaged_bytes_are_fetched_again(folder, storage, seed):
    rng = random.Random(seed)
    epoch(storage, DiskCache(folder, ENOUGH))
    path = rng.choice([*copies(folder), Path(folder, STATE_NAME)])
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 50, 5000])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    if path.name == STATE_NAME:
        content[:16] = path.read_bytes()[:16]  # else it is another's file
    path.write_bytes(content)
    epoch(storage, DiskCache(folder, ENOUGH))
    epoch(storage, DiskCache(folder, ENOUGH))
    assert epoch(storage, DiskCache(folder, ENOUGH)) == 0
