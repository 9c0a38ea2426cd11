"""Many requests at once: their order, their errors, asking again, and that nobody is kept waiting.

Covers remote/transfers.
"""

import subprocess
import sys
import threading
import time

import pytest

from torch_tfrecord import CorruptRecordError, RemoteError
from torch_tfrecord.files import Access
from torch_tfrecord.per_process import PerProcess
from torch_tfrecord.remote import transfers
from torch_tfrecord.remote.store import StoreError
from torch_tfrecord.remote.transfers import Job, Transfer


def transfer(*calls, num_bytes=1):
    return Transfer(
        [Job("memory://x", f"part {number}", num_bytes, call) for number, call in enumerate(calls)],
        Access.DEFAULT,
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


def test_one_that_waits_to_ask_again_ends_with_the_others(monkeypatch):
    monkeypatch.setattr(transfers, "_FIRST_WAIT", 5.0)
    call, asked = failing(99, StoreError("no"))

    def bad(store, name):
        while not asked:
            time.sleep(0.001)
        raise StoreError("status 410", status=410, is_passing=False)

    with pytest.raises(RemoteError, match="status 410"):
        transfer(call, bad).answers()
    time.sleep(0.05)
    assert len(asked) == 1


def are_at_once(expected, number=300, num_bytes=1):
    """Whether exactly so many requests, of more that are wanted, are in flight together."""
    begun, hold = [], threading.Event()
    asked = transfer(
        *[lambda store, name: (begun.append(1), hold.wait(60))] * number, num_bytes=num_bytes
    )
    until = time.monotonic() + 60
    while len(begun) < expected and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.01)  # for one too many
    found = len(begun)
    hold.set()
    asked.answers()
    return found == expected


@pytest.fixture
def new_engine(monkeypatch):
    monkeypatch.setattr(transfers, "_ENGINE", PerProcess(transfers._Engine))


def test_a_number_of_bytes_is_not_passed(monkeypatch, new_engine):
    monkeypatch.setattr(transfers, "_MOST_BYTES", 300)
    assert are_at_once(3, num_bytes=100)
    assert are_at_once(1, num_bytes=1000)  # alone, what is larger than all


@pytest.mark.parametrize("status", [429, 503])
def test_half_as_many_for_a_minute_after_a_refusal(monkeypatch, new_engine, status):
    now = [1000.0]
    monkeypatch.setattr(transfers, "monotonic", lambda: now[0])
    assert are_at_once(128)
    call, _ = failing(1, StoreError("no", status=status))
    assert transfer(call).answers() == ["good"]
    assert are_at_once(64)
    now[0] += 61
    assert are_at_once(128)


def test_what_breaks_is_no_refusal(new_engine):
    call, _ = failing(1, StoreError("no", status=500))
    assert transfer(call).answers() == ["good"]
    assert are_at_once(128)


@pytest.mark.daily
def test_the_end_of_python_does_not_wait():
    code = (
        "import time; from torch_tfrecord.remote.transfers import Job, Transfer\n"
        "from torch_tfrecord.files import Access\n"
        "asked = []\n"
        "def call(store, name): asked.append(1); time.sleep(600)\n"
        "transfer = Transfer([Job('memory://x', 'it', 1, call)] * 100, Access.DEFAULT)\n"
        "while not asked: time.sleep(0.01)\n"
        "print('end')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
