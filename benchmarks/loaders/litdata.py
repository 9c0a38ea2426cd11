"""LitData: chunks written by `optimize`, read by StreamingDataset in a StreamingDataLoader, as its
README says ("For the training dataset, don't forget to enable shuffle and drop_last !!!":
https://lightning.ai/docs/litdata/features/mulit-gpu-multi-node). Without shuffling `drop_last` is
left as it is: False on one rank, True on several.
"""

from __future__ import annotations

from typing import Any

from loaders import Loader, Setting, value_of, with_draw

__all__ = ["open_loader", "write"]


def _record(number: int) -> dict[str, Any]:
    return {"id": number, "value": value_of(number)}


def write(folder: str, shards: list[list[int]]) -> None:
    from litdata import optimize

    # Its chunks are of a size, not where we want them.
    optimize(
        fn=_record,
        inputs=[one for shard in shards for one in shard],
        output_dir=folder,
        chunk_size=max(map(len, shards)),
        num_workers=1,
    )


def open_loader(setting: Setting) -> Loader:
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        setting.folder,
        shuffle=setting.shuffle,
        drop_last=True if setting.shuffle else None,
        seed=setting.seed,
        transform=with_draw if setting.draw else None,
    )
    return Loader(
        StreamingDataLoader(dataset, batch_size=setting.batch_size, num_workers=setting.workers)
    )
