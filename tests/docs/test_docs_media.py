"""docs/audio.md and docs/video.md: their programs run, by torchcodec where it finds FFmpeg, else by
stand-ins.
"""

from pathlib import Path

import pytest
import torch
from media_files import torchcodec as torchcodec

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = [
    pytest.mark.skipif(not DOCS.is_dir(), reason="not beside an installed package"),
    pytest.mark.usefixtures("torchcodec"),
]


@pytest.mark.daily
def test_audio(run):
    names = run("audio")
    assert names["losses"][-1] < names["losses"][0] / 10
    assert sorted(sample["audio"].shape[1] for sample in names["dataset"])[::59] == [800, 2688]
    audio, label = names["batch"]["audio"][:, 0], names["batch"]["label"]
    assert (audio.dtype, len(audio)) == (torch.float32, 20)
    # How often a tone changes its sign in its first 0.1 s tells which one it is.
    crossings = (audio[:, 1:800].sign() != audio[:, :799].sign()).sum(1)
    assert (crossings > 130).long().tolist() == label.tolist()
    assert names["windows"]["audio"].shape == (20, 1, 4000)
    assert names["clip"]["samples"].shape == (1, 800)
    assert names["clip"]["sample_rate"].item() == 8000


@pytest.mark.daily
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
    assert names["part"]["frames"].shape == (3, 3, 24, 32)
    assert names["part"]["pts_seconds"].diff().tolist() == pytest.approx([0.1, 0.1])
    assert names["part"]["average_fps"].item() == 10
