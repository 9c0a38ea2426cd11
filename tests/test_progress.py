"""The progress bar: on a terminal alone, and never in the way of a process that lives."""

import io
import multiprocessing
import os
import signal

import pytest
from tqdm import tqdm

from torch_tfrecord.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal():
    out = Terminal()
    assert list(ProgressBar(range(3), "indexing", unit="file", file=out, mininterval=0)) == [
        0,
        1,
        2,
    ]
    assert "indexing: 100%" in out.getvalue()
    assert "3/3" in out.getvalue()


def test_elsewhere_nothing_is_shown():
    out = io.StringIO()
    assert list(ProgressBar(range(3), "indexing", file=out)) == [0, 1, 2]
    assert out.getvalue() == ""


def _hold_tqdms_lock(held):
    with tqdm.get_lock():
        held.set()
        signal.pause()


def _index():
    list(ProgressBar(range(3)))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_process_that_was_killed_with_tqdms_lock_stops_no_other():
    context = multiprocessing.get_context("fork")
    held = context.Event()
    # In a process of its own, since the lock is lost for this one and its children, too.
    pid = os.fork()
    if pid == 0:
        tqdm.set_lock(type(tqdm.get_lock())())
        killed = context.Process(target=_hold_tqdms_lock, args=(held,))
        killed.start()
        held.wait(20)
        killed.kill()
        killed.join()
        other = context.Process(target=_index)
        other.start()
        other.join(120)
        code = other.exitcode
        other.kill()
        os._exit(0 if code == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
