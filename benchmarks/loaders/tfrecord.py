"""The package `tfrecord` (vahidk): TFRecordDataset in a DataLoader, with an index, as its README
says ("Index file must be provided when using multiple workers, otherwise the loader may return
duplicate records"), all records in one file:
https://github.com/vahidk/tfrecord#use-tfrecorddataset-to-read-tfrecord-files-in-pytorch. Without
workers it is read without the index, which would begin at a random record.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from loaders import Loader, Setting, files_in, with_draw

__all__ = ["NOT_OFFERED", "READS_TFRECORD", "open_loader", "write"]

READS_TFRECORD = True
NOT_OFFERED = {"once_ranks": "it knows no ranks", "equal_ranks": "it knows no ranks"}


def write(folder: str, shards: list[list[int]]) -> None:
    from tfrecord.tools.tfrecord2idx import create_index

    parts = [Path(path) for path in files_in(folder, ".tfrecord")]
    whole = Path(folder, "all.tfrecord")
    whole.write_bytes(b"".join(part.read_bytes() for part in parts))
    for part in parts:
        os.unlink(part)
    create_index(str(whole), f"{folder}/all.index")


def open_loader(setting: Setting) -> Loader:
    from tfrecord.torch.dataset import TFRecordDataset

    dataset = TFRecordDataset(
        f"{setting.folder}/all.tfrecord",
        f"{setting.folder}/all.index" if setting.workers else None,
        {"id": "int", "value": "byte"},
        shuffle_queue_size=1000 if setting.shuffle else None,
        transform=with_draw if setting.draw else None,
    )
    return Loader(
        DataLoader(dataset, setting.batch_size, num_workers=setting.workers, collate_fn=_columns)
    )


def _columns(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": [int(np.asarray(sample["id"]).item()) for sample in samples],
        "value": [bytes(sample["value"]) for sample in samples],
        **({"draw": [sample["draw"] for sample in samples]} if "draw" in samples[0] else {}),
    }
