"""For tests of sounds and videos: files to decode, ways to read them, and what stands for
torchcodec without FFmpeg.
"""

import functools
import importlib
import io
import multiprocessing
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence
from torch.utils.data import DataLoader

from torch_tfrecord import (
    PaddedCollate,
    TFRecordDataset,
    TFRecordIterableDataset,
    collate,
    make_dataloader,
)
from torch_tfrecord.media import media_decoders as decoders

FOLDER = Path(__file__).parents[1] / "data" / "media"


class StandInAudio:
    """An AudioDecoder that opens anything."""

    def __init__(self, data, *, sample_rate=None):
        pass


class StandInVideo:
    """What we use of torchcodec's VideoDecoder, for GIF files."""

    def __init__(self, data, *, num_ffmpeg_threads):
        try:
            with Image.open(io.BytesIO(data.numpy().tobytes())) as gif:
                frames = [np.array(frame.convert("RGB")) for frame in ImageSequence.Iterator(gif)]
        except OSError as error:
            raise RuntimeError(
                f"/src/Decoder.cpp:70, Failed to open input buffer\n{error}"
            ) from error
        self._frames = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)
        height, width = self._frames.shape[2:]
        self.metadata = types.SimpleNamespace(height=height, width=width, average_fps=10.0)

    def __len__(self):
        return len(self._frames)

    def get_frames_at(self, numbers):
        times = torch.tensor(numbers, dtype=torch.float64) / 10
        return types.SimpleNamespace(data=self._frames[numbers], pts_seconds=times)


@functools.cache
def finds_ffmpeg():
    try:
        return decoders._decoders() is not None
    except ImportError:
        return False


def needs_ffmpeg():
    """Skips the test where torchcodec finds no FFmpeg."""
    if not finds_ffmpeg():
        pytest.skip("torchcodec finds no FFmpeg")


@pytest.fixture
def torchcodec(monkeypatch):
    """torchcodec's decoders; stand-ins where it finds no FFmpeg."""
    if not finds_ffmpeg():
        module = types.ModuleType("torchcodec.decoders")
        module.AudioDecoder, module.VideoDecoder = StandInAudio, StandInVideo
        monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
    decoders._decoders.cache_clear()
    yield importlib.import_module("torchcodec.decoders")
    decoders._decoders.cache_clear()


@pytest.fixture
def no_torchcodec(monkeypatch):
    """As if it was not installed."""
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    decoders._decoders.cache_clear()
    yield
    decoders._decoders.cache_clear()


def ways_in(pattern, features, *, num_workers=0, **options):
    """(name, all batches) of each way to read 12 records in batches of 4; workers by the method
    that is the default.
    """
    ds = TFRecordDataset(pattern, features)
    own = {"num_workers": num_workers, **options}
    plain = {"batch_size": 4, **own}
    yield "plain", list(DataLoader(ds, **plain))
    yield "collate", list(DataLoader(ds, collate_fn=collate, **plain))
    yield "padded", list(DataLoader(ds, collate_fn=PaddedCollate(), **plain))
    yield "loader", list(make_dataloader(ds, shuffle=False, **plain))
    if not num_workers:
        yield "threads", list(make_dataloader(ds, shuffle=False, num_threads=2, batch_size=4))
    yield "stream", list(DataLoader(TFRecordIterableDataset(pattern, features), **plain))
    by_batch = TFRecordIterableDataset(pattern, features, batch_size=4)
    yield "stream by batch", list(DataLoader(by_batch, batch_size=None, **own))


def start_methods():
    return [
        method
        for method in ("fork", "forkserver")
        if method in multiprocessing.get_all_start_methods()
    ]
