"""torchdata 0.11: StatefulDataLoader around a map-style dataset, with StatefulDistributedSampler,
as https://docs.pytorch.org/data/0.11/stateful_dataloader_tutorial.html says. Its TFRecordLoader
left with the DataPipes in 0.10, and it reads no files itself: here a numpy file for each shard
stands for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Dataset

from loaders import Loader, Setting, files_in, value_of, with_draw

__all__ = ["NOT_OFFERED", "open_loader", "write"]

NOT_OFFERED = {
    "damaged": "it reads no files itself; here numpy does",
    "damaged_checked": "it reads no files itself; here numpy does",
    "truncated": "it reads no files itself; here numpy does",
}
_RECORD = np.dtype([("id", np.int64), ("value", "V64")])


def write(folder: str, shards: list[list[int]]) -> None:
    for number, shard in enumerate(shards):
        rows = np.array([(one, value_of(one)) for one in shard], _RECORD)
        np.save(f"{folder}/{number:03}.npy", rows)


class _Records(Dataset[dict[str, Any]]):
    def __init__(self, setting: Setting) -> None:
        shards = [np.load(path, mmap_mode="r") for path in files_in(setting.folder, ".npy")]
        self._rows = np.concatenate(shards)
        self._draw = setting.draw

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> dict[str, Any]:
        sample = {
            "id": int(self._rows[position]["id"]),
            "value": self._rows[position]["value"].tobytes(),
        }
        return with_draw(sample) if self._draw else sample


class _Loader(Loader):
    sampler: Any = None

    def epoch(self, number: int) -> Any:
        self.sampler.set_epoch(number)
        return super().epoch(number)


def open_loader(setting: Setting) -> Loader:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    dataset = _Records(setting)
    sampler = StatefulDistributedSampler(
        dataset, setting.world_size, setting.rank, setting.shuffle, setting.seed
    )
    loader = _Loader(
        StatefulDataLoader(
            dataset,
            setting.batch_size,
            sampler=sampler,
            num_workers=setting.workers,
        )
    )
    loader.sampler = sampler
    return loader
