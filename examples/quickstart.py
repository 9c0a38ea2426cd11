"""From images to TFRecord files to a trained network, in under a minute on two processor cores.

    python examples/quickstart.py

Writes scikit-learn's digits (1,797 handwritten digits of 8 x 8 pixels) as PNG to four shards for
training and one for testing, trains a small network on them, and prints its accuracy on the test
digits.
"""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    ShardedTFRecordWriter,
    TFRecordDataset,
    encode_image,
)

NUM_TEST_DIGITS = 360

# The values to read from each record. TensorFlow's scripts use the same names in their records
# ("image/encoded").
FEATURES = {
    "image": Image("L", key="image/encoded"),
    "label": FixedLenFeature((), torch.int64, key="image/class/label"),
}
TO_FLOAT = v2.ToDtype(torch.float32, scale=True)  # pixels from 0..255 to 0..1


def write_digits(folder):
    """Writes train-00000-of-00004.tfrecord to train-00003-of-00004.tfrecord, and one test shard."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels * 255 / 16).to(torch.uint8).reshape(-1, 1, 8, 8)
    # The digits are sorted by writer; shuffle them once, so that the test digits are from all
    # writers.
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tolist()
    parts = {"test": (order[:NUM_TEST_DIGITS], 1), "train": (order[NUM_TEST_DIGITS:], 4)}
    for name, (positions, num_shards) in parts.items():
        # write_index: store where each record is, so that the files need not be read once to find
        # out.
        with ShardedTFRecordWriter(
            folder / name, num_shards=num_shards, write_index=True
        ) as writer:
            for position in positions:
                png = encode_image(images[position], "png")
                writer.write({"image/encoded": png, "image/class/label": int(labels[position])})


def make_network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )


def train(network, loader, num_epochs):
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    for epoch in range(num_epochs):
        total = 0.0
        for batch in loader:
            loss = nn.functional.cross_entropy(network(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1} of {num_epochs}: loss {total / len(loader):.3f}")


@torch.no_grad()
def accuracy(network, loader):
    hits = [network(batch["image"]).argmax(1) == batch["label"] for batch in loader]
    return torch.cat(hits).float().mean().item()


def main():
    torch.manual_seed(0)
    # the network is small: more threads would only slow down the two workers
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder))
        train_digits = TFRecordDataset(f"{folder}/train-*", FEATURES, transform=TO_FLOAT)
        test_digits = TFRecordDataset(f"{folder}/test-*", FEATURES, transform=TO_FLOAT)
        print(
            f"{len(train_digits)} digits in {len(train_digits.files)} files to train, {len(test_digits)} to test"
        )

        # shuffle=True is an exact shuffle over all files, since any record can be read at any time.
        loader = DataLoader(
            train_digits, batch_size=64, shuffle=True, num_workers=2, persistent_workers=True
        )
        network = make_network()
        train(network, loader, num_epochs=12)
        print(f"test accuracy: {accuracy(network, DataLoader(test_digits, batch_size=120)):.3f}")


if __name__ == "__main__":  # the worker processes may import this file
    main()
