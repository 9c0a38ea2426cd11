"""Runs in a fresh process and prints one line of JSON: what importing, opening and many epochs
cost. See startup.py.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any


def resident_mib(pid: int | str = "self") -> float:
    """Memory that a process has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def probe_import() -> dict[str, float]:
    import torch  # noqa: F401
    import torchvision  # noqa: F401

    memory, begin = resident_mib(), time.perf_counter()
    import torch_tfrecord

    seconds = time.perf_counter() - begin
    for name in torch_tfrecord.__all__:  # each is imported when it is first used
        getattr(torch_tfrecord, name)
    return {
        "seconds": seconds,
        "all_seconds": time.perf_counter() - begin,
        "mib": resident_mib() - memory,
    }


def probe_open(folder: str) -> dict[str, float]:
    from torch_tfrecord import TFRecordDataset

    memory, begin = resident_mib(), time.perf_counter()
    dataset = TFRecordDataset(f"{folder}/*.tfrecord", index="require")
    opened = time.perf_counter() - begin
    begin = time.perf_counter()
    first = len(dataset.raw(len(dataset) // 2))
    return {
        "seconds": opened,
        "mib": resident_mib() - memory,
        "first_read_seconds": time.perf_counter() - begin,
        "records": len(dataset),
        "shards": len(dataset.files),
        "first_bytes": first,
    }


def probe_epochs(path: str, epochs: int) -> dict[str, Any]:
    """Memory of this process and of its two workers after each epoch."""
    import torch

    from torch_tfrecord import FixedLenFeature, make_dataloader

    features = {
        "id": FixedLenFeature((), torch.int64),
        "embedding": FixedLenFeature((1024,), torch.float32),
    }
    loader = make_dataloader(path, 256, features, num_workers=2, persistent_workers=True)
    own, workers = [], []
    for _ in range(epochs):
        for _batch in loader:
            pass
        own.append(resident_mib())
        workers.append(
            sum(resident_mib(process.pid or 0) for process in multiprocessing.active_children())
        )
    return {"own_mib": own, "workers_mib": workers}


def main() -> None:
    name, *arguments = sys.argv[1:]
    if name == "import":
        print(json.dumps(probe_import()))
    elif name == "open":
        print(json.dumps(probe_open(*arguments)))
    else:
        print(json.dumps(probe_epochs(arguments[0], int(arguments[1]))))


if __name__ == "__main__":
    main()
