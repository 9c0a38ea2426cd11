"""Parse records of a TFDS dataset into samples: the chosen leaves of the feature tree, nested like
the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from itertools import pairwise
from operator import getitem
from typing import Any

import torch_tfrecord.tfds.features as f
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, check_max_batch_bytes
from torch_tfrecord.columns.feature import Feature, make_reader
from torch_tfrecord.columns.parsers import ExampleParser
from torch_tfrecord.columns.reading import Reader
from torch_tfrecord.loading.column_batch import ColumnBatch
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.shown import shown_list
from torch_tfrecord.tfds.dataset_info import SupervisedKeys, flat_keys
from torch_tfrecord.tfds.leaf_table import (
    Decoding,
    LeafPlace,
    list_leaves,
    make_leaf,
    paths_below,
    plain_spec,
)

__all__ = ["Chosen", "TFDSParser", "choose_leaves"]

Chosen = Any
"""Feature names: paths such as "image" or "objects/label", or a nested mapping {"objects": {"label"}}."""


class TFDSParser:
    """Reads the chosen leaves of each record. Pickles if its decoders do; safe from several
    threads.

    Args:
        features: The feature tree.
        chosen: Names of the features to read; None for all.
        decoding: How to decode the leaves.
        supervised_keys: Return a tuple of these instead of the dict.
        path: Path of features.json, for errors.
        max_batch_bytes: See `TFRecordDataset`.

    Raises:
        KeyError: A name is not in the tree.
        ParseError: A chosen feature has an unknown class.
        ValueError: Nothing is chosen, or a feature cannot have the given decoder or default.
    """

    needs_keys = False  # nothing is drawn at random

    def __init__(
        self,
        features: f.FeatureConnector,
        chosen: Chosen = None,
        *,
        decoding: Decoding | None = None,
        supervised_keys: SupervisedKeys | None = None,
        path: str | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self.max_batch_bytes = check_max_batch_bytes(max_batch_bytes)
        decoding = decoding or Decoding()
        places = list_leaves(features)
        _check_paths(decoding, places)
        if supervised_keys is not None and chosen is None:
            chosen = list(flat_keys(supervised_keys))
        self.leaves = choose_leaves(places, chosen)
        self._places = [
            (leaf.path, leaf.names[:-1], leaf.names[-1], leaf.is_empty) for leaf in self.leaves
        ]
        self._supervised_keys = supervised_keys
        specs = {
            leaf.path: spec
            for leaf in self.leaves
            if (spec := plain_spec(leaf, decoding)) is not None
        }
        self._specs = specs if len(specs) == len(self.leaves) else None
        readers: dict[str, Reader] = {key: make_reader(key, spec) for key, spec in specs.items()}
        others = (leaf for leaf in self.leaves if leaf.path not in specs and not leaf.is_empty)
        readers.update({leaf.path: make_leaf(leaf, decoding, path, specs) for leaf in others})
        self._parser = ExampleParser.of_readers(readers, max_batch_bytes=self.max_batch_bytes)

    def __reduce__(self) -> tuple[Callable[[], TFDSParser], tuple[()]]:
        """Pickle the arguments; unpickling builds the readers again."""
        return partial(TFDSParser, **self._arguments), ()

    def single(self, serialized: bytes | bytearray | memoryview, key: int = 0) -> Any:
        """Parse one record into a sample.

        Raises:
            ImageDecodeError: An image cannot be decoded.
            ParseError: The bytes are not an Example, or do not fit the features.
        """
        return self._nest(self._parser.single(serialized))

    def batches(
        self, records: PackedRecords, keys: Any, borders: Sequence[int]
    ) -> list[ColumnBatch]:
        """Parse several batches at once into columns, nested like a sample: all their records, and
        their borders.
        """
        sizes = (end - begin for begin, end in pairwise(borders))
        return [
            *map(ColumnBatch, map(self._nest, self._parser.batches(records, None, borders)), sizes)
        ]

    @property
    def plain_features(self) -> Mapping[str, Feature] | None:
        """The feature specs that read the same samples, if all leaves are plain and nothing is
        nested; else None.
        """
        is_flat = (
            all(len(leaf.names) == 1 for leaf in self.leaves) and self._supervised_keys is None
        )
        return self._specs if is_flat else None

    @property
    def features(self) -> list[str]:
        """The paths of the features that are read."""
        return [leaf.path for leaf in self.leaves]

    def _nest(self, values: Mapping[str, Any]) -> Any:
        nested: dict[str, Any] = {}
        for path, parents, name, is_empty in self._places:
            target = nested
            for parent in parents:
                target = target.setdefault(parent, {})
            target[name] = {} if is_empty else values[path]
        return (
            nested if self._supervised_keys is None else _supervised(self._supervised_keys, nested)
        )


def choose_leaves(places: Sequence[LeafPlace], chosen: Chosen) -> list[LeafPlace]:
    """Return the chosen leaves, in tree order.

    Raises:
        KeyError: A name is not in the tree.
        ValueError: Nothing is chosen.
    """
    if chosen is None:
        return list(places)
    wanted = list(_chosen_paths(chosen, ()))
    if not wanted:
        raise ValueError("features must name at least one feature, or be None for all")
    there, found = [leaf.path for leaf in places], set[str]()
    for path in wanted:
        below = paths_below(there, path)
        if not below:
            raise KeyError(f"no feature {path!r}; there are {shown_list(sorted(there))}")
        found.update(below)
    return [leaf for leaf in places if leaf.path in found]


def _chosen_paths(chosen: Chosen, names: tuple[str, ...]) -> Iterable[str]:
    if isinstance(chosen, str):
        yield "/".join((*names, chosen))
    elif isinstance(chosen, Mapping):
        for name, inner in chosen.items():
            if inner is True or isinstance(inner, f.FeatureConnector):
                yield "/".join((*names, name))
            elif inner is not False:
                yield from _chosen_paths(inner, (*names, name))
    elif isinstance(chosen, Iterable):
        for item in chosen:
            yield from _chosen_paths(item, names)
    else:
        raise TypeError(
            f"features must be names, or a nested mapping of them, got {type(chosen).__name__}"
        )


def _check_paths(decoding: Decoding, places: Sequence[LeafPlace]) -> None:
    leaves = {leaf.path: leaf for leaf in places}
    for argument, paths in (("decoders", decoding.decoders), ("defaults", decoding.defaults)):
        for path in paths:
            if path not in leaves:
                raise KeyError(
                    f"{argument}: no feature {path!r}; there are {shown_list(sorted(leaves))}"
                )
    for path in decoding.defaults:
        if not getattr(leaves[path].feature, "optional", False):
            raise ValueError(f"defaults: feature {path!r} is not optional")


def _supervised(keys: SupervisedKeys, sample: Mapping[str, Any]) -> Any:
    if isinstance(keys, str):
        return reduce(getitem, (keys,) if keys in sample else keys.split("/"), sample)
    if isinstance(keys, Mapping):
        return {name: _supervised(item, sample) for name, item in keys.items()}
    return tuple(_supervised(item, sample) for item in keys)
