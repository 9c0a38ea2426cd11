"""Samples as they look: the pictures, plots and texts that `show`, notebooks and the gallery draw.

Pictures are decoded within limits and drawn again; nothing of a sample is taken for HTML.
"""

from __future__ import annotations

import base64
import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageDraw
from torchvision.tv_tensors import BoundingBoxes

from torch_tfrecord.errors import TFRecordError, needs_extra
from torch_tfrecord.media.codec import decode_image, image_format
from torch_tfrecord.media.media_decoders import read_wav
from torch_tfrecord.shown import shown_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Part", "Parts", "show", "to_html"]

_Array: TypeAlias = "np.ndarray[Any, Any]"
_Frames: TypeAlias = "Sequence[bytes | _Array]"

_MAX_PIXELS = 32_000_000  # decoded for one picture, or for all frames of a strip
_MOST_DRAWN = 100  # boxes, lines of a plot
_LEAST_STEPS = 10  # fewer numbers are read more easily than seen
_CHANNELS = (1, 3, 4)
_MASK = re.compile("mask|segment")
# Halves of the colours of masks, which are added to halves of those below.
_HALVES = np.eye(3, dtype=np.uint8) * 120


class Part(NamedTuple):
    """One feature of a sample, as people see it.

    Attributes:
        name: Path of the feature.
        kind: Its type and shape.
        text: Its value, shortened.
        frames: Its pictures: bytes, or [C, H, W].
        series: The numbers of its plot: [steps, lines].
        over: The values among which are the masks and boxes of its picture, by name.
    """

    name: str
    kind: str
    text: str
    frames: _Frames
    series: _Array | None
    over: Mapping[str, Any]

    def draw(self, side: int) -> Image.Image:
        """Draw it, at most so many pixels wide and high; a picture that is damaged or too large
        becomes a note that says why.
        """
        note = self.text
        try:
            if self.frames:
                return self._picture(side)
            if self.series is not None:
                buffer = io.BytesIO()
                Parts([self]).figure(1).savefig(buffer, dpi=side / 3)
                return Image.open(buffer)
        except Exception as error:  # whatever a record makes of them
            note = str(error)
        picture = Image.new("RGB", (side, side), "#e4e4e0")
        ImageDraw.Draw(picture).text((8, 8), textwrap.fill(note, 28), "#444", font_size=side / 18)
        return picture

    def png(self, side: int) -> bytes:
        """`draw`, as a PNG file."""
        buffer = io.BytesIO()
        self.draw(side).save(buffer, "png")
        return buffer.getvalue()

    def _picture(self, side: int) -> Image.Image:
        shown = _decode(self.frames[:: -(-len(self.frames) // 8)])
        shown = shown[[0, 1, 2] if len(shown) > 2 else [0, 0, 0]].transpose(1, 2, 0)
        if shown.dtype != np.uint8:  # depth, or normalised: from the least value to the greatest
            shown = np.interp(shown, (shown.min(), shown.max()), (0, 255)).astype(np.uint8)
        boxes = [np.empty((0, 4))]
        for name, value in self.over.items():
            for mask in _frames(value) if _MASK.search(name) else ():
                ids = _decode([mask]).max(0)
                if ids.shape == shown.shape[:2]:
                    shown = np.where(ids[..., None], shown // 2 + _HALVES[ids % 3], shown)
            with suppress(Exception):  # what only has such a name, or not all four sides
                if name.endswith("xmin"):  # as in ImageNet
                    sides = [self.over[name[:-4] + end] for end in ("xmin", "ymin", "xmax", "ymax")]
                    boxes.append(np.column_stack(sides))
                elif name.endswith("bbox"):  # as in TFDS
                    boxes.append(value.reshape(-1, 4)[:, [1, 0, 3, 2]])
        picture = Image.fromarray(np.ascontiguousarray(shown))
        corners = np.concatenate(boxes)[:_MOST_DRAWN]
        whole = picture.size * 2 if corners.max(initial=0) > 2 else 1  # pixels, or from 0 to 1
        picture.thumbnail((side, side))
        for box in corners / whole * (picture.size * 2):
            ImageDraw.Draw(picture).rectangle(box.tolist(), outline="#ff3355", width=2)
        return picture


class Parts(list[Part]):
    """The parts of a sample, or of several samples that are drawn together."""

    @classmethod
    def of(
        cls,
        sample: object,
        describe: Callable[[str, Any], str] = lambda name, value: (
            str(value)[:200] if isinstance(value, np.ndarray) else shown_value(value)
        ),
    ) -> Parts:
        """The features of a sample: first the main picture, with its boxes and masks, then others,
        plots, texts.

        Args:
            sample: A sample, or a decoded Example: key -> array or list of bytes.
            describe: The text of a feature's value.
        """
        values = dict(_flatten(sample))
        parts = cls(
            Part(
                name,
                f"{getattr(value, 'dtype', type(value).__name__)} {getattr(value, 'shape', '')}",
                describe(name, value),
                _frames(value),
                _series(name, values),
                {name: value},
            )
            for name, value in values.items()
        )
        parts.sort(
            key=lambda p: (
                not p.frames,
                p.series is None,
                bool(_MASK.search(p.name)),
                "image" not in p.name,
            )
        )
        if parts and len(parts[0].frames) == 1:
            parts[0] = parts[0]._replace(over=values)
        return parts

    @property
    def caption(self) -> str:
        """The label of a sample, or its text; empty if it has none."""
        return next((p.text for p in self if re.search("label|text|instruct", p.name)), "")

    def figure(self, columns: int) -> Figure:
        """Draw them in rows, below their names.

        Raises:
            ImportError: matplotlib is missing.
        """
        with needs_extra("this picture", "tools", "matplotlib"):
            from matplotlib import pyplot  # which also has notebooks show figures
        rows = -(-len(self) // columns)
        figure = pyplot.Figure((3 * columns, 3 * rows), layout="constrained")  # type: ignore[attr-defined]
        for number, part in enumerate(self, 1):
            axes = figure.add_subplot(rows, columns, number)
            axes.set_title(part.name[:40], parse_math=False)  # a dollar sign is no formula
            if part.series is None:
                axes.imshow(part.draw(320))
                axes.set_axis_off()
            else:
                axes.plot(part.series[:, :_MOST_DRAWN])
        return figure


def _flatten(sample: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Values by their path, tensors as arrays; boxes in the order of TFDS."""
    if isinstance(sample, tuple):
        sample = dict(enumerate(sample))
    if isinstance(sample, Mapping):
        for key, value in sample.items():
            yield from _flatten(value, f"{name}/{key}".strip("/"))
    elif isinstance(sample, torch.Tensor) and sample.layout == torch.strided:
        array = (sample.float() if sample.is_floating_point() else sample).numpy(force=True)
        yield name, array[..., [1, 0, 3, 2]] if isinstance(sample, BoundingBoxes) else array
    elif isinstance(sample, list):
        leaves = [leaf for item in sample for _, leaf in _flatten(item)]
        yield name, leaves[0] if len(leaves) == 1 else leaves
    else:
        yield name, sample


def _frames(value: object) -> list[bytes | _Array]:
    if isinstance(value, list) and value and _frames(value[0]):
        return [frame for item in value for frame in _frames(item)]
    if isinstance(value, bytes) and image_format(value):
        return [value]
    if not isinstance(value, np.ndarray) or value.ndim < 3:
        return []
    array = value if value.shape[-3] in _CHANNELS else np.moveaxis(value, -1, -3)
    # smaller ones may be key points
    is_picture = array.shape[-3] in _CHANNELS and min(array.shape[-2:]) > 8
    return [*array.reshape(-1, *array.shape[-3:])] if is_picture else []


def _decode(frames: _Frames) -> _Array:
    """[C, H, W] of frames side by side."""
    return np.concatenate(
        [
            decode_image(frame, "unchanged", max_pixels=_MAX_PIXELS // len(frames))
            if isinstance(frame, bytes)
            else frame
            for frame in frames
        ],
        2,
    )


def _series(name: str, values: Mapping[str, Any]) -> _Array | None:
    array, steps = values[name], values.get("steps/is_first", ())
    with suppress(TFRecordError):
        sound = read_wav(memoryview(array)) if isinstance(array, bytes) else None
        array = sound.samples if sound else array
    if not isinstance(array, np.ndarray) or array.ndim > 2:
        return None
    if name.startswith("steps/") and len(steps) and array.size % len(steps) == 0:
        array = array.reshape(len(steps), -1)  # an RLDS record has all steps in a row
    array = np.atleast_2d(array.T).T
    array = array.T if len(array) < array.shape[1] > 64 else array  # channels come first
    return array if len(array) >= _LEAST_STEPS and array.any() else None


def to_html(value: Any) -> str:
    """A table for a notebook: a row for each feature, a column for each of the first samples; all
    text is escaped.

    Args:
        value: A sample, a batch or a dataset.
    """
    rows = [f"<p>{escape(shown_value(value))}<table>"]
    for same in zip(*map(sorted, _first(value, 4)), strict=False):
        rows.append(f"<tr><td>{escape(same[0].name)}<td>{escape(same[0].kind)}")
        for part in same:
            cell = escape(part.text)
            if part.frames:
                png = base64.b64encode(part.png(160)).decode()
                cell = f'<img src="data:image/png;base64,{png}">'
            rows.append(f"<td>{cell}")
    return "".join([*rows, "</table>"])


def _first(value: Any, most: int) -> list[Parts]:
    if isinstance(value, Mapping | tuple | str | bytes | torch.Tensor):
        return [Parts.of(value)]
    return [*map(Parts.of, value[:most])]


def show(sample: object) -> Figure:
    """Draw a sample with matplotlib: pictures with their boxes and masks, plots, texts; or the
    samples of a batch.

    Args:
        sample: What a dataset or a loader returns: a sample, a list of samples, or a batch of
            columns, of which some pictures are drawn in a row; or a dataset.

    Returns:
        The figure, which a notebook shows; `.savefig("sample.png")` writes it.

    Raises:
        ImportError: matplotlib is missing: install the extra ``tools``.

    Example:
        >>> show(ds[0])  # doctest: +SKIP
    """
    drawn = _first(sample, 16)
    first = Parts(parts[0]._replace(name=parts.caption) for parts in drawn)
    return (first if len(drawn) > 1 else drawn[0]).figure(4)
