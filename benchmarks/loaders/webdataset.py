"""WebDataset: tar files, `wds.WebDataset(..., shardshuffle,
nodesplitter=wds.split_by_node).shuffle().batched()` in a WebLoader, as the README's example and
https://webdataset.github.io/webdataset/multinode/ say. Its author recommends `resampled=True` for
training (https://github.com/webdataset/webdataset/issues/434), which has no epochs of its own: a
pass over all records, and with it most properties here, can only be asked of the other way.
Shuffled by `detshuffle`, with workers that stay: without it each run has another order, and with
new workers every epoch has the same.
"""

from __future__ import annotations

from typing import Any

from loaders import Loader, Setting, files_in, value_of, with_draw

__all__ = ["open_loader", "write"]


def write(folder: str, shards: list[list[int]]) -> None:
    import webdataset as wds

    for number, shard in enumerate(shards):
        with wds.TarWriter(f"{folder}/{number:03}.tar") as writer:
            for one in shard:
                writer.write({"__key__": f"{one:06}", "id": str(one), "value": value_of(one)})


def open_loader(setting: Setting) -> Loader:
    import webdataset as wds

    dataset = wds.WebDataset(
        files_in(setting.folder, ".tar"),
        shardshuffle=100 if setting.shuffle else False,
        detshuffle=setting.shuffle,
        nodesplitter=wds.split_by_node,
        seed=setting.seed,
    )
    if setting.shuffle:
        dataset = dataset.compose(wds.detshuffle(1000, seed=setting.seed))
    dataset = dataset.map(_sample)
    if setting.draw:
        dataset = dataset.map(with_draw)
    dataset = dataset.batched(setting.batch_size, collation_fn=_columns)
    return Loader(
        wds.WebLoader(
            dataset,
            batch_size=None,
            num_workers=setting.workers,
            persistent_workers=setting.workers > 0,
        )
    )


def _sample(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": int(sample["id"]), "value": sample["value"]}


def _columns(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [sample[name] for sample in samples] for name in samples[0]}
