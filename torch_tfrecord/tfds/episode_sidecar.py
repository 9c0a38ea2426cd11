"""Where the index of episodes is kept: where the index of a file named ``<data file>.steps`` would be."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence

from tqdm import tqdm

from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.printable import printable
from torch_tfrecord.records.compression import open_stream
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.sidecar import about_data, new_places, places, write_sidecar
from torch_tfrecord.records.storage import open_file
from torch_tfrecord.tfds.episode_index import EpisodeIndex, build_episode_index

__all__ = ["EpisodeIndexKeeper"]

_NAME = ".steps"


class EpisodeIndexKeeper:
    """Finds the episode indexes of data files, builds what is missing or stale, and keeps what it built.

    Args:
        policy: "auto", "require" or "memory", as for record indexes.
        index_dir: A folder to keep indexes in; without it they lie beside the data, or in the user's cache where that
            cannot be written.
    """

    def __init__(self, policy: str = "auto", *, index_dir: str | os.PathLike[str] | None = None) -> None:
        self._policy = policy
        self._index_dir = None if index_dir is None else os.fspath(index_dir)

    def indexes(
        self, files: Sequence[str], records: Sequence[RecordIndex], step_lists: Mapping[str, int]
    ) -> list[EpisodeIndex]:
        """The episode index of each file; a progress bar appears when building takes more than a second.

        Raises:
            IndexMismatchError: with the policy "require", for a file without a fresh index.
            TFRecordError: a file that must be indexed is damaged, or an episode's features disagree.
        """
        progress = tqdm(
            zip(files, records, strict=True),
            "indexing episodes",
            len(files),
            unit="file",
            delay=1.0,
            disable=None,
            leave=False,
        )
        return [self._index(path, record_index, step_lists) for path, record_index in progress]

    def _index(self, path: str, records: RecordIndex, step_lists: Mapping[str, int]) -> EpisodeIndex:
        if self._policy == "memory":
            return self._build(path, records, step_lists)
        stale: IndexMismatchError | None = None
        for place in places(path + _NAME, self._index_dir):
            try:
                return EpisodeIndex.load(place, records, step_lists)
            except IndexMismatchError as error:
                stale = stale or about_data(error, path)
            except OSError:
                continue
        if self._policy == "require":
            raise stale or IndexMismatchError(
                f"expected an index of episodes at {' or '.join(places(path + _NAME, self._index_dir))}, got none "
                "(open the dataset once with index='auto')",
                path=path,
            )
        return self._keep(self._build(path, records, step_lists), path, records, step_lists)

    def _build(self, path: str, records: RecordIndex, step_lists: Mapping[str, int]) -> EpisodeIndex:
        stream, _ = open_stream(open_file(path), records.compression_type)
        return build_episode_index(stream, records, step_lists)

    def _keep(
        self, index: EpisodeIndex, path: str, records: RecordIndex, step_lists: Mapping[str, int]
    ) -> EpisodeIndex:
        """The index as it was kept, its tables in the file; as it is where no place can be written."""
        for place in new_places(path + _NAME, self._index_dir):
            try:
                write_sidecar(place, index.to_bytes(records))
                return EpisodeIndex.load(place, records, step_lists)
            except (OSError, IndexMismatchError):  # another process may have put there what is of other features
                continue
        warnings.warn(
            f"{printable(path)}: no index of episodes could be kept, it is built again each time. Give index_dir= to "
            "choose a place, or index='memory' if none is wanted.",
            stacklevel=5,
        )
        return index
