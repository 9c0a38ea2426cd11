"""Hugging Face datasets, streaming Parquet files: `split_dataset_by_node` for the ranks,
`set_epoch` to shuffle again, and torchdata's StatefulDataLoader, as
https://huggingface.co/docs/datasets/use_with_pytorch and
https://huggingface.co/docs/datasets/stream say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from loaders import Loader, Setting, files_in, value_of, with_draw

__all__ = ["open_loader", "write"]


def write(folder: str, shards: list[list[int]]) -> None:
    from datasets import Dataset

    for number, shard in enumerate(shards):
        columns = {"id": shard, "value": [value_of(one) for one in shard]}
        Dataset.from_dict(columns).to_parquet(f"{folder}/{number:03}.parquet")


class _Loader(Loader):
    dataset: Any = None

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        self.dataset.set_epoch(number)
        return super().epoch(number)


def open_loader(setting: Setting) -> Loader:
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node
    from torchdata.stateful_dataloader import StatefulDataLoader

    files = files_in(setting.folder, ".parquet")
    dataset = load_dataset(
        "parquet",
        data_files=files,
        split="train",
        streaming=True,
        cache_dir=f"{setting.folder}/cache",
    )
    if setting.shuffle:
        dataset = dataset.shuffle(seed=setting.seed, buffer_size=1000)
    dataset = split_dataset_by_node(dataset, rank=setting.rank, world_size=setting.world_size)
    if setting.draw:
        dataset = dataset.map(with_draw)
    loader = _Loader(StatefulDataLoader(dataset, setting.batch_size, num_workers=setting.workers))
    loader.dataset = dataset
    return loader
