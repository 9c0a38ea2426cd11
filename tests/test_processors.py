import os

from torch_tfrecord.processors import num_processors


def test_those_of_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert num_processors() == 3


def test_all_where_the_system_does_not_say(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert num_processors() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_processors() == 1
