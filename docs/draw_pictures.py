"""Draw docs/rlds_window.svg, docs/crop.svg and docs/show.svg, of what the library does.

    python docs/draw_pictures.py

The windows are those of samples of `tfds.RLDSDataset`, the region is one that `RandomResizedCrop` draws, and the
terminal has what `tfrecord show` prints. `tests/docs/test_draw_pictures.py` draws them again.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from index_tools.main import main as tfrecord
from torch_tfrecord import RandomResizedCrop, TFRecordWriter, tfds

DOCS = Path(__file__).parent
BLUE, YELLOW, GREEN, GRAY = "#8ecae6", "#ffd166", "#b5e48c", "#e9ecef"


def svg(width: int, height: int, *shapes: str) -> str:
    """A picture on white, so that it can be read on dark pages, too."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *shapes,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, more: str = "") -> str:
    """Words that begin at a point."""
    return f'<text x="{x:g}" y="{y:g}"{more and " " + more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    """A rectangle with a thin border."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
        f'stroke="#555"{more and " " + more}/>'
    )


def cell(x: float, y: float, words: str, fill: str, is_padding: bool = False) -> str:
    """One step: dashed where it is padding."""
    more = 'stroke-dasharray="3 3" fill-opacity="0.35"' if is_padding else ""
    label = text(x + 17, y + 20, words, 'text-anchor="middle"')
    return box(x, y, 34, 30, fill, more) + label


def draw_window() -> str:
    """Three samples of an episode of six steps, with their padding."""
    window, horizon, num_steps = 3, 4, 6
    steps = [
        {
            "observation": {"state": np.full(1, step, np.float32)},
            "action": np.full(1, step, np.float32),
        }
        for step in range(num_steps)
    ]
    number = tfds.features.Tensor((1,), "float32")
    tree = {"steps": tfds.features.Dataset({"observation": {"state": number}, "action": number})}
    with tempfile.TemporaryDirectory() as folder:
        tfds.write(Path(folder, "toy/1.0.0"), {"train": [{"steps": steps}]}, tree, name="toy")
        ds = tfds.RLDSDataset(
            Path(folder, "toy/1.0.0"), window_size=window, action_horizon=horizon, index="memory"
        )
        samples = {step: ds[step] for step in (0, 3, 5)}
    shapes = [text(10, 24, "An episode of 6 steps", 'font-weight="bold"')]
    for row, (name, fill) in enumerate((("observation", BLUE), ("action", YELLOW))):
        shapes.append(text(10, 60 + 36 * row, name))
        shapes += [
            cell(110 + 38 * step, 40 + 36 * row, str(step), fill) for step in range(num_steps)
        ]
    title = f"RLDSDataset(..., window_size={window}, action_horizon={horizon})"
    shapes.append(text(10, 148, title, 'font-weight="bold"'))
    for row, (step, sample) in enumerate(samples.items()):
        y = 166 + 44 * row
        observation = sample["observation"]
        shapes.append(text(10, y + 20, f"ds[{step}]", 'font-weight="bold"'))
        for place in range(window):
            is_step = bool(observation["pad_mask"][place])
            value = str(int(observation["state"][place, 0]))
            shapes.append(cell(110 + 38 * place, y, value, BLUE, not is_step))
        for place in range(horizon):
            is_step = bool(sample["action_pad_mask"][place])
            value = str(int(sample["action"][place, 0]))
            shapes.append(cell(260 + 38 * place, y, value, YELLOW, not is_step))
    shapes += [
        box(10, 306, 24, 20, GRAY, 'stroke-dasharray="3 3" fill-opacity="0.35"'),
        text(42, 321, "padding: the first observation or the last action again;"),
        text(42, 339, "pad_mask and action_pad_mask are False there"),
    ]
    return svg(430, 352, *shapes)


def draw_crop() -> str:
    """The region of a picture that a crop draws, and the blocks that are decoded for it."""
    height, width, block = 240, 336, 16
    plan = RandomResizedCrop(224, scale=(0.15, 0.3), seed=3).plan(height, width, 1)
    x, y = 10, 40
    begin = (plan.left // block * block, plan.top // block * block)
    end = (
        -(-(plan.left + plan.width) // block) * block,
        -(-(plan.top + plan.height) // block) * block,
    )
    share = (end[0] - begin[0]) * (end[1] - begin[1]) / (height * width)
    lines = "".join(f"M{x + at} {y}v{height}" for at in range(block, width, block))
    lines += "".join(f"M{x} {y + at}h{width}" for at in range(block, height, block))
    to = x + width + 70
    shapes = [
        text(x, 24, f"The JPEG in the record: {width} x {height}", 'font-weight="bold"'),
        box(x, y, width, height, GRAY),
        box(x + begin[0], y + begin[1], end[0] - begin[0], end[1] - begin[1], GREEN),
        f'<path d="{lines}" stroke="#c6ccd2" stroke-width="0.7"/>',
        box(x + plan.left, y + plan.top, plan.width, plan.height, "none", 'stroke-width="2.5"'),
        text(to, 24, "Its row of the batch", 'font-weight="bold"'),
        box(to, y, 112, 112, GREEN),
        text(to + 56, y + 60, "224 x 224", 'text-anchor="middle"'),
        f'<path d="M{x + width + 12} {y + 56}H{to - 14}" stroke="#1d3557" stroke-width="1.5"/>',
        f'<path d="M{to - 16} {y + 51}v10l9 -5z" fill="#1d3557"/>',
        text(x, y + height + 28, "1. Read the size from the header, draw the region (framed)."),
        text(
            x,
            y + height + 50,
            f"2. Decode the blocks that it touches: {share:.0%} of the pixels here.",
        ),
        text(x, y + height + 72, "3. Resize them once, as uint8, into the memory of the batch."),
    ]
    return svg(to + 136, y + height + 86, *shapes)


def draw_show() -> str:
    """A terminal with the output of `tfrecord show`."""
    command = "tfrecord show boats.tfrecord -n 1"
    printed = io.StringIO()
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the path is printed
        try:
            write_boats(Path("boats.tfrecord"))
            with contextlib.redirect_stdout(printed):
                status = tfrecord(command.split()[1:])
        finally:
            os.chdir(here)
    if status:
        raise RuntimeError(f"{command}: exit status {status}")
    lines = [f"$ {command}", *printed.getvalue().rstrip().split("\n")]
    shapes = ['<rect width="100%" height="100%" rx="6" fill="#1e2430"/>']
    shapes.append('<g font-family="monospace" font-size="12" fill="#dfe6ee" xml:space="preserve">')
    for number, line in enumerate(lines):
        more = 'fill="#8fd694"' if line.startswith("$") else ""
        shapes.append(text(14, 26 + 17 * number, line.replace(" ", "\u00a0"), more))
    width = 28 + int(7.25 * max(map(len, lines)))
    return svg(width, 40 + 17 * len(lines), *shapes, "</g>")


def write_boats(path: Path) -> None:
    """Two records with a picture, a class and boxes."""
    picture = io.BytesIO()
    Image.new("RGB", (32, 24), (20, 90, 160)).save(picture, "BMP")  # equal bytes everywhere
    with TFRecordWriter(path) as writer:
        for label, name, xmin in ((1, "sailing boat", [0.25, 0.5]), (0, "tree", [0.125])):
            writer.write(
                {
                    "image/encoded": picture.getvalue(),
                    "image/class/label": label,
                    "image/class/text": name,
                    "image/object/bbox/xmin": xmin,
                }
            )


PICTURES: dict[str, Callable[[], str]] = {
    "rlds_window.svg": draw_window,
    "crop.svg": draw_crop,
    "show.svg": draw_show,
}

if __name__ == "__main__":
    for file_name, draw in PICTURES.items():
        (DOCS / file_name).write_text(draw(), encoding="utf-8")
