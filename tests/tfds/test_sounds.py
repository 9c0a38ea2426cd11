"""Audio features that hold files (lazy_decode), against pydub 0.25, by which TFDS decodes them.

Covers tfds/leaves.
"""

import runpy

import pytest
import torch
from media_files import FOLDER, needs_ffmpeg
from media_files import no_torchcodec as no_torchcodec
from torch.utils.data import DataLoader

import torch_tfrecord.tfds.features as f
from torch_tfrecord import ParseError, collate, tfds

WAVS = runpy.run_path(str(FOLDER / "make.py"))["WAVS"]
# pydub.AudioSegment.from_file(io.BytesIO(WAVS[name]), format="wav").get_array_of_samples()
PYDUBS = {
    "mono": [0, 1, -1, 32767, -32768, 1000, -1000, 12345, -54, 7, 8, -9],
    "extensible": [0, 1, -1, 32767, -32768, 1000, -1000, 12345, -54, 7, 8, -9],
    "8 bits": [*b"\0\0\1\0\xff\xff\xff\x7f\0\x80\xe8\3\x18\xfc90\xca\xff\7\0\x08\0\xf7\xff"],
    # pydub sets the 8 bits below a negative sample of 24 bits, which makes it 0.00000012 larger;
    # here they are 0.
    "24 bits": [
        sample & ~255
        for sample in (16777216, -65281, 8388352, 65568768, 972822528, -3526401, 134219520, -589569)
    ],
    "32 bits": [65536, 2147483647, 65568768, 809106456, 524234, -589816],
}

PYDUBS["8 bits"] = [sample - 128 for sample in PYDUBS["8 bits"]]


def written(tmp_path, sounds, **options):
    feature = f.Audio(lazy_decode=True, **{"file_format": "wav", "dtype": "int32"} | options)
    tfds.write(
        tmp_path / "d",
        {"train": [{"audio": sound} for sound in sounds]},
        {"audio": feature},
        name="d",
    )
    return tmp_path / "d"


def test_wav_files(tmp_path):
    path = written(tmp_path, [WAVS[name] for name in PYDUBS])
    ds = tfds.load(path, "train")
    assert [sample["audio"].tolist() for sample in ds] == [*PYDUBS.values()]
    assert ds[0]["audio"].dtype == torch.int32
    (batch,) = DataLoader(ds, batch_size=len(PYDUBS), collate_fn=collate)
    assert [row.tolist() for row in batch["audio"].unbind()] == [*PYDUBS.values()]
    kept = tfds.load(path, "train", decoders={"audio": None})
    assert [sample["audio"] for sample in kept] == [WAVS[name] for name in PYDUBS]


def test_several_channels(tmp_path):
    ds = tfds.load(written(tmp_path, [WAVS["stereo"]], shape=(None, 2), dtype="int16"), "train")
    assert torch.equal(
        ds[0]["audio"], torch.tensor(PYDUBS["mono"], dtype=torch.int16).reshape(6, 2)
    )
    ds = tfds.load(written(tmp_path / "mono", [WAVS["stereo"]]), "train")
    with pytest.raises(ParseError, match=r"expected audio of 1 channels, got 2"):
        ds[0]


def test_other_files(tmp_path):
    """FFmpeg's FLAC of 24 bits has 8 zero bits below, as WAV's; what loses something is of 16
    bits.
    """
    needs_ffmpeg()
    sounds = [(FOLDER / f"tone.{kind}").read_bytes() for kind in ("flac", "mp3")]
    ds = tfds.load(written(tmp_path, sounds, shape=(None, 2), file_format="flac"), "train")
    time = torch.arange(1000) / 8000
    tone = torch.stack(
        [0.5 * torch.sin(2 * torch.pi * 440 * time), 0.25 * torch.sin(2 * torch.pi * 220 * time)], 1
    )
    lossless, lossy = (sample["audio"] for sample in ds)
    assert (lossless / (1 << 31) - tone).abs().max() < 1e-6
    assert not (lossless % 256).any()
    assert lossy.abs().max() < 1 << 15
    assert (lossy[:800] / (1 << 15) - tone[:800]).abs().max() < 0.2


def test_without_torchcodec(tmp_path, no_torchcodec):
    ds = tfds.load(written(tmp_path, [b"fLaC"], file_format="flac"), "train")
    with pytest.raises(ImportError, match=r"needs torchcodec and FFmpeg"):
        ds[0]
    assert tfds.load(tmp_path / "d", "train", decoders={"audio": None})[0]["audio"] == b"fLaC"
