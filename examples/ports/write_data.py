"""Write the small datasets that the ports read: drawn pictures, made-up text, a made-up table.

    python examples/ports/write_data.py data

This script wrote the copy in tests/data/ports; the JPEG bytes depend on Pillow's version.
"""

import sys

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


if __name__ == "__main__":
    for write in (write_images, write_text, write_table):
        write(sys.argv[1])
