"""docs/audio.md and docs/video.md: their programs run, by torchcodec where it finds FFmpeg, else by stand-ins."""

import io
import re
import sys
import types
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="not beside an installed package")


class StandInAudio:
    """What the page uses of torchcodec's AudioDecoder, for the WAV files that it writes."""

    def __init__(self, data, *, sample_rate, num_channels):
        with wave.open(io.BytesIO(data)) as file:
            assert (file.getframerate(), file.getnchannels()) == (sample_rate, num_channels)
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        self._samples, self._rate = torch.from_numpy(samples.astype(np.float32) / 32768)[None], sample_rate

    def get_samples_played_in_range(self, start_seconds, stop_seconds):
        data = self._samples[:, round(start_seconds * self._rate) : round(stop_seconds * self._rate)]
        return types.SimpleNamespace(data=data)


class StandInVideo:
    """What the page uses of torchcodec's VideoDecoder, for the GIF files that it writes."""

    def __init__(self, data):
        frames = [np.array(frame.convert("RGB")) for frame in ImageSequence.Iterator(Image.open(io.BytesIO(data)))]
        self._frames = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)

    def __len__(self):
        return len(self._frames)

    def __getitem__(self, numbers):
        return self._frames[numbers]

    def get_frames_at(self, numbers):
        return types.SimpleNamespace(data=self._frames[numbers])


def finds_ffmpeg():
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "GIF")
    try:
        from torchcodec.decoders import VideoDecoder

        return len(VideoDecoder(file.getvalue())) == 1
    except (ImportError, RuntimeError, OSError):
        return False


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the one program of a page as it stands; gives its names."""
    if not finds_ffmpeg():
        decoders = types.ModuleType("torchcodec.decoders")
        decoders.AudioDecoder, decoders.VideoDecoder = StandInAudio, StandInVideo
        monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoders)
    monkeypatch.chdir(tmp_path)

    def run(page):
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        names = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            exec(program, names)
        return names

    return run


def test_audio(run):
    names = run("audio")
    assert names["losses"][-1] < names["losses"][0] / 10
    assert sorted(len(sample["audio"]) for sample in names["dataset"])[::59] == [800, 1600]  # cut at MAX_SECONDS
    audio, label = names["batch"]["audio"], names["batch"]["label"]
    assert (audio.dtype, len(audio)) == (torch.float32, 20)
    # How often a tone changes its sign in its first 0.1 s tells which one it is.
    crossings = (audio[:, 1:800].sign() != audio[:, :799].sign()).sum(1)
    assert (crossings > 130).long().tolist() == label.tolist()


def test_video(run):
    names = run("video")
    assert names["losses"][-1] < names["losses"][0] / 10
    video, label = names["batch"]["video"], names["batch"]["label"]
    assert (video.dtype, video.shape) == (torch.uint8, (10, 4, 3, 24, 32))
    left = (video[:, :, 0] > 128).any(2).int().argmax(2)  # of the square, by frame
    assert (left[:, -1] > left[:, 0]).long().tolist() == label.tolist()
    assert names["padded"]["video"].shape == (10, 5, 3, 24, 32)  # of clips of 6 to 10 frames
    for sample, clip in zip(names["whole"], names["padded"]["video"], strict=False):
        assert torch.equal(clip[: len(sample["video"])], sample["video"])
        assert not clip[len(sample["video"]) :].any()
