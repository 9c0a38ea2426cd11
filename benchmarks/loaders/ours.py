"""torch_tfrecord: `make_dataloader`, as the README says. docs/order.md: "save
`loader.state_dict()`: it counts the batches you received".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from loaders import Loader, Setting
from torch_tfrecord import FixedLenFeature, Image, RandomResizedCrop, make_dataloader

__all__ = ["READS_TFRECORD", "Crops", "draw", "features_of", "open_loader", "write"]

READS_TFRECORD = True


def write(folder: str, shards: list[list[int]]) -> None:
    """Nothing: the index is made when it is needed."""


class Crops(Loader):
    """Adds what the crops look like to the draws."""

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        for batch in self.batches:
            columns = dict(batch)
            if "image" in columns:
                crops = [hashlib.sha1(image.numpy()).hexdigest() for image in columns["image"]]
                columns["draw"] = [*zip(crops, columns["draw"].tolist(), strict=True)]
            yield columns


def features_of(setting: Setting) -> dict[str, Any]:
    """The features of each record, here and by the stream."""
    crops = {"image": Image(crop=RandomResizedCrop(8))} if setting.draw else {}
    return {
        "id": FixedLenFeature((), torch.int64),
        "value": FixedLenFeature((), bytes),
        **crops,
    }


def open_loader(setting: Setting) -> Loader:
    loader = make_dataloader(
        f"{setting.folder}/*.tfrecord",
        setting.batch_size,
        features_of(setting),
        transform=draw if setting.draw else None,
        shuffle=setting.shuffle,
        seed=setting.seed,
        num_workers=setting.workers,
        rank=setting.rank,
        world_size=setting.world_size,
    )
    return Crops(loader)


def draw(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform of one's own beside the crop of the feature; both must differ."""
    return {**sample, "draw": torch.tensor(np.random.randint(1 << 31))}
