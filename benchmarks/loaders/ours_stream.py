"""torch_tfrecord without an index: TFRecordIterableDataset in torchdata's StatefulDataLoader, as
docs/order.md says: "With the same number of workers and ranks, call
`StatefulDataLoader.load_state_dict(state)` on each rank with its own state. With more or fewer,
give the dataset the states of all ranks".
"""

from __future__ import annotations

from typing import Any

from loaders import Loader, Setting, ours
from torch_tfrecord import TFRecordIterableDataset

__all__ = ["READS_TFRECORD", "open_loader", "write"]

READS_TFRECORD = True
write = ours.write


class _Loader(ours.Crops):
    setting: Setting

    def state(self) -> Any:
        return self.setting.workers, self.setting.world_size, super().state()

    def load(self, state: Any) -> None:
        workers, world_size, kept = state
        if (workers, world_size) == (self.setting.workers, self.setting.world_size):
            super().load(kept)
        else:
            self.batches.dataset.load_state_dict([kept])  # type: ignore[attr-defined]


def open_loader(setting: Setting) -> Loader:
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = TFRecordIterableDataset(
        f"{setting.folder}/*.tfrecord",
        ours.features_of(setting),
        transform=ours.draw if setting.draw else None,
        batch_size=setting.batch_size,
        shuffle=setting.shuffle,
        shuffle_buffer_size=1000,
        seed=setting.seed,
    )
    loader = _Loader(StatefulDataLoader(dataset, batch_size=None, num_workers=setting.workers))
    loader.setting = setting
    return loader
