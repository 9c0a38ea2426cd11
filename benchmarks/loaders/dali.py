"""NVIDIA DALI on the CPU: `fn.readers.tfrecord` with its index files in a DALIGenericIterator,
shards for ranks, as
https://docs.nvidia.com/deeplearning/dali/user-guide/docs/examples/general/data_loading/dataloading_tfrecord.html
and https://docs.nvidia.com/deeplearning/dali/user-guide/docs/advanced_topics_sharding.html say
(`pad_last_batch=True`, LastBatchPolicy.PARTIAL, `stick_to_shard` left out); checkpoints as in
https://docs.nvidia.com/deeplearning/dali/user-guide/docs/advanced_topics_checkpointing.html. Its
threads stand for workers.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loaders import Loader, Setting, files_in

__all__ = ["NOT_OFFERED", "READS_TFRECORD", "open_loader", "write"]

READS_TFRECORD = True
NOT_OFFERED = {"killed": "it has threads, no worker processes"}


def write(folder: str, shards: list[list[int]]) -> None:
    script = Path(sys.executable).with_name("tfrecord2idx")
    for path in files_in(folder, ".tfrecord"):
        subprocess.run([sys.executable, script, path, f"{path}.idx"], check=True)


class _Loader(Loader):
    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        for (batch,) in self.batches:
            yield {name: _plain(name, column) for name, column in batch.items()}

    def state(self) -> Any:
        return self.batches.checkpoints()  # type: ignore[attr-defined]


def _plain(name: str, column: Any) -> list[Any]:
    if name == "id":
        return column.flatten().tolist()
    if name == "value":
        return [bytes(row.numpy()) for row in column]
    return [hashlib.sha1(crop.numpy().tobytes()).hexdigest() for crop in column]


def open_loader(setting: Setting) -> Loader:
    import pickle

    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali import tfrecord as tfrec
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    features = {
        "id": tfrec.FixedLenFeature((), tfrec.int64, 0),
        "value": tfrec.FixedLenFeature((), tfrec.string, ""),
        "image": tfrec.FixedLenFeature((), tfrec.string, ""),
    }
    paths = files_in(setting.folder, ".tfrecord")

    @pipeline_def(
        batch_size=setting.batch_size,
        num_threads=max(setting.workers, 1),
        device_id=None,
        seed=setting.seed,
        enable_checkpointing=True,
    )
    def pipeline() -> Any:
        inputs = fn.readers.tfrecord(
            path=paths,
            index_path=[f"{path}.idx" for path in paths],
            features=features,
            random_shuffle=setting.shuffle,
            initial_fill=1000,
            shard_id=setting.rank,
            num_shards=setting.world_size,
            pad_last_batch=True,
            name="reader",
        )
        if not setting.draw:
            return inputs["id"], inputs["value"]
        crops = fn.decoders.image_random_crop(inputs["image"], output_type=types.RGB)
        return inputs["id"], inputs["value"], fn.resize(crops, size=(8, 8))

    # The state is the iterator's, and goes into the pipeline when it is built: so the file is read here.
    kept = {}
    if setting.load is not None:
        (checkpoint,) = pickle.loads(Path(setting.load).read_bytes())
        kept = {"checkpoint": checkpoint}
    iterator = DALIGenericIterator(
        [pipeline(**kept)],
        ["id", "value", "draw"] if setting.draw else ["id", "value"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.PARTIAL,
        auto_reset=True,
    )
    loader = _Loader(iterator)
    loader.load = lambda state: None  # type: ignore[method-assign]
    return loader
