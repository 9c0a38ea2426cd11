"""The Audio spec, which decodes the bytes of a sound file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import true_or_false
from torch_tfrecord.batch_memory import empty_tensor
from torch_tfrecord.columns.feature import Feature
from torch_tfrecord.columns.media import MediaReader, MediaSpec, window_start
from torch_tfrecord.columns.media_decoders import decode_sound
from torch_tfrecord.columns.wav import read_wav

__all__ = ["Audio"]


@dataclass(frozen=True, repr=False)
class Audio(MediaSpec, Feature):
    """The bytes of a sound file (WAV, FLAC, MP3, Ogg, ...), decoded to float32 [channels, samples]
    from -1 to 1.

    WAV files of PCM (8, 16, 24 and 32 bits) or float samples need no other library, and have the
    values of ``tf.audio.decode_wav``, which reads those of 16 bits to [samples, channels]. Other
    files, and resampling, need torchcodec and FFmpeg. A batch is a list of B tensors, as lengths
    vary; with ``num_samples``, it is one tensor [B, channels, num_samples] if the numbers of
    channels are equal.

    Args:
        sample_rate: Samples per second to resample to; None keeps the file's.
        num_channels: As TensorFlow's ``desired_channels``: takes the first channels, or repeats the
            last one. It mixes nothing: for the mean, take all channels and call ``mean(0,
            keepdim=True)`` in the transform.
        num_samples: As TensorFlow's ``desired_samples``: cut at the end, or filled up with zeros;
            counted after resampling.
        random_start: Draw where the ``num_samples`` begin in a longer sound; a pure function of
            (seed, key), where the loader gives each sample in each epoch a different key.
        seed: Determines the draws, together with the key of each sample.
        return_rate: Return a dict of "samples", and "sample_rate", an int32 scalar ([B] in a
            batch).
        key: Name of the feature in the record, if it differs from the output's name.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is below 1, or ``random_start`` is used without ``num_samples``.

    Example:
        >>> Audio(sample_rate=16000, num_channels=1)
        Audio(sample_rate=16000, num_channels=1)
    """

    sample_rate: int | None = field(default=None, kw_only=True)
    num_channels: int | None = field(default=None, kw_only=True)
    num_samples: int | None = field(default=None, kw_only=True)
    random_start: bool = field(default=False, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    return_rate: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        self._check_common(
            sample_rate=self.sample_rate,
            num_channels=self.num_channels,
            num_samples=self.num_samples,
        )
        true_or_false("return_rate", self.return_rate)
        if self.random_start and self.num_samples is None:
            raise ValueError("random_start needs num_samples: how long the window is that is drawn")

    def reader(self, name: str, *, pads: bool = False) -> MediaReader:
        """Build the reader for Examples."""
        return MediaReader(
            name, self, has_length=self.num_samples is not None, returns_parts=self.return_rate
        )

    def decode(self, data: memoryview, key: int) -> dict[str, torch.Tensor]:
        """The samples of a file, and their rate."""
        sound = read_wav(data)
        if sound is None or self.sample_rate not in (None, sound.sample_rate):
            needed = None if self.random_start else self.num_samples
            sound = decode_sound(data, self.sample_rate, needed)
        samples = self._cut(sound.samples, sound.full_scale, key)
        return {
            "samples": samples,
            "sample_rate": torch.tensor(sound.sample_rate, dtype=torch.int32),
        }

    def _cut(self, stored: npt.NDArray[Any], full_scale: int, key: int) -> torch.Tensor:
        """The wanted window and channels of samples [N, channels]."""
        total, found = stored.shape
        length, channels = self.num_samples or total, self.num_channels or found
        begin = window_start(self, key, total, length)
        kept = slice(channels) if channels <= found else np.minimum(np.arange(channels), found - 1)
        stored = stored[begin : begin + length, kept]
        out = empty_tensor((channels, length), torch.float32)
        array = out.numpy()
        array[:, len(stored) :] = 0
        # doubles that float32 cannot hold become infinite
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply(
                stored.T,
                1 / full_scale,
                out=array[:, : len(stored)],
                dtype=np.float32,
                casting="unsafe",
            )
        return out
