"""An error that was caught keeps no record in memory: it is in no cycle of references."""

import gc
import os
import weakref

import pytest
from helpers import framed

from torch_tfrecord import CorruptRecordError, TFRecordDataset, read_records


@pytest.mark.parametrize("way", ["stream", "position", "batch"])
def test_it_is_released_when_it_was_caught(tmp_path, way):
    path = tmp_path / "x"
    data = bytearray(framed(b"first") + framed(b"second" * 30_000))
    path.write_bytes(data)
    dataset, time = TFRecordDataset(path), path.stat().st_mtime_ns
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(time, time))  # otherwise the index would not fit
    ways = {
        "stream": lambda: list(read_records(path)),
        "position": lambda: dataset[1],
        "batch": lambda: dataset.__getitems__([0, 1]),
    }
    gc.collect()
    gc.disable()
    try:
        try:
            ways[way]()
        except CorruptRecordError as caught:
            error = weakref.ref(caught)
        assert error() is None
    finally:
        gc.enable()
