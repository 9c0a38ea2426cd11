"""Sounds: WAV files against `tf.audio.decode_wav`, all others against torchcodec, and the ways in.

Covers media/sounds, media/media_decoders.
"""

import base64
import gzip
import json
import pickle
import runpy
import struct

import numpy as np
import pytest
import torch
from helpers import pure_python
from media_files import FOLDER, needs_ffmpeg, start_methods, ways_in
from media_files import no_torchcodec as no_torchcodec
from torch.utils.data import DataLoader

from torch_tfrecord import (
    Audio,
    FixedLenFeature,
    Image,
    LimitExceededError,
    ParseError,
    SequenceFeatures,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    collate,
    encode_example,
    encode_image,
    encode_sequence_example,
    parse_example,
    parse_sequence_example,
    parse_single_example,
)
from torch_tfrecord.media import media_decoders as decoders

MAKE = runpy.run_path(str(FOLDER / "make.py"))
WAVS, wav = MAKE["WAVS"], MAKE["wav"]
PCM = np.frombuffer(MAKE["PCM"], "<i2")


def decoded(data, **options):
    return parse_single_example(encode_example({"a": data}), {"a": Audio(**options)})["a"]


# What TensorFlow refuses: the number of samples and channels that we read, or our error.
DIFFERENT = {
    "an odd list before": (12, 1),
    "extensible": (12, 1),
    "an unknown size": (12, 1),
    "part of a sample more": (12, 1),
    "part of a frame more": (6, 2),
    "two data": (12, 1),
    "8 bits": (24, 1),
    "24 bits": (8, 1),
    "32 bits": (6, 1),
    "floats": (6, 1),
    "doubles": (6, 1),
    "truncated": "expected 24 bytes of samples in a WAV file, got 21: it is truncated",
    "truncated by a sample": "expected 24 bytes of samples in a WAV file, got 22: it is truncated",
    "no data": "expected samples in a WAV file, got none: it is truncated, or has no data chunk",
    "data first": "expected a format before the samples of a WAV file, got none",
    "a short format": "expected at least 16 bytes of format in a WAV file, got 4",
    "no channels": "expected a WAV file with channels and a rate, got 0 at 8000 per second",
    "a wrong frame": "expected 2 bytes for each of a WAV file's 1 samples of 16 bits, got 4",
    "no header": None,  # torchcodec's to refuse
}


def test_wav_files_have_tensorflows_values():
    cases = json.loads(gzip.decompress((FOLDER / "decode_wav.json.gz").read_bytes()))
    assert {case["name"] for case in cases} == set(WAVS)
    refused = {case["name"] for case in cases if "error" in case["tensorflow"]}
    assert refused == set(DIFFERENT)
    for case in cases:
        data, options = base64.b64decode(case["wav"]), case["options"]
        assert data == WAVS[case["name"]]
        own = {name.replace("desired", "num"): value for name, value in options.items()}
        if case["name"] in refused:
            check_different(data, DIFFERENT[case["name"]], own)
            continue
        wanted = np.frombuffer(bytes.fromhex(case["tensorflow"]["samples"]), "<f4").reshape(
            case["tensorflow"]["shape"]
        )
        found = decoded(data, return_rate=True, **own)
        assert found["samples"].dtype == torch.float32
        assert np.array_equal(found["samples"].numpy().T, wanted), (case["name"], options)
        assert found["sample_rate"].item() == case["tensorflow"]["rate"]
        assert found["sample_rate"].dtype == torch.int32


def check_different(data, ours, options):
    if isinstance(ours, str):
        with pytest.raises(ParseError) as caught:
            decoded(data, **options)
        assert str(caught.value) == f"feature 'a' (Audio): {ours}"
    elif ours is not None:
        samples, channels = (
            options.get("num_samples", ours[0]),
            options.get("num_channels", ours[1]),
        )
        assert decoded(data, **options).shape == (channels, samples)


@pytest.mark.parametrize(
    "name", ["an odd list before", "extensible", "an unknown size", "part of a sample more"]
)
def test_more_wav_files_than_tensorflow_reads(name):
    assert (decoded(WAVS[name])[0].numpy() * 32768).tolist() == PCM.tolist()


def test_rates_that_int32_does_not_hold():
    pcm = PCM.tobytes()
    most = bytearray(wav(pcm))
    most[24:28] = ((1 << 31) - 1).to_bytes(4, "little")
    assert decoded(bytes(most), return_rate=True)["sample_rate"].item() == (1 << 31) - 1
    most[24:28] = (1 << 31).to_bytes(4, "little")
    text = f"expected a WAV file with channels and a rate, got 1 at {1 << 31} per second"
    with pytest.raises(ParseError, match=text):
        decoded(bytes(most), return_rate=True)


def test_damaged_wav_files(no_torchcodec):
    """Every cut and every changed byte of a header gives samples or our error, or is left to
    torchcodec.
    """
    whole = WAVS["extensible"]
    damaged = [whole[:size] for size in range(1, len(whole))]
    damaged += [
        whole[:at] + bytes([value]) + whole[at + 1 :]
        for at in range(68)
        for value in (0, 1, 3, 0x7F, 0xFF)
    ]
    for data in damaged:
        try:
            samples = decoded(data)
        except (ParseError, ImportError):
            continue
        assert samples.shape[0] * samples.shape[1] * 2 <= len(whole), data[:68]


def test_other_samples_in_wav_files():
    stored = np.arange(-128, 128)
    assert (
        decoded(wav((stored + 128).astype(np.uint8).tobytes(), bits=8))[0].numpy() * 128
    ).tolist() == stored.tolist()
    wide = np.array([0, 1, -1, (1 << 23) - 1, -(1 << 23), 1 << 22], "<i4")
    narrow = wide.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    assert (decoded(wav(narrow, bits=24))[0].numpy() * (1 << 23)).tolist() == wide.tolist()
    assert (
        decoded(wav((wide * 256).tobytes(), bits=32))[0].numpy() * (1 << 23)
    ).tolist() == wide.tolist()
    floats = np.array([0.5, -1.5, 2**-20], "<f4")  # not clipped
    assert decoded(wav(floats.tobytes(), bits=32, encoding=3))[0].tolist() == floats.tolist()
    doubles = np.array([0.1, -1.0])
    found = decoded(wav(doubles.tobytes(), bits=64, encoding=3))[0]
    assert found.tolist() == doubles.astype(np.float32).tolist()
    assert decoded(wav(np.array([1e39, -1e300]).tobytes(), bits=64, encoding=3))[0].tolist() == [
        np.inf,
        -np.inf,
    ]


def test_the_same_as_torchcodec():
    needs_ffmpeg()
    from torchcodec.decoders import AudioDecoder

    drawn = np.random.default_rng(0).integers(0, 256, 2400, dtype=np.uint8).tobytes()
    files = [wav(drawn, 2, bits) for bits in (8, 16, 24, 32)]
    files += [wav(drawn, 1, 8, 7)]  # mu-law
    files += [(FOLDER / f"tone.{kind}").read_bytes() for kind in ("flac", "mp3", "ogg")]
    for data in files:
        for rate in (None, 16000, 11025):
            wanted = AudioDecoder(data, sample_rate=rate).get_all_samples()
            found = decoded(data, sample_rate=rate, return_rate=True)
            assert torch.equal(found["samples"], wanted.data)
            assert found["sample_rate"].item() == (rate or 8000)
            assert found["sample_rate"].dtype == torch.int32
            total = wanted.data.shape[1]
            for count in (1, 100, total - 1, total, total + 5):
                cut = decoded(data, sample_rate=rate, num_samples=count)
                assert torch.equal(cut, torch.nn.functional.pad(wanted.data, (0, 5))[:, :count])


def test_lossless_files_hold_the_tone():
    needs_ffmpeg()
    time = torch.arange(1000) / 8000
    tone = torch.stack(
        [0.5 * torch.sin(2 * torch.pi * 440 * time), 0.25 * torch.sin(2 * torch.pi * 220 * time)]
    )
    assert (decoded((FOLDER / "tone.flac").read_bytes()) - tone).abs().max() < 1e-6
    assert torch.equal(
        decoded((FOLDER / "tone.flac").read_bytes(), num_channels=1),
        decoded((FOLDER / "tone.flac").read_bytes())[:1],
    )


def test_broken_sounds():
    needs_ffmpeg()
    for data in (b"junk" * 20, (FOLDER / "tone.flac").read_bytes()[:20]):
        with pytest.raises(
            ParseError,
            match=r"^feature 'a' \(Audio\): expected a sound that FFmpeg can decode, got \d",
        ):
            decoded(data)
    with pytest.raises(ParseError, match=r"^feature 'a' \(Audio\): expected a sound, got 0 bytes$"):
        decoded(b"")


def test_without_torchcodec(no_torchcodec):
    assert decoded(WAVS["mono"], sample_rate=8000).shape == (1, 12)
    for data, options in ((b"fLaC", {}), (WAVS["mono"], {"sample_rate": 16000})):
        with pytest.raises(
            ImportError,
            match=r"resampling one, needs torchcodec and FFmpeg 4 or newer: pip install",
        ):
            decoded(data, **options)


# The ways in.

COUNT = 12


def sound(n):
    """A file of n + 1 samples with the value n."""
    return wav(struct.pack("<h", n) * (n + 1), rate=8000 + n)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("audio") / "sounds.tfrecord"
    with TFRecordWriter(path, write_index=True) as writer:
        for n in range(COUNT):
            writer.write({"audio": sound(n), "n": n})
    return str(path)


def features(**options):
    return {"audio": Audio(**options), "n": FixedLenFeature((), torch.int64)}


def check_lists(batches, part=lambda audio: audio):
    seen = []
    for batch in batches:
        for audio, n in zip(part(batch["audio"]), batch["n"].tolist(), strict=True):
            assert (audio[..., : n + 1] * 32768).tolist() == [[n] * (n + 1)]
            assert not audio[..., n + 1 :].any()
            seen.append(n)
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("is_pure", [False, True], ids=["core", "python"])
def test_all_ways_in(path, is_pure):
    with pure_python(is_pure):
        sample = TFRecordDataset(path, features())[3]
        assert (sample["audio"] * 32768).tolist() == [[3] * 4]
        for way, batches in ways_in(path, features()):
            check_lists(batches)
            padded = way == "padded"
            assert isinstance(batches[0]["audio"], torch.Tensor if padded else list), way
        for _, batches in ways_in(path, features(return_rate=True)):
            check_lists(batches, lambda audio: audio["samples"])
            assert all(
                (batch["audio"]["sample_rate"] - 8000).tolist() == batch["n"].tolist()
                for batch in batches
            )
        for _, batches in ways_in(path, features(num_samples=20, num_channels=2)):
            assert [batch["audio"].shape for batch in batches] == [(4, 2, 20)] * 3
            check_lists(batches, lambda audio: audio[:, 1:])


@pytest.mark.daily
@pytest.mark.parametrize("method", start_methods())
def test_workers(path, method):
    for _, batches in ways_in(
        path, features(return_rate=True), num_workers=2, multiprocessing_context=method
    ):
        check_lists(batches, lambda audio: audio["samples"])


def test_equal_lengths_are_lists_too(path):
    """What a batch is does not depend on its values."""
    records = [encode_example({"audio": WAVS["mono"]})] * 3
    assert [part.shape for part in parse_example(records, {"audio": Audio()})["audio"]] == [
        (1, 12)
    ] * 3
    batch = collate([parse_single_example(record, {"audio": Audio()}) for record in records])
    assert isinstance(batch["audio"], list)
    assert parse_example(records, {"audio": Audio(num_samples=5)})["audio"].shape == (3, 1, 5)


def test_a_transform_sees_plain_tensors(path):
    ds = TFRecordDataset(
        path, features(num_samples=6), transform=lambda sample: sample["audio"].mean(0)
    )
    assert next(iter(DataLoader(ds, batch_size=4))).shape == (4, 6)


def test_errors_name_the_record(tmp_path):
    path = tmp_path / "broken.tfrecord"
    with TFRecordWriter(path) as writer:
        writer.write({"audio": sound(1), "n": 0})
        offset = writer.write({"audio": sound(3)[:-2], "n": 1})
    text = (
        "feature 'audio' (Audio): expected 8 bytes of samples in a WAV file, got 6: it is truncated"
    )
    ds = TFRecordDataset(path, features())
    offset = ds.locate(1)[1]
    for read in (
        lambda: ds[1],
        lambda: ds.__getitems__([0, 1]),
        lambda: next(iter(DataLoader(ds, batch_size=2))),
    ):
        with pytest.raises(ParseError) as caught:
            read()
        assert str(caught.value) == f"{path}: record 1 at byte {offset}: {text}"
    with pytest.raises(ParseError, match=r"key 'audio' is required but could not be found"):
        parse_single_example(encode_example({}), features())


def test_random_starts(path, random_states_untouched):
    record = encode_example({"a": wav(np.arange(1000, dtype="<i2").tobytes())})
    assert (parse_single_example(record, {"a": Audio(num_samples=9)})["a"] * 32768).tolist() == [
        [*range(9)]
    ]
    drawn = features(num_samples=3, random_start=True)
    with TFRecordWriter(path + "-long") as writer:
        for n in range(COUNT):
            writer.write({"audio": wav(np.arange(1000, dtype="<i2").tobytes()), "n": n})

    def starts(specs, epoch):
        ds = TFRecordDataset(path + "-long", specs)
        ds.set_epoch(epoch)
        rows = [ds[n]["audio"] for n in range(COUNT)]
        assert torch.equal(collate(ds.__getitems__([*range(COUNT)]))["audio"], torch.stack(rows))
        found = (torch.stack(rows)[:, 0] * 32768).long()
        assert (found - found[:, :1]).tolist() == [[0, 1, 2]] * COUNT
        return found[:, 0].tolist()

    first = starts(drawn, 0)
    assert starts(drawn, 0) == first
    assert (
        len(
            {
                *first,
                *starts(drawn, 1),
                *starts(features(num_samples=3, random_start=True, seed=1), 0),
            }
        )
        > 2 * COUNT
    )
    assert max(first) <= 997

    def streamed(**options):
        stream = TFRecordIterableDataset(path + "-long", drawn, **options)
        stream.set_epoch(0)
        return stream

    one_by_one = torch.stack([sample["audio"] for sample in streamed()])
    assert torch.equal(torch.cat([batch["audio"] for batch in streamed(batch_size=4)]), one_by_one)
    assert len(set(one_by_one[:, 0, 0].tolist())) > COUNT // 2


def test_random_starts_beside_an_image_that_a_transform_crops(tmp_path):
    """The image is then read by another parser, which knows no keys."""
    from torchvision.transforms import v2

    path = tmp_path / "both.tfrecord"
    image = encode_image(torch.zeros(3, 8, 8, dtype=torch.uint8), "png")
    with TFRecordWriter(path) as writer:
        for _ in range(COUNT):
            writer.write({"image": image, "audio": wav(np.arange(1000, dtype="<i2").tobytes())})
    both = {"image": Image(), "audio": Audio(num_samples=1, random_start=True)}
    ds = TFRecordDataset(path, both, transform=v2.RandomResizedCrop(4))
    ds.set_epoch(0)
    drawn = torch.cat(
        [batch["audio"].flatten() for batch in DataLoader(ds, batch_size=4, collate_fn=collate)]
    )
    assert len(set(drawn.tolist())) > COUNT // 2


def test_sequence_examples():
    record = encode_sequence_example(
        {"whole": [WAVS["stereo"]]}, {"parts": [[WAVS["mono"]], [WAVS["empty"]]]}
    )
    spec = {"whole": Audio()}, {"parts": Audio(num_samples=3)}
    (context, sequences, _) = parse_sequence_example([record], *spec)
    assert context["whole"][0].shape == (2, 6)
    assert sequences["parts"][0].shape == (2, 1, 3)
    with pytest.raises(
        ValueError,
        match=r"random_start of 'a': features of a SequenceExample are not drawn at random",
    ):
        parse_sequence_example([record], {"a": Audio(num_samples=1, random_start=True)}, None)
    with pytest.raises(
        ValueError,
        match=r"'a': steps of a feature list hold no dicts; leave out return_rate or return",
    ):
        parse_sequence_example([record], None, {"a": Audio(return_rate=True)})
    assert SequenceFeatures({}, {"a": Audio()}) == pickle.loads(
        pickle.dumps(SequenceFeatures({}, {"a": Audio()}))
    )


def test_the_memory_of_a_batch_is_limited(path):
    with pytest.raises(
        LimitExceededError, match=r"record 0 .*expected a batch of at most 1000 bytes"
    ):
        TFRecordDataset(path, features(num_samples=1 << 40), max_batch_bytes=1000)[0]


def test_a_sound_that_is_longer_than_any_batch(monkeypatch):
    """A few bytes may stand for hours, whatever the header says."""
    needs_ffmpeg()
    assert decoded((FOLDER / "tone.mp3").read_bytes()).nbytes == 8000
    monkeypatch.setattr(decoders, "MAX_BATCH_BYTES", 7999)
    with pytest.raises(
        LimitExceededError,
        match=r"expected a sound of at most 7999 bytes when it is decoded, got a longer",
    ):
        decoded((FOLDER / "tone.mp3").read_bytes())
