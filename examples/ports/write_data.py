"""Write the small datasets that the ports read: drawn pictures, made-up text, a made-up table.

    python examples/ports/write_data.py data

This script wrote the copy in tests/data/ports; the JPEG bytes depend on Pillow's version.
"""

import sys
from pathlib import Path

import torch

from torch_tfrecord import ShardedTFRecordWriter, encode_image

SENTENCES = [
    "the cat sat",
    "a dog",
    "rain falls on the grey roofs of the old town",
    "yes",
    "",
    "go home",
    "two",
]


def draw(height, width, phase):
    """Stripes and a gradient, uint8 [3, H, W]."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    planes = [
        (x * 3 + phase * 20) % 256,
        (y * 4 + phase * 50) % 256,
        (x // 6 + y // 4 + phase) % 2 * 200 + 20,
    ]
    return torch.stack(planes).to(torch.uint8)


def paint(height, width, phase):
    """Smooth waves with a little noise, like a photograph: uint8 [3, H, W]."""
    y, x = torch.meshgrid(torch.arange(height) / 9, torch.arange(width) / 7, indexing="ij")
    waves = torch.stack(
        [torch.sin(x + phase + k / 3) + torch.cos(y * (1 + k / 8)) for k in range(3)]
    )
    noise = torch.randn(waves.shape, generator=torch.Generator().manual_seed(phase))
    return (128 + 50 * waves + 4 * noise).clamp(0, 255).to(torch.uint8)


def write_images(folder):
    with ShardedTFRecordWriter(f"{folder}/imagenet", num_shards=2) as writer:
        for number in range(7):
            image = encode_image(draw(48 + 5 * number, 71 - 4 * number, number), "jpeg", 90)
            writer.write({"image/encoded": image, "image/class/label": 1 + 100 * number})


def write_text(folder):
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    with ShardedTFRecordWriter(f"{folder}/text", num_shards=2) as writer:
        for number, sentence in enumerate(SENTENCES):
            tokens = torch.tensor(
                [1 + words.index(word) for word in sentence.split()], dtype=torch.int64
            )
            writer.write({"text": sentence, "tokens": tokens, "label": number // 2 % 2})


def write_table(folder):
    with ShardedTFRecordWriter(f"{folder}/table", num_shards=2) as writer:
        for number in range(9):
            row = {
                "age": 20 + number,
                "income": [1000.5 * number],
                "clicked": number % 3 == 0,
                "tags": ["a", "b"],
            }
            if number % 4 > 1:
                del row["age"], row["tags"]  # both have defaults
            if number % 3:
                row["country"] = ["CH", "DE", "FR"][number % 3]
            writer.write(row)


def write_sources(folder):
    """What the writing halves read: pictures of two classes, and a table with missing values."""
    for number in range(4):
        path = Path(folder, "pictures", ("cat", "dog")[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_image(paint(44 + 4 * number, 64 - 2 * number, number), "png"))
    rows = ["age,income,country,clicked"]
    for number in range(9):
        age = "" if number % 4 == 2 else 20 + number
        rows.append(f"{age},{1000.5 * number},{('CH', 'DE', '')[number % 3]},{number % 2}")
    Path(folder, "table.csv").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    for write in (write_images, write_text, write_table, write_sources):
        write(sys.argv[1])
