"""ImageNet for evaluation: the port of imagenet_tf.py."""

import torch
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from torch_tfrecord import FixedLenFeature, Image, TFRecordDataset, collate

SIZE = 32  # 224 for the real one
MEAN = [123.675, 116.28, 103.53]
STD = [58.395, 57.12, 57.375]
FEATURES = {
    "image": Image(key="image/encoded"),
    "label": FixedLenFeature((), torch.int64, key="image/class/label"),
}
PREPARE = v2.Compose(
    [v2.ToDtype(torch.float32), v2.Resize((SIZE, SIZE), antialias=False), v2.Normalize(MEAN, STD)]
)


def central_crop(image, fraction):
    """Like tf.image.central_crop; torchvision's center_crop rounds differently."""
    top, left = (int((size - size * fraction) / 2) for size in image.shape[-2:])
    return image[..., top : image.shape[-2] - top, left : image.shape[-1] - left]


def read(sample):
    return PREPARE(central_crop(sample["image"], 0.875)), sample["label"] - 1


def pipeline(pattern, batch_size, num_workers=0):
    records = TFRecordDataset(pattern, FEATURES, transform=read)
    return DataLoader(records, batch_size, num_workers=num_workers, collate_fn=collate)
