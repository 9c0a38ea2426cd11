"""A worker that is killed while it sends a batch is named."""

import os
import signal

import pytest
from helpers import framed

from torch_tfrecord import make_dataloader


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "Connection reset by peer"), EOFError()]
)
def test_the_worker_is_named(tmp_path, monkeypatch, error):
    (tmp_path / "a.tfrecord").write_bytes(framed(*[b"abc"] * 20))
    loader = make_dataloader(tmp_path / "a.tfrecord", 2, num_workers=1, index="memory")
    batches = iter(loader)
    next(batches)
    worker = batches._workers[0]

    # as torch does where the connection ends before it has seen that the worker has
    def lose(self):
        os.kill(worker.pid, signal.SIGKILL)
        raise error

    monkeypatch.setattr(type(batches._iterator), "_next_data", lose)
    # torch's own handler of the signal may come first.
    text = rf"DataLoader worker \(pid {worker.pid}\) (is|was) killed by signal"
    with pytest.raises(RuntimeError, match=text):
        next(batches)


def test_other_errors_stay(tmp_path, monkeypatch):
    """And come at once where there is no worker to wait for."""
    (tmp_path / "a.tfrecord").write_bytes(framed(*[b"abc"] * 20))
    batches = iter(make_dataloader(tmp_path / "a.tfrecord", 2, index="memory"))

    def fail(self):
        raise ConnectionResetError("of the storage")

    monkeypatch.setattr(type(batches._iterator), "__next__", fail)
    monkeypatch.setattr("torch_tfrecord.train.record_loader.wait", None)
    with pytest.raises(ConnectionResetError, match="of the storage"):
        next(batches)
