"""Videos: GIFs against `tf.io.decode_gif`, others against torchcodec, the choice of frames, and the
ways in.

Covers media/sounds, media/media_decoders.
"""

from itertools import islice

import numpy as np
import pytest
import torch
from helpers import pure_python
from media_files import FOLDER, finds_ffmpeg, needs_ffmpeg, start_methods, ways_in
from media_files import no_torchcodec as no_torchcodec
from media_files import torchcodec as torchcodec
from torchvision import tv_tensors

from torch_tfrecord import (
    FixedLenFeature,
    LimitExceededError,
    ParseError,
    TFRecordDataset,
    TFRecordWriter,
    Video,
    collate,
    encode_example,
    encode_sequence_example,
    parse_example,
    parse_sequence_example,
    parse_single_example,
)

# 6 frames of 24 x 32, 10 per second: a square that moves by 3 pixels
GIF = (FOLDER / "moving.gif").read_bytes()
FRAMES = torch.from_numpy(np.load(FOLDER / "moving.npz")["frames"]).permute(0, 3, 1, 2)
COUNT = 12


def decoded(data=GIF, **options):
    return parse_single_example(encode_example({"v": data}), {"v": Video(**options)})["v"]


def numbers_of(frames):
    """Which frames of the GIF they are."""
    return [
        next(n for n, wanted in enumerate(FRAMES) if torch.equal(frame, wanted)) for frame in frames
    ]


def test_gifs_have_tensorflows_values(torchcodec):
    video = decoded()
    assert type(video) is tv_tensors.Video
    assert torch.equal(video, FRAMES)


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"frames": slice(None, None, 2)}, [0, 2, 4]),
        ({"frames": slice(-2, None)}, [4, 5]),
        ({"frames": slice(None, None, -1)}, [5, 4, 3, 2, 1, 0]),
        ({"frames": [3, -1, 0, 0]}, [3, 5, 0, 0]),
        ({"num_frames": 1}, [0]),
        ({"num_frames": 3}, [0, 2, 5]),
        ({"num_frames": 6}, [0, 1, 2, 3, 4, 5]),
        ({"num_frames": 11}, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]),
        ({"num_frames": 3, "step": 1}, [0, 1, 2]),
        ({"num_frames": 3, "step": 2}, [0, 2, 4]),
        ({"num_frames": 4, "step": 3}, [0, 3, 5, 5]),
        ({"num_frames": 4, "step": 3, "random_start": True}, [0, 3, 5, 5]),
    ],
)
def test_chosen_frames(torchcodec, options, chosen):
    assert numbers_of(decoded(**options)) == chosen
    found = decoded(**options, return_times=True)
    assert numbers_of(found["frames"]) == chosen
    assert found["pts_seconds"].dtype == torch.float64
    assert found["pts_seconds"].tolist() == pytest.approx([number / 10 for number in chosen])
    assert found["average_fps"].item() == 10


@pytest.mark.parametrize("frames", [[6], [0, -7], slice(6, None)])
def test_frames_that_are_not_there(torchcodec, frames):
    spec = Video(frames=frames)
    with pytest.raises(ParseError) as caught:
        decoded(frames=frames)
    assert str(caught.value) == (
        f"feature 'v' (Video): expected a video with the frames {spec.frames}, got one of 6 frames"
    )


def test_other_formats():
    needs_ffmpeg()
    from torchcodec.decoders import VideoDecoder

    data = (FOLDER / "moving.mp4").read_bytes()
    wanted = VideoDecoder(data)
    assert torch.equal(decoded(data), wanted[:])
    found = decoded(data, num_frames=5, step=4, return_times=True)
    assert torch.equal(found["frames"], wanted.get_frames_at([0, 4, 8, 12, 16]).data)
    assert found["pts_seconds"].tolist() == pytest.approx([0, 0.4, 0.8, 1.2, 1.6])
    left = (found["frames"][:, 0, 8:16].float().mean(1) > 128).int().argmax(1)
    assert left.tolist() == pytest.approx([0, 12, 24, 36, 48], abs=1)


def test_broken_videos(torchcodec):
    with pytest.raises(ParseError) as caught:
        decoded(b"junk" * 20)
    assert str(caught.value).startswith(
        "feature 'v' (Video): expected a video that FFmpeg can decode, got 80 other bytes (Failed to open input buffer"
    )
    with pytest.raises(ParseError, match=r"^feature 'v' \(Video\): expected a video, got 0 bytes$"):
        decoded(b"")


def test_cut_videos():
    needs_ffmpeg()
    data = (FOLDER / "moving.mp4").read_bytes()
    for size in (40, 1000, 2000):  # the frames' table is at the end
        with pytest.raises(
            ParseError, match=r"expected a video that FFmpeg can decode, got \d+ other bytes \(.+\)"
        ):
            decoded(data[:size])


def test_without_torchcodec(no_torchcodec):
    with pytest.raises(
        ImportError,
        match=r"^decoding a video, or a sound .* needs torchcodec and FFmpeg 4 or newer",
    ):
        decoded()


def test_memory_is_checked_before_decoding(torchcodec, monkeypatch):
    """A few bytes may stand for gigabytes."""
    monkeypatch.setattr(torchcodec.VideoDecoder, "get_frames_at", None)
    record = encode_example({"v": GIF})
    for spec, needed in (
        (Video(), 6),
        (Video(num_frames=2), 2),
        (Video(num_frames=100_000), 100_000),
    ):
        path_error = f"expected a batch of at most 4000 bytes (max_batch_bytes), got one that needs {needed * 2304}"
        with pytest.raises(LimitExceededError) as caught:
            parse_example([record], {"v": spec}, max_batch_bytes=4000)
        assert str(caught.value) == f"record 0: feature 'v' (Video): {path_error}"


# The ways in.


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("video") / "videos.tfrecord"
    with TFRecordWriter(path, write_index=True) as writer:
        for n in range(COUNT):
            writer.write({"video": GIF, "n": n})
    return str(path)


def features(**options):
    return {"video": Video(**options), "n": FixedLenFeature((), torch.int64)}


def check(batches, chosen, part=lambda video: video):
    for batch in batches:
        for video in part(batch["video"]):
            assert numbers_of(video) == chosen
    assert sorted(n for batch in batches for n in batch["n"].tolist()) == [*range(COUNT)]


@pytest.mark.daily
@pytest.mark.parametrize("is_pure", [False, True], ids=["core", "python"])
def test_all_ways_in(torchcodec, path, is_pure):
    with pure_python(is_pure):
        for way, batches in ways_in(path, features()):
            check(batches, [*range(6)])
            assert isinstance(batches[0]["video"], torch.Tensor if way == "padded" else list), way
        for way, batches in ways_in(path, features(num_frames=3, return_times=True)):
            check(batches, [0, 2, 5], lambda video: video["frames"])
            assert [batch["video"]["frames"].shape for batch in batches] == [(4, 3, 3, 24, 32)] * 3
            assert [batch["video"]["pts_seconds"].shape for batch in batches] == [(4, 3)] * 3
            assert type(batches[0]["video"]["frames"]) is torch.Tensor, way
        for way, batches in ways_in(path, features(return_times=True)):
            check(batches, [*range(6)], lambda video: video["frames"])
            for times in batches[0]["video"]["pts_seconds"]:
                assert times.tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5]), way


@pytest.mark.daily
@pytest.mark.parametrize("method", start_methods())
def test_workers(torchcodec, path, method):
    if method != "fork" and not finds_ffmpeg():
        pytest.skip("the stand-in is in this process")
    decoded()  # also after this process has decoded
    ways = ways_in(path, features(num_frames=2), num_workers=2, multiprocessing_context=method)
    # where each worker imports torchcodec anew
    for _, batches in islice(ways, None if method == "fork" else 1):
        check(batches, [0, 5])


@pytest.mark.daily
def test_random_starts(torchcodec, path, random_states_untouched):
    def starts(epoch, **options):
        ds = TFRecordDataset(path, features(num_frames=2, step=2, random_start=True, **options))
        ds.set_epoch(epoch)
        found = [numbers_of(ds[n]["video"]) for n in range(COUNT)]
        assert [*map(numbers_of, collate(ds.__getitems__([*range(COUNT)]))["video"])] == found
        assert all(end == begin + 2 for begin, end in found)
        return [begin for begin, _ in found]

    first = starts(0)
    assert starts(0) == first
    assert starts(1) != first != starts(0, seed=1)
    assert {*first, *starts(1), *starts(2)} == {0, 1, 2, 3}


def test_sequence_examples(torchcodec):
    record = encode_sequence_example({"whole": [GIF]}, {"parts": [[GIF], [GIF]]})
    spec = {"whole": Video(num_frames=2)}, {"parts": Video(num_frames=2)}
    (context, sequences, _) = parse_sequence_example([record], *spec)
    assert numbers_of(context["whole"][0]) == [0, 5]
    assert sequences["parts"][0].shape == (2, 2, 3, 24, 32)
    drawn = Video(num_frames=1, step=1, random_start=True)
    with pytest.raises(
        ValueError,
        match=r"^random_start of 'v': features of a SequenceExample are not drawn at random$",
    ):
        parse_sequence_example([record], None, {"v": drawn})
    with pytest.raises(
        ValueError,
        match=r"^'v': steps of a feature list hold no dicts; leave out return_rate or return",
    ):
        parse_sequence_example([record], None, {"v": Video(return_times=True)})
