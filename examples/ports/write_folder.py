"""A folder of pictures, one sub-folder for each class, to shards with a progress bar, by
torch_tfrecord; the counterpart of write_folder_tf.py.
"""

from pathlib import Path

import torch
from tqdm import tqdm

from torch_tfrecord import FixedLenFeature, Image, ShardedTFRecordWriter, Text, decode_image

FEATURES = {
    "image": Image(key="image/encoded"),
    "height": FixedLenFeature((), torch.int64, key="image/height"),
    "width": FixedLenFeature((), torch.int64, key="image/width"),
    "label": FixedLenFeature((), torch.int64, key="image/class/label"),
    "class": Text(key="image/class/text"),
    "filename": Text(key="image/filename"),
}


def write(folder, prefix, num_shards):
    classes = sorted(path.name for path in Path(folder).iterdir())
    files = [path for name in classes for path in sorted(Path(folder, name).iterdir())]
    with ShardedTFRecordWriter(prefix, num_shards=num_shards, features=FEATURES) as writer:
        for path in tqdm(files):
            encoded = path.read_bytes()
            _, height, width = decode_image(encoded).shape
            row = {"image": encoded, "height": height, "width": width, "filename": path.name}
            name = path.parent.name
            writer.write({**row, "class": name, "label": classes.index(name)})
