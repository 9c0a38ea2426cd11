"""The frames of one camera in one episode: for a video, or as image files."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from index_tools.lerobot_features import LeRobotFeature
from index_tools.lerobot_files import Movie
from index_tools.lerobot_statistics import PixelStatistics
from torch_tfrecord.errors import ImageDecodeError, ParseError
from torch_tfrecord.images.codec import encode_image, image_size
from torch_tfrecord.images.headers import ImageHeader, read_header
from torch_tfrecord.tfds.episode_columns import EncodedColumn, FeaturePlace
from torch_tfrecord.tfds.episode_store import STEPS, Episode, EpisodeStore

__all__ = ["CameraFrames"]

_BLOCK_STEPS = 32  # frames read and decoded together


class CameraFrames:
    """The frames of one camera in one episode.

    Reading raises ImageDecodeError for a frame that cannot be decoded, and ParseError for one of
    another size than the feature; both name the feature, the step, the file and the record.

    Args:
        feature: The camera.
        episode: The episode.
        store: Where it is from.

    Attributes:
        statistics: Of the frames that `add_to` or `files` has gone through.
    """

    def __init__(self, feature: LeRobotFeature, episode: Episode, store: EpisodeStore) -> None:
        self._size = feature.shape[:2]
        self._column: EncodedColumn = feature.column(episode.steps)
        self._place = FeaturePlace(
            f"{STEPS}/{feature.paths[0]}", store.record(episode.number).locate
        )
        self.statistics = PixelStatistics(episode.num_steps)

    def first_size(self) -> tuple[int, int]:
        """(height, width) of the first frame."""
        try:
            return image_size(self._column.encoded(0, 1)[0])
        except ImageDecodeError as error:
            raise self._place.at_step(error, 0) from error

    def add_to(self, movie: Movie) -> None:
        """Add all frames to a video."""
        for step, frame in self._pixels(range(len(self._column))):
            movie.add(frame)
            self._count(step, frame)

    def files(self) -> Iterator[dict[str, bytes | str]]:
        """The frames as files: the bytes that are there if any program reads the same pixels from
        them, else a PNG.
        """
        for first in range(0, len(self._column), _BLOCK_STEPS):
            stop = min(first + _BLOCK_STEPS, len(self._column))
            for step, data in enumerate(self._column.encoded(first, stop), first):
                header = self._header(data, step)
                is_kept = self._is_plain(header)
                if not is_kept or step in self.statistics.numbers:
                    ((_, frame),) = self._pixels(range(step, step + 1))
                    self._count(step, frame)
                    data = data if is_kept else encode_image(frame.transpose(2, 0, 1), "png")
                yield {
                    "bytes": data,
                    "path": f"frame-{step:06d}.{header.format if is_kept else 'png'}",
                }

    def _count(self, step: int, frame: npt.NDArray[np.uint8]) -> None:
        if step in self.statistics.numbers:
            self.statistics.add(frame)

    def _pixels(self, steps: range) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """The frames of steps as uint8 [H, W, 3]: gray is repeated, alpha left out."""
        for first in range(steps.start, steps.stop, _BLOCK_STEPS):
            pictures = self._column.read(first, min(first + _BLOCK_STEPS, steps.stop))
            for step, picture in enumerate(pictures, first):
                self._check_size(tuple(picture.shape[1:]), step)
                frame = picture.as_subclass(torch.Tensor)[:3].expand(3, -1, -1).permute(1, 2, 0)
                yield step, frame.contiguous().numpy()

    def _header(self, data: bytes, step: int) -> ImageHeader:
        try:
            header = read_header(data)
        except ImageDecodeError as error:
            raise self._place.at_step(error, step) from error
        self._check_size((header.height, header.width), step)
        return header

    def _check_size(self, size: tuple[int, ...], step: int) -> None:
        if size != self._size:
            wanted, found = (f"{height} x {width}" for height, width in (self._size, size))
            text = f"expected an image of {wanted} pixels, as in the first episode, got {found}"
            raise self._place.at_step(ParseError(text), step)

    def _is_plain(self, header: ImageHeader) -> bool:
        """Whether any program reads the same pixels from an image: RGB of 8 bits, upright."""
        has_colours = self._column.pictures is not None and self._column.pictures.mode == "RGB"
        is_common = header.format in ("jpeg", "png") and header.channels == 3 and header.bits == 8
        return has_colours and is_common and header.orientation == 1
