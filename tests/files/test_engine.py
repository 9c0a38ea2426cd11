"""Many requests at once: their order, their errors, asking again, and that nobody is kept waiting.

Covers files/engine, files/transfers.
"""

import subprocess
import sys
import threading
import time

import pytest

from torch_tfrecord import CorruptRecordError, RemoteError
from torch_tfrecord.files import engine
from torch_tfrecord.files.access import DEFAULT_ACCESS
from torch_tfrecord.files.engine import Job, Transfer
from torch_tfrecord.files.per_process import PerProcess
from torch_tfrecord.files.store import StoreError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(engine, "_FIRST_WAIT", 0.001)


def transfer(*calls, num_bytes=1):
    return Transfer(
        [Job("memory://x", f"part {number}", num_bytes, call) for number, call in enumerate(calls)],
        DEFAULT_ACCESS,
    )


def failing(times, error, answer="good"):
    """Fails so many times, then answers; and how often it was asked."""
    asked = []

    def call(store, name):
        asked.append(name)
        if len(asked) <= times:
            raise error
        return answer

    return call, asked


def test_answers_in_order():
    calls = [lambda store, name, n=n: (time.sleep(0.001 * (7 * n % 10)), n)[1] for n in range(100)]
    assert transfer(*calls).answers() == list(range(100))
    assert transfer().answers() == []


def test_they_run_at_once():
    barrier = threading.Barrier(20, timeout=200)
    assert len(set(transfer(*[lambda store, name: barrier.wait()] * 20).answers())) == 20


def test_large_answers_are_handed_out_before_the_last_is_there(monkeypatch):
    monkeypatch.setattr(engine, "_READY_BYTES", 100)
    hold = threading.Event()
    arrived = transfer(
        lambda store, name: "a", lambda store, name: hold.wait(30) and "b", num_bytes=100
    ).arrived()
    assert next(arrived) == (0, "a")
    hold.set()
    assert list(arrived) == [(1, "b")]


@pytest.mark.parametrize("status", [None, 429, 500, 502, 503, 504])
def test_asked_again(status):
    call, asked = failing(5, StoreError("no", status=status))
    assert transfer(call).answers() == ["good"]
    assert asked == ["/x"] * 6


def test_asked_six_times_at_most():
    call, asked = failing(99, StoreError("status 503", status=503))
    with pytest.raises(RemoteError) as caught:
        transfer(call).answers()
    assert str(caught.value) == "memory://x: part 0: status 503 (6 attempts)"
    assert (caught.value.path, caught.value.status, caught.value.attempts) == ("memory://x", 503, 6)
    assert len(asked) == 6


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            StoreError("status 400", status=400, is_passing=False),
            RemoteError,
            r"memory://x: part 0: status 400 \(1 attempt\)",
        ),
        (
            StoreError("status 403", status=403, is_passing=False),
            PermissionError,
            "the storage forbids it .*memory://x",
        ),
        (PermissionError("no"), PermissionError, "the storage forbids it .*memory://x"),
        (FileNotFoundError("no"), FileNotFoundError, "No such file or directory: 'memory://x'"),
        (
            StoreError("status 416", status=416, is_passing=False),
            CorruptRecordError,
            "got another one in its place",
        ),
        (
            StoreError("status 412", status=412, is_passing=False),
            CorruptRecordError,
            "got another one in its place",
        ),
        (ZeroDivisionError("no"), ZeroDivisionError, "no"),
    ],
)
def test_not_asked_again(error, kind, text):
    call, asked = failing(99, error)
    with pytest.raises(kind, match=text):
        transfer(call).answers()
    assert len(asked) == 1


@pytest.mark.slow
def test_waits_as_long_as_it_is_asked_to():
    call, _ = failing(1, StoreError("status 503", status=503, retry_after=0.3))
    begin = time.monotonic()
    assert transfer(call).answers() == ["good"]
    assert time.monotonic() - begin >= 0.3


def test_the_first_error_ends_the_others():
    begun = []

    def slow(store, name):
        begun.append(1)
        time.sleep(0.01)

    def bad(store, name):
        raise StoreError("status 404", status=410, is_passing=False)

    with pytest.raises(RemoteError, match="part 0"):
        transfer(bad, *[slow] * 5000).answers()
    assert len(begun) < 5000


def test_one_that_is_dropped_is_not_asked_for():
    asked = []
    hold = threading.Event()
    blocking = transfer(*[lambda store, name: hold.wait(30)] * 300)
    dropped = transfer(lambda store, name: asked.append(1))
    del dropped
    hold.set()
    blocking.answers()
    assert transfer(lambda store, name: 1).answers() == [1]
    assert asked == []


def test_one_that_waits_to_ask_again_ends_when_it_is_cancelled(monkeypatch):
    monkeypatch.setattr(engine, "_FIRST_WAIT", 5.0)
    call, asked = failing(99, StoreError("no"))
    waiting = transfer(call)
    while not asked:
        time.sleep(0.001)
    waiting.cancel()
    time.sleep(0.05)
    assert len(asked) == 1


def test_a_number_of_requests_and_of_bytes_is_not_passed(monkeypatch):
    monkeypatch.setattr(engine, "_MOST_BYTES", 300)
    monkeypatch.setattr(engine, "_ENGINE", PerProcess(engine._Engine))
    now, most, lock = [0], [0], threading.Lock()

    def call(store, name):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.005)
        with lock:
            now[0] -= 1

    transfer(*[call] * 20, num_bytes=100).answers()
    assert most[0] == 3
    transfer(*[call] * 3, num_bytes=1000).answers()  # alone, what is larger than all


@pytest.mark.daily
def test_the_end_of_python_does_not_wait():
    code = (
        "import time; from torch_tfrecord.files.engine import Job, Transfer\n"
        "from torch_tfrecord.files.access import DEFAULT_ACCESS\n"
        "asked = []\n"
        "def call(store, name): asked.append(1); time.sleep(600)\n"
        "transfer = Transfer([Job('memory://x', 'it', 1, call)] * 100, DEFAULT_ACCESS)\n"
        "while not asked: time.sleep(0.01)\n"
        "print('end')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
