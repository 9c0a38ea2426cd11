"""Decode sounds and videos by torchcodec, which needs FFmpeg."""

from __future__ import annotations

import functools
import importlib
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, Array, reserve
from torch_tfrecord.errors import LimitExceededError, ParseError
from torch_tfrecord.samples import Value

__all__ = [
    "Frames",
    "decode_frames",
    "decode_sound",
    "decoders_state",
    "read_wav",
]

_CHUNK = struct.Struct("<4sI")
# encoding, channels, samples and bytes per second, bytes per frame, bits per sample
_FORMAT = struct.Struct("<HHIIHH")
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# in the longer chunk of an extensible file: valid bits and so on, the encoding
_ENCODING = struct.Struct("<22xHH")
_DTYPES: dict[tuple[int, int], np.dtype[Any]] = {
    (_PCM, 8): np.dtype("u1"),
    (_PCM, 16): np.dtype("<i2"),
    (_PCM, 24): np.dtype("u1"),
    (_PCM, 32): np.dtype("<i4"),
    (_FLOAT, 32): np.dtype("<f4"),
    (_FLOAT, 64): np.dtype("<f8"),
}
# Sizes from here on mean an unknown one: a program that writes to a pipe cannot go back to fill it
# in.
_UNKNOWN_SIZE = 0x7FFFF000


class Sound(NamedTuple):
    """The samples of a file.

    Attributes:
        sample_rate: Samples per second and channel.
        samples: [samples, channels]: floats, or integers from -full_scale to full_scale - 1.
            Unsigned samples of 8 bits are shifted to -128..127; those of 24 bits have 8 zero bits
            below.
        full_scale: The number that means 1.0.
        integer_scale: What does in `integers`.
    """

    sample_rate: int
    samples: Array
    full_scale: int
    integer_scale: int

    def integers(self) -> Array:
        """The samples as integers from -integer_scale to integer_scale - 1; floats are rounded and
        clipped.
        """
        if self.samples.dtype.kind == "i":
            return self.samples
        scaled = np.rint(self.samples.astype(np.float64) * self.integer_scale)
        return np.clip(scaled, -self.integer_scale, self.integer_scale - 1).astype(np.int64)


def read_wav(data: memoryview) -> Sound | None:
    """Read a WAV file of PCM samples of 8, 16, 24 or 32 bits, or of floats of 32 or 64 bits.

    Returns:
        None for other encodings and other files. The samples may be a view of the bytes.

    Raises:
        ParseError: The file is truncated or its header contradicts itself.
    """
    if bytes(data[:4]) != b"RIFF" or bytes(data[8:12]) != b"WAVE":
        return None
    position, fields = 12, None
    while position + _CHUNK.size <= len(data):
        name, size = _CHUNK.unpack_from(data, position)
        position += _CHUNK.size
        if name == b"fmt ":
            fields = _fields(data[position : position + size])
        elif name == b"data":
            if fields is None:
                raise ParseError("expected a format before the samples of a WAV file, got none")
            # The bytes after the samples, such as tags, are not needed.
            return _samples(data[position:], size, *fields)
        position += size
        # A chunk of an odd size is followed by a zero; TensorFlow expects none, so files without it
        # exist.
        position += size % 2 and data[position : position + 1].tobytes() == b"\0"
    raise ParseError(
        "expected samples in a WAV file, got none: it is truncated, or has no data chunk"
    )


def _fields(chunk: memoryview) -> tuple[int, int, int, int]:
    """Encoding, channels, samples per second and bits per sample."""
    if len(chunk) < _FORMAT.size:
        raise ParseError(
            f"expected at least {_FORMAT.size} bytes of format in a WAV file, got {len(chunk)}"
        )
    encoding, channels, sample_rate, _, frame_bytes, bits = _FORMAT.unpack_from(chunk)
    if encoding == _EXTENSIBLE and len(chunk) >= _ENCODING.size:
        _, encoding = _ENCODING.unpack_from(chunk)
    # The rate is given as an int32.
    if not channels or not 0 < sample_rate < 1 << 31:
        raise ParseError(
            f"expected a WAV file with channels and a rate, got {channels} at {sample_rate} per second"
        )
    if (encoding, bits) in _DTYPES and frame_bytes * 8 != channels * bits:
        raise ParseError(
            f"expected {channels * bits // 8} bytes for each of a WAV file's {channels} samples of {bits} bits, "
            f"got {frame_bytes}"
        )
    return encoding, channels, sample_rate, bits


def _samples(
    data: memoryview, size: int, encoding: int, channels: int, sample_rate: int, bits: int
) -> Sound | None:
    dtype = _DTYPES.get((encoding, bits))
    # FFmpeg may know the encoding.
    if dtype is None:
        return None
    if size > len(data) and size < _UNKNOWN_SIZE:
        raise ParseError(
            f"expected {size} bytes of samples in a WAV file, got {len(data)}: it is truncated"
        )
    frame_bytes = channels * bits // 8
    # A part of a frame at the end has not a whole sample for every channel.
    kept = data[: min(size, len(data)) // frame_bytes * frame_bytes]
    found: Array = np.frombuffer(kept, dtype) if len(kept) else np.zeros(0, dtype)
    if encoding == _FLOAT:
        return Sound(sample_rate, found.reshape(-1, channels), 1, 1 << 31)
    full_scale = 1 << bits - 1
    if bits == 8:
        found = found.astype(np.int16) - 128
    elif bits == 24:
        # No dtype has three bytes: they become the upper three of four.
        wide = np.zeros((len(found) // 3, 4), np.uint8)
        wide[:, 1:] = found.reshape(-1, 3)
        found, full_scale = wide.view("<i4")[:, 0], 1 << 31
    return Sound(sample_rate, found.reshape(-1, channels), full_scale, full_scale)


_SAMPLE_BYTES = 4
_MARGIN_SECONDS = 1.0  # codecs and resampling give the last samples late
_PLACE = re.compile(r"^.*\.(?:cpp|h):\d+, ")  # for an error in torchcodec's source
# A WAV file of one sample. Newer torchcodecs look for FFmpeg not when they are imported, but when
# they decode.
_LITTLE_WAV = struct.pack(
    "<4sI4s4sIHHIIHH4sIh",
    b"RIFF",
    38,
    b"WAVE",
    b"fmt ",
    16,
    1,
    1,
    8000,
    16000,
    2,
    16,
    b"data",
    2,
    0,
)
_FFMPEG = "apt install ffmpeg, brew install ffmpeg or conda install ffmpeg"
_MISSING = (
    "decoding a video, or a sound other than a WAV file of PCM or float samples, or resampling one, needs torchcodec "
    f"and FFmpeg 4 or newer: pip install torchcodec, and {_FFMPEG}"
)
# torchcodec tries its library for each version of FFmpeg, and lists what was wrong with each.
_LOADING = re.compile(r"^(?:\w*Error|FFmpeg version \d+): (?!Could not load)(\S.*)$", re.MULTILINE)
_FFMPEG_LIBRARY = re.compile(
    r"(?=.*\blib(?:av|sw)\w+\.)(?=.*(?:cannot open|not loaded))", re.IGNORECASE
)


@functools.cache
def _decoders() -> Value:
    """torchcodec's decoders.

    Raises:
        ImportError: torchcodec or FFmpeg is missing.
    """
    try:
        decoders = importlib.import_module("torchcodec.decoders")
        decoders.AudioDecoder(_source(_LITTLE_WAV))
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(_MISSING) from error
    return decoders


def decoders_state() -> str:
    """The decoder of sounds and videos here, in words; or why there is none, and how to get it."""
    try:
        _decoders()
    except ImportError as error:
        obstacle = _reason(error.__cause__)
        how = {
            "torchcodec is not installed": "pip install torchcodec",
            "torchcodec finds no FFmpeg": _FFMPEG,
        }
        other = f"install the torchcodec that fits your torch, and FFmpeg: {_FFMPEG}"
        return f"not available (optional): {obstacle}: {how.get(obstacle, other)}"
    return f"torchcodec and FFmpeg {_ffmpeg_version()} (sounds, resampling, videos)"


def _reason(error: BaseException | None) -> str:
    if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("torchcodec"):
        return "torchcodec is not installed"
    told = _LOADING.findall(str(error))
    others = [line for line in told if not _FFMPEG_LIBRARY.match(line)]
    if told and not others:
        return "torchcodec finds no FFmpeg"
    return f"torchcodec does not load ({(others or str(error).splitlines() or [type(error).__name__])[0][:200]})"


def _ffmpeg_version() -> str:
    """The version of FFmpeg that torchcodec has loaded, such as "7"; "" if it does not say."""
    return str(getattr(importlib.import_module("torchcodec"), "ffmpeg_major_version", ""))


def _source(data: bytes | memoryview) -> torch.Tensor:
    # A writable copy: torch warns about other bytes, and torchcodec would silence that by global
    # warning filters.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@contextmanager
def _translated(what: str, data: memoryview) -> Iterator[Any]:
    """Give torchcodec's decoders, and turn their errors into ours."""
    decoders = _decoders()
    # torch makes no tensor of 0 bytes, and its error would say nothing of the file.
    if not len(data):
        raise ParseError(f"expected {what}, got 0 bytes")
    try:
        yield decoders
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        reason = _PLACE.sub("", (str(error).splitlines() or [type(error).__name__])[0])[:200]
        raise ParseError(
            f"expected {what} that FFmpeg can decode, got {len(data)} other bytes ({reason})"
        ) from error


def decode_sound(
    data: memoryview, sample_rate: int | None = None, num_samples: int | None = None
) -> Sound:
    """Decode a sound to float32, resampled if a rate is given.

    Args:
        data: The bytes of a file.
        sample_rate: Samples per second and channel of the result; None means those stored.
        num_samples: How many are needed from the start; there may be more.

    Raises:
        ImportError: torchcodec or FFmpeg is missing.
        LimitExceededError: See `reserve`.
        ParseError: The bytes are not a sound that FFmpeg can decode.
    """
    with _translated("a sound", data) as decoders:
        decoder = decoders.AudioDecoder(_source(data), sample_rate=sample_rate)
        facts = decoder.metadata
        per_second = (sample_rate or facts.sample_rate) * facts.num_channels * _SAMPLE_BYTES
        begin = facts.begin_stream_seconds_from_header or 0.0
        if num_samples is not None:
            found = _beginning(
                decoder, begin + num_samples / (sample_rate or facts.sample_rate) + _MARGIN_SECONDS
            )
            if found is not None and found.data.shape[1] >= num_samples:
                return _sound(found, facts)
            # torchcodec 0.7 begins only once
            decoder = decoders.AudioDecoder(_source(data), sample_rate=sample_rate)
        reserve(int((facts.duration_seconds_from_header or 0) * per_second))
        # The header may lie, so stop a second after the limit.
        found = decoder.get_samples_played_in_range(
            0.0, begin + MAX_BATCH_BYTES / per_second + _MARGIN_SECONDS
        )
    if found.data.nbytes > MAX_BATCH_BYTES:
        raise LimitExceededError(
            f"expected a sound of at most {MAX_BATCH_BYTES} bytes when it is decoded, got a longer one"
        )
    return _sound(found, facts)


def _sound(found: Any, facts: Any) -> Sound:
    # FFmpeg's formats are s16, s32 (for 24 bits, too), flt and so on. Codecs that lose something
    # contain no integers.
    integer_scale = 1 << (31 if str(facts.sample_format).startswith("s32") else 15)
    return Sound(int(found.sample_rate), found.data.numpy().T, 1, integer_scale)


def _beginning(decoder: Any, stop_seconds: float) -> Value:
    """The samples up to a time; None if there are none, as the header may not say when the sound
    begins.
    """
    try:
        return decoder.get_samples_played_in_range(0.0, stop_seconds)
    except RuntimeError:
        return None


class Frames(NamedTuple):
    """Frames of a video.

    Attributes:
        pixels: uint8 [T, 3, H, W].
        pts_seconds: float64 [T]: when each is shown.
        average_fps: Frames per second; NaN if unknown.
    """

    pixels: torch.Tensor
    pts_seconds: torch.Tensor
    average_fps: float


def decode_frames(data: memoryview, choose: Callable[[int], Sequence[int]]) -> Frames:
    """Decode some frames of a video.

    Args:
        data: The bytes of a file.
        choose: Returns the numbers of the frames, given how many there are.

    Raises:
        ImportError: torchcodec or FFmpeg is missing.
        LimitExceededError: See `reserve`.
        ParseError: The bytes are not a video that FFmpeg can decode.
    """
    with _translated("a video", data) as decoders:
        # One thread: loaders decode several files at a time already.
        decoder = decoders.VideoDecoder(_source(data), num_ffmpeg_threads=1)
        numbers = choose(len(decoder))
        facts = decoder.metadata
        reserve(len(numbers) * 3 * (facts.height or 0) * (facts.width or 0))
        found = decoder.get_frames_at(numbers)
        fps = float("nan") if facts.average_fps is None else float(facts.average_fps)
    return Frames(found.data, found.pts_seconds, fps)
