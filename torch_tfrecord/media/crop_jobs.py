"""Batches of cropped images: resized, optionally flipped and normalised.

A crop is drawn from the size in an image's header; only its region is decoded if possible, resized
once in uint8, and written straight to its row of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from torch_tfrecord.batch_memory import empty_bytes, reserve
from torch_tfrecord.errors import ImageDecodeError
from torch_tfrecord.media.codec import CHANNELS, EncodedImage
from torch_tfrecord.media.crops import Crop, RandomResizedCrop, ResizedCenterCrop
from torch_tfrecord.media.device_crops import leave, num_left
from torch_tfrecord.media.regions import (
    Pixels,
    Region,
    StoredImage,
    check_image_shape,
    view_pixels,
)
from torch_tfrecord.native import native_module, optional_module
from torch_tfrecord.random_stream import to_64_bits

__all__ = [
    "CropWork",
    "Table",
    "batch_tensor",
    "crop_job",
    "empty_batch",
    "normalization",
    "place_pixels",
    "resizes_in_core",
    "run_job",
    "value_table",
]

_Rows: TypeAlias = "npt.NDArray[np.generic]"
Table: TypeAlias = "npt.NDArray[np.float32]"
"""[C, 256]: what becomes of each channel and value of uint8 images, by an elementwise transform."""


def value_table(transform: Callable[[torch.Tensor], torch.Tensor], channels: int) -> Table:
    """The table of an elementwise transform of uint8 images.

    Args:
        transform: Maps an image [C, H, W] to one with the same number of channels.
        channels: C.

    Raises:
        ValueError: The transform does not return float32 [C, H, W].
    """
    every_value = torch.arange(256, dtype=torch.uint8, device="cpu").repeat(channels, 1, 1)
    result = transform(every_value)
    if result.dtype != torch.float32 or result.shape != every_value.shape:
        raise ValueError(
            f"expected float32 {list(every_value.shape)}, got {result.dtype} {list(result.shape)}"
        )
    table: Table = result.reshape(channels, 256).numpy()
    return table


def normalization(mean: Sequence[float], std: Sequence[float]) -> Table:
    """The table of torchvision's ``ToDtype(torch.float32, scale=True)`` and ``Normalize(mean,
    std)``, bit for bit.

    Args:
        mean, std: One number per channel, for values from 0 to 1.
    """

    def normalize(image: torch.Tensor) -> torch.Tensor:
        image = functional.to_dtype_image(image, torch.float32, scale=True)
        result: torch.Tensor = functional.normalize_image(image, list(mean), list(std))
        return result

    return value_table(normalize, len(mean))


class CropWork:
    """Images that are decoded and cropped to one size: most by a job of the core, which needs no
    GIL, the others when it is finished.

    Args:
        crop: The crop of each image.
        images: The encoded images; or where they are in the ``buffer``, int64 [N, 2] of first byte
            and number of bytes, read when the job runs.
        keys: uint64 [N], the random key of each, which determines its crop.
        mode: "RGB", "L" or "RGBA".
        table: None for uint8.
        apply_orientation: Apply the EXIF orientation of each image before it is cropped.
        max_pixels: Maximum height times width, of an image and of its resized form.
        decode_on: See `Image`.

    Attributes:
        job: The job of the core; None if it does not have this crop.
    """

    def __init__(
        self,
        crop: Crop,
        images: Any,
        keys: npt.NDArray[np.uint64],
        *,
        buffer: Any = None,
        mode: str,
        table: Table | None,
        apply_orientation: bool,
        max_pixels: int,
        decode_on: str = "cpu",
    ) -> None:
        self._crop, self._keys, self._mode, self._table = crop, keys, mode, table
        self._is_upright, self._max_pixels = apply_orientation, max_pixels
        self._out = empty_batch(len(images), crop.size, CHANNELS[mode], table)
        drawn = _drawn(crop)
        self.job = None
        if drawn is not None:
            options = {"ignores_exif": not apply_orientation, "keys": keys, **drawn}
            options["num_left"] = num_left(decode_on, len(images), self._out)
            self.job = crop_job(
                buffer, images, self._out, table, max_pixels, crop.interpolation, **options
            )

    @property
    def is_done(self) -> bool:
        """Whether the job has made all of them."""
        return self.job is not None and self.job.done == len(self._out)

    def finish(
        self, values: Sequence[EncodedImage], shapes: Sequence[tuple[object, ...]]
    ) -> torch.Tensor:
        """The cropped images.

        Args:
            values: The encoded images; not kept.
            shapes: Expected (height, width, channels) of each before cropping; see
                `check_image_shape`.

        Returns:
            uint8 [N, C, H, W] in [N, H, W, C] memory ("channels last"), or float32 [N, C, H, W],
            contiguous.

        Raises:
            ImageDecodeError, ParseError: For the first image that cannot be decoded, or has another
                shape.
        """
        if not self.is_done or any(shapes):
            sizes = [(0, 0)] * len(values) if self.job is None else self.job.sizes.tolist()
            for row, (height, width) in enumerate(sizes):
                if height:
                    check_image_shape(shapes[row], (height, width, CHANNELS[self._mode]))
                else:
                    self._crop_one(row, values[row], shapes[row])
        return self.tensor()

    def tensor(self) -> torch.Tensor:
        """The images made so far."""
        return batch_tensor(self._out)

    def leave(self, images: Callable[[], Sequence[EncodedImage]]) -> None:
        """Once the job has run, leave to a device what it has left of the images."""
        if self.job is not None:
            is_bicubic = self._crop.interpolation == "bicubic"
            leave(self.job, images, self._out, table=self._table, is_bicubic=is_bicubic)

    def _crop_one(self, row: int, data: EncodedImage, shape: tuple[object, ...]) -> None:
        most = self._max_pixels
        image = StoredImage(
            data, self._mode, shape=shape, apply_orientation=self._is_upright, max_pixels=most
        )
        plan = self._crop.plan(image.height, image.width, int(self._keys[row]))
        pixels = _resize(image.pixels(Region(*plan[:4])), plan.resized, self._crop, most)
        (height, width), top, left = self._crop.size, plan.window_top, plan.window_left
        window = pixels[top : top + height, left : left + width]
        place_pixels(window, self._out[row], self._table, across=plan.flip)


def crop_job(
    buffer: Any,
    images: Any,
    out: _Rows,
    table: Table | None,
    max_pixels: int,
    interpolation: str | None,
    **options: Any,
) -> Any:
    """A job of the core that crops images, resized by ``interpolation`` unless that is None; None
    without the core, or for what it does not have.
    """
    native, (count, *sizes) = optional_module("jpeg"), out.shape
    height, width, channels = sizes if table is None else (*sizes[1:], sizes[0])
    if native is None or channels == CHANNELS["RGBA"] or not count:
        return None
    return native.CropJob(
        buffer,
        images,
        out.reshape(-1).view(np.uint8),
        (count, height, width, channels),
        table=table,
        max_pixels=max_pixels,
        resizes=interpolation is not None,
        bicubic=interpolation == "bicubic",
        **options,
    )


def run_job(job: Any) -> None:
    """Run a job of the core, if there is one."""
    if job is not None:
        native_module("jobs").run([job])  # type: ignore[union-attr]


def _drawn(crop: Crop) -> dict[str, object] | None:
    """How the core draws a crop; None for one of the user's own, and where it resizes otherwise."""
    if not (crop.antialias and resizes_in_core(crop.interpolation)):
        return None
    if type(crop) is RandomResizedCrop:
        seed = to_64_bits(crop.seed)
        return {"drawn": (seed, crop.scale, crop.ratio, crop.horizontal_flip)}
    if type(crop) is ResizedCenterCrop:
        return {"centred": crop.resize if isinstance(crop.resize, tuple) else (0, crop.resize)}
    return None


def empty_batch(number: int, size: tuple[int, int], channels: int, table: Table | None) -> _Rows:
    """Allocate memory for `place_pixels`: uint8 [N, H, W, C], or with a table float32
    [N, C, H, W].
    """
    shape = (number, *size, channels) if table is None else (number, channels, *size)
    dtype = np.dtype(np.uint8 if table is None else np.float32)
    reserve(num_bytes := math.prod(shape) * dtype.itemsize)
    return empty_bytes(num_bytes).view(dtype).reshape(shape)


def batch_tensor(out: _Rows) -> torch.Tensor:
    """An `empty_batch` as [N, C, H, W]."""
    # Transposed here, since each call of torch's gives Python's lock away.
    return torch.from_numpy(out if out.dtype == np.float32 else out.transpose(0, 3, 1, 2))


def place_pixels(
    pixels: Pixels,
    row: _Rows,
    table: Table | None = None,
    *,
    across: bool = False,
    down: bool = False,
) -> None:
    """Copy uint8 [H, W, C], mirrored ``across`` and ``down``, to a row of an `empty_batch`."""
    native = optional_module("jpeg")
    if native is not None:
        plan = (0, 0, *pixels.shape[:2] * 2, 0, 0, across, down)
        out = row.reshape(-1).view(np.uint8)
        native.place(np.ascontiguousarray(pixels), plan, out, (1, *pixels.shape), table=table)
        return
    pixels = pixels[:: -1 if down else 1, :: -1 if across else 1]
    if table is None:
        row[:] = pixels
    else:
        for values, channel, target in zip(table, pixels.transpose(2, 0, 1), row, strict=True):
            np.take(values, channel, out=target, mode="clip")


def _resize(pixels: Pixels, size: tuple[int, int], crop: Crop, max_pixels: int) -> Pixels:
    """Resize [H, W, C] as torchvision's resize does."""
    height, width, channels = pixels.shape
    if size == (height, width):
        return pixels
    if size[0] * size[1] > max_pixels:
        raise ImageDecodeError(
            f"expected at most {max_pixels} pixels after resizing, got {height} x {width} resized to "
            f"{size[0]} x {size[1]}"
        )
    image = torch.from_numpy(np.ascontiguousarray(pixels))  # resizing is fastest on this layout
    if not (crop.antialias and resizes_in_core(crop.interpolation)):
        mode = InterpolationMode(crop.interpolation)
        slow = functional.resize_image(
            image.permute(2, 0, 1), [*size], interpolation=mode, antialias=crop.antialias
        )
        return view_pixels(slow)
    # The function that torchvision's resize calls. The first stride is explicit, else torch takes the batch of
    # one for contiguous.
    image = image.as_strided(
        (1, channels, height, width), (height * width * channels, 1, width * channels, channels)
    )
    resized = torch.nn.functional.interpolate(
        image, size=size, mode=crop.interpolation, align_corners=False, antialias=True
    )
    return view_pixels(resized[0])


def resizes_in_core(interpolation: object) -> bool:
    """Whether torch resizes uint8 with antialias by the kernel that the core has, too; on other
    processors torchvision resizes float32, which rounds differently, and so do we.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    return interpolation in ("bilinear", "bicubic") and capability in ("AVX2", "AVX512")
