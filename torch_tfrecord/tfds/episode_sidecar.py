"""Where the index of episodes is kept: where the record index may lie, as ``<data file>.steps.index.safetensors``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.records.atomic import write_atomically
from torch_tfrecord.records.compression import open_stream
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.sidecar import cache_dir, sidecar_path
from torch_tfrecord.records.storage import is_remote, open_file
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
        for place in self._places(path):
            try:
                return _load(place, records, step_lists)
            except IndexMismatchError as error:
                stale = stale or error
            except OSError:
                continue
        if self._policy == "require":
            raise stale or IndexMismatchError(
                f"expected an index of episodes at {' or '.join(self._places(path))}, got none "
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
        places = self._places(path)
        if self._index_dir is not None or is_remote(path):
            del places[0]  # looked at, but not where new ones go
        for place in places:
            try:
                if place != places[0] or self._index_dir is not None:
                    Path(place).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(place, index.to_bytes(records, step_lists))
                return _load(place, records, step_lists)
            except OSError:
                continue
        warnings.warn(
            f"{path}: no index of episodes could be kept, it is built again each time. Give index_dir= to choose a "
            "place, or index='memory' if none is wanted.",
            stacklevel=5,
        )
        return index

    def _places(self, path: str) -> list[str]:
        folders = [folder for folder in (self._index_dir, cache_dir()) if folder is not None]
        name = path + _NAME
        return [sidecar_path(name), *(sidecar_path(name, folder) for folder in folders)]


def _load(place: str, records: RecordIndex, step_lists: Mapping[str, int]) -> EpisodeIndex:
    source = open_file(place)
    return EpisodeIndex.from_bytes(source.read(source.file_size, 0), records, step_lists, place)
