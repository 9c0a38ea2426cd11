"""Batch arrays of varying size that are stored as plain bytes, with height, width and depth in
other features.

    python examples/raw_arrays.py

Many older TensorFlow tutorials store arrays like this: `image_raw` is `array.tobytes()`, and three
int64 features give its shape. Nothing else in the record says the shape, so the spec names those
features.
"""

import tempfile

import torch
from torch.nn.functional import pad
from torch.utils.data import DataLoader

from torch_tfrecord import FixedLenFeature, RawTensor, TFRecordDataset, TFRecordWriter, collate

SIZES = [(2, 3), (4, 2), (3, 5), (1, 1), (4, 5), (2, 2)]  # height and width of each array
DEPTH = 3
LARGEST = (4, 5)

FEATURES = {
    # An entry of the shape is a number, or the name of the feature in the same record that has
    # the number.
    "image": RawTensor(("height", "width", "depth"), torch.uint8, key="image_raw"),
    "heat": RawTensor(("height", "width"), torch.float32, key="heat_raw"),
    "label": FixedLenFeature((), torch.int64),
}


def write_arrays(path):
    with TFRecordWriter(path) as writer:
        for label, (height, width) in enumerate(SIZES):
            image = torch.full((height, width, DEPTH), 10 * (label + 1), dtype=torch.uint8).numpy()
            heat = torch.full((height, width), label + 0.5).numpy()
            writer.write(
                {
                    "height": height,
                    "width": width,
                    "depth": DEPTH,
                    "image_raw": image.tobytes(),  # row-major; numbers of several bytes must be little-endian
                    "heat_raw": heat.tobytes(),
                    "label": label,
                }
            )


def pad_to_largest(sample):
    """A transform: pads with zeros at the right and bottom to one shape for all samples. Keeps the
    true size.
    """
    height, width, _ = sample["image"].shape
    below, right = LARGEST[0] - height, LARGEST[1] - width
    return {
        "image": pad(sample["image"], (0, 0, 0, right, 0, below)),
        "heat": pad(sample["heat"], (0, right, 0, below)),
        "size": torch.tensor([height, width]),
        "label": sample["label"],
    }


def keep_lists(samples):
    """A custom collate_fn: keeps the arrays as a list of tensors, which torchvision's detection
    models take.
    """
    arrays = {name: [sample.pop(name) for sample in samples] for name in ("image", "heat")}
    return arrays | collate(samples)


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/arrays.tfrecord"
        write_arrays(path)

        arrays = TFRecordDataset(path, FEATURES)
        for sample in arrays:
            print(
                f"label {sample['label']}: image {list(sample['image'].shape)}, heat {list(sample['heat'].shape)}"
            )

        # Option 1: pad in a transform, so that collate can stack.
        padded = TFRecordDataset(path, FEATURES, transform=pad_to_largest)
        for batch in DataLoader(padded, batch_size=3, num_workers=2, collate_fn=collate):
            print(f"padded: image {list(batch['image'].shape)}, sizes {batch['size'].tolist()}")

        # Option 2: no padding, but lists of arrays.
        for batch in DataLoader(arrays, batch_size=3, num_workers=2, collate_fn=keep_lists):
            shapes = [list(image.shape) for image in batch["image"]]
            print(f"lists: images {shapes}, labels {batch['label'].tolist()}")


if __name__ == "__main__":  # the worker processes may import this file
    main()
