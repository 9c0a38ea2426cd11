"""torchvision transforms that start with a crop: the crop is drawn from the image's size, before
decoding.

::

    Compose([RandomResizedCrop, RandomHorizontalFlip, ToDtype, Normalize])
             └── crop ───────┘  └── rest: flips, then a table of values ─┘

The transforms' own ``make_params`` and ``transform`` do the work, so draws and pixels are
unchanged; only their input is smaller. Anything that is not exactly an unmodified torchvision
transform is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torchvision
from torchvision import tv_tensors
from torchvision.transforms import v2

from torch_tfrecord.media.crop_jobs import (
    Region,
    StoredImage,
    Table,
    batch_tensor,
    crop_job,
    empty_batch,
    place_pixels,
    resizes_in_core,
    run_job,
    value_table,
)
from torch_tfrecord.media.crops import CropPlan, centre, interpolation_name
from torch_tfrecord.torch_internals import has_hooks

__all__ = ["LeadingCrop", "find_leading_crop"]

_Step: TypeAlias = Callable[[Any], Any]
_Params: TypeAlias = dict[str, Any]

_CROPS = (v2.RandomResizedCrop, v2.RandomCrop, v2.CenterCrop)
_FLIPS = (v2.RandomHorizontalFlip, v2.RandomVerticalFlip)
# They draw nothing and work value by value; for an Image, ToImage does nothing, like Identity.
_OF_VALUES = (v2.ToDtype, v2.ConvertImageDtype, v2.Normalize, v2.ToImage, v2.Identity)
# Older torchvisions do not use torch's kernel for uint8 on every processor that has it.
_KNOWS_UINT8 = tuple(map(int, torchvision.__version__.split(".")[:2])) >= (0, 24)
_IMAGES_AT_ONCE = 8  # per thread


def find_leading_crop(transform: object, channels: int) -> LeadingCrop | None:
    """The crop that a transform of images starts with; None if it starts with something else.

    Called again for each batch, as transforms may be changed at any time.
    """
    steps = list(_steps(transform))
    while steps and _does_nothing(steps[0]):
        del steps[0]
    count = 2 if steps and type(steps[0]) is v2.Resize else 1
    kinds = ((v2.Resize,), (v2.CenterCrop,)) if count == 2 else (_CROPS,)
    if len(steps) < count or not all(map(_is_plain, steps, kinds)):
        return None
    return LeadingCrop(steps[:count], steps[count:], channels)


def _steps(transform: Any) -> Iterator[Any]:
    if not _is_plain(transform, (v2.Compose,)):
        yield transform
        return
    for each in transform.transforms:
        yield from _steps(each)


def _is_plain(step: Any, kinds: Sequence[type]) -> bool:
    """Whether it is an unmodified torchvision transform: no hooks, and no instance methods, as a
    compiled one has.
    """
    return (
        type(step) in kinds and not any(map(callable, vars(step).values())) and not has_hooks(step)
    )


def _does_nothing(step: v2.Transform) -> bool:
    """Whether it does not change a uint8 Image."""
    return _is_plain(step, (v2.ToImage, v2.Identity)) or (
        _is_plain(step, (v2.ToDtype,)) and step.dtype == torch.uint8
    )


class _Draw(NamedTuple):
    """Which region of an image to decode, and what to do with it."""

    region: Region
    params: Sequence[_Params]  # for the `transform` of each step of the crop
    plan: CropPlan  # the same for the core; a region of no pixels for what it does not do


class LeadingCrop:
    """A crop, and the transforms after it.

    Args:
        steps: A torchvision crop, or Resize and CenterCrop.
        rest: The callables that follow.
        channels: Channels of the images.
    """

    def __init__(self, steps: Sequence[v2.Transform], rest: Sequence[_Step], channels: int) -> None:
        self._steps, self.rest, self._channels = steps, rest, channels

    @property
    def is_all(self) -> bool:
        """Whether all following transforms are known, so that :meth:`batch` applies them, too."""
        return all(
            _is_plain(step, _FLIPS + _OF_VALUES)
            for step in (self.rest[:-1] if self._is_pure else self.rest)
        )

    @property
    def _is_pure(self) -> bool:
        """Whether the result is a plain tensor; earlier in the pipeline, transforms would take
        other tensors for it.
        """
        return bool(self.rest) and _is_plain(self.rest[-1], (v2.ToPureTensor,))

    def one(self, stored: StoredImage) -> torch.Tensor:
        """Crop one image, without the following transforms: a contiguous Image, uint8 [C, H, W],
        that owns its memory.

        Raises:
            ImageDecodeError: The image cannot be decoded.
            Exception: Whatever the transforms raise.
        """
        (rows,) = self._cropped([stored], [self._draw(stored, [])], None, None)
        return torch.from_numpy(np.ascontiguousarray(rows.transpose(2, 0, 1))).as_subclass(
            tv_tensors.Image
        )

    def batch(self, stored: Sequence[StoredImage], threads: Executor | None) -> torch.Tensor:
        """Crop several images and apply the following transforms; all random draws come first,
        image by image.

        Args:
            stored: The images.
            threads: They decode; None for this thread.

        Returns:
            Contiguous [B, C, H, W]; an Image, or a plain tensor after ToPureTensor.

        Raises:
            ImageDecodeError: An image cannot be decoded.
            Exception: Whatever the transforms raise.
        """
        flips = [step for step in self.rest if type(step) in _FLIPS]
        draws = [self._draw(image, flips) for image in stored]
        table = self._table()
        rows = self._cropped(stored, draws, table, threads)
        out = batch_tensor(rows)
        if table is None:
            return self._of_values(out.contiguous().as_subclass(tv_tensors.Image))
        return out if self._is_pure else out.as_subclass(tv_tensors.Image)

    def _cropped(
        self,
        stored: Sequence[StoredImage],
        draws: Sequence[_Draw],
        table: Table | None,
        threads: Executor | None,
    ) -> Any:
        """An `empty_batch` of the images, cropped by the core or, where it does not, by the
        transforms.
        """
        out = empty_batch(len(stored), tuple(self._steps[-1].size), self._channels, table)

        def write(part: slice) -> None:
            images, drawn, rows = stored[part], draws[part], out[part]
            job = crop_job(
                [image.encoded for image in images],
                rows,
                table,
                interpolation=str(interpolation_name(getattr(self._steps[0], "interpolation", ""))),
                plans=np.array([draw.plan for draw in drawn], np.int64).reshape(-1, 10),
            )
            done = run_job(job) or [[0, 0]] * len(images)
            for image, draw, row, (height, _) in zip(images, drawn, rows, done, strict=True):
                if not height:
                    pixels = _crop(self._steps, image, draw).permute(1, 2, 0).numpy()
                    across, down = draw.plan.across, draw.plan.down
                    place_pixels(pixels, row, table, across=across, down=down)

        size = max(len(stored), 1) if threads is None else _IMAGES_AT_ONCE
        parts = [slice(begin, begin + size) for begin in range(0, len(stored), size)]
        list((threads.map if threads else map)(write, parts))
        return out

    def _draw(self, stored: StoredImage, flips: Sequence[v2.Transform]) -> _Draw:
        """Make the random draws of the transforms for one image, in their order."""
        sides, step = (stored.height, stored.width), self._steps[0]
        size = torch.empty((0, *sides), device="cpu")  # only its size is used
        params = [step.make_params([size]) for step in self._steps]
        target = tuple(self._steps[-1].size)
        region = (0, 0, *sides)
        resized, corner = target, (0, 0)
        if type(step) is v2.Resize:
            resized = tuple(step.transform(size, {}).shape[1:])
            corner = centre(resized, target)
        elif type(step) is v2.CenterCrop and target[0] <= sides[0] and target[1] <= sides[1]:
            region = (*centre(sides, target), *target)
        elif type(step) is v2.RandomResizedCrop or not params[0].get("needs_pad", True):
            drawn = params[0]
            region = (drawn["top"], drawn["left"], drawn["height"], drawn["width"])
            params = [{**drawn, "top": 0, "left": 0}]
        mirrored = [type(step) for step in flips if not torch.rand(1) >= step.p]
        across, down = (mirrored.count(kind) % 2 == 1 for kind in _FLIPS)
        plan = CropPlan._make([*region, *resized, *corner, across, down])
        # The core neither turns nor pads images, and resizes them only where it does so as the transforms.
        is_kept = self._is_resized_in_core or plan[2:4] == plan[4:6]
        if stored.is_turned or params[0].get("needs_pad") or not is_kept:
            plan = plan._replace(height=0)
        return _Draw(region, params, plan)

    @property
    def _is_resized_in_core(self) -> bool:
        """Whether the core resizes as the transforms do."""
        step: Any = self._steps[0]
        is_resized = type(step) in (v2.RandomResizedCrop, v2.Resize) and step.antialias
        return (
            is_resized and _KNOWS_UINT8 and resizes_in_core(interpolation_name(step.interpolation))
        )

    def _table(self) -> Table | None:
        """The following transforms as a table; None if they fail or do not return float32."""
        try:
            return value_table(
                lambda image: self._of_values(image.as_subclass(tv_tensors.Image)), self._channels
            )
        except Exception:
            return None

    def _of_values(self, image: torch.Tensor) -> torch.Tensor:
        for step in self.rest:
            if type(step) not in _FLIPS:
                image = step(image)
        return image


def _crop(steps: Sequence[v2.Transform], stored: StoredImage, draw: _Draw) -> torch.Tensor:
    """uint8 [C, H, W]."""
    pixels = stored.pixels(draw.region)
    image = torch.from_numpy(pixels).permute(2, 0, 1).as_subclass(tv_tensors.Image)
    for step, params in zip(steps, draw.params, strict=True):
        image = step.transform(image, params)
    return image
