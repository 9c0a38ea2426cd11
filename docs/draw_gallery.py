"""Draw docs/gallery.png and docs/gallery_record.png: `tfrecord gallery` in headless Chromium, of pictures
that this script draws.

    pip install playwright && python docs/draw_gallery.py

Run by hand, after a change of the pages; needs Chromium.
"""

from __future__ import annotations

import io
import logging
import math
import os
import struct
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from werkzeug.serving import make_server

from index_tools.gallery import Gallery, make_app
from torch_tfrecord import ShardedTFRecordWriter, encode_example

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from browser import open_browser

ROOT = Path(__file__).resolve().parents[1]
CLASSES = ("sailing boat", "house", "tree", "hot-air balloon")
WIDTH, HEIGHT = 480, 360


def encode(picture: Image.Image, form: str) -> bytes:
    """A picture as a file."""
    buffer = io.BytesIO()
    picture.save(buffer, form)
    return buffer.getvalue()


def draw_thing(draw: ImageDraw.ImageDraw, label: int, box: tuple[int, ...], color: object) -> None:
    """One thing that fills its box."""
    left, top, right, bottom = box
    middle, width, height = (left + right) / 2, right - left, bottom - top
    if label == 0:
        hull = [(left, bottom - height * 0.25), (right, bottom - height * 0.25)]
        draw.polygon([*hull, (right - width * 0.2, bottom), (left + width * 0.2, bottom)], color)
        draw.polygon(
            [(middle, top), (right, bottom - height * 0.3), (middle, bottom - height * 0.3)], color
        )
    elif label == 1:
        draw.polygon(
            [(left, top + height * 0.4), (middle, top), (right, top + height * 0.4)], color
        )
        draw.rectangle((left + width * 0.1, top + height * 0.4, right - width * 0.1, bottom), color)
    elif label == 2:
        draw.rectangle(
            (middle - width * 0.08, top + height * 0.6, middle + width * 0.08, bottom), color
        )
        draw.ellipse((left, top, right, top + height * 0.75), color)
    else:
        draw.ellipse((left, top, right, top + height * 0.8), color)
        draw.rectangle(
            (middle - width * 0.12, bottom - height * 0.15, middle + width * 0.12, bottom), color
        )


def draw_scene(generator: np.random.Generator) -> dict[str, object]:
    """A landscape with some things, their boxes and their mask."""
    high = np.linspace(0, 1, HEIGHT)[:, None, None]
    morning, noon = generator.integers(90, 200, 3), np.array([225, 235, 250])
    sky = (morning * (1 - high) + noon * high) * np.ones((1, WIDTH, 1))
    picture = Image.fromarray(sky.astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for level, ground in ((0.55, (96, 132, 110)), (0.66, (76, 120, 86)), (0.8, (54, 98, 66))):
        shift, steep = generator.uniform(0, 9), generator.uniform(8, 26)
        ridge = [
            (x, HEIGHT * level + steep * math.sin(x / 70 + shift)) for x in range(0, WIDTH + 9, 8)
        ]
        draw.polygon([(0, HEIGHT), *ridge, (WIDTH, HEIGHT)], ground)
    mask = Image.new("L", picture.size)
    labels, boxes = [], []
    for place in generator.permutation(3)[: generator.integers(1, 4)]:
        label, size = int(generator.integers(4)), int(generator.integers(80, 130))
        left = int(place) * 155 + int(generator.integers(5, 30))
        top = int(generator.integers(30, 90) if label == 3 else generator.integers(150, 215))
        box = (left, top, left + size, top + size)
        colors = [(178, 64, 55), (196, 150, 90), (40, 92, 58), (222, 140, 40)]
        draw_thing(draw, label, box, colors[label])
        draw_thing(ImageDraw.Draw(mask), label, box, label + 1)
        labels.append(label)
        boxes.append(box)
    left, top, right, bottom = np.array(boxes, np.float32).T
    return {
        "image/encoded": encode(picture, "JPEG"),
        "image/segmentation": encode(mask, "PNG"),
        "image/class/label": labels[0],
        "image/class/text": CLASSES[labels[0]],
        "image/object/bbox/xmin": left / WIDTH,
        "image/object/bbox/xmax": right / WIDTH,
        "image/object/bbox/ymin": top / HEIGHT,
        "image/object/bbox/ymax": bottom / HEIGHT,
        "image/object/class/label": labels,
    }


def make_sound(generator: np.random.Generator) -> bytes:
    """Half a second of a tone that fades, as a WAV file."""
    seconds = np.arange(4000) / 8000
    tone = np.sin(seconds * generator.uniform(900, 2500)) * np.exp(-4 * seconds)
    data = (tone * 30000).astype("<i2").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16)
    return (
        b"RIFF"
        + struct.pack("<I", len(data) + 36)
        + b"WAVE"
        + form
        + b"data"
        + struct.pack("<I", len(data))
        + data
    )


def write_scenes(folder: Path) -> None:
    """Shards of scenes, with the file of their labels."""
    generator = np.random.default_rng(7)
    with ShardedTFRecordWriter(folder / "train", num_shards=4, suffix=".tfrecord") as writer:
        for number in range(1200):
            scene = draw_scene(generator)
            sound = make_sound(generator)
            about = {
                "caption": f"A drawing of a {scene['image/class/text']}, number {number}.",
                "sound": sound,
            }
            writer.write(encode_example({**scene, **about}))
    (folder / "labels-train.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")


def main() -> None:
    """Write both pictures."""
    logging.getLogger("werkzeug").setLevel("ERROR")
    with tempfile.TemporaryDirectory() as name, open_browser() as browser:
        os.chdir(name)  # the pages show the path
        Path("data").mkdir()
        write_scenes(Path("data"))
        app = make_app(Gallery(["data"], None, None), "127.0.0.1")
        server = make_server("127.0.0.1", 0, app, threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.port}"
        page = browser.new_page(viewport={"width": 1180, "height": 860})
        for path, picture in (("/?page=3", "gallery.png"), ("/record/178", "gallery_record.png")):
            page.goto(url + path, wait_until="networkidle")
            page.screenshot(path=ROOT / "docs" / picture)
        server.shutdown()


if __name__ == "__main__":
    main()
