"""Pictures that a GPU decodes, crops and resizes, many at once.

Each axis is cropped and resized by a product of matrices, with the weights of ``native/crops.h``: few calls
for many pictures, since each of torch's takes Python's lock. torchcodec decodes, by nvJPEG.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from torch_tfrecord.batch_memory import ON_DEVICE, SMALL_BYTES, Array, Ints
from torch_tfrecord.errors import ImageDecodeError, warn_once

if TYPE_CHECKING:
    from torch_tfrecord.native.jpeg import CropJob

__all__ = ["leave", "num_left"]

_Decode: TypeAlias = Callable[..., list[torch.Tensor]]
# Before it, kernels of other streams could still read memory that it wrote: its pull request 1634.
_OLDEST = (0, 17)
# Pixels that are on the device at once: decoded, and as floats.
_MOST_DECODED, _MOST_RESIZED = 1 << 27, 1 << 25


@functools.cache
def device_decoder() -> _Decode | None:
    """torchcodec's ``decode_jpeg``; None, with a warning, if it is not there or too old."""
    try:
        version = importlib.metadata.version("torchcodec")
        if tuple(map(int, version.split(".")[:2])) < _OLDEST:
            raise ImportError(f"torchcodec {version}")
        decode: _Decode = importlib.import_module("torchcodec.decoders").decode_jpeg
    # RuntimeError: without the libraries that it needs
    except (AttributeError, ImportError, RuntimeError, ValueError) as error:
        warn_once(
            "decode_on: the CPU decodes all pictures, since a device needs torchcodec 0.17 or newer, and got: "
            f"{error}"
        )
        return None
    return decode


def num_left(decode_on: str, count: int, out: Array) -> int:
    """How many of so many pictures to leave to the device to which this memory is copied."""
    if decode_on == "cpu":
        return 0
    on_device = ON_DEVICE.get()
    if on_device is not None:
        is_able = out.nbytes >= SMALL_BYTES and device_decoder() is not None
        return on_device.share(count, decode_on) if is_able else 0
    if decode_on == "device":
        warn_once(
            "decode_on='device': the CPU decodes these pictures, since their loader has no device (device='cuda'), "
            "or worker processes, a transform or a collate_fn of your own make its batches"
        )
    return 0


def leave(
    job: CropJob,
    images: Callable[[], Sequence[Any]],
    out: Array,
    *,
    rows: Ints | None = None,
    table: Array | None = None,
    is_bicubic: bool = False,
) -> None:
    """Leave to the device what a job that has run left; count what it did for comparison.

    Args:
        job: The job.
        images: Gives its encoded images, as buffers.
        out: Its memory: uint8 [N, H, W, C], or with a table float32 [N, C, H, W].
        rows: The row of each image in that memory; None if they are in order.
        table: See `normalization`; None for uint8.
        is_bicubic: The filter, else bilinear.
    """
    on_device, decode = ON_DEVICE.get(), device_decoder()
    if on_device is None or decode is None:
        return
    numbers = np.flatnonzero(job.left[:, 2])
    work = None
    if len(numbers):
        # Those of one size together, and in the end those of similar ones, in the memory of the largest.
        numbers = numbers[np.lexsort(job.sizes[numbers].T)]
        found = images()
        arrays = [np.frombuffer(found[number], np.uint8) for number in numbers.tolist()]
        work = DeviceCrops(
            out,
            decode,
            numbers if rows is None else rows[numbers],
            [
                torch.from_numpy(array if array.flags.writeable else array.copy())
                for array in arrays
            ],
            job.sizes[numbers],
            job.left[numbers],
            table,
            is_bicubic,
        )
    on_device.leave(work, job.done - len(numbers), job.seconds)


@dataclass(eq=False)
class DeviceCrops:
    """Crops of JPEG images, made in the device's copy of a batch's memory; a `DeviceWork`.

    Attributes:
        out: The batch's memory: uint8 [N, H, W, C], or with a table float32 [N, C, H, W].
        decode: See `device_decoder`.
        rows: int64 [K]: the row of each image.
        images: The encoded images, uint8 each.
        sizes: int32 [K, 2]: the height and width of each; equal ones follow one another.
        plans: int64 [K, 10], as of a `CropJob`.
        table: See `normalization`; None for uint8.
        is_bicubic: The filter, else bilinear.
    """

    out: Array
    decode: _Decode
    rows: Ints
    images: Sequence[torch.Tensor]
    sizes: Array
    plans: Ints
    table: Array | None
    is_bicubic: bool

    @property
    def _window(self) -> tuple[int, ...]:
        """Channels, height and width."""
        shape = self.out.shape
        return shape[1:] if self.table is not None else (shape[3], *shape[1:3])

    def __len__(self) -> int:
        return len(self.rows)

    def on(self, memory: torch.Tensor) -> None:
        """See `DeviceWork`."""
        device, dtype = memory.device, torch.uint8 if self.table is None else torch.float32
        target = memory.view(dtype).view(self.out.shape)
        table = None if self.table is None else torch.from_numpy(self.table).to(device)
        rows, (_, high, wide) = torch.from_numpy(self.rows).to(device), self._window
        plans = torch.from_numpy(self.plans.astype(np.float32)).to(device)
        for begin, end in _groups(self.sizes, _MOST_DECODED):
            images = self._decoded(slice(begin, end), device)
            for first, last in _groups(self.sizes[begin:end], _MOST_RESIZED):
                own = slice(begin + first, begin + last)
                pixels = _padded(images[first:last], self.sizes[own])
                if not self._is_whole(own):
                    pixels = self._resized(pixels, plans[own])
                target.index_copy_(0, rows[own], _by_table(pixels[:, :, :high, :wide], table))

    def _decoded(self, own: slice, device: torch.device) -> list[torch.Tensor]:
        """uint8 [C, H, W] each."""
        channels = self._window[0]
        mode = "RGB" if channels == 3 else "GRAY"
        images = self.decode(self.images[own], mode=mode, device=device)
        for image, size in zip(images, self.sizes[own].tolist(), strict=True):
            if image.shape != (channels, *size):
                raise ImageDecodeError(f"expected {[channels, *size]} pixels, got {[*image.shape]}")
        return images

    def _is_whole(self, own: slice) -> bool:
        """Whether the images are the windows."""
        whole = 0, 0, *self._window[1:] * 2, 0, 0, 0, 0
        return bool((self.plans[own] == whole).all() and (self.sizes[own] == whole[2:4]).all())

    def _resized(self, images: torch.Tensor, plans: torch.Tensor) -> torch.Tensor:
        """The windows, [n, C, H, W]: whole numbers from 0 to 255."""
        # A plan as numbers: the region's begin and side, that to which it is resized, the window's begin, mirrored.
        _, high, wide = self._window
        columns, rows = (
            _weights(plans[:, axis], size, taps, self.is_bicubic).to(images.dtype)
            for axis, size, taps in (
                ([1, 3, 5, 7, 8], wide, images.shape[3]),
                ([0, 2, 4, 6, 9], high, images.shape[2]),
            )
        )
        across = torch.matmul(images.flatten(1, 2), columns.transpose(1, 2)).clamp_(0, 255)
        pixels = torch.matmul(rows[:, None], across.unflatten(1, images.shape[1:3]))
        return pixels.round_().clamp_(0, 255)


def _padded(images: list[torch.Tensor], sizes: Array) -> torch.Tensor:
    """Images with zeros to the right and below: [n, C, H, W], float16 on a GPU, which is exact."""
    device, dtype = images[0].device, torch.float16
    if device.type == "cpu":
        dtype = torch.float32
    # Products of matrices want sides of 8.
    height, width = (-(-int(side) // 8) * 8 for side in sizes.max(0))
    padded = torch.zeros(len(images), len(images[0]), height, width, dtype=dtype, device=device)
    borders = np.flatnonzero(np.diff(sizes, axis=0).any(1)) + 1
    for begin, end in itertools.pairwise([0, *borders.tolist(), len(images)]):
        high, wide = sizes[begin].tolist()
        padded[begin:end, :, :high, :wide] = torch.stack(images[begin:end])
    return padded


def _by_table(pixels: torch.Tensor, table: torch.Tensor | None) -> torch.Tensor:
    """Pixels [n, C, H, W] as rows of the batch's memory."""
    if table is None:
        return pixels.permute(0, 2, 3, 1).to(torch.uint8)
    channels = torch.arange(len(table), device=table.device)[:, None, None]
    return table[channels, pixels.long()]


def _weights(axis: torch.Tensor, size: int, taps: int, is_bicubic: bool) -> torch.Tensor:
    """[n, size, taps]: the weight of each pixel of an image in each one of the window, as `axis_make`
    in ``native/crops.h``; zeros where the window is larger.
    """
    begin, length, resized, window, is_mirrored = axis.T[..., None]
    place = torch.arange(size, device=axis.device)
    place = torch.where(is_mirrored > 0, size - 1 - place, place) + window
    scale = length / resized
    pixel = torch.arange(taps, device=axis.device) - begin
    x = (pixel + 0.5)[:, None] - (scale * (place + 0.5))[..., None]
    x = (x / scale.clamp(min=1)[..., None]).abs_()
    if is_bicubic:
        near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
        weights = torch.where(x < 1, near, torch.where(x < 2, far, 0))
    else:
        weights = (1 - x).clamp_(min=0)
    weights *= ((pixel >= 0) & (pixel < length))[:, None]
    is_inside = (place >= 0) & (place < resized)
    return torch.where(is_inside[..., None], weights / weights.sum(-1, keepdim=True), 0)


def _groups(sizes: Array, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of images that have at most so many pixels, each in the memory of the largest."""
    begin = high = wide = 0
    for number, (height, width) in enumerate(sizes.tolist()):
        high, wide = max(high, height), max(wide, width)
        if number > begin and (number + 1 - begin) * high * wide > most:
            yield begin, number
            begin, high, wide = number, height, width
    yield begin, len(sizes)
