"""A worker's memory: pieces are used again, never while anybody holds one; it grows, and gives back
what is idle.
"""

import gc
import os
import pickle
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest

from torch_tfrecord import shared_memory
from torch_tfrecord.native import optional_module
from torch_tfrecord.shared_memory import WorkerMemory, attach, worker_memory

native = optional_module("shared")
pytestmark = pytest.mark.skipif(
    native is None or not hasattr(os, "memfd_create"), reason="needs Linux and the compiled core"
)


def array(piece):
    return np.frombuffer(piece, np.uint8)


def received(memory, values):
    """What the receiver of a message sees of an array in the worker's memory."""
    start, offset = memory.send(values.ctypes.data, values.nbytes)
    start, num_bytes = memory.hold(start)
    return np.frombuffer(attach(memory.name, start, num_bytes), np.uint8)[
        offset : offset + values.nbytes
    ]


def mappings():
    return re.findall("memfd:torch_tfrecord", Path("/proc/self/maps").read_text())


@pytest.fixture
def memory():
    gc.collect()
    before = len(mappings())
    made = WorkerMemory()
    yield made
    shared_memory._ATTACHED.pop(made.name.token, None)
    os.close(made.name.fd)
    del made
    gc.collect()
    assert len(mappings()) <= before + 1  # the fixture's own


def test_a_piece_is_used_again_once_nobody_holds_it(memory):
    first = array(memory.piece(100_000))
    address, view = first.ctypes.data, first[5:]
    del first
    other = array(memory.piece(100_000))
    assert other.ctypes.data != address
    del view
    assert array(memory.piece(100_001)).ctypes.data == address


def test_batches_that_grow_and_shrink(memory):
    for size in [1 << 16, 1 << 22, 38_000_000, 1 << 20]:
        for _ in range(600):
            memory.piece(size)
        used = os.fstat(memory.name.fd).st_blocks * 512
        assert used < 2.2 * (size + 4096), size  # the larger ones' memory went back to the system
    assert os.fstat(memory.name.fd).st_blocks * 512 < 4 << 20


def test_the_end_of_a_worker_gives_back_what_nobody_holds(memory):
    kept = received(memory, array(memory.piece(1 << 20)))
    kept[:] = 5
    lost = [memory.piece(1 << 22) for _ in range(4)]
    for piece in lost:
        array(piece)[:] = 1
    del piece, lost
    memory.release()
    assert os.fstat(memory.name.fd).st_blocks * 512 < 2 << 20
    assert (kept == 5).all()


def forked(work):
    """A forked process that does the work when it is told to: its pid, and its socket."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    theirs.settimeout(30)
    child = os.fork()
    if child == 0:
        try:
            theirs.send(b"ready")
            theirs.recv(2)
            theirs.send(b"yes" if work() else b"no")
        finally:
            os._exit(0)
    theirs.close()
    assert ours.recv(5) == b"ready"
    return child, ours


def done(child, ours):
    """What the work came to, once the process has ended."""
    ours.send(b"go")
    found = ours.recv(3) == b"yes"
    ours.close()
    os.waitpid(child, 0)
    return found


def reused(memory, address, count=20):
    """Whether one of several new pieces, written over, is the one at this address."""
    pieces = [array(memory.piece(100_000)) for _ in range(count)]
    for piece in pieces:
        piece[:] = 1
    return address in [piece.ctypes.data for piece in pieces]


@pytest.mark.daily
def test_what_a_forked_process_inherited_is_held_until_it_ends(memory):
    """By the process itself, its own forks, and by more of them than are listed."""
    sent = array(memory.piece(100_000))
    sent[:] = 7
    address, theirs = sent.ctypes.data, [received(memory, sent)]

    def sees_sevens():
        return (theirs[0] == 7).all()

    children = [forked(sees_sevens) for _ in range(70)]
    children.append(forked(lambda: done(*forked(sees_sevens))))
    del sent, theirs[:]
    assert not reused(memory, address)
    assert {done(*child) for child in children} == {True}


@pytest.mark.slow
@pytest.mark.parametrize("end", ["exits", "is killed", "lets go"])
def test_a_forked_process_that_ends_holds_nothing(memory, end):
    theirs = {"part": received(memory, array(memory.piece(100_000)))}
    address = memory._address + memory._blocks[0].start + memory._header_bytes

    def lets_go():
        theirs.clear()
        return True

    child, ours = forked(lets_go)
    del theirs["part"]
    assert not reused(memory, address)
    if end == "is killed":
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ours.close()
    elif end == "exits":
        done(child, ours)
    else:
        ours.send(b"go")
        assert ours.recv(3) == b"yes"  # it lives, or is not waited for yet
    assert reused(memory, address, 50)
    if end == "lets go":
        ours.close()
        os.waitpid(child, 0)


def test_a_system_that_takes_no_memory_back(monkeypatch):
    class Mapping(native.Mapping):
        def forget(self, start, num_bytes):
            raise OSError(22, "Invalid argument")

    before = os.listdir("/proc/self/fd")
    module = types.SimpleNamespace(
        Mapping=Mapping, Piece=native.Piece, HEADER_BYTES=native.HEADER_BYTES
    )
    monkeypatch.setattr(shared_memory, "optional_module", lambda name: module)
    with pytest.raises(OSError, match="Invalid argument"):
        WorkerMemory()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_AS"])
def test_a_system_that_limits_files_or_addresses(limit):
    code = (
        f"import resource; resource.setrlimit(resource.{limit}, (8 << 30, 8 << 30)); "
        "from torch_tfrecord.shared_memory import WorkerMemory; WorkerMemory()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "OSError" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"pid": 1 << 30}, {"fd": 999}, {"token": b"x" * 16}])
def test_a_worker_that_is_gone_is_named(memory, change):
    name = memory.name._replace(**{"token": b"y" * 16, **change})
    with pytest.raises(
        RuntimeError,
        match=rf"DataLoader worker \(pid {name.pid}\) has ended before its batch was received",
    ):
        attach(pickle.loads(pickle.dumps(name)), 4096, 100)


@pytest.mark.slow
def test_memory_outlives_its_worker(tmp_path):
    code = (
        "import sys, pickle, numpy as np\n"
        "from torch_tfrecord.shared_memory import WorkerMemory\n"
        "memory = WorkerMemory()\n"
        "values = np.frombuffer(memory.piece(1 << 20), np.uint8)\n"
        "values[:] = 3\n"
        "start, _ = memory.send(values.ctypes.data, values.nbytes)\n"
        "sys.stdout.buffer.write(pickle.dumps((memory.name, *memory.hold(start)))); sys.stdout.flush()\n"
        "sys.stdin.read()\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    name, start, num_bytes = pickle.load(worker.stdout)
    values = np.frombuffer(attach(name, start, num_bytes), np.uint8)[: 1 << 20]
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdin.close()
    worker.stdout.close()
    assert (values == 3).all()
    another = WorkerMemory()
    piece = array(another.piece(10))
    received(another, piece)
    assert (
        name.token not in shared_memory._ATTACHED
    )  # who is dead is forgotten when the next one comes
    assert (values == 3).all()
    shared_memory._ATTACHED.clear()
    os.close(another.name.fd)


@pytest.mark.slow
def test_a_mapping_knows_its_bounds(memory):
    mapping = memory._mapping
    for call in (
        lambda: native.Piece(mapping, 256, mapping.size - 511),
        lambda: native.Piece(mapping, -256, 10),
        lambda: native.Piece(mapping, 1, 10),
        lambda: native.Piece(mapping, 0, -1),
        lambda: mapping.holders(mapping.size),
        lambda: native.Mapping(memory.name.fd, 0),
        lambda: native.Mapping(memory.name.fd, 4096, -4096),
        lambda: native.Piece(native.Mapping(memory.name.fd, 8192, 4096), 0, 10),
        lambda: native.Piece(native.Mapping(memory.name.fd, 8192, 4096), 4096, 8192 - 255),
    ):
        with pytest.raises(ValueError, match="expected"):
            call()
    with pytest.raises(OSError, match="Bad file descriptor"):
        native.Mapping(999_999, 4096)


@pytest.mark.slow
def test_pieces_are_apart_and_aligned(memory):
    pieces = [array(memory.piece(size)) for size in (1, 65_536, 65_537, 1 << 20, 5)]
    for number, piece in enumerate(pieces):
        piece[:] = number
    assert all((piece == number).all() for number, piece in enumerate(pieces))
    assert all(piece.ctypes.data % 64 == 0 for piece in pieces)


def test_what_was_sent_is_held_until_its_receiver_lets_go(memory):
    sent = array(memory.piece(100_000))
    sent[:] = 7
    address = sent.ctypes.data
    theirs = received(memory, sent)
    assert (
        theirs == 7
    ).all() and theirs.ctypes.data != address  # another mapping of the same memory
    theirs[3] = 9
    assert sent[3] == 9
    del sent
    others = [array(memory.piece(100_000)) for _ in range(100)]
    for other in others:
        other[:] = 1
    assert theirs[3] == 9 and theirs.sum() == 7 * 100_000 + 2
    part = theirs[10:20]
    del theirs, others
    assert all(array(memory.piece(100_000)).ctypes.data != address for _ in range(300))
    del part
    assert address in [
        array(piece).ctypes.data for piece in [memory.piece(100_000) for _ in range(101)]
    ]


def test_nobody_gets_the_same_bytes_twice(memory):
    block = array(memory.piece(100_000))
    address = block.ctypes.data
    start, offset = memory.send(address, 1000)
    assert offset == 0
    assert memory.send(address + 1000, 500) == (start, 1000)
    assert memory.send(address + 1499, 2) is None
    assert memory.send(address, 1) is None
    assert memory.send(address + 99_000, 1000) == (start, 99_000)
    assert memory.send(address + 50_000, 49_001) is None
    assert memory.send(address + 50_000, 49_000) == (start, 50_000)
    del block
    assert memory.send(array(memory.piece(100_000)).ctypes.data, 10) == (
        start,
        0,
    )  # used again, and not sent yet
    elsewhere = np.zeros(10, np.uint8)
    assert memory.send(elsewhere.ctypes.data, 10) is None


@pytest.mark.slow
def test_addresses_are_used_again(memory):
    rng = random.Random(3)
    for _ in range(20_000):
        memory.piece(rng.randrange(1, 1 << rng.randrange(1, 24)))
    assert memory._end < 1 << 31
    kept = [memory.piece(1 << 16) for _ in range(3000)]
    assert len({array(piece).ctypes.data for piece in kept}) == 3000


@pytest.mark.slow
def test_no_memory_is_said_once_and_not_an_end(memory, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.warns(
        RuntimeWarning,
        match=r"cannot allocate 106496 bytes \(No space left on device\).*--shm-size",
    ):
        assert memory.piece(100_000) is None


@pytest.mark.slow
def test_addresses_that_are_used_up(memory):
    memory._end = memory.name.size - 4096
    assert memory.piece(100_000) is None
    assert memory.piece(1000) is not None


def test_only_workers_have_one():
    assert worker_memory() is None


@pytest.mark.slow
def test_threads(memory):
    failures = []

    def work(number):
        for size in range(300):
            piece = array(memory.piece(65_536 + 4096 * (size % 7)))
            piece[:] = number
            theirs = received(memory, piece)
            time.sleep(0)
            if not (theirs == number).all():
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
