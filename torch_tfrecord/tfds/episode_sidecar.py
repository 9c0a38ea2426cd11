"""Where the index of episodes is kept: where the index of a file named ``<data file>.steps`` would be."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence

from torch_tfrecord.arguments import IndexPolicy
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records.compression import open_stream
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.sidecar import SidecarKeeper
from torch_tfrecord.records.storage import open_file
from torch_tfrecord.tfds.episode_index import EpisodeIndex, build_episode_index

__all__ = ["EpisodeIndexKeeper"]

_NAME = ".steps"


class EpisodeIndexKeeper(SidecarKeeper[EpisodeIndex]):
    """The indexes of episodes.

    Args:
        policy: See `SidecarKeeper`.
        index_dir: See there.
    """

    _reloads = True

    def __init__(self, policy: IndexPolicy = "auto", *, index_dir: str | os.PathLike[str] | None = None) -> None:
        super().__init__(policy, index_dir, "index of episodes", "open the dataset once with index='auto'")

    def indexes(
        self, files: Sequence[str], records: Sequence[RecordIndex], step_lists: Mapping[str, int]
    ) -> list[EpisodeIndex]:
        """The episode index of each file; a progress bar appears when building takes more than a second.

        Raises:
            IndexMismatchError: with the policy "require", for a file without a fresh index.
            TFRecordError: a file that must be indexed is damaged, or an episode's features disagree.
        """
        pairs = zip(files, records, strict=True)
        progress = ProgressBar(pairs, "indexing episodes", len(files), unit="file", delay=1.0)
        found = [self._index(path, record_index, step_lists) for path, record_index in progress]
        self.warn_of_displaced()
        return found

    def _index(self, path: str, records: RecordIndex, step_lists: Mapping[str, int]) -> EpisodeIndex:
        def build() -> EpisodeIndex:
            stream, _ = open_stream(open_file(path), records.compression_type)
            return build_episode_index(stream, records, step_lists)

        load = functools.partial(EpisodeIndex.load, records=records, step_lists=step_lists)
        return self.find(path, path + _NAME, load, build, lambda index: index.to_bytes(records))
