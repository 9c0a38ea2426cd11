"""MosaicML streaming: MDSWriter, StreamingDataset and StreamingDataLoader, as
https://docs.mosaicml.com/projects/streaming/en/latest/distributed_training/fast_resumption.html
says; a transform in a subclass's `__getitem__`, as its guide on user-defined datasets does.
"""

from __future__ import annotations

from typing import Any

from loaders import Loader, Setting, value_of, with_draw

__all__ = ["CHECK", "open_loader", "write"]

CHECK = "validate_hash"


def write(folder: str, shards: list[list[int]]) -> None:
    from streaming import MDSWriter

    # Its shards are of a size, not of a number of records.
    size = 96 * max(map(len, shards))
    columns = {"id": "int", "value": "bytes"}
    with MDSWriter(out=folder, columns=columns, hashes=["sha1"], size_limit=size) as writer:
        for shard in shards:
            for one in shard:
                writer.write({"id": one, "value": value_of(one)})


def open_loader(setting: Setting) -> Loader:
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # of runs that were killed; waits for the other ranks

    class Records(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return with_draw(sample) if setting.draw else sample

    # Hashes are checked where shards are fetched.
    checked = {"remote": setting.folder, "validate_hash": "sha1"} if setting.checked else {}
    dataset = Records(
        local=f"{setting.folder}-cache" if setting.checked else setting.folder,
        **checked,
        batch_size=setting.batch_size,
        shuffle=setting.shuffle,
        shuffle_seed=setting.seed,
    )
    return Loader(
        StreamingDataLoader(dataset, batch_size=setting.batch_size, num_workers=setting.workers)
    )
