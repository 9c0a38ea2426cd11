"""WAV files: Python's own `wave`, and no more samples than there are bytes; or ParseError, or left
to torchcodec.

The first byte of an input chooses the options, the rest is the file.
"""

import io
import struct
import warnings
import wave

import numpy as np
from tools import damage, outcome

from torch_tfrecord import Audio, encode_example
from torch_tfrecord.columns.parsers import ExampleParser
from torch_tfrecord.errors import TFRecordError

COMPILED = False
_OPTIONS = [
    {},
    {"num_channels": 1},
    {"num_channels": 3},
    {"num_samples": 5},
    {"num_samples": 2, "random_start": True},
]
_OPTIONS += [{"return_rate": True}, {"num_samples": 64}]
_PARSERS = [ExampleParser({"a": Audio(**options)}, max_batch_bytes=1 << 20) for options in _OPTIONS]
_SIZES = [
    0,
    1,
    7,
    8,
    15,
    16,
    17,
    0xFFFF,
    0x7FFFEFFF,
    0x7FFFF000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
]


def _wav(samples, *, channels=1, bits=16, encoding=1, rate=8000, before=b""):
    frame = channels * bits // 8
    facts = struct.pack("<HHIIHH", encoding & 0xFFFF, channels, rate, rate * frame, frame, bits)
    if encoding > 0xFFFF:
        facts += struct.pack("<HHI", 22, bits, 0) + struct.pack("<H", encoding >> 16) + bytes(14)
    chunks = before + b"fmt " + struct.pack("<I", len(facts)) + facts
    chunks += b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


_NOISE = bytes(range(3, 243, 5)) * 2
_FILES = [
    _wav(_NOISE, channels=channels, bits=bits) for channels in (1, 2) for bits in (8, 16, 24, 32)
]
_FILES += [
    _wav(np.array([0.5, -1.5] * 6, kind).tobytes(), bits=bits, encoding=3)
    for kind, bits in (("<f4", 32), ("<f8", 64))
]
_FILES += [
    _wav(_NOISE, encoding=1 << 16 | 0xFFFE),
    _wav(_NOISE, before=b"LIST" + struct.pack("<I", 3) + b"odd\0"),
    _wav(b""),
]


def seeds():
    return [bytes([number]) + data for number in range(len(_OPTIONS)) for data in _FILES]


def mutate(rng, data):
    data = bytes([rng.randrange(len(_OPTIONS))]) + data[1:]
    how = rng.random()
    if how < 0.3:  # a size, or a field of the format
        out, place = bytearray(data), rng.choice([4, 16, 20, 22, 24, 28, 32, 34, 40]) + 1
        value = struct.pack("<I", rng.choice([*_SIZES, rng.getrandbits(32), len(data)]))
        out[place : place + rng.choice([2, 4])] = value
        return bytes(out)
    return data[:1] + damage(rng, data[1:], 3)


def check(data):
    number, content = (data[0] if data else 0) % len(_OPTIONS), data[1:]
    record = encode_example({"a": content})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, _ = outcome(_PARSERS[number].single, record, 7, errors=(TFRecordError, ImportError))
        batch, _ = outcome(
            _PARSERS[number].batch, [record] * 2, errors=(TFRecordError, ImportError)
        )
    assert (found is None) == (batch is None)
    if found is None:
        return
    value = found["a"]["samples"] if isinstance(found["a"], dict) else found["a"]
    assert value.numel() <= max(len(content) * 3, 65536 * _OPTIONS[number].get("num_samples", 0))
    wanted = _by_wave(content)
    if wanted is not None and not _OPTIONS[number]:
        assert value.shape == wanted.shape and np.array_equal(value.numpy(), wanted), (
            value.shape,
            wanted.shape,
        )


def _by_wave(content):
    """The samples as float32 [channels, samples]; None where `wave` does not read the file."""
    # we read to the end of the file
    content = content[:4] + struct.pack("<I", max(len(content) - 8, 0)) + content[8:]
    try:
        with warnings.catch_warnings(), wave.open(io.BytesIO(content)) as file:
            width, channels, raw = (
                file.getsampwidth(),
                file.getnchannels(),
                file.readframes(1 << 20),
            )
    except (wave.Error, EOFError, RuntimeError, ZeroDivisionError, ValueError, OverflowError):
        return None
    if width not in (1, 2, 3, 4):
        return None
    size, half = len(raw) // (width * channels) * width * channels, 1 << 8 * width - 1
    values = [
        int.from_bytes(raw[at : at + width], "little", signed=width > 1)
        for at in range(0, size, width)
    ]
    array = (np.array(values, np.float64) - half * (width == 1)) / half
    return array.astype(np.float32).reshape(-1, channels).T
