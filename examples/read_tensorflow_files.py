"""Read ImageNet-style TFRecord files, as TensorFlow's scripts write them, into batches for
training.

    python examples/read_tensorflow_files.py [FILES ...]

FILES are your own files: paths, or one glob in quotes. Without FILES the program first writes a
small stand-in, without TensorFlow: crops of two photographs, with the keys and types of
TensorFlow's `build_imagenet_data.py`.
"""

import argparse
import tempfile

import torch
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    ShardedTFRecordWriter,
    Text,
    TFRecordDataset,
    VarLenFeature,
    collate,
    encode_image,
    infer_features,
)

# Only what a classifier needs. Features that you do not name are not parsed and cost nothing.
CLASSIFIER_FEATURES = {
    "image": Image(key="image/encoded"),  # any format; gray and CMYK images become RGB, too
    "label": FixedLenFeature((), torch.int64, key="image/class/label"),
    "text": Text(key="image/class/text"),
}

# The boxes for a detector: any number per image, none if the key is missing.
BOX_FEATURES = {
    "filename": Text(key="image/filename"),
    "xmin": VarLenFeature(torch.float32, key="image/object/bbox/xmin"),
    "xmax": VarLenFeature(torch.float32, key="image/object/bbox/xmax"),
}

# The transforms change only "image", since it is a tv_tensors.Image, and not the label or the text.
TRAIN_TRANSFORM = v2.Compose(
    [
        v2.RandomResizedCrop(64),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
)


def write_stand_in(folder):
    """Write two shards of 8 records each, with the keys and types of TensorFlow's ImageNet
    script.
    """
    photographs = [
        torch.from_numpy(image.copy()).permute(2, 0, 1) for image in load_sample_images().images
    ]
    texts = ["palace", "flower"]
    with ShardedTFRecordWriter(f"{folder}/train", num_shards=2, suffix="") as writer:
        for number in range(16):
            kind, num_boxes = number % 2, number % 4
            height, width = 120 + 8 * number, 160 + 4 * number  # each image has another size
            crop = photographs[kind][:, :height, :width]
            corners = [0.1 * (box + 1) for box in range(num_boxes)]
            writer.write(
                {
                    "image/height": height,
                    "image/width": width,
                    "image/colorspace": "RGB",
                    "image/channels": 3,
                    "image/class/label": kind + 1,  # that script's labels begin with 1
                    "image/class/synset": f"n0000000{kind}",
                    "image/class/text": texts[kind],
                    # A typed array, since an empty list has no dtype.
                    "image/object/bbox/xmin": torch.tensor(corners, dtype=torch.float32),
                    "image/object/bbox/xmax": torch.tensor(
                        [corner + 0.2 for corner in corners], dtype=torch.float32
                    ),
                    "image/object/bbox/ymin": torch.tensor(corners, dtype=torch.float32),
                    "image/object/bbox/ymax": torch.tensor(
                        [corner + 0.3 for corner in corners], dtype=torch.float32
                    ),
                    "image/object/bbox/label": torch.full((num_boxes,), kind + 1),
                    "image/format": "JPEG",
                    "image/filename": f"{texts[kind]}_{number:02d}.JPEG",
                    "image/encoded": encode_image(crop, "jpeg"),
                }
            )


def show(paths):
    print("What is in the files, as code to paste and to shorten:")
    for name, feature in infer_features(paths).items():
        print(f"    {name!r}: {feature!r},")

    torch.manual_seed(0)
    # On first use, a file without an index is read once to build it; the index is stored beside the
    # file.
    images = TFRecordDataset(paths, CLASSIFIER_FEATURES, transform=TRAIN_TRANSFORM)
    print(f"{len(images)} images in {len(images.files)} files")
    loader = DataLoader(images, batch_size=8, shuffle=True, num_workers=2, collate_fn=collate)
    for batch in loader:
        image, label = batch["image"], batch["label"]
        print(
            f"images {list(image.shape)} {image.dtype}, labels {label.tolist()}, first text {batch['text'][0]!r}"
        )

    # Boxes: collate makes a jagged tensor, whose rows have different lengths. No image is decoded
    # here.
    boxes = TFRecordDataset(paths, BOX_FEATURES)
    for batch in DataLoader(boxes, batch_size=8, collate_fn=collate):
        widths = [
            (row_max - row_min).tolist() for row_min, row_max in zip(*rows(batch), strict=True)
        ]
        print(f"boxes in each image: {[len(row) for row in widths]}")


def rows(batch):
    return batch["xmin"].unbind(), batch["xmax"].unbind()


def main():
    parser = argparse.ArgumentParser(description="Read ImageNet-style TFRecord files into batches.")
    parser.add_argument(
        "files", nargs="*", help="paths, or a glob in quotes; without any a stand-in is written"
    )
    files = parser.parse_args().files
    if files:
        show(files)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_stand_in(folder)
        show(f"{folder}/train-*")


if __name__ == "__main__":  # the worker processes may import this file
    main()
