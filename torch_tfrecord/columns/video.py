"""The Video spec, which decodes the bytes of a video file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torchvision import tv_tensors

from torch_tfrecord.arguments import integer, true_or_false
from torch_tfrecord.columns.feature import Feature
from torch_tfrecord.columns.media import MediaReader, MediaSpec, window_start
from torch_tfrecord.columns.media_decoders import decode_frames
from torch_tfrecord.errors import ParseError

__all__ = ["Video"]


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

    # Before Python 3.12 a slice has no hash.
    frames: slice | Sequence[int] | None = field(default=None, kw_only=True, hash=False)
    num_frames: int | None = field(default=None, kw_only=True)
    step: int | None = field(default=None, kw_only=True)
    random_start: bool = field(default=False, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    return_times: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        self._check_common(num_frames=self.num_frames, step=self.step)
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

    def reader(self, name: str, *, pads: bool = False) -> MediaReader:
        """Build the reader for Examples."""
        return MediaReader(
            name,
            self,
            has_length=self.num_frames is not None or isinstance(self.frames, tuple),
            returns_parts=self.return_times,
        )

    def decode(self, data: memoryview, key: int) -> dict[str, torch.Tensor]:
        """The chosen frames of a file, and their times."""
        found = decode_frames(data, lambda total: self._chosen(total, key))
        return {
            "frames": tv_tensors.Video(found.pixels),
            "pts_seconds": found.pts_seconds,
            "average_fps": torch.tensor(found.average_fps, dtype=torch.float64),
        }

    def _chosen(self, total: int, key: int) -> list[int]:
        """The numbers of the frames, of so many."""
        if self.num_frames is None:
            return self._listed(total)
        if self.step is None:
            gaps = max(self.num_frames - 1, 1)
            return [number * (total - 1) // gaps for number in range(self.num_frames)]
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
