"""Shared by the Audio and Video specs and their readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np
import torch
from torchvision import tv_tensors

from torch_tfrecord.arguments import at_least, integer, true_or_false
from torch_tfrecord.batch_memory import Array, empty_tensor
from torch_tfrecord.columns import Feature, OneValueSpec, stack
from torch_tfrecord.errors import ParseError
from torch_tfrecord.media.media_decoders import decode_frames, decode_sound, read_wav
from torch_tfrecord.phases import Phase
from torch_tfrecord.random_stream import RandomStream
from torch_tfrecord.samples import Value, mark_listed

__all__ = [
    "Audio",
    "Video",
]


class MediaSpec(OneValueSpec):
    """A spec of one encoded sound or video, of which a window may be drawn at random.

    Attributes:
        random_start, seed: Whether to draw where the window begins, and what determines the draws.
    """

    _decodes = True

    random_start: bool
    seed: int

    @property
    def _is_drawn(self) -> bool:
        return self.random_start

    @property
    def _returns_parts(self) -> bool:
        """Whether a sample is a dict of all parts."""
        raise NotImplementedError

    @property
    def _has_length(self) -> bool:
        """Whether all samples have the same length."""
        raise NotImplementedError

    def _check_step(self, name: str) -> None:
        if self._returns_parts:
            raise ValueError(
                f"{name!r}: steps of a feature list hold no dicts; leave out return_rate or return_times"
            )

    def _value(self, stored: memoryview, shape: object, key: int) -> dict[str, torch.Tensor]:
        """The parts of one sample; the first is the one that counts."""
        with Phase("decode"):
            return self._decode(stored, int(key))

    def _decode(self, data: memoryview, key: int) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def _column(self, values: list[dict[str, torch.Tensor]]) -> Value:
        """A tensor [N, ...] for samples of one length, else a list; or a dict of such parts."""
        names = values[0] if values else ()
        parts = {name: self._together([row[name] for row in values]) for name in names}
        return parts if self._returns_parts else next(iter(parts.values()), [])

    def _together(self, values: list[torch.Tensor]) -> Value:
        # Rates and the like are scalars, which stack whatever the lengths of the sounds.
        if self._has_length or not values[0].dim():
            return stack(values)
        # Listed even where the lengths happen to be equal: a batch's kind must not hang on its
        # data.
        return [*map(mark_listed, values)]

    def _check_no_draw(self, name: str) -> None:
        if self._is_drawn:
            raise ValueError(
                f"random_start of {name!r}: features of a SequenceExample are not drawn at random"
            )

    def _check_common(self, *counts: str) -> None:
        for argument in counts:
            count = getattr(self, argument)
            if count is not None:
                object.__setattr__(self, argument, at_least(1, argument, count))
        true_or_false("random_start", self.random_start)
        object.__setattr__(self, "seed", integer("seed", self.seed))


def window_start(spec: MediaSpec, key: int, total: int, length: int) -> int:
    """Where a window of a length begins in a total: at 0, or anywhere with ``random_start``."""
    if not spec.random_start or total <= length:
        return 0
    return RandomStream(spec.seed, key).below(total - length + 1)


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

    _: KW_ONLY
    sample_rate: int | None = None
    num_channels: int | None = None
    num_samples: int | None = None
    random_start: bool = False
    seed: int = 0
    return_rate: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        self._check_common("sample_rate", "num_channels", "num_samples")
        true_or_false("return_rate", self.return_rate)
        if self.random_start and self.num_samples is None:
            raise ValueError("random_start needs num_samples: how long the window is that is drawn")

    @property
    def _returns_parts(self) -> bool:
        return self.return_rate

    @property
    def _has_length(self) -> bool:
        return self.num_samples is not None

    def _decode(self, data: memoryview, key: int) -> dict[str, torch.Tensor]:
        """The samples of a file, and their rate."""
        sound = read_wav(data)
        # Another rate than the file's takes resampling, which is left to FFmpeg.
        if sound is None or self.sample_rate not in (None, sound.sample_rate):
            # To draw a window one must know the whole length.
            needed = None if self.random_start else self.num_samples
            sound = decode_sound(data, self.sample_rate, needed)
        samples = self._cut(sound.samples, sound.full_scale, key)
        return {
            "samples": samples,
            "sample_rate": torch.tensor(sound.sample_rate, dtype=torch.int32, device="cpu"),
        }

    def _cut(self, stored: Array, full_scale: int, key: int) -> torch.Tensor:
        """The wanted window and channels of samples [N, channels]."""
        total, found = stored.shape
        length, channels = self.num_samples or total, self.num_channels or found
        begin = window_start(self, key, total, length)
        kept = slice(channels) if channels <= found else np.minimum(np.arange(channels), found - 1)
        stored = stored[begin : begin + length, kept]
        out = empty_tensor((channels, length), torch.float32)
        array = out.numpy()
        # The memory is not zeroed, and only a short sound leaves some of it over.
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


@dataclass(frozen=True, repr=False)
class Video(MediaSpec, Feature):
    """The bytes of a video file (MP4, WebM, GIF, ...), decoded to a
    ``torchvision.tv_tensors.Video`` by torchcodec.

    A sample is uint8 RGB [T, 3, H, W], values 0 to 255; only the chosen frames become tensors. A
    batch is a list of B tensors, as lengths vary; with ``num_frames``, or ``frames`` as numbers, it
    is one tensor [B, T, 3, H, W] if all sizes are equal. Needs torchcodec and FFmpeg. The memory of
    the frames is checked against ``max_batch_bytes`` before any is decoded.

    Args:
        frames: Which frames: a slice, or their numbers, negative ones from the end. None means all.
        num_frames: How many frames instead. Without ``step``, they are spread evenly from the first
            to the last; frames of a shorter video are repeated.
        step: Take frames that are this far apart, from the first on; if the video ends, its last
            frame is repeated.
        random_start: Draw where the frames that are ``step`` apart begin in a longer video; a pure
            function of (seed, key), where the loader gives each sample in each epoch a different
            key.
        seed: Determines the draws, together with the key of each sample.
        return_times: Return a dict of "frames"; "pts_seconds", when each frame is shown, float64
            [T]; and "average_fps", a float64 scalar ([B] in a batch), NaN if unknown.
        key: Name of the feature in the record, if it differs from the output's name.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is below 1, both ``frames`` and ``num_frames`` are given, ``step`` is
            used without ``num_frames``, or ``random_start`` without ``step``.

    Example:
        >>> Video(num_frames=16, step=2, random_start=True)
        Video(num_frames=16, step=2, random_start=True)
    """

    _has_pictures = True
    _: KW_ONLY
    # Before Python 3.12 a slice has no hash.
    frames: slice | Sequence[int] | None = field(default=None, hash=False)
    num_frames: int | None = None
    step: int | None = None
    random_start: bool = False
    seed: int = 0
    return_times: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        self._check_common("num_frames", "step")
        true_or_false("return_times", self.return_times)
        if self.frames is not None and not isinstance(self.frames, slice):
            object.__setattr__(self, "frames", _numbers(self.frames))
        if self.frames is not None and self.num_frames is not None:
            raise ValueError(
                "frames and num_frames must not both be given: each says which frames to take"
            )
        if self.step is not None and self.num_frames is None:
            raise ValueError(
                "step needs num_frames; for every second frame of a whole video: frames=slice(None, None, 2)"
            )
        if self.random_start and self.step is None:
            raise ValueError(
                "random_start needs num_frames and step: frames spread over the whole video have no start"
            )

    @property
    def _returns_parts(self) -> bool:
        return self.return_times

    @property
    def _has_length(self) -> bool:
        return self.num_frames is not None or isinstance(self.frames, tuple)

    def _decode(self, data: memoryview, key: int) -> dict[str, torch.Tensor]:
        """The chosen frames of a file, and their times."""
        found = decode_frames(data, lambda total: self._chosen(total, key))
        return {
            "frames": found.pixels.as_subclass(tv_tensors.Video),
            "pts_seconds": found.pts_seconds,
            "average_fps": torch.tensor(found.average_fps, dtype=torch.float64, device="cpu"),
        }

    def _chosen(self, total: int, key: int) -> list[int]:
        """The numbers of the frames, of so many."""
        if self.num_frames is None:
            return self._listed(total)
        if self.step is None:
            # A single frame has no gaps, and is the first.
            gaps = max(self.num_frames - 1, 1)
            return [number * (total - 1) // gaps for number in range(self.num_frames)]
        # A window spans its first to its last frame, whatever the step.
        begin = window_start(self, key, total, (self.num_frames - 1) * self.step + 1)
        return [min(begin + number * self.step, total - 1) for number in range(self.num_frames)]

    def _listed(self, total: int) -> list[int]:
        if self.frames is None or isinstance(self.frames, slice):
            chosen = list(range(total))[self.frames or slice(None)]
        elif all(-total <= number < total for number in self.frames):
            chosen = [number % total for number in self.frames]
        else:
            chosen = []
        if not chosen:
            raise ParseError(
                f"expected a video with the frames {self.frames}, got one of {total} frames"
            )
        return chosen


def _numbers(frames: object) -> tuple[int, ...]:
    if isinstance(frames, (str, bytes)) or not hasattr(frames, "__iter__"):
        raise TypeError(f"frames must be a slice or the numbers of frames, got {frames!r}")
    numbers = tuple(integer("frames", number, "a slice or integers") for number in frames)
    if not numbers:
        raise ValueError("frames must be a slice or at least one number, got none")
    return numbers
