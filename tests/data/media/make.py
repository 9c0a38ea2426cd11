"""Makes the files in this folder: `python make.py`, first with torchcodec, FFmpeg and Pillow, then
with TensorFlow.

With torchcodec: `tone.*`, `moving.mp4` and `moving.gif`. With TensorFlow: `decode_wav.json.gz`,
what `tf.audio.decode_wav` gives for generated WAV files, and `moving.npz`, what `tf.io.decode_gif`
gives for `moving.gif`.
"""

import base64
import gzip
import io
import itertools
import json
import struct
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
PCM = struct.pack("<12h", 0, 1, -1, 32767, -32768, 1000, -1000, 12345, -54, 7, 8, -9)
PCM_GUID = bytes.fromhex("0100000000001000800000aa00389b71")
OPTIONS = [
    {},
    {"desired_channels": 1},
    {"desired_channels": 3},
    {"desired_samples": 2},
    {"desired_samples": 15},
]


def chunk(name, data, size=None, pad=True):
    return (
        name
        + struct.pack("<I", len(data) if size is None else size)
        + data
        + b"\0" * (pad and len(data) % 2)
    )


def wav(
    data=PCM,
    channels=1,
    bits=16,
    encoding=1,
    extra=b"",
    before=b"",
    after=b"",
    rate=8000,
    **options,
):
    frame = channels * bits // 8
    head = struct.pack("<HHIIHH", encoding, channels, rate, rate * frame, frame, bits) + extra
    body = b"WAVE" + chunk(b"fmt ", head) + before + chunk(b"data", data, **options) + after
    return b"RIFF" + struct.pack("<I", len(body)) + body


WAVS = {
    "mono": wav(),
    "stereo": wav(channels=2, rate=44100),
    "three channels": wav(channels=3),
    "empty": wav(b""),
    "a size of 0": wav(size=0),
    "a list before": wav(before=chunk(b"LIST", b"abcd")),
    "an odd list before": wav(before=chunk(b"LIST", b"abc")),
    "an odd list before, not padded": wav(before=chunk(b"LIST", b"abc", pad=False)),
    "a fact": wav(extra=b"\0\0", before=chunk(b"fact", struct.pack("<I", 12))),
    "a list after": wav(after=chunk(b"LIST", b"abcd")),
    "extensible": wav(encoding=0xFFFE, extra=struct.pack("<HHI", 22, 16, 4) + PCM_GUID),
    "truncated": wav()[:-3],
    "truncated by a sample": wav()[:-2],
    "an unknown size": wav(size=0xFFFFFFFF),
    "part of a sample more": wav(PCM + b"\1"),
    "part of a frame more": wav(PCM + b"\1\2", channels=2, after=b""),
    "no data": wav()[:36],
    "no header": b"junk" * 20,
    "data first": b"RIFF\0\0\0\0WAVE" + chunk(b"data", PCM),
    "a short format": b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", b"\1\0\1\0"),
    "no channels": wav(channels=1).replace(
        struct.pack("<HHI", 1, 1, 8000), struct.pack("<HHI", 1, 0, 8000)
    ),
    "a wrong frame": wav().replace(
        struct.pack("<IHH", 16000, 2, 16), struct.pack("<IHH", 16000, 4, 16)
    ),
    "two data": wav(after=chunk(b"data", PCM)),
    "8 bits": wav(bits=8),
    "24 bits": wav(bits=24),
    "32 bits": wav(bits=32),
    "floats": wav(np.linspace(-1.5, 1.5, 6, dtype="<f4").tobytes(), bits=32, encoding=3),
    "doubles": wav(np.linspace(-1, 1, 6).tobytes(), bits=64, encoding=3),
}


def moving(number, size=(32, 24)):
    """A square that moves to the right, over a background that changes."""
    from PIL import Image

    frame = Image.new("RGB", size, (10, 60 * (number % 3), 30))
    frame.paste((250, 200, 100), (3 * number, 8, 3 * number + 8, 16))
    return frame


def gif(num_frames=6):
    file, (first, *others) = io.BytesIO(), map(moving, range(num_frames))
    first.save(file, "GIF", save_all=True, append_images=others, duration=100)
    return file.getvalue()


def with_tensorflow():
    import tensorflow as tf

    def result(data, options):
        try:
            samples, rate = tf.audio.decode_wav(data, **options)
        except tf.errors.InvalidArgumentError as error:
            return {"error": str(error).rpartition("}} ")[2]}
        return {
            "samples": samples.numpy().astype("<f4").tobytes().hex(),
            "shape": samples.shape,
            "rate": int(rate),
        }

    cases = [
        {
            "name": name,
            "wav": base64.b64encode(data).decode(),
            "options": options,
            "tensorflow": result(data, options),
        }
        for (name, data), options in itertools.product(WAVS.items(), OPTIONS)
    ]
    (HERE / "decode_wav.json.gz").write_bytes(
        gzip.compress(json.dumps(cases, default=list).encode(), mtime=0)
    )
    frames = tf.io.decode_gif((HERE / "moving.gif").read_bytes()).numpy()
    np.savez_compressed(HERE / "moving.npz", frames=frames)


def with_torchcodec():
    import torch
    from torchcodec.encoders import AudioEncoder, VideoEncoder

    (HERE / "moving.gif").write_bytes(gif())
    time = torch.arange(1000) / 8000
    tone = torch.stack(
        [0.5 * torch.sin(2 * torch.pi * 440 * time), 0.25 * torch.sin(2 * torch.pi * 220 * time)]
    )
    for kind in ("flac", "mp3", "ogg"):
        (HERE / f"tone.{kind}").write_bytes(
            AudioEncoder(tone, sample_rate=8000).to_tensor(kind).numpy().tobytes()
        )
    frames = torch.stack(
        [torch.from_numpy(np.array(moving(number, (64, 48)))) for number in range(20)]
    )
    video = VideoEncoder(frames.permute(0, 3, 1, 2).contiguous(), frame_rate=10)
    (HERE / "moving.mp4").write_bytes(video.to_tensor("mp4").numpy().tobytes())


if __name__ == "__main__":
    try:
        with_tensorflow()
    except ImportError:
        with_torchcodec()
