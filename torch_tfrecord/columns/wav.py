"""WAV files: the header, and the samples as they are stored.

The format is RIFF's (Microsoft and IBM, 1991): chunks of a name, a uint32 size and as many bytes,
of which "fmt " says how the samples in "data" are stored. What ``tf.audio.decode_wav`` reads is
read with the same values.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import ParseError

__all__ = ["Sound", "read_wav"]

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
        full_scale: What stands for 1.0.
        integer_scale: What does in `integers`.
    """

    sample_rate: int
    samples: npt.NDArray[Any]
    full_scale: int
    integer_scale: int

    def integers(self) -> npt.NDArray[Any]:
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
    if dtype is None:
        return None
    if size > len(data) and size < _UNKNOWN_SIZE:
        raise ParseError(
            f"expected {size} bytes of samples in a WAV file, got {len(data)}: it is truncated"
        )
    frame_bytes = channels * bits // 8
    kept = data[: min(size, len(data)) // frame_bytes * frame_bytes]
    found: npt.NDArray[Any] = np.frombuffer(kept, dtype) if len(kept) else np.zeros(0, dtype)
    if encoding == _FLOAT:
        return Sound(sample_rate, found.reshape(-1, channels), 1, 1 << 31)
    full_scale = 1 << bits - 1
    if bits == 8:
        found = found.astype(np.int16) - 128
    elif bits == 24:
        wide = np.zeros((len(found) // 3, 4), np.uint8)
        wide[:, 1:] = found.reshape(-1, 3)
        found, full_scale = wide.view("<i4")[:, 0], 1 << 31
    return Sound(sample_rate, found.reshape(-1, channels), full_scale, full_scale)
