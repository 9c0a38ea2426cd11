"""The processors that a process may use.

Covers per_process.
"""

import os

import pytest

from torch_tfrecord import per_process
from torch_tfrecord.per_process import num_processors


@pytest.fixture(autouse=True)
def limit(monkeypatch, tmp_path):
    """The file of a container's limit, which is missing at first."""
    monkeypatch.setattr(per_process, "_LIMIT", tmp_path / "cpu.max")
    return tmp_path / "cpu.max"


def test_those_of_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert num_processors() == 3


def test_all_where_the_system_does_not_say(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert num_processors() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_processors() == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000\n", 8), ("400000 100000\n", 4), ("250000 100000\n", 3), ("9900000 100000\n", 8)],
)
def test_no_more_than_a_containers_limit(monkeypatch, limit, text, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    limit.write_text(text)
    assert num_processors() == expected
